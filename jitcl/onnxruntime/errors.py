"""onnxruntime's exceptions. What is raised is jitcl's own error, too: `except jitcl.InputError` and
`except InvalidArgument` both catch an array of the wrong shape.
"""

from __future__ import annotations

from jitcl.errors import DeviceError, InputError, JitclError, ModelError, UnsupportedError


class Fail(JitclError):
    """What has no class of its own."""


class InvalidArgument(JitclError):
    """Inputs that do not fit the model, outputs that it lacks, options with impossible values."""


class NoSuchFile(JitclError):
    """There is no such model."""


class InvalidProtobuf(JitclError):
    """Not the file of a model."""


class InvalidGraph(JitclError):
    """A model that is not a valid one."""


class NotImplemented(JitclError):
    """What jitcl does not have."""


class RuntimeException(JitclError):
    """The device failed."""


class MissingInputs(JitclError, ValueError):
    """onnxruntime raises a plain ValueError for inputs that are not fed."""


class UsageError(JitclError, RuntimeError):
    """onnxruntime raises a plain RuntimeError for what is bound wrongly, and for entries that
    were not added.
    """


class LoadError(JitclError, TypeError):
    """onnxruntime raises a plain TypeError for what is no path and no bytes."""


def kind_of(error: JitclError) -> type[JitclError]:
    """The class that onnxruntime has for an error."""
    if isinstance(error, InputError):
        return InvalidArgument
    if isinstance(error, UnsupportedError):
        return NotImplemented
    if isinstance(error, DeviceError):
        return RuntimeException
    if isinstance(error, ModelError):
        undecoded = type(error.__cause__).__name__ == "DecodeError"      # protobuf's
        return InvalidProtobuf if undecoded else InvalidGraph
    return Fail


def made(own: type[JitclError], kind: type[JitclError], text: str) -> JitclError:
    """An error of jitcl's class and of onnxruntime's."""
    if issubclass(kind, own):
        return kind(text)
    both = type(kind.__name__, (kind, own), {"__module__": kind.__module__,
                                             "__doc__": kind.__doc__})
    error: JitclError = both(text)
    return error


def translated(error: JitclError, kind: type[JitclError] | None = None) -> JitclError:
    """The same error, of onnxruntime's class as well: `raise translated(error) from error`."""
    kind = kind or kind_of(error)
    return error if isinstance(error, kind) else made(type(error), kind, str(error))


__all__ = ["UsageError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf",
           "LoadError", "MissingInputs", "NoSuchFile", "NotImplemented", "RuntimeException",
           "kind_of", "made", "translated"]

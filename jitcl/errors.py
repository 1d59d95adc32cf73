"""The JitclError tree: every failure that a user can meet has a class and a message in one shape.

A message says what failed, where, what was got, what was wanted, and what to do now:

    node 'backbone/conv1' (Conv): input 'x' has 4 channels, but the weight 'w' [64,3,7,7] reads 3
      x: f32[1,4,224,224]   from graph input 'image'
      Feed an RGB picture (3 channels), or re-export the model for 4.
"""

from __future__ import annotations


class JitclError(Exception):
    """Base of all errors that jitcl raises on purpose."""


class ModelError(JitclError):
    """The model file is unreadable, not a model, or not a valid one."""


class UnsupportedError(JitclError):
    """The model needs ops, types or attributes that jitcl does not implement; all are listed."""


class NotOneGraph(UnsupportedError):
    """A model that is no single graph: some of it has to run on the host, or what follows depends
    on values that it computes. The runtime catches it and runs the model as a program of parts.
    """


class StepsVary(NotOneGraph):
    """A loop (`node`) makes as many steps as shapes say, so that no one graph of its steps serves
    many.
    """

    node = ""


class ShapeError(JitclError):
    """Shapes or ranks do not fit together."""


class TypeError_(JitclError):
    """An element type does not fit an op or an input."""


class InputError(JitclError):
    """What the caller fed does not match the model's inputs."""


class IndexRangeError(ModelError):
    """A constant of the model, used as an index, lies outside of what it indexes."""


class ParseError(JitclError):
    """Text IR that does not parse; the message carries line, column and a caret."""


class VerifyError(JitclError):
    """IR that breaks a rule of its level: names the node, what was got and what was wanted."""


class DeviceError(JitclError):
    """No such device, or the device refused or failed."""


class BuildError(DeviceError):
    """A device compiler rejected a generated kernel; the message carries its log."""


class KernelFault(BuildError):
    """The driver failed on kernels (crash, hang, refusal, wrong result): all is in the device's
    fault database by now, and compiling again takes other variants of these kernels.
    """


class DeviceLostError(DeviceError):
    """The device or its context is gone (a reset, a removed card): what it held is lost.

    `kernel`: the one that took it down, where that is known; it is in the database by then.
    """

    kernel = ""


class OutOfMemoryError(DeviceError):
    """The plan does not fit the device: says what was needed and what there is."""


class ClosedError(DeviceError):
    """A model, or what was bound to it, was closed before it was asked for this."""


def closed_error(name: str) -> ClosedError:
    """`name`: what was closed: a model, or a device's name where that is all that is known."""
    return ClosedError(f"{name}: this model was closed\n  Compile it again.")


class BusyError(JitclError):
    """As many runs are queued as may be, and the caller does not wait."""


class CacheError(JitclError):
    """The kernel cache was asked for something impossible (never raised for a damaged entry)."""


class OptionError(JitclError):
    """An option of the API, the command line or the environment has an impossible value."""


class NeedsValue(JitclError):
    """Import needs the value, not only the shape, of a graph input (a Reshape's target, say).

    The runtime catches it, adds that input's value to the specialisation's key and imports again.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the value of input '{name}' is needed to know shapes: {why}")
        self.input_name = name

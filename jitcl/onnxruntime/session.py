"""InferenceSession: a `jitcl.Model` under onnxruntime's names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jitcl import config
from jitcl.errors import InputError, JitclError, ModelError, OptionError
from jitcl.forking import cached_property
from jitcl.frontends.values import ValueType
from jitcl.ir.types import Sym
from jitcl.onnxruntime import errors
from jitcl.onnxruntime.described import ModelMetadata, NodeArg, node_arg
from jitcl.onnxruntime.options import SessionOptions, check_run
from jitcl.onnxruntime.providers import CPU, OPENCL, choose
from jitcl.onnxruntime.values import IOBinding, OrtValue
from jitcl.runtime.model import Model, open_model
from jitcl.runtime.source import OnnxSource, Tensor

IGNORED = ("disabled_optimizers", "enable_fallback")        # keywords that change no result


class InferenceSession:
    """A model, compiled: `run(output_names, {input name: array})` gives a list of arrays.

    model: the jitcl.Model behind it, with `report()` and all that onnxruntime has no name for.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        unknown = [k for k in kwargs if k not in IGNORED]
        if unknown:
            raise TypeError(f"InferenceSession has no argument '{unknown[0]}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options: got a {type(sess_options).__name__}, wanted "
                            "jitcl.onnxruntime.SessionOptions")
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise errors.made(ModelError, errors.LoadError, "Unable to load from type "
                              f"'{type(path_or_bytes)}': pass a path or bytes "
                              "(model.SerializeToString())")
        self._given, self._options = path_or_bytes, sess_options or SessionOptions()
        self._options.check()
        self._fixed = self._options.dimensions
        self._open(providers, provider_options)

    def _open(self, providers: Any, provider_options: Any) -> None:
        choice = choose(providers, provider_options)
        given = self._given
        if not isinstance(given, bytes) and not Path(given).exists():
            raise errors.made(ModelError, errors.NoSuchFile,
                              f"Load model from {given} failed: there is no such file")
        try:
            model = open_model(given, device=choice.device, **choice.options)
            shapes = self._shapes(model.inputs)
            fixed = model.fixed_shapes(shapes)
            if fixed is not None:
                with self._threads():
                    model.prepare(fixed)
        except JitclError as error:
            kind = errors.InvalidArgument if isinstance(error, OptionError) else None
            raise errors.translated(error, kind) from error
        self.model: Model = model
        self._choice = choice
        self._names = [t.name for t in model.outputs]

    def _shapes(self, inputs: Sequence[Tensor]) -> dict[str, tuple[int, ...]]:
        """Shapes of inputs that overridden dimensions make known."""
        shapes = {}
        for t in inputs:
            dims = [self._fixed.get(d.name) if isinstance(d, Sym) else d for d in t.shape]
            known = tuple(d for d in dims if d is not None)
            if t.value is None and not t.optional and len(known) == len(dims):
                shapes[t.name] = known
        return shapes

    def _threads(self) -> Any:
        return config.here(threads=self._options.threads)

    # ---- running

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
            run_options: Any = None) -> list[Any]:
        """The outputs that are named, all for None or []; arrays, lists of sequences, dicts of
        maps. Raises InvalidArgument, and a ValueError for inputs that are missing.
        """
        check_run(run_options)
        names = self._names if not output_names else list(output_names)
        for name in names:
            if name not in self._names:
                raise errors.made(InputError, errors.InvalidArgument, f"Invalid output name: {name}"
                                  f"\n  The outputs are {', '.join(self._names)}.")
        feeds = self._arrays(input_feed)
        try:
            if self._fixed:
                self._check_fixed(feeds)
            if self._options.threads is None:
                found = self.model.run(feeds)
            else:
                with self._threads():
                    found = self.model.run(feeds)
        except JitclError as error:
            missing = isinstance(error, InputError) and any(
                t.name not in feeds for t in self._required())
            kind = errors.MissingInputs if missing else None
            raise errors.translated(error, kind) from error
        return [found[name] for name in names]

    def _arrays(self, feeds: Any) -> Any:
        if not isinstance(feeds, Mapping):
            raise errors.made(InputError, errors.InvalidArgument, "input_feed: got a "
                              f"{type(feeds).__name__}, wanted a dict of input name -> array")
        if any(isinstance(v, OrtValue) for v in feeds.values()):
            return {n: v._value if isinstance(v, OrtValue) else v for n, v in feeds.items()}
        return feeds

    def _required(self) -> list[Tensor]:
        return [t for t in self.model.inputs if not t.optional
                and not (t.value is not None and t.value.kind == "optional")]

    def _check_fixed(self, feeds: Mapping[str, Any]) -> None:
        """Sizes of dimensions that were overridden."""
        for t in self.model.inputs:
            shape = getattr(feeds.get(t.name), "shape", None)
            for axis, (dim, size) in enumerate(zip(t.shape, shape or ())):
                want = self._fixed.get(dim.name) if isinstance(dim, Sym) else None
                if want is not None and size != want:
                    raise InputError(f"input {t}: axis {axis} is {size}, but '{dim}' was set to "
                                     f"{want} by add_free_dimension_override_by_name")

    def run_async(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
                  callback: Callable[[list[Any], Any, str], Any], user_data: Any,
                  run_options: Any = None) -> None:
        """`run` in a thread of its own, which calls callback(results, user_data, error): no results
        and the error's text where it failed, "" where it did not. Runs of one session take turns.
        """
        def work() -> None:
            found: list[Any] = []
            said = ""
            try:
                found = self.run(output_names, input_feed, run_options)
            except (JitclError, TypeError) as error:    # TypeError: run_options of another kind
                said = str(error)
            callback(found, user_data, said)

        threading.Thread(target=work, name="jitcl-run").start()

    def run_with_ort_values(self, output_names: Sequence[str] | None,
                            input_dict_ort_values: Mapping[str, OrtValue],
                            run_options: Any = None) -> list[OrtValue]:
        """`run` with OrtValues."""
        found = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(value) for value in found]

    def io_binding(self) -> IOBinding:
        """For `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on what is bound."""
        iobinding.run(run_options)

    # ---- what it is

    @cached_property
    def _inferred(self) -> dict[str, ValueType]:
        """Types of outputs that the file leaves open."""
        source = self.model.source
        if not isinstance(source, OnnxSource) or not any(
                t.dtype == "unknown" or t.value is not None for t in self.model.outputs):
            return {}
        from jitcl.frontends.onnx.described import inferred_outputs
        return inferred_outputs(source.model)

    def get_inputs(self) -> list[NodeArg]:
        """What must be fed."""
        return [node_arg(t, None, self._fixed) for t in self.model.inputs if not t.optional]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """What may be fed: the model has a value for it."""
        found = [node_arg(t, None, self._fixed) for t in self.model.inputs if t.optional]
        source = self.model.source
        if not found or not isinstance(source, OnnxSource):
            return found
        from jitcl.frontends.onnx.described import has_overridable
        return found if has_overridable(source.model) else []

    def get_outputs(self) -> list[NodeArg]:
        """What comes out."""
        return [node_arg(t, self._inferred.get(t.name), self._fixed) for t in self.model.outputs]

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of itself; graphs in jitcl's text form have a name alone."""
        source = self.model.source
        if not isinstance(source, OnnxSource):
            return ModelMetadata(graph_name=source.name)
        from jitcl.frontends.onnx.described import metadata
        return ModelMetadata(**metadata(source.model))

    def get_session_options(self) -> SessionOptions:
        """The options it was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """What it runs on, and what that falls back to where a driver fails."""
        return [OPENCL, CPU] if self.model.device.target.kind == "opencl" else [CPU]

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """Options of `jitcl.compile` by provider."""
        first, *rest = self.get_providers()
        return {first: {"device": self._choice.device, **self._choice.options},
                **{name: {} for name in rest}}

    def set_providers(self, providers: Sequence[Any] | None = None,
                      provider_options: Sequence[dict[Any, Any]] | None = None) -> None:
        """Compile anew for other devices."""
        self._open(providers, provider_options)

    def enable_fallback(self) -> None:
        """Nothing: jitcl always goes on where a driver fails, and says so."""

    def disable_fallback(self) -> None:
        """NotImplemented: that is `strict=True` of jitcl.compile."""
        raise errors.made(OptionError, errors.NotImplemented,
                          "disable_fallback is not there in jitcl\n  Pass the provider's option "
                          "{'strict': True}.")

    def end_profiling(self) -> str:
        """NotImplemented: there is no profile's file."""
        raise errors.made(OptionError, errors.NotImplemented,
                          "there is no profile: enable_profiling is not there in jitcl\n"
                          "  `jitcl bench MODEL --kernels 20` has the time of each kernel.")


__all__ = ["InferenceSession"]

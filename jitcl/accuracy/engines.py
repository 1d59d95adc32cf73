"""What is compared: jitcl on a device with options, onnxruntime, or onnx's reference evaluator.

    Configuration.of("cpu,precision=low,templates=off")
    Configuration.of("onnxruntime")

An engine runs ONNX models that are made of one: with inner tensors as outputs, or cut open.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from jitcl import config, dtypes
from jitcl.devices.base import Device
from jitcl.devices.progress import Tally
from jitcl.errors import DeviceError, OptionError
from jitcl.passes.options import Options
from jitcl.runtime.arguments import device_of, shown
from jitcl.runtime.model import Model
from jitcl.runtime.source import OnnxSource

OTHERS = ("onnx", "onnxruntime")
PLAIN = ("high", "normal", None)        # precision, memory, templates: as the model says
SWITCH = {"on": True, "off": False}
Feeds = Mapping[str, Any]
Results = dict[str, Any]


@dataclass(frozen=True)
class Configuration:
    """An engine and its options. device: as of `jitcl.compile`, or one of OTHERS. templates None:
    JITCL_TEMPLATES.
    """

    device: Any = "auto"
    precision: Any = "high"                 # text, once it is made
    memory: str = "normal"
    templates: bool | None = None

    @staticmethod
    def of(given: Any) -> Configuration:
        """Of text, a dict of fields, a device, or itself. Raises OptionError."""
        if isinstance(given, Configuration):
            return given
        if isinstance(given, Mapping):
            return Configuration()._with(dict(given))
        if not isinstance(given, str):
            return Configuration(device=given)
        device, *rest = (part.strip() for part in given.split(","))
        return Configuration(device=device or "auto")._with(
            {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in rest)
             })

    def with_options(self, *options: Any) -> Configuration:
        """With these for precision, memory and templates, where they are not PLAIN."""
        names = [f.name for f in fields(self)[1:]]
        return self._with({n: o for n, o, plain in zip(names, options, PLAIN) if o != plain})

    def _with(self, options: dict[str, Any]) -> Configuration:
        names = [f.name for f in fields(self)]
        for name in options:
            if name not in names:
                raise OptionError(f"'{name}' is no option of a configuration: wanted "
                                  f"DEVICE[,{'=..][,'.join(names[1:])}=..]")
        text = options.get("templates")
        if isinstance(text, str):
            if text not in SWITCH:
                raise OptionError(f"templates={text!r}: wanted on or off")
            options["templates"] = SWITCH[text]
        return replace(self, **options)

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", Options(self.precision, self.memory).said)
        if self.templates not in (None, True, False):
            raise OptionError(f"templates: got {shown(self.templates)}, wanted True, False or None")
        if self.device in OTHERS and (self.precision, self.memory, self.templates) != PLAIN:
            raise OptionError(f"{self.device} takes no options: it computes as the model says")

    def __str__(self) -> str:
        device = self.device if isinstance(self.device, str) else getattr(
            self.device, "spec", None) or getattr(self.device, "name", "device")
        said = [str(device)]
        if self.precision != "high":
            said.append(f"precision={self.precision}")
        if self.memory != "normal":
            said.append(f"memory={self.memory}")
        if self.templates is not None:
            said.append(f"templates={'on' if self.templates else 'off'}")
        return ",".join(said)


@dataclass(frozen=True)
class Ran:
    """A kernel ("" on the host), names of the ONNX nodes in it, and the dtype that it writes."""

    kernel: str
    nodes: tuple[str, ...]
    dtype: str


class Engine(ABC):
    """Runs a model, and models made of it."""

    def __init__(self, source: OnnxSource, name: str) -> None:
        self.source, self.name = source, name

    @abstractmethod
    def compute(self, source: OnnxSource, feeds: Feeds) -> Results:
        """All outputs of a model that was made of the engine's own."""

    def outputs(self, feeds: Feeds) -> Results:
        """What the model gives, as it is run without looking inside."""
        return self.compute(self.source, feeds)

    def inner(self, feeds: Feeds, tensors: Sequence[str],
              stored: Mapping[str, str] | None = None) -> Results:
        """Outputs and inner tensors. stored: dtypes in which tensors are kept, where it is not
        their own: an output would be kept as the model says.
        """
        from jitcl.frontends.onnx.inner import own_name, with_outputs

        if not tensors:
            return self.outputs(feeds)
        kept = dict(stored or {})
        made = self.source.derived(with_outputs(self.source.model, tensors, kept), "inner",
                                   list(tensors), kept)
        found = self.compute(made, feeds)
        return {**found, **{n: found[own_name(n)] for n in kept}}

    def own(self, feeds: Feeds, exact: Mapping[str, np.ndarray], tensors: Sequence[str],
            stored: Mapping[str, str]) -> Results:
        """Tensors as they are made of exact ones: the model cut open at those of `exact`.

        stored: dtypes in which tensors are kept. What is made is rounded to it; what is fed, too,
        unless it doesn't fit, which is the maker's error.
        """
        from jitcl.frontends.onnx.inner import Cut, cut_open, fed_name, own_name

        cuts, fed = {}, {}
        for name, array in exact.items():
            own = dtypes.from_numpy(array.dtype) or ""
            given = stored.get(name, own)
            rounded = _rounded(array, given)
            cuts[name] = Cut(own if rounded is None else given, array.shape, given, own)
            fed[name if rounded is None or given == own else fed_name(name)] = (
                array if rounded is None else rounded)
        made = self.source.derived(cut_open(self.source.model, cuts, tensors), "cut", tensors,
                                   [[n, *vars(c).values()] for n, c in cuts.items()])
        found = self.compute(made, {**feeds, **fed})
        return {n: found[own_name(n) if n in exact else n] for n in tensors}

    def kernels(self) -> list[Ran] | None:
        """What the last run of `outputs` ran, in order; None of an engine that runs nodes one by
        one.
        """
        return None


class JitclEngine(Engine):
    """jitcl on a device."""

    def __init__(self, source: OnnxSource, chosen: Configuration, device: Device,
                 cache_dir: str | Path | None, tally: Tally) -> None:
        super().__init__(source, str(replace(chosen, device=device.name)))
        self.chosen, self.device = chosen, device
        self._open = (cache_dir, tally, None)
        self._model: Model | None = None

    def model(self, source: OnnxSource) -> Model:
        options = Options(self.chosen.precision, self.chosen.memory, guard="off")
        return Model(source, self.device, options, False, *self._open)

    def compute(self, source: OnnxSource, feeds: Feeds) -> Results:
        with config.here(templates=self.chosen.templates):
            return self.model(source).run(feeds)

    def outputs(self, feeds: Feeds) -> Results:
        """Of one model, which stays: a run that is repeated compiles nothing."""
        with config.here(templates=self.chosen.templates):
            if self._model is None:
                self._model = self.model(self.source)
            return self._model.run(feeds)

    def kernels(self) -> list[Ran] | None:
        if self._model is None:
            return []
        steps = [Ran(s.kernel, tuple(dict.fromkeys(n for n, _ in s.origins)),
                     plan.buffers[s.writes[0]].dtype if s.writes else "")
                 for plan in self._model.plans for s in plan.steps]
        return steps + [Ran("", (name,), "") for name, _, _ in self._model.report().host]


class ReferenceEngine(Engine):
    """onnx's reference evaluator: NumPy, a node at a time, independent of jitcl."""

    def __init__(self, source: OnnxSource) -> None:
        super().__init__(source, "onnx")

    def compute(self, source: OnnxSource, feeds: Feeds) -> Results:
        from jitcl.frontends.onnx.inner import evaluate

        return evaluate(source.model, feeds)


class OnnxruntimeEngine(Engine):
    """onnxruntime on the CPU, its optimiser off: what is compared is each node."""

    def __init__(self, source: OnnxSource) -> None:
        super().__init__(source, "onnxruntime")
        self._kept: tuple[str, Any] = ("", None)

    def compute(self, source: OnnxSource, feeds: Feeds) -> Results:
        session = self._kept[1] if self._kept[0] == source.digest else _session(source)
        self._kept = (source.digest, session)
        try:
            values = session.run(None, {n: v for n, v in feeds.items() if v is not None})
        except Exception as error:              # its errors have no common class of their own
            raise DeviceError(f"onnxruntime failed while it ran the model: {error}") from error
        return dict(zip([o.name for o in session.get_outputs()], values))


def _session(source: OnnxSource) -> Any:
    from jitcl.frontends.onnx.inner import whole

    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError:
        raise DeviceError("onnxruntime is not installed\n  Install it: pip install onnxruntime; or "
                          "compare with onnx, onnx's reference evaluator.") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(whole(source.model).SerializeToString(), options,
                                            providers=["CPUExecutionProvider"])
    except Exception as error:              # as in `compute`
        raise DeviceError(f"onnxruntime does not take the model: {error}") from error


def open_engine(source: OnnxSource, chosen: Configuration, cache_dir: str | Path | None,
                tally: Tally) -> Engine:
    """The engine of a configuration. Raises OptionError, DeviceError."""
    if chosen.device == "onnx":
        return ReferenceEngine(source)
    if chosen.device == "onnxruntime":
        return OnnxruntimeEngine(source)
    return JitclEngine(source, chosen, device_of(chosen.device, tally), cache_dir, tally)


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray | None:
    """The array in another dtype; None where that can't hold it."""
    with np.errstate(over="ignore"):
        found = array.astype(dtypes.to_numpy(dtype))
    wide = np.isfinite(array.astype(np.float64))
    return found if np.isfinite(found.astype(np.float64))[wide].all() else None


def tensors_in(results: Mapping[str, Any], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of the results that are arrays of numbers."""
    found = {n: np.asarray(results[n]) for n in names
             if isinstance(results.get(n), (np.ndarray, np.generic))}
    return {n: a for n, a in found.items() if dtypes.from_numpy(a.dtype) is not None}


__all__ = ["OTHERS", "Configuration", "Engine", "open_engine", "tensors_in"]

"""What the user chose, in the words that MNN's users know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from jitcl.errors import OptionError
from jitcl.passes.packing import Packing

CHOICES = {
    "precision": ("high", "normal", "low"),         # the strictest first
    "memory": ("low", "normal", "high"),
    "tuning": ("none", "fast", "wide", "heavy"),
    "guard": ("off", "outputs", "layers"),
}
AUTO = "\n  auto is for a whole model, in jitcl.compile, jitcl.lm.load and `jitcl run`."
ALL = "*"
Precision = str | Mapping[str, str]     # for all layers; or by names and patterns of layers
Memory = str | Mapping[str, Any] | Packing      # of buffers; or of weights, too


@dataclass(frozen=True)
class Chosen:
    """What `precision="auto"` came to. tolerance: as text; error: the largest one of an output, in
    units of its largest element; inputs: how many it was tried on; random: whether they were made
    up. reasons: (node, why it is in more than the rest). share: of the model's FLOPs, those of the
    rest, as far as it reads or writes f16. notes: what else there is to say.
    """

    tolerance: str
    error: float
    inputs: int
    random: bool
    share: float
    reasons: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:                # lists, from the cache
        object.__setattr__(self, "reasons", tuple(map(tuple, self.reasons)))
        object.__setattr__(self, "notes", tuple(self.notes))

    def __str__(self) -> str:
        kind = "random input" if self.random else "input"
        return (f"auto, within {self.tolerance}: off by at most {self.error:.2g} for {self.inputs} "
                f"{kind}{'s' * (self.inputs != 1)}, {self.share:.0%} of the FLOPs in f16")


@dataclass(frozen=True)
class Held(Chosen):
    """The same of `memory={"bits": 4, "tolerance": 0.05}`. bits: of weights that are not in
    reasons. share: what packed weights take of their bytes as they were.
    """

    bits: int = field(default=8, kw_only=True)

    def __str__(self) -> str:
        kind = "random input" if self.random else "input"
        return "\n    ".join([
            f"{self.bits} bits, within {self.tolerance}: off by at most {self.error:.2g} for "
            f"{self.inputs} {kind}{'s' * (self.inputs != 1)}, {self.share:.0%} of their bytes",
            *(f"{'all layers' if n == ALL else repr(n)} {why}" for n, why in self.reasons),
            *self.notes])


@dataclass(frozen=True)
class Options:
    """precision: high = as the model says, f16 tensors stored as f16 and computed in f32; normal
    = f16 storage and f32 arithmetic; low = f16 storage and, where the device has it, f16
    arithmetic. memory: low packs buffers tightest, high never shares them. tuning: how long to
    search for faster kernels (docs/tuning.md).

    memory may say how weights are stored, too: {"bits": 4, "block": 64, "skip": ["/head/*"]}, or
    as text, "bits=4;block=64;skip=/head/*" (docs/quantisation.md). That stands in `weights`.

    precision may be given for layers: {"/head/Conv": "high", "/body/*": "normal", "*": "low"}, by
    names of ONNX nodes or glob patterns of them, or as text, "low;/head/Conv=high;/body/*=normal".
    A name is more than a pattern, an earlier pattern more than a later one, "*" the rest ("high"
    where it is not said). What is given so stands in `layers`, but for the rest, which `precision`
    then is.

    guard: what is looked at behind each run for the marks of f16's range: the outputs, or all that
    is stored as f16; None: outputs, where any layer may be in less than the model says.
    promoted: nodes that the guard has put into f32 since, "*" for all. each: no layer tells for
    others, as one that did was infinite in f32, too.
    scaled: (nodes of a layer, the power of two that its results are divided by, with its weights).
    chosen: where `precision="auto"` found the rest, what it came to.
    """

    precision: Any = "high"
    memory: Any = "normal"
    tuning: str = "none"
    guard: str | None = None
    layers: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    promoted: tuple[str, ...] = field(default=(), kw_only=True)
    each: bool = field(default=False, kw_only=True)
    scaled: tuple[tuple[tuple[str, ...], int], ...] = field(default=(), kw_only=True)
    chosen: Chosen | None = field(default=None, kw_only=True, compare=False)
    weights: Packing | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        given = self.precision
        if isinstance(given, str) and given not in CHOICES["precision"] and (
                "=" in given or ";" in given):
            given = _rules(given)
        if isinstance(given, Mapping):
            rest, layers = _split(given)
            object.__setattr__(self, "precision", rest)
            object.__setattr__(self, "layers", layers)
        memory = self.memory
        if isinstance(memory, Mapping) or isinstance(memory, str) and "=" in memory:
            memory = Packing.of(memory)
        if isinstance(memory, Packing):
            object.__setattr__(self, "memory", memory.plan)
            object.__setattr__(self, "weights", memory)
        for f in fields(self):
            value: Any = getattr(self, f.name)
            if f.name == "guard" and value is None:         # behind precision, which is checked
                value = "outputs" if self.reduced else "off"
                object.__setattr__(self, "guard", value)
            if f.name in CHOICES and (not isinstance(value, str) or value not in CHOICES[f.name]):
                raise OptionError(f"{f.name}={value!r} is not known: use one of "
                                  f"{', '.join(CHOICES[f.name])}"
                                  f"{AUTO if f.name == 'precision' else ''}")

    @property
    def low(self) -> bool:
        """Whether any layer may be computed in f16."""
        return "low" in (self.precision, *(p for _, p in self.layers))

    @property
    def reduced(self) -> bool:
        """Whether any layer may be stored in less than the model says."""
        return any(p != "high" for p in (self.precision, *(p for _, p in self.layers)))

    @property
    def least(self) -> str:
        """The lowest precision of any layer."""
        rank = CHOICES["precision"].index
        return max((self.precision, *(p for _, p in self.layers)), key=rank)

    @property
    def said(self) -> str:
        """The precision as text, which says the same when it is given as one."""
        return ";".join([self.precision,
                         *(f"{name.replace(';', '?')}={p}" for name, p in self.layers)])

    def of_layer(self, name: str) -> str | None:
        """What is said of a node by its name or a pattern; None where nothing is."""
        exact = dict(self.layers)
        if name in exact:
            return exact[name]
        return next((p for pattern, p in self.layers if fnmatchcase(name, pattern)), None)

    def key_parts(self) -> dict[str, str]:
        """Parts of keys: of what plans are made of, as far as it is said."""
        parts = {name: str(getattr(self, name)) for name in CHOICES if name != "guard"}
        more = {"layers": self.layers, "promoted": self.promoted, "each": self.each,
                "scaled": self.scaled,
                "weights": self.weights and [self.weights.said, self.weights.calibration],
                "guard": "" if self.guard == "off" else self.guard}
        return {**parts, **{name: json.dumps(value) for name, value in more.items() if value}}


def strictest(*precisions: str) -> str:
    """The one that rounds least."""
    return min(precisions, key=("wide", *CHOICES["precision"]).index)


def _rules(text: str) -> dict[str, str]:
    """The dict that "low;NAME=high" stands for."""
    found: dict[str, str] = {}
    for part in text.split(";"):
        name, _, precision = (p.strip() for p in part.rpartition("="))
        if not part.strip():
            continue
        if (name or ALL) in found:
            raise OptionError(f"precision={text!r} says twice what '{name or ALL}' is")
        found[name or ALL] = precision
    return found


def _split(given: Mapping[Any, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """(the precision of the rest, that of layers)."""
    choices = ", ".join(CHOICES["precision"])
    if not given:
        raise OptionError("precision: got an empty dict, wanted layers' names or patterns and one "
                          f"of {choices}, such as {{'/head/*': 'high', '*': 'low'}}")
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise OptionError(f"precision: got {name!r} for the name of a layer, wanted the name "
                              "of an ONNX node, or a pattern such as '/head/*'")
        if not isinstance(value, str) or value not in CHOICES["precision"]:
            more = AUTO if isinstance(value, str) and value == "auto" else ""   # no array
            raise OptionError(f"precision of '{name}' is {value!r}: use one of {choices}{more}")
    return given.get(ALL, "high"), tuple((n, p) for n, p in given.items() if n != ALL)


__all__ = ["ALL", "CHOICES", "Chosen", "Held", "Memory", "Options", "Precision", "strictest"]

"""What `check` found: layers in the model's order, where two configurations part, what adds most.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from jitcl.accuracy.measures import BINS, Difference


@dataclass(frozen=True)
class Layer:
    """A tensor that a layer gives. node: of the model; fused: nodes whose results the same kernel
    keeps to itself; kernel: "" where a node is run on the host, or by another engine.

    total: beside the other configuration, in a run from the inputs. own: as made of the other
    one's exact tensors, so that what earlier layers did wrong is left out; None where what the
    layer reads can't be fed.
    """

    node: str
    op_type: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    total: Difference
    own: Difference | None
    kernel: str = ""
    fused: tuple[str, ...] = ()

    def __str__(self) -> str:
        inside = f" with {', '.join(map(repr, self.fused))}" if self.fused else ""
        return f"'{self.node}' ({self.op_type}){inside}"


@dataclass(frozen=True)
class Repeats:
    """Of runs on the same inputs: whether all were equal to the last bit; else what first was not.
    """

    runs: int
    differs: str = ""
    run: int = 0

    @property
    def equal(self) -> bool:
        return not self.differs

    def __str__(self) -> str:
        return (f"{self.runs} more runs gave the same bits" if self.equal else
                f"not repeatable: '{self.differs}' has other bits in run {self.run} of {self.runs}")


@dataclass(frozen=True)
class Cure:
    """Nodes which, at precision "high", bring the outputs within the tolerance for all inputs; none
    of them can be left out. found: False where all layers together do not. layers: how many there
    are; tried: how many sets were compiled and run.
    """

    nodes: tuple[str, ...]
    layers: int
    tried: int
    found: bool = True

    def __str__(self) -> str:
        if not self.found:
            return (f"no set of the {self.layers} layers at precision high cures it: the fault is "
                    "not one of precision")
        return (f"cured by precision high for {len(self.nodes)} of {self.layers} layers: "
                f"{', '.join(map(repr, self.nodes))} ({self.tried} sets tried)")


@dataclass(frozen=True)
class Check:
    """Two configurations beside each other. `ok`: outputs agree within the tolerance, and repeated
    runs to the last bit.

    tolerance: of relative errors (Difference.relative). inputs: the relative error of the outputs
    for each input; `layers` are those of the worst one. missing: nodes whose tensors the other
    model has not. cure: the smallest set of layers that must be high, where that was asked for and
    outputs differ.
    """

    model: str
    configuration: str
    against: str
    tolerance: float
    inputs: tuple[tuple[str, float], ...]
    outputs: dict[str, Difference]
    layers: tuple[Layer, ...]
    repeats: Repeats | None = None
    missing: tuple[str, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())
    cure: Cure | None = None

    @property
    def worst(self) -> tuple[str, float]:
        """The input for which outputs differ most, and by how much."""
        return max(self.inputs, key=lambda row: row[1])

    @property
    def first(self) -> Layer | None:
        """The first layer where they part: whose result differs by more than the tolerance."""
        return next((r for r in self.layers if r.total.relative > self.tolerance), None)

    @property
    def most(self) -> Layer | None:
        """The layer that adds the largest error of its own; None where none adds any."""
        rows = [r for r in self.layers if r.own is not None and r.own.relative > 0]
        return max(rows, key=lambda r: _own(r), default=None)

    @property
    def ok(self) -> bool:
        return self.worst[1] <= self.tolerance and (self.repeats is None or self.repeats.equal)

    def as_dict(self) -> dict[str, Any]:
        """For programs: plain values. Layers are referred to by their tensors."""
        return {**asdict(self), "bins": [10.0 ** b for b in BINS], "ok": self.ok,
                "worst": list(self.worst),
                "first": self.first.tensor if self.first else None,
                "most": self.most.tensor if self.most else None}

    def html(self) -> str:
        """The text of a page for a browser, which needs nothing else."""
        from jitcl.accuracy.page import page

        return page(self)

    def __str__(self) -> str:
        name, error = self.worst
        lines = [f"{self.model}: {self.configuration} beside {self.against}: outputs "
                 f"{'agree' if error <= self.tolerance else 'differ'}: at most {error:.2g} of "
                 f"the largest element, tolerance {self.tolerance:.2g}"
                 + (f" (worst of {len(self.inputs)} inputs: {name})"
                    if len(self.inputs) > 1 else "")]
        if self.first is not None:
            lines.append(f"  they part at {self.first}: '{self.first.tensor}' differs by "
                         f"{self.first.total.relative:.2g}")
        elif self.layers:
            lines.append("  no layer parts from the other one")
        if self.most is not None:
            lines.append(f"  most is added by {self.most}: {_own(self.most):.2g} of its own, on "
                         "exact inputs")
        if self.cure is not None:
            lines.append(f"  {self.cure}")
        if self.repeats is not None:
            lines.append(f"  {self.repeats}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _own(layer: Layer) -> float:
    assert layer.own is not None
    return layer.own.relative


__all__ = ["Check", "Cure", "Layer", "Repeats"]

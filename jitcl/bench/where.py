"""On which device a model is fastest, and why: what a caller waits for, copies counted, by parts,
and what the device's measured peaks would allow its kernels.

    predicted = kernels at the device's roof + copies, waits and the host's part as they are
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jitcl.bench.roofline import Roofline
from jitcl.devices.recording import KINDS
from jitcl.profiling.parts import UNEXPLAINED
from jitcl.profiling.profile import profile
from jitcl.profiling.text import seconds as said

if TYPE_CHECKING:
    from jitcl.runtime.model import Model

RUNS = 20
NOTABLE = 0.15                  # of the difference of two devices, that a part has


@dataclass(frozen=True)
class Place:
    """A model on a device. seconds: of a run, from call to return, the median. parts: of the same
    in a profile: "kernel", "copy" and the others of `recording.KINDS`. roof: seconds of its kernels
    at the device's peaks; None where these, or its steps, are not known. launches: a run.
    """

    device: str
    seconds: float
    parts: Mapping[str, float]
    roof: float | None
    launches: int

    @property
    def predicted(self) -> float | None:
        """Seconds that the best kernels would leave."""
        rest = sum(spent for kind, spent in self.parts.items() if kind != "kernel")
        return None if self.roof is None else self.roof + rest

    @property
    def document(self) -> dict[str, Any]:
        return {"device": self.device, "seconds": self.seconds, "parts": dict(self.parts),
                "roof": self.roof, "predicted": self.predicted, "launches": self.launches}


def parts_of(model: Model, feeds: dict[str, Any], runs: int = RUNS) -> dict[str, float]:
    """Kind -> seconds a run, of a model that was run before. What the profile itself costs, which
    no other run has, is left out.
    """
    with profile() as found:
        for _ in range(runs):
            model.run(feeds)
    (time,) = found.models
    parts = {**time.parts, UNEXPLAINED: time.unexplained}
    return {kind: spent / runs for kind, spent in parts.items() if spent and kind != "profile"}


def place(device: str, seconds: float, parts: Mapping[str, float], line: Roofline | None) -> Place:
    roof = None if line is None else sum(p.roof_seconds for p in line.placed)
    return Place(device, seconds, parts, roof, 0 if line is None else len(line.placed))


def verdict(places: Sequence[Place]) -> list[str]:
    """Which it is, and of each other why not."""
    best, *others = sorted(places, key=lambda p: p.seconds)
    lines = [f"{best.device} is the place: {said(best.seconds)} a run, copies counted"]
    for p in others:
        more = {kind: p.parts.get(kind, 0.0) - best.parts.get(kind, 0.0)
                for kind in {**p.parts, **best.parts}}
        slower = sum(spent for spent in more.values() if spent > 0) or 1.0
        reasons = [_reason(p, kind, spent)
                   for kind, spent in sorted(more.items(), key=lambda pair: -pair[1])
                   if spent > NOTABLE * slower]
        lines.append(f"{p.device} takes {said(p.seconds)}, {p.seconds / best.seconds:.2f} times as "
                     f"long: {'; '.join(reasons) or 'in no part more than in others'}")
        if p.predicted is not None:
            side = "less" if p.predicted < best.seconds else "still more"
            lines.append(f"  with kernels at its measured peaks it would take {said(p.predicted)}, "
                         f"{side} than {best.device} does")
    return lines


def _reason(p: Place, kind: str, more: float) -> str:
    what = f"{said(more)} more for {KINDS.get(kind, kind)}"
    if kind == "kernel" and p.roof is not None and p.parts.get("kernel"):
        return f"{what}, which reach {p.roof / p.parts['kernel']:.0%} of its roof"
    return f"{what}, of {p.launches} launches" if kind in ("host", "wait") and p.launches else what


__all__ = ["Place", "parts_of", "place", "verdict"]

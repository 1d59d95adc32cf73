"""Whether a model would be faster in two pieces, each on the device that is better at it.

    predicted = kernels of the head on one device + those of the tail on the other
                + what a run on either takes beside kernels
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jitcl.bench.compare import SUSPECT
from jitcl.bench.contest import Contest, Say
from jitcl.bench.openers import jitcl_entrant
from jitcl.bench.processes import Entrant
from jitcl.bench.steps import StepTime
from jitcl.bench.where import Place
from jitcl.profiling.text import seconds as said
from jitcl.runtime.source import OnnxSource, Source

if TYPE_CHECKING:
    from jitcl.frontends.onnx.cutting import Cut

PAYS = 0.95                     # of the fastest device's time: what is worth two pieces


@dataclass(frozen=True)
class InTwo:
    """A model that is cut behind a tensor, its pieces on two devices. predicted, seconds: of a run;
    alone: of one on the fastest device, in turns with it. These two are None where it was not worth
    measuring, or could not be: `failed` says why.
    """

    tensor: str
    devices: tuple[str, str]
    predicted: float
    seconds: float | None = None
    alone: float | None = None
    failed: str = ""


def cuts_of(source: Source) -> Sequence[Cut]:
    """Where a model can be cut; none of a graph that was given as text."""
    if not isinstance(source, OnnxSource):
        return ()
    from jitcl.frontends.onnx.cutting import cuts

    return cuts(source.model)


def best_cut(cuts: Sequence[Cut], places: Sequence[Place],
             steps: Mapping[str, Sequence[StepTime]]) -> InTwo | None:
    """What is predicted to be fastest of all cuts and pairs of devices; of equal ones that with
    fewer bytes to copy. None where there is nothing to choose from.
    """
    known = [p for p in places if steps.get(p.device)]
    found = [
        (_kernels(cut, one, steps[one.device], True) + _kernels(cut, two, steps[two.device], False)
         + _beside(one) + _beside(two), cut.nbytes, cut.tensor, (one.device, two.device))
        for cut in cuts for one in known for two in known if one is not two]
    if not found:
        return None
    seconds, _, tensor, devices = min(found)
    return InTwo(tensor, devices, seconds)


def _kernels(cut: Cut, place: Place, steps: Sequence[StepTime], head: bool) -> float:
    """Seconds of the kernels of one side; those of both sides count for either. Steps that only
    arrange operands belong to the one that they come before.
    """
    taken, whole, here = 0.0, 0.0, False
    for step in reversed(steps):
        if step.nodes:
            before = [name in cut.head for name in step.nodes]
            here = any(before) if head else not all(before)
        taken, whole = taken + step.seconds * here, whole + step.seconds
    return place.parts.get("kernel", 0.0) * taken / whole if whole else 0.0


def _beside(place: Place) -> float:
    """Seconds of a run that are no kernel's."""
    return max(0.0, place.seconds - place.parts.get("kernel", 0.0))


def cut_entrant(model: Any, feeds: dict[str, Any], cut: InTwo, **options: Any) -> Entrant:
    """Both pieces, one behind the other, as an engine of a contest."""
    one, two = cut.devices
    return Entrant(f"jitcl {one}, then {two}", "jitcl.bench.cutting:open_pieces",
                   {"model": model, "feeds": feeds, "devices": cut.devices, "tensor": cut.tensor,
                    **options})


class Pieces:
    """Two models with what the first is fed."""

    def __init__(self, model: Any, feeds: dict[str, Any], devices: Sequence[str], tensor: str,
                 options: dict[str, Any]) -> None:
        from jitcl.frontends.onnx.cutting import pieces
        from jitcl.runtime.model import open_model

        source = open_model(model, device="cpu", **options).source
        assert isinstance(source, OnnxSource)
        self.models = [open_model(piece, device=device, **options)
                       for piece, device in zip(pieces(source.model, tensor), devices)]
        self.feeds = {t.name: feeds[t.name] for t in self.models[0].inputs if t.name in feeds}

    def run(self) -> dict[str, Any]:
        head, tail = self.models
        return tail.run(head.run(self.feeds))

    @property
    def about(self) -> dict[str, Any]:
        return {"device": " and ".join(m.device.name for m in self.models)}


def open_pieces(model: Any, feeds: dict[str, Any], devices: Sequence[str], tensor: str,
                threads: int, **options: Any) -> Pieces:
    return Pieces(model, feeds, devices, tensor, options)


def measured(model: Any, feeds: dict[str, Any], cut: InTwo, best: Place, threads: int, rounds: int,
             say: Say, **options: Any) -> InTwo:
    """The cut with its times, in turns with the fastest device's, if it is predicted to pay."""
    if cut.predicted > PAYS * best.seconds:
        return cut
    entrants = (jitcl_entrant(model, feeds, best.device, **options),
                cut_entrant(model, feeds, cut, **options))
    with Contest(entrants, threads, say) as contest:
        contest.open()
        contest.time(rounds)
        whole, pieces = contest.entries
    for entry in contest.entries:
        if entry.error is not None:
            return replace(cut, failed=f"{entry.name}: {entry.error}")
    assert whole.timing is not None and pieces.timing is not None
    if pieces.difference is not None and pieces.difference > SUSPECT["high"]:
        return replace(cut, failed=f"results differ by {pieces.difference:.1e}")
    return replace(cut, seconds=pieces.timing.median, alone=whole.timing.median)


def cut_verdict(cut: InTwo, best: Place) -> list[str]:
    """Whether two pieces are worth it, and how they are run."""
    where = f"cut behind '{cut.tensor}', {cut.devices[0]} and then {cut.devices[1]}"
    steps = f"by the times of its steps {said(cut.predicted)}"
    if cut.failed:
        return [f"two pieces were not measured: {where}, {steps}: {cut.failed}"]
    if cut.seconds is None or cut.alone is None:
        return [f"two pieces would not pay: {where}, it takes {steps} at best"]
    took = (f"{where}, it takes {said(cut.seconds)}, {cut.seconds / cut.alone:.2f} of what "
            f"{best.device} does ({steps})")
    if cut.seconds > PAYS * cut.alone:
        return [f"two pieces do not pay: {took}"]
    return [f"in two pieces it is faster: {took}", "  onnx.utils.extract_model makes files of "
            "the pieces, and jitcl.Pipeline([head, tail], "
            f"devices={list(cut.devices)}) runs them"]


__all__ = ["InTwo", "best_cut", "cut_verdict", "cuts_of", "measured"]

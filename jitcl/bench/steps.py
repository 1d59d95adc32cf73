"""Times of a model's steps, one by one, with their arithmetic and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jitcl.errors import UnsupportedError
from jitcl.runtime.inputs import check_feeds

if TYPE_CHECKING:
    import numpy as np

    from jitcl.codegen.plan import Plan
    from jitcl.runtime.model import Model

RUNS = 10


@dataclass(frozen=True)
class StepTime:
    """One launch. bytes: read and written, each buffer counted once."""

    name: str                           # "conv_17"
    kernel: str
    template: str                       # "" = generated loops
    ops: tuple[str, ...]                # ONNX op types that are fused in it
    nodes: tuple[str, ...]              # names of the model's nodes that are
    flops: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class StepTimes:
    """All steps of a model on a device."""

    device: str
    steps: tuple[StepTime, ...]

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.steps)


def step_times(model: Model, feeds: dict[str, Any]) -> StepTimes:
    """Each step run alone, in the model's order: on the CPU the least of RUNS, on OpenCL devices
    the median by the driver's events. The model is prepared for these shapes, where it leaves any
    open: a plan for many can't say.

    Raises UnsupportedError for a program of several parts, and for a device that cannot say.
    """
    if model.program is not None:
        raise UnsupportedError("steps are timed of models that are one graph: this one runs as a "
                               "program of parts\n  print(model.report()) lists them.")
    arrays = check_feeds(model.inputs, feeds)
    _, special = model.run_specialised(feeds)
    profile = getattr(special.executable, "profile", None)
    if profile is None:
        raise UnsupportedError(f"device {special.device.name} does not tell the time of its steps\n"
                               "  The cpu and opencl devices do.")
    found = profile([arrays[t.name] for t in special.plan.inputs], RUNS)
    return StepTimes(special.device.name, _described(special.plan, found))


def profiled(executable: Any, arrays: list[np.ndarray], runs: int = RUNS) -> list[float]:
    """Seconds of each step of a loaded plan, whichever way its device tells them."""
    return [t if isinstance(t, float) else t.seconds for t in executable.profile(arrays, runs)]


def _described(plan: Plan, found: list[Any]) -> tuple[StepTime, ...]:
    """The plan's steps with their seconds: a number for each, or records with names, where steps
    without work are left out.
    """
    steps = {s.name: s for s in plan.steps}
    template = {k.entry: k.template for k in plan.kernels}
    pairs = [(s, t) for s, t in zip(plan.steps, found)] if found and isinstance(
        found[0], float) else [(steps[t.name], t.seconds) for t in found]
    return tuple(StepTime(s.name, s.kernel, template[s.kernel],
                          tuple(dict.fromkeys(op for _, op in s.origins)),
                          tuple(name for name, _ in s.origins), s.flops, s.bytes, t)
                 for s, t in pairs)

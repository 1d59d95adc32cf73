"""jitcl as an engine of a contest: opened in a process of its own by `jitcl.bench.worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl.bench.processes import Entrant

if TYPE_CHECKING:
    from jitcl.bench.peaks import Peaks
    from jitcl.bench.steps import StepTimes


def jitcl_entrant(model: Any, feeds: dict[str, Any], device: str = "cpu", **options: Any,
                  ) -> Entrant:
    """jitcl on a device; `options` are those of `jitcl.compile`."""
    return Entrant(f"jitcl {device}", "jitcl.bench.openers:open_jitcl",
                   {"model": model, "feeds": feeds, "device": device, **options})


class JitclEngine:
    """A compiled model with what it is fed."""

    def __init__(self, model: Any, feeds: dict[str, Any], device: str, threads: int,
                 options: dict[str, Any]) -> None:
        from jitcl.runtime.model import open_model
        self.model = open_model(model, device=device, **options)
        self.feeds, self.threads = feeds, threads
        # a plan for these shapes alone, whose FLOPs and steps are theirs
        self.model.prepare({name: np.shape(x) for name, x in feeds.items()})

    def run(self) -> dict[str, Any]:
        return self.model.run(self.feeds)

    @property
    def about(self) -> dict[str, Any]:
        from jitcl import __version__
        report = self.model.report()
        return {"version": __version__, "device": report.device,
                "flops": sum(s.flops for s in report.steps), "steps": len(report.steps),
                "kernels": report.kernels, "peak_bytes": report.peak_bytes,
                "from_cache": report.from_cache, "host": [op for _, op, _ in report.host],
                "stepped_down": len(report.stepped_down)}

    def steps(self) -> StepTimes:
        """Times of all steps, one by one."""
        from jitcl.bench.steps import step_times
        return step_times(self.model, self.feeds)

    def parts(self) -> dict[str, float]:
        """Seconds of a run's parts."""
        from jitcl.bench.where import parts_of
        return parts_of(self.model, self.feeds)

    def peaks(self) -> Peaks:
        """What the device that ran the model can do at most."""
        from jitcl.bench.peaks import measure_peaks
        special = self.model.last
        device = self.model.device if special is None else special.device
        return measure_peaks(device, self.model.cache, self.threads)


def open_jitcl(model: Any, feeds: dict[str, Any], device: str, threads: int,
               **options: Any) -> JitclEngine:
    return JitclEngine(model, feeds, device, threads, options)

"""What a profile knows: models with the parts of their time, kernels, devices, all runs.

with jitcl.profile() as p:
    model.run(feeds)
print(p)
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitcl.codegen.plan import Step
from jitcl.codegen.text import html_table
from jitcl.devices import recording
from jitcl.devices.recording import Recorder, RunSpan, Span
from jitcl.errors import JitclError, OptionError
from jitcl.profiling.parts import UNEXPLAINED, Others, parts, union


@dataclass
class Kernel:
    """A step of a model on a device. seconds: of all launches; flops, bytes: of all launches, 0
    where they are not known. of_roof: what its peaks would allow, by what it takes; None where no
    peaks were measured. bound: what they are bound by.
    """

    model: str
    device: str
    name: str
    nodes: tuple[str, ...]              # of the model, that are fused in it
    ops: tuple[str, ...]
    launches: int = 0
    seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    of_roof: float | None = None
    bound: str = ""


@dataclass
class ModelTime:
    """A model's runs on a device. seconds: from their calls to their returns, which is the sum of
    `parts` and `unexplained`. queued: from `submit` to when the run began; in no other number.
    """

    model: str
    device: str
    runs: int = 0
    failed: int = 0
    seconds: float = 0.0
    queued: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)       # kind of span -> seconds
    unexplained: float = 0.0


@dataclass
class DeviceTime:
    """busy: seconds in which a kernel or a copy was under way; idle: of the others of the profile.
    turns: how often another model than the last one had it. doubt: why its own clock is not
    believed, so that times are the host's, step by step; "" where it is.
    """

    device: str
    busy: float
    idle: float
    turns: int
    models: tuple[str, ...]
    doubt: str = ""


@dataclass(frozen=True)
class Waited:
    """Seconds in which commands of one model that the device had been given did not start, while
    another's ran there.
    """

    model: str
    behind: str
    device: str
    seconds: float


class Profile:
    """Records the runs of all models and threads in its `with` block: one at a time. Its numbers
    are there when the block has ended. Kernels run one by one where that is the way to time them
    (`cpu`); their results have the same bits.

    seconds: of the block. models, kernels (the slowest first), devices, waits: see there. outside:
    kind -> seconds of what belongs to no run, such as compiling ahead. unfinished: runs that the
    block did not see end.
    """

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._ended = False

    def __enter__(self) -> Profile:
        if self._recorder is not None:
            raise JitclError("a profile is for one block: call jitcl.profile() again")
        self._recorder = recording.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._recorder is not None
        recording.stop(self._recorder)
        self._collect(self._recorder)
        self._ended = True

    def __getattr__(self, name: str) -> Any:
        if name in _NUMBERS and not self.__dict__.get("_ended"):
            raise JitclError(f"profile.{name}: the `with` block of this profile has not ended\n"
                             "  Read it behind the block.")
        raise AttributeError(name)

    # ---- numbers

    def _collect(self, recorder: Recorder) -> None:
        self.begin, self.seconds = recorder.begin, (recorder.end - recorder.begin) * 1e-9
        self.runs: tuple[RunSpan, ...] = tuple(r for r in recorder.runs if r.end)
        self.unfinished = len(recorder.runs) - len(self.runs)
        self.outside_spans: tuple[Span, ...] = tuple(recorder.outside)
        self.outside: dict[str, float] = {}
        for span in recorder.outside:
            spent = (span.end - span.begin) * 1e-9
            self.outside[span.kind] = self.outside.get(span.kind, 0.0) + spent
        self.opened: Mapping[str, Any] = recorder.devices       # by name: what runs were on
        models: dict[tuple[str, str], ModelTime] = {}
        kernels: dict[tuple[str, str, str], Kernel] = {}
        steps, self.others = _Steps(), Others(self.runs)
        for run in self.runs:
            model = models.setdefault((run.model, run.device), ModelTime(run.model, run.device))
            _add_run(model, run, parts(run, self.others))
            for span in run.spans:
                if span.kind == "kernel":
                    span.step, span.special = steps.at_run(span), None
                    _add_kernel(kernels, run, span)
        self.models = tuple(models.values())
        self.kernels = tuple(sorted(kernels.values(), key=lambda k: -k.seconds))
        self.devices, self.waits = _devices(self.runs, self.seconds, recorder.doubts)

    # ---- what is made of them

    def __str__(self) -> str:
        from jitcl.profiling.text import text

        return text(self)

    def __repr__(self) -> str:
        state = f"{len(self.runs)} runs" if self._ended else "not ended"
        return f"<jitcl.Profile: {state}>"

    def _repr_html_(self) -> str:
        """What notebooks show: models with the parts of their time, and kernels."""
        if not self._ended:
            return html.escape(repr(self))
        models = [(m.model, m.device, m.runs, f"{m.seconds:.4g}", ", ".join(
            f"{kind} {spent:.3g}" for kind, spent in m.parts.items())) for m in self.models]
        kernels = [(k.model, k.name, ", ".join(k.nodes), k.launches,
                    f"{k.seconds / k.launches * 1e6:.1f}",
                    "" if k.of_roof is None else f"{k.of_roof:.0%}") for k in self.kernels]
        return html_table("models", ("model", "on", "runs", "seconds", "of which"), models) + (
            html_table("kernels", ("model", "kernel", "layers", "launches", "us each", "of roof"),
                       kernels) if kernels else "")

    def document(self) -> dict[str, Any]:
        """All of it, as JSON has it; seconds since the block began."""
        from jitcl.profiling.documents import document

        return document(self)

    def save(self, path: str | Path) -> Path:
        """Write a file: `.html` is a timeline to look at, `.trace.json` is for chrome://tracing and
        ui.perfetto.dev, another `.json` holds all numbers, `.txt` the tables. Raises OptionError.
        """
        from jitcl.profiling.documents import saved

        path = Path(path)
        content = saved(self, path)
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise OptionError(f"cannot write to '{path}': {error.strerror or error}") from error
        return path


_NUMBERS = {"begin", "seconds", "runs", "unfinished", "outside", "outside_spans", "opened",
            "models", "kernels", "devices", "waits"}


def profile() -> Profile:
    """Where the time of runs goes, of all models in the block of `with jitcl.profile() as p`: see
    `Profile`. `print(p)`, `p.save("timeline.html")`.
    """
    return Profile()


class _Steps:
    """Steps with the work that they had in a run: those of a plan for many shapes don't know it."""

    def __init__(self) -> None:
        self._found: dict[Any, dict[str, Step]] = {}

    def at_run(self, span: Span) -> Step | None:
        special = span.special
        if special is None or span.step is None:
            return span.step
        key = id(special.family), special.values
        if key not in self._found:
            plan = special.family.plan.at(special.values)
            self._found[key] = {step.name: step for step in plan.steps}
        return self._found[key].get(span.step.name, span.step)


def _add_run(model: ModelTime, run: RunSpan, shares: Mapping[str, int]) -> None:
    model.runs += 1
    model.failed += bool(run.failed)
    model.seconds += (run.end - run.begin) * 1e-9
    model.queued += (run.begin - run.asked) * 1e-9 if run.asked else 0.0
    for kind, spent in shares.items():
        if kind == UNEXPLAINED:
            model.unexplained += spent * 1e-9
        else:
            model.parts[kind] = model.parts.get(kind, 0.0) + spent * 1e-9


def _add_kernel(kernels: dict[tuple[str, str, str], Kernel], run: RunSpan, span: Span) -> None:
    step = span.step
    origins = step.origins if step is not None else ()
    made = kernels.setdefault((run.model, span.place, span.name), Kernel(
        run.model, span.place, span.name, tuple(name for name, _ in origins),
        tuple(dict.fromkeys(op for _, op in origins))))
    made.launches += 1
    made.seconds += (span.end - span.begin) * 1e-9
    if step is not None:
        made.flops += int(step.flops)
        made.bytes += int(step.bytes)


def _devices(runs: tuple[RunSpan, ...], seconds: float, doubts: Mapping[str, str]
             ) -> tuple[tuple[DeviceTime, ...], tuple[Waited, ...]]:
    """What each device did, and who waited for whom there."""
    at: dict[str, list[tuple[Span, str]]] = {}
    for run in runs:
        for span in run.spans:
            if span.place:
                at.setdefault(span.place, []).append((span, run.model))
    found, waited = [], dict[tuple[str, str, str], int]()
    for place, pairs in at.items():
        pairs.sort(key=lambda pair: pair[0].begin)
        models = [model for _, model in pairs]
        turns = sum(a != b for a, b in zip(models, models[1:]))
        busy = union([span for span, _ in pairs]) * 1e-9
        found.append(DeviceTime(place, busy, max(0.0, seconds - busy), turns,
                                tuple(dict.fromkeys(models)), doubts.get(place, "")))
        for key, spent in _waits(pairs).items():
            waited[(*key, place)] = spent
    waits = (Waited(*key, spent * 1e-9) for key, spent in waited.items())
    return tuple(found), tuple(sorted(waits, key=lambda w: -w.seconds))


def _waits(pairs: list[tuple[Span, str]]) -> dict[tuple[str, str], int]:
    """(model, the model that it waited for) -> nanoseconds. pairs: a device's, by begin."""
    spent: dict[tuple[str, str], int] = {}
    for number, (span, model) in enumerate(pairs):
        since = span.begin                              # of what ran while it waited
        for earlier, other in reversed(pairs[:number]):
            if not span.submitted or earlier.end <= span.submitted:
                break
            if other == model:                          # behind its own: that is no wait for others
                break
            spent[model, other] = spent.get((model, other), 0) + max(
                0, min(since, earlier.end) - max(earlier.begin, span.submitted))
            since = min(since, earlier.begin)
    return spent


__all__ = ["DeviceTime", "Kernel", "ModelTime", "Profile", "Waited", "profile"]

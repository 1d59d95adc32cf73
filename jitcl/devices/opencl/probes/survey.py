"""Ask a device everything, in worker processes: a probe that crashes or hangs is an answer too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from jitcl import config
from jitcl.devices.base import Progress, Tally
from jitcl.devices.opencl.isolation import Isolated, WorkerFault, isolated
from jitcl.devices.opencl.platform import Found
from jitcl.devices.opencl.probes import PROBES, run_probe
from jitcl.devices.opencl.probes.record import (
    CRASH,
    HANG,
    REFUSED,
    SHORT,
    SKIPPED,
    WRONG,
    Answer,
)
from jitcl.devices.progress import Part
from jitcl.devices.shortage import shortage

WORKERS = 2
SECONDS = 20.0                      # that a group of probes may take
GROUPS = (                          # probes of one program; what compilers die of stands alone
    ("vec16",),
    ("half",),
    ("fp64", "vec8", "vec4", "fma", "mad", "int8"),
    ("image",),
    ("int4", "half_storage", "local", "unroll", "local_worth"),
    ("image2d", "half_images", "image_from_buffer"),
    ("events", "command_buffers"),
    ("subgroups", "odd_groups", "integer_dot"),
    ("binaries",),
    ("tensor_cores",),
    ("warpgroups",),
    ("register_limit",),
    ("half_builtins",),
    ("half_convert",),
    ("half_vectors",),
)

HOPELESS = 4                        # groups that took their worker down, none was survived


def survey(found: Found, progress: Progress | Tally | None = None) -> list[Answer]:
    """The answers of all probes, in the order of PROBES. Raises WorkerFault where no worker process
    can be had.

    JITCL_ISOLATION=never asks in this process.
    """
    if config.get("isolation") == "never":
        with _quiet_stderr():
            return _Survey(found, None).answers(Tally.of(progress))
    return _Survey(found, isolated(found)).answers(Tally.of(progress))


class _Survey:
    """All questions to one device. `pool` None: they are asked in this process."""

    def __init__(self, found: Found, pool: Isolated | None) -> None:
        self.found, self.pool = found, pool
        self.died = 0                       # jobs that a worker didn't survive
        self.survived = 0
        self.known = {p.name: Answer(p.name, SKIPPED, reason)
                      for p in PROBES.values() if (reason := p.skip(found))}

    def answers(self, tally: Tally) -> list[Answer]:
        waiting: list[tuple[str, ...]] = [g for g in GROUPS if any(n in PROBES for n in g)]
        with tally.part(len(waiting), f"probing {self.found.name}") as part:
            self._ask_in_turn(waiting, part)
        return [self.known[name] for name in PROBES]

    def _ask_in_turn(self, waiting: list[tuple[str, ...]], part: Part) -> None:
        """All groups, each when what it needs is known."""
        while waiting:
            ready = [g for g in waiting if not self._missing(g)]
            waiting = [g for g in waiting if g not in ready]
            for answers in self._ask_all([[n for n in g if n not in self.known] for g in ready]):
                self.known |= {a.probe: a for a in answers}
                part.step()
            for group in list(waiting):
                lacking = [n for n in self._missing(group) if n in self.known]
                if lacking:
                    waiting.remove(group)
                    self.known |= {n: Answer(n, SKIPPED, f"'{lacking[0]}' is missing")
                                   for n in group}

    def _missing(self, group: Sequence[str]) -> list[str]:
        """What the group's probes need and no good answer shows."""
        return [need for name in group for need in PROBES[name].needs
                if need not in self.known or not self.known[need].good]

    def _ask_all(self, groups: list[list[str]]) -> Iterator[list[Answer]]:
        groups = [g for g in groups if g]
        if self.pool is None:                   # one thread: some simulators know but one
            for group in groups:
                yield _no_fault_of_the_system(_answers(run_probe(self.found, "+".join(group))))
            return
        with ThreadPoolExecutor(WORKERS) as threads:
            yield from threads.map(self._ask_worker, groups)

    def _ask_worker(self, names: Sequence[str]) -> list[Answer]:
        """The answers of a group of probes; where it takes the worker down, of each by itself."""
        assert self.pool is not None
        if self.died >= HOPELESS and not self.survived:
            return [Answer(n, SKIPPED, f"the driver died of {self.died} probes before this one, "
                           "and survived none") for n in names]
        try:
            seconds = min(SECONDS, float(config.get("build_seconds")))
            reply = self.pool.call(("probe", "+".join(names)), seconds)
        except WorkerFault as fault:
            if short := shortage(fault.signature, fault.log):
                return [Answer(n, SHORT, short) for n in names]
            if fault.stage == "start":
                raise
            self.died += fault.kind in (CRASH, HANG)
            if len(names) > 1:
                return [a for name in names for a in self._ask_worker((name,))]
            told = {CRASH: "the driver died: ", HANG: "the driver hangs: "}.get(fault.kind, "")
            kind = fault.kind if fault.kind in (CRASH, HANG) else REFUSED
            return [Answer(names[0], kind, told + fault.signature)]
        self.survived += 1
        return _no_fault_of_the_system(_answers(reply))


def _answers(reply: dict[str, list[dict[str, object]]]) -> list[Answer]:
    return [Answer.from_dict(row) for row in reply["answers"]]


def _no_fault_of_the_system(answers: list[Answer]) -> list[Answer]:
    """Answers, those that were not good as SHORT where the system lacks something."""
    bad = [a for a in answers if a.kind in (REFUSED, WRONG)]
    short = shortage(*(a.evidence for a in bad)) if bad else ""
    return [Answer(a.probe, SHORT, short) if short and a in bad else a for a in answers]


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Send what libraries write to file descriptor 2 nowhere: PoCL's compiler prints "4 errors
    generated." there.
    """
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

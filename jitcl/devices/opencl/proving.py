"""Kernels tried in worker processes: those with the fewest features first, so that what is good is
known before what is suspicious, and a crash's features are told from those of its neighbours.

A job is a trial (a group's launches on random data, compared here), or one launch on zeros for a
kernel without a trial. Kernels with features that are blamed by the time they are reached fail
without a job: they need no crash of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from jitcl.codegen.plan import KernelSource, Plan
from jitcl.devices.faults import BINARIES, Fault
from jitcl.devices.load_options import Trial
from jitcl.devices.opencl.isolation import WorkerFault, isolated
from jitcl.devices.opencl.loading import Loading, chosen, first_line
from jitcl.devices.opencl.trial_plans import step_plan
from jitcl.devices.opencl.worker import Job, Tried
from jitcl.devices.progress import Part
from jitcl.devices.shortage import killed
from jitcl.errors import OutOfMemoryError
from jitcl.target.target import Target

log = logging.getLogger("jitcl.opencl")


@dataclass(eq=False)
class Attempt:
    """What a worker is to do: prove kernels, given by key, with a plan that launches them."""

    keys: dict[str, KernelSource]
    kernels: tuple[KernelSource, ...]       # of the plan: those, and what is launched beside them
    plan: Plan | None
    trial: Trial | None

    @property
    def features(self) -> frozenset[str]:
        return frozenset[str]().union(*(k.features for k in self.kernels))

    def job(self, target: Target, binaries: bool) -> Job:
        wanted = frozenset(s.entry for s in self.keys.values()) if binaries else frozenset()
        inputs = None if self.trial is None else tuple(self.trial.inputs())
        return Job(target, self.kernels, self.plan, inputs, wanted)


@dataclass
class Outcome:
    """What became of an attempt."""

    tried: Tried | None = None
    faults: tuple[Fault, ...] = ()
    refusals: dict[str, str] = field(default_factory=dict)  # entry -> why it was not tried
    no_memory: str = ""                     # what was said where the launch did not fit


class Proving:
    """The part of a loading that happens in workers; used once."""

    def __init__(self, loading: Loading, alone: dict[str, KernelSource], part: Part) -> None:
        """`part` counts the kernels."""
        self.loading, self.alone, self.part = loading, alone, part
        self.session = loading.session
        self.pool = isolated(loading.session.found)

    def run(self) -> None:
        """Try all kernels. Those that failed are in `loading.failed` then, those that are to be
        built here in `loading.proven`. Raises OutOfMemoryError where a launch never fits, and
        WorkerFault where no worker can be had.
        """
        waiting = sorted(self._attempts(), key=lambda a: (len(a.features), sorted(a.keys)))
        # a worker costs as much as some builds; a launch without memory is repeated by itself
        for places in (max(1, min(self.pool.size, (len(waiting) + 1) // 2)), 1):
            waiting, said = self._work_off(waiting, places)
        if waiting:
            raise OutOfMemoryError(said)

    def _work_off(self, waiting: list[Attempt], places: int) -> tuple[list[Attempt], str]:
        """Do all jobs, so many at a time. Returns those that lacked memory, and what was said."""
        queue, short, said = list(waiting), [], ""
        running: dict[Future[Outcome], Attempt] = {}
        with ThreadPoolExecutor(places, "jitcl-proving") as threads:
            try:
                while queue or running:
                    while queue and len(running) < places:
                        attempt = queue.pop(0)
                        running[threads.submit(self._attempt, attempt)] = attempt
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        attempt, outcome = running.pop(done), done.result()
                        if outcome.no_memory:
                            short.append(attempt)
                            said = outcome.no_memory
                        else:
                            self._finish(attempt, outcome)
                            self.part.step(len(attempt.keys))
            except BaseException:           # interrupted, or no worker can be had
                self.pool.abort(self)
                raise
        return short, said

    # ---- the jobs

    def _attempts(self) -> list[Attempt]:
        """A job for each trial that has kernels to prove, and for each kernel without a trial."""
        found = [self._attempt_of(trial.plan, keys, trial) for trial, keys in chosen(
            self.loading.options.trials, set(self.alone), self.loading.key_of)]
        covered = {k for a in found for k in a.keys}
        return found + [
            self._attempt_of(step_plan(self.loading.plan, source.entry), {key}, None)
            for key, source in self.alone.items() if key not in covered]

    def _attempt_of(self, plan: Plan | None, keys: set[str], trial: Trial | None) -> Attempt:
        wanted, key_of = self.loading.wanted, self.loading.key_of
        needed = dict.fromkeys(sorted(keys))
        for step in () if plan is None else plan.steps:
            if step.kernel in key_of:
                needed[key_of[step.kernel]] = None
        return Attempt({k: wanted[k] for k in sorted(keys)}, tuple(wanted[k] for k in needed),
                       plan, trial)

    # ---- in a thread of the pool's

    def _attempt(self, attempt: Attempt) -> Outcome:
        """One job, unless the database has learnt something against it meanwhile."""
        refusals = {s.entry: why for s in attempt.keys.values()
                    if (why := self.session.faults.rejects(s.entry, s.features))}
        if refusals:
            return Outcome(refusals=refusals)
        try:
            tried = self._tried(attempt)
        except WorkerFault as fault:
            if fault.kind == "memory":
                return Outcome(no_memory=fault.log)
            if fault.kind == "crash" and killed(fault.signature):
                return Outcome(no_memory=f"{self.session.name}: a worker process was ended from "
                               f"outside ({fault.signature}), as the system does without memory")
            return Outcome(faults=self._faults_of(attempt, fault))
        wrong = ""
        if attempt.trial is not None and self.loading.trials:
            wrong = attempt.trial.wrong(tried.outputs)
        if not wrong:
            return Outcome(tried)
        entries = (s.entry for s in attempt.kernels)
        return Outcome(faults=self._faults(entries, "check", "wrong", first_line(wrong), wrong))

    def _tried(self, attempt: Attempt) -> Tried:
        """The worker's answer. A driver that can't reload what it made is not asked for binaries
        again, now or later; that is no fault of a kernel, if the kernel is right without. Nor is a
        device that is lost, unless it is lost over the same job again.
        """
        try:
            tried = self._call(attempt, self.session.reloads)
        except WorkerFault as fault:
            if fault.stage != "load" and fault.kind != "lost":
                raise
            return self._repeated(attempt, fault)
        if tried.refused:
            self._no_binaries("refused", tried.refused, "")
        return tried

    def _repeated(self, attempt: Attempt, fault: WorkerFault) -> Tried:
        """The answer the second time: without binaries where they may be to blame. PoCL compiles
        late, so that a kernel may take it down there; what is left in its own cache it refuses.
        """
        if fault.stage != "load":
            return self._call(attempt, self.session.reloads)
        try:
            tried = self._call(attempt, False)
        except WorkerFault as again:
            if again.kind == "refused":
                raise fault from again
            raise
        self._no_binaries(fault.kind, fault.signature, fault.log)
        return tried

    def _call(self, attempt: Attempt, binaries: bool) -> Tried:
        job = attempt.job(self.session.target, binaries)
        tried: Tried = self.pool.call(("try", job), owner=self)
        return tried

    def _no_binaries(self, kind: str, signature: str, text: str) -> None:
        log.warning("%s: the driver does not take back the programs that it built (%s); kernels "
                    "are built from source at every start", self.session.name, signature)
        self.session.faults.record(Fault(BINARIES, "load", kind, signature, log=text))

    def _faults_of(self, attempt: Attempt, fault: WorkerFault) -> tuple[Fault, ...]:
        """The faults that a worker's one stands for; raises it where no kernel is to blame."""
        if fault.stage == "start" or fault.kind == "error":
            raise fault
        entries = [s.entry for s in attempt.kernels]
        if fault.entry in entries:
            entries = [fault.entry]
        return self._faults(entries, fault.stage, fault.kind, fault.signature, fault.log)

    def _faults(self, entries: Iterable[str], stage: str, kind: str, signature: str,
                text: str) -> tuple[Fault, ...]:
        sources = [self.loading.wanted[k] for k in self.loading.suspects(entries)]
        return tuple(self.loading.fault_of(s, stage, kind, signature, text) for s in sources)

    # ---- in the loading's own thread again

    def _finish(self, attempt: Attempt, outcome: Outcome) -> None:
        """Take over what a worker has found out."""
        loading, tried = self.loading, outcome.tried
        for entry, why in outcome.refusals.items():
            loading.failed[entry] = f"not tried: {why}"
        if tried is None:
            loading.record(*outcome.faults)
            loading.store.drop([loading.key_of[f.entry] for f in outcome.faults], loading.cache)
            return
        if attempt.trial is not None and loading.trials:
            loading.compared(attempt.trial)
        for key, source in attempt.keys.items():
            binary = tried.binaries.get(source.entry, b"")
            with loading.pending.over([source.entry] if binary else ()):
                adopted = bool(binary) and loading.store.adopt({key: source}, binary)
            if adopted:
                loading.store.keep_binary({key: source.entry}, loading.cache, "worker", binary)
            else:
                loading.proven.append(key)

"""One loading of a plan: every kernel of it built, launched once and compared, or a KernelFault.

    from the cache            in this process: a driver that is known good or a worker made it
    trusted (trust.isolated)  in this process, in batches; then its trials, and comparisons
    all others                in workers (proving.py); what they survive is loaded, or built from
                              source, in this process

What fails is recorded at once in the device's database, so that kernels which share the features
to blame need no crash of their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jitcl import config
from jitcl.codegen.plan import KernelSource, Plan
from jitcl.devices.base import Cache, Progress, Tally
from jitcl.devices.faults import Fault
from jitcl.devices.load_options import LoadOptions, Trial
from jitcl.devices.opencl import trust
from jitcl.devices.opencl.building import RefusedBuild
from jitcl.devices.opencl.programs import batches
from jitcl.devices.opencl.session import Session
from jitcl.devices.opencl.trial_plans import run_once
from jitcl.devices.pending import Pending
from jitcl.devices.progress import Part
from jitcl.devices.shortage import shortage
from jitcl.errors import DeviceError, DeviceLostError, KernelFault, OutOfMemoryError

SHOWN = 3                           # failed kernels that an error message tells of in full

log = logging.getLogger("jitcl.opencl")


class Loading:
    """The work of `OpenClDevice.load` on kernels; used once."""

    def __init__(self, session: Session, plan: Plan, cache: Cache | None,
                 progress: Progress | Tally | None, options: LoadOptions) -> None:
        self.session, self.plan, self.cache = session, plan, cache
        self.tally, self.options = Tally.of(progress), options
        self.store = session.store
        self.faults = session.faults
        self.pending = Pending(None if options.isolation == "never" else session.faults.path)
        sources = [k for k in plan.kernels if k.language == "opencl"]
        self.wanted = {self.store.key(s): s for s in sources}
        self.key_of = {s.entry: k for k, s in self.wanted.items()}
        self.variants = {s.kernel: s.variant for s in plan.steps}
        self.trials = options.trials if config.get("checks") else ()
        self.failed: dict[str, str] = {}    # entry -> what happened, in full
        self.proven: list[str] = []         # keys of kernels that workers have survived

    def programs(self) -> dict[str, Any]:
        """A built program per kernel, by entry name. Raises KernelFault."""
        with self.store.lock:
            self.proven = self.store.find(self.wanted, self.cache, self.options.isolation)
            self.build_proven()
            died, doubt = self._died_over()
            missing = self._acceptable(k for k in self.wanted if k not in self.store)
            doubt = doubt or (self._doubt() if missing else "")
            if doubt:
                log.info("%s: kernels are built in a worker process first: %s", self.session.name,
                         doubt)
            alone = {k: s for k, s in missing.items() if trust.isolated(
                self.options.isolation, s.features, self.session.target,
                doubt or (trust.DIED if s.entry in died else ""))}
            self._make(missing, alone)
            if died:
                self.pending.settle(died)
            if self.failed:
                raise self._fault()
            if alone and doubt == trust.UNFINISHED:
                self.pending.forgive()
            self.store.trim(list(self.wanted))
            return {s.entry: self.store[k] for k, s in self.wanted.items()}

    def _make(self, missing: dict[str, KernelSource], alone: dict[str, KernelSource]) -> None:
        """Build what is missing, those `alone` in worker processes first, and check results. Each
        kernel counts once, each program that is kept, and each trial twice: it is prepared and run.
        """
        built = batches({k: s for k, s in missing.items() if k not in alone},
                        self.session.target.program_kernels)
        trials = self._trials_here(set(alone))
        units = len(missing) + len(built) + 2 * len(trials)
        with self.tally.part(units, "building kernels") as part:
            if built or trials:
                self._here(built, trials, part)
            if alone:
                self._in_workers(alone, part)

    def _died_over(self) -> tuple[frozenset[str], str]:
        """Kernels of this plan that an earlier process died over, which the store has no more; and
        why the driver is not trusted, where one died over any. One that killed two processes, the
        second after a worker had survived it, has failed.
        """
        if not self.trials and all(k in self.store for k in self.wanted):
            return frozenset(), ""          # a warm start looks at no file
        deaths = self.pending.died_over()
        if not deaths or impossible_here():
            return frozenset(), ""
        doubt = trust.UNFINISHED if self.pending.unfinished() else ""
        entries = frozenset(deaths).intersection(self.key_of)
        for entry in sorted(entries):
            log.info("kernel '%s' is tried in a worker process: %s", entry, trust.DIED)
            if deaths[entry] > 1:
                self.faults.record(self.fault_of(self.wanted[self.key_of[entry]], "launch",
                                                 "crash", trust.TWICE, ""))
        unsure = [k for e in entries if (k := self.key_of[e]) not in self.store.checked
                  or deaths[e] > 1]
        self.store.drop(unsure, self.cache)
        return entries, doubt

    def _doubt(self) -> str:
        """Why no kernel is built here first, though the driver is known good."""
        if self.options.isolation == "never" or impossible_here():
            return ""
        crash = self.faults.crash_of_proven()
        if crash is not None:
            return f"it crashed over proven features alone: {crash.entry}: {crash.signature}"
        return shortage()                   # PoCL ends the process that it can't link in

    def _acceptable(self, keys: Iterable[str]) -> dict[str, KernelSource]:
        """The kernels that the database has nothing against; the rest has failed."""
        kept = {}
        for key in keys:
            source = self.wanted[key]
            reason = self.faults.rejects(source.entry, source.features)
            if reason:
                logs = [f.log for f in self.faults.faults if f.entry == source.entry]
                self.failed[source.entry] = "\n".join([f"not tried again: {reason}", *logs[-1:]])
            else:
                kept[key] = source
        return kept

    def _fault(self) -> KernelFault:
        shown = [f"kernel '{entry}': {text}" for entry, text in self.failed.items()]
        more = len(shown) - SHOWN
        lines = shown[:SHOWN] + ([f"and {more} more"] if more > 0 else [])
        return KernelFault(
            f"{self.session.name}: the driver failed on {len(shown)} of {len(self.wanted)} kernels"
            + "".join(f"\n  {line}" for line in lines)
            + "\n  This is recorded: compile again, and other variants are taken. "
            "`jitcl devices` shows what is known of the driver.")

    def _in_workers(self, alone: dict[str, KernelSource], part: Part) -> None:
        from jitcl.devices.opencl.proving import Proving  # a warm start does without it

        part.now("trying kernels in worker processes")
        Proving(self, alone, part).run()
        self.build_proven()

    # ---- in this process

    def _trials_here(self, elsewhere: set[str]) -> list[Trial]:
        """The trials of kernels of this process whose results were not compared yet."""
        unchecked = {k for k in self.wanted if k not in elsewhere and k not in self.store.checked}
        here = [t for t in self.trials if not elsewhere.intersection(self._keys_of(t))]
        return [t for t, _ in chosen(here, unchecked, self.key_of)]

    def _here(self, built: list[dict[str, KernelSource]], trials: list[Trial], part: Part) -> None:
        """Build kernels, run trials, keep what is right."""
        with preparing(trials, part):
            for batch in built:
                with self.pending.over(s.entry for s in batch.values()):
                    self.build(batch, "")
                part.step(len(batch))
        part.now("checking results")
        for trial in trials:
            if all(k in self.store for k in self._keys_of(trial)):
                unsure = (self.wanted[k].entry for k in self.suspects(trial.entries))
                with self.pending.over(unsure):
                    self._try_here(trial)
            part.step()
        part.now("keeping programs")
        good = {k: s for batch in built for k, s in batch.items() if k in self.store}
        self.store.keep(good, self.cache, trust.maker(self.options.isolation, self.session.target),
                        part.step)

    def _keys_of(self, trial: Trial) -> list[str]:
        return [self.key_of[e] for e in trial.entries if e in self.key_of]

    def build(self, batch: dict[str, KernelSource], by: str) -> None:
        """Build a batch as one program; where that fails, each kernel by itself, to name the one
        at fault.
        """
        try:
            self.store.build(batch)
        except RefusedBuild as error:
            if len(batch) > 1:
                for key, source in batch.items():
                    self.build({key: source}, by)
                return
            source = next(iter(batch.values()))
            self.session.must_live(f"building kernel '{source.entry}'")
            self.store.drop(batch, self.cache if by else None)
            self.record(self.fault_of(source, "build", error.kind, error.signature, str(error)))

    def build_proven(self) -> None:
        """Build from source what workers have survived: together where the driver is known good,
        else each by itself, as they did.
        """
        sources = {k: self.wanted[k] for k in self.proven if k not in self.store}
        size = self.session.target.program_kernels if self.session.target.trusted else 1
        with self.tally.part(len(sources), "building kernels") as part:
            for batch in batches(sources, size):
                with self.pending.over(s.entry for s in batch.values()):
                    self.build(batch, "worker")
                part.step(len(batch))
        self.store.keep({k: s for k, s in sources.items() if k in self.store}, self.cache, "worker")
        self.proven.clear()

    def _try_here(self, trial: Trial) -> None:
        """Run a trial with the kernels that were built, and compare."""
        held = {e: self.store[self.key_of[e]] for e in trial.entries if e in self.key_of}
        try:
            outputs = run_once(self.session, trial.plan, held, trial.inputs())
        except DeviceLostError:
            raise
        except OutOfMemoryError as error:
            log.info("no memory to try %s: %s", trial.subject, error)
            return
        except KernelFault as error:        # recorded already, with the kernel at fault
            failed = [f.entry for f in self.faults.faults if f.entry in held][-1:]
            self.failed.update((entry, str(error)) for entry in failed)
            self.store.drop([self.key_of[entry] for entry in failed], self.cache)
            return
        except DeviceError as error:
            self._blame(trial, "launch", "refused", str(error))
            return
        wrong = trial.wrong(outputs)
        if wrong:
            self._blame(trial, "check", "wrong", wrong)
        else:
            self.compared(trial)

    def compared(self, trial: Trial) -> None:
        """Remember kernels that a trial has found nothing wrong with: they are right, unless it
        could not tell. Those are known to be launched, no more: nothing is cleared of blame.
        """
        if trial.reason:
            log.info("results of %s can't be checked (%s): %s", trial.subject, trial.reason,
                     ", ".join(sorted(trial.entries)))
            return
        keys = self._keys_of(trial)
        self.store.checked.update(keys)
        self.faults.found_good({f for k in keys for f in self.wanted[k].features})

    def _blame(self, trial: Trial, stage: str, kind: str, text: str) -> None:
        """Record a failure of a group's kernels: those that were not right elsewhere."""
        sources = [self.wanted[k] for k in self.suspects(trial.entries)]
        self.record(*(self.fault_of(s, stage, kind, first_line(text), text) for s in sources))
        self.store.drop([self.key_of[s.entry] for s in sources], self.cache)

    def suspects(self, entries: Iterable[str]) -> list[str]:
        keys = [self.key_of[e] for e in sorted(entries) if e in self.key_of]
        return [k for k in keys if k not in self.store.checked] or keys

    def fault_of(self, source: KernelSource, stage: str, kind: str, signature: str,
                 text: str) -> Fault:
        return Fault(source.entry, stage, kind, signature, tuple(sorted(source.features)),
                     self.variants.get(source.entry, ""), text)

    def record(self, *faults: Fault) -> None:
        self.faults.record(*faults)
        for f in faults:
            self.failed[f.entry] = f"{f.kind} in the {f.stage}: {f.signature}\n{f.log}".rstrip()


@contextmanager
def preparing(trials: Sequence[Trial], part: Part) -> Iterator[None]:
    """Prepare trials in a thread, while the block has the driver build: it needs one core. Behind
    the block, those that are prepared count.
    """
    if not trials:
        yield
        return
    from concurrent.futures import ThreadPoolExecutor  # a warm start does without it

    stopped = threading.Event()

    def prepare(trial: Trial) -> None:
        if not stopped.is_set():
            trial.prepare()

    with ThreadPoolExecutor(1, "jitcl-trials") as threads:
        prepared = [threads.submit(prepare, trial) for trial in trials]
        try:
            yield
            part.now("computing what results must be")
            for future in prepared:
                future.result()
                part.step()
        except BaseException:
            stopped.set()
            raise


def chosen(trials: Iterable[Trial], wanted: set[str],
           key_of: Mapping[str, str]) -> list[tuple[Trial, set[str]]]:
    """Trials that cover the wanted kernels, each with those of them that no earlier one covers."""
    left, found = set(wanted), []
    for trial in trials:
        covered = {key_of[e] for e in trial.entries if e in key_of} & left
        if covered:
            found.append((trial, covered))
            left -= covered
    return found


def impossible_here() -> str:
    from jitcl.devices.opencl.isolation import impossible  # a warm start does without it

    return impossible()


def first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]

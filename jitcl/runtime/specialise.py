"""Compile for what a driver is known to survive, load, and where that fails take
the next variant, a smaller plan, or the CPU, until something loads.

    generate -> load -> KernelFault      the database knows more now: generate again
                     -> OutOfMemoryError the next of MEMORY_PLANS
                     -> DeviceLostError  the device is opened again, once
                     -> loaded           the plan goes into the cache

Nothing is stored that did not load, and a stored plan is used only while the database rejects none
of its kernels.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import config, forking
from jitcl.codegen.plan import LANGUAGE, Plan
from jitcl.devices import recording
from jitcl.devices.base import Device, Executable, Tally
from jitcl.devices.faults import Fault
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.progress import Part
from jitcl.errors import (
    BuildError,
    CacheError,
    DeviceLostError,
    KernelFault,
    OutOfMemoryError,
)
from jitcl.ir.indices import IndexCheck
from jitcl.passes.options import Options
from jitcl.runtime import serial
from jitcl.runtime.cache import DeviceCache, Key
from jitcl.runtime.fallbacks import KernelFallback, MemoryFallback, kernel_fallbacks, warning
from jitcl.runtime.memory import laid_out
from jitcl.runtime.source import Source
from jitcl.runtime.weights import Weights, needs
from jitcl.tuning.found import Found

if TYPE_CHECKING:
    from jitcl.codegen.generate import Generated  # a warm start needs no compiler
    from jitcl.runtime.lowering import Lowering
    from jitcl.tuning.search import Tuned

ATTEMPTS = 200                  # loads and runs of one call; each failure teaches the database
# how a plan gets smaller, and what of it is left when nothing of it fits
MEMORY_PLANS = ("", "low", "streamed", "cpu")

log = logging.getLogger("jitcl")
_opened: weakref.WeakKeyDictionary[Device, int] = weakref.WeakKeyDictionary()
_opening = forking.rlock()


class Patience:
    """What one call may still meet before it gives up. Made for each call: no field costs anything
    until something fails.
    """

    attempts = 0                                # loads and runs that failed
    reopened = False
    failed: frozenset[str] = frozenset()        # kernels of the plan that failed last
    useless: object = None                      # plan of the cache that does not load any more

    def kernels_failed(self, device: Device, plan: Plan, error: KernelFault) -> None:
        """Go on, unless nothing was learnt or it goes on for ever."""
        entries = _entries(plan)
        self.attempts += 1
        if entries == self.failed or device.faults is None:
            raise BuildError(
                f"{device.name}: its driver fails on the kernels of this model, and compiling it "
                f"again gave the same ones\n  {error}\n"
                "  Use device='cpu', or another driver."
            ) from error
        if self.attempts >= ATTEMPTS:
            raise BuildError(
                f"{device.name}: its driver failed on each of {ATTEMPTS} variants of this model; "
                f"the last time:\n  {error}\n  Use device='cpu', or another driver."
            ) from error
        self.failed = entries

    def device_lost(self, device: Device, seen: int, error: DeviceLostError) -> None:
        """Open the device again, once in a call; raises the error the second time, unless it names
        the kernel: another variant of that is taken. Nothing to do where another thread or model
        did so since opening `seen`.
        """
        self.attempts += 1
        if opening(device) != seen and self.attempts < ATTEMPTS:
            return
        if self.reopened and not (error.kernel and self.attempts < ATTEMPTS):
            raise DeviceLostError(
                f"{error}\n  The device was opened again, and lost once more. Use another device, "
                "or look into the system's log for its driver."
            ) from error
        self.reopened = True
        reopen(device, seen)


@dataclass(frozen=True)
class Specialisation:
    """The model for one set of input shapes, loaded. `device` is the one that runs it."""

    plan: Plan
    executable: Executable
    device: Device
    opening: int                                # of the device, when this was loaded
    from_cache: bool = False
    memory: str = ""                            # of MEMORY_PLANS
    stepped: tuple[KernelFallback, ...] = ()
    fallback: MemoryFallback | None = None      # why the plan is smaller, or on the CPU
    sizes: tuple[tuple[str, int, int], ...] = ()    # of a family: dimension, its value, room for
    no_family: str = ""                         # why no family serves shapes that go on changing
    guards: tuple[str, ...] = ()                # of a family: for which shapes it is right
    took: float = 0.0                           # seconds, from new shapes to what runs them
    tuned: tuple[tuple[str, Found], ...] = ()       # (step, what a search found of its group)
    unsearched: int = 0                         # groups that the search had no time for

    @property
    def checks(self) -> tuple[IndexCheck, ...]:
        """Of the indices of a run."""
        return self.plan.checks

    @property
    def plan_of_run(self) -> Plan:
        """What runs: the plan, of one for many at the shapes of this one."""
        return self.plan

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of a run."""
        return tuple([t.shape for t in self.plan.outputs])

    @property
    def stale(self) -> bool:
        """Whether its device was lost since."""
        return bool(_opened) and self.opening != opening(self.device)


@dataclass
class Specialiser:
    """Compiles and loads one model's specialisations on a device. Not for use from two threads at
    once.
    """

    source: Source
    device: Device
    options: Options
    strict: bool
    cache: DeviceCache
    tally: Tally = field(default_factory=lambda: Tally(None))
    isolation: str | None = None                # None: JITCL_ISOLATION
    priority: str = "normal"
    no_family: str = ""                             # of the next specialisation
    _host: Device | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not os.path.exists(self.cache.directory):        # False for what can't be one, too
            self.device.ahead(self.cache)       # what any model needs, while this one is read

    @property
    def weights(self) -> Weights:
        return Weights(self.cache)

    def store(self, key: Key, plan: Plan, extra: Any = None) -> None:
        """Have the cache hold a plan that has loaded, if it holds its weights."""
        if self.weights.held(plan):
            self.cache.put("plan", key, serial.encode(plan, extra), uses=needs(plan))

    # ---- from the cache, or compiled

    def specialise(
            self, key: Key, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray],
            patience: Patience
    ) -> Specialisation:
        """The specialisation that the cache holds, or a new one, which it holds then."""
        start = time.perf_counter()
        with recording.span("cache", "a plan"):
            known = self._stored(self.cache.get_mmap("plan", key), patience)
        if known is None:
            with self.cache.building("plan", key) as other:
                known = self._stored(other, patience)       # another process may have built it
                known = known or self.compile(key, shapes, values, patience)
        return replace(known, took=time.perf_counter() - start)

    def _stored(self, stored: Any, patience: Patience) -> Specialisation | None:
        """What the cache holds, loaded; None where it can't be used any more."""
        try:
            if stored is None:
                return None
            plan, extra = serial.decode(stored, self.weights.find)
        except CacheError:
            return None  # another version's layout, or its weights are gone: compile again
        if self.strict and self._on_host(plan):
            return None
        if extra["unsearched"] and config.get("tuning_seconds") is not None:
            return None  # there is time again for the rest
        fallback = MemoryFallback(**extra["fallback"]) if extra["fallback"] else None
        if fallback is not None and fallback.fits_now(self.device):
            return None  # there is room again for what did not fit
        memory = extra["memory"]
        device = self.host() if memory == "cpu" else self.device
        if patience.useless == (memory, plan.kernels):
            return None
        loaded = self._load_again(device, plan, patience)
        if loaded is None:
            patience.useless = memory, plan.kernels
            return None
        stepped = tuple(KernelFallback(**row) for row in extra["stepped"])
        tuned = tuple((name, Found.of_row(row)) for name, row in extra["tuned"])
        return Specialisation(plan, *loaded, True, memory, stepped, fallback,
                              no_family=self.no_family, tuned=tuned,
                              unsearched=extra["unsearched"])

    def rejected(self, plan: Plan) -> bool:
        """Whether the database speaks against a kernel of the plan by now."""
        faults = self.device.faults
        return faults is not None and bool(faults.faults) and any(
            faults.rejects(k.entry, k.features) for k in plan.kernels)

    def _on_host(self, plan: Plan) -> bool:
        """Whether some of the plan, or all of it, runs on the CPU path below the device."""
        language = LANGUAGE[self.device.target.kind]
        return any(k.language != language for k in plan.kernels)

    def reload(self, special: Specialisation, patience: Patience) -> Specialisation | None:
        """The same plan, loaded anew after its device was lost; None where it does not load."""
        loaded = self._load_again(special.device, special.plan, patience)
        if loaded is None:
            return None
        executable, device, seen = loaded
        return replace(special, executable=executable, device=device, opening=seen)

    def _load_again(
        self, device: Device, plan: Plan, patience: Patience
    ) -> tuple[Executable, Device, int] | None:
        """A plan that loaded once; None where a kernel of it has failed since, or it has no room.
        """
        while not self.rejected(plan):
            seen = opening(device)
            try:
                return self._load(device, plan), device, seen
            except DeviceLostError as error:
                patience.device_lost(device, seen, error)
            except (KernelFault, OutOfMemoryError) as error:
                log.info("%s: a plan does not load any more: %s", device.name, error)
                if isinstance(error, KernelFault):
                    patience.failed = _entries(plan)
                free_frames(error)
                return None
        return None

    def below(self, special: Specialisation, error: OutOfMemoryError) -> tuple[str, MemoryFallback]:
        """What `compile` takes for a specialisation that ran out of memory; raises the error where
        nothing smaller is left.
        """
        memory = self._below(special.memory, special.device, error)
        return memory, MemoryFallback.of(special.device, special.plan, error)

    # ---- compiling

    def compile(
            self, key: Key, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray],
            patience: Patience, memory: str = "", fallback: MemoryFallback | None = None
    ) -> Specialisation:
        """Generate and load until it loads, from one of MEMORY_PLANS on; then store the plan,
        and tell the user in one line where kernels stepped down.
        """
        what = f"model {self.source.name}"
        with recording.span("compile", what), self.tally.part(3, "reading the model") as part:
            return self._compile(key, shapes, values, patience, memory, fallback, part)

    def _compile(
        self, key: Key, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray],
        patience: Patience, memory: str, fallback: MemoryFallback | None, part: Part,
    ) -> Specialisation:
        before, tried = self.known_faults(), set[str]()
        ran = patience.failed                           # kernels that led here, if any
        device = self.host() if memory == "cpu" else self.device
        ahead = device.ahead(self._cache_of(device))
        from jitcl.runtime.lowering import Lowering

        lowering = Lowering(self.source, shapes, values, device, self.options, written=ahead)
        tuned = self._searched(lowering, device, patience)
        part.step()
        while True:
            part.now("generating kernels")
            with self.weights.taken(lowering.graph) as keep:
                generated, plan = lowering.plan(
                    "low" if memory in ("low", "streamed") else None,
                    memory == "streamed", host=not self.strict, keep=keep)
            plan = self.weights.shared(plan)
            tried.update(k.entry for k in plan.kernels)
            seen = opening(device)
            if part.left > 1:
                part.step()
            try:
                executable = self._load(device, plan, [replace(generated, plan=plan)])
                break
            except DeviceLostError as error:
                patience.device_lost(device, seen, error)
            except KernelFault as error:
                patience.kernels_failed(device, plan, error)
            except OutOfMemoryError as error:
                memory = self._below(memory, device, error)
                fallback = MemoryFallback.of(device, plan, error)
                free_frames(error)
                if memory == "cpu":
                    device = self.host()
                    lowering = Lowering(self.source, shapes, values, device, self.options)
        special = Specialisation(plan, executable, device, seen, False, memory,
                                 kernel_fallbacks(generated, plan), fallback,
                                 no_family=self.no_family, tuned=tuned.rows if tuned else (),
                                 unsearched=tuned.left if tuned else 0)
        self.keep(key, plan, _beside(special), special, [
            f for f in self.known_faults()
            if f.entry in ran or (f.entry in tried and f not in before)])
        return special

    def keep(self, key: Key, plan: Plan, extra: Any, special: Specialisation,
             new: Sequence[Fault]) -> None:
        """Store what loaded, and tell the user in one line where kernels stepped down: `new`, what
        failed on the way."""
        shortage = self.device.faults.shortage if self.device.faults is not None else ""
        if not shortage:                # else the next process makes a better one
            self.store(key, plan, extra)
        line = warning(self.device.name, special.stepped, new, special.memory, special.fallback,
                       shortage)
        if line:
            log.warning("%s", line)

    def _searched(self, lowering: Lowering, device: Device, patience: Patience) -> Tuned | None:
        """What a search finds, which the lowering then writes; None where none is asked for."""
        if self.options.tuning == "none" or device.target.kind != "opencl":
            return None
        from jitcl.runtime.tuned import search

        isolation = self.isolation or config.get("isolation")
        while True:
            seen = opening(device)
            try:
                tuned = search(lowering, device, self.cache, isolation, self.tally)
                break
            except DeviceLostError as error:
                patience.device_lost(device, seen, error)
        lowering.chooser = tuned.chooser
        return tuned

    def laid(self, plan: Plan) -> Plan:
        """A plan with places for its temporaries."""
        return laid_out(plan, self.device, self.options.memory)

    def load_sized(self, plan: Plan, patience: Patience, tried: Sequence[Generated] = (),
                   stepped: tuple[KernelFallback, ...] = ()) -> Specialisation:
        """The largest member of a family, a plan as `laid` gives it. Its kernels are tried at the
        shapes of `tried`. Raises KernelFault, OutOfMemoryError, BuildError.
        """
        while True:
            seen = opening(self.device)
            try:
                executable = self._load(self.device, plan, tried)
                return Specialisation(plan, executable, self.device, seen, stepped=stepped)
            except DeviceLostError as error:
                patience.device_lost(self.device, seen, error)

    def _load(self, device: Device, plan: Plan, tried: Sequence[Generated] = ()) -> Executable:
        """Loaded, in a worker first as was asked for; new plans with trials of their kernels in the
        plans of `tried`.
        """
        cache = self._cache_of(device)
        trials = _trials(device, tried)
        options = LoadOptions(self.isolation or config.get("isolation"), trials, self.priority)
        with recording.span("load", f"{len(plan.kernels)} kernels of {self.source.name}"):
            return device.load(plan, cache, self.tally, options)

    def _cache_of(self, device: Device) -> DeviceCache:
        return self.cache if device is self.device else self.cache.cache.for_target(device.target)

    def known_faults(self) -> tuple[Fault, ...]:
        return self.device.faults.faults if self.device.faults is not None else ()

    # ---- less memory

    def _below(self, memory: str, device: Device, error: OutOfMemoryError) -> str:
        """The next of MEMORY_PLANS that makes a difference; raises the error where none is left."""
        for lower in MEMORY_PLANS[MEMORY_PLANS.index(memory) + 1:]:
            if lower == "low" and self.options.memory == "low":
                continue
            if lower == "streamed" and device.host_target is None:
                continue
            if lower == "cpu" and (device.host_target is None or self.strict):
                continue
            return lower
        raise error

    def host(self) -> Device:
        """The CPU path below the device."""
        if self._host is None:
            from jitcl.devices.select import open_device

            self._host = open_device("cpu")
        return self._host


def _trials(device: Device, tried: Sequence[Generated]) -> tuple[Any, ...]:
    """What new kernels are tried on; nothing for plans from the cache, or where no driver is."""
    if not tried or device.faults is None or not config.get("checks"):
        return ()
    from jitcl.codegen.trial import trials

    found: list[Any] = []
    for generated in tried:
        known = {e for trial in found for e in trial.entries}
        wanted = {k.entry for k in generated.plan.kernels} - known
        found += trials(generated, generated.plan, wanted)
    return tuple(found)


def _entries(plan: Plan) -> frozenset[str]:
    return frozenset(k.entry for k in plan.kernels)


def _beside(special: Specialisation) -> dict[str, Any]:
    """What is stored beside a plan: how it came to be what it is."""
    return {"memory": special.memory, "stepped": [vars(s) for s in special.stepped],
            "fallback": vars(special.fallback) if special.fallback else None,
            "tuned": [(name, found.row()) for name, found in special.tuned],
            "unsearched": special.unsearched}


def free_frames(error: BaseException) -> None:
    """Drop what an error's frames hold: buffers of a plan that is to make room for another."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


# ---- devices that were lost


def opening(device: Device) -> int:
    """How often a device was opened again: what was loaded before the last time is stale."""
    with _opening:
        return _opened.get(device, 0)


def reopen(device: Device, seen: int) -> None:
    """Open a device again, unless another thread or model has done so since opening `seen`."""
    with _opening:
        if opening(device) == seen:
            device.reopen()
            _opened[device] = seen + 1

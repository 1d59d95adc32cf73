"""Families: one plan for many shapes, for models whose shapes change from run to run.

    run 1   past 3, 4 tokens     a family, `past` and `tokens` its symbols
    run 2.. past 7, 2 tokens     members of the family: nothing is compiled

Dimensions that the model leaves open are symbols from the first run on, and so are those that a
part of the model computed (how long a text will sound). Else what has changed between runs becomes
a symbol, elements of inputs whose values decide shapes, too. What is 0, and what the model fixes (a
dimension that has to equal a number), stays a number.
The model is compiled with `ir/sizes.py` in place of these dimensions, in one Manner (`symbols.py`)
after the other; the plan that comes out holds for all shapes that fulfil the guards met on the way.
It is loaded for a capacity, a power of two above what is fed; when that is outgrown its buffers
become larger. A run then costs the evaluation of the plan's integers.

Where a family can't be made (an op that needs to know a size, a device without parameters), the
model goes on with specialisations, and its report says why. Where there is one, only `shapes=` and
`prepare` make a plan for one shape: no run waits for that.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import config
from jitcl.codegen.plan import Plan
from jitcl.devices import recording
from jitcl.errors import (
    BuildError,
    CacheError,
    DeviceLostError,
    JitclError,
    KernelFault,
    NeedsValue,
    OutOfMemoryError,
    StepsVary,
)
from jitcl.ir.size_ranges import named
from jitcl.ir.sizes import SizeFixed, SizePinned, SizeUnfit, Space
from jitcl.ir.types import Sym
from jitcl.runtime import serial
from jitcl.runtime.cache import Key
from jitcl.runtime.fallbacks import KernelFallback, kernel_fallbacks
from jitcl.runtime.family import Family, Member
from jitcl.runtime.memory import alignment_of
from jitcl.runtime.resized import Resized
from jitcl.runtime.source import Tensor
from jitcl.runtime.specialise import Patience, Specialisation, Specialiser, free_frames
from jitcl.runtime.symbols import VALUE, Dims, Manner, elements, pattern_of, symbolic

if TYPE_CHECKING:
    from jitcl.codegen.generate import Generated

ATTEMPTS = 5                    # compilations, where a driver fails on kernels
VARIANTS = 8                    # families of one pattern: each has met other guards
FEW = 16                        # elements of an input by value that may be symbols

FAILED = (KernelFault, OutOfMemoryError, BuildError)        # where specialisations may do better
# SizePinned in disguise: `array[n]` and `islice(x, n)` hide what n.__index__ raises
DISGUISED = (IndexError, TypeError, ValueError)
log = logging.getLogger("jitcl")


@dataclass
class Families:
    """A model's families, the last used at the end. Not for use from two threads at once."""

    specialiser: Specialiser
    inputs: Sequence[Tensor]
    kept: OrderedDict[int, Family] = field(default_factory=OrderedDict)
    _last: Mapping[str, Dims] = field(default_factory=dict)
    _asked: float = 0.0                         # when a member was last asked for
    _changed: set[tuple[str, int]] = field(default_factory=set)     # (input, axis)
    _hopeless: dict[str | tuple[str, Manner], str] = field(default_factory=dict)    # -> why
    vary: set[str] = field(default_factory=set)     # inputs whose values change from run to run
    grows: set[tuple[str, int]] = field(default_factory=set)    # (input, axis): known to change
    free: frozenset[tuple[str, int]] = frozenset()              # that the model leaves open
    steps_vary: StepsVary | None = None         # why the model is no one graph for many shapes

    def __post_init__(self) -> None:
        if self.specialiser.source.whole:
            self.free = frozenset((t.name, axis) for t in self.inputs
                                  for axis, d in enumerate(t.shape) if isinstance(d, Sym))

    def member(self, shapes: Mapping[str, Dims], values: Mapping[str, np.ndarray],
               key: Callable[[], Key], patience: Patience) -> Member | None:
        """A family's plan at these shapes, and values of inputs that decide shapes, where there is
        a family for them or it is time for one. `key`: of the specialisation for them, which
        `specialiser.no_family` says something of.
        """
        self.specialiser.no_family, self._asked = "", time.perf_counter()
        if any(v.size > FEW for v in values.values()):
            return None
        with recording.span("guard", "shapes"):
            return self._member(valued(shapes, values), key, patience)

    def _member(self, shapes: Mapping[str, Dims], key: Callable[[], Key], patience: Patience
                ) -> Member | None:
        for number in reversed(self.kept):
            family = self.kept[number]
            values = family.values(shapes)
            if values is None:
                continue
            self.kept.move_to_end(number)
            try:
                member = self._take(family, values, patience)
            except OutOfMemoryError as error:
                free_frames(error)
                self._too_large(family, values)
                break
            except FAILED as error:
                log.info("the plan of many shapes does not load for %s: %s", shapes, error)
                free_frames(error)
                member = None
            if member is not None:
                return member
            del self.kept[number]
            break
        self._see(shapes)
        if not config.get("families") or self.specialiser.device.target.kind == "reference":
            return None
        due = bool(self._changed or self.grows or self._at_once())
        if not due and self.specialiser.cache.touch("plan", key()):
            return None
        return self._grow(key(), shapes, patience, due)

    def _see(self, shapes: Mapping[str, Dims]) -> None:
        """Remember what was fed."""
        for name, dims in shapes.items():
            before = self._last.get(name, dims)
            vary = name.endswith(VALUE) and name.removesuffix(VALUE) in self.vary
            self._changed.update(
                (name, a) for a, (d, e) in enumerate(zip(dims, before)) if d != e or vary)
        self._last = dict(shapes)

    def _at_once(self) -> bool:
        """Whether the first shape makes a family."""
        device = self.specialiser.device
        return bool(self.free and config.get("families")) and device.target.kind != "reference"

    def _symbolic(self, space: Space, shapes: Mapping[str, Dims], manner: Manner,
                  fixed: Collection[str] = ()) -> dict[str, Dims]:
        """Symbols for what is free or has changed, of shapes and of values; numbers for those of
        these names.
        """
        values = [elements(t, len(shapes[t.name + VALUE])) for t in self.inputs
                  if t.name + VALUE in shapes]
        return symbolic(space, [*self.inputs, *values], shapes,
                        self._changed | self.grows | self.free, fixed, manner)

    def _grow(self, key: Key, shapes: Mapping[str, Dims], patience: Patience, make: bool
              ) -> Member | None:
        """A new family that these shapes belong to; without `make`, from the cache."""
        pattern, rows = "", self._keys(key, shapes)
        if self.steps_vary is not None and self._changed and make:
            raise self.steps_vary
        for now in (False, True)[:1 + make]:    # what the cache holds, before anything is made
            for manner, pattern, keys in rows:
                hopeless = pattern in self._hopeless or (pattern, manner) in self._hopeless
                if hopeless or self.steps_vary is not None:
                    continue
                found = self._found(keys, manner, shapes, patience, now)
                if found is not None:
                    return found
        if make and pattern:
            self.specialiser.no_family = self._hopeless.get((pattern, Manner.NOW)) or (
                self._hopeless.get(pattern, ""))
        return None

    def _keys(self, key: Key, shapes: Mapping[str, Dims]
              ) -> list[tuple[Manner, str, list[Key]]]:
        """Of the families that shapes may belong to, those that are to be preferred first: (manner,
        pattern, keys); `key`: of a plan for these shapes alone.
        """
        rows: list[tuple[Manner, str, list[Key]]] = []
        for manner in Manner if self.free else (Manner.ALIKE, Manner.NOW, Manner.ANY):
            space = Space(general=manner is Manner.ANY)
            try:
                sized = self._symbolic(space, shapes, manner)
            except SizePinned:                  # larger than a size may be
                continue
            if space.atoms:
                pattern, hints = pattern_of(sized), str([a.hint for a in space.atoms])
                names = {Manner.NOW: [*map(str, range(VARIANTS))],
                         Manner.ANY: [f"any {v}" for v in range(VARIANTS)]}.get(manner, [hints])
                rows.append((manner, pattern, [
                    Key({**key.parts, "shapes": pattern, "values": "", "family": v}, key.subject)
                    for v in names]))
        if len(rows) > 1 and rows[-2][0] is Manner.NOW:
            *others, now, general = rows
            if now[1] == general[1]:            # a second one made for NOW would not be the last
                return [*others, (*now[:2], now[2][:1]), general, (*now[:2], now[2][1:])]
            if self.kept:                       # 0 and 1 are numbers in some of these
                others.sort(key=lambda row: row[1] != general[1])
                alike = sum(row[1] == general[1] for row in others)
                return [*others[:alike], general, *others[alike:], now]
            return [*others, general, now]
        return rows

    def key(self, key: Key, shapes: Mapping[str, Dims], values: Mapping[str, np.ndarray]) -> Key:
        """Of what the cache is asked for at these shapes and values: of the family that it holds
        for them, or the first that would be made; `key`, where none would.
        """
        if not self._at_once() or any(v.size > FEW for v in values.values()):
            return key
        first, shapes = key, valued(shapes, values)
        for _, _, keys in self._keys(key, shapes):
            first = keys[0] if first is key else first
            for k in keys:
                family = self._stored(self.specialiser.cache.get_mmap("plan", k), shapes)
                if family is not None and family.values(shapes) is not None:
                    return k
        return first

    def _found(self, keys: Sequence[Key], manner: Manner, shapes: Mapping[str, Dims],
               patience: Patience, make: bool) -> Member | None:
        """What the cache holds under a key, or what is made then, if these shapes belong to it."""
        cache = self.specialiser.cache
        for key in keys:
            with recording.span("cache", "a plan"):
                stored = cache.get_mmap("plan", key) if cache.touch("plan", key) else None
                family = self._stored(stored, shapes)
            if family is None:
                if not make:
                    return None
                with cache.building("plan", key) as other:
                    family = self._stored(other, shapes)        # of another process
                    if family is None:
                        return self._made(key, manner, shapes, patience)
            try:
                found = self._first(family, shapes, patience)
            except OutOfMemoryError as error:
                free_frames(error)
                self._too_large(family, family.values(shapes) or ())
                self._keep(family)
                return None
            except FAILED as error:
                why = f"the plan for many does not load: {said(error, family.space)}"
                self._refuse((key.parts["shapes"], manner), why)
                free_frames(error)
                return None
            if found is not None:
                return found
        if len(keys) > 1:
            self._refuse((keys[0].parts["shapes"], manner),
                         f"there are {VARIANTS} plans for many shapes, and these fit none of them")
        return None

    def _refuse(self, what: str | tuple[str, Manner], why: str) -> None:
        """From now on, no family of a pattern is made (in a manner)."""
        self._hopeless[what] = self.specialiser.no_family = why
        log.info("model %s: no plan for many shapes: %s", self.specialiser.source.name, why)

    def drop(self, special: Specialisation) -> bool:
        """Forget the family of a member that failed; False where that was done."""
        family = special.family if isinstance(special, Member) else None
        numbers = [n for n, kept in self.kept.items() if kept is family]
        for number in numbers:
            del self.kept[number]
        return bool(numbers)

    def close(self) -> None:
        """Give back what families have loaded."""
        for family in self.kept.values():
            if family.loaded is not None:
                family.loaded.executable.close()
        self.kept.clear()

    def give_up(self, special: Specialisation) -> bool:
        """Whether memory ran out with a member: its family takes no more than what is fed. Where
        that was too much, as large shapes have plans of their own from now on.
        """
        if not isinstance(special, Member) or special.family is None:
            return False
        family = special.family
        family.capacity, family.spare = [], False
        if all(room == value for _, value, room in special.sizes):
            self._too_large(family, special.values)
        return True

    def _too_large(self, family: Family, values: Sequence[int]) -> None:
        """A family goes on with smaller shapes; none like it is made for these."""
        family.limit = family.nbytes(values)
        self._refuse(pattern_of(family.shapes), "memory ran out with one plan for many")

    # ---- made, or from the cache

    def _made(self, key: Key, manner: Manner, shapes: Mapping[str, Dims], patience: Patience
              ) -> Member | None:
        """Compiled for sizes; None where that can't be, or isn't right for these shapes."""
        specialiser, fixed, faults = self.specialiser, set[str](), 0
        before, entries = specialiser.known_faults(), set[str]()
        while faults < ATTEMPTS:
            space = Space(general=manner is Manner.ANY)
            sized = self._symbolic(space, shapes, manner, fixed)
            if not space.atoms:
                return None                             # it is a plan for these shapes
            try:
                what = "generating kernels for many shapes"
                with recording.span("compile", what), specialiser.tally.part(1, what):
                    plan, stepped, tried = sized_plan(specialiser, space, sized)
                plan = specialiser.weights.shared(plan)
                entries.update(k.entry for k in plan.kernels)
                family = Family(plan, sized, stepped=stepped)
                found = self._first(family, shapes, patience, tried)
            except KernelFault as error:
                free_frames(error)                      # the fault is known now: other kernels
                faults += 1
            except SizeFixed as error:
                free_frames(error)
                fixed.add(error.args[0])
            except StepsVary as error:          # a program repeats the loop, where shapes change
                free_frames(error)
                self.steps_vary = error
                return None
            except (DeviceLostError, NeedsValue):
                raise
            except (SizePinned, SizeUnfit, JitclError, *DISGUISED) as error:
                if isinstance(error, DISGUISED) and not disguised(error, space):
                    raise
                why = said(error, space)
                free_frames(error)
                if not isinstance(error, SizeUnfit):
                    self._refuse((key.parts["shapes"], manner), why)
                return None
            else:
                if found is None:
                    self._refuse((key.parts["shapes"], manner), "it doesn't hold for them")
                else:
                    rows = {n: [*map(serial.size_row, dims)] for n, dims in sized.items()}
                    specialiser.keep(
                        key, plan, {"shapes": rows, "stepped": [vars(s) for s in stepped]}, found,
                        [f for f in specialiser.known_faults()
                         if f.entry in entries and f not in before])
                return found
        self._refuse((key.parts["shapes"], manner),
                     f"the driver failed on {ATTEMPTS} variants of the plan for many")
        return None

    def _stored(self, stored: Any, fed: Mapping[str, Dims]) -> Family | None:
        """What the cache holds; None where it can't be used."""
        try:
            plan, extra = (serial.decode(stored, self.specialiser.weights.find) if stored
                           else (None, {}))
            if plan is None or plan.space is None or self.specialiser.rejected(plan):
                return None
            shapes = {n: tuple(serial.size_of(d, plan.space) for d in row)
                      for n, row in extra["shapes"].items()}
        except CacheError:
            return None
        stepped = tuple(KernelFallback(**row) for row in extra["stepped"])
        return Family(plan, shapes, True, stepped) if shapes.keys() == fed.keys() else None

    def _first(self, family: Family, shapes: Mapping[str, Dims], patience: Patience,
               tried: Sequence[Generated] = ()) -> Member | None:
        """The first member of a new family, which is kept."""
        values = family.values(shapes)
        if values is None:
            return None
        member = self._take(family, values, patience, tried)
        if member is not None:
            self._keep(family)
        return member

    def _keep(self, family: Family) -> None:
        self.kept[max(self.kept, default=0) + 1] = family
        while len(self.kept) > config.get("specialisations"):
            self.kept.popitem(last=False)

    def _take(self, family: Family, values: list[int], patience: Patience,
              tried: Sequence[Generated] = ()) -> Member | None:
        """The loaded family at these values; with more room where it has none for them, loaded anew
        where its device was lost.
        """
        if family.loaded is not None and family.loaded.stale:
            family.loaded = self.specialiser.reload(family.loaded, patience)
        if family.outgrown(values):
            try:
                self._enlarge(family, family.roomy(values), family.spare, patience, tried)
            except OutOfMemoryError as error:
                free_frames(error)
                self._enlarge(family, values, False, patience, tried)
        loaded = family.loaded
        if loaded is None:
            return None
        executable = Resized(loaded.executable, family.at(values))
        sizes = tuple((a.symbol, v, room) for a, v, room in zip(
            family.space.atoms, values, family.capacity) if a.free)
        fields = {**vars(loaded), "executable": executable, "sizes": sizes,
                  "from_cache": family.from_cache,
                  "guards": family.guards, "took": time.perf_counter() - self._asked}
        return Member(**fields, family=family, values=tuple(values))

    def _enlarge(self, family: Family, capacity: list[int], spare: bool, patience: Patience,
                 tried: Sequence[Generated]) -> None:
        """Have room for more; spare: for more than is needed. Raises FAILED."""
        specialiser, loaded = self.specialiser, family.loaded
        if loaded is None:
            plan = specialiser.laid(family.largest(capacity))
            family.loaded = specialiser.load_sized(plan, patience, tried, family.stepped)
        else:
            device = loaded.device
            kept = spare and device.memory_mode == "slots"
            plan = ((kept and family.grown(loaded.plan, capacity, alignment_of(device)))
                    or specialiser.laid(family.resized(loaded.plan, capacity)))
            loaded.executable.check_room(plan)
            family.loaded, family.layout = replace(loaded, plan=plan), plan
        family.capacity = capacity


def disguised(error: Exception, space: Space) -> bool:
    """Whether the line of this package that failed is the one that last asked a size for its
    number: a library hides the SizePinned behind an error of its own. Others are mistakes.
    """
    lines = [(f.f_code, n) for f, n in traceback.walk_tb(error.__traceback__)
             if f.f_globals.get("__name__", "").startswith("jitcl.")]
    return lines[-1] in space.pinned_at


def valued(shapes: Mapping[str, Dims], values: Mapping[str, np.ndarray]) -> dict[str, Dims]:
    """The shapes, and the elements of inputs whose values decide shapes among them."""
    return {**shapes, **{n + VALUE: tuple(v.reshape(-1).tolist()) for n, v in values.items()}}


def said(error: Exception, space: Space) -> str:
    """What an error says, in one line, with sizes by the names of their dimensions."""
    line = named((str(error).splitlines() or [""])[0], space)
    return f"{type(error).__name__}: {line}" if isinstance(error, DISGUISED) else line


def sized_plan(specialiser: Specialiser, space: Space, sized: Mapping[str, Dims]
               ) -> tuple[Plan, tuple[KernelFallback, ...], list[Generated]]:
    """(the plan for sizes, its steps on lower variants, all of it at sizes where its kernels are to
    be tried). Raises SizePinned, and what compilation raises.
    """
    from jitcl.codegen.concrete import concretes
    from jitcl.ops.size_arithmetic import array_of
    from jitcl.runtime.lowering import Lowering

    device = specialiser.device
    shapes = {n: dims for n, dims in sized.items() if not n.endswith(VALUE)}
    values = {n: array_of(sized[n + VALUE]).reshape(dims) for n, dims in shapes.items()
              if n + VALUE in sized}
    lowering = Lowering(specialiser.source, shapes, values, device, specialiser.options,
                        written=device.ahead(specialiser.cache))
    generated = lowering.generate(host=False)
    plan = replace(generated.plan, space=space)
    space.sealed = True
    tried = device.faults is not None and config.get("checks")
    return plan, kernel_fallbacks(generated, plan), concretes(generated, space) if tried else []


__all__ = ["Families", "Family", "Member"]

"""Families: one plan for many shapes, for models whose shapes change from run to run.

    run 1   past 0, 4 tokens     a specialisation, as for any shapes
    run 2   past 4, 1 token      shapes change: a family, `past` its symbol
    run 3.. past 5, 6, ..        members of the family: nothing is compiled

What has changed between runs becomes a symbol, what has not (and what is 0 or 1) stays a number.
So do elements of inputs whose values decide shapes; those that a part of the model computed (how
long a text will sound) are symbols from the first run on.
The model is compiled once more with `ir/sizes.py` in place of these dimensions; the plan that comes
out holds for all shapes that fulfil the guards met on the way. It is loaded for a capacity, a power
of two above what is fed, and for a larger one when that is outgrown: the same kernels, larger
buffers. A run then costs the evaluation of the plan's integers.

Where a family can't be made (an op that needs to know a size, a device without parameters, kernels
that had better be tuned for their shape), the model goes on with specialisations, and its report
says why.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import config
from jitcl.codegen.plan import Plan, Shapes
from jitcl.devices import recording
from jitcl.errors import (
    BuildError,
    CacheError,
    DeviceLostError,
    JitclError,
    KernelFault,
    NeedsValue,
    OutOfMemoryError,
)
from jitcl.ir.indices import IndexCheck
from jitcl.ir.size_ranges import conditions, grows, most, named
from jitcl.ir.sizes import Size, SizePinned, Space, at, everywhere, has_size, hint
from jitcl.runtime import serial
from jitcl.runtime.cache import Key
from jitcl.runtime.resized import Resized
from jitcl.runtime.source import Tensor
from jitcl.runtime.specialise import Patience, Specialisation, Specialiser, free_frames
from jitcl.runtime.symbols import VALUE, Dims, elements, pattern_of, symbolic

if TYPE_CHECKING:
    from jitcl.codegen.generate import Generated

SMALLEST = 256                  # capacity of a symbol, where that is cheap
MODEST = 64 << 20               # bytes that a capacity may take beyond what is needed,
SHARE = 8                       # or this part of what is needed
STEPS = 64                      # of the way to a capacity: how near the largest that is possible
HEAVY = 1_000_000_000           # FLOPs of sized kernels that take longer than building tuned ones
NOTABLE = 10_000_000            # FLOPs from which tuned kernels are worth having
SMALL_PART = 16                 # of all FLOPs: where loops do less, tuned ones matter little
REPEATS = 4                     # runs of one shape after which it gets them
REMEMBERED = 64                 # shapes whose runs are counted
ATTEMPTS = 5                    # compilations, where a driver fails on kernels
WORK_ENOUGH = "they are work enough for kernels of their own"
VARIANTS = 4                    # families of one pattern: each has met other guards
FEW = 16                        # elements of an input by value that may be symbols

FAILED = (KernelFault, OutOfMemoryError, BuildError)        # where specialisations may do better
# SizePinned in disguise: `array[n]` and `islice(x, n)` hide what n.__index__ raises
DISGUISED = (IndexError, TypeError, ValueError)
log = logging.getLogger("jitcl")


@dataclass(frozen=True)
class Member(Specialisation):
    """A family's plan at the shapes of one run."""

    family: Family | None = None
    values: tuple[int, ...] = ()                # of the atoms

    @property
    def checks(self) -> tuple[IndexCheck, ...]:
        assert self.family is not None
        return self.family.checks(self.values)


@dataclass(eq=False)
class Family:
    """A plan for many shapes, and the loaded plan of its capacity."""

    plan: Plan                                  # its integers are sizes
    shapes: Mapping[str, Dims]                  # of the inputs: numbers and sizes
    from_cache: bool = False
    loaded: Specialisation | None = None
    capacity: list[int] = field(default_factory=list)       # of the atoms; [] before it is loaded

    def __post_init__(self) -> None:
        plan = self.plan
        rows = ([t.shape for t in plan.inputs], [t.shape for t in plan.outputs],
                [s.params for s in plan.steps], [s.global_size for s in plan.steps])
        self._rows = [(row, [k for k, dims in enumerate(row) if has_size(dims)]) for row in rows]
        self._sized = {name for name, dims in self.shapes.items() if has_size(dims)}
        self.guards = conditions(self.space)
        self.work, self.flops = work_of_loops(plan), sum(s.flops for s in plan.steps)
        self._sized_checks = any(has_size((c.low, c.high)) for c in self.plan.checks)
        self._runs: OrderedDict[tuple[int, ...], int] = OrderedDict()

    @property
    def space(self) -> Space:
        assert self.plan.space is not None
        return self.plan.space

    def values(self, shapes: Mapping[str, Dims]) -> list[int] | None:
        """What the atoms are at the inputs' shapes; None where these are no member's."""
        symbols: dict[str, int] = {}
        pairs: list[tuple[Any, int]] = []
        if shapes.keys() != self.shapes.keys():
            return None
        for name, dims in self.shapes.items():
            if name in self._sized:
                pairs += zip(dims, shapes[name])
            elif dims != shapes[name]:
                return None
        for size, value in dict.fromkeys(pairs):
            if type(size) is Size and len(size.key) == 1 and size.key[0][1] == 1 and (
                    len(size.key[0][0]) == 1):
                symbol = self.space.atoms[size.key[0][0][0]].symbol
                if symbol:
                    symbols.setdefault(symbol, value)
        values = self.space.values(symbols)
        fits = all(at(size, values) == value for size, value in dict.fromkeys(pairs))
        light = at(self.work, values) <= HEAVY
        return values if fits and light and self.space.holds(values) else None

    def settled(self, values: Sequence[int]) -> bool:
        """Whether these shapes come again and again, and are work enough for kernels of their own.
        """
        work = at(self.work, values)
        if work < NOTABLE or work * SMALL_PART < at(self.flops, values):
            return False
        count = self._runs.pop(tuple(values), 0) + 1
        self._runs[tuple(values)] = count
        while len(self._runs) > REMEMBERED:
            self._runs.popitem(last=False)
        return count > REPEATS

    def at(self, values: Sequence[int]) -> Shapes:
        """The plan's integers where atoms have these values."""
        found = []
        for row, varying in self._rows:
            row = list(row)
            for k in varying:
                row[k] = tuple([at(d, values) for d in row[k]])
            found.append(tuple(row))
        return Shapes(*found)

    def checks(self, values: Sequence[int]) -> tuple[IndexCheck, ...]:
        """Of indices, where atoms have these values."""
        found = self.plan.checks
        if self._sized_checks:
            found = everywhere(found, lambda size: at(size, values))
        return found

    def roomy(self, values: Sequence[int]) -> list[int]:
        """A capacity for these values and more: as far towards the next power of two, and towards
        SMALLEST, as guards hold and the memory that it takes is little, or little beside the rest.
        """
        now = {a.symbol: v for a, v in zip(self.space.atoms, values) if a.symbol}
        held = self._nbytes(values)
        capacity = list(values)
        for least in (1, SMALLEST):
            far = {s: max(least, 1 << (v - 1).bit_length()) - v for s, v in now.items()}
            fits, over = 0, STEPS + 1               # of so many steps on the way there
            while over - fits > 1:
                steps = STEPS if over > STEPS else (fits + over) // 2
                larger = self.space.values({s: v + far[s] * steps // STEPS for s, v in now.items()})
                more = self._nbytes(larger) - held
                if more <= max(MODEST, held // SHARE) and self.space.holds(larger):
                    fits, capacity = steps, larger
                else:
                    over = steps
        return capacity

    def largest(self) -> Plan:
        """The plan at its capacity; buffers that may be larger for less have room for that."""
        plan, sizes = self.plan.at(self.capacity), [b.nbytes for b in self.plan.buffers]
        buffers = tuple(b if grows(self.space, size) else replace(
            b, nbytes=max(b.nbytes, most(self.space, size, self.capacity)))
            for b, size in zip(plan.buffers, sizes))
        return replace(plan, buffers=buffers)

    def _nbytes(self, values: Sequence[int]) -> int:
        return sum(at(b.nbytes, values) for b in self.plan.buffers)

    def outgrown(self, values: Sequence[int]) -> bool:
        return not self.capacity or any(
            v > c for a, v, c in zip(self.space.atoms, values, self.capacity) if a.symbol)


@dataclass
class Families:
    """A model's families, the last used at the end. Not for use from two threads at once."""

    specialiser: Specialiser
    inputs: Sequence[Tensor]
    kept: OrderedDict[int, Family] = field(default_factory=OrderedDict)
    _last: Mapping[str, Dims] = field(default_factory=dict)
    _asked: float = 0.0                         # when a member was last asked for
    _changed: set[tuple[str, int]] = field(default_factory=set)     # (input, axis)
    _hopeless: dict[str, str] = field(default_factory=dict)         # pattern -> why
    vary: set[str] = field(default_factory=set)     # inputs whose values change from run to run
    grows: set[tuple[str, int]] = field(default_factory=set)    # (input, axis): known to change

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
            return self._member({**shapes, **{n + VALUE: tuple(v.reshape(-1).tolist())
                                              for n, v in values.items()}}, key, patience)

    def _member(self, shapes: Mapping[str, Dims], key: Callable[[], Key], patience: Patience
                ) -> Member | None:
        for number in reversed(self.kept):
            family = self.kept[number]
            values = family.values(shapes)
            if values is None:
                continue
            self.kept.move_to_end(number)
            if family.settled(values):
                return None
            try:
                member = self._take(family, values, patience)
            except FAILED as error:
                log.info("the plan of many shapes does not load for %s: %s", shapes, error)
                free_frames(error)
                member = None
            if member is not None:
                return member
            del self.kept[number]
            break
        self._see(shapes)
        return self._grow(key(), shapes, patience) if self._due() else None

    def _see(self, shapes: Mapping[str, Dims]) -> None:
        """Remember what was fed."""
        for name, dims in shapes.items():
            before = self._last.get(name, dims)
            vary = name.endswith(VALUE) and name.removesuffix(VALUE) in self.vary
            self._changed.update(
                (name, a) for a, (d, e) in enumerate(zip(dims, before)) if d != e or vary)
        self._last = dict(shapes)

    def _due(self) -> bool:
        """Whether shapes change, and there can be families."""
        return bool(self._changed or self.grows) and config.get("families") and (
            self.specialiser.device.target.kind != "reference")

    def _symbolic(self, space: Space, shapes: Mapping[str, Dims]) -> dict[str, Dims]:
        """Symbols for what has changed, of shapes and of values."""
        values = [elements(t, len(shapes[t.name + VALUE])) for t in self.inputs
                  if t.name + VALUE in shapes]
        return symbolic(space, [*self.inputs, *values], shapes, self._changed | self.grows)

    def _grow(self, key: Key, shapes: Mapping[str, Dims], patience: Patience) -> Member | None:
        """A new family that these shapes belong to."""
        space = Space()
        try:
            sized = self._symbolic(space, shapes)
        except SizePinned:                      # larger than a size may be
            return None
        pattern = pattern_of(sized)
        if not space.atoms:
            return None
        if pattern in self._hopeless:
            self.specialiser.no_family = self._hopeless[pattern]
            return None
        why = f"there are {VARIANTS} plans for many shapes, and these fit none of them"
        for variant in range(VARIANTS):
            parts = {**key.parts, "shapes": pattern, "values": "", "family": str(variant)}
            family_key = Key(parts, key.subject)
            family = self._stored(self.specialiser.cache.get_mmap("plan", family_key), sized)
            if family is None:
                with self.specialiser.cache.building("plan", family_key) as other:
                    family = self._stored(other, sized)     # of another process
                    if family is None:
                        return self._made(family_key, pattern, space, sized, shapes, patience)
            try:
                found = self._first(family, shapes, patience)
            except FAILED as error:
                why = f"the plan for many does not load: {said(error, space)}"
                free_frames(error)
                break
            if found is not None:
                return found
        self._refuse(pattern, why)
        return None

    def _refuse(self, pattern: str, why: str) -> None:
        """From now on, shapes of a pattern have plans of their own."""
        self._hopeless[pattern] = self.specialiser.no_family = why
        log.info("model %s: a plan for each set of shapes: %s", self.specialiser.source.name, why)

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
        """Forget it, and make none like it again."""
        dropped = self.drop(special)
        if isinstance(special, Member) and special.family is not None:
            self._refuse(pattern_of(special.family.shapes), "memory ran out with one plan for many")
        return dropped

    # ---- made, or from the cache

    def _made(self, key: Key, pattern: str, space: Space, sized: Mapping[str, Dims],
              shapes: Mapping[str, Dims], patience: Patience) -> Member | None:
        """Compiled for sizes; None, once and for all, where that can't be."""
        specialiser, why = self.specialiser, (
            f"the driver failed on {ATTEMPTS} variants of the plan for many")
        for _ in range(ATTEMPTS):
            try:
                what = "generating kernels for many shapes"
                with recording.span("compile", what), specialiser.tally.part(1, what):
                    plan, tried = sized_plan(specialiser, space, sized)
                plan = specialiser.weights.shared(plan)
                found = self._first(Family(plan, sized), shapes, patience, tried)
            except KernelFault as error:
                free_frames(error)                      # the fault is known now: other kernels
                space = Space()
                sized = self._symbolic(space, shapes)
                continue
            except (DeviceLostError, NeedsValue):
                raise
            except (SizePinned, JitclError, *DISGUISED) as error:
                if isinstance(error, DISGUISED) and not disguised(error, space):
                    raise
                why = said(error, space)
                free_frames(error)
                break
            if found is not None:
                specialiser.store(key, plan, {
                    n: [*map(serial.size_row, dims)] for n, dims in sized.items()})
                return found
            why = WORK_ENOUGH
            break
        self._refuse(pattern, why)
        return None

    def _stored(self, stored: Any, sized: Mapping[str, Dims]) -> Family | None:
        """What the cache holds; None where it can't be used."""
        try:
            plan, rows = (serial.decode(stored, self.specialiser.weights.find) if stored
                          else (None, {}))
            if plan is None or plan.space is None or self.specialiser.rejected(plan):
                return None
            shapes = {n: tuple(serial.size_of(d, plan.space) for d in row)
                      for n, row in rows.items()}
        except CacheError:
            return None
        return Family(plan, shapes, True) if shapes.keys() == sized.keys() else None

    def _first(self, family: Family, shapes: Mapping[str, Dims], patience: Patience,
               tried: Generated | None = None) -> Member | None:
        """The first member of a new family, which is kept."""
        values = family.values(shapes)
        if values is None:
            return None
        member = self._take(family, values, patience, tried)
        if member is not None:
            self.kept[max(self.kept, default=0) + 1] = family
            while len(self.kept) > config.get("specialisations"):
                self.kept.popitem(last=False)
        return member

    def _take(self, family: Family, values: list[int], patience: Patience,
              tried: Generated | None = None) -> Member | None:
        """The loaded family at these values; loaded anew where it has no room for them, or its
        device was lost.
        """
        specialiser, loaded = self.specialiser, family.loaded
        if family.outgrown(values):
            family.loaded = loaded = None               # room for the larger one
            family.capacity = family.roomy(values)
            loaded = specialiser.load_sized(family.largest(), patience, tried)
        elif loaded is not None and loaded.stale:
            loaded = specialiser.reload(loaded, patience)
        family.loaded = loaded
        if loaded is None:
            return None
        executable = Resized(loaded.executable, family.at(values))
        sizes = tuple((a.symbol, v, room) for a, v, room in zip(
            family.space.atoms, values, family.capacity) if a.symbol)
        fields = {**vars(loaded), "executable": executable, "sizes": sizes,
                  "from_cache": family.from_cache,
                  "guards": family.guards, "took": time.perf_counter() - self._asked}
        return Member(**fields, family=family, values=tuple(values))


def work_of_loops(plan: Plan) -> int:
    """FLOPs of sized kernels that no template wrote."""
    loops = {k.entry for k in plan.kernels if not k.template}
    return sum(s.flops for s in plan.steps if s.kernel in loops and has_size(s.params))


def disguised(error: Exception, space: Space) -> bool:
    """Whether the line of this package that failed is the one that last asked a size for its
    number: a library hides the SizePinned behind an error of its own. Others are mistakes.
    """
    lines = [(f.f_code, n) for f, n in traceback.walk_tb(error.__traceback__)
             if f.f_globals.get("__name__", "").startswith("jitcl.")]
    return lines[-1] in space.pinned_at


def said(error: Exception, space: Space) -> str:
    """What an error says, in one line, with sizes by the names of their dimensions."""
    line = named((str(error).splitlines() or [""])[0], space)
    return f"{type(error).__name__}: {line}" if isinstance(error, DISGUISED) else line


def sized_plan(specialiser: Specialiser, space: Space, sized: Mapping[str, Dims]
               ) -> tuple[Plan, Generated | None]:
    """(the plan for sizes, all of it at the hints where kernels are to be tried). Raises
    SizePinned, and what compilation raises.
    """
    from jitcl.codegen.concrete import concrete
    from jitcl.ops.size_arithmetic import array_of
    from jitcl.runtime.lowering import Lowering

    device = specialiser.device
    shapes = {n: dims for n, dims in sized.items() if not n.endswith(VALUE)}
    values = {n: array_of(sized[n + VALUE]).reshape(dims) for n, dims in shapes.items()
              if n + VALUE in sized}
    lowering = Lowering(specialiser.source, shapes, values, device, specialiser.options)
    generated = lowering.generate(host=False)
    if hint(work_of_loops(generated.plan)) > HEAVY:
        raise SizePinned(WORK_ENOUGH)
    plan = replace(generated.plan, space=space)
    space.sealed = True
    if any(b.kind != "temp" and not grows(space, b.nbytes) for b in plan.buffers):
        raise SizePinned("a result may shrink where a dimension grows")
    if device.faults is None or not config.get("checks"):
        return plan, None
    return plan, concrete(generated, [a.hint for a in space.atoms])


__all__ = ["Families", "Family", "Member"]

"""A family: one plan for many shapes, loaded for a capacity; a member: that plan at the shapes of a
run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from jitcl.codegen.plan import BufferSpec, Plan, Shapes, lifetimes
from jitcl.ir.indices import IndexCheck
from jitcl.ir.size_ranges import conditions, everywhere, grows, most
from jitcl.ir.sizes import Size, Space, at, has_size
from jitcl.runtime.fallbacks import KernelFallback
from jitcl.runtime.memory import in_same_slots
from jitcl.runtime.specialise import Specialisation
from jitcl.runtime.symbols import Dims

SMALLEST = 256                  # capacity of a symbol, where that is cheap
MODEST = 64 << 20               # bytes that a capacity may take beyond what is needed,
SHARE = 8                       # or this part of what is needed
STEPS = 64                      # of the way to a capacity: how near the largest that is possible
REMEMBERED = 64                 # shapes whose integers are kept


@dataclass(frozen=True)
class Member(Specialisation):
    """A family's plan at the shapes of one run."""

    family: Family | None = None
    values: tuple[int, ...] = ()                # of the atoms

    @property
    def checks(self) -> tuple[IndexCheck, ...]:
        assert self.family is not None
        return self.family.checks(self.values)

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        assert self.family is not None
        return tuple(self.family.at(self.values).outputs)

    @property
    def plan_of_run(self) -> Plan:
        assert self.family is not None
        return self.family.plan.at(self.values)


@dataclass(eq=False)
class Family:
    """A plan for many shapes, and the loaded plan of its capacity."""

    plan: Plan                                  # its integers are sizes
    shapes: Mapping[str, Dims]                  # of the inputs: numbers and sizes
    from_cache: bool = False
    stepped: tuple[KernelFallback, ...] = ()
    loaded: Specialisation | None = None
    capacity: list[int] = field(default_factory=list)       # of the atoms; [] before it is loaded
    layout: Plan | None = None                  # at the capacity, where that grew since
    spare: bool = True                          # False: there was no memory for more than was fed
    limit: int | None = None                    # bytes, where there was no memory for so many

    def __post_init__(self) -> None:
        plan = self.plan
        rows = ([t.shape for t in plan.inputs], [t.shape for t in plan.outputs],
                [s.params for s in plan.steps], [s.global_size for s in plan.steps])
        self._rows = [(row, [k for k, dims in enumerate(row) if has_size(dims)]) for row in rows]
        self._sized = {name for name, dims in self.shapes.items() if has_size(dims)}
        self.guards = conditions(self.space)
        self._sized_checks = any(has_size((c.low, c.high)) for c in self.plan.checks)
        distinct = {_key(b.nbytes): b.nbytes for b in plan.buffers}
        self._sizes = tuple(distinct.values())      # of buffers
        numbers = {key: n for n, key in enumerate(distinct)}
        found = [numbers[_key(b.nbytes)] for b in plan.buffers]
        self._buffers_of = [(b, has_size((*b.shape, b.nbytes, b.part_offset)),
                             not grows(self.space, b.nbytes)) for b in plan.buffers]
        lives = lifetimes(s.buffers for s in plan.steps)
        self._alone = [found[n] for n, b in enumerate(plan.buffers) if b.kind != "temp"]
        self._lives = [(found[n], first, last) for n, (first, last) in lives.items()
                       if plan.buffers[n].kind == "temp"]
        self._at: OrderedDict[Hashable, Shapes] = OrderedDict()
        self._work: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = {}

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
            if type(size) is Size and len(size.key) == 1 and len(size.key[0][0]) == 1:
                (number,), times = size.key[0]
                symbol = self.space.atoms[number].symbol
                if symbol:
                    symbols.setdefault(symbol, value // times)
        values = self.space.values(symbols)
        fits = all(at(size, values) == value for size, value in dict.fromkeys(pairs))
        if not fits or not self.space.holds(values):
            return None
        return values if self.limit is None or self.nbytes(values) < self.limit else None

    def at(self, values: Sequence[int]) -> Shapes:
        """The plan's integers where atoms have these values; those of the last shapes are known.
        """
        key = *values, id(self.layout)
        if key not in self._at:
            self._at[key] = replace(self._evaluated(values), layout=self.layout)
            while len(self._at) > REMEMBERED:
                self._at.popitem(last=False)
        self._at.move_to_end(key)
        return self._at[key]

    def _evaluated(self, values: Sequence[int]) -> Shapes:
        found = []
        for row, varying in self._rows:
            row = list(row)
            for k in varying:
                row[k] = tuple([at(d, values) for d in row[k]])
            found.append(tuple(row))
        inputs, outputs, params, global_sizes = found
        scale = tuple(v.bit_length() for v in values)
        if scale not in self._work:             # nearly the same for all of these
            self._work[scale] = tuple(
                (0, 0) if 0 in size else (at(s.flops, values), at(s.bytes, values))
                for s, size in zip(self.plan.steps, global_sizes))
        return Shapes(inputs, outputs, params, global_sizes, self._work[scale])

    def checks(self, values: Sequence[int]) -> tuple[IndexCheck, ...]:
        """Of indices, where atoms have these values."""
        found = self.plan.checks
        if self._sized_checks:
            found = everywhere(found, lambda size: at(size, values))
        return found

    def roomy(self, values: Sequence[int]) -> list[int]:
        """A capacity for these values and more: for what there is room for now, and as far towards
        the next power of two, and towards SMALLEST, as guards hold and the memory that it takes is
        little, or little beside the rest; what is 1 stays 1. These alone, with none to `spare`.
        """
        atoms = self.space.atoms
        if 0 in values:                 # memory of no bytes is none
            values = self.space.values({
                a.symbol: max(v, 1) for a, v in zip(atoms, values) if a.symbol})
        if not self.spare:
            return list(values)
        held = self.nbytes(values)
        if self.capacity:               # two shapes in turns, each larger in one way, are as one
            both = self.space.values({a.symbol: max(v, c) for a, v, c in zip(
                atoms, values, self.capacity) if a.symbol})
            largest = max(held, self.nbytes(self.capacity))
            if self.space.holds(both) and self.nbytes(both) <= largest + little(largest):
                values, held = both, self.nbytes(both)
        now = {a.symbol: v for a, v in zip(atoms, values) if a.symbol}
        capacity = list(values)
        for least in (1, SMALLEST):
            far = {a.symbol: max(least, 1 << (v - 1).bit_length()) - v if v > 1 and a.free else 0
                   for a, v in zip(atoms, values) if a.symbol}
            fits, over = 0, STEPS + 1               # of so many steps on the way there
            while over - fits > 1:
                steps = STEPS if over > STEPS else (fits + over) // 2
                larger = self.space.values({s: v + far[s] * steps // STEPS for s, v in now.items()})
                if self.space.holds(larger) and self.nbytes(larger) <= held + little(held):
                    fits, capacity = steps, larger
                else:
                    over = steps
        return capacity

    def largest(self, capacity: Sequence[int]) -> Plan:
        """The plan at a capacity; steps that only less has work for are prepared."""
        plan = self.plan.at(capacity)
        steps = tuple(replace(s, global_size=s.local_size) if 0 in s.global_size else s
                      for s in plan.steps)
        return self.resized(replace(plan, steps=steps), capacity)

    def resized(self, plan: Plan, capacity: Sequence[int]) -> Plan:
        """The plan, of another capacity, with buffers of this one, which lie nowhere yet. Steps
        keep their integers: runs bring theirs.
        """
        return replace(plan, buffers=self._buffers(capacity))

    def grown(self, plan: Plan, capacity: Sequence[int], alignment: int) -> Plan | None:
        """The same in the slots that it has; None where these would waste more than is little."""
        found = in_same_slots(plan, self._buffers(capacity), alignment)
        before, now = self._alive(self.capacity), self._alive(capacity)
        usual = sum(plan.slots) * now // max(before, 1)
        return found if sum(found.slots) <= usual + little(now) else None

    def _buffers(self, capacity: Sequence[int]) -> tuple[BufferSpec, ...]:
        """At a capacity; those that may be larger for less have room for that."""
        found = []
        for b, varies, shrinks in self._buffers_of:
            if varies:
                shape = tuple([at(d, capacity) for d in b.shape])
                nbytes = at(b.nbytes, capacity)
                if shrinks:
                    nbytes = max(nbytes, most(self.space, b.nbytes, capacity))
                b = replace(b, shape=shape, nbytes=nbytes, part_offset=at(b.part_offset, capacity))
            found.append(b)
        return tuple(found)

    def nbytes(self, values: Sequence[int]) -> int:
        """What buffers take where atoms have these values: of temporaries, those that are alive at
        once, at most.
        """
        return sum(at(self._sizes[n], values) for n in self._alone) + self._alive(values)

    def _alive(self, values: Sequence[int]) -> int:
        """Of temporaries, at most at once."""
        sizes = [at(size, values) for size in self._sizes]
        change = [0] * (len(self.plan.steps) + 1)
        for number, first, last in self._lives:
            change[first] += sizes[number]
            change[last + 1] -= sizes[number]
        return max(accumulate(change))

    def outgrown(self, values: Sequence[int]) -> bool:
        return not self.capacity or any(
            v > c for a, v, c in zip(self.space.atoms, values, self.capacity) if a.symbol)


def _key(size: Any) -> Hashable:
    """Equal sizes have equal ones. Sizes themselves are compared by their difference."""
    return size.key if type(size) is Size else size


def little(nbytes: int) -> int:
    """What a capacity may take beyond so many bytes."""
    return max(MODEST, nbytes // SHARE)


__all__ = ["Family", "Member"]

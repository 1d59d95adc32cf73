"""The memory plan: where temporaries live, so that those whose lives do not overlap share bytes.

    step            0   1   2   3   4
    a  16 bytes     #####                     arena: 24 bytes, a 0..16, b 16..24, c 0..8, d 8..24
    b   8 bytes         #####                 slots: 24 bytes, 16 for a and d, 8 for b and c
    c   8 bytes                 #####         unshared: 48 bytes
    d  16 bytes                     #

"arena" packs everything into one allocation at offsets (CPU); "slots" shares whole allocations
(OpenCL, where a sub-buffer is a second object with its own rules). Both are greedy with best fit
(Pisarchyk and Lee, 2020, "Efficient Memory Management for Deep Neural Net Inference"), over several
orders of the tensors, of which the best is kept.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jitcl.codegen.plan import BufferSpec, Plan
from jitcl.errors import OptionError, VerifyError

if TYPE_CHECKING:
    from jitcl.devices.base import Device

Mode = Literal["arena", "slots"]
Memory = Literal["low", "normal", "high"]

SEARCH_WORK = 20_000_000              # pairs of tensors that "low" looks at: about 2 s


@dataclass(frozen=True)
class Life:
    """A temporary: bytes, and the first and last step (inclusive) that touch it."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Packing:
    """`places[i]`: (slot, offset) of life i. All sizes are bytes, rounded up to the alignment."""

    places: tuple[tuple[int, int], ...]
    slots: tuple[int, ...]            # of each allocation
    unshared: int                     # if nothing were shared
    lower_bound: int                  # no packing of this mode can do better

    @property
    def peak(self) -> int:
        return sum(self.slots)


Order = Callable[[Sequence[Life]], list[int]]


def pack(lives: Sequence[Life], mode: Mode = "arena", memory: Memory = "normal",
         alignment: int = 64) -> Packing:
    """Place lives so that no two that overlap in time share a byte.

    `memory`: "high" shares nothing; "normal" is greedy; "low" searches on from there. Raises
    OptionError for another mode or memory.
    """
    allowed: Sequence[str]
    for name, got, allowed in (("mode", mode, tuple(_PLACERS)),
                               ("memory", memory, ("low", "normal", "high"))):
        if got not in allowed:
            raise OptionError(f"memory plan: {name} '{got}', wanted {', '.join(allowed)}")
    padded = [Life(_round_up(max(life.nbytes, 1), alignment), life.first, life.last)
              for life in lives]
    place, bound = _PLACERS[mode], _BOUNDS[mode](padded)
    unshared = sum(life.nbytes for life in padded)
    order, found = list(range(len(padded))), _unshared(padded, mode)
    if memory == "high":
        return Packing(*found, unshared, bound)
    for make in _ORDERS:
        if sum(found[1]) == bound:
            break
        candidate = make(padded)
        other = place(padded, candidate)
        if sum(other[1]) < sum(found[1]):
            order, found = candidate, other
    if memory == "low":
        found = place(padded, _search(padded, place, order, bound))
    return Packing(*found, unshared, bound)


def laid_out(plan: Plan, device: Device, memory: str) -> Plan:
    """The plan with places for its temporaries, as a device has them."""
    return plan_memory(plan, device.memory_mode, memory,   # type: ignore[arg-type]
                       alignment_of(device))


def alignment_of(device: Device) -> int:
    """Bytes of which allocations, and places in them, are multiples."""
    return max(64, device.target.alignment)


def plan_memory(plan: Plan, mode: Mode = "arena", memory: Memory = "normal",
                alignment: int = 64) -> Plan:
    """The plan with `slots`, and slot and offset of each temporary that a step touches.

    Raises VerifyError if a step reads a temporary that no step wrote before.
    """
    found = lives(plan)
    packing = pack([life for _, life in found], mode, memory, alignment)
    buffers = list(plan.buffers)
    for (index, _), (slot, offset) in zip(found, packing.places, strict=True):
        buffers[index] = dataclasses.replace(buffers[index], slot=slot, offset=offset)
    for index, spec in enumerate(buffers):
        if spec.whole >= 0:
            whole = buffers[spec.whole]
            buffers[index] = dataclasses.replace(
                spec, slot=whole.slot, offset=whole.offset + spec.part_offset)
    return dataclasses.replace(plan, buffers=tuple(buffers), slots=packing.slots)


def in_same_slots(plan: Plan, buffers: Sequence[BufferSpec], alignment: int) -> Plan:
    """A plan of "slots" whose buffers have other sizes: they live as long as before, so each stays
    where it is.
    """
    slots, placed = [0] * len(plan.slots), []
    for spec, before in zip(buffers, plan.buffers, strict=True):
        if before.slot >= 0:
            spec = dataclasses.replace(spec, slot=before.slot, offset=spec.part_offset)
            slots[spec.slot] = max(slots[spec.slot], spec.offset + max(spec.nbytes, 1))
        placed.append(spec)
    return dataclasses.replace(plan, buffers=tuple(placed), slots=tuple(
        _round_up(nbytes, alignment) for nbytes in slots))


def lives(plan: Plan) -> list[tuple[int, Life]]:
    """(buffer index, life) of every temporary that a step touches, by first use.

    A buffer with parts (a concatenation) lives from the first write to one of them until the last
    use of it or one of them; parts have no life of their own. Raises VerifyError.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        stray = set(step.writes) - set(step.buffers)
        if stray:
            raise VerifyError(f"step '{step.name}' writes buffers {sorted(stray)}, "
                              f"which are none of its buffers {list(step.buffers)}")
        for index in step.buffers:
            spec = plan.buffers[index]
            if spec.kind != "temp":
                continue
            life = index if spec.whole < 0 else spec.whole
            if life not in first and index not in step.writes:
                raise VerifyError(f"step '{step.name}' reads buffer {index} "
                                  f"'{spec.name}' before any step writes it")
            first.setdefault(life, number)
            last[life] = number
    return [(i, Life(plan.buffers[i].nbytes, start, last[i])) for i, start in first.items()]


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _overlap(a: Life, b: Life) -> bool:
    return a.first <= b.last and b.first <= a.last


Placed = tuple[tuple[tuple[int, int], ...], tuple[int, ...]]   # places, slots
Placer = Callable[[Sequence[Life], Iterable[int]], Placed]


def _place_in_arena(lives: Sequence[Life], order: Iterable[int]) -> Placed:
    """Each life into the smallest gap that holds it, between those alive at the same time."""
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, Life]] = []          # (offset, index, life), by offset
    top = 0
    for index in order:
        life = lives[index]
        end, best, best_gap = 0, -1, -1
        for offset, _, other in placed:
            if other.first > life.last or life.first > other.last:
                continue
            gap = offset - end
            if gap >= life.nbytes and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, offset + other.nbytes)
        offsets[index] = end if best < 0 else best
        top = max(top, offsets[index] + life.nbytes)
        bisect.insort(placed, (offsets[index], index, life), key=lambda p: p[:2])
    return tuple((0, offsets[i]) for i in range(len(lives))), (top,) if lives else ()


def _place_in_slots(lives: Sequence[Life], order: Iterable[int]) -> Placed:
    """Each life into the free slot that wastes or grows least; a new slot where none is free."""
    slots: list[int] = []
    members: list[list[Life]] = []
    chosen: dict[int, int] = {}
    for index in order:
        life = lives[index]
        free = [s for s, inside in enumerate(members)
                if not any(_overlap(life, other) for other in inside)]
        if free:
            # Growing costs memory, a slot that is too large only wastes what is there already.
            slot = min(free, key=lambda s: (max(life.nbytes - slots[s], 0),
                                            abs(slots[s] - life.nbytes)))
            slots[slot] = max(slots[slot], life.nbytes)
            members[slot].append(life)
        else:
            slot = len(slots)
            slots.append(life.nbytes)
            members.append([life])
        chosen[index] = slot
    return tuple((chosen[i], 0) for i in range(len(lives))), tuple(slots)


def _unshared(lives: Sequence[Life], mode: Mode) -> Placed:
    if mode == "slots":
        return tuple((i, 0) for i in range(len(lives))), tuple(x.nbytes for x in lives)
    places, end = [], 0
    for life in lives:
        places.append((0, end))
        end += life.nbytes
    return tuple(places), (end,) if lives else ()


def _alive(lives: Sequence[Life]) -> list[list[int]]:
    """Sizes alive at each step, largest first."""
    steps: list[list[int]] = [[] for _ in range(max((x.last + 1 for x in lives), default=0))]
    for life in lives:
        for step in range(life.first, life.last + 1):
            steps[step].append(life.nbytes)
    return [sorted(sizes, reverse=True) for sizes in steps]


def _arena_bound(lives: Sequence[Life]) -> int:
    return max(map(sum, _alive(lives)), default=0)


def _slots_bound(lives: Sequence[Life]) -> int:
    """The k-th largest slot holds at least the k-th largest tensor of any step."""
    largest: list[int] = []
    for sizes in _alive(lives):
        largest.extend([0] * (len(sizes) - len(largest)))
        largest[:len(sizes)] = map(max, sizes, largest)
    return sum(largest)


def _by(key: Callable[[Life], Any]) -> Order:
    """Lives by what a key gives for each, the least first."""
    return lambda lives: sorted(range(len(lives)), key=lambda i: key(lives[i]))


def _by_breadth(lives: Sequence[Life]) -> list[int]:
    """The fullest steps first; within a step, by size."""
    sums: dict[int, int] = {}
    for life in lives:
        for step in range(life.first, life.last + 1):
            sums[step] = sums.get(step, 0) + life.nbytes
    fullest = [max(sums[s] for s in range(x.first, x.last + 1)) for x in lives]
    return sorted(range(len(lives)), key=lambda i: (-fullest[i], -lives[i].nbytes))


def _search(lives: Sequence[Life], place: Placer, order: list[int], bound: int) -> list[int]:
    """Hill climbing: move one life forward in the order if that does no harm. Repeatable."""
    rng = random.Random(0)
    peak = sum(place(lives, order)[1])
    for _ in range(min(1000, SEARCH_WORK // max(len(lives), 1) ** 2)):
        if peak == bound:
            break
        source = rng.randrange(1, len(order))
        target = rng.randrange(source)
        moved = [*order[:target], order[source], *order[target:source], *order[source + 1:]]
        other = sum(place(lives, moved)[1])
        if other <= peak:
            order, peak = moved, other
    return order


_PLACERS: dict[str, Placer] = {
    "arena": _place_in_arena, "slots": _place_in_slots}
_BOUNDS: dict[str, Callable[[Sequence[Life]], int]] = {
    "arena": _arena_bound, "slots": _slots_bound}
_ORDERS: tuple[Order, ...] = (
    _by(lambda life: (-life.nbytes, life.first)), _by_breadth,
    _by(lambda life: -life.nbytes * (life.last - life.first + 1)),              # the largest area,
    _by(lambda life: (life.first - life.last, -life.nbytes)),                   # the longest,
    _by(lambda life: (life.first, -life.nbytes)))                               # the earliest first

"""Work-items in the interpreter: arrays of groups and lanes, and lanes that meet without a barrier.

Each group has its own `local` arrays and each work-item its own `private` ones: parts of one flat
array, found by the loops' variables. Of what lanes share, it is kept which lane stored and which
loaded each element since the last barrier.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jitcl import dtypes
from jitcl.ir.kernel import For, Kernel

Variable = Callable[[str], np.ndarray]       # a variable's value over all axes
NOBODY, SEVERAL = -1, -2                     # in place of a lane's number


class Placement:
    """Where the arrays of each group and work-item lie; adds them to `flat`, all elements unlike
    any that a kernel would make (NaN)."""

    def __init__(self, kernel: Kernel, flat: dict[str, np.ndarray]) -> None:
        self.groups, self.lanes = work_loops(kernel)
        self.arrays = {b.name: b for b in kernel.arrays}
        groups = math.prod(f.extent for f in self.groups)
        lanes = math.prod(f.extent for f in self.lanes)
        for b in kernel.arrays:
            count = b.size * groups * (lanes if b.role == "private" else 1)
            number = float("nan") if dtypes.is_float(b.dtype) else dtypes.limits(b.dtype)[1]
            flat[b.name] = np.full(count, number, dtypes.to_numpy(b.dtype))
        shared = [b.name for b in (*kernel.buffers, *kernel.arrays) if b.role in ("local", "scan")]
        kinds = {f.kind for f in self.lanes}
        self.storing = {n: np.full(flat[n].size, NOBODY, np.int32)
                        for n in shared if kinds == {"lane"}}
        self.loading = {n: np.full_like(a, NOBODY) for n, a in self.storing.items()}

    def base(self, buffer: str, value: Variable) -> np.ndarray | int:
        """Where a buffer's first element is, for each group or work-item."""
        array = self.arrays.get(buffer)
        if array is None:
            return 0
        loops = self.groups if array.role == "local" else [*self.groups, *self.lanes]
        return self.number(loops, value) * array.size

    def number(self, loops: list[For], value: Variable) -> np.ndarray | int:
        """Which iteration of a nest it is."""
        at: np.ndarray | int = 0
        for f in loops:
            at = at * f.extent + value(f.var.value)
        return at

    def meet(self) -> None:
        """A barrier."""
        for a in (*self.storing.values(), *self.loading.values()):
            a.fill(NOBODY)

    def loaded(self, buffer: str, place: np.ndarray, mask: np.ndarray | None,
               value: Variable) -> str:
        """Notes a load; says what is wrong with it, or ""."""
        if buffer not in self.storing:
            return ""
        place, lane = self.touched(place, mask, value)
        by = self.storing[buffer][place]
        wrong = (by != NOBODY) & (by != lane)
        if wrong.any():
            return (f"of lane {lane[wrong][0]} loads what lane {by[wrong][0]} has just stored "
                    f"to '{buffer}'")
        _note(self.loading[buffer], place, lane)
        return ""

    def stored(self, buffer: str, place: np.ndarray, mask: np.ndarray | None,
               value: Variable) -> str:
        """Notes a store; says what is wrong with it, or ""."""
        if buffer not in self.storing:
            return ""
        place, lane = self.touched(place, mask, value)
        for held, did in ((self.loading, "loads"), (self.storing, "stores to")):
            by = held[buffer][place]
            wrong = (by != NOBODY) & (by != lane)
            if wrong.any():
                who = "another lane" if by[wrong][0] == SEVERAL else f"lane {by[wrong][0]}"
                return f"of lane {lane[wrong][0]} stores where {who} {did} '{buffer}'"
        _note(self.storing[buffer], place, lane)
        if (self.storing[buffer][place] == SEVERAL).any():
            return f"stores to one place of '{buffer}' from several lanes"
        return ""

    def touched(self, place: np.ndarray, mask: np.ndarray | None,
                value: Variable) -> tuple[np.ndarray, np.ndarray]:
        """The places that are touched, and by which lanes."""
        number = self.number(self.lanes, value)
        place, lane, held = np.broadcast_arrays(place, number, True if mask is None else mask)
        return place[held], lane[held]


def _note(by: np.ndarray, place: np.ndarray, lane: np.ndarray) -> None:
    """Adds lanes to those that touched places."""
    before = by[place]
    by[place] = np.where((before == NOBODY) | (before == lane), lane, SEVERAL)
    now = by[place]
    by[place[now != lane]] = SEVERAL


def work_loops(kernel: Kernel) -> tuple[list[For], list[For]]:
    """The loops over work-groups, and those over work-items (`lane`, or `item` without groups)."""
    groups: list[For] = []
    lanes: list[For] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind in ("item", "group", "lane"):
        (groups if body[0].kind == "group" else lanes).append(body[0])
        body = body[0].body
    return groups, lanes

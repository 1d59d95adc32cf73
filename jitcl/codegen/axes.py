"""Loops as axes of an NDRange, and the work-groups that such axes are cut into."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

from jitcl.codegen.loops import Body, renamed
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import For, Let, LoopKind, Stmt, variables_read
from jitcl.target import Target

AXES = 3               # of an NDRange
LONGEST = 65535        # groups along any axis but the innermost: all that NVIDIA's driver takes
GROUP = 128            # work-items a group, one element each
STEP = 32              # work-items that a GPU runs in step: others of a group's last few are idle
DIVISION = 1.0         # of an element's time. It takes 0.1, but layers whose axes are merged, as
                       # these fit a group or not, are programs of their own
SLOW_DIVISION = 0.3    # where few units multiply integers (Mali, Adreno): 15 of 54 instructions
RUN = 0.02             # and for each run of memory that STEP work-items touch


def spread(nest: list[For], kind: LoopKind, body: Body, cut: tuple[int, ...] | None = None) -> Body:
    """The nest as loops of a kind around the body; `cut`: how many loops become each axis, the
    outermost first, by default as few of them merged as can be.

        for i < 4 { for j < 5 { y[i, j] = .. } }
        =>  for p < 20 @group { let i = p / 5  let j = p % 5  y[i, j] = .. }

    Loops over lanes stay the only statements of the loops around them: variables of merged loops
    are found inside.
    """
    axes, lanes = [], []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == "lane":
        lanes.append(body[0])
        body = body[0].body
    for count in cut or next(cuts(nest)):
        run, nest = nest[:count], nest[count:]
        if count > 1:
            merged, body = merge(run, body)
            run = [merged]
        axes += run
    for f in reversed(lanes):
        body = (For(f.var, f.kind, body),)
    for f in reversed(axes):
        body = (For(f.var, kind, body),)
    return body


def cuts(nest: list[For]) -> Iterator[tuple[int, ...]]:
    """The ways to make axes of a nest, those with the fewest loops merged first, outer loops before
    inner ones. No axis but the innermost is longer than drivers take.
    """
    for axes in range(min(AXES, len(nest)), 0, -1):
        for ends in itertools.combinations(range(len(nest) - 1, 0, -1), axes - 1):
            bounds = [0, *reversed(ends), len(nest)]
            cut = tuple(b - a for a, b in itertools.pairwise(bounds))
            if all(n <= LONGEST for n in lengths(nest, cut)[:-1]):
                yield cut


def lengths(nest: list[For], cut: tuple[int, ...]) -> list[int]:
    """The extents of the axes."""
    ends = list(itertools.accumulate(cut, initial=0))
    return [math.prod(f.extent for f in nest[a:b]) for a, b in itertools.pairwise(ends)]


def fewest_idle(nest: list[For], target: Target) -> tuple[int, ...]:
    """The way that leaves the fewest work-items idle at the ends of axes: a division to find one's
    place costs as much as some of them.
    """
    def cost(cut: tuple[int, ...]) -> float:
        extents = tuple(reversed(lengths(nest, cut)))
        group = group_of_items(extents, target)
        launched = math.prod(-(-n // g) * g for n, g in zip(extents, group))
        return launched / math.prod(extents) * runs(group) + division * (len(nest) - len(cut))
    division = SLOW_DIVISION if target.few_programs else DIVISION
    return min(cuts(nest), key=cost)


def apart(nest: list[For], target: Target) -> tuple[int, ...]:
    """An axis for each loop, but the innermost of more than there are axes."""
    count = min(AXES, len(nest))
    cut = (*(1,) * (count - 1), len(nest) - count + 1)
    return cut if max(lengths(nest, cut)[:-1], default=0) <= LONGEST else fewest_idle(nest, target)


def group_of_items(extents: tuple[int, ...], target: Target) -> tuple[int, ...]:
    """The work-group for items; `extents` of axes, the innermost first."""
    return _group_of_items(extents, min(GROUP, target.max_work_group), target.max_work_item_sizes)


@functools.lru_cache(maxsize=1024)
def _group_of_items(extents: tuple[int, ...], most: int, limits: tuple[int, ...]
                    ) -> tuple[int, ...]:
    """The group of at most `most` items that leaves the fewest idle: beyond the extents, in steps
    that are not full, and as groups are small. Of equals the longest along axis 0, whose neighbours
    lie side by side in memory.
    """
    choices = []
    for n, limit in zip(extents, (*limits, *(1,) * AXES)):
        most_here = min(most, limit, 1 << max(0, n - 1).bit_length())
        choices.append([c for c in {1 << k for k in range(most.bit_length())} | {n}
                        if c <= most_here])

    def cost(group: tuple[int, ...]) -> tuple[float, int]:
        size = math.prod(group)
        launched = math.prod(-(-n // g) for n, g in zip(extents, group)) * -(-size // STEP) * STEP
        return launched * (1 + STEP / size) * runs(group), -group[0]
    fitting = (g for g in itertools.product(*choices) if math.prod(g) <= most)
    return min(fitting, key=cost)


def runs(group: tuple[int, ...]) -> float:
    """How much longer an element takes as neighbours along axis 0, which lie side by side in
    memory, are few: an access touches several runs.
    """
    return 1 + RUN * STEP / min(group[0], STEP)


def merge(nest: list[For], body: Body) -> tuple[For, Body]:
    """One loop over the iterations of a nest, its variables found by division."""
    total = math.prod(f.extent for f in nest)
    place = E.var(f"p_{nest[0].var.value}", extent=total)
    lets: list[Stmt] = []
    values: dict[str, Expr] = {}
    for k, f in enumerate(nest):
        at = place // math.prod(inner.extent for inner in nest[k + 1:])
        values[f.var.value] = E.var(f.var.value)
        lets.append(Let(values[f.var.value], at if f is nest[0] else at % f.extent))
    body = tuple(renamed(s, values) for s in body)
    read = variables_read(body)
    used = [s for s in lets if isinstance(s, Let) and s.var.value in read]
    return For(place, "loop", ()), (*used, *body)

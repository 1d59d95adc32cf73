"""Products of sizes that are not known: several kernels, of which a run launches one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from jitcl.ir.size_ranges import at_most, hints
from jitcl.ir.sizes import has_size
from jitcl.templates.base import Emitted, launched
from jitcl.templates.gemm_tiled_opencl.product import Product

FEWEST = 16                    # rows or columns that tiles are chosen for
SLOW = 1.25                    # times the best kernel's time

K = TypeVar("K")               # a kind of kernel


def by_size(p: Product, bands: Iterable[tuple[K, int]],
            kernels: Callable[[K, int], list[Emitted]], when: int = 1) -> list[Emitted]:
    """Kernels of which one, or it and what belongs to it, is launched: by the result's elements."""
    emitted, below = list[Emitted](), 0
    for kind, limit in bands:
        up_to = at_most(p.elements, limit) if limit else 1
        emitted += launched(kernels(kind, limit), when * (up_to - below))
        below = up_to
    return emitted


def bands(p: Product, full: int, first: K, whole: Sequence[K], divided: Sequence[K],
          taken: Callable[[K, Product], float]) -> list[tuple[K, int]]:
    """Kinds of kernels for a product of sizes that are not known, and up to how many elements of
    the result each is taken (0: without end): the `first`, which is best for the hints; of those
    whose sums are whole the best for results that are `full`; and a third if both are slow for
    sizes in between or below. So what a shape gets hangs little on which shape came first.
    taken: the time of one.
    """
    def sized(count: int) -> Product:
        return (replace(p.now, m=count) if has_size(p.m) else replace(p.now, n=count)
                if has_size(p.n) else replace(p.now, batch=count))
    count = hints(next(n for n in (p.m, p.n, p.batch) if has_size(n)))
    least = min(count, FEWEST)
    doublings = 2 + (full // sized(1).elements).bit_length()
    sizes = [sized(n) for n in sorted({count, *(least << k for k in range(doublings))})]

    def slowest(some: Sequence[K]) -> float:
        """Of all sizes, by the best kernel for each."""
        return max(min(taken(kind, q) for kind in some) / min(taken(kind, q) for kind in kinds)
                   for q in sizes)
    kinds, last = [*whole, *divided], min(whole, key=lambda kind: taken(kind, sizes[-1]))
    chosen = [last, first]
    if slowest(chosen) > SLOW:
        chosen.append(min(kinds, key=lambda kind: slowest([*chosen, kind])))
    ends = {min(chosen, key=lambda kind: taken(kind, q)): q for q in sizes}
    limits = {kind: q.elements * 3 // 2 for kind, q in ends.items() if kind != last}
    return [*sorted(limits.items(), key=lambda found: found[1]), (last, 0)]

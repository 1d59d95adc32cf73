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
MOST = 3                       # kernels of a product
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
    whose sums are whole the best for results that are `full`; and more, up to three in all, while
    these are slow for some size. So what a shape gets hangs little on which shape came first.
    taken: the time of one.
    """
    def sized(count: int) -> Product:
        return (replace(p.now, m=count) if has_size(p.m) else replace(p.now, n=count)
                if has_size(p.n) else replace(p.now, batch=count))
    count = hints(next(n for n in (p.m, p.n, p.batch) if has_size(n)))
    least, counts = min(count, FEWEST), {count}
    for doublings in range(2 + (full // sized(1).elements).bit_length()):
        counts |= {least << doublings, 3 * least << doublings >> 1}
    sizes = [sized(n) for n in sorted(counts)]
    times = {kind: [taken(kind, q) for q in sizes] for kind in (*whole, *divided, first)}
    best = [*map(min, zip(*times.values()))]

    def ratios(some: Iterable[K]) -> list[float]:
        """Of the time with these by that with the best, for each size."""
        return [min(now) / least for now, least in zip(zip(*(times[k] for k in some)), best)]
    last = min(whole, key=lambda kind: times[kind][-1])
    chosen = dict.fromkeys((last, first))
    while len(chosen) < MOST and max(ratios(chosen)) > SLOW:
        chosen[min(times, key=lambda kind: sum(ratios([*chosen, kind])))] = None
    ends = {min(chosen, key=lambda kind: times[kind][k]): q for k, q in enumerate(sizes)}
    limits = {kind: q.elements * 6 // 5 for kind, q in ends.items() if kind != last}
    return [*sorted(limits.items(), key=lambda found: found[1]), (last, 0)]

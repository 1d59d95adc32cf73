"""Ops that move elements, and those that index, reduce and order them."""

from __future__ import annotations

import numpy as np

from tests.fuzz.drawing import ANY, FLOATS, ORDINARY, Drawer, Skip, Value, np_dtype
from tests.fuzz.pointwise import NUMBERS, weighted
from tests.fuzz.registry import draws

SOME = ("float32", "float32", "float16", "int64", "int32", "uint8", "bool", "float64", "bfloat16",
        "int8")
WIDE_INTS = ("int32", "int64")


@draws("Transpose")
def transpose(d: Drawer, op: str) -> None:
    x = d.any(SOME)
    perm = list(range(x.rank))
    for i in range(x.rank - 1):
        j = d.int(i, x.rank - 1)
        perm[i], perm[j] = perm[j], perm[i]
    d.node(op, x, perm=perm if x.rank and d.int(0, 4) else None)


@draws("Reshape")
def reshape(d: Drawer, op: str) -> None:
    x = d.any(SOME)
    shape = factored(d, x.array.size)
    allow = d.int(0, 3) == 0
    if x.array.size and shape and d.flag():
        shape[d.int(0, len(shape) - 1)] = -1
    for i, size in enumerate(shape):
        if not allow and i < x.rank and size == x.shape[i] and d.flag():
            shape[i] = 0
        elif size == 0 and not allow and (i >= x.rank or x.shape[i]):
            raise Skip("a 0 copies")
    d.node(op, x, d.constant(shape), allowzero=1 if allow else None)


def factored(d: Drawer, size: int) -> list[int]:
    """A shape of so many elements."""
    if not size:
        return [*d.shape(0, 3, 1), 0, *d.shape(0, 2, 1)]
    found = []
    while size > 1 and len(found) < 4:
        factor = d.pick([f for f in range(1, size + 1) if size % f == 0])
        found.append(factor)
        size //= factor
    return [*found, *([size] if size > 1 or d.flag() else [])]


@draws("Flatten")
def flatten(d: Drawer, op: str) -> None:
    x = d.any(SOME)
    d.node(op, x, axis=d.int(-x.rank, x.rank) if d.int(0, 3) else None)


@draws("Squeeze")
def squeeze(d: Drawer, op: str) -> None:
    x = d.any(SOME, where=lambda v: 1 in v.shape,
              shape=lambda: (*d.shape(0, 2), 1, *d.shape(0, 2)))
    ones = [a for a, n in enumerate(x.shape) if n == 1]
    axes = [a - x.rank if d.flag() else a for a in ones if d.flag()]
    d.node(op, x, d.constant(axes) if axes else None)


@draws("Unsqueeze")
def unsqueeze(d: Drawer, op: str) -> None:
    x = d.any(SOME, 0, 4)
    count = d.int(1, 2)
    d.node(op, x, d.constant(d.axes(x.rank + count, count)[:count]))


@draws("Expand")
def expand(d: Drawer, op: str) -> None:
    x = d.any(SOME)
    shape = [d.pick((1, 2, 3, 0)) if n == 1 else d.pick((n, 1)) for n in x.shape]
    if shape and d.flag():
        shape = shape[1:]
    elif d.flag() and x.rank < 6:
        shape = [d.pick((1, 2)), *shape]
    d.node(op, x, d.constant(shape))


@draws("Tile")
def tile(d: Drawer, op: str) -> None:
    x = d.any(SOME, 1)
    d.node(op, x, d.constant([d.pick((1, 2, 3, 0)) for _ in x.shape]))


@draws("Concat")
def concat(d: Drawer, op: str) -> None:
    x = d.any(SOME, 1)
    axis = d.axis(x.rank)
    parts = [x]
    for _ in range(d.int(0, 3)):
        shape = list(x.shape)
        shape[axis] = d.int(0, 4)
        parts.append(d.fresh(x.dtype, shape))
    d.node(op, *parts, axis=axis)


@draws("Split")
def split(d: Drawer, op: str) -> None:
    x = d.any(SOME, 1)
    axis = d.axis(x.rank)
    count, size = d.int(1, 4), x.shape[axis]
    if d.flag():
        if size < count:
            raise Skip("parts of nothing")
        d.node(op, x, axis=axis, num_outputs=count, outputs=count)
        return
    cuts = sorted(d.int(0, size) for _ in range(count - 1))
    sizes = np.diff([0, *cuts, size])
    d.node(op, x, d.constant(sizes), axis=axis, outputs=count)


@draws("Slice")
def slice_(d: Drawer, op: str) -> None:
    x = d.any(SOME, 1)
    axes = d.axes(x.rank, 1)
    starts, ends, steps = [], [], []
    for a in axes:
        n = x.shape[a]
        steps.append(d.pick((1, 1, 2, 3, -1, -2, 2**40, -(2**40))))
        starts.append(d.pick((*range(-n - 1, n + 2), 2**62, -(2**62))))
        ends.append(d.pick((*range(-n - 1, n + 2), 2**63 - 1, -(2**63) + 1)))
    d.node(op, x, d.constant(starts), d.constant(ends), d.constant(axes), d.constant(steps))


@draws("Pad")
def pad(d: Drawer, op: str) -> None:
    mode = d.pick((None, "constant", "reflect", "edge", "wrap"))
    x = d.any(SOME, 1, 5, where=lambda v: v.array.size > 0, shape=lambda: d.shape(1, 4, 1))
    axes = d.axes(x.rank, 1) if d.flag() else list(range(x.rank))
    begin, end = [], []
    for a in axes:
        most = x.shape[a] - 1 if mode == "reflect" else min(3, x.shape[a])
        low = -min(1, x.shape[a] // 2) if mode in (None, "constant") else 0
        begin.append(d.int(low, max(0, most)))
        end.append(d.int(low, max(0, most)))
    value = d.constant(1, x.dtype) if d.flag() else None
    d.node(op, x, d.constant([*begin, *end]), value,
           d.constant(axes) if len(axes) < x.rank or d.flag() else None, mode=mode)


@draws("DepthToSpace")
def depth_to_space(d: Drawer, op: str) -> None:
    b = d.pick((1, 2, 3))
    x = d.fresh(d.pick(SOME), (d.int(0, 2), b * b * d.int(1, 3), d.int(1, 4), d.int(1, 4)))
    d.node(op, x, blocksize=b, mode=d.pick((None, "DCR", "CRD")))


@draws("SpaceToDepth")
def space_to_depth(d: Drawer, op: str) -> None:
    b = d.pick((1, 2, 3))
    x = d.fresh(d.pick(SOME), (d.int(0, 2), d.int(1, 3), b * d.int(1, 3), b * d.int(1, 3)))
    d.node(op, x, blocksize=b)


@draws("Trilu")
def trilu(d: Drawer, op: str) -> None:
    x = d.any(SOME, 2)
    d.node(op, x, d.constant(d.int(-5, 5)) if d.flag() else None, upper=d.pick((None, 0, 1)))


@draws("ReverseSequence")
def reverse_sequence(d: Drawer, op: str) -> None:
    x = d.any(SOME, 2, where=lambda v: min(v.shape[:2]) > 0, shape=lambda: d.shape(2, 4, 1))
    time = d.int(0, 1)
    lengths = [d.int(1, x.shape[time]) for _ in range(x.shape[1 - time])]
    d.node(op, x, d.constant(lengths), time_axis=time, batch_axis=1 - time)


@draws("Shape")
def shape_(d: Drawer, op: str) -> None:
    x = d.any(ANY)
    d.node(op, x, start=d.pick((None, 0, 1, -1)), end=d.pick((None, 1, -1, 9)))


@draws("Size")
def size(d: Drawer, op: str) -> None:
    d.node(op, d.any(ANY))


@draws("ConstantOfShape")
def constant_of_shape(d: Drawer, op: str) -> None:
    from onnx import numpy_helper
    dtype = d.pick(ANY)
    value = numpy_helper.from_array(np.ones(1, np_dtype(dtype)))
    d.node(op, d.constant(d.shape(0, 4)), value=value if d.flag() else None)


@draws("EyeLike")
def eye_like(d: Drawer, op: str) -> None:
    d.node(op, d.any(SOME, 2, 2, where=lambda v: v.dtype != "bool"), k=d.pick((None, -1, 0, 2)))


@draws("Range")
def range_(d: Drawer, op: str) -> None:
    dtype = d.pick(("float32", "int32", "int64", "float64", "int16"))
    start, step = d.int(-5, 5), d.pick((1, 2, -1, -3))
    limit = start + step * d.int(-1, 9) + d.int(0, 1)
    d.node(op, *(d.constant(v, dtype) for v in (start, limit, step)))


# ---- indices

def indices(d: Drawer, shape: tuple[int, ...], size: int, dtype: str | None = None) -> Value:
    """Indices of an axis, at times negative."""
    if not size and np.prod(shape, dtype=int):
        raise Skip("an index into nothing")
    low = -size if d.flag() else 0
    return d.given(d.rng.integers(low, max(size, 1), shape).astype(dtype or d.pick(WIDE_INTS)))


@draws("Gather")
def gather(d: Drawer, op: str) -> None:
    x = d.any(SOME, 1, 4)
    axis = d.axis(x.rank)
    d.node(op, x, indices(d, d.pick(((), (0,), (1,), (3,), (2, 2))), x.shape[axis]), axis=axis)


@draws("GatherElements")
def gather_elements(d: Drawer, op: str) -> None:
    x = d.any(SOME, 1)
    axis = d.axis(x.rank)
    shape = [d.int(0, n) for n in x.shape]
    shape[axis] = d.int(0, 5)
    d.node(op, x, indices(d, tuple(shape), x.shape[axis]), axis=axis)


@draws("GatherND")
def gather_nd(d: Drawer, op: str) -> None:
    x = d.any(SOME, 1, 4, where=lambda v: v.array.size > 0, shape=lambda: d.shape(1, 4, 1))
    batch = d.int(0, min(2, x.rank - 1))
    depth = d.int(1, x.rank - batch)
    outer = (*x.shape[:batch], *d.pick(((), (1,), (3,), (2, 2))))
    parts = [d.rng.integers(-x.shape[batch + k], x.shape[batch + k], outer) for k in range(depth)]
    d.node(op, x, d.given(np.stack(parts, -1).astype(np.int64)), batch_dims=batch)


def _scatterable(d: Drawer) -> tuple[Value, str | None]:
    reduction = d.pick((None, "none", "add", "mul", "max", "min"))
    plain = reduction in (None, "none")
    x = d.any(SOME if plain else weighted(d, NUMBERS), 1, 4, where=lambda v: v.array.size > 0,
              shape=lambda: d.shape(1, 4, 1), kinds=ORDINARY)
    if reduction not in (None, "none") and x.dtype == "bool":
        raise Skip("a sum of bools")
    return x, reduction


@draws("ScatterElements")
def scatter_elements(d: Drawer, op: str) -> None:
    x, reduction = _scatterable(d)
    axis = d.axis(x.rank)
    shape = [d.int(0, n) for n in x.shape]
    n = x.shape[axis]
    order = np.argsort(d.rng.random((*shape[:axis % x.rank], n, *shape[axis % x.rank + 1:])),
                       axis % x.rank)
    at = np.take(order, range(shape[axis]), axis % x.rank)          # distinct along the axis
    if reduction not in (None, "none") and d.flag() and at.size:
        at = at // 2
    if d.flag():
        at = at - n
    updates = d.fresh(x.dtype, at.shape, ORDINARY)
    d.node(op, x, d.given(at.astype(d.pick(("int32", "int64")))), updates, axis=axis,
           reduction=reduction)


@draws("ScatterND")
def scatter_nd(d: Drawer, op: str) -> None:
    x, reduction = _scatterable(d)
    depth = d.int(1, x.rank)
    cells = int(np.prod(x.shape[:depth]))
    count = d.int(0, min(5, cells))
    flat = d.rng.permutation(cells)[:count]
    if reduction not in (None, "none") and d.flag():
        flat = flat // 2
    at = np.stack(np.unravel_index(flat, x.shape[:depth]), -1).astype(np.int64)
    if d.flag():
        at = at - np.array(x.shape[:depth])
    updates = d.fresh(x.dtype, (count, *x.shape[depth:]), ORDINARY)
    d.node(op, x, d.given(at), updates, reduction=reduction)


@draws("OneHot")
def one_hot(d: Drawer, op: str) -> None:
    depth = d.int(1, 5)
    at = d.given(d.rng.integers(-depth - 1, depth + 1, d.shape(0, 3)).astype(
        d.pick(("int64", "int32", "float32"))))
    values = d.constant([0, 3], d.pick(("float32", "int64", "int32", "float16")))
    d.node(op, at, d.constant(d.pick((depth, [depth]))), values, axis=d.axis(at.rank + 1))


# ---- reductions and orders

@draws("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum",
       "ReduceSumSquare ReduceMax ReduceMin")
def reduce(d: Drawer, op: str) -> None:
    dtypes = ("float32", "float16", "float64", "int32", "int64", "bfloat16")
    if op in ("ReduceMean", "ReduceLogSum", "ReduceLogSumExp", "ReduceL2", "ReduceL1"):
        dtypes = ("float32", "float16", "float64")
    if op in ("ReduceMax", "ReduceMin"):
        dtypes = (*dtypes, "int8", "uint8", "bool")
    x = d.any(weighted(d, dtypes))
    axes = d.axes(x.rank)
    d.node(op, x, d.constant(axes) if axes or d.flag() else None, keepdims=d.pick((None, 0, 1)),
           noop_with_empty_axes=d.pick((None, 0, 1)))


@draws("ArgMax ArgMin")
def arg(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, NUMBERS), 1, where=lambda v: v.array.size > 0,
              shape=lambda: d.shape(1, 5, 1))
    d.node(op, x, axis=d.axis(x.rank), keepdims=d.pick((None, 0, 1)),
           select_last_index=d.pick((None, 0, 1)))


@draws("CumSum CumProd")
def cumulative(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, ("float32", "float64", "int32", "int64")), 1)
    d.node(op, x, d.constant(d.axis(x.rank)), exclusive=d.pick((None, 0, 1)),
           reverse=d.pick((None, 0, 1)))


@draws("Softmax LogSoftmax Hardmax")
def softmax(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, FLOATS), 1, where=lambda v: v.array.size > 0,
              shape=lambda: d.shape(1, 4, 1), kinds=ORDINARY)
    d.node(op, x, axis=d.axis(x.rank) if d.flag() else None)


@draws("TopK")
def topk(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, ("float32", "float16", "float64", "int32", "int64", "uint8")), 1,
              kinds=ORDINARY)
    axis = d.axis(x.rank)
    d.node(op, x, d.constant([d.int(0, x.shape[axis])]), axis=axis, outputs=2,
           largest=d.pick((None, 0, 1)))


@draws("LpNormalization")
def lp_normalization(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, ("float32", "float16", "float64")), 1, where=lambda v: v.array.size > 0,
              shape=lambda: d.shape(1, 4, 1), kinds=("positive", "normal"))
    d.node(op, x, axis=d.axis(x.rank), p=d.pick((None, 1, 2)))


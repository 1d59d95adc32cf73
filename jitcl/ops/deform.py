"""Deformable convolution (Dai et al., 2017; with masks: Zhu et al., 2019): pixels are read at
computed places, then multiplied with the weights as matrices."""

from __future__ import annotations

import itertools
import math
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from jitcl.errors import ShapeError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import F32, Index, Loader, composite, indexed, onnx_rule, same_dtype, sample
from jitcl.ops.window import Ints, all_inside, window_attrs, window_extent

Array = np.ndarray[Any, Any]
FAR = 1 << 24     # further than this an offset leads out of every picture


def _columns_type(x: TensorType, offset: TensorType, *mask: TensorType, kernel: Ints, strides: Ints,
                  pads: Ints, dilations: Ints, offset_groups: int = 1) -> TensorType:
    n, taps = len(kernel), math.prod(kernel)
    same_dtype(x, offset, *mask)
    if x.rank != n + 2:
        raise ShapeError(f"deform_conv: a kernel {list(kernel)} wants x of rank {n + 2}, got {x}")
    if offset_groups < 1 or x.dims[1] % offset_groups:
        raise ShapeError(f"deform_conv: {x.dims[1]} channels of x {x} do not fall into "
                         f"{offset_groups} offset groups")
    out = tuple(window_extent(x.dims[2 + d], kernel[d], strides[d], pads[d], pads[n + d],
                              dilations[d]) for d in range(n))
    wanted = [(x.dims[0], offset_groups * taps * n, *out), (x.dims[0], offset_groups * taps, *out)]
    for name, type, shape in zip(("offset", "mask"), (offset, *mask), wanted):
        if type.shape != shape:
            raise ShapeError(f"deform_conv: x {x} and a kernel {list(kernel)} want {name} of shape "
                             f"{list(shape)}, got {type}")
    return x.with_(shape=(*x.shape[:2], *kernel, *out))


def _columns_ref(x: Array, offset: Array, mask: Array | None = None, *, kernel: Ints, strides: Ints,
                 pads: Ints, dilations: Ints, offset_groups: int = 1) -> Array:
    """Tap by tap: one fancy index for each corner of all places."""
    n, batch, out = len(kernel), x.shape[0], offset.shape[2:]
    padded = np.pad(wide(x), [(0, 0), (0, 0), *[(1, 1)] * n])      # a border of zeros
    moves = wide(offset).reshape(batch, offset_groups, math.prod(kernel), n, *out)
    y = np.zeros((*x.shape[:2], math.prod(kernel), *out), wide(x).dtype)
    each = x.shape[1] // offset_groups
    grid = np.indices(out)
    for b, c, t in np.ndindex(*x.shape[:2], math.prod(kernel)):
        tap = np.unravel_index(t, kernel)
        at = [grid[d] * strides[d] - pads[d] + tap[d] * dilations[d] + moves[b, c // each, t, d]
              for d in range(n)]
        base = [np.floor(a).astype(int) for a in at]
        for corner in itertools.product((0, 1), repeat=n):
            weight = math.prod(np.abs(1 - k - (a - i)) for k, a, i in zip(corner, at, base))
            place = [np.clip(i + k, -1, s) + 1 for i, k, s in zip(base, corner, x.shape[2:])]
            y[b, c, t] += weight * padded[(b, c, *place)]
    if mask is not None:
        y *= np.repeat(wide(mask).reshape(batch, offset_groups, -1, *out), each, axis=1)
    return y.reshape(*x.shape[:2], *kernel, *out).astype(x.dtype)


_PLAIN: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


@indexed("window", range="exact", infer=_columns_type, ref=_columns_ref, samples=[
    sample(F32(2, 4, 5, 6), F32(2, 8, 4, 5), kernel=(2, 2), **_PLAIN),
    sample(F32(2, 4, 5, 6), F32(2, 24, 3, 3), F32(2, 12, 3, 3), kernel=(3, 2), strides=(2, 2),
           pads=(1, 0, 1, 1), dilations=(1, 2), offset_groups=2),
    sample(F32(1, 2, 7), F32(1, 3, 7), kernel=(3,), strides=(1,), pads=(1, 1), dilations=(1,))])
def deform_columns(s: KernelBuilder, ix: Index, x: Loader, offset: Loader, *mask: Loader,
                   kernel: Ints, strides: Ints, pads: Ints, dilations: Ints,
                   offset_groups: int = 1) -> Expr:
    """[N, C, *spatial] -> [N, C, *kernel, *out]: the pixel under each tap of each window, moved by
    `offset` [N, groups * taps * axes, *out], read between pixels linearly, zero outside; times
    `mask` [N, groups * taps, *out]."""
    n = len(kernel)
    b, c, taps, out = ix[0], ix[1], ix[2:2 + n], ix[2 + n:]
    group = c // (x.shape[1] // offset_groups)
    number = group
    for k, extent in zip(taps, kernel):
        number = number * extent + k
    beside: list[list[tuple[Expr, Expr]]] = []
    for d in range(n):
        whole = out[d] * strides[d] + taps[d] * dilations[d] - pads[d]
        move = offset(b, number * n + d, *out)
        base = s.floor(move)
        part = move - base
        first = whole + s.index(s.min(s.max(base, float(-FAR)), float(FAR)))
        beside.append([(first, 1.0 - part), (first + 1, part)])
    found = []
    for corner in itertools.product(*beside):
        at = [place for place, _ in corner]
        value = x(b, c, *at, guard=all_inside(s, at, x.shape[2:]))
        found.append(math.prod((weight for _, weight in corner), start=value))
    total = reduce(add, found)
    return total * mask[0](b, number, *out) if mask else total


def _conv_ref(x: Array, w: Array, offset: Array, *mask: Array, groups: int = 1,
              **attrs: Any) -> Array:
    """Columns, then an einsum over each group."""
    n = x.ndim - 2
    columns = _columns_ref(wide(x), wide(offset), *(wide(m) for m in mask), **attrs)
    out = columns.shape[2 + n:]
    columns = columns.reshape(x.shape[0], groups, -1, math.prod(out))
    weights = wide(w).reshape(groups, w.shape[0] // groups, -1)
    y = np.einsum("gmk,bgkp->bgmp", weights, columns)
    return np.asarray(y.reshape(x.shape[0], w.shape[0], *out), x.dtype)


@composite(ref=_conv_ref, samples=[
    sample(F32(1, 4, 5, 6), F32(3, 4, 2, 2), F32(1, 8, 4, 5), kernel=(2, 2), **_PLAIN),
    sample(F32(2, 4, 5, 6), F32(6, 2, 3, 2), F32(2, 48, 3, 3), F32(2, 24, 3, 3), kernel=(3, 2),
           strides=(2, 2), pads=(1, 0, 1, 1), dilations=(1, 2), groups=2, offset_groups=4),
    sample(F32(1, 2, 3, 4, 3), F32(2, 2, 2, 2, 1), F32(1, 12, 2, 3, 3), kernel=(2, 2, 1),
           strides=(1, 1, 1), pads=(0,) * 6, dilations=(1, 1, 1))])
def deform_conv(g: GraphBuilder, x: Node, w: Node, offset: Node, *mask: Node, kernel: Ints,
                strides: Ints, pads: Ints, dilations: Ints, groups: int = 1,
                offset_groups: int = 1) -> Node:
    """Deformable convolution of [N, C, *spatial] with w [M, C / groups, *kernel]."""
    channels, outputs = x.type.dims[1], w.type.dims[0]
    if w.type.dims[1:] != (channels // max(groups, 1), *kernel) or channels % groups or (
            outputs % groups):
        raise ShapeError(f"deform_conv: {channels} channels of x {x.type} in {groups} groups want "
                         f"w [a multiple of {groups}, {channels}/{groups}, "
                         f"{', '.join(map(str, kernel))}], got {w.type}")
    columns = g.deform_columns(x, offset, *mask, kernel=kernel, strides=strides, pads=pads,
                               dilations=dilations, offset_groups=offset_groups)
    out = columns.type.dims[2 + len(kernel):]
    deep = channels // groups * math.prod(kernel)
    flat = g.reshape(columns, shape=(x.type.dims[0], groups, deep, math.prod(out)))
    y = g.matmul(g.reshape(w, shape=(groups, outputs // groups, deep)), flat)
    return g.reshape(y, shape=(x.type.dims[0], outputs, *out))


@onnx_rule("DeformConv")
def _deform_conv(g: GraphBuilder, node: Any) -> Node:
    x, w, offset, bias, mask = (node.input(i) for i in range(5))
    if x.type.rank < 3 or w.type.rank != x.type.rank:
        raise ShapeError(f"DeformConv takes x [N, C, ...] and w of equal rank, got {x.type} and "
                         f"{w.type}")
    kernel = tuple(node.attrs.get("kernel_shape", w.type.dims[2:]))
    window = window_attrs(node, x.type.dims[2:], kernel)
    operands = [i for i in (x, w, offset, mask) if i is not None]
    y: Node = g.deform_conv(*operands, kernel=kernel, groups=node.attrs.get("group", 1),
                            offset_groups=node.attrs.get("offset_group", 1), **window)
    if bias is None:
        return y
    return g.add(y, g.reshape(bias, shape=(bias.type.size, *(1,) * len(kernel))))

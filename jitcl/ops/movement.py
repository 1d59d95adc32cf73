"""Ops that only move elements: other indices, the same values. Inlined, they cost an address."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitcl.errors import ShapeError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.sizes import judged_by_hint, same, whole
from jitcl.ir.types import Dim, TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F16,
    F32,
    I64,
    Index,
    aligned,
    broadcast,
    composite,
    movement,
    norm_axes,
    onnx_rule,
    sample,
)

Shape = tuple[int, ...]


def ints(values: Any) -> Shape:
    """A static parameter as plain ints, or sizes."""
    return tuple(whole(v) for v in np.asarray(values).reshape(-1))


# ---- shape

def _reshape_type(x: TensorType, shape: Sequence[Dim]) -> TensorType:
    if -1 in shape:
        known = TensorType(x.dtype, tuple(d for d in shape if d != -1)).size
        if list(shape).count(-1) > 1 or not known or x.size % known:
            raise ShapeError(f"cannot reshape {x} ({x.size} elements) to {list(shape)}: -1 must "
                             f"stand for one dimension, and the others' product divide {x.size}")
        shape = tuple(x.size // known if d == -1 else d for d in shape)
    y = x.with_(shape=tuple(shape))
    if y.size != x.size:
        raise ShapeError(f"cannot reshape {x} ({x.size} elements) to {list(shape)} "
                         f"({math.prod(shape)} elements)")       # type: ignore[arg-type]
    return y


@movement(infer=_reshape_type, ref=lambda x, shape: x.reshape(shape), samples=[
    sample(F32(2, 6), shape=(3, 4)), sample(F32(2, 3, 4), shape=(6, 4)),
    sample(F32(2, 12), shape=(2, 3, 1, 4)),
    sample(F32(1, 1), shape=()), sample(F32(), shape=(1, 1, 1)),
    sample(F32(2, 3, 4), shape=(4, -1)),
    sample(F32(0, 3), shape=(3, 0)), sample(F16(4, 3, 2), shape=(2, 2, 6))])
def reshape(ix: Index, source: Shape, target: Shape, shape: Sequence[Dim]) -> Index:
    """The same elements in row-major order under another shape; one dimension may be -1."""
    if any(same(d, 0) for d in source):
        return tuple(E.index(0) for _ in source)
    found: list[Expr] = []
    with judged_by_hint():
        groups = _matched(source, target)
    for old, new in groups:
        flat = E.index(0)
        for a in new:
            flat = flat * target[a] + ix[a]
        for k, a in enumerate(old):
            found.append(flat // math.prod(source[b] for b in old[k + 1:]) % source[a])
    return tuple(found)


def _matched(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """Runs of axes with the same elements: [2,3,4] and [6,2,2] match as [2,3]=[6], [4]=[2,2].
    Longer runs are right, too: no guard is worth it where sizes are equal for some shapes only."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        old: list[int] = []
        new: list[int] = []
        left = right = 1
        while not (old or new) or (left != right and (i < len(source) or j < len(target))):
            if j == len(target) or (i < len(source) and left <= right):
                left *= source[i]
                old.append(i)
                i += 1
            else:
                right *= target[j]
                new.append(j)
                j += 1
        groups.append((old, new))
    return groups


@onnx_rule("Reshape")
def _reshape(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    shape = list(ints(node.static(1)))
    if not node.attrs.get("allowzero", 0):
        for a, d in enumerate(shape):
            if d == 0 and a >= x.type.rank:
                raise ShapeError(f"shape {shape} keeps axis {a} (a 0), "
                                 f"which {x.type} does not have")
            shape[a] = x.type.dims[a] if d == 0 else d
    return g.reshape(x, shape=shape)


@onnx_rule("Squeeze")
def _squeeze(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    axes = node.static(1)
    if axes is None:
        gone = tuple(a for a, d in enumerate(x.type.shape) if d == 1)
    else:
        gone = norm_axes(ints(axes), x.type.rank)
    for a in gone:
        if x.type.shape[a] != 1:
            raise ShapeError(f"cannot squeeze axis {a} of {x.type}: "
                             f"it has {x.type.shape[a]} elements, not 1")
    return g.reshape(x, shape=[d for a, d in enumerate(x.type.shape) if a not in gone])


@onnx_rule("Unsqueeze")
def _unsqueeze(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    axes = ints(node.static(1))
    rank = x.type.rank + len(axes)
    new = norm_axes(axes, rank)
    old = iter(x.type.shape)
    return g.reshape(x, shape=[1 if a in new else next(old) for a in range(rank)])


@onnx_rule("Flatten")
def _flatten(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    axis = node.attrs.get("axis", 1)
    if not -x.type.rank <= axis <= x.type.rank:
        raise ShapeError(f"cannot flatten {x.type} at axis {axis}: "
                         f"use {-x.type.rank} to {x.type.rank}")
    axis = axis + x.type.rank if axis < 0 else axis
    return g.reshape(x, shape=(math.prod(x.type.dims[:axis]), math.prod(x.type.dims[axis:])))


# ---- repetition

@movement(infer=lambda x, shape: x.with_(shape=broadcast(x.shape, shape)), samples=[
    sample(F32(3, 1), shape=(2, 3, 4)), sample(F32(2, 3), shape=(3,)), sample(F32(), shape=(2, 2))],
    ref=lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, shape)))
def expand(ix: Index, source: Shape, target: Shape, shape: Sequence[Dim]) -> Index:
    """Broadcast against a shape, both ways: where the operand is longer it stays so."""
    return aligned(ix, source)


@onnx_rule("Expand")
def _expand(g: GraphBuilder, node: Any) -> Node:
    return g.expand(node.inputs[0], shape=ints(node.static(1)))


def _tile_type(x: TensorType, repeats: Sequence[int]) -> TensorType:
    if len(repeats) != x.rank or any(r < 0 for r in repeats):
        raise ShapeError(f"repeats {list(repeats)} must be one count, 0 or more, "
                         f"for each axis of {x}")
    return x.with_(shape=tuple(d * r for d, r in zip(x.dims, repeats)))


@movement(infer=_tile_type, ref=lambda x, repeats: np.tile(x, repeats), samples=[
    sample(F32(2, 3), repeats=(2, 2)), sample(I64(3), repeats=(1,))])
def tile(ix: Index, source: Shape, target: Shape, repeats: Sequence[int]) -> Index:
    """The operand side by side, `repeats` times along each axis."""
    return tuple(i % d for i, d in zip(ix, source))


@onnx_rule("Tile")
def _tile(g: GraphBuilder, node: Any) -> Node:
    return g.tile(node.inputs[0], repeats=ints(node.static(1)))


# ---- order

def _transpose_type(x: TensorType, perm: Sequence[int]) -> TensorType:
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"perm {list(perm)} is no order of the {x.rank} axes of {x}")
    return x.with_(shape=tuple(x.shape[p] for p in perm))


@movement(infer=_transpose_type, ref=lambda x, perm: np.transpose(x, perm), samples=[
    sample(F32(2, 3), perm=(1, 0)), sample(F32(2, 3, 4), perm=(2, 0, 1)),
    sample(I64(2, 3, 4), perm=(0, 2, 1))])
def transpose(ix: Index, source: Shape, target: Shape, perm: Sequence[int]) -> Index:
    """Axis d of the result is axis perm[d] of the operand."""
    return tuple(ix[list(perm).index(d)] for d in range(len(perm)))


@onnx_rule("Transpose")
def _transpose(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    return g.transpose(x, perm=node.attrs.get("perm", tuple(reversed(range(x.type.rank)))))


@composite(samples=[sample(F32(1, 8, 2, 3), blocksize=2),
                    sample(F32(1, 8, 2, 3), blocksize=2, mode="CRD")],
           ref=lambda x, blocksize, mode="DCR": _depth_to_space_ref(x, blocksize, mode))
def depth_to_space(g: GraphBuilder, x: Node, blocksize: int, mode: str = "DCR") -> Node:
    """Channels become blocks of pixels; mode: whether the depth or the block varies faster."""
    if x.type.rank != 4 or x.type.dims[1] % blocksize ** 2:
        raise ShapeError(f"wanted [N,C,H,W] with C a multiple of {blocksize}*{blocksize}, "
                         f"got {x.type}")
    n, c, h, w = x.type.dims
    b, depth = blocksize, c // blocksize ** 2
    if mode == "CRD":
        y = g.transpose(g.reshape(x, shape=(n, depth, b, b, h, w)), perm=(0, 1, 4, 2, 5, 3))
    else:
        y = g.transpose(g.reshape(x, shape=(n, b, b, depth, h, w)), perm=(0, 3, 4, 1, 5, 2))
    return g.reshape(y, shape=(n, depth, h * b, w * b))


def _depth_to_space_ref(x: np.ndarray, b: int, mode: str) -> np.ndarray:
    n, c, h, w = x.shape
    depth = c // b ** 2
    y = np.empty((n, depth, h * b, w * b), x.dtype)
    for row in range(b):
        for column in range(b):
            block = row * b + column
            y[:, :, row::b, column::b] = (
                x[:, block::b * b] if mode == "CRD" else x[:, block * depth:(block + 1) * depth])
    return y


@composite(samples=[sample(F32(1, 2, 4, 6), blocksize=2),
                    sample(F32(1, 2, 4, 6), blocksize=2, mode="CRD")],
           ref=lambda x, blocksize, mode="DCR": _space_to_depth_ref(x, blocksize, mode))
def space_to_depth(g: GraphBuilder, x: Node, blocksize: int, mode: str = "DCR") -> Node:
    """Blocks of pixels become channels: depth_to_space backwards."""
    if x.type.rank != 4 or x.type.dims[2] % blocksize or x.type.dims[3] % blocksize:
        raise ShapeError(f"wanted [N,C,H,W] with H and W multiples of {blocksize}, got {x.type}")
    n, c, h, w = x.type.dims
    b = blocksize
    y = g.reshape(x, shape=(n, c, h // b, b, w // b, b))
    y = g.transpose(y, perm=(0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4))
    return g.reshape(y, shape=(n, c * b * b, h // b, w // b))


def _space_to_depth_ref(x: np.ndarray, b: int, mode: str) -> np.ndarray:
    n, c, h, w = x.shape
    y = np.empty((n, c * b * b, h // b, w // b), x.dtype)
    for row in range(b):
        for column in range(b):
            block = row * b + column
            first, step = (block, b * b) if mode == "CRD" else (block * c, 1)
            y[:, first:first + c * step:step] = x[:, :, row::b, column::b]
    return y


@onnx_rule("DepthToSpace", "SpaceToDepth")
def _blocks(g: GraphBuilder, node: Any) -> Node:
    make = g.depth_to_space if node.op_type == "DepthToSpace" else g.space_to_depth
    return make(*node.inputs, blocksize=node.attrs["blocksize"], mode=node.attrs.get("mode", "DCR"))

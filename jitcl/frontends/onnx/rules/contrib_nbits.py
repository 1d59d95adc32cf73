"""Import rules of onnxruntime's products with, and look-ups in, weights of 2 to 8 bits.

Weights stay packed: taking them apart and scaling them is inlined into the product that reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.graph import Node, const
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import product
from jitcl.ops.contrib import inputs_of, microsoft
from jitcl.ops.core import norm_axis
from jitcl.ops.gather import places

# The 16 values of a 4-bit code, from 0 to 15 (Dettmers et al., 2023, "QLoRA", bitsandbytes' tables)
FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
       -0.0, -5.208333333e-03, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25)
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0)


def unpacked(g: GraphBuilder, packed: Node, bits: int, shape: tuple[int, ...]) -> Node:
    """Unsigned values of 2, 4 or 8 bits from bytes, the low bits of each the earlier value."""
    if bits == 8:
        return g.reshape(packed, shape=shape)
    flat = g.reshape(packed, shape=(packed.type.size,))
    if bits == 4:
        return g.unpack_uint4(flat, shape=shape)
    if bits != 2:
        raise UnsupportedError(f"weights of {bits} bits are not supported: quantise to 2, 4 or 8")
    return g.unpack(flat, to="u2", shape=shape)


def zero_points(g: GraphBuilder, zeros: Node | None, bits: int, n: int, blocks: int) -> Node:
    """One zero point for each block: packed as the weights are, each row in whole bytes; or as
    numbers; the middle of the range where there are none."""
    if zeros is None:
        return const(1 << (bits - 1), "u8")
    if zeros.type.dtype == "u8":
        row = -(-blocks * bits // 8)
        each = row * 8 // bits
        if zeros.type.size != n * row:
            raise ShapeError(f"zero points of {n} rows of {blocks} blocks with {bits} bits want "
                             f"u8[{n * row}], got {zeros.type}")
        full = unpacked(g, zeros, bits, (n, each))
        kept = g.slice(full, starts=(0,), ends=(blocks,), axes=(1,), steps=(1,))
        return g.reshape(kept, shape=(n, blocks, 1))
    return g.reshape(zeros, shape=(n, blocks, 1))


def dequantised(g: GraphBuilder, packed: Node, scales: Node, zeros: Node | None, *, n: int, k: int,
                bits: int, block: int, to: str) -> Node:
    """The weight [n, k] that packed integers stand for, a scale for each block along k."""
    if bits not in (2, 4, 8):
        raise UnsupportedError(f"weights of {bits} bits are not supported: quantise to 2, 4 or 8")
    blocks = -(-k // block)
    if packed.type.size != n * blocks * block * bits // 8 or packed.type.dtype != "u8":
        raise ShapeError(
            f"K={k}, N={n} in blocks of {block} with {bits} bits want "
            f"u8[{n},{blocks},{block * bits // 8}], got {packed.type}"
        )
    w = unpacked(g, packed, bits, (n, blocks, block))
    zero = zero_points(g, zeros, bits, n, blocks)
    w = g.dequantize(w, g.reshape(scales, shape=(n, blocks, 1)), zero, to=to)
    w = g.reshape(w, shape=(n, blocks * block))
    if blocks * block != k:
        w = g.slice(w, starts=(0,), ends=(k,), axes=(1,), steps=(1,))
    return w


@microsoft("MatMulNBits")
def _matmul_nbits(g: GraphBuilder, node: Any) -> Node:
    """a @ w' + bias, where w [N, K] is unsigned integers with a scale for each block along K."""
    a, packed, scales, zeros, order, bias = inputs_of(node, 6, needs=(0, 1, 2))
    k, n, bits = (int(node.attrs.get(name, 4)) for name in ("K", "N", "bits"))
    block = int(node.attrs["block_size"])
    if node.attrs.get("weight_prepacked", 0):
        raise UnsupportedError("its weights are packed for one GPU (weight_prepacked): "
                               "export them as they are")
    if order is None:
        w = dequantised(g, packed, scales, zeros, n=n, k=k, bits=bits, block=block, to=a.type.dtype)
    else:
        w = _permuted(g, packed, scales, zeros, order, n, k, bits, block, a.type.dtype)
    y = product(g, a, g.transpose(w, perm=(1, 0)))
    return y if bias is None else g.add(y, bias)


def _permuted(g: GraphBuilder, packed: Node, scales: Node, zeros: Node | None, order: Node, n: int,
              k: int, bits: int, block: int, to: str) -> Node:
    """The weight [n, k] where g_idx [k] says which block each column belongs to (GPTQ's
    act_order)."""
    blocks = -(-k // block)
    if bits not in (2, 4, 8) or packed.type.size != n * blocks * block * bits // 8:
        raise ShapeError(f"K={k}, N={n} in blocks of {block} with {bits} bits do not fit "
                         f"{packed.type}")
    flat = g.reshape(unpacked(g, packed, bits, (n, blocks, block)), shape=(n, blocks * block))
    w = g.slice(flat, starts=(0,), ends=(k,), axes=(1,), steps=(1,))
    columns = g.slice(g.reshape(order, shape=(-1,)), starts=(0,), ends=(k,), axes=(0,), steps=(1,))
    each = g.gather(g.reshape(scales, shape=(n, blocks)), columns, axis=1)
    zero = zero_points(g, zeros, bits, n, blocks)
    if zero.type.rank:
        zero = g.gather(g.reshape(zero, shape=(n, blocks)), columns, axis=1)
    return g.dequantize(w, each, zero, to=to)


@microsoft("MatMulBnb4")
def _matmul_bnb4(g: GraphBuilder, node: Any) -> Node:
    """a @ w' where w [N, K] is 4-bit codes of a table, times the greatest of each block; the high
    half of a byte is the earlier code."""
    a, packed, absmax = node.inputs[:3]
    k, n, block = (int(node.attrs[name]) for name in ("K", "N", "block_size"))
    kind = int(node.attrs["quant_type"])
    if kind not in (0, 1):
        raise ModelError(f"quant_type={kind} is neither 0 (FP4) nor 1 (NF4)")
    size, blocks = n * k, -(-n * k // block)
    if packed.type.size != -(-size // 2) or absmax.type.size != blocks:
        raise ShapeError(f"K={k}, N={n} in blocks of {block} want u8[{-(-size // 2)}] and "
                         f"{blocks} scales, got {packed.type} and {absmax.type}")
    pairs = g.unpack_uint4(g.reshape(packed, shape=(packed.type.size,)),
                           shape=(packed.type.size, 2))
    codes = g.reshape(g.slice(pairs, starts=(-1,), ends=(-3,), axes=(1,), steps=(-1,)), shape=(-1,))
    codes = g.slice(codes, starts=(0,), ends=(size,), axes=(0,), steps=(1,))
    table = g.const(np.array((FP4, NF4)[kind]), a.type.dtype)
    values = g.gather(table, g.cast(codes, to="i32"), axis=0)
    which = g.const(np.arange(size, dtype=np.int32) // block)
    w = g.reshape(g.mul(values, g.gather(g.reshape(absmax, shape=(blocks,)), which, axis=0)),
                  shape=(n, k))
    return product(g, a, g.transpose(w, perm=(1, 0)) if node.attrs.get("transB", 1) else w)


@microsoft("GatherBlockQuantized")
def _gather_block_quantized(g: GraphBuilder, node: Any) -> Node:
    """gather(dequantize(data), indices): data in blocks along `quantize_axis`, u8 data packed along
    the last axis."""
    data, indices, scales, zeros = inputs_of(node, 4, needs=(0, 1, 2))
    bits, block = int(node.attrs.get("bits", 4)), int(node.attrs.get("block_size", 128))
    dims, rank = data.type.dims, data.type.rank
    along = norm_axis(int(node.attrs.get("gather_axis", 0)), rank)
    axis = norm_axis(int(node.attrs.get("quantize_axis", 1)), rank)
    if data.type.dtype == "u8" and bits < 8:
        dims = (*dims[:-1], dims[-1] * 8 // bits)
        if zeros is not None:
            count = scales.type.dims
            wide = (*zeros.type.dims[:-1], zeros.type.dims[-1] * 8 // bits)
            zeros = g.slice(unpacked(g, zeros, bits, wide), starts=(0,), ends=(count[-1],),
                            axes=(-1,), steps=(1,))
        data = unpacked(g, data, bits, dims)
        zeros = zeros if zeros is not None else g.const(1 << (bits - 1), "u8")
    elif data.type.dtype == "u8" and zeros is None:
        zeros = g.const(128, "u8")
    blocks = -(-dims[axis] // block)
    wanted = tuple(blocks if a == axis else d for a, d in enumerate(dims))
    if scales.type.dims != wanted:
        raise ShapeError(f"blocks of {block} along axis {axis} of {list(dims)} want scales "
                         f"{list(wanted)}, got {scales.type}")
    if axis == along:
        raise UnsupportedError("gather_axis and quantize_axis are the same: quantise along another")
    which = g.const(np.arange(dims[axis]) // block)
    indices = places(g, indices, dims[along])
    end = indices.type.rank
    behind = axis + (end - 1 if axis > along else 0)

    def picked(x: Node) -> Node:
        return g.gather(x, indices, axis=along)

    each = [g.gather(picked(scales), which, axis=behind)]
    if zeros is not None:
        each.append(g.gather(picked(zeros), which, axis=behind) if zeros.type.rank else zeros)
    return g.dequantize(picked(data), *each)

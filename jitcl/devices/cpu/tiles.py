"""The register tile that convolutions and matrix products share, emitted as LLVM IR by one
intrinsic.

    acc[j][r][c][:] = sum over x, y, k, z of a[x*s0 + y*s1 + k*s2 + z*zs + r*rs + c*ps] *
    w[... * ws][j][:]             (gated_tile: times gate[...], the number of the step)

for j < blocks, r < rows, c < columns: rows x columns "pixels" of which each contributes one
broadcast scalar a step, times `blocks` vectors of the weight stream. All sums stay in registers;
the result goes to `acc` (in L1), where the kernel's epilogue picks it up. One intrinsic instead of
Numba statements: a quarter of the compile time, the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jitcl.devices.cpu.emit import (
    F32,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    Emit,
    constant,
    declare,
    mangle,
    room,
    splat,
)
from jitcl.devices.cpu.host import features
from jitcl.devices.cpu.numba_parts import intrinsic
from jitcl.devices.cpu.vector import SCRATCH_SCOPE, load_at, store_at
from jitcl.devices.cpu.vtypes import Pointer

__all__ = ["tile", "gated_tile", "dot_tile", "signed_dot_tile", "lane_tile", "words"]
COUNTS = ("n0", "n1", "n2", "n3", "last")
STRIDES = ("s0", "s1", "s2", "rs", "ws")
CONVERTED = 16  # steps whose halves become f32 at once; by eights products wait for conversions


Product = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]
_COUNTS = types.UniTuple(types.int64, len(COUNTS))


def _fma(b: ir.IRBuilder, x: ir.Value, w: ir.Value, total: ir.Value) -> ir.Value:
    """total + x * w."""
    return Emit(b, total.type).fma(x, w, total)


def dot_of(b: ir.IRBuilder, x: ir.Value, w: ir.Value, total: ir.Value) -> ir.Value:
    """total + x[0] * w[0] + .. + x[3] * w[3], exact: bytes of x unsigned, those of w signed."""
    lanes = total.type.count
    if lanes == 4:
        return _dot_of_bytes(b, "usdot", x, w, total)
    if lanes == 16 or "avxvnni" in features():
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        return b.call(declare(b, name, total.type, [total.type] * 3), [total, x, w])
    words = ir.VectorType(I16, 2 * lanes)
    x, w, eight = b.bitcast(x, words), b.bitcast(w, words), constant(words, 8)
    even = pairs_of(b, b.and_(x, constant(words, 255)), b.ashr(b.shl(w, eight), eight))
    odd = pairs_of(b, b.lshr(x, eight), b.ashr(w, eight))
    return b.add(b.add(total, even), odd)


def pairs_of(b: ir.IRBuilder, x: ir.Value, w: ir.Value) -> ir.Value:
    """x[0] * w[0] + x[1] * w[1] as i32, of signed numbers of 16 bits; AVX2, eight lanes."""
    sums, words = ir.VectorType(I32, x.type.count // 2), x.type
    return b.call(declare(b, "llvm.x86.avx2.pmadd.wd", sums, [words] * 2), [x, w])


def pairs_of_bytes(b: ir.IRBuilder, x: ir.Value, w: ir.Value) -> ir.Value:
    """x[0] * w[0] + x[1] * w[1] as i16, of bytes of x up to 127, where no sum saturates, and signed
    ones of w; AVX2, 16 pairs."""
    parts, words = ir.VectorType(I8, 32), ir.VectorType(I16, 16)
    f = declare(b, "llvm.x86.avx2.pmadd.ub.sw", words, [parts] * 2)
    return b.call(f, [b.bitcast(x, parts), b.bitcast(w, parts)])


def signed_dot_of(b: ir.IRBuilder, x: ir.Value, w: ir.Value, total: ir.Value) -> ir.Value:
    """As `dot_of`, for bytes of x less 128: aarch64 without I8MM has none of unsigned by signed."""
    return _dot_of_bytes(b, "sdot", b.xor(x, constant(x.type, -0x7F7F7F80)), w, total)


def _dot_of_bytes(b: ir.IRBuilder, name: str, x: ir.Value, w: ir.Value, total: ir.Value
                  ) -> ir.Value:
    """An instruction of aarch64."""
    parts = ir.VectorType(I8, 4 * total.type.count)
    f = declare(b, f"llvm.aarch64.neon.{name}.{mangle(total.type)}.{mangle(parts)}", total.type,
                [total.type, parts, parts])
    return b.call(f, [total, b.bitcast(x, parts), b.bitcast(w, parts)])


def _tile_intrinsic(name: str, element: ir.Type, product: Product, doc: str,
                    gated: bool = False) -> Any:
    def typed(acc, a, w, counts, strides, rows, columns, blocks, zs, ps, lanes, fresh, fetch,
              *gate):
        shape = [t.literal_value for t in (rows, columns, blocks, zs, ps, lanes)]
        always = isinstance(fresh, types.BooleanLiteral) and fresh.literal_value

        def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
            n = [b.extract_value(values[3], k) for k in range(len(COUNTS))]
            s = [b.extract_value(values[4], k) for k in range(strides.count)]
            tile = _Tile(b, element, product, sig.args[:3], values[:3], n, s, *shape)
            ahead = [_group(b, b.extract_value(values[12], g), group)
                     for g, group in enumerate(fetch)]
            tile.emit(None if always else values[11], ahead, list(zip(gate, values[13:])))
            return context.get_dummy_value()

        flag = fresh if always else types.boolean
        given = types.UniTuple(types.int64, strides.count)
        ahead = types.Tuple([types.Tuple([
            types.int64, types.int64, *(types.UniTuple(types.int64, g.count) for g in group[2:])])
            for group in fetch])
        return types.void(
            acc, a, w, _COUNTS, given, rows, columns, blocks, zs, ps, lanes, flag, ahead,
            *gate), codegen

    def plain(typingctx, acc, a, w, counts, strides, rows, columns, blocks, zs, ps, lanes, fresh,
              fetch):
        return typed(acc, a, w, counts, strides, rows, columns, blocks, zs, ps, lanes, fresh, fetch)

    def with_gate(typingctx, acc, a, w, counts, strides, rows, columns, blocks, zs, ps, lanes,
                  fresh, fetch, gate):
        return typed(acc, a, w, counts, strides, rows, columns, blocks, zs, ps, lanes, fresh, fetch,
                     gate)

    op = with_gate if gated else plain
    op.__name__, op.__doc__ = name, doc
    return intrinsic(prefer_literal=True)(op)


tile = _tile_intrinsic("tile", F32, _fma, """One tile into `acc` [blocks][rows][columns][lanes].

a: f32 pointer to the tile's first input. w: f32 pointer to its weights, a stream of `blocks`
vectors a step. counts = (n0, n1, n2, n3, last): the loops' extents; `last` replaces n3 in the last
turn of the outer loop. strides = (s0, s1, s2, rs[, ws]) in elements: of the three outer loops,
between rows, and between the vectors of two steps (without ws the stream is contiguous). fresh:
whether sums begin at 0, not at what `acc` holds; a sum in several calls is the sum of one, bit for
bit. Literals: rows, columns, blocks, zs (between steps of the innermost loop), ps (between
columns), lanes. fetch = ((every, pace, read, written), ...), the last two tuples of addresses: step
i begins to bring the cache lines at each address + (i >> every) * pace (bytes) into the
second-level cache, those to be written as this core's own. Nothing need lie there. A line a step,
since loads wait behind a burst of them.
""")
gated_tile = _tile_intrinsic("gated_tile", F32, _fma, """As `tile`, and the weights of step i are
multiplied by element i of `gate`, an f32 pointer.
""", gated=True)
dot_tile = _tile_intrinsic("dot_tile", I32, dot_of, """As `tile`, on i32 pointers.

An element of `a` is four unsigned bytes, one of `w` four signed bytes; a step adds four products to
each i32 sum.
""")
signed_dot_tile = _tile_intrinsic("signed_dot_tile", I32, signed_dot_of, """As `dot_tile`, and 128
is taken from each byte of `a`.
""")


@intrinsic
def words(typingctx, p):
    """The same memory as i32: bytes by fours, as `dot_tile` reads them."""
    return Pointer("i32", p.scope)(p), lambda context, b, sig, values: values[0]


@dataclass(frozen=True)
class _Inputs:
    """Where a tile's scalars lie: that of step z, row r, column c is zs * z + rs * r + ps * c."""

    kind: Pointer
    pointer: ir.Value
    zs: int
    ps: int
    rs: ir.Value

    def at(self, b: ir.IRBuilder, base: ir.Value, row: int, column: int) -> ir.Value:
        where = b.add(base, constant(I64, column * self.ps))
        return b.add(where, b.mul(self.rs, constant(I64, row))) if row else where


class _Tile:
    def __init__(
            self, b: ir.IRBuilder, element: ir.Type, product: Product, kinds: tuple[Pointer, ...],
            pointers: list[ir.Value], counts: list[ir.Value], strides: list[ir.Value], rows: int,
            columns: int, blocks: int, zs: int, ps: int, lanes: int
    ) -> None:
        self.b, self.kinds, self.pointers, self.counts, self.strides = (
            b, kinds, pointers, counts, strides)
        self.blocks, self.columns, self.lanes = blocks, columns, lanes
        self.pixels = [divmod(p, columns) for p in range(rows * columns)]       # (row, column)
        self.inputs = _Inputs(kinds[1], pointers[1], zs, ps, strides[3])
        self.vector, self.product = ir.VectorType(element, lanes), product

    def emit(self, fresh: ir.Value | None, fetch: list[_Group],
             gate: list[tuple[Pointer, ir.Value]]) -> None:
        """fresh: whether sums begin at 0, not at what `acc` holds; None if they always do. fetch:
        groups of lines. gate: none, or one."""
        b, zero = self.b, ir.Constant(self.vector, None)
        count = len(self.pixels) * self.blocks
        sums = [cgutils.alloca_once(b, self.vector) for _ in range(count)]  # registers, after SROA
        for s in sums:
            b.store(zero, s)
        if fresh is not None:
            with b.if_then(b.not_(fresh)):
                for i, s in enumerate(sums):
                    at = constant(I64, i * self.lanes)
                    b.store(load_at(b, self.kinds[0], self.pointers[0], at, self.lanes), s)
        stream = cgutils.alloca_once_value(b, constant(I64, 0))
        taken = cgutils.alloca_once_value(b, constant(I64, 0))           # steps
        n0, n1, n2, n3, last = self.counts
        s0, s1, s2 = self.strides[:3]

        def steps(inputs: _Inputs, base: ir.Value, count: ir.Value) -> None:
            with cgutils.for_range(b, count) as z:
                at = b.load(taken)
                factors = [splat(b, load_at(b, *g, at), self.lanes) for g in gate]
                self.step(inputs, b.add(base, b.mul(z.index, constant(I64, inputs.zs))), stream,
                          sums, factors)
                for every, pace, *addresses in fetch:
                    moved = b.mul(b.lshr(at, every), pace)
                    for written, some in enumerate(addresses):
                        for address in some:
                            prefetch(b, b.add(address, moved), written)
                b.store(b.add(at, constant(I64, 1)), taken)

        with cgutils.for_range(b, n0) as x:
            inner = b.select(b.icmp_signed("==", x.index, b.sub(n0, constant(I64, 1))), last, n3)
            with cgutils.for_range(b, n1) as y, cgutils.for_range(b, n2) as k:
                base = b.add(b.mul(x.index, s0), b.add(b.mul(y.index, s1), b.mul(k.index, s2)))
                if self.inputs.zs == 1 and self.inputs.kind.dtype in ("f16", "bf16"):
                    whole = b.and_(inner, constant(I64, -self.lanes))
                    most = some = constant(I64, CONVERTED)
                    with cgutils.for_range_slice(b, constant(I64, 0), whole, most, I64) as (z, _):
                        if self.lanes < CONVERTED:
                            left = b.sub(whole, z)
                            some = b.select(b.icmp_signed("<", left, most), left, most)
                        steps(self.converted(b.add(base, z), some), constant(I64, 0), some)
                    base, inner = b.add(base, whole), b.sub(inner, whole)
                steps(self.inputs, base, inner)
        for i, s in enumerate(sums):
            store_at(b, self.kinds[0], self.pointers[0], constant(I64, i * self.lanes), b.load(s))

    def converted(self, base: ir.Value, count: ir.Value) -> _Inputs:
        """The inputs of `count` steps that lie side by side, whole vectors of them and CONVERTED at
        most, as f32 in L1. Halves that are converted one by one take two instructions more each, of
        which the first may wait for the one before: x86 puts a half into a register that keeps what
        else was in it."""
        b, x = self.b, self.inputs
        memory = room(b, ir.ArrayType(F32, len(self.pixels) * CONVERTED))
        y = _Inputs(Pointer("f32", SCRATCH_SCOPE), memory, 1, CONVERTED,
                    constant(I64, self.columns * CONVERTED))
        with cgutils.for_range_slice(b, constant(I64, 0), count, constant(I64, self.lanes), I64
                                     ) as (z, _):
            for p in self.pixels:
                value = load_at(b, x.kind, x.pointer, x.at(b, b.add(base, z), *p), self.lanes)
                store_at(b, y.kind, y.pointer, y.at(b, z, *p), value)
        return y

    def step(self, inputs: _Inputs, base: ir.Value, stream: ir.Value, sums: list[ir.Value],
             factors: list[ir.Value]) -> None:
        """One step of the sum: `blocks` weight vectors (times factors), rows x columns broadcasts,
        all their products."""
        b = self.b
        at = b.load(stream)
        weights = [
            load_at(
                b, self.kinds[2], self.pointers[2], b.add(at, constant(I64, j * self.lanes)),
                self.lanes)
            for j in range(self.blocks)
        ]
        for factor in factors:
            weights = [b.fmul(factor, weight) for weight in weights]
        ws = dict(zip(STRIDES, self.strides)).get("ws", constant(I64, self.blocks * self.lanes))
        b.store(b.add(at, ws), stream)
        for p, pixel in enumerate(self.pixels):
            where = inputs.at(b, base, *pixel)
            value = splat(b, load_at(b, inputs.kind, inputs.pointer, where), self.lanes)
            for j in range(self.blocks):
                slot = sums[j * len(self.pixels) + p]
                b.store(self.product(b, value, weights[j], b.load(slot)), slot)


_Group = tuple[ir.Value, ir.Value, list[ir.Value], list[ir.Value]]


def _group(b: ir.IRBuilder, value: ir.Value, kind: Any) -> _Group:
    """A group of `fetch`: every, pace, addresses to be read, addresses to be written."""
    addresses = [[b.extract_value(value, (k, i)) for i in range(kind[k].count)] for k in (2, 3)]
    return (b.extract_value(value, 0), b.extract_value(value, 1), *addresses)


def prefetch(b: ir.IRBuilder, address: ir.Value, written: int = 0) -> None:
    """Begins to fetch a cache line, to be this core's own if `written`: a store would have to ask
    the core that has it a second time. No access: nothing may be mapped there."""
    where = b.inttoptr(address, POINTER)
    kinds = [where.type, I32, I32, I32]                  # to write, locality 2 of 3, data
    f = declare(b, "llvm.prefetch.p0", ir.VoidType(), kinds)
    b.call(f, [where, constant(I32, written), constant(I32, 2), constant(I32, 1)])


@intrinsic(prefer_literal=True)
def lane_tile(typingctx, acc, a, w, taps, row_stride, columns, kw, step, dilation, lanes):
    """Depthwise: acc[c][:] = sum over y < taps, x < kw of a[y*row_stride + c*step + x*dilation][:]
    * w[y][x][:].

    step and dilation (literals, in vectors) lie between columns and between taps of a row;
    row_stride is in elements.
    """
    shape = [t.literal_value for t in (columns, kw, step, dilation, lanes)]

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        _lane_tile(b, sig.args[:3], values[:3], values[3], values[4], *shape)
        return context.get_dummy_value()

    result = types.void(acc, a, w, types.int64, types.int64, columns, kw, step, dilation, lanes)
    return result, codegen


def _lane_tile(
        b: ir.IRBuilder, kinds: tuple[Pointer, ...], pointers: list[ir.Value], taps: ir.Value,
        row_stride: ir.Value, columns: int, kw: int, step: int, dilation: int, lanes: int
) -> None:
    vector = ir.VectorType(F32, lanes)
    e = Emit(b, vector)
    sums = [cgutils.alloca_once(b, vector) for _ in range(columns)]
    for s in sums:
        b.store(ir.Constant(vector, None), s)
    with cgutils.for_range(b, taps) as y:
        row = b.mul(y.index, row_stride)
        first = b.mul(y.index, constant(I64, kw * lanes))
        seen: dict[int, ir.Value] = {}  # a pixel is loaded once for all its taps
        for x in range(kw):
            weight = load_at(
                b, kinds[2], pointers[2], b.add(first, constant(I64, x * lanes)), lanes)
            for c, s in enumerate(sums):
                at = c * step + x * dilation
                if at not in seen:
                    where = b.add(row, constant(I64, at * lanes))
                    seen[at] = load_at(b, kinds[1], pointers[1], where, lanes)
                b.store(e.fma(seen[at], weight, b.load(s)), s)
    for c, s in enumerate(sums):
        store_at(b, kinds[0], pointers[0], constant(I64, c * lanes), b.load(s))

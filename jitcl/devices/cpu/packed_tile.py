"""Register tiles of products with weights of 4 or 8 bits that share a scale by blocks.

    acc[j][r][:] = sum over u < units of scales[j][u][:] * factors[r][u] * (
        start[r][u] + sum over k of a[r][u][k] * w[j][u][k][:]) [+ shifts[j][u][:] * totals[r][u]]

for j < blocks, r < rows, where a is a whole number of two or three signed bytes. Sums of a unit are
exact, but for three bytes, whose first ones are added to the others in f32; so are units.

`pair_tile` is for many rows: whole numbers of 16 bits are multiplied and added two by two (AVX2's
`vpmaddwd`: twice the products of an FMA), from no start; `pair_panel` makes its w, [u][k][j][:].
Sums of a unit are exact there, too: 32 * 2**15 * 2**8 at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jitcl.devices.cpu.emit import F32, I8, I16, I32, I64, Emit, constant, splat
from jitcl.devices.cpu.numba_parts import intrinsic
from jitcl.devices.cpu.tiles import dot_of, pairs_of, pairs_of_bytes, prefetch, signed_dot_of
from jitcl.devices.cpu.vector import load_at, place_of, store_at

__all__ = ["packed_tile", "pair_panel", "pair_tile"]

OPERANDS = ("acc", "a", "start", "factors", "totals", "w", "scales", "shifts")


class _Tile:
    """A tile's operands by name, its sums of units, [blocks][rows], and where a row's units begin.
    """

    def __init__(self, b: ir.IRBuilder, memory: dict[str, tuple[Any, ir.Value]], units: ir.Value,
                 pitch: ir.Value, rows: int, blocks: int, lanes: int, shifted: bool) -> None:
        self.b, self.memory, self.units, self.lanes, self.shifted = b, memory, units, lanes, shifted
        self.floats, self.ints = ir.VectorType(F32, lanes), ir.VectorType(I32, lanes)
        self.halves = ir.VectorType(I16, 2 * lanes)
        self.sums = self.slots(self.floats, rows, blocks)
        self.clear(self.sums)
        self.starts = [b.mul(pitch, constant(I64, r)) for r in range(rows)]

    def slots(self, of: ir.Type, rows: int, blocks: int) -> list[list[ir.Value]]:
        """Registers, after SROA."""
        return [[cgutils.alloca_once(self.b, of) for _ in range(rows)] for _ in range(blocks)]

    def clear(self, slots: list[list[ir.Value]]) -> None:
        for slot in (slot for each in slots for slot in each):
            self.b.store(ir.Constant(slot.type.pointee, None), slot)

    def at(self, name: str, index: ir.Value, more: int = 0, wide: int = 0) -> ir.Value:
        kind, pointer = self.memory[name]
        return load_at(self.b, kind, pointer, self.b.add(index, constant(I64, more)), wide)

    def times(self, x: ir.Value, n: int) -> ir.Value:
        return self.b.mul(x, constant(I64, n))

    def unit(self, j: int, u: ir.Value) -> ir.Value:
        """The number of a unit of a vector of columns."""
        return self.b.add(self.times(self.units, j), u)

    def add(self, j: int, u: ir.Value, numbers: list[ir.Value]) -> None:
        """To the sums of all rows: a unit's numbers, scaled."""
        b, lanes, e = self.b, self.lanes, Emit(self.b, self.floats)
        unit = self.times(self.unit(j, u), lanes)
        scale = self.at("scales", unit, 0, lanes)
        shift = self.at("shifts", unit, 0, lanes) if self.shifted else None
        for start, slot, real in zip(self.starts, self.sums[j], numbers):
            row = b.add(start, u)
            factor = splat(b, self.at("factors", row), lanes)
            total = e.fma(real, e.mul(scale, factor), b.load(slot))
            if shift is not None:
                total = e.fma(splat(b, self.at("totals", row), lanes), shift, total)
            b.store(total, slot)

    def store(self) -> None:
        kind, acc = self.memory["acc"]
        for k, slot in enumerate(s for block in self.sums for s in block):
            store_at(self.b, kind, acc, constant(I64, k * self.lanes), self.b.load(slot))


def _fours(b: ir.IRBuilder, codes: ir.Value, bits: int) -> list[ir.Value]:
    """Elements of four bytes, of 4 bits two."""
    if bits == 8:
        return [codes]
    half = constant(codes.type, 0x0F0F0F0F)
    return [b.and_(codes, half), b.and_(b.lshr(codes, constant(codes.type, 4)), half)]


def _generator(emit: Callable[..., None], names: Sequence[str], literals: Sequence[Any]) -> Any:
    """What Numba calls for code: `emit(builder, memory by name, other values, literals)`."""
    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        memory = {n: (kind, value) for n, kind, value in zip(names, sig.args, values)}
        others = values[len(names):len(values) - len(literals)]
        emit(b, memory, *others, *(t.literal_value for t in literals))
        return context.get_dummy_value()

    return codegen


@intrinsic(prefer_literal=True)
def packed_tile(typingctx, acc, a, start, factors, totals, w, scales, shifts, units, pitch, rows,
                blocks, quads, parts, bits, lanes, dot, shifted, once):
    """One tile into `acc` [blocks][rows][lanes], f32.

    a: i32 pointer to the first row, [units][parts][quads] in each, an element four signed bytes; a
    part counts 256 times as much as the next. start (i32; of three parts two, of the first and of
    the others), factors, totals (f32): [units] of a row; rows begin `pitch` units apart. w: i32
    pointer, [units][quads * bits / 8][lanes], an element four unsigned bytes, or eight halves of
    such: the low halves are one element's, the high ones the next's. scales, shifts:
    [units][lanes]. Vectors of columns follow each other in w, scales and shifts.
    Literals: rows, blocks, quads, parts, bits, lanes; dot: what the CPU multiplies, "bytes",
    unsigned by signed, or "signed" ones, so that 128 is taken from each byte of w, or "pairs"
    (AVX2), of which 4 bits are added up in 16, and for 8 bits parts have 16 bits, [quads * 2] of
    two terms, which are one part less, and w's four bytes are in the order 0, 2, 1, 3; shifted:
    whether there are shifts and totals (else they are not looked at); once: whether no other tile
    reads these weights, so that they come from memory: those of the next `blocks` vectors are
    asked for meanwhile (hardware, which looks ahead within a page, has begun anew by then).
    """
    literals = rows, blocks, quads, parts, bits, lanes, dot, shifted, once
    return types.void(acc, a, start, factors, totals, w, scales, shifts, types.int64, types.int64,
                      *literals), _generator(_packed, OPERANDS, literals)


def _packed(b: ir.IRBuilder, memory: dict[str, Any], units: ir.Value, pitch: ir.Value, rows: int,
          blocks: int, quads: int, parts: int, bits: int, lanes: int, dot: str,
          shifted: bool, once: bool) -> None:
    t = _Tile(b, memory, units, pitch, rows, blocks, lanes, shifted)
    floats, ints, halves, starts = t.floats, t.ints, t.halves, t.starts
    at, times = t.at, t.times
    wide, narrow = dot == "pairs" and bits == 8, dot == "pairs" and bits == 4
    vectors, each = quads * bits // 8, quads * 2 if wide else quads     # each: of a part of a row
    split = parts + wide == 3       # the first part is added to the others in f32

    def ask(name: str, index: ir.Value, more: int = 0) -> None:
        kind, pointer = memory[name]
        prefetch(b, place_of(b, kind, pointer, b.add(index, constant(I64, more))))

    def add(four: ir.Value, x: ir.Value, total: ir.Value) -> ir.Value:
        if narrow:
            return b.add(total, pairs_of_bytes(b, four, x))     # 8 times 15 * -128 * 2 at most
        if wide:
            return b.add(total, pairs_of(b, four, b.bitcast(x, halves)))
        return (signed_dot_of if dot == "signed" else dot_of)(b, four, x, total)

    with cgutils.for_range(b, units) as loop:
        for j in range(blocks):
            unit, later = t.unit(j, loop.index), t.unit(j + blocks, loop.index)
            if once:
                ask("scales", times(later, lanes))
            if once and shifted:
                ask("shifts", times(later, lanes))
            begun = [0, parts - 1] if split else [parts - 1]    # parts that start at something
            first = [[ir.Constant(ints, None)] * rows for _ in range(parts)]
            for k, p in enumerate(begun):
                first[p] = [splat(b, at("start", times(b.add(s, loop.index), len(begun)), k), lanes)
                            for s in starts]
            whole = [[ir.Constant(halves, None)] * rows for _ in range(parts)] if narrow else first
            for v in range(vectors):
                codes = at("w", times(unit, vectors * lanes), v * lanes, lanes)
                if once:
                    ask("w", times(later, vectors * lanes), v * lanes)
                fours = _fours(b, codes, bits)
                if wide:
                    two = b.bitcast(codes, halves)
                    fours = [b.and_(two, constant(halves, 255)), b.lshr(two, constant(halves, 8))]
                for q, four in enumerate(fours, v * len(fours)):
                    for r in range(rows):
                        row = times(b.add(starts[r], loop.index), parts * each)
                        for p in range(parts):
                            x = splat(b, at("a", row, p * each + q), lanes)
                            whole[p][r] = add(four, x, whole[p][r])
            if narrow:
                ones = constant(halves, 1)
                whole = [[b.add(x, pairs_of(b, y, ones)) for x, y in zip(*both)]
                         for both in zip(first, whole)]
            low = whole[-1]
            if not wide:
                low = [b.add(b.shl(x, constant(ints, 8)), y) for x, y in zip(whole[-2], low)]
            numbers = [b.sitofp(x, floats) for x in low]
            if split:
                numbers = [Emit(b, floats).fma(b.sitofp(x, floats), 65536, y)
                           for x, y in zip(whole[0], numbers)]
            t.add(j, loop.index, numbers)
    t.store()


@intrinsic(prefer_literal=True)
def pair_panel(typingctx, to, w, units, blocks, vectors, bits, lanes, zero):
    """Packed weights of `blocks` vectors of columns as `pair_tile` reads them, less `zero`.

    to: i32 pointer, [units][pairs][blocks][lanes], an element two terms of 16 bits. w: i32 pointer,
    [blocks][units][vectors][lanes]: see `packed_tile`, `dot` "pairs". All but `to`, `w`, `units`
    are literals.
    """
    literals = blocks, vectors, bits, lanes, zero
    return types.void(to, w, types.int64, *literals), _generator(_panel, ("to", "w"), literals)


def _panel(b: ir.IRBuilder, memory: dict[str, Any], units: ir.Value, blocks: int, vectors: int,
           bits: int, lanes: int, zero: int) -> None:
    (to_kind, to), (kind, w) = memory["to"], memory["w"]
    ints, halves = ir.VectorType(I32, lanes), ir.VectorType(I16, 2 * lanes)
    bytes_ = ir.VectorType(I8, 4 * lanes)
    orders = ((0, 1), (2, 3)) if bits == 4 else ((0, 2), (1, 3))    # of an element's bytes
    pairs, less = vectors * 16 // bits, constant(halves, zero)
    with cgutils.for_range(b, units) as loop:
        place = b.mul(loop.index, constant(I64, pairs * blocks * lanes))
        for j in range(blocks):
            unit = b.add(b.mul(units, constant(I64, j)), loop.index)
            stream, made = b.mul(unit, constant(I64, vectors * lanes)), 0
            for v in range(vectors):
                at = b.add(stream, constant(I64, v * lanes))
                for four in _fours(b, load_at(b, kind, w, at, lanes), bits):
                    for order in orders:
                        picks = [p for k in range(lanes) for x in order
                                 for p in (4 * k + x, 4 * lanes)]
                        wide = b.shuffle_vector(
                            b.bitcast(four, bytes_), ir.Constant(bytes_, None),
                            ir.Constant(ir.VectorType(I32, len(picks)), picks))
                        two = b.bitcast(b.sub(b.bitcast(wide, halves), less), ints)
                        more = constant(I64, (made * blocks + j) * lanes)
                        store_at(b, to_kind, to, b.add(place, more), two)
                        made += 1


@intrinsic(prefer_literal=True)
def pair_tile(typingctx, acc, a, factors, totals, w, scales, shifts, units, pairs, rows, blocks,
              lanes, shifted):
    """One tile into `acc` [blocks][rows][lanes], f32.

    a: i32 pointer to the first row, [units][pairs] in each, an element two terms of 16 bits.
    factors, totals (f32): [units] of a row. w: what `pair_panel` makes. scales, shifts:
    [blocks][units][lanes]. Literals: all behind `pairs`, which is none, lest LLVM unroll the loop
    and begin more products than there are registers; shifted: whether there are shifts and totals
    (else they are not looked at).
    """
    literals = rows, blocks, lanes, shifted
    names = (*OPERANDS[:2], *OPERANDS[3:])
    return types.void(acc, a, factors, totals, w, scales, shifts, types.int64, types.int64,
                      *literals), _generator(_pairs, names, literals)


def _pairs(b: ir.IRBuilder, memory: dict[str, Any], units: ir.Value, pairs: ir.Value, rows: int,
          blocks: int, lanes: int, shifted: bool) -> None:
    t = _Tile(b, memory, units, units, rows, blocks, lanes, shifted)
    whole = t.slots(t.ints, rows, blocks)
    with cgutils.for_range(b, units) as loop:
        t.clear(whole)
        with cgutils.for_range(b, pairs) as each:
            stream = t.times(b.add(b.mul(loop.index, pairs), each.index), blocks * lanes)
            two = [b.bitcast(t.at("w", stream, j * lanes, lanes), t.halves) for j in range(blocks)]
            for r in range(rows):
                row = b.add(t.starts[r], loop.index)
                x = t.at("a", b.add(b.mul(row, pairs), each.index))
                x = b.bitcast(splat(b, x, lanes), t.halves)
                for j in range(blocks):
                    slot = whole[j][r]
                    b.store(b.add(b.load(slot), pairs_of(b, x, two[j])), slot)
        for j in range(blocks):
            t.add(j, loop.index, [b.sitofp(b.load(slot), t.floats) for slot in whole[j]])
    t.store()

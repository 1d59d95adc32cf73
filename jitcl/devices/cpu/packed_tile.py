"""The register tile of products with weights of 4 or 8 bits that share a scale by blocks.

    acc[j][r][:] = sum over u < units of scales[j][u][:] * factors[r][u] * (
        start[r][u] + sum over k of a[r][u][k] * w[j][u][k][:]) [+ shifts[j][u][:] * totals[r][u]]

for j < blocks, r < rows, where a is a whole number of two or three signed bytes. Sums of a unit are
exact, but for three bytes, whose first ones are added to the others in f32; so are units.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jitcl.devices.cpu.emit import F32, I16, I32, I64, Emit, constant, splat
from jitcl.devices.cpu.numba_parts import intrinsic
from jitcl.devices.cpu.tiles import dot_of, pairs_of, pairs_of_bytes, prefetch, signed_dot_of
from jitcl.devices.cpu.vector import load_at, place_of, store_at

__all__ = ["packed_tile"]


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
    names = ("acc", "a", "start", "factors", "totals", "w", "scales", "shifts")

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        memory = {n: (kind, value) for n, kind, value in zip(names, sig.args, values)}
        _emit(b, memory, values[8], values[9], *(t.literal_value for t in literals))
        return context.get_dummy_value()

    return types.void(acc, a, start, factors, totals, w, scales, shifts, types.int64, types.int64,
                      *literals), codegen


def _emit(b: ir.IRBuilder, memory: dict[str, Any], units: ir.Value, pitch: ir.Value, rows: int,
          blocks: int, quads: int, parts: int, bits: int, lanes: int, dot: str,
          shifted: bool, once: bool) -> None:
    floats, ints = ir.VectorType(F32, lanes), ir.VectorType(I32, lanes)
    halves, e = ir.VectorType(I16, 2 * lanes), Emit(b, floats)
    wide, narrow = dot == "pairs" and bits == 8, dot == "pairs" and bits == 4
    vectors, each = quads * bits // 8, quads * 2 if wide else quads     # each: of a part of a row
    split = parts + wide == 3       # the first part is added to the others in f32

    def at(name: str, index: ir.Value, more: int = 0, wide: int = 0) -> ir.Value:
        kind, pointer = memory[name]
        return load_at(b, kind, pointer, b.add(index, constant(I64, more)), wide)

    def ask(name: str, index: ir.Value, more: int = 0) -> None:
        kind, pointer = memory[name]
        prefetch(b, place_of(b, kind, pointer, b.add(index, constant(I64, more))))

    def times(x: ir.Value, n: int) -> ir.Value:
        return b.mul(x, constant(I64, n))

    def add(four: ir.Value, x: ir.Value, total: ir.Value) -> ir.Value:
        if narrow:
            return b.add(total, pairs_of_bytes(b, four, x))     # 8 times 15 * -128 * 2 at most
        if wide:
            return b.add(total, pairs_of(b, four, b.bitcast(x, halves)))
        return (signed_dot_of if dot == "signed" else dot_of)(b, four, x, total)

    sums = [[cgutils.alloca_once_value(b, ir.Constant(floats, None)) for _ in range(rows)]
            for _ in range(blocks)]
    starts = [b.mul(pitch, constant(I64, r)) for r in range(rows)]      # of rows
    with cgutils.for_range(b, units) as loop:
        for j in range(blocks):
            unit = b.add(b.mul(units, constant(I64, j)), loop.index)
            later = b.add(b.mul(units, constant(I64, j + blocks)), loop.index)
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
                fours = [codes]
                if bits == 4:
                    half = constant(ints, 0x0F0F0F0F)
                    fours = [b.and_(codes, half), b.and_(b.lshr(codes, constant(ints, 4)), half)]
                elif wide:
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
            scale = at("scales", times(unit, lanes), 0, lanes)
            shift = at("shifts", times(unit, lanes), 0, lanes) if shifted else None
            for r in range(rows):
                low = whole[-1][r]
                if not wide:
                    low = b.add(b.shl(whole[-2][r], constant(ints, 8)), low)
                number = b.sitofp(low, floats)
                if split:
                    number = e.fma(b.sitofp(whole[0][r], floats), 65536, number)
                factor = splat(b, at("factors", b.add(starts[r], loop.index)), lanes)
                slot = sums[j][r]
                total = e.fma(number, e.mul(scale, factor), b.load(slot))
                if shift is not None:
                    more = at("totals", b.add(starts[r], loop.index))
                    total = e.fma(splat(b, more, lanes), shift, total)
                b.store(total, slot)
    kind, acc = memory["acc"]
    for k, slot in enumerate(s for block in sums for s in block):
        store_at(b, kind, acc, constant(I64, k * lanes), b.load(slot))

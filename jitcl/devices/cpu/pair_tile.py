"""The register tile of many rows with weights of 4 or 8 bits, as whole numbers of 16 bits that are
multiplied and added two by two (AVX2's `vpmaddwd`: twice the products of an FMA).

    acc[j][r][:] = sum over u < units of scales[j][u][:] * factors[r][u] * (
        sum over k of a[r][u][k] * w[u][k][j][:]) [+ shifts[j][u][:] * totals[r][u]]

for j < blocks, r < rows. Sums of a unit are exact: 32 * 2**15 * 2**8 at most.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jitcl.devices.cpu.emit import F32, I8, I16, I32, I64, Emit, constant, splat
from jitcl.devices.cpu.numba_parts import intrinsic
from jitcl.devices.cpu.tiles import pairs_of
from jitcl.devices.cpu.vector import load_at, store_at

__all__ = ["pair_panel", "pair_tile"]


@intrinsic(prefer_literal=True)
def pair_panel(typingctx, to, w, units, blocks, vectors, bits, lanes, zero):
    """Packed weights of `blocks` vectors of columns as `pair_tile` reads them, less `zero`.

    to: i32 pointer, [units][pairs][blocks][lanes], an element two terms of 16 bits. w: i32 pointer,
    [blocks][units][vectors][lanes]: see `packed_tile`, `dot` "pairs". All but `to`, `w`, `units`
    are literals.
    """
    literals = blocks, vectors, bits, lanes, zero

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        _panel(b, sig.args[:2], values[:2], values[2], *(t.literal_value for t in literals))
        return context.get_dummy_value()

    return types.void(to, w, types.int64, *literals), codegen


def _panel(b: ir.IRBuilder, kinds: Any, pointers: Any, units: ir.Value, blocks: int, vectors: int,
           bits: int, lanes: int, zero: int) -> None:
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
                codes = load_at(b, kinds[1], pointers[1], at, lanes)
                fours = [codes]
                if bits == 4:
                    half = constant(ints, 0x0F0F0F0F)
                    fours = [b.and_(codes, half), b.and_(b.lshr(codes, constant(ints, 4)), half)]
                for four in fours:
                    for order in orders:
                        picks = [p for k in range(lanes) for x in order
                                 for p in (4 * k + x, 4 * lanes)]
                        wide = b.shuffle_vector(
                            b.bitcast(four, bytes_), ir.Constant(bytes_, None),
                            ir.Constant(ir.VectorType(I32, len(picks)), picks))
                        two = b.bitcast(b.sub(b.bitcast(wide, halves), less), ints)
                        to = b.add(place, constant(I64, (made * blocks + j) * lanes))
                        store_at(b, kinds[0], pointers[0], to, two)
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
    names = ("acc", "a", "factors", "totals", "w", "scales", "shifts")

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        memory = {n: (kind, value) for n, kind, value in zip(names, sig.args, values)}
        _tile(b, memory, values[7], values[8], *(t.literal_value for t in literals))
        return context.get_dummy_value()

    return types.void(acc, a, factors, totals, w, scales, shifts, types.int64, types.int64,
                      *literals), codegen


def _tile(b: ir.IRBuilder, memory: dict[str, Any], units: ir.Value, pairs: ir.Value, rows: int,
          blocks: int, lanes: int, shifted: bool) -> None:
    floats, ints = ir.VectorType(F32, lanes), ir.VectorType(I32, lanes)
    halves, e = ir.VectorType(I16, 2 * lanes), Emit(b, floats)

    def at(name: str, index: ir.Value, more: int = 0, wide: int = 0) -> ir.Value:
        kind, pointer = memory[name]
        return load_at(b, kind, pointer, b.add(index, constant(I64, more)), wide)

    def times(x: ir.Value, n: int) -> ir.Value:
        return b.mul(x, constant(I64, n))

    def slots(of: ir.Type) -> list[list[ir.Value]]:     # registers, after SROA
        return [[cgutils.alloca_once(b, of) for _ in range(rows)] for _ in range(blocks)]

    def clear(some: list[list[ir.Value]]) -> None:
        for slot in (slot for each in some for slot in each):
            b.store(ir.Constant(slot.type.pointee, None), slot)

    sums, whole = slots(floats), slots(ints)
    clear(sums)
    with cgutils.for_range(b, units) as loop:
        of_rows = [b.add(times(units, r), loop.index) for r in range(rows)]
        clear(whole)
        with cgutils.for_range(b, pairs) as each:
            stream = times(b.add(b.mul(loop.index, pairs), each.index), blocks * lanes)
            two = [b.bitcast(at("w", stream, j * lanes, lanes), halves) for j in range(blocks)]
            for r in range(rows):
                x = at("a", b.add(b.mul(of_rows[r], pairs), each.index))
                x = b.bitcast(splat(b, x, lanes), halves)
                for j in range(blocks):
                    slot = whole[j][r]
                    b.store(b.add(b.load(slot), pairs_of(b, x, two[j])), slot)
        for j in range(blocks):
            unit = times(b.add(times(units, j), loop.index), lanes)
            scale = at("scales", unit, 0, lanes)
            shift = at("shifts", unit, 0, lanes) if shifted else None
            for r in range(rows):
                factor = splat(b, at("factors", of_rows[r]), lanes)
                slot = sums[j][r]
                number = b.sitofp(b.load(whole[j][r]), floats)
                total = e.fma(number, e.mul(scale, factor), b.load(slot))
                if shift is not None:
                    total = e.fma(splat(b, at("totals", of_rows[r]), lanes), shift, total)
                b.store(total, slot)
    kind, acc = memory["acc"]
    for k, slot in enumerate(s for block in sums for s in block):
        store_at(b, kind, acc, constant(I64, k * lanes), b.load(slot))

"""Matrix products with weights of 4 or 8 bits that stay packed: dot products of whole numbers.

Rows of the first operand become whole numbers, a factor for each block that shares a scale, as
llama.cpp has them (ggml's `vec_dot_q4_0_q8_0`). It has 8 bits; here f32 gets 24, which is what f32
tells apart beside a block's largest element, and f16 gets 16. Their bytes are multiplied as bytes,
or, on CPUs that add products of 16 bits by twos, 16 bits of them at once, for weights of 8 bits and
for many rows of f16.
"""

from __future__ import annotations

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.sizes import same
from jitcl.ir.types import ROW
from jitcl.passes.regions import VIEWS
from jitcl.target import Target
from jitcl.templates.base import (
    ENTRY,
    Argument,
    CpuHooks,
    Emitted,
    Lines,
    Match,
    Scratch,
    Template,
)
from jitcl.templates.cpu.operands import operands_of
from jitcl.templates.gemm_cpu import template as gemm_cpu
from jitcl.templates.matmul import Shape
from jitcl.templates.packed import Weights

ROWS = ("a", "factors", "start", "totals")      # what rows.py.j2 makes
# All but the last byte is 127 at most: a quotient that is rounded up stays below 128.
BYTES = {"f32": 3, "f16": 2}    # of an element's whole number, all of them signed
SUMS = {3: 6, 2: 8}         # vectors that a tile adds up; each takes a register, and one a part
FEW_SUMS = 4                # of 16 registers
PANEL_ROWS = 24             # for so many, weights become numbers (f32) or 16 bits (f16) first
MOST_NUMBERS = 1 << 26      # of a matrix; more would be much memory beside the weights
PAIR_ROWS, PAIR_VECTORS = 6, 2     # of a tile of pairs: twelve sums of 16 registers
TEAMS = 16                  # a core; each has memory for weights of 16 bits
ROWS_SHARE = 0.4            # of a core's cache, for rows that are worked on while weights go by


class GemmPackedCpu(Template[Match, CpuHooks]):
    """matmul of rows with weights [n, k] in blocks along k, which the group itself decodes."""

    name = "gemm_packed_cpu"

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        node, root = group.anchor, group.root.type
        if node is None or node.op != "matmul" or not target.byte_dot or same(node.type.size, 0):
            return ()
        a, b = node.inputs
        if not group.decodes(b) or root.dims != node.type.dims or root.layout != ROW:
            return ()
        if a.type.dtype not in BYTES:
            return ()
        w = Weights.of(b)
        if w is None or w.block % w.unit or w.unit % max(8, target.vector_width):
            return ()
        return () if b.type.dims[1] < target.vector_width // 2 else (Match(),)

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        node, target, root = hooks.anchor, hooks.target, hooks.group.root.type
        s, w = Shape.of(node), Weights.of(node.inputs[1])
        assert w is not None
        count = BYTES[_stored(node.inputs[0], hooks)]
        many = target.byte_dot == "pairs" and s.m >= PANEL_ROWS
        if many and count == 3 and s.k * s.n <= MOST_NUMBERS:
            return _PanelWriter(s, hooks, w).emit()
        many = many and count == 2
        width, units, nbs = target.vector_width, s.k // w.unit, -(-s.n // target.vector_width)
        pairs = many or w.pairs(target)
        parts = count - pairs
        if many:
            rows, blocks = PAIR_ROWS, min(PAIR_VECTORS, nbs)
        else:
            most = SUMS[parts] if target.registers >= 32 else FEW_SUMS
            rows = -(-s.m // -(-s.m // most))
            blocks = max(1, min(4 // rows, -(-nbs // max(1, target.compute_units))))
        tiles, panels = -(-s.m // rows), -(-nbs // blocks)
        vector = hooks.row_epilogue(width)
        scalar = Lines() if vector else hooks.row_scalar_epilogue(width)
        operands = operands_of(vector or scalar, hooks)
        before, whole = self.rows(s, w, count, pairs, hooks)
        named: list[tuple[str, str, Argument]] = [
            *zip(ROWS, ("i32", "f32", "i32", "f32"), whole), *w.packed(target),
            *((hooks.names[n], n.type.dtype, n) for n in operands),
            ("y", root.dtype, hooks.group.root)]
        values = {"m_count": s.m, "n_count": s.n, "units": units, "nbs": nbs, "panels": panels,
                  "m_tiles": tiles}
        written: tuple[Node | Scratch, ...] = (hooks.group.root,)
        more: dict[str, object]
        if many:
            teams = TEAMS * max(1, target.compute_units)
            values["m_blocks"] = max(1, min(teams // panels, s.m // PANEL_ROWS))
            values["teams"] = min(teams, values["m_blocks"] * panels)
            values["pairs_of_unit"] = w.unit // 2
            made = Scratch("weights of teams", "i32", (values["teams"], s.k // 2, blocks * width))
            named.append(("pairs", "i32", made))
            written = (*written, made)
            more = {"UNIT": w.unit, "VECTORS": w.unit * w.bits // 32, "zero": w.zero}
        else:
            row = units * w.unit * parts * (1 + pairs)
            block = int(ROWS_SHARE * target.cache_bytes) // (rows * row)
            values["m_block"] = max(1, min(tiles, block))
            more = {"QUADS": w.unit // 4, "PARTS": parts, "EACH": w.unit // (2 if pairs else 4),
                    "SPLIT": count == 3, "once": s.m == rows, "dot": target.byte_dot}
        body = hooks.render(
            f"gemm_packed_cpu/{'pairs' if many else 'numba'}.py.j2", entry=ENTRY,
            params=tuple(values), ROWS=rows, NB=blocks, BITS=w.bits, W=width,
            shifted=w.shifts is not None, operands=[(name, dtype) for name, dtype, _ in named],
            vector_lines=vector or [], scalar_lines=scalar, **more)
        return [*before, Emitted(f"gemm_{w.bits}bit_{rows}x{blocks}", body,
                                 tuple(argument for *_, argument in named), written, values)]

    def rows(self, s: Shape, w: Weights, count: int, pairs: bool, hooks: CpuHooks
             ) -> tuple[list[Emitted], tuple[Scratch, ...]]:
        """Kernels that make whole numbers of a's rows, and where these are: ROWS."""
        a, before = hooks.anchor.inputs[0], list[Emitted]()
        source: Argument = a
        dtype = a.type.dtype
        if a not in hooks.names or a.type.layout != ROW:
            def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
                ix, rest = [], s.m
                for d in a.type.dims[:-1]:
                    rest //= d
                    ix.append(E.index(0) if d == 1 else (at[0] // rest) % d)
                return (*ix, at[1]), E.const(True, "bool")

            source, copied = hooks.arranged(a, f"rows {a.type}", "f32", (s.m, s.k), where)
            before, dtype = [copied], "f32"
        units = s.m * s.k // w.unit
        bits, parts = (16, count - 1) if pairs else (8, count)
        found = (Scratch("parts of rows", f"i{bits}", (units, parts, w.unit)),
                 Scratch("factors of rows", "f32", (units,)),
                 Scratch("starts", "i32", (units, count - 1)),
                 *([Scratch("totals", "f32", (units,))] if w.shifts is not None else []))
        zero = w.zero - (128 if hooks.target.byte_dot == "signed" else 0)
        body = hooks.render("gemm_packed_cpu/rows.py.j2", entry=ENTRY, dtype=dtype, UNIT=w.unit,
                            W=hooks.target.vector_width, TOP=127 * (256**count - 256) // 255,
                            PARTS=parts, BITS=bits, SPLIT=count == 3, zero=zero,
                            shifted=w.shifts is not None, operands=())
        return [*before, Emitted("whole_rows", body, (source, *found), found,
                                 {"units": units})], found


def _stored(a: Node, hooks: CpuHooks) -> str:
    """The type whose numbers a has: the stored one where a is another view of what lies there."""
    while a not in hooks.names and a.op in VIEWS:
        a = a.inputs[0]
    return a.type.dtype


class _PanelWriter(gemm_cpu.Writer):
    """Of many rows of f32 where two instructions add products by twos: a product of floats, whose
    panels are made of the packed weights that a product of few rows reads, so that they lie in
    memory once."""

    def __init__(self, s: Shape, hooks: CpuHooks, w: Weights) -> None:
        self.w = w
        super().__init__(s, hooks)

    def columns(self, blocks: int, before: list[Emitted], dtype: str = "f32") -> Argument:
        s, w, width, target = self.s, self.w, self.width, self.hooks.target
        nbs, named = -(-s.n // width), w.packed(target)
        panels = -(-nbs // blocks)
        made = Scratch("panels of weights", "f32", (panels, s.k, blocks * width))
        shifts = ([*range(0, 32, 8), *range(4, 36, 8)] if w.bits == 4 else
                  [0, 16, 8, 24] if w.pairs(target) else [0, 8, 16, 24])
        body = self.hooks.render(
            "gemm_packed_cpu/panels.py.j2", entry=ENTRY, NB=blocks, W=width, BITS=w.bits,
            VECTORS=w.unit * w.bits // 32, SHIFTS=shifts, zero=w.zero,
            shifted=w.shifts is not None, operands=(),
            buffers=[*((name, kind) for name, kind, _ in named), ("y", "f32")])
        before.append(Emitted(
            f"panels_{w.bits}bit", body, (*(each for *_, each in named), made), (made,),
            {"nbs": nbs, "units": s.k // w.unit, "panels": panels}))
        return made

"""Matrix products with weights of 4 or 8 bits that stay packed: dot products of whole numbers.

Rows of the first operand become whole numbers, a factor for each block that shares a scale, as
llama.cpp has them (ggml's `vec_dot_q4_0_q8_0`). It has 8 bits; here f32 gets 24, which is what f32
tells apart beside a block's largest element, and f16 gets 16. Their bytes are multiplied as bytes,
or, for weights of 8 bits on CPUs that add products of 16 bits by twos, 16 bits of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from jitcl import dtypes
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.types import ROW
from jitcl.ops.builder import lookup
from jitcl.target import Target
from jitcl.templates.base import (
    ENTRY,
    Argument,
    CpuHooks,
    Emitted,
    Lines,
    Match,
    Packed,
    Scratch,
    Template,
)
from jitcl.templates.cpu.operands import operands_of
from jitcl.templates.gemm_cpu import template as gemm_cpu
from jitcl.templates.matmul import Shape

PARAMS = ("m_count", "n_count", "units", "nbs", "panels", "m_tiles", "m_block")
ROWS = ("a", "factors", "start", "totals")      # what rows.py.j2 makes
UNIT = 32                   # terms at most that share a factor, and are added as whole numbers
# All but the last byte is 127 at most: a quotient that is rounded up stays below 128.
BYTES = {"f32": 3, "f16": 2}    # of an element's whole number, all of them signed
SUMS = {3: 6, 2: 8}         # vectors that a tile adds up; each takes a register, and one a part
FEW_SUMS = 4                # of 16 registers
PANEL_ROWS = 24             # for so many, pairs take longer than weights that become numbers
MOST_NUMBERS = 1 << 26      # of a matrix; more would be much memory beside the weights
ROWS_SHARE = 0.4            # of a core's cache, for rows that are worked on while weights go by
OFFSETS = {"unpack_int4": 8, "unpack_uint4": 0, "i8": 128, "u8": 0}     # codes -> unsigned ones


@dataclass(frozen=True)
class Weights:
    """(codes - zero) * scales + shifts, where codes are [n, blocks, block] of 4 or 8 unsigned bits.
    """

    const: Node
    views: tuple[Node, ...]     # what makes codes of it
    scales: Node                # [n, blocks, 1]
    shifts: Node | None         # [n, blocks, 1]; None: zeros
    bits: int
    offset: int                 # what makes codes unsigned
    zero: int                   # of unsigned codes
    block: int

    @staticmethod
    def of(b: Node) -> Weights | None:
        """The weights that `b` [k, n] is decoded from; None for another form of decoding."""
        if b.op != "transpose" or b.attr("perm") != (1, 0):
            return None
        decoded = b.inputs[0]
        if decoded.op == "reshape":
            decoded = decoded.inputs[0]
        shifts = None
        if decoded.op == "add":
            decoded, shifts = decoded.inputs
        if decoded.op != "dequantize" or decoded.type.rank != 3:
            return None
        codes, scales, *zeros = decoded.inputs
        dims = codes.type.dims
        if dims != decoded.type.dims or any(
                v.op != "const" or v.type.dims != (*dims[:2], 1) or v.type.dtype not in BYTES
                for v in (scales, shifts) if v is not None):
            return None
        if any(z.op != "const" or z.type.size != 1 or z.type.dtype != codes.type.dtype
               for z in zeros):
            return None
        zero = int(zeros[0].data.reshape(())) if zeros else 0
        views: list[Node] = []
        node = codes
        while node.op in ("reshape", "unpack_int4", "unpack_uint4"):
            views.insert(0, node)
            node = node.inputs[0]
        packing = [v.op for v in views if v.op != "reshape"]
        offset = OFFSETS.get(packing[0] if packing else codes.type.dtype)
        if node.op != "const" or offset is None or len(packing) > 1:
            return None
        return Weights(node, tuple(views), scales, shifts, 4 if packing else 8, offset,
                       zero + offset, dims[2])

    @property
    def unit(self) -> int:
        return min(self.block, UNIT)

    def pairs(self, target: Target) -> bool:
        """Whether 16 bits of a row are multiplied with a byte that takes 16, two by two."""
        return target.paired_dot and self.bits == 8

    def codes(self, data: np.ndarray, width: int, pairs: bool) -> np.ndarray:
        """u8 [n / width][units][unit * bits / 32][width][4], zeros behind n.

        Of 4 bits the low halves of a vector are four terms, the high ones the four after them. Of
        pairs the first two of four terms are bytes 0 and 2.
        """
        for view in self.views:
            found = lookup(view.op).ref
            assert found is not None
            data = found(data, **view.kwargs)
        codes = (data.astype(np.int16) + self.offset).astype(np.uint8)
        n, quads = len(codes), self.unit // 4
        full = np.zeros((-(-n // width) * width, codes[0].size), np.uint8)
        full[:n] = codes.reshape(n, -1)
        split = full.reshape(-1, width, full.shape[1] // self.unit, quads, 4)
        turned = split.transpose(0, 2, 3, 1, 4)
        if self.bits == 4:
            turned = turned[:, :, ::2] | turned[:, :, 1::2] << 4
        elif pairs:
            turned = turned[..., [0, 2, 1, 3]]
        return np.ascontiguousarray(turned)

    def spread(self, data: np.ndarray, width: int, dtype: str) -> np.ndarray:
        """Scales or shifts as [n / width][units][width], zeros behind n."""
        n = len(data)
        each = np.repeat(data.reshape(n, -1), self.block // self.unit, axis=1)
        full = np.zeros((-(-n // width) * width, each.shape[1]), each.dtype)
        full[:n] = each
        turned = full.reshape(-1, width, each.shape[1]).transpose(0, 2, 1)
        return np.ascontiguousarray(turned.astype(dtypes.to_numpy(dtype)))

    def packed(self, target: Target) -> list[tuple[str, str, Packed]]:
        """Names and types of the buffers that every kernel of these weights reads."""
        width, pairs = target.vector_width, self.pairs(target)
        form = f"{width} {self.unit} {' '.join(f'{v.op} {v.type}' for v in self.views)}"
        named = [("w", "i32", Packed(self.const, f"codes {form}{' pairs' * pairs}",
                                     partial(self.codes, width=width, pairs=pairs)))]
        for name, each in (("scales", self.scales), ("shifts", self.shifts)):
            if each is not None:
                dtype = narrow(each.data)
                named.append((name, dtype, Packed(each, f"spread {form} {dtype}", partial(
                    self.spread, width=width, dtype=dtype))))
        return named


def narrow(data: np.ndarray) -> str:
    """f16 where no element is rounded by it, else f32."""
    with np.errstate(over="ignore"):
        return "f16" if np.array_equal(data, data.astype(np.float16)) else "f32"


class GemmPackedCpu(Template[Match, CpuHooks]):
    """matmul of rows with weights [n, k] in blocks along k, which the group itself decodes."""

    name = "gemm_packed_cpu"

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        node, root = group.anchor, group.root.type
        if node is None or node.op != "matmul" or not target.byte_dot or node.type.size == 0:
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
        if target.paired_dot and s.m >= PANEL_ROWS and s.k * s.n <= MOST_NUMBERS:
            return _PanelWriter(s, hooks, w).emit()
        width, units, nbs = target.vector_width, s.k // w.unit, -(-s.n // target.vector_width)
        pairs, count = w.pairs(target), BYTES[node.inputs[0].type.dtype]
        parts = count - pairs
        most = SUMS[parts] if target.registers >= 32 else FEW_SUMS
        rows = -(-s.m // -(-s.m // most))
        blocks = max(1, min(4 // rows, -(-nbs // max(1, target.compute_units))))
        vector = hooks.row_epilogue(width)
        scalar = Lines() if vector else hooks.row_scalar_epilogue(width)
        operands = operands_of(vector or scalar, hooks)
        before, whole = self.rows(s, w, count, hooks)
        named: list[tuple[str, str, Argument]] = [
            *zip(ROWS, ("i32", "f32", "i32", "f32"), whole), *w.packed(target),
            *((hooks.names[n], n.type.dtype, n) for n in operands),
            ("y", root.dtype, hooks.group.root)]
        body = hooks.render(
            "gemm_packed_cpu/numba.py.j2", entry=ENTRY, params=PARAMS, ROWS=rows, NB=blocks,
            QUADS=w.unit // 4, PARTS=parts, EACH=w.unit // (2 if pairs else 4), SPLIT=count == 3,
            BITS=w.bits, W=width, dot=("pairs" if target.paired_dot else "signed"
                                       if target.signed_dot else "bytes"),
            shifted=w.shifts is not None, once=s.m == rows,
            operands=[(hooks.names[n], n.type.dtype) for n in operands],
            buffers=[(name, dtype) for name, dtype, _ in named], vector_lines=vector or [],
            scalar_lines=scalar)
        tiles = -(-s.m // rows)
        row = units * w.unit * parts * (1 + pairs)
        block = max(1, min(tiles, int(ROWS_SHARE * target.cache_bytes) // (rows * row)))
        values = (s.m, s.n, units, nbs, -(-nbs // blocks), tiles, block)
        stem = f"gemm_{w.bits}bit_{rows}x{blocks}"
        return [*before, Emitted(stem, body, tuple(argument for *_, argument in named),
                                 (hooks.group.root,), dict(zip(PARAMS, values)))]

    def rows(self, s: Shape, w: Weights, count: int, hooks: CpuHooks
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
        units, pairs = s.m * s.k // w.unit, w.pairs(hooks.target)
        bits, parts = (16, count - 1) if pairs else (8, count)
        found = (Scratch("parts of rows", f"i{bits}", (units, parts, w.unit)),
                 Scratch("factors of rows", "f32", (units,)),
                 Scratch("starts", "i32", (units, count - 1)),
                 *([Scratch("totals", "f32", (units,))] if w.shifts is not None else []))
        zero = w.zero - (128 if hooks.target.signed_dot else 0)
        body = hooks.render("gemm_packed_cpu/rows.py.j2", entry=ENTRY, dtype=dtype, UNIT=w.unit,
                            W=hooks.target.vector_width, TOP=127 * (256**count - 256) // 255,
                            PARTS=parts, BITS=bits, SPLIT=count == 3, zero=zero,
                            shifted=w.shifts is not None)
        return [*before, Emitted("whole_rows", body, (source, *found), found,
                                 {"units": units})], found


class _PanelWriter(gemm_cpu.Writer):
    """Of many rows where two instructions add products by twos: a product of floats, whose panels
    are made of the packed weights that a product of few rows reads, so that they lie in memory
    once."""

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
            shifted=w.shifts is not None,
            buffers=[*((name, kind) for name, kind, _ in named), ("y", "f32")])
        before.append(Emitted(
            f"panels_{w.bits}bit", body, (*(each for *_, each in named), made), (made,),
            {"nbs": nbs, "units": s.k // w.unit, "panels": panels}))
        return made

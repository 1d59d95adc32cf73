"""Matrix products with weights of 4 or 8 bits that stay packed: dot products of whole numbers.

Rows of the first operand become whole numbers, a factor for each block that shares a scale, as
llama.cpp has them (ggml's `vec_dot_q4_0_q8_0`). It has 8 bits; here f32 gets 24, which is what f32
tells apart beside a block's largest element, and f16 gets 16. Their bytes are multiplied as bytes.
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
from jitcl.templates.matmul import Shape

PARAMS = ("m_count", "n_count", "units", "nbs", "panels", "m_tiles", "m_block")
ROWS = ("a", "factors", "start", "totals")      # what rows.py.j2 makes
UNIT = 32                   # terms at most that share a factor, and are added as whole numbers
# All but the last byte is 127 at most: a quotient that is rounded up stays below 128.
PARTS = {"f32": 3, "f16": 2}    # bytes of an element's whole number, all of them signed
SUMS = {3: 6, 2: 8}         # vectors that a tile adds up; each takes a register, and one a part
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
                v.op != "const" or v.type.dims != (*dims[:2], 1) or v.type.dtype not in PARTS
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

    def codes(self, data: np.ndarray, width: int) -> np.ndarray:
        """u8 [n / width][units][unit * bits / 32][width][4], zeros behind n.

        Of 4 bits the low halves of a vector are four terms, the high ones the four after them.
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
        return np.ascontiguousarray(turned)

    def spread(self, data: np.ndarray, width: int, dtype: str) -> np.ndarray:
        """Scales or shifts as [n / width][units][width], zeros behind n."""
        n = len(data)
        each = np.repeat(data.reshape(n, -1), self.block // self.unit, axis=1)
        full = np.zeros((-(-n // width) * width, each.shape[1]), each.dtype)
        full[:n] = each
        turned = full.reshape(-1, width, each.shape[1]).transpose(0, 2, 1)
        return np.ascontiguousarray(turned.astype(dtypes.to_numpy(dtype)))


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
        if a.type.dtype not in PARTS:
            return ()
        w = Weights.of(b)
        if w is None or w.block % w.unit or w.unit % max(8, target.vector_width):
            return ()
        return () if b.type.dims[1] < target.vector_width // 2 else (Match(),)

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        node, target, root = hooks.anchor, hooks.target, hooks.group.root.type
        s, w = Shape.of(node), Weights.of(node.inputs[1])
        assert w is not None
        width, units, nbs = target.vector_width, s.k // w.unit, -(-s.n // target.vector_width)
        parts = PARTS[node.inputs[0].type.dtype]
        rows = -(-s.m // -(-s.m // SUMS[parts]))
        blocks = max(1, min(4 // rows, -(-nbs // max(1, target.compute_units))))
        vector = hooks.row_epilogue(width)
        scalar = Lines() if vector else hooks.row_scalar_epilogue(width)
        operands = operands_of(vector or scalar, hooks)
        before, whole = self.rows(s, w, parts, hooks)
        form = f"{width} {w.unit} {' '.join(f'{v.op} {v.type}' for v in w.views)}"
        named: list[tuple[str, str, Argument]] = [
            *zip(ROWS, ("i32", "f32", "i32", "f32"), whole),
            ("w", "i32", Packed(w.const, f"codes {form}", lambda d: w.codes(d, width)))]
        for name, each in (("scales", w.scales), ("shifts", w.shifts)):
            if each is not None:
                dtype = narrow(each.data)
                named.append((name, dtype, Packed(
                    each, f"spread {form} {dtype}", partial(w.spread, width=width, dtype=dtype))))
        named += [(hooks.names[n], n.type.dtype, n) for n in operands]
        named.append(("y", root.dtype, hooks.group.root))
        body = hooks.render(
            "gemm_packed_cpu/numba.py.j2", entry=ENTRY, params=PARAMS, ROWS=rows, NB=blocks,
            QUADS=w.unit // 4, PARTS=parts, BITS=w.bits, W=width, signed=target.signed_dot,
            shifted=w.shifts is not None, once=s.m == rows,
            operands=[(hooks.names[n], n.type.dtype) for n in operands],
            buffers=[(name, dtype) for name, dtype, _ in named], vector_lines=vector or [],
            scalar_lines=scalar)
        tiles = -(-s.m // rows)
        row = units * w.unit * parts
        block = max(1, min(tiles, int(ROWS_SHARE * target.cache_bytes) // (rows * row)))
        values = (s.m, s.n, units, nbs, -(-nbs // blocks), tiles, block)
        stem = f"gemm_{w.bits}bit_{rows}x{blocks}"
        return [*before, Emitted(stem, body, tuple(argument for *_, argument in named),
                                 (hooks.group.root,), dict(zip(PARAMS, values)))]

    def rows(self, s: Shape, w: Weights, parts: int, hooks: CpuHooks
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
        found = (Scratch("bytes of rows", "i8", (units, parts, w.unit)),
                 Scratch("factors of rows", "f32", (units,)),
                 Scratch("starts", "i32", (units, max(1, parts - 1))),
                 *([Scratch("totals", "f32", (units,))] if w.shifts is not None else []))
        zero = w.zero - (128 if hooks.target.signed_dot else 0)
        body = hooks.render("gemm_packed_cpu/rows.py.j2", entry=ENTRY, dtype=dtype, UNIT=w.unit,
                            W=hooks.target.vector_width, TOP=127 * (256**parts - 256) // 255,
                            PARTS=parts, zero=zero, shifted=w.shifts is not None)
        return [*before, Emitted("whole_rows", body, (source, *found), found,
                                 {"units": units})], found

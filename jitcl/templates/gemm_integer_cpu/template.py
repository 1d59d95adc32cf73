"""Matrix products of unsigned bytes with constant signed ones, in i32: four products an addition.

Four bytes along k are one element of a and one of the packed b; beside that the kernel is
`gemm_cpu`'s. Zero points of a are taken out of the sums, as `conv_integer_cpu` does it.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.group import Group
from jitcl.ir.sizes import same
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.base import Argument, CpuHooks, Emitted, Match, Packed, Template
from jitcl.templates.cpu.arithmetic import fours, of_bytes
from jitcl.templates.gemm_cpu.template import Rows, Writer, pack_columns
from jitcl.templates.matmul import Shape


class GemmIntegerCpu(Template[Match, CpuHooks]):
    """matmul_integer of u8 with one constant matrix of symmetric i8."""

    name = "gemm_integer_cpu"

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        node, root = group.anchor, group.root.type
        if node is None or node.op != "matmul_integer" or not target.byte_dot:
            return ()
        a, b, a_zero, b_zero = node.inputs
        if (a.type.dtype, b.type.dtype, b.op) != ("u8", "i8", "const") or same(node.type.size, 0):
            return ()
        if any(z.op != "const" for z in (a_zero, b_zero)) or np.any(b_zero.data):
            return ()
        *batch, k, n = b.type.dims
        plain = root.dims == node.type.dims and root.layout == ROW
        if not plain or a_zero.type.size != 1 or math.prod(batch) != 1 or k == 0:
            return ()
        if n < target.vector_width // 2 or a.type.rank < 2:
            return ()
        return (Match(),)

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        node = hooks.anchor
        *_, k, n = node.inputs[1].type.dims
        return _BytesWriter(Shape(1, node.type.size // n, n, k, True), hooks).emit()


class _BytesWriter(Writer):
    kind = "gemm_integer"

    def __init__(self, s: Shape, hooks: CpuHooks) -> None:
        self.arithmetic = of_bytes(hooks.target)
        super().__init__(s, hooks)

    def in_place(self) -> Rows | None:
        rows = self.stored_rows()
        whole = rows is not None and not rows.chunked and self.s.k % 4 == 0
        return rows if rows and whole and not self.far(rows) else None

    def a_dtype(self, rows: Rows | None) -> str:
        return "i32"

    def rows(self, height: int) -> tuple[Argument, Emitted]:
        """a in tiles of `height` rows side by side, [1][m_tiles][K / 4][height][4]."""
        s = self.s
        shape = (1, -(-s.m // height), self.depth, height, 4)

        def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
            row = E.call("min", at[1] * height, E.index(s.m - height)) + at[3]
            k = at[2] * 4 + at[4]
            return (*self.operand_index(self.a, at[0], row), k), k < s.k

        return self.hooks.arranged(self.a, f"rows {height} {self.a.type}", "u8", shape, where)

    def columns(self, blocks: int, before: list[Emitted], dtype: str = "i32") -> Argument:
        pack = partial(pack_columns, width=self.width, blocks=blocks)
        return Packed(self.b, f"gemm bytes {self.width} {blocks}", lambda b: pack(fours(b, -2)))

    def zero_sums(self) -> tuple[Packed, ...]:
        assert self.group.anchor is not None
        zero = int(self.group.anchor.inputs[2].data.reshape(())) - self.arithmetic.less
        n = self.s.n
        if not zero:
            return ()

        def make(b: np.ndarray) -> np.ndarray:
            sums = np.zeros(-(-n // self.width) * self.width, np.int32)
            sums[:n] = zero * b.astype(np.int32).reshape(-1, n).sum(0)
            return sums

        return (Packed(self.b, f"sums of columns times {zero}", make),)

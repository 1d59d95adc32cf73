"""The elementwise part of a recurrent cell over vectors of hidden units, for a CPU template."""

from __future__ import annotations

from collections.abc import Sequence

from jitcl.codegen.flags import flagging_of
from jitcl.codegen.render_vector import VectorRenderer
from jitcl.codegen.share import share
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import Buffer, Kernel, Store, read_by
from jitcl.templates.base import Lines


class CellRenderer(VectorRenderer):
    """Stores side by side from vector variables `wide` and operands along the lane.

    `left` is the text of how many units are left where the last vector is a partial one: the lanes
    behind them are neither read nor written.
    """

    def __init__(self, buffers: tuple[Buffer, ...], stores: Sequence[Store], lane: Expr, width: int,
                 wide: tuple[str, ...], left: str) -> None:
        self.left = left
        cell = share(Kernel("cell", buffers, tuple(stores), flagging=flagging_of(buffers)),
                     addresses=False)
        super().__init__(cell, lane, width, wide)

    def lines(self) -> Lines:
        return Lines(self.block(self.kernel.body, 0), read_by(self.kernel))

    def along(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        if not self.left:
            return super().along(buffer, indices)
        base = self.base(flat(self.shapes[buffer], indices))
        return f"vload_part({buffer}, {base}, {self.left}, {self.width})"

    def store(self, s: Store, pad: str) -> list[str]:
        if not self.left:
            return super().store(s, pad)
        base = self.base(flat(self.shapes[s.buffer], s.indices))
        value = self.splat(s.value)
        if not self.kernel.flags(s.buffer):
            return [f"{pad}vstore_part({s.buffer}, {base}, {value}, {self.left})"]
        value = self.some_lanes(value, s.value.dtype, self.left)
        store = f"vstore_part({s.buffer}, {base}, {self.lanes}, {self.left})"
        return [pad + line for line in (f"{self.lanes} = {value}", store, f"keep({self.lanes})")]

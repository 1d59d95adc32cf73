"""What a CPU template reads fused prologues and writes fused epilogues through, and what is the
same in OpenCL (hooks_opencl.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from jitcl import dtypes
from jitcl.codegen.flags import FLAG, buffers_of, flag_names, flagging_of
from jitcl.codegen.loops import trusting_guards
from jitcl.codegen.lower import Loads, NodeLoader, physical_index
from jitcl.codegen.render import SizesWritten, render
from jitcl.codegen.render_cell import CellRenderer
from jitcl.codegen.render_numba import NumbaRenderer, flag_lines, render_kernel
from jitcl.codegen.render_vector import EpilogueRenderer, NotVectorisable
from jitcl.codegen.schedule_cpu import loops_for_cpu
from jitcl.codegen.schedule_sized import sized_for_cpu, sizes_of
from jitcl.codegen.share import share
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr, flat
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import Buffer, Kernel, Store, buffers_read, read_by
from jitcl.ir.sizes import is_size
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, Arrangement, Emitted, Lines, Scratch


class GroupHooks(ABC):
    """What hooks are in every language. Names the group's operands (`x0`, `x1`, ... in the order of
    `group.operands`) and builds expressions on them.
    """

    def __init__(self, group: Group, target: Target, prefix: str = "x", result: str = "y") -> None:
        self.group, self.target, self.result = group, target, result
        self.names = {node: f"{prefix}{i}" for i, node in enumerate(group.operands)}
        self.names |= flag_names(group)
        self.builder = KernelBuilder()
        self.loads = Loads(self.builder, group, self.names)

    @property
    def anchor(self) -> Node:
        """The group's anchor, which a template's group has."""
        assert self.group.anchor is not None
        return self.group.anchor

    def render(self, template: str, **values: object) -> str:
        """The text of a file of `jitcl/templates` with its variables filled in."""
        return render(template, **values)

    def epilogue(self, ix: tuple[Expr, ...], value: Expr) -> Expr:
        """The root's value at logical index `ix`, given the anchor's `value` there; in its compute
        type."""
        self.loads.preset(self.anchor, ix, value)
        return self.loads.value(self.group.root, ix)

    def place(self, node: Node, ix: Sequence[Expr], loads: Loads | None = None
              ) -> tuple[Node, Expr] | None:
        """(the operand, the place in its buffer) of the element of a node at `ix`; None where it is
        computed or rounded, or is 0 for some `ix`."""
        loads = loads or self.loads
        value = NodeLoader(loads, node)(*ix)
        seen = {value.dtype}
        while value.op == "cast":
            value = value.args[0]
            seen.add(value.dtype)
        size = dtypes.itemsize(value.dtype)
        narrow = any(dtypes.itemsize(d) <= size for d in seen - {value.dtype})
        if value.op != "load" or value.guarded or narrow:
            return None
        (source,) = (n for n, name in self.names.items() if name == value.value)
        return source, flat(loads.types(source).physical, value.indices)

    def arranged(
            self, node: Node, key: str, dtype: str, shape: tuple[int, ...], where: Arrangement,
            order: Sequence[int] = ()
    ) -> tuple[Scratch, Emitted]:
        """A kernel that copies an operand into an arrangement of `shape`: element `at` is the
        operand's at the logical index where(at)[0] if where(at)[1] holds, else 0; its loops go
        over the axes in this order. Gives the copy and the launch that writes it."""
        copy = Scratch(f"{key} for {self.result}", dtype, shape)  # parts of a chain have their own
        s = KernelBuilder()
        loads = Loads(s, self.group, self.names)
        opens = {i: s.open("i", shape[i], "parallel") for i in order or range(len(shape))}
        at = tuple(opens[i] for i in range(len(shape)))
        index, inside = where(at)
        value = trusting_guards(NodeLoader(loads, node)(*index, guard=inside))
        s.leave(0, Store("y", at, E.cast(value, dtype)))
        read = buffers_read(tuple(s.scopes[0].stmts))
        operands = tuple(n for n, name in self.names.items() if name in read)
        buffers = (
            *(Buffer(self.names[n], n.type.dtype, n.type.physical) for n in operands),
            Buffer("y", dtype, shape, "out"))
        kernel = Kernel("arranged", buffers, tuple(s.scopes[0].stmts))
        return copy, self.emitted(kernel, (*operands, copy), copy)

    @abstractmethod
    def emitted(self, kernel: Kernel, arguments: tuple[Argument, ...], copy: Scratch) -> Emitted:
        """The launch of a copying kernel."""


class CpuGroupHooks(GroupHooks):
    """A group's hooks for the CPU's templates (the protocol `CpuHooks`)."""

    def __init__(self, group: Group, target: Target, prefix: str = "x", result: str = "y") -> None:
        super().__init__(group, target, prefix, result)
        self.sizes = SizesWritten()

    def render(self, template: str, **values: Any) -> str:
        """As everywhere; sizes that the text names are parameters behind the template's own.
        `operands`, which no template leaves out: the names and types of those that the epilogue
        reads, or of all. A kernel that has flags among them ends with these."""
        for value in values.values():
            if is_size(value):
                self.sizes.write(value)
        if self.sizes.found:
            values["params"] = (*values["params"], *self.sizes.params())
        *_, y = self._buffers(self.group.root)
        flagging = flagging_of(Buffer(name, dtype, ()) for name, dtype in values["operands"])
        if flagging:
            values["params"] = (*values.get("params", ()), FLAG)
        text = super().render(template, **values)
        return "\n".join([text, *flag_lines(flagging, y), ""]) if flagging else text

    def part(self, group: Group, prefix: str, result: str) -> CpuGroupHooks:
        """The hooks of a part of a chain, whose operands and root have names of their own."""
        part = CpuGroupHooks(group, self.target, prefix, result)
        part.sizes = self.sizes
        return part

    def loader(self, node: Node) -> NodeLoader:
        """What an op's body reads an operand through."""
        return NodeLoader(self.loads, node)

    def text(self, x: Expr) -> str:
        """An index as an operand in a kernel's text."""
        return NumbaRenderer(Kernel("index", (), ()), sizes=self.sizes).operand(x)

    def vector_epilogue(
        self, lane_width: int, *, flat_space: bool, channels_left: str = ""
    ) -> Lines | None:
        """Lines that store the root at address `yo` from the vector `v` of channels kb * lane_width
        + lane.

        Variables in scope: n, kb, h, w (h and w not if `flat_space`), v, yo. None where the
        epilogue is no function of whole vectors, or the root's layout is not in blocks of
        `lane_width` channels.
        """
        root, layout = self.group.root, self.group.root.type.layout
        if layout.kind != "NCHWc" or layout.block != lane_width:
            return None
        lane = E.var("lane", extent=lane_width)
        ix = self._pixel(lane, lane_width)
        return self._vectors(ix, physical_index(layout, root.type.dims, ix), lane,
                             channels_left=channels_left, space=("h", "w") if flat_space else ())

    def pixel_epilogue(self, width: int, *, flat_space: bool) -> Lines | None:
        """Lines that store a row-major root at address `yo` from the vector `v` of `count` pixels
        along a row.

        Variables in scope: n, ch (the channel), h, w (of the first pixel; neither if `flat_space`),
        v, yo, count.
        """
        root = self.group.root.type
        if root.layout.kind != "row" or root.rank not in (3, 4) or root.dims[-1] == 1:
            return None
        lane = E.var("lane", extent=width)
        n, channel, *space = self._pixel(lane, width)
        if not channel.is_const:
            channel = E.var("ch", extent=root.dims[1])
        ix = (n, channel, *space[:-1], E.var("w") + lane)
        return self._vectors(ix, ix, lane, channels_left="count", partial=True,
                             space=("h", "w") if flat_space else ())

    def _vectors(self, ix: tuple[Expr, ...], place: tuple[Expr, ...], lane: Expr, **how: Any
                 ) -> Lines | None:
        """Lines that store the root at logical index `ix`, which lies at `place`, for all lanes;
        `how`: as `EpilogueRenderer` takes it. None where they are no function of whole vectors."""
        assert lane.extent is not None
        value, buffers = self.epilogue(ix, self._sum()), self._buffers(self.group.root)
        try:
            return EpilogueRenderer(
                self.sizes, buffers, place, value, lane, lane.extent, **how).lines()
        except NotVectorisable:
            return None

    def scalar_epilogue(self, lane_width: int) -> Lines:
        """Lines that store the root's element of channel kb * lane_width + lane from the scalar
        `v`, in any layout.

        Variables in scope: n, kb, lane, h, w, v. The channel exists.
        """
        root = self.group.root
        ix = self._pixel(E.var("lane", extent=lane_width), lane_width)
        value = E.cast(self.epilogue(ix, self._sum()), root.type.dtype)
        at = physical_index(root.type.layout, root.type.dims, ix)
        return _scalar_lines("epilogue", self._buffers(root), self.sizes, Store("y", at, value))

    def _sum(self) -> Expr:
        """The variable `v`: what a template hands to the epilogue, exact sums or f32."""
        anchor = self.group.anchor
        return E.var("v", "i32" if anchor is not None and anchor.type.dtype == "i32" else "f32")

    def _pixel(self, lane: Expr, width: int) -> tuple[Expr, ...]:
        """The logical index (n, kb * width + lane, h, w) in the variables of a kernel."""
        n, channels, *spatial = self.group.root.type.dims
        space = ("h", "w") if len(spatial) == 2 else ("w",)
        names = (("n", n), *zip(space, spatial))
        batch, *pixel = (E.index(0) if d == 1 else E.var(name, extent=d) for name, d in names)
        channel = E.index(0) if channels == 1 else E.var("kb") * width + lane
        return (batch, channel, *pixel)

    def _buffers(self, root: Node) -> tuple[Buffer, ...]:
        y = Buffer(self.result, root.type.dtype, root.type.physical, "out")
        return (*buffers_of(self.names), y)

    def row_epilogue(self, width: int, into: str = "", whole: bool = False) -> Lines | None:
        """Lines that store the root at address `yo` from the vector `v` of columns nb * width +
        lane of row `row`.

        The root is row-major; `row` counts over all its axes but the last. The last vector of a row
        may be partial, unless this one is `whole`. `into`: a variable that takes the value, which
        is stored nowhere then. None where the epilogue is no function of whole vectors.
        """
        columns = self.group.root.type.dims[-1]
        lane = E.var("lane", extent=width)
        at = self._row_place(lane, width)
        even = not is_size(columns) and columns % width == 0
        left = "" if even or whole else f"{self.sizes.write(columns)} - nb * {width}"
        return self._vectors(at, at, lane, into=into, channels_left=left, partial=True)

    def row_scalar_epilogue(self, width: int) -> Lines:
        """The same for one element: `v` is the scalar of column nb * width + lane, which exists."""
        root = self.group.root.type
        at = self._row_place(E.var("lane", extent=width), width)
        value = E.cast(self.epilogue(at, self._sum()), root.dtype)
        return _scalar_lines(
            "epilogue", self._buffers(self.group.root), self.sizes, Store("y", at, value))

    def _row_place(self, lane: Expr, width: int) -> tuple[Expr, ...]:
        """The root's index at row `row` (over all axes but the last) and column nb * width +
        lane.
        """
        *leading, columns = self.group.root.type.dims
        row = E.var("row", extent=math.prod(leading))
        ix: list[Expr] = []
        for k, d in enumerate(leading):
            ix.append(E.index(0) if d == 1 else (row // math.prod(leading[k + 1:])) % d)
        return (*ix, E.index(0) if columns == 1 else E.var("nb") * width + lane)

    def cell_lines(self, stores: Sequence[Store], lane: Expr, width: int, wide: tuple[str, ...],
                   left: str = "") -> Lines | None:
        """Lines that do a recurrence's stores for vectors along `lane`, from the vectors `wide`;
        `left` as in CellRenderer. None where they are no functions of whole vectors."""
        try:
            return CellRenderer(self._scan_buffers(), stores, lane, width, wide, left).lines()
        except NotVectorisable:
            return None

    def cell_starts(self, stores: Sequence[Store]) -> Lines:
        """Lines that do stores element by element."""
        return _scalar_lines("starts", self._scan_buffers(), self.sizes, *stores)

    def _scan_buffers(self) -> tuple[Buffer, ...]:
        *operands, y = self._buffers(self.group.root)
        return (*operands, Buffer(y.name, y.dtype, y.shape, "scan"))

    def blocked(self, node: Node, width: int, pads: tuple[int, ...]) -> tuple[Scratch, Emitted]:
        """A kernel that copies an operand into zero-padded blocks of `width` channels (0: planes,
        channels apart).

        pads = (before and after of each spatial axis). Gives the copy, [N, C/width, spatial...,
        width] in elements of the operand's dtype, and the launch that writes it.
        """
        dims, rank = node.type.dims, node.type.rank - 2
        spatial = [dims[2 + a] + pads[a] + pads[rank + a] for a in range(rank)]
        shape = (dims[0], -(-dims[1] // width), *spatial, width) if width else (*dims[:2], *spatial)

        def where(at: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], Expr]:
            channel = at[1] * width + at[-1] if width else at[1]
            space = [at[2 + a] - pads[a] for a in range(rank)]
            inside = channel < dims[1]
            for i, d in zip(space, dims[2:]):
                inside = inside & (i >= 0) & (i < d)
            return (at[0], channel, *space), inside

        return self.arranged(
            node, f"blocked {node.type} {pads}", node.type.dtype, tuple(shape), where)

    def emitted(self, kernel: Kernel, arguments: tuple[Argument, ...], copy: Scratch) -> Emitted:
        """The launch of a copying kernel."""
        if sizes_of(kernel):
            return sized_for_cpu(kernel).emitted("arranged", arguments, copy)
        turns = copy.key.startswith(("blocked", "panels"))     # lanes may lie apart in the operand
        text = loops_for_cpu(kernel, ENTRY) if turns else render_kernel(share(kernel), ENTRY)
        return Emitted("arranged", text, arguments, (copy,))


def _scalar_lines(name: str, buffers: tuple[Buffer, ...], sizes: SizesWritten, *stores: Store
                  ) -> Lines:
    """Stores element by element."""
    kernel = share(Kernel(name, buffers, stores, flagging=flagging_of(buffers)))
    renderer = NumbaRenderer(kernel, sizes=sizes)
    return Lines(renderer.block(kernel.body, 0), read_by(kernel))

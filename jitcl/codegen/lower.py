"""A group of nodes becomes one unscheduled kernel: fusion is inlining.

The kernel loops over the root's elements in the order of its buffer; the root's body reads operands
through loaders,
and a loader either loads from a buffer (an operand of the group) or inlines the producer's body at
that index.

    root = relu(add(conv(x, w), b))      for n, c, h, w { let acc = 0; for r... { acc add= x[..] *
    w[..] }
                                           y[n, c, h, w] = max(acc + b[c], 0) }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from jitcl import dtypes
from jitcl.codegen.lower_scan import scan_statements
from jitcl.codegen.share import share
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr, Number
from jitcl.ir.graph import Node
from jitcl.ir.group import Group, is_literal
from jitcl.ir.kernel import Buffer, Kernel, Stmt, Store, buffers_read
from jitcl.ir.size_ranges import settled
from jitcl.ir.sizes import at_least_always, same
from jitcl.ir.types import Layout, TensorType
from jitcl.ops.builder import lookup


@dataclass
class Lowered:
    """A kernel and the graph nodes behind its buffers: `operands` read, then the root written."""

    kernel: Kernel
    operands: tuple[Node, ...]


class Loads:
    """Values of the nodes of a group at given indices, in one kernel under construction."""

    def __init__(
            self, s: KernelBuilder, group: Group, names: dict[Node, str],
            types: Callable[[Node], TensorType] = lambda n: n.type, stored: Container[Node] = ()
    ) -> None:
        self.s, self.group, self.names, self.types = s, group, names, types
        self.stored = stored
        self.memo: dict[tuple[Node, tuple[Expr, ...], Expr], Expr] = {}

    def preset(self, node: Node, ix: tuple[Expr, ...], value: Expr) -> None:
        """Let `node` at `ix` be `value`: how a template hands over what it computed itself."""
        self.memo[node, ix, self.s.guard] = value

    def value(self, node: Node, ix: tuple[Expr, ...]) -> Expr:
        """The node's value at a logical index, in its compute type."""
        key = (node, ix, self.s.guard)
        found = self.memo.get(key)
        if found is None:
            found = self._compute(node, ix)
            if found.dtype == "f16" and self.types(node).dtype == "f32" and (
                    node is not self.group.root):            # of f16, behind which all is f32
                found = E.cast(found, "f32")
            if node in self.stored:
                found = self.s.cast(found, self.types(node).dtype)
            self.memo[key] = found
        return found

    def _compute(self, node: Node, ix: tuple[Expr, ...]) -> Expr:
        s, type = self.s, self.types(node)
        if is_literal(node):  # whatever axes its user sees it with
            return E.const(node.data.reshape(()).item(), s.compute(type.dtype))
        if len(ix) != type.rank:
            raise JitclError(f"op '{node.op}' of type {type} was indexed with {len(ix)} indices")
        if node in self.names:
            zero = E.const(0, type.dtype)
            raw = E.load(
                self.names[node], physical_index(type.layout, type.dims, ix), type.dtype, s.guard,
                zero)
            return E.cast(raw, s.compute(type.dtype))
        op = lookup(node.op)
        if op.body is None:
            raise JitclError(
                f"composite op '{node.op}' reached code generation: the pass decompose did not run")
        outer, s.out = getattr(s, "out", type), type
        try:
            value = op.body(s, ix, *(NodeLoader(self, i) for i in node.inputs), **node.kwargs)
        finally:
            s.out = outer
        computed = type.dtype in dtypes.LOW and op.kind != "movement"
        return s.cast(value, type.dtype) if computed else value      # inlined or stored, the same


class NodeLoader:
    """What an op's body reads an operand through."""

    def __init__(self, loads: Loads, node: Node) -> None:
        self.loads, self.node = loads, node
        self.type = loads.types(node)
        self.dtype = loads.s.compute(self.type.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.dims

    def __call__(self, *ix: Expr | int, guard: Expr | None = None, other: Number = 0) -> Expr:
        at = tuple(E.index(i) if isinstance(i, int) else i for i in ix)
        if guard is None or (guard.is_const and guard.value):
            return self.loads.value(self.node, at)
        default = E.const(other, self.dtype)
        if guard.is_const:
            return default
        with self.loads.s.guarded(guard):
            value = self.loads.value(self.node, at)
        if value.op == "load" and value.guard is guard and value.dtype == self.dtype:
            return E.load(value.value, value.indices, value.dtype, guard, default)
        return E.call("select", guard, value, default)


def physical_index(
    layout: Layout, shape: tuple[int, ...], ix: tuple[Expr, ...]
) -> tuple[Expr, ...]:
    """Where a logical index lies in the buffer."""
    if layout.kind != "NCHWc" or len(shape) < 3:
        return ix
    n, c, *spatial = ix
    block, halo = E.index(layout.block), layout.halo
    return (n, E.call("floordiv", c, block), *(i + halo for i in spatial), E.call("mod", c, block))


def logical_index(
    layout: Layout, shape: tuple[int, ...], at: tuple[Expr, ...]
) -> tuple[tuple[Expr, ...], Expr]:
    """The logical index of a place in the buffer, and whether there is one (else it is padding)."""
    inside = E.const(True, "bool")
    if layout.kind == "rows":
        return at, at[-1] < shape[-1]
    if layout.kind == "row" or len(shape) < 3:
        return at, inside
    n, outer, *spatial, lane = at
    c = outer * layout.block + lane
    logical = [i - layout.halo for i in spatial]
    inside = c < shape[1]
    for i, d in zip(logical, shape[2:]):
        inside = inside & (i >= 0) & (i < d)
    return (n, c, *logical), inside


def lower(group: Group, name: str, *, flushed: bool = False, stored: Container[Node] = ()
          ) -> Lowered:
    """The group's kernel: loops over the root's buffer, `parallel` and in memory order.

    `flushed`: sums of what is computed in f16 are f16, a few terms at a time: how far the results
    of templates that add so may lie apart. `stored`: members that are rounded to their type, as
    they are where a group is cut there.
    """
    operands = group.operands
    names = {node: f"x{i}" for i, node in enumerate(operands)}
    if lookup(group.root.op).kind == "recurrence":
        return _lower_recurrence(group, name, names)
    merged = merge_axes(group) or with_padding(group)
    types = (lambda n: merged[n]) if merged else (lambda n: n.type)
    out = types(group.root)
    s = KernelBuilder(half=group.compute == "f16", flushed=flushed)
    loads = Loads(s, group, names, types, stored)
    at = tuple(s.open("i", d, "parallel") for d in out.physical)
    ix, inside = logical_index(out.layout, out.dims, at)
    if inside.is_const or merged:                # merged rows are padded alike
        value = loads.value(group.root, ix)
    else:
        with s.guarded(inside):
            value = loads.value(group.root, ix)
    if not inside.is_const:
        value = E.call("select", inside, value, E.const(0, value.dtype))
    s.leave(0, Store("y", at, E.cast(value, out.dtype)))
    y = Buffer("y", out.dtype, out.physical, "out")
    return _finished(name, tuple(s.scopes[0].stmts), names, types, y)


def _lower_recurrence(group: Group, name: str, names: dict[Node, str]) -> Lowered:
    """The kernel of a recurrence: a group of its own, whose operands are all in memory."""
    if group.inlined:
        raise JitclError(f"'{group.root.op}' was fused with {len(group.inlined)} other ops: "
                         "a recurrence reads its operands from memory")
    s = KernelBuilder()
    loads = Loads(s, group, names)
    done = scan_statements(s, group.root, [NodeLoader(loads, i) for i in group.root.inputs])
    type = group.root.type
    return _finished(name, done, names, lambda n: n.type,
                     Buffer("y", type.dtype, type.physical, "scan"))


def _finished(name: str, done: tuple[Stmt, ...], names: dict[Node, str],
              types: Callable[[Node], TensorType], y: Buffer) -> Lowered:
    """The kernel of these statements, over the operands that they read and its output."""
    read = buffers_read(done)
    operands = [n for n in names if names[n] in read]  # of some, only the shape matters
    buffers = [Buffer(names[n], n.type.dtype, types(n).physical) for n in operands]
    return Lowered(share(Kernel(name, (*buffers, y), done)), tuple(operands))


def merge_axes(group: Group) -> dict[Node, TensorType] | None:
    """Types with neighbouring axes merged where a pointwise group treats them alike; None where it
    can't. Rows end behind their padding; where that has to be zeros they stay apart.

        add(x[8,64,56,56], b[1,64,1,1])  ->  add(x[8,64,3136], b[1,64,1])
        add(x[8,64,7,7; rows4], b[1,64,1,1])  ->  add(x[8,64,56], b[1,64,1])
    """
    if any(lookup(n.op).kind != "elementwise" for n in group.members):
        return None
    nodes = {*group.members, *(i for n in group.members for i in n.inputs)}
    root = group.root.type
    if not same_layout(nodes, root):
        return None
    if root.layout.kind == "NCHWc":
        return _flat(nodes, root)
    rank, apart = root.rank, group.pads_with_zeros
    seen = {n: n.type if apart or n.type.layout.kind != "rows" else as_row(n.type) for n in nodes}
    full = {n: (1,) * (rank - t.rank) + t.dims for n, t in seen.items()}
    dims = full[group.root]
    groups: list[list[int]] = []
    for axis in range(rank):
        treated = groups and all(
            settled(d[axis], dims[axis]) == settled(d[groups[-1][0]], dims[groups[-1][0]])
            for d in full.values()
        )
        row = apart and axis == rank - 1
        if treated and not same(dims[axis], 1) and not same(dims[groups[-1][0]], 1) and not row:
            groups[-1].append(axis)
        elif any(not same(d[axis], 1) for d in full.values()):
            groups.append([axis])
    if same(root.size, 0):
        return None
    return {
        n: seen[n].with_(shape=tuple(math.prod(d[a] for a in g) for g in groups))
        for n, d in full.items()
    }


def as_row(type: TensorType) -> TensorType:
    """Padded rows as what lies in memory."""
    return TensorType(type.dtype, type.physical)


def same_layout(nodes: Iterable[Node], root: TensorType) -> bool:
    """Whether nodes lie in memory as the root does, or are one element for each of its rows."""
    rows = root.layout.kind == "rows"
    return all(n.type.layout == root.layout for n in nodes
               if not at_least_always(1, n.type.size) and not (rows and same(n.type.dims[-1], 1)))


def with_padding(group: Group) -> dict[Node, TensorType] | None:
    """Types whose rows end behind their padding, where a concatenation moves whole rows."""
    root = group.root
    if root.op != "concat" or group.inlined or root.type.layout.kind != "rows":
        return None
    if root.attr("axis") == root.type.rank - 1 or not same_layout(root.inputs, root.type):
        return None
    return {n: as_row(n.type) for n in (root, *root.inputs)}


def _flat(nodes: set[Node], root: TensorType) -> dict[Node, TensorType] | None:
    """A blocked layout without padding is a flat array to a pointwise group of equal shapes."""
    padded = math.prod(root.physical) != root.size
    if padded or any(n.type.size != 1 and n.type.dims != root.dims for n in nodes):
        return None
    return {n: TensorType(n.type.dtype, (n.type.size,)) for n in nodes}

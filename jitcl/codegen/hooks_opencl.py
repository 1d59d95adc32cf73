"""What OpenCL templates read fused prologues and write fused epilogues through."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from jitcl.codegen.flags import buffers_of, flag_names, flag_params, flagging_of
from jitcl.codegen.hooks import GroupHooks
from jitcl.codegen.language import OPENCL_C
from jitcl.codegen.lift import Numbers
from jitcl.codegen.loops import flatten
from jitcl.codegen.lower import Loads, NodeLoader, lower
from jitcl.codegen.opencl_helpers import Calls, helper
from jitcl.codegen.opencl_vectors import NotVectorisable, few_registers
from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.codegen.schedule import generic_kernel
from jitcl.codegen.schedule_opencl import schedule
from jitcl.codegen.schedule_sized import sized_for_opencl, sizes_of
from jitcl.codegen.share import share
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr, flat
from jitcl.ir.graph import Node
from jitcl.ir.group import Group, is_literal
from jitcl.ir.kernel import Buffer, Kernel, Store
from jitcl.ir.scalar import SCALARS
from jitcl.ir.size_ranges import divisor
from jitcl.ir.sizes import has_size
from jitcl.ir.types import TensorType
from jitcl.ops.builder import lookup
from jitcl.templates.base import GROUP, Argument, Emitted, Epilogue, Loader, Place, Scratch
from jitcl.templates.opencl.memory import alignment, read_vector
from jitcl.templates.opencl.tiling import in_half

FP16 = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"

QUAD = 4                                         # neighbours of a vector
FUNCTION = 8                                     # cost of a scalar operation: it is a long function


class OpenClGroupHooks(GroupHooks):
    """Names the group's operands and writes their loads and the epilogue as OpenCL C."""

    numbers: Numbers | None = None

    def lifting(self, first: Node | None = None) -> OpenClGroupHooks:
        """For one kernel whose numbers are parameters, where all sizes are numbers. The `first` of
        the operands has the first name, then come the anchor's, then others."""
        found = copy.copy(self)
        if len(self.group.parts) < 2:
            outside = self._outside()
            names = sorted(self.group.operands, key=lambda n: (n is not first, n in outside))
            found.names = {n: f"x{k}" for k, n in enumerate(names)} | flag_names(self.group)
        sized = any(has_size(n.type.physical) for n in (*self.group.members, *self.group.operands))
        found.numbers = None if sized else Numbers()
        return found

    def number(self, n: int) -> int:
        """A number of a kernel's text, as its parameter where such are lifted."""
        return n if self.numbers is None else self.numbers.parameter(n)

    def lifted(self, kernel: Kernel, lanes: int = 1) -> Kernel:
        return kernel if self.numbers is None else self.numbers.lifted(kernel, lanes)

    @property
    def half(self) -> bool:
        """Whether products of f16 operands are to be computed in the type half."""
        return in_half(self.group, self.target)

    def part(self, group: Group, prefix: str) -> OpenClGroupHooks:
        """The hooks of a part of a chain, whose operands have names of their own."""
        part = OpenClGroupHooks(group, self.target, prefix)
        part.numbers = self.numbers
        return part

    def ctype(self, dtype: str) -> str:
        """The C type of a buffer's elements."""
        return OPENCL_C.element(dtype, self.target.soft_half)

    def render(self, template: str, **values: object) -> str:
        """The text of a file of `jitcl/templates`, after the functions of codegen/opencl_helpers
        that it calls (by `call_helper`) and does not hold (by `define`). `read_vector` is that of
        templates/opencl/memory; with HALF, halves are read as such."""
        calls = Calls()
        read = partial(read_vector, calls.call, self.target, kept=bool(values.get("HALF")))
        body = super().render(template, group=GROUP, call_helper=calls.call, define=calls.define,
                              read_vector=read, **values)
        pragma = FP16 if values.get("HALF") else ""
        return pragma + "".join(map(helper, calls.missing())) + body

    def epilogue_lines(self, ix: tuple[Expr, ...], width: int,
                       types: dict[Node, TensorType] | None = None,
                       multiples: Mapping[str, int] = MappingProxyType({}),
                       beside: Sequence[Node] = ()) -> Epilogue | None:
        """Code that stores `width` neighbours of the root at logical index `ix` (of lane 0, moved
        along by `lane` in its last component) from the vector `v`, at element `at` of y.

        `types`: the shapes that the group's tensors are seen in; `multiples`: what variables of
        `ix`, and `at`, are multiples of; `beside`: other nodes whose values there are vectors `v1`,
        `v2`.. None where the epilogue is no function of whole vectors.
        What lies behind a padded row is computed as if it were an element, or 0 where a flag would
        tell of it.
        """
        def seen(node: Node) -> TensorType:
            return node.type if types is None or is_literal(node) else types[node]
        anchor, root = self.group.anchor, self.group.root
        assert anchor is not None
        lane = E.var("lane", extent=width)
        if width > 1:
            ix = (*ix[:-1], ix[-1] + lane)
        loads = Loads(KernelBuilder(), self.group, self.names, seen)
        vectors = {anchor: "v"} | {node: f"v{k}" for k, node in enumerate(beside, 1)}
        for node, name in vectors.items():
            loads.preset(node, ix, E.var(name, "f32"))
        value = loads.value(root, ix)
        inside = self._inside(ix, lane, multiples)
        if not inside.is_const:
            value = E.call("select", inside, value, E.const(0, value.dtype))
        nodes, flag = self._outside(), flag_names(self.group)
        buffers = (*(Buffer(self.names[n], n.type.dtype, seen(n).physical) for n in nodes),
                   *buffers_of(flag), Buffer("y", root.type.dtype, seen(root).physical, "out"))
        kernel = self.lifted(share(at_place(buffers, ix, value, lane), addresses=False), width)
        renderer = OpenClRenderer(kernel, fp64=False, soft_half=self.target.soft_half)
        try:
            if width > 1:
                renderer.spread(kernel.body, lane, tuple(vectors.values()))
                of_y = flat(seen(root).physical, ix)
                renderer.point(self.target, {"at": alignment(of_y, lane, multiples), **multiples})
            lines = renderer.block(kernel.body, 1)
        except NotVectorisable:
            return None
        if renderer.doubles:
            return None
        used = (*(n for n in nodes if self.names[n] in renderer.read), *flag)
        def dear(x: Expr) -> bool:
            """Whether registers are short where rows compute it side by side: masks, too."""
            long = x.op in SCALARS and SCALARS[x.op].cost >= FUNCTION
            return long or (x.op == "select" and len(used) > 1)

        apart = few_registers(self.target) and any(map(dear, E.walk(value)))
        return Epilogue(tuple(lines), tuple(renderer.helpers),
                        tuple((self.names[n], self.ctype(n.type.dtype)) for n in used), used,
                        self.ctype(root.type.dtype), apart,
                        renderer.sizes.params() | flag_params(self.group),
                        tuple(vectors.values())[1:])

    def _inside(self, ix: tuple[Expr, ...], lane: Expr, multiples: Mapping[str, int]) -> Expr:
        """Whether an index of the root, or of planes as one axis, is no padding that is to be 0."""
        root = self.group.root.type
        if not self.group.pads_with_zeros:
            return E.const(True, "bool")
        at, pitch = ix[-1], root.physical[-1]
        if len(ix) < root.rank:
            first = E.call("sub", at, lane)
            width = lane.extent or 1
            whole = pitch % width == 0 and alignment(first, lane, multiples) % width == 0
            at = E.call("mod", first, E.index(pitch)) + lane if whole else at % pitch
        return at < root.dims[-1]

    def load_lines(self, node: Node, shape: tuple[int, ...], ix: list[Expr],
                   *inside: Expr) -> Loader:
        """Code that returns the element at `ix` of a node, seen in a `shape`; 0 where not `inside`.
        Its variables are those of `ix`, in which `k` counts terms. It is a half where `half` says
        so, else a float.
        """
        seen = node.type.with_(shape=shape)
        loads = Loads(KernelBuilder(half=self.half), self.group, self.names,
                      lambda n: seen if n is node else n.type)
        guard = E.const(True, "bool")
        for condition in inside:
            guard = guard & condition
        found = self._function(loads, NodeLoader(loads, node)(*ix, guard=guard), self.half)
        assert found is not None
        return found

    def quad_lines(self, node: Node, ix: list[Expr]) -> Loader | None:
        """Code that returns four neighbours along `k` as a float4, from the element at `ix` of a
        node on, of which `k` is a multiple of four. None where it is no function of whole vectors.
        """
        lane = E.var("lane", extent=QUAD)
        loads = Loads(KernelBuilder(), self.group, self.names)
        value = loads.value(node, (*ix[:-1], ix[-1] + lane))
        try:
            return self._function(loads, value, False, lane)
        except NotVectorisable:
            return None

    def value_lines(self, ix: tuple[Expr, ...], root: Node | None = None,
                    given: Node | None = None) -> Loader | None:
        """Code that returns the root at logical index `ix` as a float, given the anchor's value `v`
        there; or another node, given another's. None where it can't be written."""
        given = given or self.group.anchor
        assert given is not None
        loads = Loads(KernelBuilder(), self.group, self.names)
        loads.preset(given, ix, E.var("v", "f32"))
        return self._function(loads, loads.value(root or self.group.root, ix), False)

    def _function(self, loads: Loads, value: Expr, half: bool, lane: Expr | None = None
                  ) -> Loader | None:
        """The body of a function that returns a value of some loads; with a `lane`, the vector of
        its lanes."""
        shapes = {name: loads.types(n).physical for n, name in self.names.items()}
        buffers = tuple(Buffer(name, n.type.dtype, shapes[name]) for n, name in self.names.items())
        dtype = "f16" if half else "f32"
        store = Store("y", (E.index(0),), E.cast(value, dtype))
        buffers = (*buffers, Buffer("y", dtype, (1,), "out"))
        kernel = self.lifted(share(Kernel("load", buffers, (store,)), addresses=False))
        renderer = OpenClRenderer(kernel, fp64=False, soft_half=self.target.soft_half,
                                  half_builtins=self.target.half_builtins)
        renderer.half = half
        if lane is not None:
            renderer.spread(kernel.body, lane)
            renderer.point(self.target, {"k": QUAD})
        lines = returned(renderer)
        if renderer.doubles:
            return None
        read = {x.value: x for x in E.walk(value) if x.op == "load"}
        nodes = tuple(n for n, name in self.names.items() if name in read)
        fast = any(_stride(x, shapes[x.value], "k") == 1 for x in read.values())
        operands = tuple((self.names[n], self.ctype(n.type.dtype)) for n in nodes)
        return Loader(lines, tuple(renderer.helpers), operands, nodes, fast,
                      renderer.sizes.params())

    def place_lines(self, node: Node, shape: tuple[int, ...], ix: list[Expr]) -> Place | None:
        """Where the element at `ix` of a node, seen in a `shape`, lies in a buffer of the node's
        type, or of f16 where that is f32; None where it is computed, or is 0 for some `ix`.
        """
        seen = node.type.with_(shape=shape)
        loads = Loads(KernelBuilder(half=self.half), self.group, self.names,
                      lambda n: seen if n is node else n.type)
        found = self.place(node, ix, loads)
        if found is None:
            return None
        types = found[0].type.dtype, node.type.dtype
        if types[0] != types[1] and types != ("f16", "f32"):
            return None
        source, at = found
        store = Store("y", (E.index(0),), E.cast(at, "i32"))
        kernel = self.lifted(share(Kernel("place", (Buffer("y", "i32", (1,), "out"),), (store,)),
                                   addresses=False))
        renderer = OpenClRenderer(kernel, fp64=False)
        return Place(returned(renderer), tuple(renderer.helpers), source, _runs(at),
                     renderer.sizes.params())

    def text(self, x: Expr) -> tuple[str, Mapping[str, int]]:
        """(an index as a kernel's text has it, the sizes that it reads)"""
        renderer = OpenClRenderer(Kernel("index", (), ()), fp64=False)
        return renderer.expr(x), renderer.sizes.params()

    def flat_pixels(self) -> dict[Node, TensorType] | None:
        """Types of the epilogue's tensors with all spatial axes as one: [N, C, H, W] -> [N, C,
        H*W], with what rows are padded with. None where something in it tells the axes apart."""
        root = self.group.root.type
        if root.rank == 3:
            return {n: n.type for n in (*self._below(), *self._outside())}
        spatial = root.physical[2:]
        found: dict[Node, TensorType] = {}
        for node in (*self._below(), *self._outside()):
            inner = node is not self.group.anchor and node not in self.names
            if inner and lookup(node.op).kind != "elementwise":
                return None
            dims = (1,) * (root.rank - node.type.rank) + node.type.physical
            ones = all(d == 1 for d in dims[2:])
            if len(dims) != root.rank or not (ones or dims[2:] == spatial):
                return None
            pixels = 1
            for d in dims[2:]:
                pixels *= d
            found[node] = TensorType(node.type.dtype, (*dims[:2], pixels))
        literals = {i for n in self._below() if n is not self.group.anchor
                    for i in n.inputs if i not in found}
        return found | {n: n.type for n in literals}

    def _below(self) -> list[Node]:
        """Members that the root is computed from without looking behind the anchor, with it."""
        found: dict[Node, None] = {}
        stack = [self.group.root]
        while stack:
            node = stack.pop()
            if node in found:
                continue
            found[node] = None
            if node is not self.group.anchor:
                stack.extend(i for i in node.inputs if i in self.group.inlined)
        return list(found)

    def _outside(self) -> list[Node]:
        """The buffers that the epilogue reads."""
        read = {i for n in self._below() if n is not self.group.anchor for i in n.inputs}
        return [n for n in self.names if n in read]

    # ---- kernels beside the template's own

    def emitted(self, kernel: Kernel, arguments: tuple[Argument, ...], copy: Scratch) -> Emitted:
        """The launch of a copying kernel."""
        write = sized_for_opencl if sizes_of(kernel) else schedule
        return write(kernel, self.target).emitted("arranged", arguments, copy)

    def separate_epilogue(self) -> tuple[Scratch, OpenClGroupHooks, Emitted]:
        """The epilogue as a kernel of generated loops, for where a template can't write it: the
        memory that it reads the anchor's value from, hooks of the anchor alone, the launch.
        """
        group, anchor = self.group, self.group.anchor
        assert anchor is not None
        behind = frozenset(self._below()) - {anchor, group.root}
        rest = dataclasses.replace(group, inlined=behind, anchor=None, compute="f32")
        emitted = generic_kernel(lower(rest, "epilogue"), rest, self.target)
        value = Scratch(f"{anchor.op} {anchor.type}", anchor.type.dtype, anchor.type.physical)
        arguments = tuple(value if a is anchor else a for a in emitted.arguments)
        alone = dataclasses.replace(group, root=anchor, inlined=group.inlined - behind - {anchor},
                                    flag=None)
        return value, OpenClGroupHooks(alone, self.target), dataclasses.replace(
            emitted, arguments=arguments)


def at_place(buffers: tuple[Buffer, ...], indices: tuple[Expr, ...], value: Expr,
             lane: Expr) -> Kernel:
    """`y[indices] = value` of an epilogue, with what lies at y's own indices at the place `at`,
    which the template has: that of lane 0.
    """
    y = buffers[-1]
    store = Store(y.name, indices, E.cast(value, y.dtype))
    kernel = flatten(Kernel("epilogue", buffers, (store,), flagging=flagging_of(buffers)))
    (store,) = (s for s in kernel.body if isinstance(s, Store))
    at = E.var("at") if lane.extent == 1 else E.var("at") + lane
    same = {b.name for b in buffers if b.shape == y.shape}
    loads = {e: E.load(e.value, (at,), e.dtype) for e in E.walk(store.value)
             if e.op == "load" and e.value in same and e.indices == store.indices
             and not e.guarded}
    moved = Store(y.name, (at,), E.exchanged(store.value, loads))
    return dataclasses.replace(kernel, body=(moved,))


def returned(renderer: OpenClRenderer) -> tuple[str, ...]:
    """The lines of a function that returns what its renderer's kernel stores."""
    *lets, last = renderer.kernel.body
    assert isinstance(last, Store)
    value = renderer.expr if renderer.lane is None else renderer.splat
    return (*renderer.block(tuple(lets), 0), f"return {value(last.value)};")


def _runs(at: Expr) -> dict[str, int]:
    """How many neighbours lie side by side and aligned along each variable that is a term of an
    address, or of its remainder by a number, from its multiples of as many on: at most 8."""
    terms, constant = E.linear(at)
    found = {}
    for atom, step in terms.items():
        var, room = atom, 0
        if atom.op == "mod" and atom.args[1].is_const:
            var, room = atom.args[0], divisor(atom.args[1].value)
        others = [a for a in terms if a is not atom]
        run = math.gcd(8, room, *(_still(a, var) for a in others), *map(divisor, (
            constant, *(terms[a] for a in others))))
        if var.op == "var" and step == 1 and run > 1:
            found[str(var.value)] = run
    return found


def _still(e: Expr, var: Expr) -> int:
    """How many neighbours along a variable, from multiples of as many on, share a value; 0: all."""
    if e.op == "floordiv" and e.args[0] is var and e.args[1].is_const:
        return divisor(e.args[1].value)
    return 1 if e is var else math.gcd(*(_still(a, var) for a in e.args))


def _stride(load: Expr, shape: tuple[int, ...], var: str) -> int:
    """Elements that the load's address moves by for a step of a variable; 0 where it is no sum of
    multiples of variables."""
    terms, _ = E.linear(flat(shape, load.indices))
    return next((k for a, k in terms.items() if a.op == "var" and a.value == var), 0)

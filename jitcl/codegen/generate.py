"""A fused graph becomes a plan: kernels written, launches listed, buffers named.

Equal kernel bodies are one kernel, however many layers use it; names of the model stand in each
step's head.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from jitcl import dtypes
from jitcl.codegen.hooks import Hooks
from jitcl.codegen.hooks_opencl import OpenClHooks
from jitcl.codegen.lower import Lowered, lower
from jitcl.codegen.plan import (
    BufferKind,
    BufferSpec,
    KernelSource,
    Language,
    Plan,
    Step,
    TensorSpec,
)
from jitcl.codegen.schedule import generic_kernel
from jitcl.codegen.text import amount
from jitcl.errors import JitclError
from jitcl.ir.graph import Graph, Node
from jitcl.ir.group import Group, is_literal
from jitcl.ir.kernel import Accum, Kernel, expressions, statements
from jitcl.ir.types import ROW
from jitcl.ops.cost import expr_cost
from jitcl.target import Target
from jitcl.templates import TEMPLATES
from jitcl.templates.base import ENTRY, Argument, Emitted, Packed, Scratch

COMMENT = {"numba": "#", "opencl": "//", "jitcl": "//"}
LANGUAGE: dict[str, Language] = {           # of a kind of device
    "cpu": "numba", "opencl": "opencl", "reference": "jitcl"}


@dataclass
class Generated:
    """A plan, and for `jitcl dump` the groups and unscheduled kernels behind its steps."""

    plan: Plan
    groups: list[Group]
    kernels: list[Lowered | None]            # one a group; None where nothing is launched


def generate(graph: Graph, groups: list[Group], target: Target, *, templates: bool = True,
             half: bool = False) -> Generated:
    """The plan of a fused graph for a target. Slots of temporaries are left unassigned.

    `half`: generated loops compute f16 tensors in f16; templates compute in f32 always.
    """
    return _Generator(graph, target, templates, half).run(groups)


@dataclass
class _Generator:
    graph: Graph
    target: Target
    templates: bool
    half: bool
    kernels: dict[str, KernelSource] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    buffers: list[BufferSpec] = field(default_factory=list)
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    places: dict[object, int] = field(default_factory=dict)   # Node, (Node, pack key) -> buffer

    @property
    def language(self) -> Language:
        return LANGUAGE[self.target.kind]

    def run(self, groups: list[Group]) -> Generated:
        inputs = []
        for node in self.graph.inputs:
            self.places[node] = self.buffer(str(node.attr("name")), node, "input")
            inputs.append(self.output(str(node.attr("name")), node))
        outputs = {n for _, n in self.graph.outputs}
        lowered: list[Lowered | None] = []
        for number, group in enumerate(groups):
            if group.root not in outputs and self.view(group):
                lowered.append(None)
                continue
            kind: BufferKind = "output" if group.root in outputs else "temp"
            self.places[group.root] = self.buffer(self.name(group, number), group.root, kind)
            empty = group.root.type.size == 0                 # nothing to launch
            lowered.append(None if empty else self.write(group, number))
        specs = tuple(self.output(name, node) for name, node in self.graph.outputs)
        plan = Plan(tuple(inputs), specs, tuple(self.kernels.values()), tuple(self.steps),
                    tuple(self.buffers), (), self.constants)
        return Generated(plan, groups, lowered)

    def output(self, name: str, node: Node) -> TensorSpec:
        """A tensor's place; inputs and constants among the outputs keep their own buffers."""
        if node.op == "const":
            self.argument(node)
        return TensorSpec(name, node.type.dtype, node.type.dims, self.places[node])

    def name(self, group: Group, number: int) -> str:
        node = group.anchor or group.root
        return f"{node.op}_{number}"

    # ---- buffers

    def buffer(self, name: str, node: Node, kind: BufferKind) -> int:
        spec = BufferSpec(name, node.type.dtype, node.type.physical, node.type.nbytes, kind)
        self.buffers.append(spec)
        return len(self.buffers) - 1

    def array(self, name: str, array: np.ndarray, dtype: str) -> int:
        self.buffers.append(BufferSpec(name, dtype, array.shape, array.nbytes, "const"))
        bits = array.view(np.uint16) if dtype == "bf16" else array     # plans hold NumPy's types
        self.constants[len(self.buffers) - 1] = bits
        return len(self.buffers) - 1

    def view(self, group: Group) -> bool:
        """A reshape of a row-major temporary is that temporary."""
        root = group.root
        if root.op != "reshape" or group.inlined or root.type.layout != ROW:
            return False
        source = root.inputs[0]
        if source.type.layout != ROW or source.op in ("input", "const"):
            return False
        self.places[root] = self.places[source]
        return True

    def argument(self, arg: Argument) -> int:
        """The buffer of a kernel's argument; constants get theirs when first read."""
        if isinstance(arg, Node):
            if arg not in self.places:
                if arg.op != "const":
                    raise JitclError(f"'{arg.op}' {arg.type} is read before any kernel writes it")
                name = f"const_{len(self.constants)}"
                self.places[arg] = self.array(name, arg.data, arg.type.dtype)
            return self.places[arg]
        if isinstance(arg, Packed):
            key: object = (arg.node, arg.key)
            if key not in self.places:
                packed = np.ascontiguousarray(arg.make(arg.node.data))
                dtype = dtypes.from_numpy(packed.dtype) or arg.node.type.dtype
                self.places[key] = self.array(f"packed_{len(self.constants)}", packed, dtype)
            return self.places[key]
        return self.scratch(arg)

    def scratch(self, arg: Scratch) -> int:
        if arg not in self.places:
            nbytes = int(np.prod(arg.shape)) * dtypes.itemsize(arg.dtype)
            self.buffers.append(BufferSpec(arg.key, arg.dtype, arg.shape, nbytes, "temp"))
            self.places[arg] = len(self.buffers) - 1
        return self.places[arg]

    # ---- kernels

    def write(self, group: Group, number: int) -> Lowered | None:
        """All launches of a group: a template's where one accepts it, else generated loops."""
        name = self.name(group, number)
        for template in TEMPLATES if self.templates else ():
            if template.language != self.language:
                continue
            match = template.accepts(group, self.target)
            if match is not None:
                *before, last = template.emit(match, self.hooks(group))
                for k, emitted in enumerate(before):
                    helper = f"{name}_{emitted.stem}" + (f"_{k}" if k else "")
                    self.launch(helper, group, emitted, template.name, 0, prepares=name)
                self.launch(name, group, last, template.name, group_flops(group))
                return None
        lowered = lower(group, name, half=self.half)
        generic = generic_kernel(lowered, group, self.target)
        self.launch(name, group, generic, "", kernel_flops(lowered.kernel))
        return lowered

    def hooks(self, group: Group) -> Hooks:
        opencl = self.language == "opencl"
        return OpenClHooks(group, self.target) if opencl else Hooks(group, self.target)

    def launch(self, name: str, group: Group, emitted: Emitted, template: str, flops: int,
               prepares: str = "") -> None:
        """One step. One that only arranges operands `prepares` the group's main step, where all
        FLOPs are counted."""
        options = self.options(emitted, group)
        digest = hashlib.sha256((emitted.body + repr(options)).encode()).hexdigest()[:10]
        entry = f"{self.target.kernel_prefix}{emitted.stem}_{digest}"
        if entry not in self.kernels:
            body = emitted.body.replace(ENTRY, entry)
            self.kernels[entry] = KernelSource(entry, body, self.language, options, template)
        buffers = tuple(self.argument(a) for a in emitted.arguments)
        writes = tuple(self.argument(a) for a in emitted.writes)
        moved = sum(self.buffers[b].nbytes for b in set(buffers))
        work = f"{amount(flops, 'FLOP')}, {amount(moved, 'B')}"
        how = f"template {template}" if template else "generated loops"
        head = self.head(name, group, prepares) + f"{COMMENT[self.language]} {work}; {how}\n"
        self.steps.append(Step(
            name, entry, buffers, emitted.params, emitted.global_size, emitted.local_size, head,
            self.origins(group), flops, moved, writes))

    def options(self, emitted: Emitted, group: Group) -> tuple[str, ...]:
        """Build options: the kernel's own, the target's, none to optimise where that is wrong."""
        options = (*emitted.options, *self.target.build_options)
        if any(n.op in self.target.unoptimised_ops for n in group.members):
            options += ("-cl-opt-disable",)
        return options

    def origins(self, group: Group) -> tuple[tuple[str, str], ...]:
        found = (self.graph.origins.get(n) for n in group.members)
        return tuple(dict.fromkeys((o.name, o.op_type) for o in found if o is not None))

    def head(self, name: str, group: Group, prepares: str) -> str:
        """The comment that stands above a kernel in dumps: what, from where, shapes."""
        mark = COMMENT[self.language]
        ops = " + ".join(n.op for n in group.members)
        names = ", ".join(f"'{n}' ({t})" for n, t in self.origins(group)) or "the graph"
        reads = ", ".join(f"x{k} {n.type}" for k, n in enumerate(group.operands)) or "no operands"
        what = f"arranges operands for {prepares}: {ops}" if prepares else ops
        return (f"{mark} {name}: {what}\n{mark} from {names}\n"
                f"{mark} {reads} -> y {group.root.type}\n")


def kernel_flops(kernel: Kernel) -> int:
    """FLOPs of one run: each statement's operations times its trips."""
    total = 0
    for stmt, trips in statements(kernel.body):
        total += trips * (sum(expr_cost(e) for e in expressions(stmt)) + isinstance(stmt, Accum))
    return total


def group_flops(group: Group) -> int:
    """FLOPs of a group, counted on its unscheduled kernel."""
    return kernel_flops(lower(group, "count").kernel)


__all__ = ["Generated", "generate", "is_literal"]

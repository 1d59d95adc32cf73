"""A fused graph becomes a plan: kernels written, launches listed, buffers named.

Equal kernel bodies are one kernel, however many layers use it; names of the model stand in each
step's head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from jitcl import dtypes
from jitcl.codegen.arranged import arranged
from jitcl.codegen.chains import joined
from jitcl.codegen.flops import group_flops, kernel_flops
from jitcl.codegen.lower import Lowered
from jitcl.codegen.parts import in_place
from jitcl.codegen.plan import BufferKind, BufferSpec, Keep, KernelSource, Plan, Step, TensorSpec
from jitcl.codegen.text import amount
from jitcl.codegen.variants import Faults, GroupVariant, VariantChooser
from jitcl.codegen.writer import DIGEST, GroupKernels, Launch
from jitcl.errors import JitclError
from jitcl.ir.graph import Graph, Node, Origin
from jitcl.ir.group import Group, Join, is_literal, with_sums_marked
from jitcl.ir.size_ranges import present
from jitcl.ir.sizes import hint, same
from jitcl.ir.types import ROW
from jitcl.target import Target
from jitcl.templates.base import FIRST, Argument, Chooser, Emitted, Packed, Scratch, launched

COMMENT = {"numba": "#", "opencl": "//", "jitcl": "//"}


@dataclass
class Generated:
    """A plan, and for `jitcl dump` the groups and unscheduled kernels behind its steps."""

    plan: Plan
    groups: list[Group]
    kernels: list[Lowered | None]            # one a group; None where nothing is launched
    places: dict[Node, int] = field(default_factory=dict)       # its buffer in the plan
    whys: dict[int, str] = field(default_factory=dict)  # group -> why it is on a lower variant


def generate(graph: Graph, groups: list[Group], target: Target, *, templates: bool = True,
             faults: Faults | None = None, host: Target | None = None, memory: str = "normal",
             chooser: Chooser = FIRST, written: Callable[[KernelSource], None] | None = None,
             keep: Keep | None = None) -> Generated:
    """The plan of a fused graph for a target. Slots of temporaries are left unassigned.

    `faults`: no kernel that it rejects is in the plan, but another variant of it. `host`: the CPU
    path's Target, for groups that no other variant is left of. `memory`: the option; but for "low",
    concatenations may be written in place by those that they join (CPU: OpenCL's buffers have no
    parts that can be bound anywhere), which makes them live longer; but for "high", scratch memory
    of each group is a buffer of its own, which saves memory where buffers share it, and takes more
    where none do. `chooser`: which candidates of templates are taken. `written` is called with each
    kernel once, while the rest is not written yet; `keep` takes constants likewise, and gives them
    back, from where they are to lie, at the end.
    Raises BuildError where no variant is left.
    """
    variants = VariantChooser(target, templates, faults if target.kind == "opencl" else None,
                              host, chooser)
    groups = with_sums_marked(joined(graph, groups, variants))
    if memory != "low" and target.kind == "cpu":
        groups = in_place(graph, groups)
    return _Generator(graph, variants, written, memory != "high", keep).run(groups)


def generate_alone(graph: Graph, group: Group, target: Target, faults: Faults | None,
                   chooser: Chooser) -> Generated:
    """The plan of one group of a graph, as `generate` gave it: what it reads and no constant is, is
    fed. Raises BuildError where the faults leave no variant.
    """
    alone = replace(group, flag=None)
    return _Generator(graph, VariantChooser(target, True, faults, None, chooser)).alone(alone)


@dataclass
class _Generator:
    graph: Graph
    variants: VariantChooser
    written: Callable[[KernelSource], None] | None = None
    own_scratch: bool = True                                  # a group's, else all groups'
    keep: Keep | None = None
    kernels: dict[str, KernelSource] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    buffers: list[BufferSpec] = field(default_factory=list)
    constants: dict[int, np.ndarray | Future[np.ndarray]] = field(default_factory=dict)
    places: dict[Node, int] = field(default_factory=dict)     # buffers
    copies: dict[object, int] = field(default_factory=dict)   # (Node, pack key), or what is scratch
                                                              # and its writer's number -> buffer
    inner: dict[Node, int] = field(default_factory=dict)      # of nodes inside a group: their own
    whys: dict[int, str] = field(default_factory=dict)
    same: dict[str, KernelSource] = field(default_factory=dict)     # by their texts' digests
    held: dict[Scratch, tuple[str, int]] = field(default_factory=dict)  # last writer, its group

    def run(self, groups: list[Group]) -> Generated:
        inputs = []
        for node in self.graph.inputs:
            self.places[node] = self.buffer(str(node.attr("name")), node, "input")
            inputs.append(self.output(str(node.attr("name")), node))
        outputs = {n for _, n in self.graph.outputs}
        flags = {g.flag.flags for g in groups if g.flag is not None}
        lowered: list[Lowered | None] = [None] * len(groups)
        for number in sorted(range(len(groups)), key=lambda n: groups[n].root not in flags):
            group = groups[number]
            if group.root not in outputs and self.view(group):
                continue
            kind: BufferKind = "output" if group.root in outputs else "temp"
            self.places[group.root] = self.buffer(self.name(group, number), group.root, kind)
            if isinstance(group, Join):
                self.join(group)
            elif not same(when := present(group.root.type.size), 0):
                lowered[number] = self.write(group, number, when)
        specs = tuple(self.output(name, node) for name, node in self.graph.outputs)
        plan = Plan(tuple(inputs), specs, tuple(self.kernels.values()), tuple(self.steps),
                    tuple(self.buffers), (), self.kept())
        return Generated(plan, groups, lowered, self.places, self.whys)

    def alone(self, group: Group) -> Generated:
        inputs = []
        for k, node in enumerate(n for n in group.operands if n.op != "const"):
            self.places[node] = self.buffer(f"x{k}", node, "input")
            inputs.append(self.output(f"x{k}", node))
        name = self.name(group, 0)
        self.places[group.root] = self.buffer(name, group.root, "output")
        lowered = self.write(group, 0)
        plan = Plan(tuple(inputs), (self.output(name, group.root),), tuple(self.kernels.values()),
                    tuple(self.steps), tuple(self.buffers), (), self.kept())
        return Generated(plan, [group], [lowered], self.places, self.whys)

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
        bits = dtypes.as_bits(array)                            # plans hold NumPy's types
        self.constants[len(self.buffers) - 1] = bits if self.keep is None else self.keep(bits)
        return len(self.buffers) - 1

    def kept(self) -> dict[int, np.ndarray]:
        return {b: c if isinstance(c, np.ndarray) else c.result()
                for b, c in self.constants.items()}

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

    def join(self, group: Join) -> None:
        """What a concatenation joins are parts of its buffer."""
        whole, offset = self.places[group.root], 0
        for x in group.root.inputs:
            spec = self.buffers[self.places[x]]
            self.buffers[self.places[x]] = replace(spec, whole=whole, part_offset=offset)
            offset += spec.nbytes

    def argument(self, arg: Argument) -> int:
        """The buffer of a kernel's argument; constants get theirs when first read."""
        if isinstance(arg, Node):
            if arg in self.inner:
                return self.inner[arg]
            if arg not in self.places:
                if arg.op != "const" and arg.type.size == 0:  # inside a split group
                    self.inner[arg] = self.buffer(f"empty_{arg.op}", arg, "temp")
                    return self.inner[arg]
                if arg.op != "const":
                    raise JitclError(f"'{arg.op}' {arg.type} is read before any kernel writes it")
                name = f"const_{len(self.constants)}"
                self.places[arg] = self.array(name, arg.data, arg.type.dtype)
            return self.places[arg]
        if isinstance(arg, Packed):
            key: object = (arg.node, arg.key)
            if key not in self.copies:
                packed = arranged(
                    arg.node.attr("data"), arg.key, self.variants.target, arg.make)
                dtype = dtypes.from_numpy(packed.dtype) or arg.node.type.dtype
                self.copies[key] = self.array(f"packed_{len(self.constants)}", packed, dtype)
            return self.copies[key]
        return self.scratch(arg)

    def scratch(self, arg: Scratch) -> int:
        key = arg, self.held[arg][1]
        if key not in self.copies:
            nbytes = math.prod(arg.shape) * dtypes.itemsize(arg.dtype)
            self.buffers.append(BufferSpec(arg.key, arg.dtype, arg.shape, nbytes, "temp"))
            self.copies[key] = len(self.buffers) - 1
        return self.copies[key]

    # ---- kernels

    def write(self, group: Group, number: int, when: int = 1) -> Lowered | None:
        """All launches of a group, in the variant that its driver gets. when: 0 where it has no
        elements, so that a run leaves them out (a size, where that depends on sizes).
        """
        name = self.name(group, number)
        chosen = self.variants.choose(group, name, self.origin(group))
        if chosen.variant.name:
            self.whys[number] = chosen.why
        *before, last = chosen.parts
        self.inner = {last.group.root: self.places[group.root]}
        for part in before:
            spec = part.launches[-1].name
            self.inner[part.group.root] = self.buffer(spec, part.group.root, "temp")
        for part in chosen.parts:
            whole = group if len(chosen.parts) == 1 else part.group
            for launch in part.launches:
                if not same(when, 1):
                    (emitted,) = launched([launch.emitted], when)
                    launch = replace(launch, emitted=replace(
                        emitted, main=when * launch.emitted.main))
                self.launch(launch, whole, part, chosen, number)
        self.inner = {}
        return None if before else last.lowered

    def launch(self, launch: Launch, group: Group, part: GroupKernels, chosen: GroupVariant,
               number: int) -> None:
        """One step. All FLOPs of a group are counted where its work is done, not at what arranges
        its operands; of steps of which a run takes one, at that."""
        kernel, emitted = launch.kernel, launch.emitted
        kernel = self.same.setdefault(kernel.entry[-DIGEST:], kernel)
        if kernel.entry not in self.kernels:
            self.kernels[kernel.entry] = kernel
            if self.written is not None:
                self.written(kernel)
        if self.still_held(kernel, emitted, number):
            return
        buffers = tuple(self.argument(a) for a in emitted.arguments)
        writes = tuple(self.argument(a) for a in emitted.writes)
        images = tuple(self.argument(a) for a in emitted.images)
        flops = emitted.main * part_flops(group, part)
        moved = sum(self.buffers[b].nbytes for b in set(buffers))
        work = f"{amount(hint(flops), 'FLOP')}, {amount(hint(moved), 'B')}"
        how = f"template {kernel.template}" if kernel.template else "generated loops"
        mark = COMMENT[kernel.language]
        head = self.head(launch, group, part, mark) + f"{mark} {work}; {how}\n"
        if chosen.variant.name:
            head += f"{mark} written {chosen.variant.says}, since the driver fails: {chosen.why}\n"
        head += "".join(f"{mark} not by {why}\n" for why in part.declined)
        self.steps.append(Step(
            launch.name, kernel.entry, buffers, tuple(emitted.params.values()), emitted.global_size,
            emitted.local_size, head, self.origins(group), flops, moved, writes, images, number,
            chosen.variant.name, group.kept, part.declined))

    def still_held(self, kernel: KernelSource, emitted: Emitted, number: int) -> bool:
        """Whether scratch memory still holds what this launch would write: an operand of several
        groups is arranged once, if none between them arranges another. A launch that reads scratch
        memory always runs, since what lies there changes. What another group wrote lives until it
        was last read: this one writes to memory of its own, which may be the same."""
        scratch = [a for a in emitted.arguments if isinstance(a, Scratch)]
        if not scratch:
            return False
        reads = [a if isinstance(a, Scratch) else self.argument(a) for a in emitted.arguments]
        # sizes have no order, but one spelling
        made = repr((kernel.entry, reads, emitted.params, emitted.global_size))
        if set(emitted.writes) == set(scratch) and all(
                self.held.get(a, ("", 0))[0] == made for a in scratch):
            return True
        writer = number if self.own_scratch else 0
        self.held |= {a: (made, writer) for a in scratch if a in emitted.writes}
        return False

    def origins(self, group: Group) -> tuple[tuple[str, str], ...]:
        found = (self.graph.origins.get(n) for n in group.members)
        return tuple(dict.fromkeys((o.name, o.op_type) for o in found if o is not None))

    def origin(self, group: Group) -> Origin | None:
        """The model's node that a group is called after in errors."""
        nodes = (group.anchor or group.root, *reversed(group.members))
        return next((o for n in nodes if (o := self.graph.origins.get(n)) is not None), None)

    def head(self, launch: Launch, group: Group, part: GroupKernels, mark: str) -> str:
        """The comment that stands above a kernel in dumps: what, from where, and what this launch
        is given: of a kernel that arranges operands, or reads what was arranged, not the group's.
        """
        ops = " + ".join(n.op for n in group.members)
        names = ", ".join(f"'{n}' ({t})" for n, t in self.origins(group)) or "the graph"
        emitted, operands = launch.emitted, part.group.operands
        told = [(a, self.described(a, operands, part.group.root)) for a in emitted.arguments]
        reads = ", ".join(text for a, text in told if a not in emitted.writes) or "no operands"
        writes = ", ".join(text for a, text in told if a in emitted.writes)
        what = f"{launch.helps}: {ops}" if launch.helps else ops
        return (f"{mark} {launch.name}: {what}\n{mark} from {names}\n"
                f"{mark} {reads} -> {writes}\n")

    def described(self, arg: Argument, operands: list[Node], root: Node) -> str:
        """An argument of a kernel: an operand of its group by its number, what the group makes as
        y, anything else by its buffer's name.
        """
        if arg is root:
            return f"y {root.type}"
        if isinstance(arg, Node) and arg in operands:
            return f"x{operands.index(arg)} {arg.type}"
        spec = self.buffers[self.argument(arg)]
        name = spec.name.partition(" ")[0]              # of scratch memory: what it holds
        if isinstance(arg, Packed) and arg.node in operands:
            name = f"x{operands.index(arg.node)} packed"
        return f"{name} {spec.dtype}[{','.join(map(str, spec.shape))}]"


def part_flops(group: Group, part: GroupKernels) -> int:
    """FLOPs of a group, or of the part that it is split into."""
    return kernel_flops(part.lowered.kernel) if part.lowered else group_flops(group)


__all__ = ["Generated", "generate", "is_literal"]

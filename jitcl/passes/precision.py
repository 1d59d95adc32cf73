"""Which types buffers are stored in and kernels compute in: decided once, after fusion.

    high     as the model says; f16 tensors are stored as f16 and computed in f32
    normal   f32 tensors that kernels exchange, and constants, are stored as f16; arithmetic is f32
    low      the same, and groups of nodes whose values stay within f16 compute in f16 where the
             device has it; sums are f32, in templates of a few terms each that f16 adds. On GPUs
             small weights of products are f16 as large ones are, so that programs are few; where
             they are to be fewer, products compute in f16 also where what is made of them stays f32

A node's dtype then says how it is stored. What is inlined is never rounded: a kernel that computes
in f32 converts what it loads and rounds what it stores. Inputs and outputs keep their dtypes.

Only what is large (or may be, where sizes are not known), and no gate of rows, is worth halving,
and only what survives it, which each op's declaration says (`Range` of ops/core.py). Exponentials
and powers, with what is made of them until a bounded op tames them, reductions and what feeds them
alone (a sum of squares passes 65504 soon), and whatever meets a constant that f16 can't hold stay
f32: a mask's finfo.min would be -inf, an epsilon of 1e-12 zero.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jitcl import dtypes
from jitcl.errors import UnsupportedError
from jitcl.ir.graph import Data, Graph, Node, const, derived, toposort
from jitcl.ir.group import Group, is_literal
from jitcl.ir.sizes import at_least_always, same
from jitcl.ir.types import ROW
from jitcl.ops.builder import lookup
from jitcl.passes.base import Pass
from jitcl.passes.matching import kind
from jitcl.passes.options import strictest
from jitcl.passes.regions import VIEWS, decoded_weights
from jitcl.target import Target

log = logging.getLogger("jitcl")

TINY, HUGE = 2.0 ** -14, 65504.0           # f16's smallest normal and largest number
SMALL = 4096                               # bytes: tensors up to here stay f32
LITTLE = f"no more than {SMALL} bytes"
OF_LITTLE = 4 * SMALL                      # and constants that only such are made of
EXACT = "positions, scales or what becomes integers"
GROWS = "may leave f16's range"
CONSTANT = "a constant that f16 can't hold"
OF_INPUTS = "of inputs, which may be large"
NO_HALVES = "the device computes no halves"
SHARED = "a number for many of another tensor"
MANY = 16                                  # at least
UNSTORED = ("", "reduction", "sort", "recurrence", "creation")     # kinds whose results stay f32
HALVED = ("elementwise", "movement", "contraction")                # kinds that f16 computes
CELLS = ("lstm_states", "gru_states", "rnn_states")                # operand 1: weights
LARGEST = ("reduce_max", "reduce_min")     # reductions that round nothing
LISTED = 8                                 # nodes that an error names
WIDE = "wide"                              # a precision: f32 even where the model says f16


@dataclass(frozen=True)
class CheckTypes(Pass):
    """UnsupportedError that names the nodes whose element types the device can't hold; the graph
    stays as it is.
    """

    target: Target

    def run(self, graph: Graph) -> Graph:
        for dtype, able in (("f64", self.target.fp64), ("bf16", self.target.bf16_storage),
                            ("f16", self.target.fp16_storage or self.target.soft_half)):
            bad = [n for n in graph.nodes if n.type.dtype == dtype and n.op != "const"]
            if bad and not able:
                raise UnsupportedError(self._message(graph, bad, dtype))
        return graph

    def _message(self, graph: Graph, bad: list[Node], dtype: str) -> str:
        names = [self._place(graph, n) for n in bad]
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        return (f"device '{self.target.name}' has no {dtype}, which {len(bad)} nodes compute: "
                f"{', '.join(names[:LISTED])}{more}\n"
                f"  Export the model in float32, or take a device with {dtype}: see jitcl devices.")

    @staticmethod
    def _place(graph: Graph, node: Node) -> str:
        if node.op == "input":
            return f"input '{node.attr('name')}' {node.type}"
        origin = graph.origins.get(node)
        return f"'{origin.name}' ({origin.op_type})" if origin else f"'{node.op}' {node.type}"


def assign_precision(graph: Graph, groups: Sequence[Group], target: Target, precision: str,
                     layers: Mapping[str, str] | None = None) -> tuple[Graph, list[Group]]:
    """The fused graph with the types that its nodes are stored in, and its groups with the type
    that each computes in. Groups stay what they are: no node is added, no kernel launched for it.

    layers: of nodes of the model, by name, where it is not `precision`. A group has the strictest
    of those that are fused in it. A "high" one stores its result, and reads constants, as the model
    says; what it reads of others is as they store it.

        %0 = conv(%x, %w) : f32[1,64,56,56]           %0 = conv(%x, %w16) : f32[1,64,56,56]
        %1 = relu(%0) : f32[1,64,56,56]         =>    %1 = relu(%0) : f16[1,64,56,56]
        %2 = conv(%1, %v) : f32[1,64,56,56]           %2 = conv(%1, %v16) : f32[1,64,56,56]
    """
    said = [precision_of(group, graph, precision, layers or {}) for group in groups]
    if all(p == "high" for p in said):
        return graph, list(groups)
    if not {*said} <= {"high", WIDE} and not target.fp16_storage:
        log.warning("precision=%s: device '%s' cannot store f16; tensors stay f32",
                    precision, target.name)
        return graph, list(groups)
    gpu = target.kind == "opencl" and target.device_type != "cpu"
    half = target.kind == "opencl" and target.computes_f16
    return _Assigner(graph, groups, half, gpu, target.few_programs).run(said)


def precision_of(group: Group, graph: Graph, precision: str, layers: Mapping[str, str]) -> str:
    """The strictest precision of the model's nodes in a group."""
    found = [layers.get(name, precision) for name in names_in(group, graph)]
    return strictest(*found) if found else precision


def names_in(group: Group, graph: Graph) -> dict[str, str]:
    """The model's nodes in a group, in order: name -> op type."""
    found = [o for n in group.members if (o := graph.origins.get(n)) is not None]
    return {name: o.op_type for o in found for name in (o.name, *o.twins)}


class Survival:
    """Which values of a graph f16 holds."""

    def __init__(self, graph: Graph) -> None:
        self.readers = graph.readers()
        self.wide: set[Node] = set()           # values that may leave f16's range
        self.held: set[Node] = set()           # f32 values that may be stored as f16
        self.whys: dict[Node, str] = {}        # of all others, why not
        self.decoded = decoded_weights([n for n in graph.nodes if n.inputs])
        self.exact: set[Node] = set()          # values of which a reader wants all digits
        for node in reversed(graph.nodes):
            if any(self._wants_digits(r) for r in self.readers[node]):
                self.exact.add(node)
        for node in graph.nodes:
            if node.type.dtype in ("f16", "f32") and self._widens(node):
                self.wide.add(node)
            if node.type.dtype == "f32":
                self.whys[node] = self._why_not(node)
                if not self.whys[node]:
                    self.held.add(node)

    def constant(self, node: Node) -> bool:
        """Whether all who read an f32 constant may read it as f16."""
        return fits(node) and all(
            r in self.held or self.whys.get(r) in (LITTLE, SHARED)
            or (kind(r) == "contraction" and lookup(r.op).range != "exact")
            or (r.op in CELLS and r.inputs[1] is node)      # recurrent weights
            for r in self.readers[node])

    def _widens(self, node: Node) -> bool:
        """Whether it leaves f16's range, or reads what does and does not bound it."""
        if kind(node) == "":
            return node.op == "const" and overflows(node)
        grown = any(i in self.wide for i in node.inputs)
        fact = lookup(node.op).range
        if fact == "grows" or (node.op == "mul" and node.inputs[0] is node.inputs[1]):
            return True
        if node.op == "mul" and any(map(normalises, node.inputs)):
            return False                       # a quotient, written with a reciprocal
        if fact == "divides":
            divisor = node.inputs[-1]
            if is_literal(divisor):
                return grown or not fits(divisor)
            return not away_from_zero(divisor)
        if node.op == "clip":                  # by what f16 holds, or by anything
            return grown and not all(i.op == "const" and fits(i) for i in node.inputs[1:])
        if node.op == "cast" and node.inputs[0].type.dtype == "f8e8m0":
            return True                        # powers of two from 2^-127 to 2^127
        return grown and fact != "bounds"

    def _why_not(self, node: Node) -> str:
        """Why an f32 value is not to be stored as f16; "" where it may be."""
        if kind(node) in UNSTORED:
            return f"a {kind(node) or node.op}"
        if lookup(node.op).range == "exact" or node in self.exact:
            return EXACT
        if node in self.wide:
            return GROWS
        floats = [i for i in node.inputs if i.type.dtype == "f32"]
        if not all(fits(i) for i in floats if i.op == "const"):
            return CONSTANT
        values = [i for i in floats if i.op != "const"]
        if kind(node) == "movement":            # of values in f16, or of rows of a table
            if values and not any(i in self.held for i in values):
                return "moved as it is"
        elif kind(node) == "elementwise":
            if self.readers[node] and all(kind(r) == "reduction" for r in self.readers[node]):
                return "only summed"
        elif values and all(map(from_input, values)):   # samples of sound may be as large as 32768
            return OF_INPUTS
        if at_least_always(SMALL, node.type.nbytes):
            return LITTLE
        return SHARED if self._shared(node) else ""

    def _shared(self, node: Node) -> bool:
        """Whether rows read a number of it each, as they do of a gate of channels: in f16 it would
        save next to nothing, and its kernels be others than those of fewer channels."""
        dims, readers = node.type.dims, self.readers[node]
        return bool(dims and readers) and same(dims[-1], 1) and all(
            shared_by(node, r) for r in readers)

    def _wants_digits(self, reader: Node) -> bool:
        """Whether a node wants all digits of what it reads: of positions, and of numbers that
        become integers. So does what only moves or shifts such values.
        """
        if lookup(reader.op).range == "exact":
            return True
        if reader.op == "cast" and dtypes.is_int(reader.type.dtype):
            return True
        return reader in self.exact and kind(reader) in ("movement", "elementwise")


class _Assigner:
    """Writes groups anew, each node with the type that it is stored in."""

    def __init__(self, graph: Graph, groups: Sequence[Group], half: bool, gpu: bool, few: bool
                 ) -> None:
        self.graph, self.groups, self.half, self.gpu, self.few = graph, groups, half, gpu, few
        self.survival = Survival(graph)
        self.outputs = {n for _, n in graph.outputs}
        self.stored: dict[Node, Node] = {}     # old root -> new
        self.halves: dict[Node, Node] = {}     # of constants
        self.origins = dict(graph.origins)

    def run(self, said: Sequence[str]) -> tuple[Graph, list[Group]]:
        """said: the precision of each group."""
        groups = [self._group(group, p) for group, p in zip(self.groups, said)]
        outputs = tuple((name, self.stored.get(n, n)) for name, n in self.graph.outputs)
        graph = Graph(self.graph.name, self.graph.inputs, outputs, self.origins)
        return graph, groups

    def _group(self, group: Group, precision: str) -> Group:
        root, wide = group.root, precision == WIDE
        whole = wide or precision == "high"
        dtype = self._root_dtype(group, whole, wide)
        small = OF_LITTLE if self.survival.whys.get(root) in (LITTLE, SHARED) else SMALL
        halves: Sequence[Node] = ()
        in_f32 = ""
        if precision == "low":
            halves, in_f32 = self._halves(group, dtype) if self.half else ((), NO_HALVES)
        whole_half = len(halves) == len(group.members)
        # what may be written into its place in a concatenation
        joined = root.inputs if root.op == "concat" and dtype == "f16" else ()
        new: dict[Node, Node] = {}
        for node in group.members:
            kept = dtype if node is root else node.type.dtype
            inner = node in halves and (whole_half or node is not group.anchor)
            if node is not root and kept == "f32" and (inner or node in joined):
                kept = "f16"                   # not rounded for it
            if node is not root and kept == "f16" and wide:
                kept = "f32"
            weighs = kind(node) == "contraction" and precision == "low"
            least = 0 if self.gpu and weighs else small
            inputs = [new[i] if i in new else self._operand(
                i, node in halves, whole or node not in halves and shared_by(i, node), least)
                for i in node.inputs]
            new[node] = Node.make(node.op, inputs, node.kwargs, type=node.type.with_(dtype=kept))
            if node in self.graph.origins:
                self.origins[new[node]] = self.graph.origins[node]
        self.stored[root] = new[root]
        made = replace(group, root=new[root], inlined=frozenset(new[n] for n in group.inlined),
                       anchor=None if group.anchor is None else new[group.anchor],
                       compute="f16" if halves else "f32", in_f32=in_f32)
        if any(n.type.dtype == "f16" for n in (new[root], *made.operands)):
            return made
        return replace(made, kept="put into f32" if wide else "as asked" if whole
                       else self._why_kept(root))

    def _why_kept(self, root: Node) -> str:
        """Why a result is no f16. Where it is one of the model's, that is so of what it is made
        of, too."""
        if root.type.dtype != "f32":
            return f"{root.type.dtype} in the model"
        why = self.survival.whys[root]
        if root in self.outputs and (not why or kind(root) == "movement"):
            return "a result of the model"
        return why or "a view of f32"

    def _root_dtype(self, group: Group, whole: bool, wide: bool) -> str:
        root = group.root
        if root in self.outputs:
            return root.type.dtype
        if root.op == "reshape" and not group.inlined and root.type.layout == ROW:
            source = root.inputs[0]            # another name of the same buffer
            if source.op not in ("input", "const") and source.type.layout == ROW:
                return self.stored[source].type.dtype
        if wide and root.type.dtype == "f16":
            return "f32"
        if whole or root.type.dtype != "f32":
            return root.type.dtype
        held = root in self.survival.held or (      # weights of few bits that are decoded to memory
            root in self.survival.decoded and decoded_fits(root))
        return "f16" if held else "f32"

    def _operand(self, node: Node, computes: bool, whole: bool = False, small: int = SMALL
                 ) -> Node:
        if node.op != "const" or node.type.dtype != "f32":
            return self.stored.get(node, node)
        if whole:
            return node
        if is_literal(node):
            return const(node.data, "f16") if computes else node
        if at_least_always(small, node.type.nbytes) and not computes:
            return node
        if node not in self.halves:
            kept = node in self.outputs or not self.survival.constant(node)
            self.halves[node] = node if kept else as_halves(node)
        return self.halves[node]

    def _halves(self, group: Group, dtype: str) -> tuple[Sequence[Node], str]:
        """What the group computes in f16: all that is in it, or, where programs are to be few, its
        product and what that is made of, behind which all is f32, as masked scores are. Where it is
        nothing, why."""
        why = self._why_wide(group.members, group, dtype)
        if not why:
            return group.members, ""
        anchor = group.anchor
        if not self.few or anchor is None or kind(anchor) != "contraction":
            return (), why
        product = toposort([anchor], group.inlined)
        if "f16" in (dtype, *(n.type.dtype for n in group.members if n not in product)):
            return (), why
        why = self._why_wide(product, group, dtype)
        return (() if why else product), why

    def _why_wide(self, nodes: Sequence[Node], group: Group, dtype: str) -> str:
        """Why not all that these nodes of a group compute with is within f16, operands included;
        "" where it is."""
        if not any(dtypes.is_float(n.type.dtype) for n in nodes):
            return "no floats"
        for node in nodes:
            if dtypes.is_float(node.type.dtype) and (why := self._node_wide(node, group, dtype)):
                return why
        for i in (i for n in nodes for i in n.inputs):
            read = i not in group.inlined and not is_literal(i) and dtypes.is_float(i.type.dtype)
            if read and self._operand(i, True).type.dtype != "f16":
                why = CONSTANT if i.op == "const" else self.survival.whys.get(i, "")
                return OF_INPUTS if from_input(i) else why or "reads f32"
        return ""

    def _node_wide(self, node: Node, group: Group, dtype: str) -> str:
        """The same of one node and its literals."""
        if node.type.dtype not in ("f16", "f32"):
            return f"{node.type.dtype} in the model"
        if node.op == "cast" or kind(node) not in HALVED and node.op not in LARGEST:
            return f"a {kind(node) if node.op != 'cast' else node.op}"
        if lookup(node.op).range == "exact" or node in self.survival.exact:
            return EXACT
        if node in self.survival.wide and not (node is group.root and dtype == "f16"):
            return GROWS                       # the root is rounded to f16 in any case
        return "" if all(fits(i) for i in node.inputs if is_literal(i)) else CONSTANT


def shared_by(node: Node, reader: Node) -> bool:
    """Whether each of its numbers is for many of another tensor, as biases are."""
    return kind(reader) == "elementwise" and at_least_always(
        reader.type.size, MANY * node.type.size)


def from_input(node: Node) -> bool:
    """Whether it is a graph's input, seen through views."""
    while node.op in VIEWS:
        node = node.inputs[0]
    return node.op == "input"


def away_from_zero(node: Node) -> bool:
    """Whether quotients by it are about as large as their dividends, or smaller: roots and sums by
    which something is normalised, and what has a floor that f16 holds.
    """
    if node.op == "const":
        return fits(node) and bool(np.all(np.abs(node.data) >= TINY))
    if node.op in ("cast", *VIEWS):
        return away_from_zero(node.inputs[0])
    if node.op == "add":                       # of an epsilon that f16 holds, too
        return any(map(away_from_zero, node.inputs)) and all(map(not_negative, node.inputs))
    if node.op in ("max", "clip"):
        return any(i.op == "const" and away_from_zero(i) and not_negative(i)
                   for i in node.inputs[:2])
    return node.op == "sqrt" or kind(node) == "reduction"


def normalises(node: Node) -> bool:
    """Whether it is a reciprocal of what stays away from 0: of a sum, say."""
    while node.op in ("cast", *VIEWS):
        node = node.inputs[0]
    return node.op == "reciprocal" and away_from_zero(node.inputs[0])


def not_negative(node: Node) -> bool:
    """Whether its values are 0 or more; those of sums by which something is normalised are."""
    if node.op == "const":
        return bool(np.all(node.data >= 0))
    if node.op in ("cast", *VIEWS):
        return not_negative(node.inputs[0])
    square = node.op == "mul" and node.inputs[0] is node.inputs[1]
    return square or kind(node) == "reduction" or node.op in ("abs", "exp", "sqrt", "relu",
                                                              "sigmoid", "softplus")


def as_halves(node: Node) -> Node:
    """A constant of f32, rounded."""
    data, half = node.attr("data"), node.type.with_(dtype="f16")
    if data.halves is not None:
        return Node.make("const", attrs={"data": data.halves}, type=half)
    if not data.reloads:
        return const(node.data, "f16")
    return derived(half, "rounded", [data], lambda: data.array)


def fits(node: Node) -> bool:
    """Whether f16 holds all values of a constant: none too large, and no number (but 0) that loses
    its digits. Among many weights, the smallest matter little.
    """
    largest = largest_of(node)
    return largest == 0 or TINY <= largest <= HUGE


def decoded_fits(node: Node) -> bool:
    """Whether f16 holds what is decoded of constants, by their types and the largest scale."""
    def most(of: Node) -> float:
        if dtypes.is_int(of.type.dtype):
            return float(max(map(abs, dtypes.limits(of.type.dtype))))
        if of.op == "const":
            return largest_of(of) if fits(of) else math.inf
        read = list(map(most, of.inputs))
        if of.op == "dequantize":
            return read[1] * (read[0] + sum(read[2:]))
        return sum(read)

    return most(node) <= HUGE


def overflows(node: Node) -> bool:
    """Whether a constant holds a number that f16 makes infinite."""
    return largest_of(node) > HUGE


def largest_of(node: Node) -> float:
    """The largest magnitude of a constant's finite numbers; 0 of integers."""
    data = node.attr("data")
    assert isinstance(data, Data)
    return data.largest if dtypes.is_float(node.type.dtype) else 0.0

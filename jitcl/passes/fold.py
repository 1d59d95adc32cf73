"""Constant folding: what depends on constants alone is computed now, by the references."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Data, Graph, Node, attr_key, const, derived, rebuild
from jitcl.ir.sizes import has_size
from jitcl.ops.builder import lookup, reference
from jitcl.passes.base import Pass
from jitcl.passes.regions import DECODERS

# references take long on large operands
SLOW = ("contraction", "window", "scan", "sort", "recurrence")


@dataclass(frozen=True)
class FoldConstants(Pass):
    """%2 = add(const 1.0, const 2.0)    =>    const 3.0

    Shape arithmetic (small integers) always folds. A large result folds where it is at most
    `max_growth` times what it is made of (a cast of 8-bit weights is 4); an expanded constant
    would fill memory and the cache, and is cheap to inline where it is read. Contractions, sorts
    and the like fold up to `max_slow_elements` of their operands.

    Low-bit weights stay as they are stored, and kernels decode them (`packed`); only what takes up
    to `packed_bytes` as numbers is decoded now.
    """

    max_growth: int = 4
    small_bytes: int = 64 << 10
    max_slow_elements: int = 1 << 20
    packed: bool = True
    packed_bytes: int = 1 << 10

    def run(self, graph: Graph) -> Graph:
        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            node = node if node.inputs == inputs else node.with_inputs(inputs)
            return self.folded(node) or node
        return rebuild(graph, change)

    def folded(self, node: Node) -> Node | None:
        """The constant that a node is, where it is one and may be computed now."""
        if node.op in ("input", "const") or any(i.op != "const" for i in node.inputs):
            return None
        if has_size((node.type.shape, tuple(node.kwargs.values()))):
            return None                        # one value for each shape
        if not self._bounded(node):
            return None
        given = [i.attr("data") for i in node.inputs]
        if node.type.nbytes > self.small_bytes and any(d.reloads for d in given):
            said = repr((node.op, [(k, attr_key(v)) for k, v in node.attrs]))
            made = derived(node.type, said, given,
                           lambda: reference(node, *(d.array for d in given)),
                           halves_of(node, said, given[0]))
            if node.op == "transpose" and node.attr("perm") == (1, 0):
                made.attr("data").turned = given[0]
            return made
        found = np.asarray(reference(node, *(i.data for i in node.inputs)))
        found.flags.writeable = False          # nobody else's: `Data` need not copy it
        return const(found, node.type.dtype)

    def _bounded(self, node: Node) -> bool:
        read = sum(i.type.size for i in node.inputs) * dtypes.itemsize(node.type.dtype)
        made = node.type.size * dtypes.itemsize(node.type.dtype)
        if node.op in DECODERS and made > node.inputs[0].type.nbytes:
            return made <= self.packed_bytes or not self.packed
        if made <= self.small_bytes and read <= self.small_bytes:
            return True
        bytes_read = sum(i.type.nbytes for i in node.inputs)
        if made > self.max_growth * bytes_read + self.small_bytes:
            return False
        slow = lookup(node.op).kind in SLOW or lookup(node.op).expand is not None
        return not slow or sum(i.type.size for i in node.inputs) <= self.max_slow_elements


def halves_of(node: Node, said: str, data: Data) -> Data | None:
    """The elements of a constant that widens halves, or moves elements of one that does."""
    if node.op == "cast" and node.type.dtype == "f32" and node.inputs[0].type.dtype == "f16":
        return data
    halves = data.halves
    if node.op not in ("transpose", "reshape") or halves is None:
        return None
    moved = replace(node, type=node.type.with_(dtype="f16"))
    return Data.derived(halves.dtype, node.type.dims, f"halves of {said}", [data],
                        lambda: np.asarray(reference(moved, halves.array)))

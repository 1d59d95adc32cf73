"""`Hooks`: what a template reads fused prologues and writes fused epilogues through."""

from __future__ import annotations

from jitcl.codegen.lower import Loads
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.target import Target


class Hooks:
    """Names the group's operands (`x0`, `x1`, ... in the order of `group.operands`) and builds expressions on them."""

    def __init__(self, group: Group, target: Target) -> None:
        self.group, self.target = group, target
        self.names = {node: f"x{i}" for i, node in enumerate(group.operands)}
        self.builder = KernelBuilder()
        self.loads = Loads(self.builder, group, self.names)

    def load(self, node: Node, ix: tuple[Expr, ...]) -> Expr:
        """An operand of the anchor at a logical index, with whatever is fused before it."""
        return self.loads.value(node, ix)

    def epilogue(self, ix: tuple[Expr, ...], value: Expr) -> Expr:
        """The root's value at logical index `ix`, given the anchor's `value` there; in its compute type."""
        anchor = self.group.anchor
        assert anchor is not None
        self.loads.preset(anchor, ix, value)
        return self.loads.value(self.group.root, ix)

    def epilogue_operands(self) -> list[Node]:
        """Buffers that the epilogue reads beside the anchor's own operands (bias, residual)."""
        anchor = self.group.anchor
        assert anchor is not None
        own = set(anchor.inputs)
        return [n for n in self.group.operands if n not in own]

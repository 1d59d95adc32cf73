"""Concatenations of many inputs as several, for drivers that fail on kernels with many buffers."""

from __future__ import annotations

from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.passes.base import RewritePass, Rewriter


@dataclass(frozen=True)
class SplitConcat(RewritePass):
    """At most `inputs` inputs a concatenation; 0 leaves all as they are.

        %y = concat(%a, .., %t)    =>    %1 = concat(%a, .., %h)    %2 = concat(%i, .., %p)
                                         %3 = concat(%q, .., %t)    %y = concat(%1, %2, %3)
    """

    inputs: int = 0

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if node.op != "concat" or not 1 < self.inputs < len(node.inputs):
            return None
        parts = [node.inputs[i:i + self.inputs] for i in range(0, len(node.inputs), self.inputs)]
        joined = [p[0] if len(p) == 1 else g.op("concat", *p, **node.kwargs) for p in parts]
        return g.op("concat", *joined, **node.kwargs)

"""Weights of products with few rows lie by columns, where a kernel for them reads columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.ir.sizes import has_size
from jitcl.passes.base import RewritePass, Rewriter
from jitcl.passes.fold import FoldConstants
from jitcl.target import Target

QUAD = 4                            # elements of a vector
FEW_ROWS = 8                        # of products that take as long as their weights take to come


@dataclass(frozen=True)
class WeightRows(RewritePass):
    """%y = matmul(%x, const [k, n])    =>    %1 = transpose(const [n, k]) {perm=[1, 0]}
                                              %y = matmul(%x, %1)

    On GPUs whose work-items sum parts of a column each: its terms are neighbours then, and a group
    reads one stretch of memory. For few rows; for many, or a number that is not known, where
    columns are whole vectors, of many only if rows are none (a vocabulary of 50257); for any number
    where a model's file has the weights so: products of many rows read either, and a language
    model's prompt shares its weights with its tokens.
    """

    target: Target

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if not self.target.stages_tiles or node.op != "matmul" or node.inputs[1].op != "const":
            return None
        a, b = node.inputs
        if b.type.rank != 2 or b.type.dtype not in ("f32", "f16"):
            return None
        turned, rows = b.attr("data").turned, math.prod(node.type.dims[:-1])
        if turned is not None:
            kept = Node.make("const", attrs={"data": turned},
                             type=b.type.with_(shape=b.type.dims[::-1]))
        elif (has_size(rows) or rows > FEW_ROWS) and (
                b.type.dims[0] % QUAD or not has_size(rows) and not b.type.dims[1] % QUAD):
            return None
        else:
            folded = FoldConstants().folded(g.transpose(b, perm=(1, 0)))
            assert folded is not None
            kept = folded
        return g.matmul(a, g.transpose(kept, perm=(1, 0)))

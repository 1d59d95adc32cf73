"""Views (transpose, reshape) move behind arithmetic, so that it lands in the kernel before them."""

from __future__ import annotations

from dataclasses import dataclass

from jitcl import dtypes
from jitcl.ir.graph import Node
from jitcl.passes.base import RewritePass, Rewriter
from jitcl.passes.matching import kind, scalar

PERMUTING = ("transpose", "reshape")       # as many elements behind as before


@dataclass(frozen=True)
class ViewsLast(RewritePass):
    """Arithmetic on one tensor and numbers is done before its elements are moved.

        %1 = matmul(%x, w)                            %1 = matmul(%x, w)
        %2 = transpose(%1) {perm=[0, 2, 1]}     =>    %2 = mul(%1, 0.125)
        %3 = mul(%2, 0.125)                           %3 = transpose(%2) {perm=[0, 2, 1]}

    The product becomes the matmul's epilogue (or its weights), and the transpose an address in
    whoever reads it. Only where nothing else reads the view.
    """

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if kind(node) != "elementwise":
            return None
        tensors = {i for i in node.inputs if scalar(i) is None}
        if len(tensors) != 1:
            return None
        view, = tensors
        if view.op not in PERMUTING or view.type.shape != node.type.shape or g.readers(view) > 1:
            return None
        if dtypes.itemsize(node.type.dtype) > dtypes.itemsize(view.type.dtype):
            return None                    # a wider type is better made behind the move
        source = view.inputs[0]
        if any(i.type.rank > source.type.rank for i in node.inputs if i is not view):
            return None
        value = g.op(node.op, *(source if i is view else i for i in node.inputs), **node.kwargs)
        return g.op(view.op, value, **view.kwargs)

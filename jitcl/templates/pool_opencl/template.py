"""Pooling in 1 and 2 dimensions, on OpenCL devices that read rows as vectors."""

from __future__ import annotations

from typing import Any

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.target import Target
from jitcl.templates.base import Emitted
from jitcl.templates.convolution import ConvShape
from jitcl.templates.opencl.window import Windows, emit_windows, suitable, vector_width

KINDS = {"max_pool": "max", "average_pool": "mean"}


class PoolOpenCl:
    """max_pool, and average_pool where every window has as many elements; f32 or f16 storage."""

    name = "pool_opencl"
    language = "opencl"

    def accepts(self, group: Group, target: Target) -> Windows | None:
        node = group.anchor
        if node is None or node.op not in KINDS or node.type.rank not in (3, 4):
            return None
        if node.op == "average_pool" and not whole_windows(node):
            return None
        s = pool_shape(node)
        if not suitable(group, s, target):
            return None
        return Windows(KINDS[node.op], s, vector_width(s, target))

    def emit(self, match: Windows, hooks: Any) -> list[Emitted]:
        return emit_windows(match, hooks)


def whole_windows(node: Node) -> bool:
    """Whether no window of an average counts fewer elements than others."""
    if node.attr("ceil"):
        return False
    return bool(node.attr("count_pad")) or not any(node.attr("pads"))


def pool_shape(node: Node) -> ConvShape:
    """The numbers of a pooling node. With `ceil`, padding behind reaches as far as the windows."""
    x = node.inputs[0].type.dims
    rank = len(x) - 2
    size, out, kernel, strides, dilations = (
        (1,) * (2 - rank) + tuple(values) for values in (
            x[2:], node.type.dims[2:], node.attr("kernel"), node.attr("strides"),
            node.attr("dilations")))
    pads = node.attr("pads")
    before = (0,) * (2 - rank) + tuple(pads[:rank])
    after = tuple(
        max((o - 1) * st + (k - 1) * d + 1 - n - b, 0)
        for o, st, k, d, n, b in zip(out, strides, kernel, dilations, size, before))
    pairs: Any = (size, out, kernel, strides, dilations, (*before, *after))
    two_by_two = dict(zip(("size", "out", "kernel", "strides", "dilations", "pads"), pairs))
    return ConvShape(n=x[0], c=x[1], k=x[1], groups=x[1], **two_by_two)

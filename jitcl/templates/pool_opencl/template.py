"""Pooling in 1 and 2 dimensions, on OpenCL devices that read rows as vectors."""

from __future__ import annotations

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.sizes import is_size
from jitcl.target import Target
from jitcl.templates.base import Emitted, OpenClHooks, Template
from jitcl.templates.convolution import ConvShape, two
from jitcl.templates.opencl.planes import as_stored
from jitcl.templates.opencl.window import Lanes, Windows, emit_windows, suitable, vector_widths

KINDS = {"max_pool": "max", "average_pool": "mean"}


class PoolOpenCl(Template[Lanes, OpenClHooks]):
    """max_pool, and average_pool where every window has as many elements; f32 or f16 storage."""

    name = "pool_opencl"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Lanes, ...]:
        node = group.anchor
        if node is None or node.op not in KINDS or node.type.rank not in (3, 4):
            return ()
        if node.op == "average_pool" and not whole_windows(node):
            return ()
        s = as_stored(pool_shape(node), group.root)
        return vector_widths(s, target) if suitable(group, s, target) else ()

    def emit(self, match: Lanes, hooks: OpenClHooks) -> list[Emitted]:
        node = hooks.anchor
        s = as_stored(pool_shape(node), hooks.group.root)
        return emit_windows(Windows(KINDS[node.op], s, match.width), hooks)


def whole_windows(node: Node) -> bool:
    """Whether no window of an average counts fewer elements than others."""
    if node.attr("ceil"):
        return False
    return bool(node.attr("count_pad")) or not any(node.attr("pads"))


def pool_shape(node: Node) -> ConvShape:
    """The numbers of a pooling node. With `ceil`, padding behind reaches as far as the windows."""
    x = node.inputs[0].type.dims
    rank = len(x) - 2
    size, out, kernel, strides, dilations = map(two, (
        x[2:], node.type.dims[2:], node.attr("kernel"), node.attr("strides"),
        node.attr("dilations")))
    before, behind = (two(p, 0) for p in (node.attr("pads")[:rank], node.attr("pads")[rank:]))
    bottom, right = (
        max(over, 0) if not is_size(over := (o - 1) * st + (k - 1) * d + 1 - n - b)
        else e + (st - 1) * bool(node.attr("ceil"))          # at most
        for o, st, k, d, n, b, e in zip(out, strides, kernel, dilations, size, before, behind))
    return ConvShape(x[0], x[1], x[1], size, out, kernel, strides, dilations,
                     (*before, bottom, right), x[1])

"""A convolution as numbers, for the templates of every device."""

from __future__ import annotations

from dataclasses import dataclass

from jitcl.ir.graph import Node
from jitcl.ir.group import Group


@dataclass(frozen=True)
class ConvShape:
    """A convolution as numbers. A 1-D one has one row."""

    n: int
    c: int  # input channels
    k: int
    size: tuple[int, int]  # input height and width
    out: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    groups: int


def packable(node: Node | None, op: str, group: Group | None = None) -> Node | None:
    """The node where it is a convolution `op` of 1 or 2 spatial axes, f32 or f16, that computes
    something and whose weight is constant, or decoded of constants by the group.
    """
    if node is None or node.op != op or node.type.rank not in (3, 4):
        return None
    x, w = node.inputs
    constant = w.op == "const" or (group is not None and group.decodes(w))
    stored = constant and x.type.dtype in ("f32", "f16")
    return node if stored and node.type.size and x.type.size else None


def shape_of(node: Node) -> ConvShape:
    """The numbers of a conv node of 1 or 2 spatial axes."""
    x, w = (i.type.dims for i in node.inputs[:2])
    pads = node.attr("pads")
    four = (0, pads[0], 0, pads[1]) if len(x) == 3 else tuple(pads)
    return ConvShape(
        x[0], x[1], w[0], two(x[2:]), two(node.type.dims[2:]), two(w[2:]),
        two(node.attr("strides")), two(node.attr("dilations")), four, node.attr("group"))


def two(values: tuple[int, ...], missing: int = 1) -> tuple[int, int]:
    """Numbers of two spatial axes; those of one are the second's."""
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])

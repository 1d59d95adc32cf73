"""Convolutions of unsigned bytes with constant signed ones, in i32: four products an addition.

Bytes of four channels side by side are one element of the input and one of the packed weights;
beside that the kernel is `conv_cpu`'s. Zero points of inputs are taken out of the sums:

    sum of (x - zero) * w  =  sum of x * w  -  zero * sum of w       (the last one is a constant)

So is what the CPU's instruction takes from x, where it wants signed bytes of both.
"""

from __future__ import annotations

import numpy as np

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.target import Target
from jitcl.templates.base import CpuHooks, Emitted, Lines, Match, Packed, Template
from jitcl.templates.conv_cpu.template import (
    FEW_CHANNELS,
    ConvShape,
    Writer,
    padded_input,
    shape_of,
)
from jitcl.templates.cpu.arithmetic import fours, of_bytes


class ConvIntegerCpu(Template[Match, CpuHooks]):
    """conv_integer of u8 with constant, symmetric i8; padding only where the zero point is 0."""

    name = "conv_integer_cpu"

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        node = group.anchor
        if node is None or node.op != "conv_integer" or not target.byte_dot:
            return ()
        if node.type.rank not in (3, 4) or node.type.size == 0 or node.inputs[0].type.size == 0:
            return ()
        return (Match(),) if computes_on_bytes(node, target) else ()

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        s, node = shape_of(hooks.anchor), hooks.anchor.inputs[0]
        before, a, physical, inset = padded_input(s, node, hooks, planes=False)
        return [*before, _BytesWriter(s, hooks).write(a, physical, inset)]


def computes_on_bytes(node: Node, target: Target) -> bool:
    """Whether a conv_integer's operands are what the instruction takes."""
    x, w, x_zero, w_zero = node.inputs
    if (x.type.dtype, w.type.dtype, w.op) != ("u8", "i8", "const"):
        return False
    if any(z.op != "const" for z in (x_zero, w_zero)) or np.any(w_zero.data):
        return False
    if np.any(x_zero.data) and any(node.attr("pads")):
        return False                   # padding would have to be the zero point
    s, width = shape_of(node), target.vector_width
    if s.groups > 1 and (s.c // s.groups % width or s.k // s.groups % width):
        return False
    return s.c >= FEW_CHANNELS and s.k >= width // 2


class _BytesWriter(Writer):
    def __init__(self, s: ConvShape, hooks: CpuHooks) -> None:
        self.arithmetic = of_bytes(hooks.target)
        super().__init__(s, hooks)

    def kind(self) -> str:
        return "conv_integer"

    def a_dtype(self) -> str:
        return "i32"

    def pixel_lines(self, flat: bool) -> Lines | None:
        return None

    def weights(self, w: np.ndarray) -> np.ndarray:
        return fours(w, 1)

    def zero_sums(self) -> tuple[Packed, ...]:
        assert self.group.anchor is not None
        zero = int(self.group.anchor.inputs[2].data) - self.arithmetic.less
        if not zero:
            return ()
        lanes = -(-self.s.k // self.width) * self.width

        def make(w: np.ndarray) -> np.ndarray:
            sums = np.zeros(lanes, np.int32)
            sums[: self.s.k] = zero * w.astype(np.int32).sum(tuple(range(1, w.ndim)))
            return sums

        return (Packed(self.w, f"sums of weights times {zero}", make),)

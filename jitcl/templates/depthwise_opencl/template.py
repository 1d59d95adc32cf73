"""Depthwise convolution in 1 and 2 dimensions, on OpenCL devices that read rows as vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.ir.group import Group
from jitcl.target import Target
from jitcl.templates.base import Emitted, Packed
from jitcl.templates.convolution import shape_of
from jitcl.templates.opencl.window import Windows, emit_windows, suitable, vector_width


def as_floats(w: np.ndarray) -> np.ndarray:
    return w.astype(np.float32)


class DepthwiseOpenCl:
    """conv of one input channel a group with a constant weight; f32 or f16 storage."""

    name = "depthwise_opencl"
    language = "opencl"

    def accepts(self, group: Group, target: Target) -> Windows | None:
        node = group.anchor
        if node is None or node.op != "conv" or node.type.rank not in (3, 4):
            return None
        s, weights = shape_of(node), node.inputs[1]
        if s.groups != s.c or s.c == 1 or weights.op != "const" or not suitable(group, s, target):
            return None
        packed = Packed(weights, "f32", as_floats)
        return Windows("sum", s, vector_width(s, target), packed)

    def emit(self, match: Windows, hooks: Any) -> list[Emitted]:
        return emit_windows(match, hooks)

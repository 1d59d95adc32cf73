"""Depthwise convolution in 1 and 2 dimensions, on OpenCL devices: vectors of rows of planes that
are copied with their padding, or strips of columns where GPUs stage tiles.
"""

from __future__ import annotations

from jitcl.ir.group import Group
from jitcl.target import Target
from jitcl.templates.base import Emitted, OpenClHooks, Template
from jitcl.templates.convolution import shape_of
from jitcl.templates.depthwise_opencl.strips import Strip, emit_strips, strips
from jitcl.templates.opencl.planes import as_stored
from jitcl.templates.opencl.window import Lanes, Windows, emit_windows, suitable, vector_widths


class DepthwiseOpenCl(Template[Lanes | Strip, OpenClHooks]):
    """conv of one input channel a group with a constant weight; f32 or f16 storage."""

    name = "depthwise_opencl"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Lanes | Strip, ...]:
        node = group.anchor
        if node is None or node.op != "conv" or node.type.rank not in (3, 4):
            return ()
        s, weights = as_stored(shape_of(node), group.root), node.inputs[1]
        if s.groups != s.c or s.c == 1 or weights.op != "const":
            return ()
        if target.stages_tiles:
            return strips(group)
        return vector_widths(s, target) if suitable(group, s, target) else ()

    def emit(self, match: Lanes | Strip, hooks: OpenClHooks) -> list[Emitted]:
        if isinstance(match, Strip):
            return emit_strips(match, hooks)
        weights = hooks.anchor.inputs[1]
        s = as_stored(shape_of(hooks.anchor), hooks.group.root)
        return emit_windows(Windows("sum", s, match.width, weights), hooks)

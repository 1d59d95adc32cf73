"""Maximum and average pooling in 1 and 2 dimensions over blocks of channels."""

from __future__ import annotations

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.target import Target
from jitcl.templates.base import ENTRY, CpuHooks, Emitted, Lines, Match, Template
from jitcl.templates.convolution import two
from jitcl.templates.cpu.operands import operands_of


class PoolCpu(Template[Match, CpuHooks]):
    """max_pool and average_pool of f32 or f16, from blocks to blocks."""

    name = "pool_cpu"
    sized = True

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        node = group.anchor
        if node is None or node.op not in ("max_pool", "average_pool") or target.kind != "cpu":
            return ()
        x, root, width = node.inputs[0], group.root.type, target.vector_width
        blocked = all(t.layout.kind == "NCHWc" and t.layout.block == width for t in (x.type, root))
        if not blocked or x.type.rank not in (3, 4) or x.type.dtype not in ("f32", "f16"):
            return ()
        stored = x not in group.inlined
        return (Match(),) if stored and node.type.size and x.type.size else ()

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        width, group, node = hooks.target.vector_width, hooks.group, hooks.anchor
        x = node.inputs[0]
        root = group.root.type
        left = f"channels - kb * {width}" if root.dims[1] % width else ""
        lines = hooks.vector_epilogue(width, flat_space=False, channels_left=left)
        scalar = Lines() if lines else hooks.scalar_epilogue(width)
        operands = operands_of(lines or scalar, hooks)
        largest = node.op == "max_pool"
        planes = root.rank == 4
        numbers = pool_params(node, group.root, width)
        body = hooks.render(
            "pool_cpu/numba.py.j2", entry=ENTRY, largest=largest,
            DH=node.attr("dilations")[0] if planes else 1, DW=node.attr("dilations")[-1], W=width,
            x_dtype=x.type.dtype, y_dtype=root.dtype,
            operands=[(hooks.names[n], n.type.dtype) for n in operands], params=numbers,
            halo=root.layout.halo, halo_rows=root.layout.halo if planes else 0,
            vector_lines=lines or [], scalar_lines=scalar)
        return [Emitted(node.op, body, (x, *operands, group.root), (group.root,),
                        numbers | hooks.sizes.params())]


def pool_params(node: Node, root: Node, lanes: int) -> dict[str, int]:
    """The numbers of a pooling kernel; a 1-D one has one row."""
    x, y = node.inputs[0].type, root.type
    pads = node.attr("pads")
    (top, left), (bottom, right) = two(pads[: len(pads) // 2], 0), two(pads[len(pads) // 2 :], 0)
    counted = node.attr("count_pad", False)
    above, before, below, behind = (p if counted else 0 for p in (top, left, bottom, right))
    (kh, kw), (sh, sw) = two(node.attr("kernel")), two(node.attr("strides"))
    (height, width), (oh, ow) = two(x.dims[2:]), two(y.dims[2:])
    x_halo, y_halo = x.layout.halo, y.layout.halo
    x_rows, y_rows = (0, 0) if x.rank == 3 else (x_halo, y_halo)
    x_width, y_width, y_height = width + 2 * x_halo, ow + 2 * y_halo, oh + 2 * y_rows
    return {
        "n_count": y.dims[0], "channels": y.dims[1], "kbs": y.physical[1], "oh": oh, "ow": ow,
        "sh": sh, "sw": sw, "kh": kh, "kw": kw, "top": top, "left": left, "above": above,
        "before": before, "below": below, "behind": behind, "height": height, "width": width,
        "x_first": (x_rows * x_width + x_halo) * lanes,
        "x_block": (height + 2 * x_rows) * x_width * lanes, "x_width": x_width,
        "y_first": (y_rows * y_width + y_halo) * lanes, "y_block": y_height * y_width * lanes,
        "y_width": y_width, "y_height": y_height}

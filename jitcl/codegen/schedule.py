"""Generated loops for a group that no template claims: scheduled and rendered."""

from __future__ import annotations

from dataclasses import replace

from jitcl.codegen.flags import flag_names, flagged
from jitcl.codegen.lower import Lowered
from jitcl.codegen.render_vector import vector_kernel
from jitcl.codegen.schedule_cpu import loops_for_cpu
from jitcl.codegen.schedule_opencl import schedule
from jitcl.codegen.schedule_sized import sized_for_cpu, sized_for_opencl, sizes_of
from jitcl.errors import JitclError
from jitcl.ir.group import Group
from jitcl.ir.kernel import scanned
from jitcl.ir.printer import print_kernel
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Emitted


def generic_kernel(lowered: Lowered, group: Group, target: Target) -> Emitted:
    """The kernel's text and launch on a target. Equal layers have equal kernels, which are
    scheduled once: so it has the name of its ops here, not the step's."""
    stem = kernel_stem(group)
    kernel = replace(flagged(lowered.kernel, group), name=stem)
    arguments = (*lowered.operands, *flag_names(group), group.root)
    if target.kind == "reference":           # unscheduled, as text IR
        text = print_kernel(replace(kernel, name=ENTRY))
        return Emitted(stem, text, arguments, (group.root,))
    if target.kind == "opencl":
        write = sized_for_opencl if sizes_of(kernel) else schedule
        return write(kernel, target).emitted(stem, arguments, group.root)
    if target.kind != "cpu":
        raise JitclError(f"no renderer for devices of kind '{target.kind}'")
    if sizes_of(kernel):
        return sized_for_cpu(kernel).emitted(stem, arguments, group.root)
    vectors = None if scanned(kernel) else vector_kernel(kernel, ENTRY, target.vector_width)
    body = vectors or loops_for_cpu(kernel, ENTRY)
    return Emitted(stem, body, arguments, (group.root,))


def kernel_stem(group: Group) -> str:
    """The readable part of a kernel's name: its ops in order, the anchor first, cut to 40.

    Naming scheme: <anchor or first op>_<other ops>_<digest of the body>: equal code has one name.
    """
    members = [n.op for n in group.members]
    if group.anchor is not None:
        members = [group.anchor.op] + [n.op for n in group.members if n is not group.anchor]
    stem = "_".join(dict.fromkeys(members))
    return stem if len(stem) <= 40 else stem[:40].rsplit("_", 1)[0]

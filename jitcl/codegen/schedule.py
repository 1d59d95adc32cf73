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
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import Kernel, scanned
from jitcl.ir.printer import print_kernel
from jitcl.ir.sizes import SizePinned
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
    if sizes_of(kernel):
        return _sized(kernel, stem, target, arguments, group)
    if target.kind == "cpu":
        vectors = None if scanned(kernel) else vector_kernel(kernel, ENTRY, target.vector_width)
        body = vectors or loops_for_cpu(kernel, ENTRY)
        return Emitted(stem, body, arguments, (group.root,))
    if target.kind == "opencl":
        done = schedule(kernel, target)
        return Emitted(stem, done.body, arguments, (group.root,), done.params, done.global_size,
                       done.local_size)
    raise JitclError(f"no renderer for devices of kind '{target.kind}'")


def _sized(kernel: Kernel, stem: str, target: Target, arguments: tuple[Node, ...],
           group: Group) -> Emitted:
    """One kernel for many sizes."""
    if target.kind == "cpu":
        done = sized_for_cpu(kernel)
    elif target.kind == "opencl":
        done = sized_for_opencl(kernel, target)
    else:
        raise SizePinned(f"kernels of '{stem}' have fixed sizes here")
    return Emitted(stem, done.body, arguments, (group.root,), done.params, done.global_size,
                   done.local_size)


def kernel_stem(group: Group) -> str:
    """The readable part of a kernel's name: its ops in order, the anchor first, cut to 40.

    Naming scheme: <anchor or first op>_<other ops>_<digest of the body>: equal code has one name.
    """
    members = [n.op for n in group.members]
    if group.anchor is not None:
        members = [group.anchor.op] + [n.op for n in group.members if n is not group.anchor]
    stem = "_".join(dict.fromkeys(members))
    return stem if len(stem) <= 40 else stem[:40].rsplit("_", 1)[0]

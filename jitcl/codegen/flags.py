"""Kernels that tell when a result of their group is infinite or NaN, as it is stored.

    kernel @f(in x: f32[8], out y: f16[8]) { .. }
    =>  kernel @f(in x: f32[8], out flags: i32[3], out y: f16[8]) flagging flags[2] = 1 { .. }

`flags` is one buffer for the whole plan, in which each group has its place. In texts the place is
`flag`, a kernel's last integer parameter, so that equal kernels are one. Templates get the same
through the stores that hooks write for them: `flags` is an operand that these lines read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jitcl.ir import expr as E
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import Buffer, Kernel, Store

FLAG, FLAGS = "flag", "flags"


def flag_names(group: Group) -> dict[Node, str]:
    """What a group's kernels call the flags."""
    return {} if group.flag is None else {group.flag.flags: FLAGS}


def flag_params(group: Group) -> dict[str, int]:
    """The parameter of a group's kernel that flags."""
    return {} if group.flag is None else {FLAG: group.flag.number}


def buffers_of(names: dict[Node, str]) -> tuple[Buffer, ...]:
    """The buffers of nodes."""
    return tuple(Buffer(name, n.type.dtype, n.type.physical, "out") for n, name in names.items())


def flagging_of(buffers: Iterable[Buffer], number: int = 0) -> Store | None:
    """What a kernel of these buffers does where a result is not finite. number: that of its group,
    which texts don't have."""
    if not any(b.name == FLAGS for b in buffers):
        return None
    return Store(FLAGS, (E.index(number),), E.const(1, "i32"))


def as_text(flagging: Store) -> Store:
    """As texts have it: its place is their parameter."""
    return replace(flagging, indices=(E.var(FLAG),))


def text_params(kernel: Kernel) -> tuple[str, ...]:
    """The parameters of a kernel's text behind all others."""
    return () if kernel.flagging is None else (FLAG,)


def flagged(kernel: Kernel, group: Group) -> Kernel:
    """The group's kernel, which tells where the group has a flag."""
    *operands, y = kernel.buffers
    more = buffers_of(flag_names(group))
    number = 0 if group.flag is None else group.flag.number
    return replace(kernel, buffers=(*operands, *more, y), flagging=flagging_of(more, number))


__all__ = ["FLAG", "FLAGS", "as_text", "buffers_of", "flag_names", "flag_params", "flagged",
           "flagging_of", "text_params"]

"""Kernels that tell when a result of their group is infinite or NaN, as it is stored.

    kernel @f(in x: f32[8], out y: f16[8]) { .. }
    =>  kernel @f(in x: f32[8], in flag: i32[1], out flags: i32[3], out y: f16[8])
          flagging flags[index(flag[0])] = 1 { .. }

`flags` is one buffer for the whole plan, `flag` a group's number in it. Templates get the same
through the stores that hooks write for them: both are operands that these lines read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jitcl.ir import expr as E
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import Buffer, Kernel, Store

FLAG, FLAGS = "flag", "flags"
_FLAGGING = Store(FLAGS, (E.cast(E.load(FLAG, (E.index(0),), "i32"), "index"),), E.const(1, "i32"))


def flag_names(group: Group) -> dict[Node, str]:
    """What a group's kernels call its number and the flags."""
    return {} if group.flag is None else {group.flag.number: FLAG, group.flag.flags: FLAGS}


def buffers_of(names: dict[Node, str]) -> tuple[Buffer, ...]:
    """The buffers of nodes."""
    return tuple(Buffer(name, n.type.dtype, n.type.physical, "out" if name == FLAGS else "in")
                 for n, name in names.items())


def flagging_of(buffers: Iterable[Buffer]) -> Store | None:
    """What a kernel of these buffers does where a result is not finite."""
    return _FLAGGING if any(b.name == FLAGS for b in buffers) else None


def flagged(kernel: Kernel, group: Group) -> Kernel:
    """The group's kernel, which tells where the group has a flag."""
    *operands, y = kernel.buffers
    more = buffers_of(flag_names(group))
    return replace(kernel, buffers=(*operands, *more, y), flagging=flagging_of(more))


__all__ = ["FLAG", "FLAGS", "buffers_of", "flag_names", "flagged", "flagging_of"]

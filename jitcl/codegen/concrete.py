"""What was generated for sizes, at one of their values: so that a kernel for many shapes is tried
and checked as those for one shape are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitcl.codegen.generate import Generated
from jitcl.codegen.lower import Lowered, lower
from jitcl.codegen.plan import Plan
from jitcl.codegen.schedule_sized import group_is_sized
from jitcl.ir.graph import Node, toposort
from jitcl.ir.size_ranges import everywhere
from jitcl.ir.sizes import LOWEST, Space, at

SCALES = (1 / 256, 1 / 64, 1 / 16, 4)        # of hints: rows from one to thousands


def concretes(generated: Generated, space: Space) -> list[Generated]:
    """What was generated at the hints and, for kernels that have no work there, at other sizes."""
    hints = [a.hint for a in space.atoms]
    found = [concrete(generated, hints)]
    idle = {s.kernel for s in generated.plan.steps} - _launched(generated.plan, hints)
    for scale in SCALES:
        values = space.values({a.symbol: max(LOWEST, round(a.hint * scale))
                               for a in space.atoms if a.free})
        more = idle & _launched(generated.plan, values) if idle else None
        if more and space.holds(values):
            found.append(concrete(generated, values))
            idle -= more
    return found


def _launched(plan: Plan, values: Sequence[int]) -> set[str]:
    """The kernels that have work where atoms have these values."""
    return {s.kernel for s in plan.steps if 0 not in [at(n, values) for n in s.global_size]}


def concrete(generated: Generated, values: Sequence[int]) -> Generated:
    """The plan, groups and unscheduled kernels where atoms have these values. Its nodes are not
    interned: tensors that become the same (ranges of two lengths that happen to be equal now) are
    kept apart, since each has its place in memory.
    """
    roots = [n for g in generated.groups for n in (*g.members, *g.operands)]
    roots += generated.places
    new: dict[Node, Node] = {}
    for node in toposort(roots):
        attrs = tuple((k, everywhere(v, lambda size: at(size, values))) for k, v in node.attrs)
        shape = everywhere(node.type.shape, lambda size: at(size, values))
        new[node] = replace(node, inputs=tuple(new[i] for i in node.inputs), attrs=attrs,
                            type=node.type.with_(shape=shape))
    places = {new[n]: b for n, b in generated.places.items()}
    groups = [replace(g, root=new[g.root], inlined=frozenset(new[n] for n in g.inlined),
                      anchor=new[g.anchor] if g.anchor is not None else None)
              for g in generated.groups]
    kernels: list[Lowered | None] = []
    for old, group, kernel in zip(generated.groups, groups, generated.kernels):
        if kernel is not None and group_is_sized(old):
            kernel = lower(group, kernel.kernel.name)
        elif kernel is not None:            # its operands may be made of sizes all the same
            kernel = replace(kernel, operands=tuple(new[n] for n in kernel.operands))
        kernels.append(kernel)
    plan = generated.plan.at(values)
    return Generated(plan, groups, kernels, places, generated.whys)

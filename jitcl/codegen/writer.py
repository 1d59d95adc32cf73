"""The kernels of one group for one Target, written but not yet part of a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jitcl import config
from jitcl.codegen.flags import flag_params
from jitcl.codegen.hooks import CpuGroupHooks
from jitcl.codegen.hooks_opencl import OpenClGroupHooks
from jitcl.codegen.lower import Lowered, lower
from jitcl.codegen.opencl_threads import ThreadHooks, runs_threads
from jitcl.codegen.plan import LANGUAGE, KernelSource, Language
from jitcl.codegen.schedule import generic_kernel
from jitcl.codegen.schedule_sized import group_is_sized, space_of
from jitcl.ir.group import Group
from jitcl.ir.sizes import SizePinned, judged_by_hint, same
from jitcl.target import Target
from jitcl.templates import CPU_TEMPLATES, OPENCL_TEMPLATES, THREAD_TEMPLATES
from jitcl.templates.base import (
    ENTRY,
    FIRST,
    GROUP,
    Chooser,
    Declined,
    Emitted,
    Writes,
    with_main,
)

DIGEST = 10                     # characters at the end of a kernel's name, of all its text


@dataclass(frozen=True)
class Launch:
    """One kernel with its launch. `helps`: what one does for its main step that only arranges
    operands, or puts parts together."""

    name: str                               # of the step
    kernel: KernelSource
    emitted: Emitted
    helps: str = ""


@dataclass(frozen=True)
class GroupKernels:
    """All launches of a group, and its unscheduled kernel where generated loops write it."""

    group: Group
    launches: tuple[Launch, ...]
    lowered: Lowered | None = None
    declined: tuple[str, ...] = ()          # templates that would have written it, but for ..


@dataclass(frozen=True)
class Templated:
    """What a template emits of a group; those before it that would have written it, but for .."""

    emitted: list[Emitted]
    template: str
    declined: tuple[str, ...]


Memo = dict[tuple[Group, str], Lowered]    # the same kernel on most variants
Asked = tuple[type[CpuGroupHooks] | type[OpenClGroupHooks], tuple[Writes[Any], ...]]


@dataclass(frozen=True)
class Writer:
    """Writes groups for a target. `exact`: OpenCL kernels say which work-group they are launched
    with. `chooser`: which candidate of a template's is taken.
    """

    target: Target
    templates: bool = True
    exact: bool = False
    chooser: Chooser = field(default=FIRST, compare=False)

    @property
    def language(self) -> Language:
        return LANGUAGE[self.target.kind]

    def write(self, group: Group, name: str, memo: Memo) -> GroupKernels:
        """The kernels of a template where one accepts the group, else generated loops. `memo` keeps
        what is lowered for other writers.
        """
        declined: list[str] = []
        found = self.templated(group, declined)
        if found is not None:
            return self.kernels(group, name, found)
        lowered = self._lowered(group, name, memo)
        generic = generic_kernel(lowered, group, self.target)
        return GroupKernels(group, self._launches(group, name, [generic], ""), lowered,
                            tuple(declined))

    def templated(self, group: Group, declined: list[str] | None = None) -> Templated | None:
        """What the first template that writes the group emits; those before it that might have, and
        why not, are added to `declined`."""
        declined = [] if declined is None else declined
        for make, templates in self.asked(group):
            hooks = make(group, self.target)
            for template in templates:
                try:
                    emitted = written(template, group, partial(template.write, hooks, self.chooser))
                    if emitted is not None and isinstance(hooks, ThreadHooks):
                        emitted = hooks.launches(emitted)
                except Declined as error:
                    declined.append(f"{template.name}: {error}")
                    config.say(2, declined[-1])
                    continue
                if emitted is not None:
                    return Templated(emitted, template.name, tuple(declined))
        return None

    def kernels(self, group: Group, name: str, found: Templated) -> GroupKernels:
        """Of a template."""
        launches = self._launches(group, name, found.emitted, found.template)
        return GroupKernels(group, launches, declined=found.declined)

    def asked(self, group: Group) -> list[Asked]:
        """The templates that are asked to write a group, in this order, with their hooks."""
        if not self.templates:
            return []
        found: list[Asked] = []
        if self.language == "opencl" and runs_threads(group, self.target):
            found.append((ThreadHooks, THREAD_TEMPLATES))
        if self.language == "opencl":
            found.append((OpenClGroupHooks, OPENCL_TEMPLATES))
        elif all(n.type.layout.kind != "rows" for n in (*group.members, *group.operands)):
            found.append((CpuGroupHooks, CPU_TEMPLATES))
        return [(make, tuple(t for t in templates if len(group.parts) in t.lengths))
                for make, templates in found]

    def _lowered(self, group: Group, name: str, memo: Memo) -> Lowered:
        if group.compute == "f16" and not self.target.computes_f16:
            group = replace(group, compute="f32")
        return memo.get((group, name)) or memo.setdefault((group, name), lower(group, name))

    def _launches(self, group: Group, name: str, kernels: list[Emitted], template: str
                  ) -> tuple[Launch, ...]:
        kernels = with_main([_with_flags_written(e, group) for e in kernels])
        options = self._options(group)
        works = [not same(e.main, 0) for e in kernels]
        last = max(k for k, does in enumerate(works) if does)
        found = []
        for k, emitted in enumerate(kernels):
            own, helps = name, ""
            if k != last:
                own = f"{name}_{emitted.stem}" + (f"_{k}" if k else "")
            if not works[k]:
                ends = group.root in emitted.writes
                helps = ("puts together " if ends else "arranges operands for ") + name
            found.append(Launch(own, self._kernel(emitted, options, template), emitted, helps))
        return tuple(found)

    def _kernel(self, emitted: Emitted, options: tuple[str, ...], template: str) -> KernelSource:
        options = (*emitted.options, *options)
        text = emitted.body.replace(GROUP, declaration(emitted.local_size) if self.exact else "")
        digest = hashlib.sha256((text + repr(options)).encode()).hexdigest()[:DIGEST]
        entry = f"{self.target.kernel_prefix}{emitted.stem}_{digest}"
        body = text.replace(ENTRY, entry)
        return KernelSource(entry, body, self.language, options, template, tuple(emitted.params))

    def _options(self, group: Group) -> tuple[str, ...]:
        """Build options of the group's kernels: the target's, and none to optimise where that is
        wrong.
        """
        wrong = any(n.op in self.target.unoptimised_ops for n in group.members)
        return self.target.build_options + (("-cl-opt-disable",) if wrong else ())


def _with_flags_written(emitted: Emitted, group: Group) -> Emitted:
    """A kernel that has flags among its arguments writes them, at the place that its last parameter
    says."""
    if group.flag is None or group.flag.flags not in emitted.arguments:
        return emitted
    return replace(emitted, writes=(group.flag.flags, *emitted.writes),
                   params={**emitted.params, **flag_params(group)})


def written(template: Writes[Any], group: Group,
            write: Callable[[], list[Emitted] | None]) -> list[Emitted] | None:
    """What a template writes of a group. Declined where the group has a flag and the template's
    last kernel doesn't take it: its stores are not those of its hooks. What writes the group
    instead does.
    """
    emitted = sized_or_not(template, group, write)
    if emitted is None or group.flag is None or group.flag.flags in emitted[-1].arguments:
        return emitted
    raise Declined("its kernel can't tell that a result is infinite")


def sized_or_not(template: Writes[Any], group: Group,
                 write: Callable[[], list[Emitted] | None]) -> list[Emitted] | None:
    """What a template writes of a group. Where the group has sizes that are not known, only some
    templates write it: what is best is chosen by their hints; what has to hold becomes a guard, of
    the templates that do write something. Declined where the template would need a number.
    """
    if not group_is_sized(group):
        return write()
    space = space_of(group)
    if not template.sized or space is None:
        return None
    before = dict(space.guards)
    try:
        with judged_by_hint():
            emitted = write()
    except SizePinned as error:
        space.guards = before
        raise Declined(str(error)) from None
    if emitted is None:
        space.guards = before
    return emitted


def declaration(local_size: tuple[int, ...]) -> str:
    """What declares a kernel's work-group, so that a compiler gives each work-item the registers
    that such a group leaves it; "" where the launch leaves the group open.

        __kernel void f(...)   ->   __kernel __attribute__((reqd_work_group_size(16, 1, 1))) void f
    """
    sizes = ", ".join(map(str, (*local_size, 1, 1)[:3]))
    return f"__attribute__((reqd_work_group_size({sizes}))) " if local_size else ""

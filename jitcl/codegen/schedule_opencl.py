"""Generated loops on an OpenCL device: scheduled, rendered, with their launch.

a CPU device     one work-item a group, each with its share of the loops (schedule_opencl_cpu)
a GPU            elements, rows or chains (schedule_gpu); vectors are aligned
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from jitcl.codegen.axes import STEP, group_of_items
from jitcl.codegen.flags import text_params
from jitcl.codegen.lift import lifted
from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.codegen.schedule_gpu import schedule_gpu
from jitcl.codegen.schedule_opencl_cpu import schedule_opencl_cpu
from jitcl.ir.kernel import Kernel
from jitcl.ir.lanes import work_loops
from jitcl.ir.sizes import hint, is_size
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.target import Target
from jitcl.templates.base import Argument, Emitted

ARGUMENTS = 1024               # bytes of a kernel's arguments that every OpenCL device takes
POINTER, INT = 8, 4


@dataclass(frozen=True)
class Scheduled:
    """A kernel's text with its launch, in work-items."""

    body: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    params: Mapping[str, int] = field(default_factory=dict)      # sizes, behind the buffers

    def emitted(self, stem: str, arguments: tuple[Argument, ...], writes: Argument) -> Emitted:
        """The launch of a kernel that writes one of its arguments."""
        return Emitted(stem, self.body, arguments, (writes,), self.params, self.global_size,
                       self.local_size)


@functools.lru_cache(64)
def schedule(kernel: Kernel, target: Target) -> Scheduled:
    """Spread a lowered kernel over the target's work-items and render it."""
    return rendered(scheduled_kernel(kernel, target), target, target.device_type != "cpu")


def scheduled_kernel(kernel: Kernel, target: Target) -> Kernel:
    """The kernel as the target's work-items run it, verified."""
    cpu = target.device_type == "cpu"
    kernel = (schedule_opencl_cpu if cpu else schedule_gpu)(kernel, target)
    verify_schedule(kernel, target.local_memory or None, aligned=not cpu)
    return kernel


def rendered(kernel: Kernel, target: Target, lift: bool = False) -> Scheduled:
    """A scheduled kernel's text and launch. `lift`: its numbers are parameters (`lift.py`)."""
    groups, lanes = work_loops(kernel)
    extents = tuple(f.extent for f in reversed(lanes))       # axis 0 is the innermost loop
    if lanes[0].kind == "lane":
        local = extents
        outer = tuple(f.extent for f in reversed(groups)) or (1,)
        count = max(len(local), len(outer))
        local = local + (1,) * (count - len(local))
        sizes = tuple(n * m for n, m in zip(outer + (1,) * (count - len(outer)), local))
    elif target.device_type == "cpu" and not any(map(is_size, extents)):
        local, sizes = (1,) * len(extents), extents
    else:
        local = group_of_items(tuple(max(hint(n), STEP) if is_size(n) else n for n in extents),
                               target)
        sizes = tuple((n + m - 1) // m * m for n, m in zip(extents, local))
    kept = lifted(kernel) if lift else kernel
    r = OpenClRenderer(kept, target.fp64, target.soft_half, target.half_builtins)
    r.aligned, r.lifted = target.device_type != "cpu", lift
    body, params = r.scheduled(local), r.sizes.params()
    ints = len(params) + len(text_params(kernel))
    if lift and POINTER * len(kernel.buffers) + INT * ints > ARGUMENTS:
        return rendered(kernel, target)
    if lift:
        params = {name: hint(size) for name, size in params.items()}
    return Scheduled(body, sizes, local, params)

"""What a device can do at most, by kernels that do one thing only: multiply-adds in registers, and
reading and writing memory. They are plans like any model's, timed like any step.

A peak is the best that such kernels reach here and now, not the data sheet's.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from jitcl import config
from jitcl.bench.steps import profiled
from jitcl.codegen.plan import LANGUAGE, BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.devices.base import Cache, Device
from jitcl.errors import UnsupportedError
from jitcl.target import Target

CHAINS = 12                     # x 2 for its operands: fits 16 registers, fills two pipes 4 deep
# One measurement is as short as a kernel, so that it fits between disturbances as kernels do, and
# there are many: the best counts.
FMA_SECONDS = 0.001
STREAM_BYTES = {"cpu": 32 << 20, "gpu": 512 << 20}  # moved by a step, several times a small set
PART_BYTES = 2 << 20            # of a large set on a CPU, by one step
SETS = (256 << 10, 4 << 20, 128 << 20)      # bytes that are worked on: caches, and memory
RUNS = 3                        # one after the other, while threads are awake
TRIED_SECONDS = 0.2             # of measurements
_FIRST_LINKS = {"cpu": 20_000, "gpu": 256}          # the slowest take 10 ms for that
_MOST_LINKS = 1 << 24
_KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second, read and written, by kernels that work on a set of so many bytes."""

    set_bytes: int
    rate: float


@dataclass(frozen=True)
class Peaks:
    """A device's roof, in f32. threads: of the host, 0 for a GPU, which has its own. flops_alone:
    of one thread, 0 where that was not measured.
    """

    device: str
    threads: int
    flops: float                        # a second
    flops_alone: float
    bandwidths: tuple[Bandwidth, ...]   # the smallest set first

    def bandwidth(self, nbytes: int) -> Bandwidth:
        """That of the smallest set that holds so many bytes; of the largest, if none does."""
        return next((b for b in self.bandwidths if b.set_bytes >= nbytes), self.bandwidths[-1])


def measure_peaks(device: Device, cache: Cache | None, threads: int) -> Peaks:
    """Peaks of a cpu or an opencl device. Raises UnsupportedError for others, and what its `load`
    raises.
    """
    target = device.target
    if target.kind not in ("cpu", "opencl"):
        raise UnsupportedError(f"device {device.name} has no peaks to measure\n"
                               "  The cpu and opencl devices have.")

    def seconds(plan: Plan, arrays: Sequence[np.ndarray] = ()) -> float:
        loaded, end = device.load(plan, cache), time.perf_counter() + TRIED_SECONDS
        found: list[float] = []
        while not found or time.perf_counter() < end:       # of many steps, one in four is quicker
            found.append(float(np.quantile(profiled(loaded, list(arrays), RUNS), 0.25)))
        return min(found)

    def flops() -> float:
        return max(_flops(seconds, target, lanes, threads) for lanes in _widths(target))

    alone = 0.0
    if target.kind == "cpu" and threads > 1:
        with config.override(threads=1):
            alone = flops()
    sets = [s for s in SETS if not target.global_memory or s <= target.global_memory // 8]
    return Peaks(device.name, threads if _kind(target) == "cpu" else 0, flops(), alone,
                 tuple(Bandwidth(s, max(_bandwidth(seconds, target, lanes, s)
                                        for lanes in _widths(target))) for s in sets or SETS[:1]))


def _flops(seconds: Callable[[Plan], float], target: Target, lanes: int, threads: int) -> float:
    """FLOP a second of chains that take about FMA_SECONDS."""
    links = _FIRST_LINKS[_kind(target)]
    while True:
        plan = fma_plan(target, lanes, links, threads)
        took = seconds(plan)
        if took > FMA_SECONDS / 2 or links == _MOST_LINKS:
            return plan.steps[0].flops / took
        links = min(_MOST_LINKS, links * max(2, round(FMA_SECONDS / took)))


def _bandwidth(seconds: Callable[[Plan, Sequence[np.ndarray]], float], target: Target,
               lanes: int, set_bytes: int) -> float:
    plan = stream_plan(target, lanes, set_bytes)
    ones = np.ones(plan.inputs[0].shape, np.float32)        # sums stay normal numbers
    return plan.steps[0].bytes / seconds(plan, [ones, ones])


def fma_plan(target: Target, lanes: int, links: int, threads: int) -> Plan:
    """One step that does CHAINS chains of `links` multiply-adds in each of its lots."""
    group, groups = _work(target)
    lots = 8 * threads if target.kind == "cpu" else group * groups
    source = _kernel(target, "fma", lanes)
    buffer = BufferSpec("y", "f32", (lots * lanes,), 4 * lots * lanes, "output")
    step = Step("fma", source.entry, (0,), (lots, links), (lots,), (group,),
                flops=2 * CHAINS * lanes * links * lots, bytes=buffer.nbytes, writes=(0,))
    return Plan((), (TensorSpec("y", "f32", buffer.shape, 0),), (source,), (step,), (buffer,), ())


def stream_plan(target: Target, lanes: int, set_bytes: int) -> Plan:
    """Equal steps that pass over two buffers, `set_bytes` in all. A small set is one step of many
    passes; a large one, on a CPU, is a step a part, none of which is in a cache in its turn.
    """
    group, groups = _work(target)
    moved = STREAM_BYTES[_kind(target)]
    parts = set_bytes // PART_BYTES if group == 1 and set_bytes > moved else 1
    count = set_bytes // (8 * lanes * parts)                # vectors of a step in each buffer
    passes = max(1, moved // (12 * lanes * count)) if parts == 1 else 1
    source = _kernel(target, "stream", lanes)
    shape = (parts * count * lanes,)
    tensors = (TensorSpec("x", "f32", shape, 0), TensorSpec("y", "f32", shape, 1))
    buffers = tuple(BufferSpec(t.name, "f32", shape, 4 * shape[0], "input") for t in tensors)
    steps = tuple(Step(f"stream_{k}", source.entry, (0, 1), (k * count, count, passes),
                       (group * groups,), (group,), flops=2 * lanes * count * passes,
                       bytes=12 * lanes * count * passes, writes=(1,)) for k in range(parts))
    return Plan(tensors, tensors[1:], (source,), steps, buffers, ())


def _widths(target: Target) -> tuple[int, ...]:
    """Lanes worth trying. A GPU computes with scalars, but may read memory faster by vectors."""
    if _kind(target) == "cpu":
        return (target.vector_width,)
    return 1, min(4, target.max_vector_width)


def _kind(target: Target) -> str:
    """An accelerator counts as a GPU: many work-items, far from this process."""
    return "cpu" if target.device_type == "cpu" else "gpu"


def _work(target: Target) -> tuple[int, int]:
    """(work-items of a group, groups): on CPUs an item is a thread's share, on GPUs one of many."""
    if _kind(target) == "cpu":
        return 1, 4 * target.compute_units
    return min(128, target.max_work_group), 16 * target.compute_units


def _kernel(target: Target, name: str, lanes: int) -> KernelSource:
    """The kernel's text under a name with its digest, as every kernel has one."""
    language = LANGUAGE[target.kind]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_KERNELS), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = environment.get_template(f"{name}.{'py' if language == 'numba' else 'cl'}.j2")

    def text(entry: str) -> str:
        values: dict[str, Any] = dict(entry=entry, lanes=lanes, chains=CHAINS,
                                      form=target.multiply_add, group=_work(target)[0])
        return template.render(**values).lstrip("\n")
    entry = f"{target.kernel_prefix}{name}_{hashlib.sha256(text('').encode()).hexdigest()[:10]}"
    return KernelSource(entry, text(entry), language)

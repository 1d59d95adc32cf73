"""Trials: each new kernel is run once on random data, and compared with what it must give.

A trial is one group's steps as a small plan of its own. Its inputs are the physical buffers that
the group reads, its constants are the real ones, its output is the root's buffer. That buffer is an
input too, full of a pattern that no kernel writes, so that a store that is lost shows:

    inputs  x0, x1, .. (random), y (the pattern)  ->  steps of the group  ->  y

What y must hold comes from the group's unscheduled kernel, evaluated at a sample of places. The
bound of a difference is derived operation by operation in `ir/enclosure.py`: the type's rounding,
the number and size of a sum's terms in whatever order, the units that OpenCL allows each builtin,
both answers of a comparison too close to call. Nothing is tuned: a device that keeps to OpenCL is
never accused.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import zlib
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitcl import dtypes, forking
from jitcl.codegen.generate import Generated
from jitcl.codegen.lower import Lowered, lower
from jitcl.codegen.plan import BufferKind, BufferSpec, Plan, Step, TensorSpec
from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import Kernel, Let, expressions, scanned, statements
from jitcl.ir.noise import KINDS, ORIGIN, Noise, Supply
from jitcl.ir.sampling import Sample, sample_kernel, sample_places
from jitcl.ir.sampling_scan import sample_scan, sample_scan_places
from jitcl.ir.types import TensorType

FILL = 0xA5                                  # byte of the pattern; of floats, 0xFFE5 is a quiet NaN
SMALL = 1 << 18                              # elements of an array that is made to be sampled
SCANNED = 1 << 16                            # elements at a time: they stay in the cache
SUSPECTS = 16                                # places that look untouched or NaN, checked beside
ENOUGH = 0.75                                # of the samples must be numbers with finite bounds


def trials(generated: Generated, plan: Plan, wanted: Container[str] | None = None
           ) -> tuple[GroupTrial, ...]:
    """Trials of the plan's kernels (of those in `wanted`) that have work, each kernel in its
    cheapest use.

    `plan` is generated.plan, its memory laid out or not. Kernels that have none: see `unchecked`.
    """
    missing = {k.entry for k in plan.kernels if wanted is None or k.entry in wanted}
    found: list[GroupTrial] = []
    supply = Supply()
    by_group = _by_group(generated, plan)
    for number in sorted(by_group, key=lambda k: (_cost(by_group[k]), k)):
        if any(s.kernel in missing for s in by_group[number]):
            found.append(trial_of(generated, plan, number, by_group[number], supply))
            missing -= found[-1].entries
    return tuple(_needed(found, wanted))


def _by_group(generated: Generated, plan: Plan) -> dict[int, tuple[Step, ...]]:
    """The steps of each group that have work, behind those of other groups that arranged what it
    reads in scratch memory."""
    found: dict[int, tuple[Step, ...]] = {}
    results = set(generated.places.values())
    writers: dict[int, Step] = {}
    for step in plan.steps:
        if 0 in step.global_size:
            continue
        steps = found.get(step.group, ())
        own = {b for s in (*steps, step) for b in s.writes}
        held = (writers[b] for b in step.buffers if b in writers and b not in own)
        found[step.group] = (*dict.fromkeys(held), *steps, step)
        writers.update({b: step for b in step.writes if b not in results})
    return found


def _cost(steps: Sequence[Step]) -> int:
    return sum(s.flops + 4 * s.bytes for s in steps)


def _needed(found: list[GroupTrial], wanted: Container[str] | None) -> list[GroupTrial]:
    """Without the trials all of whose kernels others cover too, dear ones first."""
    kept = list(found)
    for trial in reversed(found):
        rest = {e for t in kept if t is not trial for e in t.entries}
        if all(e in rest for e in trial.entries if wanted is None or e in wanted):
            kept.remove(trial)
    return kept


def trial_of(generated: Generated, plan: Plan, number: int, steps: tuple[Step, ...],
             supply: Supply, seed: int | None = None) -> GroupTrial:
    """The trial of a group's steps, on data that its main kernel or `seed` says: with the same one,
    kernels of the same group are tried on the same data.
    """
    group, places = generated.groups[number], generated.places
    small, moved = _plan_of(plan, steps, places[group.root])
    operands = {n: moved[places[n]] for n in group.operands
                if n.op != "const" and places.get(n) in moved}
    if seed is None:
        seed = zlib.crc32(steps[-1].kernel.encode())
    return GroupTrial(steps[-1].name, small, group, operands, generated.kernels[number],
                      supply, seed)


def _plan_of(plan: Plan, steps: Sequence[Step], root: int) -> tuple[Plan, dict[int, int]]:
    """The steps alone, and where the plan's buffers are in it. What a step reads and none before
    it writes is an input; the root is of kind "input" too, since it is filled before the run."""
    used = list(dict.fromkeys(b for s in steps for b in s.buffers))
    written = {b for s in steps for b in s.writes}
    moved = {old: new for new, old in enumerate(used)}
    buffers, slots, inputs = [], [], []
    for old, new in moved.items():
        spec = plan.buffers[old]
        kind: BufferKind = "const" if old in plan.constants else "input"
        if old in written and old != root:
            kind = "temp"
            slots.append(spec.nbytes)
        slot = len(slots) - 1 if kind == "temp" else -1
        buffers.append(dataclasses.replace(spec, kind=kind, slot=slot, offset=0))
        if kind == "input":
            inputs.append(_tensor(spec, new))
    own = {s.kernel for s in steps}
    return Plan(
        tuple(inputs), (_tensor(plan.buffers[root], moved[root]),),
        tuple(k for k in plan.kernels if k.entry in own),
        tuple(s.moved(moved) for s in steps), tuple(buffers), tuple(slots),
        {moved[b]: plan.constants[b] for b in used if b in plan.constants}), moved


def _tensor(spec: BufferSpec, buffer: int) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, spec.shape, buffer)


@dataclass
class GroupTrial:
    """One group's steps on random data; as `devices.load_options.Trial` has it."""

    subject: str
    plan: Plan
    group: Group
    operands: dict[Node, int]                # what is fed -> its buffer in the plan
    generic: Lowered | None                  # the unscheduled kernel, where there is one already
    supply: Supply
    seed: int
    _lock: threading.Lock = field(default_factory=forking.lock)

    @property
    def entries(self) -> frozenset[str]:
        return frozenset(k.entry for k in self.plan.kernels)

    @property
    def reason(self) -> str:
        """Why it can't be checked; "" where it can."""
        self.prepare()
        return "" if isinstance(self._expected, tuple) else self._expected

    # ---- running

    def inputs(self) -> list[np.ndarray]:
        """Arrays for the plan's inputs, the same each time."""
        self.prepare()
        kind = self._expected[0] if isinstance(self._expected, tuple) else ORIGIN
        noise = self._noise(kind)
        return [self._untouched() if t.buffer == self._root.buffer
                else self._physical(t, noise[t.buffer]) for t in self.plan.inputs]

    def prepare(self) -> None:
        """Compute what the output must be, once; may run while the kernels are built."""
        with self._lock:
            self._expected  # noqa: B018

    def wrong(self, outputs: Sequence[np.ndarray]) -> str:
        """What differs from the unscheduled kernel beyond the bound, as one line for people; ""
        where nothing does, or nothing can be said."""
        if self.reason:
            return ""
        (y,) = outputs
        assert isinstance(self._expected, tuple)
        kind, sample = self._expected
        found = _differences(self._root, y, sample)
        suspects = self._suspects(y, sample)
        found = found or self._differences_at(y, suspects) or self._dirty_padding(y)
        return f"{self.subject}: {found}" if found else ""

    def wrong_beside(self, outputs: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> str:
        """`wrong` of the places where a run differs most from what other kernels made of the same
        data."""
        (y,), (other,) = outputs, others
        with np.errstate(all="ignore"):
            off = np.abs(y.astype(np.float64) - other.astype(np.float64)).reshape(-1)
        off[np.isnan(off) & (_bits(y) != _bits(other)).reshape(-1)] = np.inf
        off[~self._told(np.arange(off.size))] = 0
        most = np.argpartition(off, -SUSPECTS)[-SUSPECTS:] if off.size > SUSPECTS else np.arange(
            off.size)
        found = self._differences_at(y, np.sort(most[off[most] > 0]))
        return f"{self.subject}: {found}" if found else ""

    # ---- parts

    def _differences_at(self, y: np.ndarray, positions: np.ndarray) -> str:
        """What differs at these places."""
        if self.reason or not len(positions):
            return ""
        sample = self._at(self._expected[0], positions)
        return _differences(self._root, y, sample, "suspicious")

    def _told(self, positions: np.ndarray) -> np.ndarray:
        """At which places of the output something is wanted: behind padded rows anything may lie.
        """
        type = self.group.root.type
        if type.layout.kind != "rows":
            return np.ones(len(positions), bool)
        return positions % type.physical[-1] < type.dims[-1]

    @property
    def _root(self) -> TensorSpec:
        return self.plan.outputs[0]

    @forking.cached_property
    def _lowered(self) -> Lowered:
        """The group's unscheduled kernel. Where a template or a split keeps members in memory, they
        are rounded to their type: the anchor, what is between the parts of a chain, or all, whose
        arithmetic may be f16 then too."""
        if self.generic is not None:
            return self.generic
        if any(k.template for k in self.plan.kernels) and self.group.anchor is not None:
            half = self.group.compute == "f16" and any(
                k.template and "half" in k.features for k in self.plan.kernels)
            group = dataclasses.replace(self.group, compute="f16" if half else "f32")
            return lower(group, self.subject, flushed=half,
                         stored=(self.group.anchor, *(part.root for part in group.parts[:-1])))
        return lower(dataclasses.replace(self.group, compute="f16"), self.subject)

    @forking.cached_property
    def _expected(self) -> tuple[str, Sample] | str:
        """(kind of data, what the output must be at some places), or why that is unknown. The first
        kind of data is taken that makes most results numbers: logarithms want positive ones."""
        best: tuple[float, str, Sample] | None = None
        try:
            for kind in self._kinds():
                sample = self._sampled(kind)
                told = np.isfinite(sample.radius) & np.isfinite(sample.mid)
                share = float(told.mean()) if told.size else 1.0
                if best is None or share > best[0]:
                    best = share, kind, sample
                if share >= ENOUGH:
                    break
        except JitclError as error:
            return str(error)
        assert best is not None
        return best[1], best[2]

    def _sampled(self, kind: str) -> Sample:
        """What the unscheduled kernel says of some places."""
        kernel = self._lowered.kernel
        sample = sample_scan if scanned(kernel) else sample_kernel
        found = sample(kernel, self._arrays(kind), self.seed)
        told = self._told(found.positions)
        return Sample(found.positions[told], found.mid[told], found.radius[told])

    def _at(self, kind: str, positions: np.ndarray) -> Sample:
        """What it says of these places, as far as it does."""
        kernel, arrays = self._lowered.kernel, self._arrays(kind)
        if scanned(kernel):
            return sample_scan_places(kernel, arrays, positions, self.seed)
        return sample_places(kernel, arrays, positions)

    def _kinds(self) -> tuple[str, ...]:
        """Kinds of data that no index can leave its buffer with."""
        kernel, fed = self._lowered.kernel, set()
        for buffer, node in zip(kernel.buffers, self._lowered.operands):
            if node.op != "const":
                fed.add(buffer.name)
        return (ORIGIN,) if _may_leave(kernel, fed) else KINDS

    def _noise(self, kind: str) -> dict[int, Noise]:
        """What the plan's inputs hold, by buffer; the root's is not among them."""
        numbers = {b: k for k, b in enumerate(self.operands.values())}
        return {t.buffer: Noise(math.prod(t.shape), t.dtype,
                                self.seed + 7919 * numbers.get(t.buffer, len(numbers)), kind)
                for t in self.plan.inputs if t.buffer != self._root.buffer}

    def _untouched(self) -> np.ndarray:
        """The root's buffer before the run."""
        spec = self._root
        size = math.prod(spec.shape)
        return self.supply.repeated(pattern(spec.dtype), size).reshape(spec.shape)

    def _physical(self, spec: TensorSpec, data: Noise) -> np.ndarray:
        """An input as its writer leaves it: padding lanes and halos zero."""
        array = data.array(self.supply).reshape(spec.shape)
        places = [p for n, b in self.operands.items() if b == spec.buffer for p in padding(n.type)]
        array = array.copy() if places else array
        for place in places:
            array[place] = 0
        return array

    def _arrays(self, kind: str) -> dict[str, np.ndarray | Noise]:
        """What the buffers of the unscheduled kernel hold, by name."""
        noise, specs = self._noise(kind), {t.buffer: t for t in self.plan.inputs}
        arrays: dict[str, np.ndarray | Noise] = {}
        for buffer, node in zip(self._lowered.kernel.buffers, self._lowered.operands):
            if node.op != "const" and (padding(node.type) or node.type.size < SMALL):
                at = self.operands[node]
                arrays[buffer.name] = self._physical(specs[at], noise[at]).reshape(buffer.shape)
            elif node.op != "const":
                arrays[buffer.name] = noise[self.operands[node]]
            else:
                arrays[buffer.name] = np.ascontiguousarray(node.data).reshape(buffer.shape)
        return arrays

    def _suspects(self, y: np.ndarray, sample: Sample) -> np.ndarray:
        """Places that look as if nobody had written them, and NaNs where none is expected."""
        dtype = self._root.dtype
        nans = dtypes.is_float(dtype) and bool(np.isfinite(sample.mid).all())
        bits = _bits(np.ascontiguousarray(y)).reshape(-1)
        untouched = _bits(pattern(dtype))[0]
        found: list[int] = []
        for start in range(0, bits.size, SCANNED):
            part = bits[start:start + SCANNED]
            odd = part == untouched
            if nans:
                odd |= _is_nan(part, dtype)
            odd &= self._told(start + np.arange(odd.size))
            if odd.any():
                found += (start + np.flatnonzero(odd)[:SUSPECTS]).tolist()
            if len(found) >= SUSPECTS:
                break
        return np.array(found[:SUSPECTS], np.int64)

    def _dirty_padding(self, y: np.ndarray) -> str:
        """Whoever writes a buffer in blocks writes its padding and halo as zeros."""
        y, type = y.reshape(self.group.root.type.physical), self.group.root.type
        dirty = sum(int(np.count_nonzero(y[place])) for place in padding(type))
        return f"{dirty} padding elements are not 0" if dirty else ""


def _may_leave(kernel: Kernel, fed: set[str]) -> bool:
    """Whether an index made of fed values may lie outside its buffer. A guard is trusted."""
    lets: dict[Expr, Expr] = {}
    for stmt in statements(kernel.body):
        for x in expressions(stmt):
            for e in E.walk(E.exchanged(x, lets)):
                if e.op == "load" and e.guard is None:
                    for i, d in zip(e.indices, kernel.buffer(e.value).shape):
                        low, high = E.bounds(i)
                        if (low < 0 or high >= d) and _hangs_on(i, fed):
                            return True
        if isinstance(stmt, Let):
            lets[stmt.var] = E.exchanged(stmt.value, lets)
    return False


def _hangs_on(index: Expr, fed: set[str]) -> bool:
    return any(e.op == "load" and e.value in fed or e.op == "var" and e.extent is None
               for e in E.walk(index))


def padding(type: TensorType) -> list[tuple[Any, ...]]:
    """Where a buffer has zeros, as indices: lanes beyond the channels, halos."""
    layout, rank = type.layout, type.rank
    if layout.kind != "NCHWc" or rank < 3:
        return []
    used = type.dims[1] % layout.block
    found: list[tuple[Any, ...]] = [(slice(None), -1, ..., slice(used, None))] if used else []
    if layout.halo:
        for axis in range(2, rank):
            before = (slice(None),) * axis
            found += [(*before, slice(None, layout.halo)), (*before, slice(-layout.halo, None))]
    return found


@functools.cache
def pattern(dtype: str) -> np.ndarray:
    """An element that no kernel writes: a NaN with digits of its own, or a number out of the way.
    Some low floats have one NaN only: what is found of it is then compared.
    """
    raw = [FILL] * dtypes.itemsize(dtype)
    if dtype in dtypes.LOW_FLOATS and dtypes.bits(dtype) == 8:
        raw = [0xFD if dtype == "f8e5m2" else 0x80 if dtype.endswith("z") else 0xFF]
    elif dtypes.is_float(dtype) and dtype not in dtypes.LOW:
        raw[-2:] = 0xE5, 0xFF                # little-endian, as all devices here are
    return np.array(raw, np.uint8).view(dtypes.to_numpy(dtype))


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def _is_nan(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype in dtypes.LOW:
        codes = np.arange(256, dtype=np.uint8).view(dtypes.to_numpy(dtype))
        return np.isnan(codes.astype(np.float32))[bits]
    infinity = int(_bits(np.full(1, np.inf, dtypes.to_numpy(dtype)))[0])
    return (bits & bits.dtype.type((1 << 8 * bits.itemsize - 1) - 1)) > infinity


# ---- the comparison

def _differences(spec: TensorSpec, y: np.ndarray, sample: Sample, which: str = "sampled") -> str:
    got, want, radius = y.reshape(-1)[sample.positions], sample.mid, sample.radius
    if spec.dtype == "bool":
        got = _bits(got)                     # neither 0 nor 1 is wrong
    with np.errstate(all="ignore"):
        got, want = got.astype(np.float64), want.astype(np.float64)
        off = np.abs(got - want)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        bad = ~(same | (off <= radius) | np.isinf(radius))
    count = int(bad.sum())
    if not count:
        return ""
    with np.errstate(all="ignore"):
        excess = np.where(bad, np.where(np.isnan(off), np.inf, off / (radius + 1e-300)), -1.0)
    worst = int(np.argmax(excess))
    at = ",".join(str(i) for i in np.unravel_index(int(sample.positions[worst]), spec.shape))
    return (f"{count} of {len(bad)} {which} elements differ, worst y[{at}]: got {got[worst]:.6g}, "
            f"wanted {want[worst]:.6g} (bound {radius[worst]:.1e})")

"""The `Model` that `jitcl.compile(...)` returns.

A model is specialised for the shapes that it is fed: the first run with new shapes compiles (or
reads the plan from the cache), later runs with the same shapes compile nothing.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import config, dtypes, forking
from jitcl.devices import recording
from jitcl.devices.base import Device, DeviceInfo, Progress, Tally
from jitcl.devices.shortage import telling
from jitcl.errors import (
    DeviceLostError,
    KernelFault,
    NeedsValue,
    NotOneGraph,
    OutOfMemoryError,
)
from jitcl.passes.options import Memory, Options, Precision
from jitcl.runtime import placement, signature, tensors
from jitcl.runtime.arguments import (
    check_searchable,
    device_of,
    isolation_of,
    priority_of,
    shapes_of,
    strict_of,
    tally_of,
)
from jitcl.runtime.arrays import plain
from jitcl.runtime.bound import Bound, given_arrays
from jitcl.runtime.cache import DeviceCache, Key, Why, kernel_cache
from jitcl.runtime.calls import Shapes
from jitcl.runtime.fallbacks import MemoryFallback
from jitcl.runtime.families import Families
from jitcl.runtime.family import Member
from jitcl.runtime.guard import Guard
from jitcl.runtime.indices import check_computed, check_indices
from jitcl.runtime.inputs import Again, check_feeds, feeds_of
from jitcl.runtime.inspected import Inspected
from jitcl.runtime.intermediates import Intermediates, names_of
from jitcl.runtime.precedence import Turn
from jitcl.runtime.source import OnnxSource, Source, Tensor, open_source
from jitcl.runtime.specialise import Patience, Specialisation, Specialiser, free_frames
from jitcl.runtime.tensors import DeviceTensor

if TYPE_CHECKING:
    from jitcl.runtime.program import Program

Compute = Callable[[Specialisation], list[np.ndarray]]


@telling
def open_model(
    model: Any,
    *,
    device: str | Device | DeviceInfo | None = "auto",
    precision: Precision | Options = "high",
    memory: Memory = "normal",
    tuning: str = "none",
    guard: str | None = None,
    strict: bool = False,
    isolation: str | None = None,
    priority: str = "normal",
    cache_dir: str | Path | None = None,
    progress: Progress | Tally | None = None,
) -> Model:
    """`jitcl.compile` without compiling: that waits for `prepare`, or for the first run. precision:
    or `Options`, of which all but guard and tuning holds.
    """
    options = precision if isinstance(precision, Options) else Options(precision, memory)
    options = replace(options, tuning=tuning, guard=guard)
    isolation, strict, priority = isolation_of(isolation), strict_of(strict), priority_of(priority)
    tally, root = tally_of(progress), kernel_cache(cache_dir).root
    source = open_source(model, root)
    if device is None or (isinstance(device, str) and device.strip() == "auto"):
        device = placement.known(source, options, cache_dir)
    chosen = device_of(device, tally)
    check_searchable(chosen, options.tuning)
    return Model(source, chosen, options, strict, cache_dir, tally, isolation, priority)


def compile_now(model: Any, shapes: Shapes | None = None, **options: Any) -> Model:
    """`open_model`, compiled for these shapes, if all are known."""
    result = open_model(model, **options)
    fixed = result.fixed_shapes(shapes)
    if fixed is not None:
        result.prepare(fixed)
    return result


class Model(Inspected):
    """A compiled model. `run` waits, `submit` does not; both are thread-safe, and give fresh
    NumPy arrays. `close`, or `with`, gives memory back.
    """

    def __init__(
        self,
        source: Source,
        device: Device,
        options: Options,
        strict: bool,
        cache_dir: str | Path | None,
        progress: Progress | Tally | None,
        isolation: str | None = None,
        priority: str = "normal",
    ) -> None:
        self.source, self.device, self.options, self.strict = source, device, options, strict
        self.cache: DeviceCache = kernel_cache(cache_dir).for_target(device.target)
        tally = Tally.of(progress)
        self._specialiser = Specialiser(
            source, device, options, strict, self.cache, tally, isolation, priority)
        self.turn = Turn(device, priority, self.called)

        self.guard = guard = Guard(source, self.cache, options)
        self.options = self._specialiser.options = guard.options

        def alike(source: Source) -> Model:         # holds nothing of this model, which would stay
            return Model(source, device, guard.options, strict, cache_dir, tally, isolation,
                         priority)

        self._alike = alike
        self._lock = forking.rlock()
        self._kept: OrderedDict[Any, Specialisation] = OrderedDict()
        self._bound: weakref.WeakSet[Bound] = weakref.WeakSet()
        self._tensors: weakref.WeakSet[DeviceTensor] = weakref.WeakSet()
        self._last: Specialisation | None = None
        self._again: Again | None = None            # of _last, where the next run may be alike
        meta = signature.load(source, self.cache)
        signature.check_layers(source, options, self.cache)
        self.inputs: tuple[Tensor, ...] = meta["inputs"]
        self.outputs: tuple[Tensor, ...] = meta["outputs"]
        self._beside: tuple[str, ...] = meta["beside"]
        self._by_value: list[str] = meta["by_value"]
        self._families = Families(self._specialiser, self.inputs)
        self._inner = Intermediates(source, self._alike)
        self.program: Program | None = None         # where the model is no single graph
        if meta["program"] or any(t.value is not None for t in self.inputs):
            self._make_program()

    def __repr__(self) -> str:
        reads = ", ".join(map(str, self.inputs))
        return f"<jitcl.Model {self.source.name} on {self.device.name}: {reads}>"

    @property
    def called(self) -> str:
        return f"model {self.source.name}"

    # ---- running

    @telling
    def run(self, feeds: Mapping[str, Any], *, intermediates: Collection[str] = (),
            keep_on_device: bool = False) -> dict[str, Any]:
        """Output name -> array, for input name -> array. Inputs are checked and copied; raises
        InputError. Strings are arrays of `str`, sequences lists, empty optionals None, maps dicts.

        intermediates: ONNX names of inner tensors, or of nodes (all that those give), to return,
        too, by the tensors' names; InputError for an unknown one. They take a plan of their own.
        keep_on_device: give `DeviceTensor`s, which lie where they were computed.
        """
        if intermediates != () and (names := names_of(intermediates)):
            return self._inner.model(names).run(feeds, keep_on_device=keep_on_device)
        if recording.active and (record := recording.opened(self.source, self.device)):
            with record:
                return self.run(feeds, keep_on_device=keep_on_device)
        again = self._again
        if again is not None and not keep_on_device and again.matches(feeds):
            return self._run(feeds, again.special)[0]
        again = None                                # what it holds makes room for larger shapes
        self._check_open()
        results = self._checked_run(check_feeds(self.inputs, feeds), keep_on_device)
        if keep_on_device:
            results = tensors.kept(results, self.called)
            self._tensors.update(t for t in results.values() if isinstance(t, DeviceTensor))
        return results

    def _checked_run(self, arrays: Mapping[str, Any], keep: bool) -> dict[str, Any]:
        if self.program is None:
            placed = keep or tensors.any_on_device(arrays)
            try:
                return self._run(arrays, placed=placed, keep=keep)[0]
            except NotOneGraph:
                if not self._make_program():
                    raise
        assert self.program is not None
        return self.program.run(tensors.on_host(arrays), [t.name for t in self.outputs])

    def run_specialised(self, feeds: Mapping[str, Any]
                        ) -> tuple[dict[str, np.ndarray], Specialisation]:
        """The outputs, and what computed them; for models that are one graph."""
        return self._run(check_feeds(self.inputs, feeds))

    def _run(self, arrays: Mapping[str, np.ndarray], special: Specialisation | None = None,
             placed: bool = False, keep: bool = False
             ) -> tuple[dict[str, np.ndarray], Specialisation]:
        """The outputs, and what computed them: `special` at first, where the caller knows it.
        placed: whether inputs or outputs (`keep`) lie on the device.
        """
        def compute(special: Specialisation) -> list[np.ndarray]:
            return self.computed_by(special, arrays, placed, keep)

        with recording.span("host", "around kernels and copies"):
            with self.turn:
                values, special = self.apply(arrays, compute, special)
            if self._again is None:
                self._expect_again(special, arrays)
            recording.used(special)
            results = dict(zip(special.plan.output_names, values))
            check_computed(special.checks, results)
        return results, special

    def computed_by(self, special: Specialisation, arrays: Mapping[str, np.ndarray],
                    placed: bool = False, keep: bool = False) -> list[np.ndarray]:
        """What a specialisation computes of checked inputs; placed, keep: as `_run` has them."""
        if special.checks:
            check_indices(special.checks, arrays, self.source.called)
        inputs = [arrays[name] for name in special.plan.input_names]
        if placed:
            return list(tensors.compute(special, inputs, keep))
        return special.executable.run(inputs)

    def apply(self, arrays: Mapping[str, np.ndarray], compute: Compute,
              special: Specialisation | None = None) -> tuple[list[np.ndarray], Specialisation]:
        """What `compute` makes of the specialisation for checked inputs, and that one; of a smaller
        one, or of other kernels, where it fails."""
        patience = Patience()
        while True:
            if special is None or special.stale:
                special = self._specialise(arrays, patience)
            try:
                return self.guard.after(self, arrays, compute, special, compute(special))
            except KernelFault as error:
                patience.kernels_failed(self.device, special.plan, error)
                self._drop(special)
                free_frames(error)
                special = None      # its buffers make room
            except OutOfMemoryError as error:
                if self._given_up(special):
                    free_frames(error)
                    special = None
                    continue
                below, dropped = self._specialiser.below(special, error), self._drop(special)
                free_frames(error)
                special = None
                if dropped:         # else another thread has put something smaller there
                    self._take_smaller(arrays, patience, *below)
            except DeviceLostError as error:
                patience.device_lost(special.device, special.opening, error)
                special = None

    @telling
    def bind(self, shapes: Shapes | None = None, *,
             inputs: Mapping[str, np.ndarray | DeviceTensor] | None = None,
             keep: Collection[str] = ()) -> Bound:
        """Arrays to fill and to read, and a run on them: see `Bound`. Any number of them may be.

        shapes: input name -> shape, where the model leaves it open; InputError for one too few.
        inputs: arrays of the caller's that are read where they lie, in place of new ones;
        contiguous and of the inputs' dtypes and ranks, else InputError. A `DeviceTensor` among
        them is not mapped for writing before the end of this; `put` writes it between two runs.
        keep: outputs that are `DeviceTensor`s where the device has a memory for them.
        """
        given = given_arrays(self.inputs, inputs)
        known = {**shapes_of(shapes), **{n: a.shape for n, a in given.items()}}
        with self._lock:                        # `close` finds nothing of it, or all
            arrays, special = self._compiled_for(self._all_shapes(known, "bind"))
            held = {n: a.begin_reading() if isinstance(a, DeviceTensor) else a
                    for n, a in given.items()}
            try:
                binding = special.executable.bind(held, keep=keep) if special else None
                bound = Bound(self, arrays, binding, special, given)
            except BaseException:
                tensors.end_reading(given)
                raise
            self._bound.add(bound)
            return bound

    @telling
    def prepare(self, shapes: Shapes) -> None:
        """Compile for these shapes now. Where an input's value decides shapes, that waits for the
        first run.
        """
        self._compiled_for(self._all_shapes(shapes, "prepare"))

    def _compiled_for(
        self, shapes: Shapes
    ) -> tuple[dict[str, np.ndarray], Specialisation | None]:
        """Zeros of these shapes, which take no memory, and what would run them; None where that
        waits for the first run, or is a program.
        """
        arrays = {
            t.name: np.broadcast_to(np.zeros((), dtypes.to_numpy(t.dtype)), shapes[t.name])
            for t in self.inputs
            if t.name in shapes
        }
        if self._by_value and self.program is None:
            return arrays, None
        try:
            if self.program is None:
                return arrays, self._specialise(arrays, Patience(), fed=False)
        except NeedsValue:
            return arrays, None
        except NotOneGraph:
            if not self._make_program():
                raise
        if self.program is not None:
            self.program.prepare(arrays)
        return arrays, None

    def why(self, feeds: Mapping[str, np.ndarray]) -> Why:
        """Whether the cache holds the plan for inputs of these shapes; if not, which part of its
        key missed. Elements matter only of inputs that decide shapes."""
        self._check_open()
        feeds = {n: plain(v, f"input '{n}'") for n, v in feeds_of(feeds, self.inputs).items()}
        if self.program is not None:
            part, inputs = self.program.first_part(feeds)
            if part is not None:
                return part.why(inputs)
        values = {n: feeds[n] for n in self._by_value if n in feeds}
        own = self._key(feeds, values)
        found = self.cache.why("plan", own)
        if found.hit:
            return found
        shapes = {n: a.shape for n, a in feeds.items()}
        return self.cache.why("plan", self._families.key(own, shapes, values))

    def decides(self, name: str) -> None:
        """The value of this input decides shapes: it is known without trying."""
        with self._lock:
            self._remember(name)

    def computed(self, names: Collection[str]) -> None:
        """These inputs are computed by other parts of a model: they change from run to run."""
        self._families.vary.update(
            t.name for t in self.inputs if t.name in names and dtypes.is_int(t.dtype))

    def _release(self) -> None:
        with self._lock:
            self.closed = True
            held = [s for s in (*self._kept.values(), self._last) if s is not None]
            self._kept.clear()
            self._last = self._again = None
            self._families.close()
        for special in held:
            special.executable.close()
        for bound in list(self._bound):
            bound.close()
        for tensor in list(self._tensors):
            tensor.close()
        self._inner.close()
        if self.program is not None:
            self.program.close()

    # ---- as a program

    def _make_program(self) -> bool:
        """From now on, in later processes too, the model runs as a program; False where its source
        has no parts.
        """
        source = self.source
        if not isinstance(source, OnnxSource):
            return False
        with self._lock:
            if self.program is None:
                from jitcl.runtime.program import Program

                program = Program(source, self.cache, self.strict, self._alike)
                self._store(program=True)
                self.program, self._again = program, None
        return True

    # ---- specialising

    def _specialise(
        self, arrays: Mapping[str, np.ndarray], patience: Patience, fed: bool = True
    ) -> Specialisation:
        with self._lock:
            self._check_open()
            while True:
                values, kept_as = self._identity(arrays)
                found = self._kept.pop(kept_as, None)
                if found is not None and found.stale:
                    found = self._specialiser.reload(found, patience)
                if found is not None:
                    self._kept[kept_as] = found         # at the end: used last
                    break
                try:
                    shapes = {n: a.shape for n, a in arrays.items()}
                    if isinstance(self._last, Member):
                        self._last = self._again = None     # its buffers make room for larger
                    found = (self._member(arrays, values, patience)
                             if fed or self._families.grows else None)
                    if found is not None:
                        break
                    found = self._kept[kept_as] = self._specialiser.specialise(
                        self._key(arrays, values), shapes, values, patience)
                except NeedsValue as e:
                    if not fed or e.input_name in self._by_value:
                        self._remember(e.input_name)
                        raise
                    self._remember(e.input_name)
                    continue
                while len(self._kept) > config.get("specialisations"):
                    self._kept.popitem(last=False)
                break
            if found is not self._last:
                self._last, self._again = found, None
            return found

    def _expect_again(self, special: Specialisation, arrays: Mapping[str, np.ndarray]) -> None:
        """The next run may be like this one: it then costs a comparison of names and shapes."""
        if self.program is not None or self._by_value:
            return
        again = Again(special, tuple((n, a.dtype, a.shape) for n, a in arrays.items()))
        with self._lock:
            if self._last is special:
                self._again = again

    def _member(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray],
                patience: Patience) -> Specialisation | None:
        """A plan for many shapes at these, where there is one or it is time for one."""
        if patience.failed:
            return None
        shapes = {n: a.shape for n, a in arrays.items()}
        return self._families.member(shapes, values, lambda: self._key(arrays, values), patience)

    def recompile(self, options: Options) -> None:
        """Compile anew, with these, when it is next needed."""
        with self._lock:
            self.options = self._specialiser.options = options
            self._kept.clear()
            self._last = self._again = None
            self._families = Families(self._specialiser, self.inputs)

    def _identity(self, arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Any]:
        """(inputs whose values decide shapes, what the specialisation is kept under)."""
        values = {n: tensors.elements(arrays[n]) for n in self._by_value if n in arrays}
        return values, (
            tuple((t.name, arrays[t.name].shape) for t in self.inputs if t.name in arrays),
            tuple((n, v.tobytes()) for n, v in values.items()),
        )

    def _drop(self, special: Specialisation) -> bool:
        """It failed: compile anew when it is next needed. False where another thread did so."""
        with self._lock:
            if self._families.drop(special):
                self._last = self._again = None
                return True
            found = [k for k, kept in self._kept.items() if kept is special]
            for kept_as in found:
                del self._kept[kept_as]
            if self._last is special:
                self._last = self._again = None
            return bool(found)

    def _given_up(self, special: Specialisation) -> bool:
        """Whether it was a family's, for which there is no room: its shapes get plans of their own.
        """
        with self._lock:
            return self._families.give_up(special)

    def _take_smaller(
        self, arrays: Mapping[str, np.ndarray], patience: Patience, memory: str,
        fallback: MemoryFallback,
    ) -> None:
        """Compile from a smaller memory plan on, in place of what was dropped."""
        with self._lock:
            values, kept_as = self._identity(arrays)
            shapes = {n: a.shape for n, a in arrays.items()}
            self._kept[kept_as] = self._specialiser.compile(
                self._key(arrays, values), shapes, values, patience, memory, fallback)

    def _key(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> Key:
        return signature.plan_key(self.source, self._beside, self.options, self.device, arrays,
                                  values)

    # ---- what is known of the model before it is parsed

    def _store(self, **changes: Any) -> None:
        known = {"inputs": self.inputs, "outputs": self.outputs, "beside": self._beside,
                 "by_value": self._by_value, "program": self.program is not None}
        signature.store(self.source, self.cache, {**known, **changes})

    def _remember(self, name: str) -> None:
        """From now on the value of this input is part of the key, in later processes too."""
        if name not in self._by_value:
            self._by_value.append(name)
            self._store()

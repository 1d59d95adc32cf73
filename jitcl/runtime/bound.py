"""Runs without copies and checks: arrays that stay where they are.

bound = model.bind()
bound.inputs["image"][...] = frame
bound.run()["logits"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes
from jitcl.devices import recording
from jitcl.devices.base import Binding, DeviceArray
from jitcl.errors import InputError, closed_error
from jitcl.ir.types import Sym
from jitcl.runtime.arrays import as_array, plain
from jitcl.runtime.indices import check_computed, check_indices
from jitcl.runtime.source import Tensor
from jitcl.runtime.tensors import DeviceTensor, any_on_device, end_reading

if TYPE_CHECKING:
    from jitcl.runtime.model import Model
    from jitcl.runtime.specialise import Specialisation

__all__ = ["Bound", "Inputs", "given_arrays", "not_bound"]


class Bound:
    """A model on arrays that are made once: fill `inputs`, `run`, read `outputs`.

    inputs: name -> array, zeros at first. Fill them; to assign one (`inputs["x"] = frame`) copies
    it in. Results that are fed back (`inputs["state"] = outputs["next"]`) are a copy, too.
    outputs: name -> array. The next run writes over them: copy what must last. Before the first
    run they are zeros, or absent where only a run can tell their shapes.
    in_place: whether kernels read and write these very arrays: on the CPU, and on OpenCL devices
    that share the host's memory (whole numbers are copied there, as they may be indices that were
    checked). On other OpenCL devices the arrays are pinned, and copied without a detour. Where
    nothing is known before a run, it copies and checks as `Model.run` does. Results are the same.
    kept: tensors that stay on the device. Where others were computed instead, outputs has these.
    behind: what runs enqueue behind their kernels, as `Binding` has it.

    Threads: as many as JITCL_THREADS says when this is made. Runs of one model take turns; an array
    that one thread writes to while another runs gives results of old and new values, no worse.

    `close`, `with`, or closing the model: it lets go of its arrays, and raises ClosedError when it
    is used. An array that the caller has kept stays as it is.
    """

    def __init__(
        self, model: Model, arrays: Mapping[str, np.ndarray], binding: Binding | None,
        special: Specialisation | None = None,
        given: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.model, self.in_place = model, binding is not None and binding.in_place
        checks = special.checks if special is not None else ()
        self._given = given
        own: dict[str, Any] = {n: a for n, a in (binding.inputs if binding else {}).items()
               if not isinstance(given.get(n), DeviceTensor)}
        self.inputs = Inputs(model.inputs, {
            n: own[n] if n in own else a if n in given else np.array(a)
            for n, a in {**arrays, **given, **own}.items()})
        made: Mapping[str, Any] = binding.outputs if binding else {}
        # as the plan has them; the guard looks at none that is kept
        self._values = [None if isinstance(y, DeviceArray) else y for y in made.values()]
        self.kept = {n: DeviceTensor(y, n, model.called) for n, y in made.items()
                     if isinstance(y, DeviceArray)}
        self._results = _Results({**made, **self.kept})
        for name in (*(n for c in checks for n in c.outputs), *(
                special.plan.looked_at if special is not None else ())):
            self._results.pop(name, None)
        self._options, self._promoted = model.options, False    # True: the guard changed them
        self._checks = checks if binding else ()            # else `Model.run` checks
        self.outputs: Mapping[str, Any] = MappingProxyType(self._results)
        self._special = special
        self._compute = binding.compute if binding else None    # None: through `Model.run`
        self.behind = binding.behind if binding else None       # as `Binding` has it

    def __repr__(self) -> str:
        reads = ", ".join(f"'{n}' {x.dtype}{list(x.shape)}" for n, x in self.inputs.items())
        return f"<jitcl.Bound {self.model.source.name} on {self.model.device.name}: {reads}>"

    def run(self) -> Mapping[str, Any]:
        """Compute `outputs` from `inputs`, and return them. Raises what `Model.run` raises."""
        model = self.model
        record = recording.opened(model.source, model.device)
        if record is not None:
            with record:
                return self.run()
        special, own = self._special, self._compute
        if self.inputs.closed:
            raise closed_error(self.inputs.closed)
        if self._checks:
            check_indices(self._checks, self.inputs.arrays, model.source.called)
        if own is None or special is None:
            found = self.model.run(self.inputs.arrays)
            (self._results.take if self._promoted else self._results.update)(found)
        else:
            self._computed(own, special)
        return self.outputs

    def _computed(self, own: Callable[[], None], bound: Specialisation) -> None:
        """Compute the outputs in their arrays; those of what the model has instead are copied
        there, where the device fails on its kernels, has no memory or was lost, or the guard finds
        that f16 spoilt the results. For good, where the guard has put layers into f32.
        """
        def compute(special: Specialisation) -> list[Any]:
            if special is not bound:
                arrays = self.inputs.arrays
                return self.model.computed_by(special, arrays, any_on_device(arrays))
            own()
            return self._values

        with self.model.turn:
            values, special = self.model.apply(self.inputs.arrays, compute, bound)
        results = dict(zip(special.plan.output_names, values))
        if special.checks:
            check_computed(special.checks, results)
        if special is bound:
            self._results.update(self.kept)        # a run before this may have given others
        else:
            self._results.take(results)
            if self.model.options is not self._options:
                self._compute, self._checks, self.behind = None, (), None
                self.in_place, self._promoted = False, True

    def close(self) -> None:
        """Let go of the arrays, and of what runs on them. Twice is fine."""
        name = f"{self.model.called}, bound"
        end_reading(self._given)
        for tensor in self.kept.values():
            tensor.close()
        self._given, self.kept = {}, {}
        self.inputs.close(name)
        self._results.close(name)
        self._compute = self._special = None
        self._values = []

    def __enter__(self) -> Bound:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Results(dict[str, Any]):
    """Outputs by name."""

    closed = ""                                 # whose they were

    def take(self, results: Mapping[str, Any]) -> None:
        """Other results, in the arrays that are here, where they fit."""
        for name, value in results.items():
            held = self.get(name)
            if isinstance(held, np.ndarray) and isinstance(value, np.ndarray) and (
                    held.shape == value.shape and held.dtype == value.dtype):
                held[...] = value
            else:
                self[name] = value

    def close(self, name: str) -> None:
        self.closed = name
        self.clear()

    def __missing__(self, name: str) -> Any:
        raise closed_error(self.closed) if self.closed else KeyError(name)


class Inputs(Mapping[str, np.ndarray]):
    """Arrays by name, which stay the same objects."""

    def __init__(self, tensors: Sequence[Tensor], arrays: Mapping[str, np.ndarray]) -> None:
        self._tensors = {t.name: t for t in tensors}
        self.arrays = dict(arrays)

    closed = ""                                 # whose they were

    def close(self, name: str) -> None:
        self.closed = name
        self.arrays.clear()

    def __getitem__(self, name: str) -> np.ndarray:
        self._known(name)
        return self.arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def get(self, name: str, default: Any = None) -> Any:
        return self.arrays.get(name, default)

    def _known(self, name: Any) -> None:
        if self.closed:
            raise closed_error(self.closed)
        if not isinstance(name, str) or name not in self.arrays:
            raise InputError(f"there is no input '{name}'; bound are {', '.join(self.arrays)}")

    def __setitem__(self, name: str, value: Any) -> None:
        """Copy values in; InputError where name, dtype or shape are others."""
        self._known(name)
        tensor = self._tensors[name]
        array: Any = self.arrays[name]
        if isinstance(array, DeviceTensor):
            raise InputError(f"input {tensor}: bound is a tensor on {array.device}\n"
                             "  Write it there: `put`.")
        given = plain(value, f"input {tensor}")
        if isinstance(value, (bool, int, float, list, tuple)) and given.shape == array.shape:
            given = as_array(value, tensor.dtype, f"input {tensor}")
        if given.dtype != array.dtype or given.shape != array.shape:
            raise InputError(
                f"input {tensor}: got {given.dtype}{list(given.shape)}, bound is "
                f"{array.dtype}{list(array.shape)}\n  bind() once more for other shapes.")
        array[...] = given

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def given_arrays(tensors: Sequence[Tensor], given: Any) -> dict[str, Any]:
    """What `bind` gets in place of arrays of its own, checked but for shapes that are open."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"bind(inputs=): got {type(given).__name__}, wanted a dict of input name "
                         "-> array")
    known = {t.name: t for t in tensors}
    for name, array in given.items():
        tensor = known.get(name)
        if tensor is None:
            raise InputError(f"bind(inputs=): there is no input '{name}'; there are "
                             f"{', '.join(known)}")
        lies = isinstance(array, DeviceTensor) or (
            isinstance(array, np.ndarray) and array.flags.c_contiguous)
        if not lies or array.dtype != dtypes.to_numpy(tensor.dtype) or (
                len(array.shape) != len(tensor.shape)):
            got = (f"{array.dtype}{list(array.shape)}" if hasattr(array, "dtype")
                   else type(array).__name__)
            raise InputError(f"bind(inputs=): input {tensor}: got {got}, wanted a contiguous array "
                             "of that dtype and rank")
    return dict(given)


def not_bound(inputs: Sequence[Tensor], shapes: Mapping[str, Any], door: str) -> InputError:
    """Why `door` (bind, prepare) can't go on, where `shapes` are known beside theirs."""
    for t in inputs:
        if t.value is not None:
            return InputError(f"{door}: input {t} is no array: feed it to run()")
    unknown = [str(t) for t in inputs if not t.optional and t.name not in shapes
               and any(isinstance(d, Sym) for d in t.shape)]
    return InputError(f"{door}: the model leaves the shape of {', '.join(unknown)} open\n"
                      "  Pass shapes={name: shape}.")

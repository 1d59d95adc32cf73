"""Results that stay on the device: `run` and `submit` with keep_on_device=True.

    y = first.run(feeds, keep_on_device=True)["y"]
    second.run({"x": y})                # on the same device: read where it lies
    with y.map() as array: array += 1   # in place where memory is shared, else by pinned memory
    y.numpy()                           # a copy

A tensor is the caller's, and the model's that computed it: closing either gives its memory back,
when no run reads it any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes, forking
from jitcl.codegen.plan import TensorSpec
from jitcl.devices import recording
from jitcl.devices.base import DeviceArray
from jitcl.errors import BusyError, ClosedError, DeviceError, InputError

if TYPE_CHECKING:
    from jitcl.runtime.specialise import Specialisation

log = logging.getLogger("jitcl")
_flags: Any = np.ndarray.flags          # as it is, of an array whose attributes are checked


class DeviceTensor:
    """A result where it was computed. Models take it as an input: those of the same device read it
    in place; for others it is copied, which `copies` counts, a profile shows and the log tells
    (level INFO). Thread-safe.

    device: where it lies; "host" where the model computed on the CPU, or could not leave it on its
    device. in_place: whether `map` gives the device's own memory. dtype, shape, nbytes: as NumPy
    has them.
    """

    def __init__(self, array: DeviceArray, name: str, model: str) -> None:
        self._array, self.name, self._model = array, name, model
        self.dtype, self.shape, self.nbytes = array.dtype, array.shape, array.nbytes
        self.device, self.in_place = array.device, array.in_place
        self.copies: dict[str, int] = {}            # to which device it was copied, and how often
        self.closed = False
        self._changed = threading.Condition(forking.rlock())
        self._readers = 0                           # runs that are under way or queued
        self._mapped: _Mapping | None = None

    @classmethod
    def zeros(cls, dtype: Any, shape: Sequence[int], device: Any) -> DeviceTensor:
        """device: a model on OpenCL, or its device."""
        from jitcl.devices.opencl.arrays import OpenClArray

        session, spec = _placed("zeros", dtype, shape, device)
        made = cls(OpenClArray(session, spec, 0), spec.name, "the caller")
        made.fill(0, made.nbytes)
        made.settle()
        return made

    @classmethod
    def from_cl_mem(cls, buffer: Any, dtype: Any, shape: Sequence[int], device: Any
                    ) -> DeviceTensor:
        """A pyopencl.Buffer that is the caller's, read and written where it lies. device: a model,
        or its device, of the same context: one that was compiled for the caller's queue. Raises
        InputError for another context, or where the elements don't fit.
        """
        return cls._imported("from_cl_mem", buffer, dtype, shape, device)

    @classmethod
    def from_dma_buf(cls, handle: int, dtype: Any, shape: Sequence[int], device: Any
                     ) -> DeviceTensor:
        """A dma-buf that is the caller's (a camera's, a decoder's), by its file handle. device: a
        model on OpenCL, or its device. Who writes it must have ended before a run reads it. Raises
        DeviceError where the driver has no way to import it.
        """
        return cls._imported("from_dma_buf", handle, dtype, shape, device)

    @classmethod
    def _imported(cls, how: str, memory: Any, dtype: Any, shape: Sequence[int], device: Any
                  ) -> DeviceTensor:
        session, spec = _placed(how, dtype, shape, device)
        from jitcl.devices.opencl import imports

        return cls(getattr(imports, how)(session, spec, memory), "imported", "the caller")

    @property
    def lost(self) -> bool:
        """Whether its device was, with what lay there."""
        try:
            self._array.check()
        except DeviceError:
            return True
        return False

    @property
    def cl_mem(self) -> Any:
        """The pyopencl.Buffer that it lies in, None on the host. It is the tensor's: commands that
        use it must have ended, or stand in the model's own queue, before that is closed or fed.
        """
        with self.reading() as array:
            return getattr(array, "buffer", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0                                     # kDLCPU

    def __dlpack__(self, **asked: Any) -> Any:
        """Of a tensor on the host the memory itself, which outlives it; else a copy, as nobody may
        read a device's memory but in `map`. BufferError where NumPy can't give such elements.
        """
        with self.reading() as array:
            here = array.home is None and not asked.get("copy")
            if not here and asked.get("copy") is False:
                raise BufferError(f"{self.called} lies on {self.device}: reading it is a copy")
            found = array.open() if here else array.read()
        return found.__dlpack__(**{k: v for k, v in asked.items() if v is not None and k != "copy"})

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def called(self) -> str:
        return f"'{self.name}' of {self._model}"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", mapped" if self._mapped is not None else ""
        return (f"<jitcl.DeviceTensor {self.called} on {self.device}: "
                f"{self.dtype}{list(self.shape)}{state}>")

    def numpy(self) -> np.ndarray:
        """A copy of the elements. Raises ClosedError, InputError while it is mapped for writing,
        DeviceError where its device was lost.
        """
        with self.reading():
            return self._array.read()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.called} lies on {self.device}: reading it is a copy; "
                             "`with tensor.map() as array` is not")
        found = self.numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def __buffer__(self, flags: int, /) -> memoryview:
        """`memoryview(tensor)`, `bytes(tensor)`, `file.write(tensor)` from Python 3.12 on: a copy.
        Without one, what was written behind a block of `map` would be seen, or not.
        """
        return self.numpy().data

    @contextmanager
    def map(self, write: bool = True) -> Iterator[np.ndarray]:
        """An array of the elements, in the block alone. write=False: for reading, also while runs
        read the tensor.

        The array raises ClosedError when it is used behind the block (copies of it are the
        caller's). What was made of it without NumPy's knowing, by `np.asarray`, is memory that
        stays readable, and no longer the tensor's.

        Raises JitclErrors: ClosedError; BusyError where a run that reads it has not ended;
        InputError where it is mapped already.
        """
        with self._changed:
            self._check()
            if self._mapped is not None:
                raise InputError(f"{self.called} is mapped already\n"
                                 "  End that `with` block first, or pass its array on.")
            if write and self._readers:
                raise BusyError(
                    f"{self.called} is to be mapped for writing, and {self._readers} runs that "
                    "read it have not ended\n  Wait for their results, or map(write=False).")
            mapping = self._mapped = _Mapping(self.called, write)
            try:
                array = self._array.open()
            except BaseException:
                self._mapped = None
                raise
        try:
            yield _guarded(array, mapping)
        finally:
            mapping.open = False
            with self._changed:
                self._mapped = None
                if not self.closed:
                    self._array.shut(write)
                else:
                    self._give_back()

    def part(self, first: int, count: int) -> DeviceTensor:
        """Places of the first axis, in the same memory, which is this tensor's. InputError where
        the device can't bind memory that begins there.
        """
        return DeviceTensor(self._array.part(first, count), self.name, self._model)

    def put(self, source: DeviceTensor | np.ndarray, pieces: Sequence[tuple[int, int, int]]
            ) -> None:
        """Copy bytes from a tensor of the same device, or an array: (to, from, how many). They are
        there when `settle` has returned; no run may read the tensor meanwhile.
        """
        with self._changed, ExitStack() as stack:
            self.check_readable()
            given = (stack.enter_context(source.reading()) if isinstance(source, DeviceTensor)
                     else source)
            self._array.put(given, pieces)

    def put_each(self, sources: Sequence[DeviceTensor | np.ndarray], to: int, pitch: int,
                 start: int, nbytes: int, queue: Any = None) -> list[Any]:
        """`put` of `nbytes` from byte `start` on of each source, as byte `to`, `to + pitch`, .. on.
        One command where they are results that a bound run keeps, of one size. queue: of a run,
        behind which they are put; gives events then.
        """
        with self._changed:
            self.check_readable()
            arrays, begun = list[DeviceArray | np.ndarray](), list[DeviceTensor]()
            try:
                for source in sources:
                    if isinstance(source, DeviceTensor):
                        arrays.append(source.begin_reading())
                        begun.append(source)
                    else:
                        arrays.append(source)
                return self._array.put_each(arrays, to, pitch, start, nbytes, queue)
            finally:
                for source in begun:
                    source.end_reading()

    def fill(self, first: int, nbytes: int) -> None:
        """Bytes that are zero, in the same manner."""
        with self._changed:
            self.check_readable()
            self._array.fill(first, nbytes)

    def settle(self) -> None:
        """Wait for what was put into tensors of this device."""
        with self.reading() as array:
            array.settle()

    def close(self) -> None:
        """Give its memory back now, or behind the runs that read it. Twice is fine."""
        with self._changed:
            self.closed = True
            if self._mapped is not None:
                self._mapped.open = False
            self._give_back()

    def __enter__(self) -> DeviceTensor:
        with self._changed:
            self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- for runs

    @contextmanager
    def reading(self) -> Iterator[DeviceArray]:
        """A run reads it, or a copy is made: nobody writes meanwhile, and it stays there."""
        array = self.begin_reading()
        try:
            yield array
        finally:
            self.end_reading()

    def begin_reading(self) -> DeviceArray:
        with self._changed:
            self.check_readable()
            self._readers += 1
            return self._array

    def check_readable(self) -> None:
        """ClosedError, or InputError where it is mapped for writing."""
        self._check()
        if self._mapped is not None and self._mapped.write:
            raise InputError(f"{self.called} is mapped for writing: nobody reads it meanwhile\n"
                             "  End its `with` block first.")

    def end_reading(self) -> None:
        with self._changed:
            self._readers -= 1
            if self.closed:
                self._give_back()

    def held(self) -> DeviceTensor:
        """The same for a run to come, which may read it even if it is closed meanwhile, until
        `end_reading`.
        """
        self.begin_reading()
        made = object.__new__(_Held)
        made.__dict__ = self.__dict__
        return made

    def copied_to(self, device: str) -> np.ndarray:
        """Its elements for another device."""
        with recording.span("copy", f"'{self.name}' from {self.device} to {device}",
                            nbytes=self.nbytes):
            found = self._array.read()
        self.copies[device] = self.copies.get(device, 0) + 1
        log.info("%s, %d bytes, was copied from %s to %s", self.called, self.nbytes, self.device,
                 device)
        return found

    def _check(self) -> None:
        if self.closed:
            raise ClosedError(
                f"{self.called} was closed, or the model was that computed it\n"
                "  Copy what must last: tensor.numpy().")
        self._array.check()

    def _give_back(self) -> None:
        if not self._readers and self._mapped is None:
            self._array.close()


class _Held(DeviceTensor):
    """A tensor that is being read: it is what it was, in all but this."""

    def check_readable(self) -> None:
        """Nobody writes while it is read, and it is given back behind that."""


class _Mapping:
    """Whether a block of `map` has ended."""

    def __init__(self, called: str, write: bool) -> None:
        self.called, self.write, self.open = called, write, True

    def check(self) -> None:
        if not self.open:
            raise ClosedError(f"this array was mapped from {self.called}, and its `with` block has "
                              "ended\n  Copy what must last in there: array.copy(), or "
                              "tensor.numpy().")


class MappedArray(np.ndarray):
    """An array that is good for one block. What shares its memory is checked as it is; what NumPy
    computes from it is a plain array.
    """

    _mapping: _Mapping | None = None

    def __array_finalize__(self, parent: Any) -> None:
        mapping = getattr(parent, "__dict__", {}).get("_mapping")
        if mapping is not None and not _flags.__get__(self).owndata:
            self.__dict__["_mapping"] = mapping

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            mapping = object.__getattribute__(self, "__dict__").get("_mapping")
            if mapping is not None:
                mapping.check()
        return super().__getattribute__(name)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        if out is not None:
            kwargs["out"] = tuple(_plain(x) for x in out)
        found = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        return out[0] if out is not None and len(out) == 1 else found

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*_deeply(args), **_deeply(kwargs))

    def __getitem__(self, key: Any) -> Any:
        self.dtype                                  # noqa: B018  the check
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.dtype                                  # noqa: B018  the check
        super().__setitem__(key, _plain(value))

    def __repr__(self) -> str:
        return repr(_plain(self))

    def __str__(self) -> str:
        return str(_plain(self))

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(_plain(self))))


def _guarded(array: np.ndarray, mapping: _Mapping) -> np.ndarray:
    made = array.view(MappedArray)
    if not mapping.write:
        made.flags.writeable = False
    made.__dict__["_mapping"] = mapping
    return made


def _plain(value: Any) -> Any:
    """The same memory as a usual array, if the block has not ended."""
    if not isinstance(value, MappedArray):
        return value
    mapping = object.__getattribute__(value, "__dict__").get("_mapping")
    if mapping is not None:
        mapping.check()
    return np.ndarray.view(value, np.ndarray)


def _deeply(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_deeply, value)) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {name: _deeply(v) for name, v in value.items()}
    return _plain(value)


def _placed(how: str, dtype: Any, shape: Sequence[int], device: Any) -> tuple[Any, TensorSpec]:
    """The session of a device, and what is to lie there."""
    session = getattr(getattr(device, "device", device), "session", None)
    if session is None:
        raise InputError(f"{how}: got {device!r:.80}, wanted a model on an OpenCL device")
    name = dtypes.from_numpy(dtype)
    if name is None:
        raise InputError(f"{how}: jitcl has no elements of type {np.dtype(dtype)}")
    return session, TensorSpec("imported", name, tuple(int(n) for n in shape), -1)


# ---- runs of models


def any_on_device(arrays: Mapping[str, Any]) -> bool:
    return any(isinstance(x, DeviceTensor) for x in arrays.values())


def end_reading(given: Mapping[str, Any]) -> None:
    """Of tensors among inputs that were bound."""
    for x in given.values():
        if isinstance(x, DeviceTensor):
            x.end_reading()


def elements(value: Any) -> Any:
    """An array, where the elements are asked for: of a tensor, a copy."""
    return value.numpy() if isinstance(value, DeviceTensor) else value


def on_host(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What is fed, for a model that computes parts of it on the host."""
    return {name: x.copied_to("host") if isinstance(x, DeviceTensor) else x
            for name, x in arrays.items()}


def compute(special: Specialisation, inputs: Iterable[Any], keep: bool) -> Sequence[Any]:
    """A run on inputs of which some are tensors; results are kept on the device if asked for."""
    executable, given = special.executable, []
    with ExitStack() as stack:
        for x in inputs:
            if isinstance(x, DeviceTensor):
                array = stack.enter_context(x.reading())
                here = array.home is executable.home and array.home is not None
                near = array.home is None and executable.home is None
                given.append(array if here or near else x.copied_to(special.device.name))
            else:
                given.append(x)
        return list(executable.run_on_device(given, keep))


def kept(results: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Results as tensors; what is no array (sequences, strings) as it is."""
    found: dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OUSV":
            value = DeviceArray(value)
        elif isinstance(value, (np.ndarray, list, dict)) or value is None:
            found[name] = value
            continue
        found[name] = DeviceTensor(value, name, model)
    return found


__all__ = ["DeviceTensor", "MappedArray", "any_on_device", "compute", "elements", "end_reading",
           "kept", "on_host"]

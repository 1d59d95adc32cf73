"""OrtValue and IOBinding. All arrays lie in host memory: jitcl copies to and from its devices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import InputError
from jitcl.onnxruntime.described import NUMBER_OF, dtype_of, tensor_type
from jitcl.onnxruntime.errors import UsageError, made

if TYPE_CHECKING:
    from jitcl.onnxruntime.session import InferenceSession


def _wrong(text: str) -> Exception:
    return made(InputError, UsageError, text)


def _on_host(device_type: str) -> None:
    if device_type != "cpu":
        raise _wrong(f"device_type: got {device_type!r}, wanted 'cpu'\n  jitcl takes and gives "
                     "arrays in host memory, whatever device computes.")


def _typed(element_type: Any) -> tuple[str, np.dtype[Any]]:
    short = dtype_of(element_type)
    if short == "string":
        return short, np.dtype(object)
    if short not in dtypes.STORED:
        raise _wrong(f"element_type: got {element_type!r}, wanted a type of NumPy, or ONNX's "
                     "number of one")
    return short, dtypes.to_numpy(short)


def _memory(pointer: Any, element_type: Any, shape: Any) -> np.ndarray:
    """The array that lies at an address; its owner keeps it."""
    if element_type is None or shape is None:
        raise _wrong("a buffer_ptr needs element_type and shape beside it")
    short, dtype = _typed(element_type)
    if short == "string":
        raise _wrong("strings can't be bound by address")
    dims = tuple(int(d) for d in shape)
    count = int(np.prod(dims, dtype=np.int64))
    if not count:
        return np.zeros(dims, dtype)
    raw = (ctypes.c_byte * (count * dtype.itemsize)).from_address(int(pointer))
    return np.frombuffer(memoryview(raw).cast("B"), dtype).reshape(dims)


class OrtValue:
    """An array (a list of arrays, where it came out of a model as a sequence) in host memory."""

    def __init__(self, value: Any) -> None:
        self._value: Any = value._value if isinstance(value, OrtValue) else value

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Any, device_type: str = "cpu", device_id: int = 0
                            ) -> OrtValue:
        """Around an array, which is not copied."""
        _on_host(device_type)
        return OrtValue(np.ascontiguousarray(numpy_obj) if np.ndim(numpy_obj)
                        else np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: Any,
                                     device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A new array of zeros."""
        _on_host(device_type)
        return OrtValue(np.zeros(tuple(shape), _typed(element_type)[1]))

    def numpy(self) -> np.ndarray:
        """The array itself."""
        if not isinstance(self._value, np.ndarray):
            raise _wrong("only tensors can be had as arrays; this is a "
                         f"{type(self._value).__name__}")
        return self._value

    def shape(self) -> list[int]:
        """Elements along each axis."""
        return list(self.numpy().shape)

    def data_type(self) -> str:
        """"tensor(float)"."""
        if isinstance(self._value, list):
            inner = tensor_type(dtype_of(self._value[0].dtype)) if self._value else "tensor(float)"
            return f"seq({inner})"
        return tensor_type(dtype_of(self.numpy().dtype))

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return NUMBER_OF[dtype_of(self.numpy().dtype)]

    def device_name(self) -> str:
        """"cpu"."""
        return "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.numpy().ctypes.data

    def tensor_size_in_bytes(self) -> int:
        """Bytes of the elements."""
        return self.numpy().nbytes

    def has_value(self) -> bool:
        """False for an empty optional."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """Whether it is an array."""
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """False: jitcl gives none."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a list of arrays."""
        return isinstance(self._value, list)

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Copy elements in."""
        _copy(self.numpy(), np_arr, "update_inplace")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=True if copy is None else copy)


def _copy(to: np.ndarray, values: Any, what: str) -> None:
    array = np.asarray(values)
    if array.dtype != to.dtype or array.shape != to.shape:
        raise _wrong(f"{what}: got {array.dtype}{list(array.shape)}, wanted "
                     f"{to.dtype}{list(to.shape)}")
    to[...] = array


class IOBinding:
    """Inputs and outputs of a session by name, in host memory, for `run_with_iobinding`."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._given: dict[str, np.ndarray | None] = {}      # output -> memory to copy it into
        self._results: dict[str, Any] = {}

    def _input(self, name: str, value: Any) -> None:
        known = [t.name for t in self._session.model.inputs]
        if name not in known:
            raise _wrong(f"there is no input '{name}'; the inputs are {', '.join(known)}")
        self._inputs[name] = value

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """An array, which is read when the session runs."""
        self._input(name, arr_on_cpu)

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any,
                   shape: Any, buffer_ptr: int) -> None:
        """What lies at an address, read when the session runs; it must last until then."""
        _on_host(device_type)
        self._input(name, _memory(buffer_ptr, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """An OrtValue's array."""
        self._input(name, ortvalue._value)

    def _output(self, name: str, memory: np.ndarray | None) -> None:
        known = [t.name for t in self._session.model.outputs]
        if name not in known:
            raise _wrong(f"there is no output '{name}'; the outputs are {', '.join(known)}")
        self._given[name] = memory

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0,
                    element_type: Any = None, shape: Any = None, buffer_ptr: int | None = None
                    ) -> None:
        """An output to compute: into the memory at an address, else into a new array each run."""
        _on_host(device_type)
        self._output(name, None if buffer_ptr is None
                     else _memory(buffer_ptr, element_type, shape))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """An output to copy into an OrtValue's array."""
        self._output(name, ortvalue.numpy())

    def run(self, options: Any = None) -> None:
        """What `InferenceSession.run_with_iobinding` does."""
        if not self._given:
            raise _wrong("At least one output should be requested: bind_output(name)")
        names = list(self._given)
        found = self._session.run(names, self._inputs, options)
        for name, value in zip(names, found):
            memory = self._given[name]
            if memory is not None:
                _copy(memory, value, f"output '{name}'")
            self._results[name] = value if memory is None else memory

    def get_outputs(self) -> list[OrtValue]:
        """Of the last run, in the order in which they were bound."""
        return [OrtValue(self._results[n]) for n in self._given if n in self._results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The same as arrays, which are copies."""
        return [np.array(self._results[n]) if isinstance(self._results[n], np.ndarray)
                else self._results[n] for n in self._given if n in self._results]

    def synchronize_inputs(self) -> None:
        """Nothing: runs are synchronous."""

    def synchronize_outputs(self) -> None:
        """Nothing: runs are synchronous."""

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._given.clear()
        self._results.clear()


__all__ = ["IOBinding", "OrtValue"]

"""What may be fed beside arrays of the right type: numbers in lists, and tensors through DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jitcl
from jitcl import dtypes
from jitcl.runtime.arrays import as_array, plain
from jitcl.runtime.dlpack import TYPES

WHERE = "input 'x'"


# ---- numbers in lists


@pytest.mark.parametrize(("value", "dtype"), [
    ([1.5, -2.0], "f32"), ([1, 2, 3], "f32"), ((1, 2.5), "f32"), ([[True, False]], "f32"),
    (0.25, "f32"), (3, "f64"), ([0.1], "f64"), ([0.5, 2], "f16"), ([1.5], "bf16"),
    ([0.5], "f8e4m3"),
    ([1, -2], "i64"), ([2 ** 63 - 1, -2 ** 63], "i64"), ([2 ** 64 - 1], "u64"), ([255, 0], "u8"),
    ([7, -8], "i4"), ([True, False], "bool"), (True, "bool"), ([], "f32"), ([[], []], "i64"),
    ([float("inf"), float("nan")], "f32"), ([np.float32(2), 3], "f32"), ([np.int64(2)], "i32"),
    ([np.array([1.0, 2.0]), [3.0, 4.0]], "f32"),
])
def test_numbers_take_the_type_that_is_wanted(value, dtype):
    got = as_array(value, dtype, WHERE)
    want = dtypes.converted(np.array(value), dtype) if np.size(value) else np.array(value)
    assert got.dtype == dtypes.to_numpy(dtype) and got.shape == np.shape(value)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize(("value", "dtype", "text"), [
    ([1.5], "i64", "got a list of float64, wanted numbers of type int64: whole ones"),
    ([1.0], "i64", "wanted numbers of type int64: whole ones"),
    (2.0, "bool", "got a float of float64, wanted numbers of type bool"),
    ([1, 0], "bool", "wanted numbers of type bool"),
    ([300], "u8", "got 300, which uint8 can't hold"),
    ([0, -1], "u8", "got -1, which uint8 can't hold"),
    ([8], "i4", "got 8, which int4 can't hold"),
    ([2 ** 63], "i64", "got 9223372036854775808, which int64 can't hold"),
    ([2 ** 64], "u64", "got 18446744073709551616, which uint64 can't hold"),
    ([10 ** 400], "f32", "which float32 can't hold"),
    ([1e39], "f32", "got 1e+39, which float32 can't hold"),
    ([70000.0], "f16", "got 70000.0, which float16 can't hold"),
    ([1 + 2j], "f32", "got a list of complex128, wanted numbers of type float32"),
    ([[1, 2], [3]], "f32", "got a list that is no array: its lists are not of one length"),
    (["a"], "f32", "wanted numbers of type float32"),
    ([None], "f32", "got a list with None in it, wanted an array of float32 or a list of numbers"),
    ([{}], "i64", "got a list with a dict in it"),
])
def test_numbers_that_it_cannot_hold(value, dtype, text):
    with pytest.raises(jitcl.InputError) as caught:
        as_array(value, dtype, WHERE)
    assert str(caught.value).startswith(f"{WHERE}: got ") and text in str(caught.value)


def test_arrays_must_have_the_type():
    for array in (np.zeros(2), np.zeros(2, np.int32), np.zeros(2, ml_dtypes.bfloat16),
                  np.float64(2).reshape(1)):
        with pytest.raises(jitcl.InputError, match=r"wanted float32; convert it with array.astype"):
            as_array(array, "f32", WHERE)


# ---- DLPack


class Exported:
    """What another library's tensor shows: its elements through DLPack, and nothing else."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


class _Managed(ctypes.Structure):
    """DLManagedTensor of DLPack 0.x."""

    _fields_ = (("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Raw(Exported):
    """A tensor of any DLPack type, which NumPy does not export. `offset`: elements before it that
    are not of it."""

    def __init__(self, array: np.ndarray, code: int, bits: int, *, strides: bool = True,
                 offset: int = 0, lanes: int = 1) -> None:
        super().__init__(array)
        self.code, self.bits, self.lanes = code, bits, lanes
        self.offset, self.with_strides = offset, strides

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack__(self, **options: Any) -> Any:
        a, n = self.array, self.array.ndim
        self.shape = (ctypes.c_int64 * n)(*a.shape)
        self.strides = (ctypes.c_int64 * n)(*(s // a.itemsize for s in a.strides))
        self.managed = _Managed(
            a.ctypes.data - self.offset * a.itemsize, (ctypes.c_int32 * 2)(1, 0), n, self.code,
            self.bits, self.lanes, self.shape, self.strides if self.with_strides else None,
            self.offset * a.itemsize)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.managed), b"dltensor", None)


BASE = np.random.default_rng(5).integers(-9, 9, (4, 6))


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16",
                                   "u32", "u64", "bool"])
@pytest.mark.parametrize("view", [
    lambda a: a, lambda a: a.T, lambda a: a[1:, ::2], lambda a: a[::-1], lambda a: a[2, 3:3],
    lambda a: a[1, 2], lambda a: a[None, :, 1]], ids=range(7))
def test_a_tensor_through_dlpack(dtype, view):
    array = np.asarray(view(BASE.astype(dtypes.to_numpy(dtype))))
    got = as_array(Exported(array), dtype, WHERE)
    assert got.dtype == array.dtype and got.shape == array.shape
    np.testing.assert_array_equal(got, array)
    assert not np.shares_memory(got, array)


@pytest.mark.parametrize(("key", "dtype"), [(k, d) for k, d in TYPES.items()
                                            if d == "bf16" or d in dtypes.LOW])
def test_types_that_numpy_has_not(key, dtype):
    array = dtypes.converted(np.abs(BASE).astype(np.float32) + 1, dtype)
    for view in (array, array.T, array[1:, ::2]):
        for offset in (0, 1):
            bits = view.view(f"u{array.itemsize}")
            got = as_array(Raw(bits, *key, offset=offset if view is not array else 0), dtype, WHERE)
            assert got.dtype == array.dtype and got.tobytes() == view.tobytes()
    got = as_array(Raw(array.view(f"u{array.itemsize}"), *key, strides=False), dtype, WHERE)
    assert got.tobytes() == array.tobytes()


@pytest.mark.parametrize(("tensor", "text"), [
    (Exported(BASE, (2, 0)), "got a Exported on a device (CUDA); copy it to this machine's "),
    (Exported(BASE, (77, 0)), "on a device (DLPack type 77)"),
    (Raw(BASE, 5, 64), "elements of DLPack type 5 with 64 bits are not known"),
    (Raw(BASE, 0, 64, lanes=4), "are not known"),
    (Exported(BASE), "got dtype int64, wanted float32; convert it with "
                     "numpy.asarray(tensor).astype('float32')"),
])
def test_tensors_that_are_refused(tensor, text):
    with pytest.raises(jitcl.InputError) as caught:
        as_array(tensor, "f32", WHERE)
    assert text in str(caught.value)


def test_memory_of_the_host_that_a_gpu_sees_is_read():
    np.testing.assert_array_equal(plain(Exported(BASE, (3, 0)), WHERE), BASE)


# ---- at the doors

TEXT = "graph @f(%x: DTYPE[n,3]) {\n  %y = add(%x, %x)\n  return %y\n}"


@pytest.mark.parametrize("spec", ["cpu", "reference"])
def test_a_model_is_fed_lists_and_tensors(spec):
    model = jitcl.compile(jitcl.parse(TEXT.replace("DTYPE", "f32")), device=spec)
    rows = [[1, 2.5, -3], [0, 0.5, 1]]
    want = 2 * np.float32(rows)
    for given in (rows, tuple(map(tuple, rows)), Exported(np.float32(rows))):
        np.testing.assert_array_equal(model.run({"x": given})["y"], want)
        np.testing.assert_array_equal(model(given)["y"], want)
        bound = model.bind({"x": (2, 3)})
        bound.inputs["x"] = given
        np.testing.assert_array_equal(bound.run()["y"], want)
    with pytest.raises(jitcl.InputError, match=r"input 'x' f32\[n,3\]: axis 1 is 2, wanted 3"):
        model.run({"x": [[1, 2]]})


def test_a_model_is_fed_bfloat16():
    model = jitcl.compile(jitcl.parse(TEXT.replace("DTYPE", "bf16")), device="cpu")
    x = np.array([[1.5, 2, 3]], ml_dtypes.bfloat16)
    for given in (x, [[1.5, 2, 3]], Raw(x.view(np.uint16), 4, 16)):
        y = model.run({"x": given})["y"]
        assert y.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(y.astype(np.float32), [[3, 4, 6]])

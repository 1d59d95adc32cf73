"""What is fed, as NumPy arrays of a wanted type: arrays, lists of numbers, tensors of other
libraries by way of `__array__` or DLPack.

Numbers that are typed (Python's, in lists or not) take the type that is wanted where it can hold
them. Arrays have a type of their own and must have the right one: what converting them would lose
is for their owner to decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import InputError
from jitcl.runtime import dlpack
from jitcl.runtime.arguments import kind_of

# what the code of foreign objects may raise when it is asked for their elements
FOREIGN = (ArithmeticError, AssertionError, AttributeError, BufferError, LookupError, OSError,
           RuntimeError, TypeError, ValueError)
NUMBERS = (bool, int, float)


def as_array(value: Any, dtype: str, where: str) -> np.ndarray:
    """The elements of a fed value as an array of `dtype`; InputError, which begins with `where`
    ("input 'x' f32[2]"), where they are not of that type, or no array.
    """
    want = dtypes.to_numpy(dtype)
    if isinstance(value, (*NUMBERS, list, tuple)) and not isinstance(value, np.generic):
        return _typed(value, dtype, want, where)
    array = plain(value, where)
    if array.dtype == want:
        return array
    if value is None or isinstance(value, (str, bytes, Mapping, Set, Iterator)):
        raise InputError(f"{where}: got {kind_of(value)}, wanted an array of {want} or a list of "
                         "numbers")
    raise InputError(f"{where}: got dtype {array.dtype}, wanted {want}; convert it with "
                     f"{_conversion(value, dtype)}")


def plain(value: Any, where: str) -> np.ndarray:
    """An array with the type that it has. Objects that are no arrays are elements of type object.
    """
    if isinstance(value, np.ndarray):
        if (type(value) is not np.ndarray           # naming np.ma imports it
                and isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value)):
            raise InputError(f"{where}: got an array with masked elements; say what they are: "
                             "array.filled(value)")
        return np.asarray(value)
    exported = dlpack.is_exporter(value)
    if exported:
        dlpack.check_device(value, where)
    if not exported or hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except FOREIGN as error:
            if not exported or "grad" in str(error):    # exporting says the same with less advice
                raise InputError(
                    f"{where}: got {kind_of(value)} that is no array: {error}") from error
    try:
        return dlpack.to_numpy(value)
    except FOREIGN as error:
        raise InputError(f"{where}: got {kind_of(value)} that can't be read: {error}") from error


def _typed(value: Any, dtype: str, want: np.dtype[Any], where: str) -> np.ndarray:
    """A number, or numbers in lists."""
    try:
        array = np.asarray(value)
    except FOREIGN as error:
        raise InputError(
            f"{where}: got {kind_of(value)} that is no array: {_ragged(error)}") from error
    if array.dtype == want:
        return array
    if not array.size:
        return array.astype(want)
    kinds = "fiub" if dtypes.is_float(dtype) else "b" if dtype == "bool" else "iub"
    if array.dtype.kind == "O":              # integers beyond 64 bits, or what is no number
        odd = next((v for v in array.reshape(-1).tolist() if not isinstance(v, NUMBERS)), 0)
        if not isinstance(odd, NUMBERS):
            raise InputError(f"{where}: got {kind_of(value)} with {kind_of(odd)} in it, wanted an "
                             f"array of {want} or a list of numbers")
    elif array.dtype.kind not in kinds:
        raise InputError(f"{where}: got {kind_of(value)} of {array.dtype}, wanted numbers of type "
                         + str(want) + (": whole ones" if array.dtype.kind == "f" else ""))
    with np.errstate(all="ignore"):
        bad = _beyond(array, dtype)
        if np.any(bad):
            first = array.reshape(-1)[int(np.argmax(np.reshape(bad, -1)))]
            raise InputError(f"{where}: got {first}, which {want} can't hold")
        return dtypes.converted(array, dtype)


def _beyond(array: np.ndarray, dtype: str) -> np.ndarray | bool:
    """Where numbers are that a type does not reach as far as."""
    if dtype == "bool":
        return False
    if not dtypes.is_float(dtype):
        low, high = dtypes.limits(dtype)
        return (array < low) | (array > high)
    if array.dtype.kind == "O":
        return np.abs(array) > np.finfo(np.float64).max if dtype == "f64" else np.abs(array) >= 0
    made = dtypes.converted(array, dtype)
    return np.isfinite(array) & ~np.isfinite(made.astype(np.float64))


def _ragged(error: Exception) -> str:
    text = str(error)
    return f"its lists are not of one length ({text})" if "inhomogeneous" in text else text


def _conversion(value: Any, dtype: str) -> str:
    """How a user converts what was fed."""
    name = dtypes.numpy_name(dtype)
    spelled = name if "." in name else f"'{name}'"
    if isinstance(value, np.ndarray) or not dlpack.is_exporter(value):
        return f"array.astype({spelled})"
    return f"numpy.asarray(tensor).astype({spelled})"


__all__ = ["FOREIGN", "as_array", "plain"]

"""Checks of fed values that are not tensors of numbers of a known rank: strings, sequences,
optionals, maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import InputError
from jitcl.frontends.values import ValueType, is_text, texts
from jitcl.runtime.arguments import kind_of
from jitcl.runtime.arrays import as_array, plain

if TYPE_CHECKING:
    from jitcl.runtime.source import Tensor


def check_value(t: Tensor, type: ValueType, value: Any, where: str = "") -> Any:
    """The value as programs hold it: arrays (of `str` for strings), lists, None, dicts. Raises
    InputError. `where`: which item of a sequence.
    """
    if type.kind == "optional":
        if value is None:
            return None
        return check_value(t, type.of, value, where) if type.of is not None else value
    if type.kind == "sequence":
        if not isinstance(value, (list, tuple)):
            raise InputError(f"input {t}{where}: got {kind_of(value)}, wanted a list of arrays")
        if type.of is None:
            return list(value)
        return [check_value(t, type.of, v, f"{where}, item {i}") for i, v in enumerate(value)]
    if type.kind == "map":
        if not isinstance(value, Mapping):
            raise InputError(f"input {t}{where}: got {kind_of(value)}, wanted a dict")
        return dict(value)
    if type.kind == "unknown":
        return (value if value is None or isinstance(value, (list, dict))
                else plain(value, f"input {t}{where}"))
    return _tensor(t, type, value, where)


def _tensor(t: Tensor, type: ValueType, value: Any, where: str) -> np.ndarray:
    if value is None or isinstance(value, dict):
        raise InputError(f"input {t}{where}: got {kind_of(value)}, wanted an array")
    if type.dtype in dtypes.STORED:
        array = as_array(value, type.dtype, f"input {t}{where}")
    else:
        array = plain(value, f"input {t}{where}")
        if type.dtype == "string":
            array = _strings(t, array, where)
        elif array.dtype != np.dtype(type.dtype):
            raise InputError(f"input {t}{where}: got dtype {array.dtype}, wanted {type.dtype}")
    if type.shape is None:
        return array
    if array.ndim != len(type.shape):
        raise InputError(
            f"input {t}{where}: got {array.ndim} axes {array.shape}, wanted {len(type.shape)}")
    for axis, (got, dim) in enumerate(zip(array.shape, type.shape)):
        if isinstance(dim, int) and got != dim:
            raise InputError(f"input {t}{where}: axis {axis} is {got}, wanted {dim} (got shape "
                             f"{array.shape})")
    return array


def _strings(t: Tensor, array: np.ndarray, where: str) -> np.ndarray:
    """Text in any of NumPy's forms as an array of `str` objects, a copy."""
    found = texts(array)
    if found is not None:
        return found.copy() if found is array else found
    flat = [v.decode() if isinstance(v, bytes) else v for v in array.reshape(-1).tolist()]
    odd = [v for v in flat if not isinstance(v, str)]
    if odd or not (is_text(array) or not array.size):
        raise InputError(f"input {t}{where}: got dtype {array.dtype}"
                         + (f" with {kind_of(odd[0])} in it" if odd else "")
                         + ", wanted strings: np.array([...], dtype=object) of str")
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(array.shape)


__all__ = ["check_value"]

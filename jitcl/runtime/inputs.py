"""Checks of what the caller feeds: name, dtype, rank, dimensions; each error says got and wanted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures._base import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes
from jitcl.devices import recording
from jitcl.errors import InputError
from jitcl.ir.types import MOST_BYTES, Sym, TensorType
from jitcl.runtime.arguments import is_whole, shapes_of
from jitcl.runtime.arrays import as_array
from jitcl.runtime.source import Tensor
from jitcl.runtime.tensors import DeviceTensor
from jitcl.runtime.values import check_value

if TYPE_CHECKING:
    from jitcl.runtime.specialise import Specialisation


@dataclass(frozen=True)
class Again:
    """What computed a checked feed, and what that looked like: a dict of the same names, dtypes and
    shapes needs no other check. Small models take less time than those checks.
    """

    special: Specialisation
    looks: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]

    def matches(self, feeds: Any) -> bool:
        """False where a closer look is needed: it may still be right."""
        if type(feeds) is not dict or len(feeds) != len(self.looks):
            return False
        for name, dtype, shape in self.looks:
            array = feeds.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                return False
        return True


def check_feeds(inputs: Sequence[Tensor], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The fed values in the order of the inputs; InputError where one does not fit. Names of
    dimensions are hints: two of one name may differ, as in onnxruntime."""
    with recording.span("host", "checking what is fed"):
        feeds = feeds_of(feeds, inputs)
        arrays = {}
        for t in inputs:
            if t.name in feeds and t.value is not None:
                arrays[t.name] = check_value(t, t.value, feeds[t.name])
            elif t.name in feeds:
                arrays[t.name] = _check(t, feeds[t.name])
            elif t.value is not None and t.value.kind == "optional":
                arrays[t.name] = None
            elif not t.optional:
                raise InputError(
                    f"input {t} was not fed; fed were {', '.join(map(repr, feeds)) or 'none'}")
        return arrays


def feeds_of(feeds: Any, inputs: Sequence[Tensor]) -> Mapping[str, Any]:
    """InputError unless it is a dict by names of the inputs."""
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"run() takes a dict of input name -> array, got {type(feeds).__name__}; "
            f"call the model itself to pass arrays by position"
        )
    known = {t.name for t in inputs}
    for name in feeds:
        if name not in known:
            raise InputError(
                f"there is no input '{name}'; the inputs are {', '.join(map(str, inputs))}")
    return feeds


def _check(t: Tensor, value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        array: Any = value
        value.check_readable()
        if array.dtype != dtypes.to_numpy(t.dtype):
            raise InputError(f"input {t}: got {value!r}, wanted {dtypes.to_numpy(t.dtype)}\n"
                             "  Convert it: tensor.numpy().astype(..)")
    elif isinstance(value, Future):
        raise InputError(f"input {t}: got {value!r}, which is no array\n"
                         "  Pass what it gives: run.result()['NAME'].")
    else:
        array = as_array(value, t.dtype, f"input {t}")
    if array.ndim != len(t.shape):
        raise InputError(f"input {t}: got {array.ndim} axes {array.shape}, wanted {len(t.shape)}")
    for axis, (got, dim) in enumerate(zip(array.shape, t.shape)):
        if isinstance(dim, int) and got != dim:
            raise InputError(
                f"input {t}: axis {axis} is {got}, wanted {dim} (got shape {array.shape})")
    return array


def check_shape(t: Tensor, shape: Any) -> tuple[int, ...]:
    """A shape to compile for, as ints; InputError where it is none or does not fit the input."""
    dims = tuple(shape) if isinstance(shape, (tuple, list)) else (
        tuple(shape.tolist()) if isinstance(shape, np.ndarray) and shape.ndim == 1 else (shape,))
    if isinstance(shape, np.ndarray) and shape.ndim > 1:
        raise InputError(
            f"shapes: input {t} got an array of shape {shape.shape}, wanted the shape itself")
    for axis, d in enumerate(dims):
        if not is_whole(d, 0):
            raise InputError(
                f"shapes: axis {axis} of input {t} is {d!r}, wanted a whole number from 0 up")
    if len(dims) != len(t.shape):
        raise InputError(f"shapes: {dims} has {len(dims)} axes, input {t} has {len(t.shape)}")
    for axis, (got, want) in enumerate(zip(dims, t.shape)):
        if isinstance(want, int) and got != want:
            raise InputError(f"shapes: axis {axis} of input {t} is {got}, the model says {want}")
    if math.prod(int(d) for d in dims) * dtypes.itemsize(t.dtype) > MOST_BYTES:
        raise InputError(f"shapes: {dims} of input {t} is more than any machine holds: "
                         f"{MOST_BYTES >> 40} TiB is the most")
    return tuple(int(d) for d in dims)


def fixed_shapes(
    inputs: Sequence[Tensor], shapes: Mapping[str, Any] | None
) -> dict[str, tuple[int, ...]] | None:
    """All input shapes, from the model and from `shapes`; None while one is unknown."""
    shapes = shapes_of(shapes)
    known = {t.name for t in inputs}
    for name in shapes:
        if name not in known:
            names = ", ".join(t.name for t in inputs)
            raise InputError(f"shapes: there is no input '{name}'; the inputs are {names}")
    found: dict[str, tuple[int, ...]] = {}
    for t in inputs:
        if t.name in shapes:
            found[t.name] = check_shape(t, shapes[t.name])
        elif not t.optional:
            if t.value is not None or any(isinstance(d, Sym) for d in t.shape):
                return None
            found[t.name] = TensorType(t.dtype, t.shape).dims
    return found


def random_feed(tensor: Tensor, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random numbers for an input: floats of 0..1, integers 0 and 1; the same for the same seed."""
    rng = np.random.default_rng([seed, *tensor.name.encode()])
    dtype = dtypes.to_numpy(tensor.dtype)
    if dtypes.is_float(tensor.dtype):
        return rng.random(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def digest_of(feeds: Sequence[Mapping[str, Any]]) -> str:
    """Of what is fed: arrays, lists of them, strings, maps, nothing."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, list):
            digest.update(f"list of {len(value)} ".encode())
            for one in value:
                add(one)
            return
        if isinstance(value, Mapping):
            value = np.array(sorted(value.items(), key=repr), object)
        array = np.asarray(value)
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype == object else
                      np.ascontiguousarray(array).tobytes())

    for one in feeds:
        for name, value in sorted(one.items()):
            digest.update(f"{name} ".encode())
            add(value)
    return digest.hexdigest()


__all__ = ["Again", "check_feeds", "check_shape", "digest_of", "feeds_of", "fixed_shapes",
           "random_feed"]

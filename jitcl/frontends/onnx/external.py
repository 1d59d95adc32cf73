"""Elements of tensors that are kept in a file beside the model, which may be of any size: only what
is asked for is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, external_data_helper

from jitcl.errors import ModelError


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's elements are in a file."""
    return bool(external_data_helper.uses_external_data(tensor))


def location(tensor: TensorProto) -> str:
    """The file, relative to the model, that holds a tensor's elements."""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


def read(tensor: TensorProto, count: int, base: Path | None, what: str) -> np.ndarray[Any, Any]:
    """The `count` bytes (u8) of a tensor; ModelError naming it where the file does not hold
    them."""
    place = location(tensor)
    path = checked_path(tensor, base, what)
    offset, length = (_number(tensor, key, what) for key in ("offset", "length"))
    if length is not None and length != count:
        raise ModelError(
            f"{what} is malformed: its elements take {count} bytes, but {length} of '{place}' are "
            f"said to hold them\n  The model was written by a faulty exporter; export it again."
        )
    start = offset or 0
    try:
        size = path.stat().st_size
        if start + count > size:
            raise ModelError(
                f"{what}: its elements are the bytes {start} to {start + count} of '{path}', which "
                f"has {size}\n  The file was cut off, or belongs to another model; fetch it again."
            )
        return np.fromfile(path, np.uint8, count, offset=start)
    except OSError as error:
        raise ModelError(f"{what}: its elements in '{path}' can't be read: {error}") from error


def checked_path(tensor: TensorProto, base: Path | None, what: str) -> Path:
    """The file of a tensor's elements; ModelError where there is none, or it lies elsewhere."""
    place = location(tensor)
    if base is None:
        raise ModelError(
            f"{what} keeps its elements in the file '{place}', but the model was not loaded "
            f"from a file\n  Pass the model's path, so that the file beside it can be found."
        )
    normal = os.path.normpath(place)
    if not place or os.path.isabs(normal) or normal.startswith(".."):
        raise ModelError(
            f"{what} keeps its elements in '{place}', which is not in the model's folder\n"
            f"  Put the file beside the model and save the model with its relative path."
        )
    if not (base / place).is_file():
        raise ModelError(
            f"{what} keeps its elements in '{base / place}', which does not exist\n"
            f"  Put the file beside the model; it belongs to it."
        )
    return base / place


def _number(tensor: TensorProto, key: str, what: str) -> int | None:
    text = next((e.value for e in tensor.external_data if e.key == key), "")
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ModelError(f"{what} is malformed: the {key} of its elements in '{location(tensor)}' "
                         f"is '{text}', wanted a number of bytes")
    return number

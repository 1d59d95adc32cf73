"""Elements of tensors that are kept in a file beside the model, or left in the model's own, which
may be of any size: only what is asked for is read."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import TensorProto, external_data_helper

from jitcl.errors import ModelError
from jitcl.frontends.onnx import slim


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's elements are in a file."""
    return bool(external_data_helper.uses_external_data(tensor))


def location(tensor: TensorProto) -> str:
    """The file, relative to the model, that holds a tensor's elements."""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


class File:
    """A file of elements, which must stay as it is while they are read, now and later. One that is
    kept open may be deleted or replaced meanwhile: what was opened is read. Raises OSError.
    """

    def __init__(self, path: Path, open: bool = False) -> None:
        self.path = path
        self._file: BinaryIO | None = path.open("rb") if open else None
        self._lock = threading.Lock()
        self.size, self._changed = self._state(self._file)

    def read(self, start: int, count: int, what: str) -> np.ndarray[Any, Any]:
        """`count` bytes; ModelError naming what they are of where the file was written to."""
        if self._file is None:
            with self.path.open("rb") as file:
                return self._read(file, start, count, what)
        with self._lock:
            return self._read(self._file, start, count, what)

    def protocol_buffer(self) -> bytes:
        """The model that an open file is, its large initialisers left in it (slim)."""
        assert self._file is not None
        return slim.read(self.path, self._file)

    def _read(self, file: BinaryIO, start: int, count: int, what: str) -> np.ndarray[Any, Any]:
        out = np.empty(count, np.uint8)
        file.seek(start)
        got = file.readinto(out.data)        # type: ignore[attr-defined]
        if got != count or self._state(file) != (self.size, self._changed):
            raise ModelError(
                f"{what}: '{self.path}' holds its elements, and has changed since it was opened\n"
                f"  Load the model again. A new version is best written to another file that then "
                f"takes this one's name."
            )
        return out

    def _state(self, file: BinaryIO | None) -> tuple[int, int]:
        """Size, and time of the last change in nanoseconds."""
        found = self.path.stat() if file is None else os.fstat(file.fileno())
        return found.st_size, found.st_mtime_ns

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


def read(tensor: TensorProto, count: int, base: Path | None, what: str,
         file: File | None = None) -> np.ndarray[Any, Any]:
    """The `count` bytes (u8) of a tensor; ModelError naming it where its file does not hold them.
    `file`: as opened before, for a second look.
    """
    place = location(tensor)
    path = checked_path(tensor, base, what) if file is None else file.path
    offset, length = (_number(tensor, key, what) for key in ("offset", "length"))
    if length is not None and length != count:
        raise ModelError(
            f"{what} is malformed: its elements take {count} bytes, but {length} of '{place}' are "
            f"said to hold them\n  The model was written by a faulty exporter; export it again."
        )
    start = offset or 0
    try:
        file = file or File(path)
        if start + count > file.size:
            raise ModelError(
                f"{what}: its elements are the bytes {start} to {start + count} of '{path}', which "
                f"has {file.size}\n  The file was cut off, or belongs to another model; fetch it "
                f"again."
            )
        return file.read(start, count, what)
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

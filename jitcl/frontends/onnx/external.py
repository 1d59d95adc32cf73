"""Elements of tensors that are kept in a file beside the model, or left in the model's own, which
may be of any size: only what is asked for is read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from onnx import TensorProto, external_data_helper

from jitcl import forking
from jitcl.errors import ModelError
from jitcl.frontends.onnx import slim
from jitcl.ir.files import open_regular


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's elements are in a file."""
    return bool(external_data_helper.uses_external_data(tensor))


def location(tensor: TensorProto) -> str:
    """The file, relative to the model, that holds a tensor's elements."""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


@dataclass(frozen=True)
class Folder:
    """Where a model's external data may lie: the folder that holds the model's file, and, where
    that is a symbolic link, the folder that it leads to. In Hugging Face's cache both the model and
    its data are links to files in one folder.
    """

    path: Path
    real: tuple[Path, ...]          # without symbolic links

    @staticmethod
    def of(model: Path) -> Folder:
        """The folder of a model's file."""
        path = model.absolute().parent
        return Folder(path, (path.resolve(), model.resolve().parent))

    def holds(self, file: Path) -> bool:
        """Whether a file without symbolic links lies in it, at any depth."""
        return any(file.is_relative_to(real) for real in self.real)


class File:
    """A file of elements, which must stay as it is while they are read, now and later. One that is
    kept open may be deleted or replaced meanwhile: what was opened is read. Raises OSError.
    """

    def __init__(self, path: Path, open: bool = False) -> None:
        self.path = path
        self._file: BinaryIO | None = open_regular(path) if open else None
        self._lock = forking.lock()
        self.size, self._changed = self._state(self._file)

    def read(self, start: int, count: int, what: str, some: tuple[int, int] | None = None
             ) -> np.ndarray[Any, Any]:
        """`count` bytes, or of each so many `some`: (2, 10) the first two of each ten. ModelError
        naming what they are of where the file was written to."""
        if self._file is None:
            with open_regular(self.path, None) as file:
                return self._read(file, start, count, what, some)
        with self._lock:
            return self._read(self._file, start, count, what, some)

    def protocol_buffer(self) -> bytes:
        """The model that an open file is, its large initialisers left in it (slim)."""
        assert self._file is not None
        return slim.read(self.path, self._file)

    def _read(self, file: BinaryIO, start: int, count: int, what: str,
              some: tuple[int, int] | None) -> np.ndarray[Any, Any]:
        first, each = some or (count, max(count, 1))
        out = np.empty((-(-count // each), first), np.uint8)
        got = 0
        for row in out:
            file.seek(start)
            got += file.readinto(row.data)       # type: ignore[attr-defined]
            start += each
        if got != out.size or self._state(file) != (self.size, self._changed):
            raise ModelError(
                f"{what}: '{self.path}' holds its elements, and has changed since it was opened\n"
                f"  Load the model again. A new version is best written to another file that then "
                f"takes this one's name."
            )
        return out.reshape(-1)

    def _state(self, file: BinaryIO | None) -> tuple[int, int]:
        """Size, and time of the last change in nanoseconds."""
        found = self.path.stat() if file is None else os.fstat(file.fileno())
        return found.st_size, found.st_mtime_ns

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


def read(tensor: TensorProto, count: int, base: Folder | None, what: str,
         file: File | None = None, some: tuple[int, int] | None = None
         ) -> np.ndarray[Any, Any]:
    """The `count` bytes (u8) of a tensor, or `some` of them; ModelError naming it where its file
    does not hold them. `file`: as opened before, for a second look.
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
        return file.read(start, count, what, some)
    except OSError as error:
        raise ModelError(f"{what}: its elements in '{path}' can't be read: {error}") from error


def checked_path(tensor: TensorProto, base: Folder | None, what: str) -> Path:
    """The file of a tensor's elements, without symbolic links; ModelError where there is none, or
    it lies elsewhere. A model says which of the user's files become its weights: it may name none
    but its own. As in onnx's checker, a file of several names (hard links) is taken for another's.
    """
    place = location(tensor)
    if base is None:
        raise ModelError(
            f"{what} keeps its elements in the file '{place}', but the model was not loaded "
            f"from a file\n  Pass the model's path, so that the file beside it can be found."
        )
    normal = os.path.normpath(place)
    if not place or os.path.isabs(normal) or normal.split(os.sep)[0] == "..":
        raise ModelError(
            f"{what} keeps its elements in '{place}', which is not in the model's folder\n"
            f"  Put the file beside the model and save the model with its relative path."
        )
    path = base.path / place
    try:
        real = path.resolve(strict=True)
        found = real.stat()
    except (OSError, RuntimeError, ValueError):     # none; a circle of links; no path at all
        found = None
    if found is None or not stat.S_ISREG(found.st_mode):
        raise ModelError(
            f"{what} keeps its elements in '{path}', which does not exist, or is no file\n"
            f"  Put the file beside the model; it belongs to it."
        )
    if not base.holds(real):
        raise ModelError(
            f"{what} keeps its elements in '{path}', which a symbolic link leads out of the "
            f"model's folder, to '{real}'\n"
            f"  A model could have any of your files read that way. If that is its data, put the "
            f"file itself beside the model: cp --remove-destination '{real}' '{path}'"
        )
    if found.st_nlink > 1:
        raise ModelError(
            f"{what} keeps its elements in '{path}', a file that has {found.st_nlink} names (hard "
            f"links), so that it may belong elsewhere\n"
            f"  If it is the model's data, make a copy of its own: "
            f"cp '{path}' '{path}.copy' && mv '{path}.copy' '{path}'"
        )
    return real


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

"""A model's weights by name: safetensors files, read where they are mapped."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.graph import Node, const
from jitcl.lm.extra import library
from jitcl.runtime.digests import digest, file_digest

if TYPE_CHECKING:
    from jitcl.ops.builder import GraphBuilder  # a warm start needs no ops

KEPT = 1 << 20                              # bytes up to which a constant's elements stay in memory
TYPES = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16"}     # of elements in files


class Weights(ABC):
    """What an architecture reads."""

    place: str                              # in messages
    read: set[str]                          # names that were asked for

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, ...], Node] = {}

    @abstractmethod
    def __contains__(self, name: object) -> bool: ...

    @abstractmethod
    def names(self) -> set[str]: ...

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]: ...

    @abstractmethod
    def rows(self, name: str, which: np.ndarray) -> np.ndarray:
        """Rows of a matrix as float32."""

    def node(self, g: GraphBuilder, *names: str) -> Node:
        """All of it, float32, for kernels: one node, however often it is asked for. Of several that
        are `alike`, the rows of one behind those of the other."""
        if names not in self._nodes:
            self._nodes[names] = self.made(g, *names)
        return self._nodes[names]

    def alike(self, names: Sequence[str]) -> bool:
        """Whether they can be one node."""
        return all(name in self for name in names)

    @abstractmethod
    def made(self, g: GraphBuilder, *names: str) -> Node:
        """The node, made anew."""

    @abstractmethod
    def digest(self, root: Path) -> str:
        """Of the elements; remembered under `root`."""

    def mapped(self) -> list[np.ndarray]:
        """Arrays over whole files."""
        return []

    def give_back(self) -> None:
        """Pages of the files leave this process's memory, and what the heap has free: kernels have
        been made, and weights lie arranged for them elsewhere. What is read again is mapped again.
        """
        for array in self.mapped():
            file = getattr(array, "_mmap", None)
            if file is not None and hasattr(mmap, "MADV_DONTNEED"):
                file.madvise(mmap.MADV_DONTNEED)
        if sys.platform == "linux":         # glibc keeps free pages between used ones; not musl
            getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)


def together(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One behind the other; one alone is not copied, but seen anew, as who holds it makes what he
    sees read-only."""
    return parts[0].view() if len(parts) == 1 else np.concatenate(parts)


def loaded(load: Callable[[], np.ndarray]) -> Node:
    """A constant, whose elements are loaded again where keeping them would take memory."""
    array = load()
    return const(array, reload=load if array.nbytes > KEPT else None)


class Stored(Weights):
    """Arrays in files, of the types that safetensors has; float32 for whoever reads them."""

    def __init__(self, arrays: Mapping[str, np.ndarray], files: tuple[Path, ...], place: str
                 ) -> None:
        super().__init__()
        self.arrays, self.files, self.place = arrays, files, place
        self.read: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def names(self) -> set[str]:
        return {*self.arrays}

    def array(self, name: str) -> np.ndarray:
        self.read.add(name)
        found = self.arrays.get(name)
        if found is None:
            raise ModelError(f"{self.place}: weight '{name}' is missing")
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        return self.array(name).shape

    def rows(self, name: str, which: np.ndarray) -> np.ndarray:
        return self.array(name)[which].astype(np.float32)

    def made(self, g: GraphBuilder, *names: str) -> Node:
        arrays = [self.array(name) for name in names]
        found = loaded(lambda: together(arrays))
        return found if found.type.dtype == "f32" else g.cast(found, to="f32")

    def digest(self, root: Path) -> str:
        return digest("".join(file_digest(f, root, None) for f in self.files).encode())

    def mapped(self) -> list[np.ndarray]:
        return list(self.arrays.values())


def safetensors(folder: Path, name: str = "model") -> Stored:
    """The weights of a folder, in one file or several with an index. Raises ModelError."""
    index = folder / f"{name}.safetensors.index.json"
    if index.is_file():
        try:
            parts = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            files = tuple(folder / part for part in parts)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{index}: is no index of safetensors files: {error!r}") from None
        outside = [f for f in files if f.resolve().parent != folder.resolve()]
        if outside:
            raise ModelError(f"{index}: names '{outside[0]}', which is outside of the folder")
    else:
        files = (folder / f"{name}.safetensors",)
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        if not file.is_file():
            raise ModelError(f"{folder}: has no {file.name}\n"
                             "  jitcl reads safetensors; save_pretrained() writes them.")
        arrays.update(_mapped(file))
    return Stored(arrays, files, str(folder))


def _mapped(file: Path) -> dict[str, np.ndarray]:
    """Arrays where the file is mapped. The library checks the header: sizes, overlaps, names."""
    lib = library("safetensors", "reading weights")
    try:
        with lib.safe_open(str(file), framework="numpy"):
            pass
    except (lib.SafetensorError, OSError) as error:
        raise ModelError(f"{file}: is no safetensors file: {error}") from None
    data = np.memmap(file, np.uint8, "r")
    end = 8 + int(data[:8].view("<u8")[0])
    header: dict[str, Any] = json.loads(data[8:end].tobytes())
    header.pop("__metadata__", None)
    arrays = {}
    for name, said in header.items():
        kind = TYPES.get(said["dtype"])
        if kind is None:
            raise UnsupportedError(f"{file}: weight '{name}' is {said['dtype']}: jitcl reads "
                                   f"{', '.join(TYPES)}")
        first, last = said["data_offsets"]
        arrays[name] = data[end + first:end + last].view(
            dtypes.to_numpy(kind)).reshape(said["shape"])
    return arrays


def wants(weights: Weights, name: str, shape: tuple[int, ...]) -> None:
    """ShapeError where a weight has another shape than the configuration says."""
    got = weights.shape(name)
    if got != shape:
        raise ShapeError(f"{weights.place}: weight '{name}' is {list(got)}, but the configuration "
                         f"says {list(shape)} ({math.prod(shape)} elements)")

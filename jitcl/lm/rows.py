"""Keys and values of texts in some layers, [layers, slots, room, 2 * heads, size]: an array of the
host's, or a tensor on the device, whose rows are copied there, those of all its layers at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitcl.runtime.tensors import DeviceTensor

Made = np.ndarray | DeviceTensor            # what a run gives, [slots, rows, heads, size]


class Rows(ABC):
    """Rows are those of a slot, a token each."""

    nbytes: int
    lost = False                            # with the device

    @abstractmethod
    def slots(self, first: int, count: int) -> Sequence[Any]:
        """Neighbouring slots of each layer, for kernels to read where they lie."""

    @abstractmethod
    def clear(self, slot: int, begin: int, end: int) -> None:
        """Zeros in rows `begin` to `end`."""

    @abstractmethod
    def put(self, slot: int, begin: int, end: int, made: Sequence[Made], k: int,
            queue: Any = None) -> list[Any]:
        """The first rows of each layer's made[k] as rows `begin` to `end`; of a run that gives its
        queue, behind it. Gives events."""

    @abstractmethod
    def copied(self, slot: int, source: Rows, other: int, count: int) -> None:
        """The first rows of a slot of `source`, which may be this."""

    @abstractmethod
    def swap(self, a: int, b: int, count: int) -> None:
        """The first rows of two slots."""

    def settle(self) -> None:               # noqa: B027  nothing to wait for on the host
        """Wait for what was copied, into all that lie where this does."""

    @abstractmethod
    def close(self) -> None:
        """Give its memory back."""


class HostRows(Rows):
    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.array = np.zeros(shape, dtype)             # zeros take no memory before they are read
        self.nbytes = self.array.nbytes

    def slots(self, first: int, count: int) -> Sequence[np.ndarray]:
        return [layer[first:first + count] for layer in self.array]

    def clear(self, slot: int, begin: int, end: int) -> None:
        self.array[:, slot, begin:end] = 0

    def put(self, slot: int, begin: int, end: int, made: Sequence[Made], k: int,
            queue: Any = None) -> list[Any]:
        for layer, new in zip(self.array, made):
            assert isinstance(new, np.ndarray)
            layer[slot, begin:end] = new[k, :end - begin]
        return []

    def copied(self, slot: int, source: Rows, other: int, count: int) -> None:
        assert isinstance(source, HostRows)
        self.array[:, slot, :count] = source.array[:, other, :count]

    def swap(self, a: int, b: int, count: int) -> None:
        self.array[:, [a, b], :count] = self.array[:, [b, a], :count]

    def close(self) -> None:
        self.array = self.array[:0].copy()


class DeviceRows(Rows):
    def __init__(self, shape: tuple[int, ...], dtype: Any, device: Any) -> None:
        self._layers, self._slots, room, *row = shape
        self.tensor = DeviceTensor.zeros(dtype, (self._layers * self._slots, room, *row), device)
        self.nbytes = self.tensor.nbytes
        self._layer = self.nbytes // self._layers       # bytes
        self._slot = self._layer // self._slots
        self._row = self._slot // room

    @property
    def lost(self) -> bool:  # type: ignore[override]
        return self.tensor.lost

    def slots(self, first: int, count: int) -> Sequence[DeviceTensor]:
        return [self.tensor.part(k * self._slots + first, count) for k in range(self._layers)]

    def clear(self, slot: int, begin: int, end: int) -> None:
        for k in range(self._layers):
            self.tensor.fill(self._at(k, slot, begin), (end - begin) * self._row)

    def put(self, slot: int, begin: int, end: int, made: Sequence[Made], k: int,
            queue: Any = None) -> list[Any]:
        nbytes, whole = (end - begin) * self._row, made[0].shape[1] * self._row
        return self.tensor.put_each(made, self._at(0, slot, begin), self._layer, k * whole, nbytes,
                                    queue)

    def copied(self, slot: int, source: Rows, other: int, count: int) -> None:
        assert isinstance(source, DeviceRows)
        if count:
            self.tensor.put(source.tensor, [
                (self._at(k, slot, 0), source._at(k, other, 0), count * self._row)
                for k in range(self._layers)])

    def swap(self, a: int, b: int, count: int) -> None:
        rows = {k: [layer.numpy() for layer in self.slots(k, 1)] for k in (a, b)}
        self.put(a, 0, count, rows[b], 0)
        self.put(b, 0, count, rows[a], 0)

    def _at(self, layer: int, slot: int, row: int) -> int:
        return layer * self._layer + slot * self._slot + row * self._row

    def settle(self) -> None:
        self.tensor.settle()

    def close(self) -> None:
        self.tensor.close()

"""Keys or values of texts, [slots, room, heads, size]: an array of the host's, or a tensor on the
device, whose rows are copied there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from jitcl.runtime.tensors import DeviceTensor

Made = np.ndarray | DeviceTensor            # what a run gives, [slots, rows, heads, size]


class Rows(ABC):
    """Rows are those of a slot, a token each."""

    nbytes: int
    lost = False                            # with the device

    @abstractmethod
    def slots(self, first: int, count: int) -> Any:
        """Neighbouring slots, for kernels to read where they lie."""

    @abstractmethod
    def clear(self, slot: int, begin: int, end: int) -> None:
        """Zeros in rows `begin` to `end`."""

    @abstractmethod
    def put(self, slot: int, begin: int, end: int, made: Made, k: int) -> None:
        """The first rows of made[k] as rows `begin` to `end`."""

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

    def slots(self, first: int, count: int) -> np.ndarray:
        return self.array[first:first + count]

    def clear(self, slot: int, begin: int, end: int) -> None:
        self.array[slot, begin:end] = 0

    def put(self, slot: int, begin: int, end: int, made: Made, k: int) -> None:
        assert isinstance(made, np.ndarray)
        self.array[slot, begin:end] = made[k, :end - begin]

    def copied(self, slot: int, source: Rows, other: int, count: int) -> None:
        assert isinstance(source, HostRows)
        self.array[slot, :count] = source.array[other, :count]

    def swap(self, a: int, b: int, count: int) -> None:
        self.array[[a, b], :count] = self.array[[b, a], :count]

    def close(self) -> None:
        self.array = self.array[:0].copy()


class DeviceRows(Rows):
    def __init__(self, shape: tuple[int, ...], dtype: Any, device: Any) -> None:
        self.tensor = DeviceTensor.zeros(dtype, shape, device)
        self.nbytes = self.tensor.nbytes
        self._slot = self.nbytes // shape[0]            # bytes
        self._row = self._slot // shape[1]

    @property
    def lost(self) -> bool:  # type: ignore[override]
        return self.tensor.lost

    def slots(self, first: int, count: int) -> DeviceTensor:
        return self.tensor.part(first, count)

    def clear(self, slot: int, begin: int, end: int) -> None:
        self.tensor.fill(slot * self._slot + begin * self._row, (end - begin) * self._row)

    def put(self, slot: int, begin: int, end: int, made: Made, k: int) -> None:
        nbytes, whole = (end - begin) * self._row, made.shape[1] * self._row
        self.tensor.put(made, [(slot * self._slot + begin * self._row, k * whole, nbytes)])

    def copied(self, slot: int, source: Rows, other: int, count: int) -> None:
        assert isinstance(source, DeviceRows)
        if count:
            self.tensor.put(source.tensor, [
                (slot * self._slot, other * source._slot, count * self._row)])

    def swap(self, a: int, b: int, count: int) -> None:
        rows = {k: self.slots(k, 1).numpy() for k in (a, b)}
        self.put(a, 0, count, rows[b], 0)
        self.put(b, 0, count, rows[a], 0)

    def settle(self) -> None:
        self.tensor.settle()

    def close(self) -> None:
        self.tensor.close()

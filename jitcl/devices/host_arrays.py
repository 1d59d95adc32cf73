"""Arrays that stay, of devices that are this host: NumPy's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitcl.codegen.plan import Shapes


class HostArray:
    """An array of this process as a `DeviceArray`: any executable takes it."""

    home: object = None
    device = "host"
    in_place = True

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.dtype: np.dtype[Any] = array.dtype
        self.shape, self.nbytes = array.shape, array.nbytes

    def check(self) -> None:
        """It is always there."""

    def read(self) -> np.ndarray:
        return self.array.copy()

    def open(self) -> np.ndarray:
        return self.array

    def shut(self, write: bool = True) -> None:
        """Nothing: it is where it was."""

    def forget_pinned(self) -> None:
        """There is none."""

    def close(self) -> None:
        self.array = np.empty(0, self.dtype)


class OnHost(ABC):
    """An executable whose inputs and results are arrays of this process."""

    home: object = None

    @abstractmethod
    def run(self, inputs: Sequence[np.ndarray], shapes: Shapes | None = None
            ) -> list[np.ndarray]: ...

    def run_on_device(self, inputs: Sequence[Any], keep: bool, shapes: Shapes | None = None
                      ) -> Sequence[Any]:
        """Results are fresh arrays in any case."""
        return self.run([x.read() if hasattr(x, "read") else x for x in inputs], shapes)


__all__ = ["HostArray", "OnHost"]

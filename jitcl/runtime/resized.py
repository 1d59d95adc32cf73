"""An executable of a plan for many shapes, at those of one run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from jitcl.codegen.plan import Shapes
from jitcl.devices.base import Binding, DeviceArray, Executable, Given, Repeat


@dataclass(frozen=True)
class Resized:
    """An executable at some shapes."""

    executable: Executable
    shapes: Shapes

    @property
    def home(self) -> object:
        return self.executable.home

    def run_on_device(self, inputs: Sequence[np.ndarray | DeviceArray], keep: bool,
                      shapes: Shapes | None = None) -> Sequence[np.ndarray | DeviceArray]:
        return self.executable.run_on_device(inputs, keep, shapes or self.shapes)

    def run(self, inputs: Sequence[np.ndarray], shapes: Shapes | None = None) -> list[np.ndarray]:
        return self.executable.run(inputs, shapes or self.shapes)

    def repeat(self, inputs: Sequence[np.ndarray], how: Repeat, shapes: Shapes | None = None
               ) -> list[np.ndarray]:
        return self.executable.repeat(inputs, how, shapes or self.shapes)

    def bind(self, given: Given | None = None, shapes: Shapes | None = None,
             keep: Collection[str] = ()) -> Binding | None:
        return self.executable.bind(given, shapes or self.shapes, keep)

    def close(self) -> None:
        self.executable.close()


__all__ = ["Resized"]

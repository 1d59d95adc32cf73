"""What every device offers to the runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from jitcl.codegen.plan import Plan
from jitcl.target import Target

if TYPE_CHECKING:
    from jitcl.target.quirks import Quirk

Progress = Callable[[int, int, str], None]  # (kernels done, kernels in all, what was just done)


class Cache(Protocol):
    """The part of `runtime.cache.DeviceCache` that devices use."""

    def get(self, kind: str, key: Any) -> bytes | None: ...
    def put(self, kind: str, key: Any, data: Any) -> None: ...


class Executable(Protocol):
    """A loaded plan. Thread-safe: concurrent runs take turns."""

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Inputs in plan order, already checked; outputs are fresh arrays in plan order."""


class Device(Protocol):
    """A place to run plans."""

    target: Target

    @property
    def name(self) -> str: ...  # for people: "cpu", "NVIDIA H200"

    @property
    def memory_mode(self) -> Literal["arena", "slots"]: ...  # how temporaries are best placed

    def load(
        self, plan: Plan, cache: Cache | None = None, progress: Progress | None = None
    ) -> Executable:
        """Build what the cache lacks, allocate, upload constants. Raises BuildError,
        OutOfMemoryError.
        """


@dataclass(frozen=True)
class DeviceInfo:
    """A row of `jitcl devices`: `spec` is what `device=` takes."""

    spec: str
    target: Target
    note: str = ""
    quirks: tuple[Quirk, ...] = ()          # rows of the table of driver faults that hold

"""What the user chose, in the words that MNN's users know."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from jitcl.errors import OptionError

CHOICES = {
    "precision": ("high", "normal", "low"),
    "memory": ("low", "normal", "high"),
    "tuning": ("none", "fast", "wide", "heavy"),
}


@dataclass(frozen=True)
class Options:
    """precision: high = as the model says, f16 tensors stored as f16 and computed in f32; normal
    = f16 storage and f32 arithmetic; low = f16 storage and, where the device has it, f16
    arithmetic. memory: low packs buffers tightest, high never shares them. tuning: how long to
    search for faster kernels.
    """

    precision: str = "high"
    memory: str = "normal"
    tuning: str = "none"

    def __post_init__(self) -> None:
        for f in fields(self):
            value: Any = getattr(self, f.name)
            if not isinstance(value, str) or value not in CHOICES[f.name]:
                raise OptionError(f"{f.name}={value!r} is not known: use one of "
                                  f"{', '.join(CHOICES[f.name])}")
        if self.tuning != "none":
            raise OptionError(f"tuning={self.tuning!r}: this version does not search for faster "
                              f"kernels yet; use tuning='none'")

    def key_parts(self) -> dict[str, str]:
        return {f.name: str(getattr(self, f.name)) for f in fields(self)}

"""What executables hold of their devices' memory now, asked of those that are alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from jitcl import forking


class Allocation(NamedTuple):
    """key: equal for what several holders share."""

    key: int
    nbytes: int
    constant: bool


class Holder(Protocol):
    """What holds memory of a device."""

    @property
    def place(self) -> str:
        """The device, as `jitcl devices` lists it."""

    def allocations(self) -> Iterable[Allocation]:
        """What it holds now."""


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_lock = forking.lock()


def enlist(holder: Holder) -> None:
    """Count it for as long as it is alive."""
    with _lock:
        _holders.add(holder)


def held() -> dict[str, dict[int, Allocation]]:
    """Device -> what is allocated there, each once."""
    with _lock:
        holders = list(_holders)
    found: dict[str, dict[int, Allocation]] = {}
    for holder in holders:
        found.setdefault(holder.place, {}).update((a.key, a) for a in holder.allocations())
    return found


__all__ = ["Allocation", "Holder", "enlist", "held"]

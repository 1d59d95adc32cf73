"""Caches for tests: one in a dict, and two devices' share of one in a directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from jitcl.runtime.cache import DeviceCache, KernelCache, Key
from jitcl.target import Target

POCL = Target(kind="opencl", name="pthread-AMD EPYC 9V74 80-Core", vendor="PoCL", driver="3.0-rc2")
INTEL = Target(kind="opencl", name="AMD EPYC 9V74", vendor="Intel(R) Corporation", driver="2026.2")


def key(name: str = "a", subject: str = "model m", **parts: str) -> Key:
    return Key({"source": name, "options": "-cl-std=CL1.2", **parts}, subject)


def fresh(root: Path, limit: int = 10**9, **options: float) -> DeviceCache:
    """The same directory as another process sees it: nothing in memory."""
    return KernelCache(root, limit=limit, **options).for_target(POCL)


def get_or_build(cache: DeviceCache, kind: str, key: Key | str, build: Callable[[], bytes]
                 ) -> bytes:
    """The payload; where it is missing, `build()` makes it, once over all processes."""
    found = cache.get(kind, key)
    if found is not None:
        return found
    with cache.building(kind, key) as other:
        if other is not None:
            return bytes(other)
        data = build()
        cache.put(kind, key, data)
        return data


class Memory:
    """A cache in a dict."""

    def __init__(self) -> None:
        self.data: dict[tuple[str, str], bytes] = {}

    def get(self, kind: str, key: str) -> bytes | None:
        return self.data.get((kind, key))

    def put(self, kind: str, key: str, data: bytes, *, provides: Sequence[str] = ()) -> None:
        self.data[kind, key] = bytes(data)

"""What searches found, in the cache of their device: an entry of kind `tuning` a group, which holds
for its driver and this version of jitcl alone. And as a file, for other machines like it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitcl import config
from jitcl.errors import CacheError
from jitcl.ir.group import with_sums_marked
from jitcl.runtime.cache import DeviceCache, KernelCache, Key, code_version
from jitcl.runtime.entry import Entry
from jitcl.tuning.found import Found, deeper

if TYPE_CHECKING:
    from jitcl.devices.base import Device, Tally
    from jitcl.runtime.lowering import Lowering
    from jitcl.tuning.search import Tuned

KIND = "tuning"
FILE = "jitcl tuning"                       # what a file says that it is


@dataclass(frozen=True)
class CachedResults:
    """A device's: its driver is a part of what its entries are believed by."""

    cache: DeviceCache

    def get(self, group: str) -> Found | None:
        stored = self.cache.get(KIND, key_of(group))
        return None if stored is None else Found.of_row(json.loads(stored)["found"])

    def put(self, group: str, found: Found) -> None:
        row = {"group": group, "found": found.row()}
        self.cache.put(KIND, key_of(group), json.dumps(row).encode())


def key_of(group: str) -> Key:
    """Of a group's text."""
    return Key({"group": group, "code": code_version(), **config.key_parts()}, KIND)


def search(lowering: Lowering, device: Device, cache: DeviceCache, isolation: str, tally: Tally
           ) -> Tuned:
    """The search that a compilation asks for, before its kernels are generated."""
    from jitcl.tuning.search import Search

    searching = Search(device, lowering.options.tuning, CachedResults(cache), cache, isolation,
                       tally, config.get("tuning_seconds"))
    return searching.run(lowering.graph, with_sums_marked(lowering.groups))


# ---- files


def exported(kept: KernelCache, device: str | None = None) -> dict[str, Any]:
    """All that was found on the devices of a cache, or on one of them, as JSON has it."""
    devices: dict[str, Any] = {}
    for e in kept.ls(device):
        if e.kind != KIND or e.damaged or e.parts.get("code") != code_version():
            continue
        stored = _device(kept, e).get(KIND, e.digest)
        if stored is not None:
            rows = devices.setdefault(e.device, [])
            rows.append(json.loads(stored))
    return {"file": FILE, "code": code_version(), "settings": config.key_parts(),
            "devices": devices}


def imported(kept: KernelCache, path: Path) -> int:
    """Take over what a file of `exported` holds, where less is known here; returns how many groups
    that were. It is looked up by devices of the same name, driver and features alone. Raises
    CacheError for any other file.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["file"] != FILE:
            raise ValueError(raw["file"])
        if raw["code"] != code_version() or raw["settings"] != config.key_parts():
            raise CacheError(f"'{path}' was made by another version of jitcl, or with other "
                             "settings: what is fastest is to be searched for anew")
        count = 0
        for name, rows in raw["devices"].items():
            results = CachedResults(DeviceCache(kept, *_named(name)))
            for row in rows:
                group, found = str(row["group"]), Found.of_row(row["found"])
                known = results.get(group)
                if known is None or deeper(found.mode, known.mode):
                    results.put(group, found)
                    count += 1
        return count
    except OSError as error:
        raise CacheError(f"cannot read '{path}': {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(f"'{path}' is no file of `jitcl cache export`, or is damaged: "
                         f"{type(error).__name__}: {error}") from error


def _device(kept: KernelCache, entry: Entry) -> DeviceCache:
    return DeviceCache(kept, *_named(entry.device))


def _named(name: str) -> tuple[str, str]:
    """(a device's directory, the key of its Target, with which it ends)."""
    match = re.fullmatch(r"[a-z0-9.-]+--[a-z0-9.-]+--([0-9a-f]{16})", name)
    if match is None:
        raise ValueError(f"'{name}' is no device")
    return name, match[1]

"""The cache's bound, and which entries go when it is larger."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from jitcl.runtime.entry import Entry


def share_of_disk(folder: Path) -> int:
    """Bytes: a twentieth of the disk that a folder lies on, or will; 2 GB at least, and where the
    system does not tell. Weights of a language model take some GB; what doesn't fit is made anew by
    each process."""
    for place in (folder, *folder.parents):
        try:
            return max(2 * 10**9, shutil.disk_usage(place).total // 20)
        except FileNotFoundError:           # not made yet
            continue
        except OSError:
            break
    return 2 * 10**9


def doomed(entries: Iterable[Entry], bound: int) -> list[Entry]:
    """Entries to delete so that at most `bound` bytes stay: those used least recently first.

    What an entry that stays uses, stays (a plan's weights and kernels); what only one used that
    goes, goes with it. The entry used last stays in any case: it has just been written.
    """
    left = {e.path: e for e in sorted(entries, key=lambda e: e.used)}
    users = Counter(name for e in left.values() for name in e.uses)
    makers: dict[str, list[Entry]] = {}
    for e in left.values():
        for name in e.names:
            makers.setdefault(name, []).append(e)
    total, found = sum(e.nbytes for e in left.values()), list[Entry]()

    def needed(e: Entry) -> bool:
        return any(users[name] for name in e.names)

    order = list(left.values())
    last = order[-1] if order else None
    for e in order:
        if total <= bound:
            break
        if e.path not in left or e is last or needed(e):
            continue
        users.subtract(e.uses)
        freed = [m for name in e.uses for m in makers.get(name, ())
                 if m.path in left and m is not last and not needed(m)]
        for one in (e, *freed):
            if left.pop(one.path, None) is not None:
                found.append(one)
                total -= one.nbytes
    return found


def users(entries: Iterable[Entry]) -> Mapping[str, list[Entry]]:
    """Name -> entries that use what has that name."""
    found: dict[str, list[Entry]] = {}
    for e in entries:
        for name in e.uses:
            found.setdefault(name, []).append(e)
    return found


__all__ = ["doomed", "share_of_disk", "users"]

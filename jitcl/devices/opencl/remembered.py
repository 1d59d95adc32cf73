"""What probes answered of devices, as files: looked through without opening any driver."""

from __future__ import annotations

import json
from pathlib import Path

from jitcl import ownership

FOLDER = "opencl-probes"
FATAL = ("crash", "hang")


def forget_fatal(root: Path | None = None, part: str = "") -> int:
    """Forget the answers of every device (with `part` in its line of `jitcl devices`) of which a
    probe crashed or hung, so that it is probed again; returns how many devices these were. A hang
    may have been a busy machine.
    """
    forgotten = 0
    folder = ownership.cache_root() if root is None else ownership.usable(root)
    for path in (folder / FOLDER).glob("*.json"):
        try:
            ownership.below(folder, FOLDER, make=False)
            record = json.loads(ownership.read(path))
            fatal = any(a["kind"] in FATAL for a in record["answers"])
            if fatal and part.lower() in str(record["device"]).lower():
                path.unlink()
                forgotten += 1
        except (OSError, ValueError, KeyError, TypeError):
            continue                            # not one of ours, or gone: it is probed anew anyway
    return forgotten

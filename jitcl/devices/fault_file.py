"""The file of driver faults as bytes and back: JSON whose rows are lines, so that a damaged file
loses no more than the lines that are damaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitcl import ownership

VERSION = 1
LARGEST = 16 << 20              # bytes that are read; a database is bounded far below
BROKEN = "\ufffd"               # where bytes were no text; what is written is plain ASCII
_TEXTS = ("entry", "stage", "kind", "signature", "variant", "log")


@dataclass(frozen=True)
class Record:
    """What a file says. `faults`: fields of `Fault`, as keyword arguments."""

    epoch: int = 0
    good: Sequence[str] = ()
    faults: Sequence[dict[str, Any]] = field(default=())


class DamagedFile(Exception):
    """The bytes are no record; `salvaged` is what can be read of them."""

    def __init__(self, what: str, salvaged: Record) -> None:
        super().__init__(what)
        self.salvaged = salvaged


def encode(record: Record) -> bytes:
    """A JSON document, one fault a line."""
    head = json.dumps({"version": VERSION, "epoch": record.epoch, "good": list(record.good)})
    rows = ",\n".join(json.dumps(row) for row in record.faults)
    return f'{head[:-1]}, "faults": [\n{rows}\n]}}\n'.encode()


def decode(data: bytes) -> Record:
    """Raises DamagedFile for anything but what `encode` wrote."""
    try:
        if len(data) > LARGEST:
            raise ValueError(f"{len(data)} bytes")
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}, wanted {VERSION}")
        return Record(_epoch(document["epoch"]), [_text(g) for g in document["good"]],
                      [_row(row) for row in document["faults"]])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise DamagedFile(what, salvage(data)) from error


def salvage(data: bytes) -> Record:
    """The lines of a damaged file that are whole."""
    epoch, good, faults = 0, [], []
    for line in data[:LARGEST].decode(errors="replace").splitlines():
        text = "" if BROKEN in line else line.strip().rstrip(",")
        if text.startswith('{"version": ') and text.endswith('"faults": ['):
            text += "]}"
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            row = json.loads(text)
            if "version" not in row:
                faults.append(_row(row))
            elif row["version"] == VERSION:
                epoch, good = _epoch(row["epoch"]), [_text(g) for g in row["good"]]
    return Record(epoch, good, faults)


def _epoch(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 60:
        raise ValueError(f"epoch {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"wanted text, got {value!r}")
    return value


def _row(row: Any) -> dict[str, Any]:
    """A fault's fields, each checked; ValueError, KeyError or TypeError where one is wrong."""
    when = float(row["when"])
    if not math.isfinite(when) or set(row) != {*_TEXTS, "features", "when"}:
        raise ValueError(f"a fault with {sorted(row)}")
    if not isinstance(row["features"], list):
        raise ValueError("a fault's features are no list")
    return {**{name: _text(row[name]) for name in _TEXTS},
            "features": tuple(_text(f) for f in row["features"]), "when": when}


def replace_file(path: Path, data: bytes) -> None:
    """`ownership.replace`, and its folder is made where it is missing. Raises OSError."""
    ownership.below(path.parent.parent, path.parent.name)
    ownership.replace(path, data)

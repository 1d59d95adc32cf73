"""What failed on a device's driver here, for people and for programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from jitcl.devices.base import DeviceInfo
    from jitcl.devices.faults import Fault


def stem(entry: str) -> str:
    """A kernel's name without the digest of its text."""
    return entry.rpartition("_")[0] or entry


def fault_dict(fault: Fault, blamed: frozenset[str]) -> dict[str, Any]:
    """A fault for programs; `blamed`: features that no kernel may combine because of it."""
    return {"kernel": stem(fault.entry), "entry": fault.entry, "stage": fault.stage,
            "kind": fault.kind, "signature": fault.signature, "features": list(fault.features),
            "blamed": sorted(blamed), "variant": fault.variant, "when": fault.when,
            "log": fault.log}


def fault_rows(info: DeviceInfo) -> list[dict[str, Any]]:
    """All that is remembered of a device's driver."""
    if not info.faults:
        return []
    from jitcl.devices.faults import fault_database
    database = fault_database(info.target)
    return [fault_dict(f, database.blame_of(f)) for f in info.faults]


def fault_table(info: DeviceInfo) -> Table:
    """The same for people."""
    from jitcl.cli.console import table
    rows = table(f"faults of {info.spec}, which are not tried again until `jitcl cache retry`",
                 "kernel", "variant", "stage", "what happened", "blamed", "when")
    for row in fault_rows(info):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["when"]))
        rows.add_row(row["kernel"], row["variant"] or "as scheduled", row["stage"],
                     f"{row['kind']}: {row['signature']}",
                     " + ".join(row["blamed"]) or "this kernel only", when)
    return rows

"""`jitcl devices`: what can run models on this machine, and what `auto` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jitcl.cli.options import json_option

if TYPE_CHECKING:
    from rich.table import Table

    from jitcl.devices.base import DeviceInfo
    from jitcl.target.quirks import Quirk

EPILOG = """\b
Examples:
  jitcl devices
  jitcl devices --probe
  jitcl devices --json | python -c 'import json, sys; print(json.load(sys.stdin)["auto"])'

SPEC is what --device and JITCL_DEVICE take; a platform or device may also be named by a part of
its name: opencl:intel, opencl:nvidia:h200. Profiles describe devices that aren't here: `jitcl dump`
shows the code that they would get. JITCL_QUIRKS=+id,-id applies a quirk, or leaves one out.
"""


@click.command(epilog=EPILOG)
@click.option("--probe", is_flag=True, help="Ask the OpenCL drivers again what works, by tiny "
              "kernels in processes of their own; show every answer with its evidence.")
@json_option
def devices(probe: bool, as_json: bool) -> None:
    """List the devices of this machine with their drivers' quirks, what failed on them here, and
    the one that --device auto takes.
    """
    if probe:
        from jitcl.cli.probes import show_probes
        show_probes(as_json)
        return
    from jitcl.cli.console import console, print_json, progress_bar, table
    from jitcl.cli.faults import fault_table
    from jitcl.codegen.text import amount
    from jitcl.devices.select import devices as all_devices
    from jitcl.devices.select import resolve_auto
    from jitcl.target.profiles import PROFILES

    with progress_bar(quiet=as_json) as progress:
        found = all_devices(progress)
    auto, why = resolve_auto()
    if as_json:
        print_json({"auto": auto, "why": why, "devices": [device_dict(d) for d in found],
            "profiles": [{"spec": f"profile:{p.name}", "name": p.target.name, "chip": p.chip,
                          "quirks": [q.id for q in p.quirks]} for p in PROFILES.values()]})
        return
    rows = table("", "spec", "name", "vendor", "driver", "type", "fp16", "fp64", "memory", "note",
                 right=("memory",))
    for d in found:
        t = d.target
        fp16 = "arithmetic" if t.fp16_arithmetic else "storage" if t.fp16_storage else "no"
        rows.add_row(d.spec + (" *" if d.spec == auto else ""), t.name, t.vendor, t.driver,
                     t.device_type, fp16, "yes" if t.fp64 else "no",
                     amount(t.global_memory, "B") if t.global_memory else "", d.note)
    out = console()
    out.print(rows)
    out.print(f"* auto takes {auto}: {why}")
    for d in found:
        if d.quirks:
            out.print(quirk_table(d))
        if d.faults:
            out.print(fault_table(d))
    out.print(f"profiles (compile only): {', '.join(f'profile:{name}' for name in PROFILES)}")


def device_dict(info: DeviceInfo) -> dict[str, Any]:
    """A device for programs: all of its target, quirks, what failed."""
    import dataclasses

    from jitcl.cli.faults import fault_rows
    return {"spec": info.spec, "note": info.note, **dataclasses.asdict(info.target),
            "quirks": [quirk_dict(q) for q in info.quirks], "faults": fault_rows(info)}


def quirk_dict(quirk: Quirk) -> dict[str, Any]:
    """A quirk for programs: what it changes, why, where it was seen."""
    return {"id": quirk.id, "changes": quirk.fields, "when": str(quirk.when),
            "why": quirk.why, "seen_on": quirk.seen_on, "links": quirk.links}


def quirk_table(info: DeviceInfo) -> Table:
    """The quirks of a device for people."""
    from jitcl.cli.console import table

    rows = table(f"quirks of {info.spec}", "quirk", "changes", "why")
    for q in info.quirks:
        changes = ", ".join(f"{k} {v}" if isinstance(v, str) else f"{k}={v}"
                            for k, v in q.fields.items())
        rows.add_row(q.id, changes, q.why)
    return rows


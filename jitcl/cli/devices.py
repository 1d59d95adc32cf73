"""`jitcl devices`: what can run models on this machine, and what `auto` takes."""

from __future__ import annotations

import click

from jitcl.cli.options import json_option

EPILOG = """\b
Examples:
  jitcl devices
  jitcl devices --json | python -c 'import json, sys; print(json.load(sys.stdin)["auto"])'

SPEC is what --device and JITCL_DEVICE take; a platform or device may also be named by a part of
its name: opencl:intel, opencl:nvidia:h200.
"""


@click.command(epilog=EPILOG)
@json_option
def devices(as_json: bool) -> None:
    """List the devices of this machine, and the one that --device auto takes."""
    import dataclasses

    from jitcl.cli.console import console, print_json, table
    from jitcl.codegen.text import amount
    from jitcl.devices.select import devices as all_devices
    from jitcl.devices.select import resolve_auto

    found = all_devices()
    auto, why = resolve_auto()
    if as_json:
        print_json({"auto": auto, "why": why, "devices": [
            {"spec": d.spec, "note": d.note, **dataclasses.asdict(d.target)} for d in found]})
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


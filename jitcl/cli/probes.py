"""`jitcl devices --probe`: every question to each OpenCL driver, its answer and the evidence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from jitcl.devices.opencl.platform import Found
    from jitcl.devices.opencl.probes import Answer

SHOWN = {"good": "yes", "wrong": "no: wrong values", "refused": "no: refused", "crash": "no: crash",
         "hang": "no: hang", "skipped": "not asked"}


def show_probes(as_json: bool) -> None:
    """Probe all OpenCL devices anew, remember the answers, and print them."""
    from jitcl.cli.console import console, print_json, progress_bar
    from jitcl.devices.opencl import list_devices
    from jitcl.devices.opencl.probe import probe_anew

    shown = []
    for found in list_devices():
        begin = time.perf_counter()
        with progress_bar(quiet=as_json) as progress:
            answers = probe_anew(found, progress)
        seconds = time.perf_counter() - begin
        shown.append(device_dict(found, answers, seconds))
        if not as_json:
            out = console()
            out.print(answer_table(found, answers, seconds))
            out.print(f"proven: {', '.join(shown[-1]['proven']) or 'nothing'}\n")
    if as_json:
        print_json({"devices": shown})
    elif not shown:
        console().print("there is no OpenCL device to probe")


def device_dict(found: Found, answers: list[Answer], seconds: float) -> dict[str, Any]:
    """A device's answers for programs."""
    from jitcl.devices.opencl.probe import fields_of
    from jitcl.devices.opencl.probes import PROBES

    rows = [{"probe": a.probe, "question": PROBES[a.probe].what, "answer": a.kind,
             "evidence": a.evidence, "features": list(PROBES[a.probe].features),
             "fields": PROBES[a.probe].fields(a), "seconds": a.seconds} for a in answers]
    return {"spec": found.spec, "name": found.name, "platform": found.platform,
            "driver": found.handle.driver_version, "seconds": seconds,
            "proven": list(fields_of(answers)["proven"]), "answers": rows}


def answer_table(found: Found, answers: list[Answer], seconds: float) -> Table:
    """A device's answers for people."""
    from jitcl.cli.console import duration, table
    from jitcl.devices.opencl.probes import PROBES

    rows = table(f"{found}: probed in {seconds:.1f} s", "probe", "asks for", "answer",
                 "evidence", "sets", "time", right=("time",))
    for a in answers:
        fields = PROBES[a.probe].fields(a)
        rows.add_row(a.probe, PROBES[a.probe].what, SHOWN[a.kind], a.evidence,
                     ", ".join(f"{k}={v}" for k, v in fields.items()),
                     duration(a.seconds) if a.seconds else "")
    return rows

"""A profile as tables for people."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitcl.codegen.text import amount, table
from jitcl.devices.recording import KINDS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jitcl.profiling.profile import Kernel, ModelTime, Profile

WIDTH = 140
LISTED = 20                     # kernels


def text(profile: Profile, kernels: int = LISTED) -> str:
    """What `print(profile)` shows."""
    from rich.console import Console

    out = io.StringIO()
    show(profile, Console(file=out, width=WIDTH, markup=False, highlight=False, emoji=False),
         kernels)
    return out.getvalue().rstrip()


def show(profile: Profile, console: Console, kernels: int = LISTED) -> None:
    """Print the tables."""
    if not profile.runs:
        console.print("no run of a model ended while this profile recorded")
    for model in profile.models:
        console.print(_model_table(model))
    if profile.kernels and kernels:
        console.print(_kernel_table(profile.kernels, kernels))
    if profile.devices:
        console.print(_device_table(profile))
    for line in remarks(profile):
        console.print(line)


def remarks(profile: Profile) -> list[str]:
    """What must be said of the numbers."""
    lines = [f"{d.device}: its own clock is not believed ({d.doubt}). Its kernels were run one by "
             "one, and timed by the host's clock, launch included."
             for d in profile.devices if d.doubt]
    lines += [f"{w.model} waited {seconds(w.seconds)} on {w.device} while {w.behind} ran"
              for w in profile.waits if w.seconds > 0]
    if profile.outside:
        spent = ", ".join(f"{KINDS[kind]} {seconds(s)}" for kind, s in profile.outside.items())
        lines.append(f"outside of runs: {spent}")
    if profile.unfinished:
        lines.append(f"{profile.unfinished} runs had not ended, and are in no number")
    return lines


def _model_table(model: ModelTime) -> Table:
    queued = f", {seconds(model.queued)} in the queue before" if model.queued else ""
    failed = f", {model.failed} of them failed" if model.failed else ""
    made = table(f"{model.model} on {model.device}: {model.runs} runs{failed}{queued}",
                 "part", "time", "a run", "share", right=("time", "a run", "share"))
    rows = [(KINDS[kind], spent) for kind, spent in model.parts.items() if spent]
    for name, spent in (*rows, ("unexplained", model.unexplained)):
        made.add_row(name, seconds(spent), seconds(spent / model.runs),
                     share(spent, model.seconds))
    made.add_section()
    made.add_row("total", seconds(model.seconds), seconds(model.seconds / model.runs), "100 %")
    return made


def _kernel_table(kernels: Sequence[Kernel], most: int) -> Table:
    total = sum(k.seconds for k in kernels)
    several = len({k.model for k in kernels}) > 1
    more = f", the {most} slowest of {len(kernels)}" if len(kernels) > most else ""
    names = ("kernel", *(("model",) if several else ()), "launches", "time", "share", "a launch",
             "GFLOP/s", "GB/s", "of the roof", "layers")
    made = table(f"kernels{more}", *names, right=(
        "launches", "time", "share", "a launch", "GFLOP/s", "GB/s", "of the roof"))
    for k in kernels[:most]:
        roof = "" if k.of_roof is None else f"{k.of_roof:.0%} {k.bound}"
        made.add_row(k.name, *((k.model,) if several else ()), str(k.launches), seconds(k.seconds),
                     share(k.seconds, total), seconds(k.seconds / k.launches),
                     rate(k.flops, k.seconds), rate(k.bytes, k.seconds), roof, layers(k))
    return made


def _device_table(profile: Profile) -> Table:
    made = table(f"devices, over {seconds(profile.seconds)}",
                 "device", "busy", "idle", "idle share", "models", "turns",
                 right=("busy", "idle", "idle share", "turns"))
    for d in profile.devices:
        made.add_row(d.device, seconds(d.busy), seconds(d.idle), share(d.idle, profile.seconds),
                     ", ".join(d.models), str(d.turns))
    return made


def seconds(value: float) -> str:
    """0.00123 -> "1.23 ms"."""
    return amount(value, "s") if value >= 1 else (
        f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us")


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}".replace("%", " %") if whole else "-"


def rate(work: int, spent: float) -> str:
    """Billions a second; "" where it is not known."""
    return f"{work / spent / 1e9:.3g}" if work and spent else ""


def layers(kernel: Kernel, most: int = 3) -> str:
    """Names of the model's nodes."""
    more = f" +{len(kernel.nodes) - most}" if len(kernel.nodes) > most else ""
    return ", ".join(kernel.nodes[:most]) + more


__all__ = ["layers", "rate", "remarks", "seconds", "share", "show", "text"]

"""`jitcl doctor`: what this machine has, whether it works, what is missing and how to get it."""

from __future__ import annotations

import io
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl import __version__
from jitcl.cli.options import json_option

if TYPE_CHECKING:
    from rich.console import Console

    from jitcl.cli.advice import Finding
    from jitcl.devices.base import DeviceInfo

EPILOG = """\b
Examples:
  jitcl doctor
  jitcl doctor --bundle report.zip
  jitcl doctor --json

Each device computes a small model, and its result is compared with NumPy's. Exit status 1 says that
one of them failed. The bundle holds what is printed, each driver's answers to jitcl's probes, what
failed on it here, and the variables of jitcl and of OpenCL drivers; names of users and hosts, and
paths of home folders, are taken out. Look into it before you send it: it is a zip file of texts.
"""
PACKAGES = ("numpy", "onnx", "numba", "llvmlite", "pyopencl", "ml_dtypes", "jinja2", "lark",
            "pocl-binary-distribution", "intel-opencl-rt", "intel-cmplr-lib-rt")
TRIAL = """
graph @trial(%x: f32[64,96], %w: f32[96,32]) {
  %y = matmul(%x, %w)
  %z = tanh(%y)
  return %z
}
"""
CLOSE = 1e-4                             # of numbers between -1 and 1


@click.command(epilog=EPILOG)
@click.option("--bundle", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.zip",
              help="Write a bundle to attach to a report.")
@json_option
def doctor(bundle: Path | None, as_json: bool) -> None:
    """Look at drivers and devices, let each compute something, and say what is missing and how to
    get it.
    """
    from jitcl.cli.console import console, json_text, print_json

    found = examined()
    if as_json:
        print_json(found)
    else:
        _show(found, console())
    if bundle is not None:
        from jitcl.cli import bundle as bundles
        hide, text = bundles.secrets(), io.StringIO()
        told, devices, probes = (bundles.hidden(v, hide) for v in (found, _devices(), _probes()))
        _show(told, console(text))
        bundles.write(bundle, {
            "doctor.txt": text.getvalue(), "doctor.json": json_text(told),
            "devices.json": json_text(devices), "probes.json": json_text(probes)})
        click.echo(f"wrote {bundle}: look into it before you send it", err=True)
    if any(d["error"] for d in found["devices"]):
        sys.exit(1)


def examined() -> dict[str, Any]:
    """All that is found, as JSON values."""
    from jitcl import config
    from jitcl.cli.bundle import environment

    variables = environment()               # before drivers are looked for, which sets some
    findings, wrong = _settings()
    with config.override(**dict.fromkeys(wrong)):
        return {"environment": variables, **_found_here(findings)}


def _found_here(findings: list[Finding]) -> dict[str, Any]:
    """`examined`, with the findings that there are already first."""
    from jitcl.cli import advice
    from jitcl.cli.console import progress_bar
    from jitcl.devices.opencl import icd, list_devices
    from jitcl.devices.opencl.platform import loader_error
    from jitcl.devices.select import devices, open_device, resolve_auto
    from jitcl.errors import DeviceError

    system = advice.look()
    with progress_bar() as progress:
        rows = devices(progress)
    auto, why = resolve_auto()
    offered = [name for f in list_devices() for name in (f.name, f.platform)]
    if loader_error():
        findings.append(advice.Finding(f"pyopencl can't be loaded: {loader_error()}", (
            "pip install --force-reinstall pyopencl, whose wheels bring an OpenCL loader; one that "
            "was built here needs the system's: apt install ocl-icd-libopencl1, or pkg install "
            "ocl-icd on Termux",)))
    findings += [*advice.missing_drivers(system, offered),
                 *advice.broken_icds(icd.SYSTEM_VENDORS)]
    try:
        open_device(auto)
    except DeviceError as error:
        first, *rest = str(error).splitlines()
        findings.append(advice.Finding(f"JITCL_DEVICE: {first}", tuple(map(str.strip, rest))))
    tried = [_tried(d) for d in rows]
    for row, info in zip(tried, rows):
        findings += _of_device(row, info)
    parts = icd.missing_parts()
    if parts:
        findings.append(advice.Finding("Intel's CPU runtime can't start", (parts,)))
    return {
        "jitcl": __version__, "python": platform.python_version(), "system": platform.system(),
        "release": platform.release(), "machine": platform.machine(), "libc": platform.libc_ver(),
        "kind": system.kind, "board": system.board, "gpus": list(system.gpus),
        "packages": _packages(), "auto": auto, "why": why,
        "drivers": _drivers(), "devices": tried,
        "findings": [{"what": f.what, "do": list(f.do)} for f in findings]}


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def _drivers() -> list[dict[str, str]]:
    """Files that name drivers to the OpenCL loader, and what they name."""
    from jitcl.devices.opencl.icd import SYSTEM_VENDORS
    found = []
    for path in sorted(SYSTEM_VENDORS.glob("*.icd")):
        try:
            library = path.read_text(errors="replace").strip()
        except OSError as error:
            library = f"unreadable: {error.strerror}"
        found.append({"file": str(path), "library": library})
    return found


def _tried(info: DeviceInfo) -> dict[str, Any]:
    """A device, what it can do, and how it did."""
    t = info.target
    error, seconds = _trial(info.spec)
    return {
        "spec": info.spec, "name": t.name, "vendor": t.vendor, "driver": t.driver,
        "type": t.device_type, "note": info.note, "memory": t.global_memory,
        "fp16": "arithmetic" if t.fp16_arithmetic else "storage" if t.fp16_storage else "no",
        "fp64": t.fp64, "local_memory": t.local_memory if t.local_works else 0,
        "trusted": t.trusted or t.kind != "opencl", "dependable": t.dependable,
        "quirks": [q.id for q in info.quirks], "faults": len(info.faults),
        "seconds": seconds, "error": error}


def _trial(spec: str) -> tuple[str, float]:
    """("", seconds) where a small model's result is right, else what went wrong."""
    import numpy as np

    import jitcl

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (64, 96)).astype(np.float32)
    w = rng.uniform(-0.1, 0.1, (96, 32)).astype(np.float32)
    start = time.perf_counter()
    try:
        found = jitcl.compile(jitcl.parse(TRIAL), device=spec).run({"x": x, "w": w})["z"]
    except jitcl.JitclError as error:
        return f"{type(error).__name__.rstrip('_')}: {error}", time.perf_counter() - start
    seconds = time.perf_counter() - start
    worst = float(np.abs(found - np.tanh(x @ w)).max())
    return ("" if worst < CLOSE else f"wrong result: off by {worst:.3g}"), seconds


def _settings() -> tuple[list[Finding], list[str]]:
    """Variables with impossible values or slips in their names, and where the cache can't be; the
    names of those with impossible values.
    """
    from jitcl import config, ownership
    from jitcl.cli.advice import Finding
    from jitcl.errors import OptionError

    found = [Finding(f"{name} means nothing to jitcl", ("see `jitcl --help` for its variables",))
             for name in config.unknown()]
    wrong = []
    for variable in config.VARIABLES:
        try:
            config.get(variable.name)
        except OptionError as error:
            wrong.append(variable.short)
            first, *rest = str(error).splitlines()
            found.append(Finding(first, tuple(line.strip() for line in rest)))
    if not wrong:
        root = config.cache_root()
        if ownership.cache_root() != root.expanduser().absolute():
            found.append(Finding(
                f"the cache directory {root} can't be used: everything is compiled anew in each "
                "process", ("JITCL_CACHE_DIR names a folder of your own; docs/security.md says "
                            "which are trusted",)))
    return found, wrong


def _of_device(row: dict[str, Any], info: DeviceInfo) -> list[Finding]:
    from jitcl.cli.advice import Finding
    found = []
    if row["error"]:
        found.append(Finding(f"{info.spec} ({row['name']}) fails: {row['error']}", (
            "attach what `jitcl doctor --bundle report.zip` writes to a report",)))
    if not row["dependable"]:
        found.append(Finding(f"{info.spec} ({row['name']}) can't be relied on", (
            "`jitcl devices` has its faults, and a newer driver may lack them",)))
    if row["faults"]:
        found.append(Finding(
            f"{row['faults']} kernels failed on {info.spec} ({row['name']}): others run in their "
            "place", ("`jitcl devices` lists them; `jitcl cache retry` tries them again",)))
    return found


def _devices() -> list[dict[str, Any]]:
    """What `jitcl devices --json` says."""
    from jitcl.cli.devices import device_dict
    from jitcl.devices.select import devices
    return [device_dict(d) for d in devices()]


def _probes() -> list[dict[str, Any]]:
    """The answers of drivers that are remembered, from when they were first seen."""
    from jitcl.devices.opencl import list_devices
    from jitcl.devices.opencl.probe import remembered
    return [{"spec": f.spec, "name": f.name, "platform": f.platform,
             "version": f.platform_version, "answers": remembered(f)} for f in list_devices()]


def _show(found: dict[str, Any], out: Console) -> None:
    """For people."""
    from jitcl.cli.console import duration, table
    from jitcl.codegen.text import amount

    out.print(f"jitcl {found['jitcl']}, Python {found['python']}, {found['system']} "
              f"{found['release']} {found['machine']} ({found['kind']})"
              + (f", {found['board']}" if found["board"] else ""))
    out.print("packages: " + ", ".join(
        f"{name} {version or '-'}" for name, version in found["packages"].items()))
    if found["gpus"]:
        out.print(f"GPUs that the kernel knows: {', '.join(found['gpus'])}")
    for driver in found["drivers"]:
        out.print(f"driver file: {driver['file']} -> {driver['library']}")
    for name, value in found["environment"].items():
        out.print(f"{name}={value}")
    rows = table("devices", "spec", "name", "driver", "type", "fp16", "fp64", "memory", "trusted",
                 "quirks", "faults", "works", right=("memory", "quirks", "faults"))
    for d in found["devices"]:
        rows.add_row(d["spec"] + (" *" if d["spec"] == found["auto"] else ""), d["name"],
                     d["driver"], d["type"], d["fp16"], "yes" if d["fp64"] else "no",
                     amount(d["memory"], "B") if d["memory"] else "",
                     "yes" if d["trusted"] else "tries first", str(len(d["quirks"])),
                     str(d["faults"]), d["error"].splitlines()[0] if d["error"]
                     else f"yes, in {duration(d['seconds'])}")
    out.print(rows)
    out.print(f"* auto takes {found['auto']}: {found['why']}")
    if not found["findings"]:
        out.print("nothing is missing")
    for finding in found["findings"]:
        out.print(f"\n! {finding['what']}")
        for line in finding["do"]:
            out.print(f"  - {line}")

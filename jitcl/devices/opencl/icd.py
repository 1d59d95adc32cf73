"""Make every OpenCL driver visible before the first OpenCL call: Intel's CPU runtime from pip, and
NVIDIA's driver in containers, which have its library and no .icd file.

The loader (ocl-icd, bundled with pyopencl's wheels) reads `OCL_ICD_VENDORS` once, at the first
call. Intel's wheel has no usable .icd file, so `setup` writes one into a lasting folder of the
cache directory, copies the system's .icd files beside it (the variable replaces
/etc/OpenCL/vendors), and names the folder. PoCL from pip lies inside pyopencl and is found in
either case. A user's own setting of these variables is left alone.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from jitcl import forking, ownership
from jitcl.devices.pending import alive

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
USER_SETTINGS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")   # ocl-icd ignores OCL_ICD_FILENAMES
OURS = "opencl-vendors"
NVIDIA_LIBRARY = "libnvidia-opencl.so.1"
LIBRARY_FOLDERS = (
    f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64")
SCRATCH = "pocl-scratch"
SMALL, LARGE = 1 << 16, 64 << 20        # bytes of drivers' lists; of the kernels of a process

log = logging.getLogger("jitcl.opencl")
_lock = forking.lock()
_done = False


def writable(name: str, room: int = 0) -> Path:
    """`<cache root>/<name>`, created; a temporary folder where that can't be written, or has no
    `room` for so many bytes. Raises OSError where there is none either.
    """
    try:
        path = ownership.below(ownership.cache_root(), name)
        if os.access(path, os.W_OK) and shutil.disk_usage(path).free >= room:
            return path
    except OSError as error:
        log.debug("cannot use the folder '%s' of the cache: %s", name, error)
    temporary = Path(tempfile.mkdtemp(prefix=f"jitcl-{name}-"))
    ownership.remove_at_exit(temporary)
    return temporary


def setup() -> None:
    """Prepare the environment of the OpenCL drivers; does its work once a process, and makes no
    OpenCL call.
    """
    global _done
    with _lock:
        if not _done:
            for prepare, who in ((_name_vendors, "drivers from pip"), (_prepare_pocl, "PoCL")):
                try:
                    prepare()
                except OSError as error:
                    log.warning("there is no folder for the files of %s, which may be missing or "
                                "fail: %s. JITCL_CACHE_DIR and TMPDIR name folders.", who, error)
            _done = True


def intel_runtime() -> Path | None:
    """libintelocl.so of the pip package intel-opencl-rt, or None where that isn't installed."""
    try:
        distribution = importlib.metadata.distribution("intel-opencl-rt")
    except importlib.metadata.PackageNotFoundError:
        return None
    for line in (distribution.read_text("RECORD") or "").splitlines():
        name = line.split(",")[0]
        if name.rsplit("/", 1)[-1] == "libintelocl.so":
            path = Path(str(distribution.locate_file(name))).resolve()
            return path if path.exists() else None
    return None


def missing_parts() -> str:
    """What keeps an installed runtime from showing up, for error messages; '' if nothing."""
    if intel_runtime() is None:
        return ""
    try:
        importlib.metadata.distribution("intel-cmplr-lib-rt")
    except importlib.metadata.PackageNotFoundError:
        return (
            "intel-opencl-rt is installed, but needs another package: "
            "pip install intel-cmplr-lib-rt"
        )
    return ""


def unlisted_nvidia() -> Path | None:
    """NVIDIA's OpenCL driver where it is mounted without an .icd file, as in containers."""
    listed = [p.read_text() for p in SYSTEM_VENDORS.glob("*.icd")]
    if any("nvidia" in text for text in listed):
        return None
    own = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    places = (Path(folder) / NVIDIA_LIBRARY for folder in (*own, *LIBRARY_FOLDERS) if folder)
    return next((p for p in places if p.exists()), None)


def _name_vendors() -> None:
    """Point the loader at a folder with the system's drivers and those that it would not find."""
    intel, nvidia = intel_runtime(), unlisted_nvidia()
    if intel is None and nvidia is None:
        return
    for name in USER_SETTINGS:
        value = os.environ.get(name)
        if value and Path(value).name != OURS:  # ours, inherited from a parent process: refreshed
            return
    folder = writable(OURS, SMALL)
    wanted = {f"system-{p.name}": p.read_text() for p in sorted(SYSTEM_VENDORS.glob("*.icd"))}
    wanted |= {"intel-pip.icd": f"{intel}\n"} if intel else {}
    wanted |= {"nvidia.icd": f"{nvidia}\n"} if nvidia else {}
    for stale in {p.name for p in folder.glob("*.icd")} - wanted.keys():
        with suppress(OSError):
            (folder / stale).unlink()
    for name, text in wanted.items():
        _write(folder / name, text)
    os.environ["OCL_ICD_VENDORS"] = str(folder)


def _write(path: Path, text: str) -> None:
    """Write a small file, unless it holds this text already."""
    with suppress(OSError):
        if ownership.read(path) == text.encode():
            return
    ownership.replace(path, text.encode())


def _prepare_pocl() -> None:
    """Give PoCL a private scratch directory, and let it compile each kernel once.

    PoCL keeps compiled kernels in its own cache without checking them when it loads them; jitcl
    stores the programs' binaries in its cache, with a digest, so the scratch directory lives as
    long as the process. With specialisation off, the code that a binary holds serves every
    work-group size: with it, PoCL compiles each kernel twice (once for the binary, once at its
    first launch).
    """
    os.environ.setdefault("POCL_WORK_GROUP_SPECIALIZATION", "0")
    inherited = os.environ.get("POCL_CACHE_DIR")
    if inherited and Path(inherited).parent.name != SCRATCH:
        return  # the user's own setting, not a parent process's
    parent = writable(SCRATCH, LARGE)
    _sweep(parent)
    scratch = Path(tempfile.mkdtemp(dir=parent, prefix=f"{os.getpid()}-"))
    os.environ["POCL_CACHE_DIR"] = str(scratch)
    ownership.remove_at_exit(scratch)


def _sweep(parent: Path) -> None:
    """Remove what processes left that died without their exit handlers."""
    for path in parent.glob("*-*"):
        pid = path.name.split("-")[0]
        if pid.isdigit() and not alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)

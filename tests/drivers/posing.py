"""The posing driver: any OpenCL driver answers as a Mali or an Adreno, and fails as theirs would.

    outcome = run_python(code, cache=tmp_path, pose=POSES["mali-g78:intel"],
                         rules=[r"abort /convert_half/"])
    outcome.died, outcome.value, outcome.stats.faults

It is an OpenCL layer (posing_*.c beside this file), built once and kept until its text changes.
The state of a layer is a process's own, so each scenario runs in a process of its own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lacking import unless

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COMPILER = ("gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
ACTIONS = ("abort", "segv", "hang", "fail", "oor", "late", "drop", "prelude", "group",
           "hidden_group", "lost", "memory")
CRASHES = ("abort", "segv", "hang")             # what takes a process down
TOTALS = ("processes", "builds", "reloads", "launches", "reads", "allocations", "hints")
LIVES = ("contexts", "queues", "programs", "buffers", "bytes")
SLOTS = 64
MAGIC = 0x504F53494E473031


# ---- building the layer

@functools.cache
def reason() -> str:
    """Why the layer can't be built here, for skips; "" where it can."""
    if not sys.platform.startswith("linux"):
        return "the posing driver is for Linux"
    if shutil.which(COMPILER[0]) is None:
        return "gcc is not installed"
    wanted = "#include <CL/cl.h>\n#include <CL/cl_layer.h>\n"
    done = subprocess.run([COMPILER[0], "-E", "-x", "c", "-"], input=wanted, text=True,
                          capture_output=True, check=False)
    return "" if done.returncode == 0 else "OpenCL's headers (opencl-c-headers) are not installed"


def needed() -> pytest.MarkDecorator:
    """The mark of tests that pose."""
    return unless(not reason(), reason())


@functools.cache
def library() -> Path:
    """libposing.so, built where the one of these sources isn't there yet."""
    sources = sorted(HERE.glob("posing*.[ch]"))
    digest = hashlib.sha256(repr(COMPILER).encode() + b"".join(p.read_bytes() for p in sources))
    folder = Path(tempfile.gettempdir()) / f"jitcl-posing-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"libposing-{digest.hexdigest()[:16]}.so"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".so")
        os.close(handle)
        subprocess.run([*COMPILER, "-o", temporary, *(str(p) for p in sources if p.suffix == ".c"),
                        "-lpthread"], check=True)
        os.replace(temporary, path)
    return path


# ---- the devices that are posed as

@dataclass(frozen=True)
class Pose:
    """A device as the layer answers for it. `platform`: part of the real driver's name."""

    name: str
    platform: str
    info: Mapping[str, str | int] = field(default_factory=dict)
    add: str = ""                               # extensions
    remove: str = ""
    options: str = ""                           # build options that the real compiler lacks

    def text(self, rules: Sequence[str] = (), settings: Mapping[str, Any] | None = None) -> str:
        """The layer's configuration, with rules and other settings (posing_config.c)."""
        lines = [f"# {self.name}", f"platform = {self.platform}"]
        lines += [f"{key} = {value}" for key, value in self.info.items()]
        lines += [f"extensions_add = {self.add}", f"extensions_remove = {self.remove}",
                  f"options = {self.options}"]
        lines += [f"{key} = {value}" for key, value in (settings or {}).items()]
        lines += ["rule = " + rule.replace("\n", "\\n") for rule in rules]
        return "\n".join(lines) + "\n"


INTEL, POCL = "Intel", "Portable Computing Language"
GPU, LOCAL, GLOBAL = 4, 1, 2                    # of CL_DEVICE_TYPE and CL_DEVICE_LOCAL_MEM_TYPE
ARM_OPTIONS = "-fregister-allocation=*"
HIDDEN = "cl_intel_* cl_pocl_* cl_khr_subgroup* cl_khr_spir cl_khr_il_program"


def _mali(model: str, release: str, language: str, *, group: int, units: int, chip: int,
          extensions: str) -> dict[str, Pose]:
    """A Mali over both drivers: over Intel's with fp16, over PoCL's without.

    PoCL keeps its own CL_DEVICE_VERSION: it names the CPU that its compiler generates code for,
    which jitcl needs to repair it.
    """
    version = f"OpenCL {language} v1.{release}-01eac0.2a893c011ba6d0a56ba40d5d4f0aa4b9"
    info: dict[str, str | int] = {
        "CL_DEVICE_NAME": f"Mali-{model}", "CL_DEVICE_VENDOR": "ARM",
        "CL_DEVICE_TYPE": GPU, "CL_DEVICE_VENDOR_ID": chip,
        "CL_PLATFORM_NAME": "ARM Platform", "CL_PLATFORM_VENDOR": "ARM",
        "CL_PLATFORM_VERSION": version, "CL_DEVICE_LOCAL_MEM_SIZE": 32768,
        "CL_DEVICE_LOCAL_MEM_TYPE": GLOBAL, "CL_DEVICE_MAX_WORK_GROUP_SIZE": group,
        "CL_DEVICE_MAX_COMPUTE_UNITS": units, "CL_DEVICE_IMAGE2D_MAX_WIDTH": 65536,
        "CL_DEVICE_IMAGE2D_MAX_HEIGHT": 65536, "CL_DEVICE_IMAGE_MAX_BUFFER_SIZE": 65536,
        "CL_DEVICE_MAX_MEM_ALLOC_SIZE": 1 << 28, "CL_DEVICE_GLOBAL_MEM_SIZE": 1 << 30}
    own = {"CL_DEVICE_VERSION": version, "CL_DRIVER_VERSION": language,
           "CL_DEVICE_OPENCL_C_VERSION": version.replace("OpenCL", "OpenCL C"),
           "CL_DEVICE_DOUBLE_FP_CONFIG": 0}
    name = "mali-" + model.split()[0].lower()
    return {
        f"{name}:intel": Pose(f"{name}:intel", INTEL, {**info, **own},
                              f"cl_khr_fp16 {extensions}", f"cl_khr_fp64 {HIDDEN}",
                              ARM_OPTIONS),
        f"{name}:pocl": Pose(f"{name}:pocl", POCL, info, extensions, HIDDEN, ARM_OPTIONS)}


def _adreno(model: str, compiler: str, group: int, units: int) -> dict[str, Pose]:
    info: dict[str, str | int] = {
        "CL_DEVICE_NAME": f"QUALCOMM Adreno(TM) {model}", "CL_DEVICE_VENDOR": "QUALCOMM",
        "CL_DEVICE_TYPE": GPU, "CL_PLATFORM_NAME": "QUALCOMM Snapdragon(TM)",
        "CL_PLATFORM_VENDOR": "QUALCOMM", "CL_PLATFORM_VERSION": "OpenCL 2.0 QUALCOMM build: "
        f"commit #0123456 changeid #0 Compiler {compiler}", "CL_DEVICE_LOCAL_MEM_SIZE": 32768,
        "CL_DEVICE_LOCAL_MEM_TYPE": LOCAL, "CL_DEVICE_MAX_WORK_GROUP_SIZE": group,
        "CL_DEVICE_MAX_COMPUTE_UNITS": units, "CL_DEVICE_MAX_MEM_ALLOC_SIZE": 1 << 28,
        "CL_DEVICE_GLOBAL_MEM_SIZE": 1 << 30}
    own = {"CL_DEVICE_VERSION": f"OpenCL 2.0 Adreno(TM) {model}",
           "CL_DRIVER_VERSION": f"OpenCL 2.0 QUALCOMM build: Compiler {compiler}",
           "CL_DEVICE_OPENCL_C_VERSION": f"OpenCL C 2.0 Adreno(TM) {model}",
           "CL_DEVICE_DOUBLE_FP_CONFIG": 0}
    name, added = f"adreno-{model}", "cl_qcom_perf_hint"
    return {
        f"{name}:intel": Pose(f"{name}:intel", INTEL, {**info, **own}, f"cl_khr_fp16 {added}",
                              f"cl_khr_fp64 {HIDDEN}"),
        f"{name}:pocl": Pose(f"{name}:pocl", POCL, info, added, HIDDEN)}


_ARM = "cl_arm_core_id cl_arm_printf cl_arm_import_memory"
POSES: dict[str, Pose] = {
    **_mali("G78 r0p1", "r32p1", "3.0", group=512, units=20, chip=0x92020010,
            extensions=f"{_ARM} cl_arm_scheduling_controls"),
    **_mali("T860", "r14p0", "1.2", group=256, units=4, chip=0x08600020,
            extensions="cl_arm_core_id"),
    **_mali("G52 r1p0", "r16p0", "2.0", group=384, units=2, chip=0x72120010, extensions=_ARM),
    **_adreno("640", "E031.37.12.01", 1024, 2),
    "intel": Pose("intel", INTEL), "pocl": Pose("pocl", POCL)}    # as they are, with faults


# ---- what happened

@dataclass(frozen=True)
class Stats:
    """What the layer counted in all processes, and what the living ones hold."""

    totals: dict[str, int]
    faults: dict[str, int]
    live: dict[int, dict[str, int]]             # process id -> what it holds

    @property
    def fired(self) -> int:
        return sum(self.faults.values())

    @property
    def crashes(self) -> int:
        """Faults that took a process down or let it hang."""
        return sum(self.faults[name] for name in CRASHES)


def read_stats(path: Path) -> Stats:
    """The layer's counters; zeros where no process has written them.

    A process lives here while its environment names the file: a process that is ending has none,
    though its number stands in /proc until its parent waits for it (or, of an ended parent, init);
    and where numbers end at 32768 another's process or thread has it before long.
    """
    words = 1 + len(TOTALS) + len(ACTIONS) + SLOTS * (1 + len(LIVES))
    data = path.read_bytes() if path.exists() else b""
    numbers = struct.unpack(f"={words}q", data) if len(data) == 8 * words else (0,) * words
    if numbers[0] not in (0, MAGIC):
        raise ValueError(f"{path}: no counters of the posing driver")
    rest = iter(numbers[1:])
    totals = {name: next(rest) for name in TOTALS}
    faults = {name: next(rest) for name in ACTIONS}
    live = {}
    for _ in range(SLOTS):
        pid, held = next(rest), {name: next(rest) for name in LIVES}
        if pid and _runs_with(Path(f"/proc/{pid}"), f"POSE_STATS={path}".encode()):
            live[pid] = held
    return Stats(totals, faults, live)


# ---- running under a pose

@dataclass(frozen=True)
class Outcome:
    """How a process ended."""

    returncode: int | None                      # None: killed after the time limit
    stdout: str
    stderr: str
    seconds: float
    stats: Stats
    orphans: tuple[int, ...]                    # processes that it left behind

    @property
    def died(self) -> str:
        """The signal that ended it, such as "SIGABRT"; "" where none did."""
        if self.returncode is None:
            return "hung"
        return signal.Signals(-self.returncode).name if self.returncode < 0 else ""

    @property
    def value(self) -> Any:
        """What it printed as JSON on its last line."""
        assert self.returncode == 0, f"{self.died or self.returncode}\n{self.stderr[-4000:]}"
        return json.loads(self.stdout.splitlines()[-1])


def environment(cache: Path, pose: Pose | None, rules: Sequence[str] = (),
                settings: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Variables for a process under a pose, all its files below `cache`."""
    dropped = ("OCL_ICD", "POCL_", "JITCL_", "OPENCL_", "POSE_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    kept.pop("CI", None)                # there, a driver may well be missing: it poses
    (cache / "pocl").mkdir(parents=True, exist_ok=True)
    kept |= {"JITCL_CACHE_DIR": str(cache / "jitcl"), "POCL_CACHE_DIR": str(cache / "pocl"),
             "PYOPENCL_NO_CACHE": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    if pose is not None:
        path = cache / "pose.conf"
        path.write_text(pose.text(rules, settings))
        kept |= {"OPENCL_LAYERS": str(library()), "POSE_CONFIG": str(path),
                 "POSE_STATS": str(cache / "stats")}
    return kept


def run_python(code: str, *, cache: Path, pose: Pose | None = None, rules: Sequence[str] = (),
               settings: Mapping[str, Any] | None = None, timeout: float = 120,
               variables: Mapping[str, str] | None = None) -> Outcome:
    """Run Python code in a process under a pose, and see how it ends. Processes with the same
    `cache` share jitcl's cache and the layer's counters.
    """
    marked = {**environment(cache, pose, rules, settings), "POSE_RUN": str(time.monotonic_ns()),
              **(variables or {})}
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=marked, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    status: int | None
    try:
        out, err = process.communicate(timeout=timeout)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        status = None
    seconds = time.perf_counter() - begin
    orphans = left_behind(marked["POSE_RUN"])
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    return Outcome(status, out, err, seconds, read_stats(cache / "stats"), orphans)


def left_behind(mark: str, patience: float = 2.0) -> tuple[int, ...]:
    """Processes that still run with this mark in their environment, after a moment of patience."""
    needle = f"POSE_RUN={mark}".encode()
    deadline = time.monotonic() + patience
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _runs_with(entry, needle):
                found.append(int(entry.name))
        if not found or time.monotonic() > deadline:
            return tuple(found)
        time.sleep(0.05)


def _runs_with(entry: Path, needle: bytes) -> bool:
    try:
        return needle in (entry / "environ").read_bytes().split(b"\0")
    except OSError:                             # gone meanwhile, or another user's
        return False


# Plain pyopencl, past all of jitcl but the drivers' set-up: for testing the driver itself.
PLAIN = """
import json, sys
import numpy as np
from jitcl.devices.opencl import icd, pocl
icd.setup()
import pyopencl as cl

def device(name):
    found = next(d for p in cl.get_platforms() for d in p.get_devices() if name in d.name)
    pocl.name_cpu(found)
    return found

def build(context, source, options=b"-cl-std=CL1.2"):
    program = cl._cl._Program(context, source)
    program._build(options, context.devices)
    return program
"""

"""What an OpenCL device can do: limits that its driver reports, features that probes found, rows of
the quirk table, and what JITCL_TARGET overrides; remembered on disk.

Extension strings are not believed: NVIDIA's driver doesn't list cl_khr_fp16, and half arithmetic
works. Probes (probes/) run in worker processes when a device and driver are first seen; their
answers are kept in the cache directory, so that a warm start builds nothing and starts no process.
A new driver version is a new device.

    <cache root>/opencl-probes/<digest of limits and driver>.json
    {"version": VERSION, "key": ..., "device": "...", "fields": {...}, "answers": [...]}
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from jitcl import config, ownership
from jitcl.devices.base import Progress, Tally
from jitcl.devices.core_cache import second_level_cache
from jitcl.devices.opencl import icd, pocl
from jitcl.devices.opencl.platform import Found
from jitcl.devices.opencl.remembered import FATAL, FOLDER
from jitcl.target.features import GATED
from jitcl.target.overrides import overridden
from jitcl.target.quirks import Quirk, applying
from jitcl.target.target import Target

if TYPE_CHECKING:
    from jitcl.devices.opencl.probes import Answer

VERSION = 12  # of the probes: a change makes remembered answers void
PROVEN = GATED | {"int8", "vec4"}       # features that probes are asked for
LOCK_SECONDS = 90.0                     # that another process may take to probe the same device

log = logging.getLogger("jitcl.opencl")


def probe_target(found: Found, progress: Progress | Tally | None = None) -> Target:
    """The device as code generation sees it: limits, probed features, quirks and JITCL_TARGET
    applied.
    """
    target, quirks = examine(found, progress)
    for quirk in quirks:
        log.info("%s: quirk %s: %s", found.name, quirk.id, quirk.fields)
        target = quirk.apply(target)
    return overridden(target, str(config.get("target")))


def examine(found: Found, progress: Progress | Tally | None = None
            ) -> tuple[Target, tuple[Quirk, ...]]:
    """The device with its probed features as they are, and the quirks that hold for it."""
    base = _limits(found)
    fields = _Record(found, base).fields(Tally.of(progress))
    target = dataclasses.replace(base, **fields)
    if found.kind == "cpu":             # what the CPU path's templates ask, and no driver tells
        target = dataclasses.replace(
            target, cache_bytes=second_level_cache() or target.cache_bytes,
            winograd=config.get("winograd"))
    return target, applying(found.driver, target)


def probe_anew(found: Found, progress: Progress | Tally | None = None) -> list[Answer]:
    """Ask the device everything, whatever is remembered; the answers are kept."""
    return _Record(found, _limits(found)).ask(Tally.of(progress))


def remembered(found: Found) -> list[dict[str, Any]]:
    """The device's answers as they are kept, of which nothing is asked; [] where there are none."""
    return _Record(found, _limits(found)).kept()


def fields_of(answers: list[Answer]) -> dict[str, Any]:
    """The fields of Target that answers set, `proven` among them."""
    from jitcl.devices.opencl.probes import PROBES

    fields: dict[str, Any] = {}
    good: set[str] = set()
    bad: set[str] = set()
    for answer in answers:
        probe = PROBES[answer.probe]
        fields |= probe.fields(answer)
        (good if answer.good else bad).update(probe.features)
    fields["proven"] = tuple(sorted((good - bad) & PROVEN))
    return fields


def _limits(found: Found) -> Target:
    """What the driver reports and has no reason to lie about."""
    device = found.handle
    cpu = found.kind == "cpu"
    flags = pocl.host_features() if cpu else frozenset()
    version = f"{found.platform_version} / {device.driver_version}"
    local_is_real = device.local_mem_type == cl.device_local_mem_type.LOCAL and not cpu
    widths = (device.native_vector_width_float, device.preferred_vector_width_float)
    return Target(
        kind="opencl",
        name=found.name,
        vendor=device.vendor.strip(),
        driver=f"{version} [{found.compiler_cpu}]" if found.compiler_cpu else version,
        device_type=found.kind,
        compute_units=device.max_compute_units,
        vector_width=max(1, *widths)
        if cpu
        else 4,  # a GPU's best load is 16 bytes, whatever it prefers
        registers=(32 if "avx512f" in flags else 16) if cpu else 128,
        local_memory=device.local_mem_size,
        local_is_real=local_is_real,
        max_work_group=device.max_work_group_size,
        max_work_item_sizes=tuple(device.max_work_item_sizes),
        global_memory=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        alignment=max(64, device.mem_base_addr_align // 8),
        # Else a GPU's quotients are off by 2.5 units, and a tie of a quantisation falls on the
        # wrong side, in the same kernel or in one that reads it (NVIDIA 580). CPUs divide so.
        build_options=("-cl-fp32-correctly-rounded-divide-sqrt",)
        if not cpu
        and device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        else (),
        isa=tuple(sorted(flags & {"avx2", "fma", "avx512f", "avx512bw", "avx512vl"})),
    )


class _Record:
    """The file of one device and driver: what its probes answered."""

    def __init__(self, found: Found, base: Target) -> None:
        self.found, self.key = found, base.key
        digest = hashlib.sha256(f"{VERSION} {base.key}".encode()).hexdigest()[:24]
        self.path = icd.writable(FOLDER) / f"{digest}.json"

    def fields(self, tally: Tally) -> dict[str, Any]:
        """Fields of Target, from the file; a missing or damaged one is made by probing."""
        kept = self._read()
        if kept is None:
            with self._locked():            # another process may be probing just now
                kept = self._read()
                if kept is None:
                    return fields_of(self.ask(tally))
        return kept[0]

    def kept(self) -> list[dict[str, Any]]:
        """The answers in the file, as JSON values."""
        _, answers = self._read() or ({}, [])
        return answers

    def ask(self, tally: Tally) -> list[Answer]:
        """Probe, and keep the answers."""
        from jitcl.devices.opencl.probes.record import SHORT
        from jitcl.devices.opencl.probes.survey import survey

        begin = time.perf_counter()
        answers = survey(self.found, tally)
        seconds = time.perf_counter() - begin
        config.say(1, f"{self.found}: probed in {seconds:.1f} s: jitcl devices --probe")
        short = next((a.evidence for a in answers if a.kind == SHORT), "")
        if short:
            log.warning("%s: what it can do could not be asked, as the system is short of "
                        "something (%s); it is used without, and asked again at the next start",
                        self.found.name, short)
            return answers
        fatal = [a for a in answers if a.kind in FATAL]
        if fatal:
            log.warning("%s: %s; what they ask for is kept away from it (jitcl devices --probe)",
                        self.found.name, "; ".join(f"probe {a.probe}: {a.evidence}"
                                                   for a in fatal))
        self._write({"version": VERSION, "key": self.key, "device": str(self.found),
                     "fields": fields_of(answers), "answers": [a.as_dict() for a in answers]})
        return answers

    def _read(self) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """(fields of Target, answers)."""
        try:
            kept = json.loads(ownership.read(self.path))
            if kept["key"] == self.key and kept["version"] == VERSION:
                return _checked(kept["fields"]), kept["answers"]
        except FileNotFoundError:
            log.debug("%s has not been probed yet", self.found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("what was probed of %s in %s can't be read (%s); it is probed anew",
                        self.found.name, self.path, error)
        return None

    def _write(self, record: dict[str, Any]) -> None:
        try:
            ownership.replace(self.path, json.dumps(record, indent=1).encode())
        except OSError as error:
            log.warning("cannot keep what was probed on the device in %s: %s", self.path,
                        error.strerror or error)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among processes where that can be had."""
        import filelock  # here: 30 ms that a warm start does without

        with contextlib.ExitStack() as stack:
            try:
                lock = ownership.no_link(Path(f"{self.path}.lock"))
                stack.enter_context(filelock.FileLock(lock, timeout=LOCK_SECONDS, mode=0o600))
            except (OSError, filelock.Timeout) as error:
                log.debug("probing without a lock: %s", error)
            yield


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    """Remembered fields with tuples as tuples; ValueError where one is not as Target has it."""
    known = {f.name: f.default for f in dataclasses.fields(Target)}
    checked = {}
    for name, value in fields.items():
        value = tuple(value) if isinstance(value, list) else value
        if type(value) is not type(known.get(name)):
            raise ValueError(f"field '{name}' is {value!r}")
        checked[name] = value
    if "proven" not in checked:
        raise ValueError("no proven features")
    return checked

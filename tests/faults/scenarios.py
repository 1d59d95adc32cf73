"""The fault matrix as data: what a driver does wrong, and what must come of it.

Regular expressions meet a kernel's source. `KERNEL` is what only a model's kernels have (their
names end with a digest), so that the fault is one that no probe sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jitcl.devices.opencl import pocl

KERNEL = r"_[0-9a-f]{10}\("
# templates multiply and add in the form that the probe found fast there; plain loops add to acc0
MULTIPLY_ADD = r"((fma|mad)\(| (c[0-9]+|v) \+= )"
# vectors are read through pointers where they are aligned, else by vload4
VECTOR = r"(vload|float4)"
WORKER = "jitcl.devices.opencl.worker"
DRIVERS = ("intel", "pocl")
PLAIN = ("mnist8", "oww_embedding", "squeezenet1.0_fp16")
HALVES = ("squeezenet1.0_fp16", "minilm_l6_v2", "ultraface_rfb320")
SOFTMAX = ("squeezenet1.0_fp16", "stories260K_kv_int4", "minilm_l6_v2")
BYTES = ("stories260K_kv_int4", "ultraface_qop_u8", "minilm_int4")
NIBBLES = ("stories260K_kv_int4", "minilm_int4", "block")
# half: arithmetic where the driver has it, else the loads and stores that PoCL has
HALF = {"intel": r"convert_half|\(half[0-9]*\)|half[0-9]* [a-z0-9_]+ =",
        "pocl": r"v(load|store)a?_half"}


@dataclass(frozen=True)
class Phase:
    """What holds while one process runs. `damage`: what is done to the cache before it."""

    rules: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    damage: str = ""                    # "database" or "binaries"
    processes: int = 1                  # at once


@dataclass(frozen=True)
class Scenario:
    """One row. `HALF` in a rule stands for the driver's own expression.

    traits: rules and settings that are the device's nature, so the clean start has them too.
    fires: actions of the layer that must happen in the first phases, or the row shows nothing.
    again: actions that may happen in the second run as well; crashes and hangs never may.
    second: what holds in the second run, where that is not what held last.
    """

    name: str
    says: str
    phases: tuple[Phase, ...]
    models: tuple[str, ...] = PLAIN
    own: str = "block"                  # the small model of the default test run
    pose: str = "mali-g78"              # "" = the driver as it is
    drivers: tuple[str, ...] = DRIVERS
    precision: str = "high"
    variables: Mapping[str, str] = field(default_factory=dict)
    traits: Phase = Phase()
    fires: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    second: Phase | None = None
    remove: str = ""                    # extensions that the pose hides beyond its own
    add: str = ""                       # and that it claims
    quick: bool = False                 # in the default test run
    memory_share: float = 0.0           # of what the plan needs, that the device has; 0: enough
    halves: bool = False                # the plan must use halves, on the driver that has them
    steps: bool = False                 # a kernel must have stepped down
    tells: str = ""                     # what the user must read: a regular expression
    feature: str = ""                   # a feature of the CPU without which nothing would fail

    def impossible(self) -> str:
        """Why this can't happen on this machine, for skips; "" where it can."""
        lacking = self.feature and self.feature not in pocl.host_features()
        return f"the CPU has no {self.feature}" if lacking else ""


def rules(*lines: str, **settings: Any) -> tuple[Phase, ...]:
    return (Phase(lines, settings),)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("fp16-abort", "aborts on kernels with halves (Cannot select: %llvm.bifrost.2586)",
             rules(f"abort /{KERNEL}.*(HALF)/"), HALVES, precision="low",
             own="halves", fires=("abort",), quick=True),
    Scenario("fp16-abort-always", "aborts on anything with halves, probes too",
             rules("abort /HALF/"), HALVES, precision="low", own="halves", fires=("abort",)),
    Scenario("int4-abort", "aborts on packed weights of 4 bits",
             rules(f"abort /{KERNEL}.*(int4|& 15|0xf|>> 4)/"), NIBBLES,
             fires=("abort",)),
    Scenario("int8-abort", "aborts on bytes",
             rules(f"abort /{KERNEL}.*uchar/"), BYTES, fires=("abort",)),
    Scenario("vector-abort", "aborts on vectors of 8 and 4",
             rules(f"abort /{KERNEL}.*float(4|8|16)/"), fires=("abort",)),
    Scenario("image-abort", "aborts on kernels that read images",
             rules(f"abort /{KERNEL}.*read_image/"), pose="adreno-640", own="superres",
             fires=("abort",)),
    Scenario("local-abort", "aborts on local memory",
             rules(f"abort /{KERNEL}.*__local/"), SOFTMAX, fires=("abort",)),
    Scenario("segfault", "crashes on every template's kernel that multiplies and adds",
             rules(f"segv /{KERNEL}.*{MULTIPLY_ADD}/"), fires=("segv",)),
    Scenario("hang", "hangs in the compiler",
             rules(f"hang:600 /{KERNEL}.*{MULTIPLY_ADD}/"), fires=("hang",),
             variables={"JITCL_BUILD_SECONDS": "6"}),
    Scenario("launch-crash", "crashes at a kernel's first launch",
             rules(f"segv at=launch where=@{WORKER} /{KERNEL}.*{VECTOR}/"), fires=("segv",)),
    Scenario("build-failure", "refuses kernels with a log",
             rules(f"fail /{KERNEL}.*{VECTOR}/ error: Compiler frontend failed (error code 62)"),
             fires=("fail",)),
    Scenario("out-of-resources", "refuses launches: CL_OUT_OF_RESOURCES",
             rules(f"oor /{KERNEL}.*{VECTOR}/"), fires=("oor",)),
    Scenario("out-of-resources-later", "accepts launches, and tells at clFinish that they failed",
             rules(f"late at=finish /{KERNEL}.*{VECTOR}/"), fires=("late",)),
    Scenario("out-of-resources-at-read", "accepts launches, and tells when memory is read",
             rules(f"late at=read /{KERNEL}.*{VECTOR}/"), fires=("late",)),
    Scenario("out-of-resources-in-use", "refuses launches after the model has run well",
             (Phase(), Phase((f"oor nth=9 times=3 /{KERNEL}/",))), fires=("oor",),
             second=Phase()),
    Scenario("dropped", "never runs kernels that it accepted",
             rules(f"drop /{KERNEL}.*{VECTOR}/"), fires=("drop",)),
    Scenario("miscompiled", "computes exp() wrongly in models' kernels",
             rules(f"prelude /{KERNEL}.*exp\\(/ #define exp(x) (exp2(x))"), SOFTMAX,
             fires=("prelude",)),
    Scenario("miscompiled-fma", "computes fma() wrongly, which probes notice",
             rules("prelude /fma\\(/ #define fma(a, b, c) ((a) * (b))"), fires=("prelude",)),
    Scenario("small-groups", "runs kernels with at most 16 work-items, and says so",
             rules(), traits=Phase(("group:16",))),
    Scenario("hidden-groups", "runs kernels with at most 16 work-items, and does not say so",
             rules("hidden_group:16"), fires=("hidden_group",)),
    Scenario("small-memory", "has three quarters of the memory that the plan needs, and says more",
             rules(), memory_share=0.75, fires=("memory",), again=("memory",),
             models=("squeezenet1.0_fp16", "ultraface_rfb320", "oww_embedding")),
    Scenario("no-binaries", "returns no program binaries",
             rules(), traits=Phase((), {"binaries": "none"})),
    Scenario("driver-update", "is updated: stored binaries are another driver's",
             (Phase(), Phase((), {"CL_PLATFORM_VERSION": "OpenCL 3.0 v1.r38p1-01eac0.cafe"}))),
    Scenario("binaries-refused", "refuses stored binaries, with the same version as before",
             (Phase(), Phase(("fail at=reload",))), fires=("fail",), again=("fail",)),
    Scenario("reload-crash", "crashes in clCreateProgramWithBinary",
             rules("segv at=reload"), fires=("segv",)),
    Scenario("reload-crash-of-models", "crashes in clCreateProgramWithBinary with models' kernels",
             rules(f"segv at=reload where=@{WORKER} /{KERNEL}/"), fires=("segv",)),
    Scenario("claimed", "claims fp16, and its compiler lacks it",
             rules("fail /HALF/ error: half precision is not supported"), HALVES,
             precision="low", own="halves", add="cl_khr_fp16", fires=("fail",)),
    Scenario("not-claimed", "has fp16, and does not say so", rules(), HALVES, precision="low",
             own="halves", remove="cl_khr_fp16", halves=True),
    Scenario("device-lost", "loses the device, once in a process",
             rules(lost_after=30), fires=("lost",), second=Phase()),
    Scenario("database-damaged", "the file of faults is damaged after a crash",
             (Phase((f"abort /{KERNEL}.*{VECTOR}/",)),
              Phase((f"abort /{KERNEL}.*{VECTOR}/",), damage="database")), fires=("abort",)),
    Scenario("two-processes", "two processes meet the crash at once",
             (Phase((f"abort /{KERNEL}.*{VECTOR}/",), processes=2),), fires=("abort",)),
    Scenario("all-at-once", "refuses, crashes, drops and hides at the same time",
             rules(f"abort /{KERNEL}.*float4/", f"drop /{KERNEL}.*vload/",
                   f"oor /{KERNEL}.*for/", "hidden_group:32"),
             fires=("abort",)),
    Scenario("wide-vectors", "aborts, crashes or hangs on vectors of 16 (PoCL 3.0's own fault on "
             "Zen 4: nothing is posed), and they are forced upon it", rules(), pose="",
             drivers=("pocl",), variables={
                 "JITCL_POCL_CPU": "znver3", "JITCL_BUILD_SECONDS": "8",
                 "JITCL_TARGET": "max_vector_width=16,vector_width=16"}, steps=True,
             feature="avx512f"),
    Scenario("wide-vectors-probed", "is the same, and nothing is forced", rules(), pose="",
             drivers=("pocl",), variables={
                 "JITCL_POCL_CPU": "znver3", "JITCL_BUILD_SECONDS": "8"}, tells="probe vec16",
             feature="avx512f"),
)
BY_NAME = {s.name: s for s in SCENARIOS}

"""Running faults that a real driver returns: the posing driver between pyopencl and PoCL's or
Intel's runtime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.drivers import posing
from tests.drivers.posing import POSES, run_python

pytestmark = [posing.needed(),
              pytest.mark.in_turn]

# A plan of two kernels, built apart; `outcome` says how a run of it ends.
LOADED = """
import json, os
from dataclasses import replace
from pathlib import Path
import numpy as np
from jitcl.devices.load_options import LoadOptions
from jitcl.devices.faults import FaultDatabase
from jitcl.devices.opencl import open_device
from jitcl.errors import JitclError
from tests.drivers.posing import read_stats
from tests.test_opencl_device import SCALE, SQUARE, expected, plan_of

device = open_device("opencl:SPEC")
device.session.faults = FaultDatabase(None)
plan = replace(plan_of(), kernels=(replace(SCALE, options=("-DAPART",)), SQUARE))
x = np.linspace(-1, 1, 1000, dtype=np.float32)

def load(plan=plan):
    return device.load(plan, options=LoadOptions("never"))

def outcome(executable):
    try:
        (y,) = executable.run([x])
    except JitclError as error:
        return type(error).__name__
    return "right" if np.allclose(y, expected(x), rtol=2e-7) else "wrong"

def faults():
    return [[f.entry, f.kind, f.signature] for f in device.faults.faults]

def held():
    return read_stats(Path(os.environ["POSE_STATS"])).live[os.getpid()]["bytes"]
"""


@pytest.fixture(params=["intel", "pocl"])
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs code behind LOADED on a driver; the cache knows the device after the first time."""
    folder = tmp_path_factory.getbasetemp() / f"posed-{request.param}"
    Path(folder).mkdir(exist_ok=True)

    def run(code: str, **faults: Any) -> Any:
        text = LOADED.replace("SPEC", request.param) + code
        return run_python(text, cache=folder, pose=POSES[request.param], **faults).value
    return run


@pytest.mark.sampled(quick=12, slow=3)
@pytest.mark.parametrize("rule, entry, when", [
    ("oor", "square_1", "enqueue"), ("hidden_group:16", "scale_add_1", "enqueue"),
    ("late at=finish", "scale_add_1", "finish"), ("late at=wait", "square_1", "finish"),
    ("late", "scale_add_1", "finish"), ("late", "square_1", "finish")])
def test_out_of_resources(run, rule, entry, when):
    code = "print(json.dumps([outcome(load()), faults(), held()]))"
    assert run(code, rules=[f"{rule} /{entry}/"]) == [
        "KernelFault", [[entry, "resources", f"OUT_OF_RESOURCES at {when}"]], 0]


def test_a_smaller_limit_of_a_kernel_is_honoured(run):
    code = "print(json.dumps([outcome(load()), faults()]))"
    assert run(code, rules=["group:16 /square_1/"]) == ["right", []]


@pytest.mark.slow
def test_a_lost_device(run):
    code = """
first = load()
got = [outcome(first) for _ in range(3)]
device.reopen()
print(json.dumps([*got, outcome(first), outcome(load()), faults()]))
"""
    got = run(code, settings={"lost_after": 3})
    assert got == ["right", "DeviceLostError", "DeviceLostError", "DeviceLostError", "right", []]


def test_memory_for_the_streamed_plan_alone(run):
    code = """
got = []
try:
    load()
except JitclError as error:
    got = [type(error).__name__, held()]
streamed = load(replace(plan, streamed=True))
got += [held(), outcome(streamed), outcome(streamed), held()]
print(json.dumps(got))
"""
    settings = {"memory_limit": 13_000, "memory_error": -4}     # x, c and t are 12,000 bytes
    assert run(code, settings=settings) == ["OutOfMemoryError", 0, 0, "right", "right", 0]


def test_nothing_is_held_behind_a_closed_executable(run):
    code = """
got = []
for streamed in (False, True):
    with load(replace(plan, streamed=streamed)) as executable:
        got += [outcome(executable), held()]
    got.append(held())
print(json.dumps(got))
"""
    right, full, none, *streamed = run(code)
    assert (right, none) == ("right", 0) and full >= 16_000
    assert streamed == ["right", 0, 0]

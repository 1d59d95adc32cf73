"""Generated kernels before other judges than the devices that run them: clang's front end,
Oclgrind's checks of every access, and guard zones around the buffers of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest

from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from tests.generated import clang, guarded, oclgrind, ragged, simulated
from tests.generated.kernels import TARGETS, model_plan, op_graphs, op_kernels
from tests.real_models import needs_models

QUICK = ("mnist8", "squeezenet1.0_fp16", "oww_embedding")
MORE = ("ultraface_rfb320", "yolox_nano", "selfie_segmentation", "super_resolution_espcn",
        "fns_candy_stdops", "hyperlpr_y5fu_320", "oww_melspectrogram", "minilm_l6_v2")
TYPICAL = (("gpu", "high"), ("mali", "high"), ("cpu-fp16", "low"))      # the others are slow
PRECISIONS = [
    pytest.param(name, precision, marks=[] if (name, precision) in TYPICAL else pytest.mark.slow)
    for name, target in TARGETS.items() for precision in ("high", "low")
    if precision == "high" or target.fp16_arithmetic]

# -- clang -------------------------------------------------------------------------------------


@pytest.mark.sampled(quick=4, slow=4)
@clang.needed
@pytest.mark.parametrize(("target", "precision"), PRECISIONS)
def test_kernels_of_the_op_table_pass_clang(target: str, precision: str) -> None:
    kernels = op_kernels(target, precision)
    assert len(kernels) > 300
    assert clang.objections(kernels, fp16=TARGETS[target].fp16_arithmetic) == ""


@pytest.mark.sampled(quick=4)
@clang.needed
@needs_models
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", QUICK)
def test_kernels_of_a_model_pass_clang(name: str, target: str) -> None:
    check_model(name, target)


@clang.needed
@needs_models
@pytest.mark.sampled(quick=100)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MORE)
def test_kernels_of_more_models_pass_clang(name: str, target: str) -> None:
    check_model(name, target)


def check_model(name: str, target: str) -> None:
    fp16 = TARGETS[target].fp16_arithmetic
    for precision in ("high", "low"):
        plan, _ = model_plan(name, TARGETS[target], precision)
        assert clang.objections(plan.kernels, fp16=fp16) == ""


HALVES = "#ifdef cl_khr_fp16\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#endif\n"
KERNEL = HALVES + "__kernel void k(__global const float *x, __global {0} *y) {{ {1} }}"


@clang.needed
@pytest.mark.parametrize(("type", "body", "fp16", "found"), [
    ("float", "y[0] = x[0];", True, ""),
    ("half", "vstore_half_rte(x[0], 0, y);", False, ""),
    ("half", "half h = (half)x[0]; y[0] = h;", True, ""),
    ("half", "half h = x[0]; y[0] = h;", True, "implicit conversion loses"),
    ("half", "half h = 1.0f; y[0] = h + (half)x[0];", False, "half' is not allowed"),
    ("half", "y[0] = y[1] + x[2];", False, "requires cl_khr_fp16"),
    ("float", "int unused = 1; y[0] = x[0];", True, "unused variable"),
    ("float", "y[0] = x[0] * (double)x[1];", False, "requires cl_khr_fp64"),
    ("float", "y[0] = x[0]", False, "expected ';'"),
])
def test_clang_finds_what_is_planted(type: str, body: str, fp16: bool, found: str) -> None:
    said = clang.diagnose(KERNEL.format(type, body), fp16=fp16)
    assert found in said if found else said == ""

# -- Oclgrind ----------------------------------------------------------------------------------

PARTS = 6                               # of the op table, for two processes


@oclgrind.needed
@pytest.mark.parametrize("target", [pytest.param("gpu", marks=pytest.mark.slow), "cpu"])
def test_kernels_access_what_is_theirs(target: str) -> None:
    check_simulated("graphs", target)


@pytest.mark.slow
@oclgrind.needed
@pytest.mark.parametrize("target", ["gpu", "mali"])
def test_kernels_for_many_shapes_access_what_is_theirs(target: str) -> None:
    check_simulated("sizes", target, [name for name, _ in simulated.CASES["sizes"](target)])


@pytest.mark.slow
@pytest.mark.sampled(slow=PARTS)
@oclgrind.needed
@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_of_ops_access_what_is_theirs(part: int) -> None:
    names = sorted(filter(simulated.simulated, op_graphs(TARGETS["gpu"], simulated.SMALL)))
    check_simulated("ops", "gpu", names[part::PARTS])


@oclgrind.needed
@pytest.mark.parametrize("target", [
    pytest.param(t, marks=pytest.mark.slow if t == "mali" else pytest.mark.long)
    for t in TARGETS if t not in ("gpu", "cpu", "mali-fp16")])     # Oclgrind computes no halves
def test_kernels_of_more_devices_access_what_is_theirs(target: str) -> None:
    check_simulated("graphs", target)


def check_simulated(kind: str, target: str, names: Sequence[str] = ()) -> None:
    found = oclgrind.objections([kind, target, *names])
    assert len(found) >= (len(names) or 25)
    assert {name: text[:2000] for name, text in found.items() if text} == {}


@oclgrind.needed
def test_oclgrind_finds_what_is_planted() -> None:
    wanted = {"sound": "", "race": "data race", "groups race": "data race",
              "read": "Invalid read", "write": "Invalid write",
              "unset": "depends on uninitialized value"}
    found = oclgrind.objections(["faults", "gpu"])
    assert found.keys() == wanted.keys()
    assert {name: wanted[name] in text and bool(wanted[name]) == bool(text)
            for name, text in found.items()} == dict.fromkeys(wanted, True)

# -- guard zones on the CPU --------------------------------------------------------------------

OPS_ON_CPU = op_graphs(guarded.DEVICE.target)


@pytest.mark.slow
@pytest.mark.sampled(slow=8)
@pytest.mark.parametrize("name", OPS_ON_CPU)
def test_cpu_kernels_of_an_op_stay_inside(name: str) -> None:
    guarded.check(*OPS_ON_CPU[name])


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("templates", [True, False], ids=["templates", "loops"])
@pytest.mark.parametrize("name", ragged.GRAPHS)
def test_cpu_kernels_of_ragged_sizes_stay_inside(name: str, templates: bool) -> None:
    graph = ragged.GRAPHS[name]()
    guarded.check(graph, ragged.feeds_of(graph), templates=templates)


@needs_models
@pytest.mark.parametrize("name", ["mnist8", "squeezenet1.0_fp16"])
def test_cpu_kernels_of_a_model_stay_inside(name: str) -> None:
    guarded.check_plan(*model_plan(name, guarded.DEVICE.target))


@pytest.mark.slow
@pytest.mark.sampled(slow=4)
@needs_models
@pytest.mark.parametrize("name", MORE)
def test_cpu_kernels_of_more_models_stay_inside(name: str) -> None:
    guarded.check_plan(*model_plan(name, guarded.DEVICE.target))


FAULTY = """
from jitcl.devices.cpu.native import *

def {name}(args, tid, nthreads):
    x = peek(args, 0)
    y = peek(args, 1)
    for i in range({first}, {end}):
        poke(y, i, peek(x, i{shift}))
"""


@pytest.mark.parametrize(("name", "first", "end", "shift", "found"), [
    ("sound", 0, 8, "", None),
    ("writes_behind", 0, 9, "", "stored outside"),
    ("writes_before", -1, 8, "", "stored outside"),
    ("reads_behind", 0, 8, " + 1", "outside its operands"),
    ("leaves_a_hole", 0, 7, "", "never written"),
])
def test_guard_zones_find_what_is_planted(name: str, first: int, end: int, shift: str,
                                          found: str | None) -> None:
    body = FAULTY.format(name=name, first=first, end=end, shift=shift)
    plan = Plan((TensorSpec("x", "i64", (8,), 0),), (TensorSpec("y", "i64", (8,), 1),),
                (KernelSource(name, body, "numba"),), (Step(name, name, (0, 1), writes=(1,)),),
                (BufferSpec("x", "i64", (8,), 64, "input"),
                 BufferSpec("y", "i64", (8,), 64, "output")), ())
    feeds = {"x": np.arange(8)}
    told = nullcontext() if found is None else pytest.raises(AssertionError, match=found)
    with told:
        guarded.check_plan(plan, feeds)

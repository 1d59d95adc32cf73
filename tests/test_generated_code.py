"""Generated kernels before other judges than the devices that run them: clang's front end,
Oclgrind's checks of every access, and guard zones around the buffers of the CPU.
"""

from __future__ import annotations

import pytest

from tests.generated import clang, oclgrind
from tests.generated.kernels import MODELS, TARGETS, model_kernels, op_kernels

needs_clang = pytest.mark.skipif(clang.CLANG is None, reason="clang is not installed")
needs_models = pytest.mark.skipif(not MODELS.is_dir(),
                                  reason="the folder of real models is not there")
QUICK = ("mnist8", "squeezenet1.0_fp16", "oww_embedding")
MORE = ("ultraface_rfb320", "yolox_nano", "selfie_segmentation", "super_resolution_espcn",
        "fns_candy_stdops", "hyperlpr_y5fu_320", "oww_melspectrogram", "minilm_l6_v2")
PRECISIONS = [(name, precision) for name, target in TARGETS.items()
              for precision in ("high", "low") if precision == "high" or target.fp16_arithmetic]

# -- clang -------------------------------------------------------------------------------------


@needs_clang
@pytest.mark.parametrize(("target", "precision"), PRECISIONS)
def test_kernels_of_the_op_table_pass_clang(target: str, precision: str) -> None:
    kernels = op_kernels(target, precision)
    assert len(kernels) > 300
    assert clang.objections(kernels, fp16=TARGETS[target].fp16_arithmetic) == ""


@needs_clang
@needs_models
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", QUICK)
def test_kernels_of_a_model_pass_clang(name: str, target: str) -> None:
    check_model(name, target)


@needs_clang
@needs_models
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MORE)
def test_kernels_of_more_models_pass_clang(name: str, target: str) -> None:
    check_model(name, target)


def check_model(name: str, target: str) -> None:
    fp16 = TARGETS[target].fp16_arithmetic
    for precision in ("high", "low"):
        assert clang.objections(model_kernels(name, target, precision), fp16=fp16) == ""


HALVES = "#ifdef cl_khr_fp16\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#endif\n"
KERNEL = HALVES + "__kernel void k(__global const float *x, __global {0} *y) {{ {1} }}"


@needs_clang
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

needs_oclgrind = pytest.mark.skipif(not oclgrind.LIBRARY.exists(),
                                    reason="oclgrind is not installed")
SIMULATED = [("ops", "gpu"), ("ops", "cpu"), ("graphs", "gpu"), ("graphs", "cpu")]


@needs_oclgrind
@pytest.mark.parametrize(("kind", "target"), SIMULATED)
def test_kernels_access_what_is_theirs(kind: str, target: str) -> None:
    check_simulated(kind, target)


@needs_oclgrind
@pytest.mark.slow
@pytest.mark.parametrize("target", [t for t in TARGETS if t not in ("gpu", "cpu")])
@pytest.mark.parametrize("kind", ["ops", "graphs"])
def test_kernels_of_more_devices_access_what_is_theirs(kind: str, target: str) -> None:
    check_simulated(kind, target)


def check_simulated(kind: str, target: str) -> None:
    found = oclgrind.objections([kind, target])
    assert len(found) >= 25
    assert {name: text[:2000] for name, text in found.items() if text} == {}


@needs_oclgrind
def test_oclgrind_finds_what_is_planted() -> None:
    wanted = {"sound": "", "race": "data race", "groups race": "data race",
              "read": "Invalid read", "write": "Invalid write",
              "unset": "depends on uninitialized value"}
    found = oclgrind.objections(["faults", "gpu"])
    assert found.keys() == wanted.keys()
    assert {name: wanted[name] in text and bool(wanted[name]) == bool(text)
            for name, text in found.items()} == dict.fromkeys(wanted, True)

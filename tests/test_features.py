"""The vocabulary of kernel features: what is read from hand-written lines, and from all kernels."""

from __future__ import annotations

import re

import pytest

from jitcl.target import features as vocabulary
from jitcl.target.features import GATED, PATTERNS, features_of
from tests.generated.kernels import TARGETS, model_plan, op_kernels
from tests.real_models import needs_models

LINES = [
    ("half h = (half)x[0];", {"half"}),
    ("y[0] = convert_half_rte(1.0f);", {"half"}),
    ("#pragma OPENCL EXTENSION cl_khr_fp16 : enable\ny[0] = x[0] * x[1];", {"half"}),
    ("__local half part[64];", {"half", "local"}),
    ("half4 v;", {"half", "vec4"}),
    ("__kernel void f(__global const half *restrict x, __global half* y)", {"half_storage"}),
    ("float v = vload_half(3, x);", {"half_storage"}),
    ("vstore_half16_rte(v, 0, y);", {"half_storage", "vec16"}),
    ("y[0] = half_exp(x[0]);", set()),
    ("#ifndef JITCL_TO_HALFX2\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
     "half2 jitcl_to_halfx2(float2 a)\n{\n    return (half2)((half)a.s0, (half)a.s1);\n}\n"
     "#endif\n*(__global half2 *)y = jitcl_to_halfx2(*(__global float2 *)x);",
     {"half_cast", "vec4"}),
    ("half2 h = (half2)(1); v = jitcl_from_halfx2(h);", {"half", "half_cast", "vec4"}),
    ("float16 v = vload16(0, x);", {"vec16"}),
    ("v = (float8)(0.0f);", {"vec8"}),
    ("vstore8(v, 0, y);", {"vec8"}),
    ("int2 v = convert_int2_rtz(w);", {"vec4"}),
    ("uint3 v;", {"vec4"}),
    ("y[0] = as_float4(w).x;", {"vec4"}),
    ("int vec16, v8, x16, jitcl_f16;", set()),
    ("v = jitcl_max_f32x16(v, w);", set()),             # its definition says float16
    ("double d = convert_double(x[0]);", {"fp64"}),
    ("long i = 0; y[0] = convert_long_rtz(x[0]);", {"int64"}),
    ("uchar c = x[0];", {"int8"}),
    ("int q = jitcl_uint4_i32(x[0], 4);", {"int4"}),
    ("__local float a[4]; barrier(CLK_LOCAL_MEM_FENCE);", {"local", "barrier"}),
    ("float4 v = read_imagef(x, 3);", {"image", "vec4"}),
    ("__read_only image1d_buffer_t x", {"image"}),
    ("int image = 1, local_size = 2;", set()),
    ("x = sub_group_reduce_add(x);", {"subgroup"}),
    ("y[0] = exp(x[0]) + fma(a, b, c);", {"call:exp", "call:fma"}),
    ("y[0] = jitcl_pow_f32(a, b);", set()),
    ("x += 1;    // half float16 barrier( __local uchar exp(", set()),
    ("/* half\n double */ int i;", set()),
    ('asm volatile("//sm_90a wgmma.fence;");   // half', {"assembly", "warpgroups"}),
]


@pytest.mark.parametrize(("line", "found"), LINES)
def test_features_of_a_line(line: str, found: set[str]) -> None:
    assert features_of(line) == found


def test_options_and_templates_are_features() -> None:
    found = features_of("int i;", ("-cl-opt-disable",), "gemm_opencl")
    assert found == {"option:-cl-opt-disable", "template:gemm_opencl"}


def test_what_is_gated_is_in_the_vocabulary() -> None:
    assert set(PATTERNS) >= GATED


KNOWN = {"if", "for", "while", "return", "sizeof", "barrier", "mem_fence", "get_global_id",
         "get_global_size", "get_local_id", "get_group_id", "read_imagef", "mul_hi",
         *(f"as_{t}" for t in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong",
                               "float", "double")),
         *(f"convert_{t}" for t in ("float", "double", "half", "int", "int_rtz", "long_rtz")),
         *(f"v{way}{n}" for way in ("load", "store", "load_half") for n in ("", 2, 4, 8, 16)),
         *(f"vstore_half{n}_rte" for n in ("", 2, 4, 8, 16))}
DEFINED = re.compile(
    r"\b(?:void|bool|u?(?:char|short|int|long)\d*|(?:float|half)\d*|double)\s+(\w+)\s*\(")


@pytest.mark.parametrize(("target", "precision"), [
    pytest.param(name, precision, marks=pytest.mark.slow if (name, precision) == ("cpu-fp16", "low")
                 else pytest.mark.long)
    for name, target in TARGETS.items() for precision in ("high", "low")
    if precision == "high" or target.fp16_arithmetic])
def test_the_op_table_uses_what_its_target_has(target: str, precision: str) -> None:
    kernels = op_kernels(target, precision)
    for kernel in kernels:
        check(kernel.body, kernel.options, target, low=precision == "low")
    assert any("half_storage" in features_of(k.body) for k in kernels)
    computes = any("half" in features_of(k.body) for k in kernels)
    assert computes == (TARGETS[target].fp16_arithmetic and precision == "low")


@pytest.mark.sampled(quick=2)
@needs_models
@pytest.mark.parametrize("target", ["gpu-fp16", "cpu"])
def test_models_use_what_their_target_has(target: str) -> None:
    for name in ("squeezenet1.0_fp16", "minilm_l6_v2"):
        for kernel in model_plan(name, TARGETS[target], "low")[0].kernels:
            check(kernel.body, kernel.options, target, low=True)


def check(body: str, options: tuple[str, ...], target: str, *, low: bool) -> None:
    """No feature that the target's schedules can't use, and no builtin without a name here."""
    text = re.sub(r"//[^\n]*|__attribute__\(\(.*?\)\)\)", "", body)
    found = features_of(body, options)
    on_cpu = TARGETS[target].device_type == "cpu"
    width = TARGETS[target].vector_width
    if ("local" in found) != ("barrier" in found):      # work-items that share global memory
        assert "local" not in found and "CLK_GLOBAL_MEM_FENCE" in body
    assert not on_cpu or "local" not in found
    assert "half" not in found or TARGETS[target].fp16_arithmetic
    assert "half_cast" not in found or TARGETS[target].fp16_arithmetic
    assert low or "half" not in found
    assert "fp64" not in found or TARGETS[target].fp64
    assert "vec16" not in found or 2 * width >= 16      # strided rows are read in pairs
    assert ("half_storage" in found) == bool(re.search(r"\bhalf \*|load_half|store_half", text))
    called = set(re.findall(r"(?<![\w.])([a-z]\w*)\s*\(", text)) - set(DEFINED.findall(text))
    assert called <= KNOWN | set(vocabulary._MATH), called - KNOWN

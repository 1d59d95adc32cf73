"""Probes of 16-bit floats: arithmetic, vectors, builtins, storage. NumPy's float16 is the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitcl.devices.opencl.probes.bench import Bench, Out, first_wrong, ulps
from jitcl.devices.opencl.probes.record import Probe, Verdict

PATTERNS = 4096
BUILTIN_ULPS = 4                    # the language allows 2 to 4
EXTENSION = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"

ARITHMETIC = EXTENSION + """
__kernel void half_arithmetic(__global const half *a, __global const half *b, __global half *y)
{
    int i = get_global_id(0), n = get_global_size(0);
    half p = a[i], q = b[i];
    y[i] = p + q;
    y[n + i] = p - q;
    y[2 * n + i] = p * q;
    y[3 * n + i] = p > q ? p : q;
    y[4 * n + i] = (half)3.0f * (half)2.5f + (half)3.0f;
}
"""
COMPUTED = ("a + b", "a - b", "a * b", "a > b ? a : b", "3 * 2.5 + 3")
CONVERTED = ("(half)convert_float(i)", "(half)x", "(float)a", "(half4)(float4)a")
CONVERSIONS = EXTENSION + """
__kernel void half_convert(__global const half *a, __global const float *x, __global half *y)
{
    int i = get_global_id(0), n = get_global_size(0);
    y[i] = (half)convert_float(i);
    y[n + i] = (half)x[i];
    y[2 * n + i] = (half)((float)a[i] * 0.5f);
    if (i % 4 == 0) {
        half4 h = *(__global const half4 *)(a + i);
        float4 f = (float4)((float)h.s0, (float)h.s1, (float)h.s2, (float)h.s3) * 0.5f;
        *(__global half4 *)(y + 3 * n + i) =
            (half4)((half)f.s0, (half)f.s1, (half)f.s2, (half)f.s3);
    }
}
"""
VECTORS = EXTENSION + """
__kernel void half_vectors(__global const half *a, __global const half *b, __global half *y)
{
    half4 p = vload4(0, a), q = vload4(0, b);
    vstore4(p * q + p, 0, y);
    vstore4(fma(p, q, (half4)(1.5f)), 1, y);
    vstore4(convert_half4(convert_float4(p) * 2.0f), 2, y);
}
"""
BUILTINS = ("exp", "log", "sqrt", "rsqrt", "tanh", "fabs", "floor", "exp2")
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {       # in float64
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh, "fabs": np.abs, "floor": np.floor, "exp2": np.exp2}
BUILTIN_CALLS = "".join(f"    y[{k} * n + i] = {name}(x);\n" for k, name in enumerate(BUILTINS))
BUILTIN_SOURCE = EXTENSION + """
__kernel void half_builtins(__global const half *a, __global half *y)
{
    int i = get_global_id(0), n = get_global_size(0);
    half x = a[i];
""" + BUILTIN_CALLS + "}\n"
STORAGE = """
__kernel void half_storage(__global const float *x, __global const half *h, __global half *y,
                           __global float *z)
{
    int i = get_global_id(0), n = get_global_size(0);
    vstore_half_rte(x[i], i, y);
    z[i] = vload_half(i, h);
    vstore_half4_rte(vload4(i, x), n / 4 + i, y);
    vstore4(vload_half4(i, h), n / 4 + i, z);
}
"""


def patterns(seed: int, count: int = PATTERNS) -> np.ndarray:
    """Random f16 bit patterns without subnormals, which a driver may flush; the ends of the range,
    infinities and NaN stand first.
    """
    bits = np.random.default_rng(seed).integers(0, 1 << 16, count, np.uint16)
    bits[:8] = (0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x0000, 0x8000, 0x3C00, 0xFBFF)
    subnormal = (bits & 0x7C00) == 0
    bits[subnormal] &= 0x8000
    return bits.view(np.float16)


def _arithmetic(bench: Bench, program: Any) -> Verdict:
    a, b = patterns(1), patterns(2)
    (y,) = bench.run(program, "half_arithmetic", PATTERNS, 0, a, b,
                     Out(len(COMPUTED) * PATTERNS, np.float16))
    rows = dict(zip(COMPUTED, y.reshape(len(COMPUTED), -1)))
    with np.errstate(all="ignore"):
        wanted = (a + b, a - b, a * b, np.where(a > b, a, b),
                  np.full(PATTERNS, 10.5, np.float16))
    wrong, how = _compared(rows, wanted, a, b)
    return Verdict(not wrong, wrong or f"3 * 2.5 + 3 = {float(rows['3 * 2.5 + 3'][0]):g} in half; "
                                       f"+ - * of {PATTERNS} random patterns {how}")


def _conversions(bench: Bench, program: Any) -> Verdict:
    a = patterns(1)
    x = np.random.default_rng(6).standard_normal(PATTERNS).astype(np.float32) * 100
    (y,) = bench.run(program, "half_convert", PATTERNS, 0, a, x,
                     Out(len(CONVERTED) * PATTERNS, np.float16))
    rows = dict(zip(CONVERTED, y.reshape(len(CONVERTED), -1)))
    with np.errstate(all="ignore"):
        halved = (a.astype(np.float32) * 0.5).astype(np.float16)
        wanted = (np.arange(PATTERNS).astype(np.float16), x.astype(np.float16), halved, halved)
    wrong, how = _compared(rows, wanted, a, x)
    return Verdict(not wrong, wrong or f"conversions from int, from float and to float, of "
                                       f"{PATTERNS} numbers {how}")


def _compared(rows: dict[str, np.ndarray], wanted: Sequence[np.ndarray], a: np.ndarray,
              b: np.ndarray) -> tuple[str, str]:
    """(the first difference, how close all are); rounding towards zero is allowed too."""
    most = 0
    for (what, got), exact in zip(rows.items(), wanted):
        apart = ulps(got, exact)
        most = max(most, int(apart.max()))
        if most > 1:
            i = int(apart.argmax())
            return (f"{what}: got {got[i]} for i = {i}, a = {a[i]}, b = {b[i]}, "
                    f"wanted {exact[i]}"), ""
    return "", "equal binary16 bit for bit" if most == 0 else "are within 1 ulp of binary16"


def _vectors(bench: Bench, program: Any) -> Verdict:
    a, b = np.array([1, -2, 3, 0.5], np.float16), np.array([2.5, 4, -1, 8], np.float16)
    (y,) = bench.run(program, "half_vectors", 1, 1, a, b, Out(12, np.float16))
    wrong = first_wrong(y, np.concatenate([a * b + a, a * b + np.float16(1.5), a * 2]))
    return Verdict(not wrong, wrong or "half4: a*b+c, fma, conversions are exact")


def _builtins(bench: Bench, program: Any) -> Verdict:
    a = np.abs(patterns(3, 512)[8:])
    a = np.where((a < 0.01) | (a > 10) | np.isnan(a), np.float16(0.7), a)
    (y,) = bench.run(program, "half_builtins", len(a), 0, a,
                     Out(len(a) * len(BUILTINS), np.float16))
    worst = {}
    for name, got in zip(BUILTINS, y.reshape(len(BUILTINS), -1)):
        exact = EXACT[name](a.astype(np.float64)).astype(np.float16)
        apart = ulps(got, exact)
        worst[name] = int(apart.max())
        if worst[name] > BUILTIN_ULPS:
            i = int(apart.argmax())
            return Verdict(False, f"{name}({a[i]}) is {got[i]}, wanted {exact[i]}")
    told = ", ".join(f"{name} {n}" for name, n in worst.items())
    return Verdict(True, f"largest error in ulp: {told}")


def _storage(bench: Bench, program: Any) -> Verdict:
    """Rounding to nearest even both ways, ties, overflow, subnormals, bit for bit."""
    random = np.random.default_rng(4)
    x = random.standard_normal(PATTERNS).astype(np.float32) * np.float32(10) ** random.integers(
        -9, 6, PATTERNS)
    x[:10] = (1 / 3, 65504, 65519.99, 65520, -1e9, 2049, 2051, 6e-8, 2.9e-8, np.inf)
    x = x.astype(np.float32)
    h = np.random.default_rng(5).integers(0, 1 << 16, PATTERNS, np.uint16).view(np.float16)
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16)
    n = PATTERNS // 4                  # by ones the first quarter, by fours all
    y, z = bench.run(program, "half_storage", n, 0, x, h, Out(n + PATTERNS, np.float16),
                     Out(n + PATTERNS))
    stored, loaded = np.concatenate([wanted[:n], wanted]), np.concatenate([h[:n], h])
    same = y.view(np.uint16) == stored.view(np.uint16)
    if not same.all():
        i = int(np.flatnonzero(~same)[0])
        name = "vstore_half_rte" if i < n else "vstore_half4_rte"
        return Verdict(False, f"{name} of {x[i % n if i < n else i - n]:g} gives {y[i]}, wanted "
                              f"{stored[i]} ({(~same).sum()} of {len(y)} differ)")
    same = (z == loaded.astype(np.float32)) | (np.isnan(z) & np.isnan(loaded))
    if not same.all():
        i = int(np.flatnonzero(~same)[0])
        return Verdict(False, f"vload_half{'' if i < n else '4'} of {loaded[i]} gives {z[i]:g}")
    return Verdict(True, f"{PATTERNS} random numbers are rounded to nearest even bit for bit, "
                         "by ones and by fours; subnormals are kept")


HALVES = (
    Probe("half_storage", "floats are stored as halves, rounded to nearest even, and read back",
          _storage, STORAGE, features=("half_storage",),
          present={"fp16_storage": True},
          absent={"fp16_storage": False, "soft_half": True}),
    Probe("half", "half arithmetic computes as binary16 does", _arithmetic, ARITHMETIC,
          features=("half",), present={"fp16_arithmetic": True},
          absent={"fp16_arithmetic": False}),
    Probe("half_convert", "conversions to and from halves, by casts", _conversions,
          CONVERSIONS, features=("half", "half_cast"), wrong={"fp16_arithmetic": False},
          needs=("half",)),
    Probe("half_builtins", "math functions of halves", _builtins, BUILTIN_SOURCE,
          absent={"half_builtins": False}, needs=("half",)),
    Probe("half_vectors", "arithmetic of half4", _vectors, VECTORS, needs=("half",)),
)

"""Probes of arithmetic: doubles, vectors by width, multiply-add, integers of 8 and 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.devices.opencl.platform import Found
from jitcl.devices.opencl.probes.bench import Bench, Out, Refused, extensions, first_wrong
from jitcl.devices.opencl.probes.record import Probe, Verdict

FMA_LOOPS = 100_000
SLOW_LOOPS = 500                    # where these take TOO_SLOW seconds, in a simulator
ROUNDS = 6                          # of both, before fma() is called slow; of milliseconds
TOO_SLOW = 0.002
SLOW_FMA = 2.0                      # a library call takes 3 to 10 times as long as a*b+c
FAST_MAD = 0.8                      # of the others' time: an instruction where those are two
MAD_LOOPS = 20
CHAIN = (1.0, 0.9, 0.8, 0.7, 0.5)   # a * b + c over and over: a (four lanes), then b
LANES = 16                          # values that each vector probe computes

DOUBLES = """
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
__kernel void fp64(__global const double *a, __global const double *b, __global double *y)
{
    int i = get_global_id(0), n = get_global_size(0);
    y[i] = a[i] * b[i];
    y[n + i] = a[i] + b[i];
    y[2 * n + i] = sqrt(fabs(a[i]));
}
"""
WIDTH = """
__kernel void vec@(__global const float *x, __global float *y)
{
    int i = get_global_id(0), n = get_global_size(0);
    float@ a = vload@(i, x), b = vload@(n + i, x), c = vload@(2 * n + i, x), s = (float@)(0.0f);
    vstore@(a * b + c, i, y);
    vstore@(fma(a, b, c), n + i, y);
    vstore@(mad(a, b, c), 2 * n + i, y);
    vstore@(exp(a), 3 * n + i, y);
    vstore@(select(b, a, isgreater(a, b)), 4 * n + i, y);
    for (int k = 0; k < 8; ++k)
        s = fma(vload@(n + i, x), (float@)(x[k]), s);
    vstore@(s, 5 * n + i, y);
}
"""
MULTIPLY_ADD = """
#define JITCL_PROBE_MAC_0(a, b, c) ((a) * (b) + (c))
#define JITCL_PROBE_MAC_1(a, b, c) fma(a, b, c)
#define JITCL_PROBE_MAC_2(a, b, c) mad(a, b, c)
#define JITCL_PROBE_LOOP(N) \\
__kernel void fma_##N(__global const float *x, __global float *y, int loops) \\
{ \\
    float4 a = vload4(0, x), b = (float4)(x[4]), c = (float4)(0.0f), d = a, e = b, f = a + b; \\
    for (int i = 0; i < loops; ++i) { \\
        c = JITCL_PROBE_MAC_##N(c, b, a); d = JITCL_PROBE_MAC_##N(d, b, a); \\
        e = JITCL_PROBE_MAC_##N(e, b, a); f = JITCL_PROBE_MAC_##N(f, b, a); \\
    } \\
    vstore4(c + d + e + f, 0, y); \\
}
JITCL_PROBE_LOOP(0)
JITCL_PROBE_LOOP(1)
JITCL_PROBE_LOOP(2)
"""
BYTES = """
__kernel void int8_bytes(__global const char *a, __global const uchar *b, __global float *y,
                         __global char *z)
{
    int i = get_global_id(0), n = get_global_size(0);
    char4 p = vload4(i, a);
    uchar4 q = vload4(i, b);
    vstore4(convert_float4(p) * convert_float4(q), i, y);
    y[4 * n + i] = (float)a[i] - (float)b[i];
    vstore4(convert_char4_sat_rte(convert_float4(q) * 1.5f - 100.0f), i, z);
}
"""
# as kernels over weights of 4 bits unpack them: the low nibble first, signed or with a zero point
NIBBLES = """
float4 jitcl_int4_probe(uchar2 p)
{
    return convert_float4((uchar4)(p.x & 15, p.x >> 4, p.y & 15, p.y >> 4));
}
char jitcl_int4_shifted(uchar a, int b)
{
    return (char)(((a >> b & 15) ^ 8) - 8);
}
__kernel void int4_nibbles(__global const uchar *w, __global const float *x, __global float *y)
{
    int i = get_global_id(0), n = get_global_size(0);
    float4 v = jitcl_int4_probe(vload2(i, w)) - 8.0f;
    vstore4(v, i, y);
    uchar p = w[i];
    y[4 * n + i] = (float)((char)(p << 4) >> 4) + 32.0f * (float)((char)p >> 4);
    float s = 0.0f;
    for (int k = 0; k < 8; ++k)
        s += dot(jitcl_int4_probe(vload2(k, w)) - 8.0f, vload4(k, x));
    y[5 * n + i] = s;
    y[6 * n + i] = (float)jitcl_int4_shifted(w[i / 2], i % 2 * 4);
}
"""
PACKED_DOT = """
__kernel void integer_dot(__global const uint *a, __global const uint *b, __global int *y)
{
    int i = get_global_id(0);
    y[i] = CALL;
}
"""
DOT_FORMS = (                       # (how it is called, language, text)
    ("dot_4x8packed_ss_int", "-cl-std=CL3.0", "dot_4x8packed_ss_int(a[i], b[i])"),
    ("dot_4x8packed_ss_int", "-cl-std=CL2.0", "dot_4x8packed_ss_int(a[i], b[i])"),
    ("arm_dot", "-cl-std=CL1.2", "arm_dot(as_char4(a[i]), as_char4(b[i]))"),
)


def _doubles(bench: Bench, program: Any) -> Verdict:
    a, b = np.random.default_rng(1).standard_normal((2, 256))
    (y,) = bench.run(program, "fp64", 256, 0, a, b, Out(768, np.float64))
    wrong = first_wrong(y, np.concatenate([a * b, a + b, np.sqrt(np.abs(a))]), 1e-15)
    return Verdict(not wrong, wrong or "a * b, a + b and sqrt of 256 random doubles are right")


def _width(width: int) -> Any:
    def judge(bench: Bench, program: Any) -> Verdict:
        items = max(1, LANES // width)
        n = items * width
        a, b, c = x = np.random.default_rng(2).uniform(-2, 2, (3, n)).astype(np.float32)
        (y,) = bench.run(program, f"vec{width}", items, 1, x.reshape(-1), Out(6 * n))
        exact = a.astype(np.float64) * b + c
        sums = (a[:8].astype(np.float64).sum() * b if n >= 8 else 0 * b)
        wanted = np.concatenate([exact, exact, exact, np.exp(a.astype(np.float64)),
                                 np.maximum(a, b), sums])
        wrong = first_wrong(y, wanted, 3e-6)
        return Verdict(not wrong, wrong or f"a*b+c, fma, mad, exp and select of float{width} "
                                           "are right")
    return judge


def _slowdown(bench: Bench, program: Any, one: str, other: str, enough: float
              ) -> tuple[float, str]:
    """How many times as long a kernel takes as another, and that as text. Timed in turns, for on a
    busy machine either may be held up, until it is less than `enough`.
    """
    x = bench.buffer(np.array(CHAIN, np.float32))
    y = bench.buffer(np.zeros(16, np.float32))
    slow = bench.seconds(program, other, 1, 1, x, y, np.int32(SLOW_LOOPS), launches=4) > TOO_SLOW
    loops = np.int32(SLOW_LOOPS if slow else FMA_LOOPS)
    first = second = slowdown = float("inf")
    for n in range(ROUNDS):
        second = min(second, bench.seconds(program, other, 1, 1, x, y, loops))
        first = min(first, bench.seconds(program, one, 1, 1, x, y, loops))
        slowdown = first / max(second, 1e-9)
        if n and slowdown < enough:
            break
    return slowdown, f"{slowdown:.2f} times as long as"


def _fma(bench: Bench, program: Any) -> Verdict:
    slowdown, text = _slowdown(bench, program, "fma_1", "fma_0", SLOW_FMA)
    return Verdict(slowdown < SLOW_FMA, f"fma() takes {text} a*b+c")


def _mad(bench: Bench, program: Any) -> Verdict:
    """mad() rounds as the device likes: taken where it is right, and the others are slower."""
    *a, b = (np.float64(v) for v in CHAIN)
    want = np.zeros(4)
    for start in (0.0, np.array(a), b, np.array(a) + b):
        value = np.broadcast_to(start, 4)
        for _ in range(MAD_LOOPS):
            value = value * b + a
        want = want + value
    x = np.array(CHAIN, np.float32)
    (y,) = bench.run(program, "fma_2", 1, 1, x, Out(4), np.int32(MAD_LOOPS))
    wrong = first_wrong(y, want, 1e-5)
    if wrong:
        return Verdict(False, wrong)
    told = []
    for other, name in (("fma_0", "a*b+c"), ("fma_1", "fma()")):
        slowdown, text = _slowdown(bench, program, "fma_2", other, FAST_MAD)
        told.append(f"{text} {name}")
        if slowdown >= FAST_MAD:
            break
    return Verdict(slowdown < FAST_MAD, f"mad() takes {' and '.join(told)}")


def _bytes(bench: Bench, program: Any) -> Verdict:
    random = np.random.default_rng(3)
    a, b = random.integers(-128, 128, 256, np.int8), random.integers(0, 256, 256, np.uint8)
    y, z = bench.run(program, "int8_bytes", 64, 0, a, b, Out(320), Out(256, np.int8))
    wide = a.astype(np.float64) * b
    wanted = np.concatenate([wide, a[:64].astype(np.float64) - b[:64]])
    rounded = np.clip(np.rint(b * 1.5 - 100.0), -128, 127)
    wrong = first_wrong(y, wanted) or first_wrong(z, rounded)
    return Verdict(not wrong, wrong or "loads by ones and fours, conversions to float and back "
                                       "with saturation are exact")


def _nibbles(bench: Bench, program: Any) -> Verdict:
    random = np.random.default_rng(4)
    w = random.integers(0, 256, 128, np.uint8)
    x = random.integers(-8, 8, 32).astype(np.float32)
    (y,) = bench.run(program, "int4_nibbles", 64, 0, w, x, Out(448))
    values = np.stack([w & 15, w >> 4], axis=1).reshape(-1).astype(np.float64) - 8
    low, high = (w[:64].astype(np.int8) << 4) >> 4, w[:64].astype(np.int8) >> 4
    wanted = np.concatenate([values, low + 32.0 * high, np.full(64, values[:32] @ x),
                             np.where(values[:64] < 0, values[:64] + 8, values[:64] - 8)])
    wrong = first_wrong(y, wanted)
    return Verdict(not wrong, wrong or "nibbles are unpacked by twos and fours, signed and not, "
                                       "and summed exactly")


def _packed_dot(bench: Bench, _: Any) -> Verdict:
    a, b = np.random.default_rng(5).integers(-128, 128, (2, 256), np.int8)
    wanted = (a.astype(np.int64) * b).reshape(-1, 4).sum(axis=1)
    refusal = ""
    for name, language, text in DOT_FORMS:
        try:
            program = bench.build(PACKED_DOT.replace("CALL", text), language)
            (y,) = bench.run(program, "integer_dot", 64, 0, a.view(np.uint32), b.view(np.uint32),
                             Out(64, np.int32))
        except Refused as error:
            refusal = refusal or str(error)
            continue
        wrong = first_wrong(y, wanted)
        return Verdict(not wrong, wrong or f"{name} ({language[1:]}): 64 sums of four products "
                                           "are exact")
    raise Refused(refusal)


def _no_dot(found: Found) -> str:
    listed = extensions(found) & {"cl_khr_integer_dot_product", "cl_arm_integer_dot_product_int8"}
    return "" if listed else "no extension for integer dot products is listed"


NUMBERS = (
    Probe("fp64", "doubles compute", _doubles, DOUBLES, features=("fp64",),
          present={"fp64": True}, absent={"fp64": False}),
    Probe("vec16", "arithmetic of float16", _width(16), WIDTH.replace("@", "16"),
          features=("vec16",), present={"max_vector_width": 16}, absent={"max_vector_width": 8}),
    Probe("vec8", "arithmetic of float8", _width(8), WIDTH.replace("@", "8"),
          features=("vec8",), absent={"max_vector_width": 4}),
    Probe("vec4", "arithmetic of float4", _width(4), WIDTH.replace("@", "4"),
          features=("vec4",), absent={"max_vector_width": 1}),
    Probe("fma", "fma() is about as fast as a*b+c", _fma, MULTIPLY_ADD,
          present={"multiply_add": "fma"}, absent={"multiply_add": "plain"}),
    Probe("mad", "mad() is right, and faster than both", _mad, MULTIPLY_ADD,
          present={"multiply_add": "mad"}),
    Probe("int8", "bytes are loaded and converted", _bytes, BYTES, features=("int8",),
          absent={"packed_weights": False}),
    Probe("int4", "weights of 4 bits are unpacked", _nibbles, NIBBLES, features=("int4",),
          absent={"packed_weights": False}),
    Probe("integer_dot", "dot products of packed bytes", _packed_dot,
          skip=_no_dot),
)

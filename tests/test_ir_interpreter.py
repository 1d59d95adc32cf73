"""The NumPy interpreter of kernels, against NumPy and against a plain loop over scalars."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitcl import dtypes
from jitcl.errors import InputError, JitclError
from jitcl.ir import expr as E
from jitcl.ir import interpreter
from jitcl.ir.expr import Expr
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.kernel import Accum, Assign, For, Kernel, Let, Stmt, Store
from jitcl.ir.parser import parse_kernel
from jitcl.ir.scalar import SCALARS
from tests import strategies


def run(text: str, **arrays: Any) -> np.ndarray:
    """Runs a kernel whose out buffer is y; returns y."""
    kernel = parse_kernel(text)
    y = np.full(kernel.buffer("y").shape, 77, dtypes.to_numpy(kernel.buffer("y").dtype))
    run_kernel(kernel, {**{k: np.asarray(v) for k, v in arrays.items()}, "y": y})
    return y


# ---- against a plain loop over scalars

def plain(kernel: Kernel, flat: dict[str, np.ndarray]) -> None:
    """Every statement one by one, on NumPy scalars: what a kernel means."""
    env: dict[str, Any] = {}

    def value(e: Expr) -> Any:
        t = dtypes.to_numpy(e.dtype)
        if e.op == "const":
            return np.array(e.value, t)
        if e.op == "var":
            return env[e.value]
        if e.op == "load":
            if e.guard is not None and not value(e.guard):
                return value(e.other)        # type: ignore[arg-type]
            return flat[e.value][tuple(int(value(i)) for i in e.indices)]
        args = [np.asarray(value(a)) for a in e.args]
        if e.op == "cast":
            return dtypes.converted(args[0], e.dtype)
        return np.asarray(SCALARS[e.op].fn(*args)).astype(t)

    def block(body: tuple[Stmt, ...]) -> None:
        for s in body:
            if isinstance(s, For):
                for i in range(s.extent):
                    env[s.var.value] = np.int64(i)
                    block(s.body)
            elif isinstance(s, Let):
                env[s.var.value] = value(s.value)
            elif isinstance(s, Assign):
                found = [value(e) for e in s.values]
                env.update(zip((v.value for v in s.vars), found))
            elif isinstance(s, Accum):
                t = dtypes.to_numpy(s.var.dtype)
                total = SCALARS[s.combine].fn(env[s.var.value], value(s.value))
                env[s.var.value] = np.asarray(total).astype(t)
            elif isinstance(s, Store) and (s.guard is None or value(s.guard)):
                flat[s.buffer][tuple(int(value(i)) for i in s.indices)] = value(s.value)

    with np.errstate(all="ignore"):
        block(kernel.body)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.kernels(), st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 1 << 20]))
def test_equals_the_plain_loop(kernel: Kernel, seed: int, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {}
    for b in kernel.buffers:
        x = rng.uniform(-9, 9, b.shape)
        arrays[b.name] = (x > 0) if b.dtype == "bool" else dtypes.converted(
            np.abs(x) if b.dtype[0] == "u" else x, b.dtype)
    want = {k: v.copy() for k, v in arrays.items()}
    plain(kernel, want)
    old = interpreter.CHUNK, interpreter._CACHED, interpreter._WIDE
    interpreter.CHUNK, interpreter._CACHED, interpreter._WIDE = chunk, chunk, chunk * 2
    try:
        run_kernel(kernel, arrays)
    finally:
        interpreter.CHUNK, interpreter._CACHED, interpreter._WIDE = old
    for name, array in arrays.items():
        same = (array == want[name]) | ((array != array) & (want[name] != want[name]))
        assert same.all(), (array, want[name])


# ---- against NumPy

CONV = """kernel @conv(in x: f32[16,32,32], in w: f32[16,16,3,3], out y: f32[16,32,32]) {
  for o < 16 @parallel { for h < 32 @parallel { for v < 32 @parallel {
    let acc: f32 = 0.0
    for c < 16 @loop { for i < 3 @loop { for j < 3 @loop {
      acc add= w[o, c, i, j] * x[c, h + i - 1, v + j - 1
                 if h + i >= 1 and h + i < 33 and v + j >= 1 and v + j < 33 else 0.0]
    } } }
    y[o, h, v] = max(acc, 0.0)
  } } }
}"""


def test_conv_in_a_second() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 32, 32)).astype(np.float32)
    w = rng.normal(size=(16, 16, 3, 3)).astype(np.float32)
    start = time.process_time()
    y = run(CONV, x=x, w=w)
    assert time.process_time() - start < 1.0
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    want = np.zeros((16, 32, 32), np.float32)
    for c in range(16):                      # the same order, in float32: equal to the last bit
        for i in range(3):
            for j in range(3):
                want += padded[c, i:i + 32, j:j + 32] * w[:, c, i, j, None, None]
    assert np.array_equal(y, np.maximum(want, 0))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "u8"])
def test_sums_are_rounded_after_each_term(dtype: str) -> None:
    x = np.random.default_rng(1).uniform(0, 9, 5000).astype(dtypes.to_numpy(dtype))
    y = run(f"""kernel @sum(in x: {dtype}[5000], out y: {dtype}[]) {{
        let acc: {dtype} = 0
        for a < 50 @loop {{ for b < 100 @loop {{ acc add= x[a * 100 + b] }} }}
        y[] = acc }}""", x=x)
    total = x.dtype.type(0)
    with np.errstate(over="ignore"):
        for v in x:
            total = x.dtype.type(total + v)
    assert y == total


def test_softmax_rows() -> None:
    x = np.random.default_rng(2).normal(size=(300, 70)).astype(np.float32)
    y = run("""kernel @softmax(in x: f32[300,70], out y: f32[300,70]) {
        for i < 300 @group {
          let m: f32 = -inf
          let s: f32 = 0.0
          for k < 70 @loop { m max= x[i, k] }
          for k < 70 @loop { let e: f32 = exp(x[i, k] - m); s add= e }
          for j < 70 @lane { y[i, j] = exp(x[i, j] - m) / s }
        } }""", x=x)
    e = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6, atol=0)


def test_online_recurrence_runs_in_order() -> None:
    x = np.arange(1, 9, dtype=np.float32)
    y = run("""kernel @scan(in x: f32[8], out y: f32[8]) {
        let s: f32 = 0.0
        for k < 8 @loop { s add= x[k]; y[k] = s } }""", x=x)
    assert np.array_equal(y, np.cumsum(x))


def test_guarded_loads_never_leave_the_buffer() -> None:
    y = run("""kernel @pad(in x: i32[3], out y: i32[7]) {
        for i < 7 @parallel { y[i] = x[i - 2 if i >= 2 and i < 5 else -1] } }""",
            x=np.array([5, 6, 7], np.int32))
    assert y.tolist() == [-1, -1, 5, 6, 7, -1, -1]


def test_guarded_stores_and_the_last_of_many() -> None:
    y = run("""kernel @k(in x: i32[6], out y: i32[2]) {
        for i < 6 @loop { y[i % 2] = x[i] if i < 5 } }""", x=np.arange(6, dtype=np.int32))
    assert y.tolist() == [4, 3]


def test_casts_round_to_nearest_even() -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65520.0, 1e-8], np.float32)
    y = run("""kernel @k(in x: f32[4], out y: f32[4]) {
        for i < 4 @parallel { y[i] = f32(f16(x[i])) } }""", x=x)
    assert y.tolist() == [1.0, 1 + 2**-9, np.inf, 0.0]
    y = run("""kernel @k(in x: f32[4], out y: f32[4]) {
        for i < 4 @parallel { y[i] = f32(bf16(x[i])) } }""", x=x)
    assert y.tolist()[:2] == [1.0, 1.0]


def test_strided_outputs_are_filled() -> None:
    kernel = parse_kernel("kernel @k(out y: f32[3,2]) "
                          "{ for i < 3 @group { for j < 2 @lane { y[i, j] = f32(i * 10 + j) } } }")
    y = np.zeros((2, 3), np.float32).T
    run_kernel(kernel, {"y": y})
    assert y.tolist() == [[0, 1], [10, 11], [20, 21]]


def test_integer_division_and_powers() -> None:
    a, b = (v.reshape(-1).astype(np.int32) for v in np.mgrid[-5:6, -3:4])
    for op, want in {
        "div": [int(p / q) if q else None for p, q in zip(a.tolist(), b.tolist())],
        "floordiv": [p // q if q else None for p, q in zip(a.tolist(), b.tolist())],
        "mod": [p % q if q else None for p, q in zip(a.tolist(), b.tolist())],
        "pow": [int(p ** q) if p or q >= 0 else None for p, q in zip(a.tolist(), b.tolist())],
    }.items():
        call = {"div": "a[i] / b[i]", "mod": "a[i] % b[i]"}.get(op, f"{op}(a[i], b[i])")
        y = run(f"""kernel @k(in a: i32[77], in b: i32[77], out y: i32[77]) {{
            for i < 77 @parallel {{ y[i] = {call} }} }}""", a=a, b=b)
        assert all(w is None or w == g for w, g in zip(want, y.tolist())), op


# ---- errors

def test_out_of_bounds_is_an_error() -> None:
    with pytest.raises(JitclError, match=r"'y\[i\] = x\[i - 1\]' reaches index -1 of axis 0"):
        run("kernel @k(in x: f32[4], out y: f32[4]) { for i < 4 @loop { y[i] = x[i - 1] } }",
            x=np.zeros(4, np.float32))


def test_wrong_arrays_are_errors() -> None:
    kernel = parse_kernel("kernel @k(in x: f32[4], out y: f32[4]) { y[0] = x[0] }")
    x = np.zeros(4, np.float32)
    with pytest.raises(InputError, match="no array for buffer 'y'; got x"):
        run_kernel(kernel, {"x": x})
    with pytest.raises(InputError, match=r"buffer 'x' is float32\[4\], got float64\[4\]"):
        run_kernel(kernel, {"x": np.zeros(4), "y": x})
    frozen = x.copy()
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="out buffer 'y' is read-only"):
        run_kernel(kernel, {"x": x, "y": frozen})


def test_expressions_are_interned_with_their_dtype() -> None:
    assert E.const(1, "i32") is not E.const(1, "i64")

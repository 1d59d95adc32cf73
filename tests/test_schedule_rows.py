"""Rows that a work-group's lanes share: as vectors, read once, or through tiles in local memory."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.ir.parser import parse_kernel
from tests.test_schedule_gpu import H200, compare, scheduled

KEPT = """
kernel @k(in x: f32[8,N], in b: f32[N], out y: f32[8,N]) {
  for i < 8 @parallel {
    let acc: f32 = 0.0
    for r < N @loop { acc add= x[i, r] }
    let top: f32 = -inf
    for s < N @loop { top max= x[i, s] * acc }
    for j < N @parallel { y[i, j] = (x[i, j] - top) * b[j] }
  }
}"""


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("length", "lanes"), [
    (384, 32), (768, 64), pytest.param(4096, 256, marks=pytest.mark.long)])
def test_a_row_of_vectors_is_read_once(length: int, lanes: int, dtype: str) -> None:
    text = KEPT.replace("N", str(length))
    if dtype == "f16":
        text = text.replace("in x: f32", "in x: f16").replace("x[i, r]", "f32(x[i, r])").replace(
            "x[i, s]", "f32(x[i, s])").replace("x[i, j]", "f32(x[i, j])")
    target = dataclasses.replace(H200, fp16_arithmetic=False)
    found = scheduled(text, target)
    assert f"for lane < {lanes} @lane" in found and found.count("x[") == 1 and "row0[" in found
    x = np.random.default_rng(1).standard_normal((8, length)).astype(dtypes.to_numpy(dtype))
    b = np.random.default_rng(2).random(length, np.float32)
    compare(parse_kernel(text), {"x": x, "b": b}, target)


@pytest.mark.parametrize(("length", "lanes", "width"), [
    (512, 128, 4), (768, 64, 4), (2048, 256, 8)])
def test_a_row_of_halves_is_read_by_eight(length: int, lanes: int, width: int) -> None:
    text = KEPT.replace("N", str(length)).replace(": f32[", ": f16[")
    for name, index in (("x", "i, r"), ("x", "i, s"), ("x", "i, j"), ("b", "j")):
        text = text.replace(f"{name}[{index}]", f"f32({name}[{index}])")
    text = text.replace("= (f32", "= f16((f32").replace("f32(b[j])", "f32(b[j]))")
    target = dataclasses.replace(H200, fp16_arithmetic=False)
    found = scheduled(text, target)
    assert f"for lane < {lanes} @lane" in found and found.count("x[") == 1
    assert f"< {width} @vec" in found and f"< {12 - width} @vec" not in found
    x = np.random.default_rng(1).standard_normal((8, length)).astype(np.float16)
    b = np.random.default_rng(2).random(length, np.float32).astype(np.float16)
    compare(parse_kernel(text), {"x": x, "b": b}, target)


@pytest.mark.parametrize("change", [("N", "100"), ("N", "65536"), ("x[i, s]", "x[i, s % 7]")])
def test_what_is_no_row_of_vectors(change: tuple[str, str]) -> None:
    assert "@vec" not in scheduled(KEPT.replace(*change).replace("N", "768"))


ACROSS = """
kernel @k(in x: f32[B,C,P], in z: f32[B,P,C], out y: f32[B,P,C]) {
  for n < B @parallel { for p < P @parallel {
    let acc: f32 = 0.0
    for r < C @loop { acc add= x[n, r, p] + z[n, p, r] }
    let top: f32 = -inf
    for s < C @loop { top max= x[n, s, p] * acc }
    for j < C @parallel { y[n, p, j] = x[n, j, p] + z[n, p, j] - top }
  } }
}"""


def across(batch: int, channels: int, pixels: int, dtype: str = "f32") -> str:
    text = ACROSS.replace("B", str(batch)).replace("C", str(channels)).replace("P", str(pixels))
    return text if dtype == "f32" else text.replace("in x: f32", "in x: f16").replace(
        "x[n, r, p]", "f32(x[n, r, p])").replace("x[n, s, p]", "f32(x[n, s, p])").replace(
        "x[n, j, p]", "f32(x[n, j, p])")


def test_rows_across_memory_come_through_a_tile() -> None:
    found = scheduled(across(3, 96, 49))
    assert found.count("x[") == 1 and found.startswith("""\
  for n < 3 @group {
    for p_tile < 7 @group {
      for row < 8 @lane {
        for lane < 32 @lane {
          for brought < 96 @loop from row * 4 + floordiv(lane, 8) by 32 {
            tile0[lane % 8, brought] = \
x[n * 4704 + brought * 49 + min(p_tile * 8 + lane % 8, 48)]
          }
          barrier
          let acc: f32 = 0.0
""")
    assert "if p_tile * 8 + row <= 48" in found


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("shape", "tiled"), [
    ((2, 40, 9), True), ((1, 100, 16), True), ((1, 40, 7), False), ((1, 1500, 9), False)])
def test_rows_across_memory_of_any_shape(shape: tuple[int, int, int], tiled: bool, dtype: str
                                         ) -> None:
    target = dataclasses.replace(H200, fp16_arithmetic=False)
    text, (batch, channels, pixels) = across(*shape, dtype), shape
    assert ("tile0[" in scheduled(text, target)) == tiled
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, channels, pixels)).astype(dtypes.to_numpy(dtype))
    z = rng.standard_normal((batch, pixels, channels), np.float32)
    compare(parse_kernel(text), {"x": x, "z": z}, target)
    small = dataclasses.replace(target, max_work_group=128)
    assert "tile0[" not in scheduled(text, small)


@pytest.mark.parametrize(("length", "tiled"), [(96, True), (256, True), (260, False)])
def test_short_rows_come_through_a_tile_eight_at_a_time(length: int, tiled: bool) -> None:
    text = KEPT.replace("N", str(length)).replace("[8,", "[11,").replace("i < 8", "i < 11")
    assert ("tile0[" in scheduled(text)) == tiled
    rng = np.random.default_rng(1)
    compare(parse_kernel(text), {"x": rng.standard_normal((11, length), np.float32),
                                 "b": rng.random(length, np.float32)}, H200)

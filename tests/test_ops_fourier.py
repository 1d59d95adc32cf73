"""DFT, STFT and MelWeightMatrix beside NumPy's transforms and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitcl.errors import JitclError, ShapeError, TypeError_
from jitcl.frontends.onnx import import_model, load
from tests import devices
from tests.one_node import by_jitcl, by_reference, one_node

Array = np.ndarray[Any, Any]
DEVICES = tuple(d for d in devices.present() if d != "reference")
pytestmark = pytest.mark.in_turn


def signal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def numbers(z: Array) -> Array:
    return np.stack([z.real, z.imag], -1)


def dft(x: Array, device: str = "cpu", axis: int | None = None, length: int | None = None,
        **attrs: Any) -> Array:
    feeds: dict[str, Array | None] = {
        "x": x, "n": None if length is None else np.array(length, np.int64),
        "axis": None if axis is None else np.array(axis, np.int64)}
    constants = tuple(k for k in ("n", "axis") if feeds[k] is not None)
    return by_jitcl(one_node("DFT", feeds, constants=constants, **attrs), feeds, device)[0]


def assert_near(got: Array, want: Array, rtol: float = 2e-6) -> None:
    """Within `rtol` of the largest value: what rounding of sums of that size comes to."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=rtol * np.abs(want).max())


@pytest.mark.sampled(quick=2, slow=2)
@pytest.mark.parametrize(("n", "device"), [
    *((n, "cpu") for n in (1, 400, 512)),
    *(pytest.param(n, "cpu", marks=pytest.mark.slow) for n in (997, 1536)),
    *((1031, device) for device in DEVICES)])
def test_lengths_with_and_without_factors(n: int, device: str) -> None:
    """1031 is a prime too long for one table."""
    x = signal(2, n, 2)
    assert_near(dft(x, device), numbers(np.fft.fft(x[..., 0] + 1j * x[..., 1])))


@pytest.mark.parametrize("n", [7, 400])
def test_inverse_gives_the_signal_back(n: int) -> None:
    x = signal(3, n, 2)
    assert_near(dft(dft(x), inverse=1), x)


@pytest.mark.parametrize("n", [8, 9, pytest.param(1024, marks=pytest.mark.slow), 1025])
def test_one_sided_pairs(n: int) -> None:
    """Even and odd lengths; the imaginary part of bins that are real is not looked at."""
    x = signal(2, n, 1)
    half = dft(x, onesided=1)
    assert_near(half, numbers(np.fft.rfft(x[..., 0])))
    assert_near(dft(half, length=n, onesided=1, inverse=1), x)
    half[:, 0, 1] = 3.0
    assert_near(dft(half, length=n, onesided=1, inverse=1), x)


@pytest.mark.parametrize(("axis", "length"), [(0, None), (1, 3), (-3, 12), (2, 800)])
def test_any_axis_cut_or_filled(axis: int, length: int | None) -> None:
    x = signal(5, 6, 7, 2)
    want = numbers(np.fft.fft(x[..., 0] + 1j * x[..., 1], length, axis % 4))
    assert_near(dft(x, axis=axis, length=length), want)


def test_f16_and_f64() -> None:
    x = signal(2, 64, 1, dtype=np.float64)
    assert_near(dft(x), numbers(np.fft.fft(x[..., 0])), 1e-14)
    half = x.astype(np.float16)
    got = dft(half)
    assert got.dtype == np.float16
    assert_near(got.astype(np.float64), numbers(np.fft.fft(half[..., 0].astype(np.float64))), 1e-3)


def test_the_old_default_axis_is_1() -> None:
    x = signal(2, 5, 3, 2)
    feeds: dict[str, Array | None] = {"x": x}
    for opset, axis in ((17, 1), (19, 1), (20, 2)):
        got = by_jitcl(one_node("DFT", feeds, opset=opset), feeds)[0]
        assert_near(got, numbers(np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=axis)))


@pytest.mark.parametrize(("n", "window", "onesided"), [
    (400, True, 1), (400, False, 1), pytest.param(512, True, 0, marks=pytest.mark.slow),
    pytest.param(2048, True, 1, marks=pytest.mark.slow)])
def test_stft_is_the_transform_of_windowed_frames(n: int, window: bool, onesided: int) -> None:
    x = signal(2, 5 * n + 3, 1)
    feeds = {"x": x, "step": np.array(160, np.int64),
             "window": np.hanning(n).astype(np.float32) if window else None,
             "length": np.array(n, np.int64)}
    constants = tuple(k for k in ("step", "window", "length") if feeds[k] is not None)
    model = one_node("STFT", feeds, opset=17, constants=constants, onesided=onesided)
    assert_near(by_jitcl(model, feeds)[0], by_reference(model, feeds)[0])


def test_a_window_that_is_fed() -> None:
    x, w = signal(1, 300, 1), np.hamming(64).astype(np.float32)
    feeds: dict[str, Array | None] = {"x": x, "step": np.array(16, np.int64), "w": w}
    model = one_node("STFT", feeds, opset=17, constants=("step",))
    assert_near(by_jitcl(model, feeds)[0], by_reference(model, feeds)[0])


@pytest.mark.parametrize(("bins", "length", "rate", "low", "high"), [
    (80, 400, 16000, 0.0, 8000.0), (128, 2048, 44100, 20.0, 20000.0), (8, 16, 8192, 0.0, 4096.0)])
def test_mel_filters(bins: int, length: int, rate: int, low: float, high: float) -> None:
    feeds: dict[str, Array | None] = {
        "bins": np.array(bins, np.int64), "length": np.array(length, np.int64),
        "rate": np.array(rate, np.int64), "low": np.array(low, np.float64),
        "high": np.array(high, np.float64)}
    model = one_node("MelWeightMatrix", feeds, opset=17, constants=tuple(feeds))
    got = by_jitcl(model, feeds)[0]
    np.testing.assert_allclose(got, by_reference(model, feeds)[0], rtol=1e-6)


@pytest.mark.parametrize(("op", "feeds", "error", "text"), [
    ("DFT", {"x": np.zeros((2, 5, 3), np.float32)}, ShapeError,
     r"a Fourier transform takes \[..., 1\] real or \[..., 2\] complex numbers, got f32\[2,5,3\]"),
    ("DFT", {"x": np.zeros((2, 5, 2), np.int32)}, TypeError_,
     r"a Fourier transform takes floats, got i32\[2,5,2\]"),
    ("DFT", {"x": np.zeros((2, 5, 2), np.float32), "n": None, "axis": np.array(2, np.int64)},
     ShapeError, "axis 2 of .* holds real and imaginary parts: name another one"),
    ("DFT", {"x": np.zeros((2, 5, 2), np.float32), "n": np.array(0, np.int64)}, ShapeError,
     "a transform of 0 points"),
    ("STFT", {"x": np.zeros((1, 9, 1), np.float32), "step": np.array(0, np.int64)}, ShapeError,
     "frames of 9 samples every 0 do not fit"),
    ("STFT", {"x": np.zeros((1, 9, 1), np.float32), "step": np.array(2, np.int64), "w": None,
              "n": np.array(10, np.int64)}, ShapeError, "frames of 10 samples every 2 do not fit"),
])
def test_errors(op: str, feeds: dict[str, Array | None], error: type[JitclError],
                text: str) -> None:
    model = load(one_node(op, feeds, constants=tuple(k for k in feeds if k != "x" and
                                                     feeds[k] is not None)))
    with pytest.raises(error, match=text):
        import_model(model, {})

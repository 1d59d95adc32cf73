"""Discrete Fourier transforms as matrix products; complex numbers are a last axis of two.

A short transform is one product with a table of cosines and sines. A long one of p * q points is p
short ones after q short ones, with factors between them (Cooley and Tukey, 1965); one of a long
prime length is a convolution of a length that has factors (Bluestein, 1970). All tables are
computed in f64 and are constants of the graph, so that the work is that of matmul's templates.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ShapeError, TypeError_
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, affordable
from jitcl.ops.core import (
    F16,
    F32,
    Index,
    Loader,
    Spec,
    composite,
    indexed,
    norm_axis,
    onnx_dtype,
    onnx_rule,
    sample,
)

Array = np.ndarray[Any, Any]
TABLE = 1 << 19  # elements of a table (2 MiB of f32) up to which a transform is one product
PRIME_TABLE = 1 << 22  # the same where the length has no factors


# ---- constants


@functools.lru_cache(maxsize=8)  # of one model's expansions; a table may take 32 MiB
def _table(rows: int, columns: int, n: int, sign: int, parts: tuple[int, int]) -> Array:
    """[rows * parts[0], columns * parts[1]]: exp(sign * 2 pi i j k / n) as real numbers.

    A row of `parts` (1, 2) takes a real number to a complex one, (2, 2) complex to complex, and
    (2, 1) complex to the real part.
    """
    angle = np.outer(np.arange(rows), np.arange(columns)) % n * (2 * np.pi / n)
    cos, sin = np.cos(angle), sign * np.sin(angle)
    whole = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)
    return whole[:, : parts[0], :, : parts[1]].reshape(rows * parts[0], columns * parts[1])


def _half_table(bins: int, n: int) -> Array:
    """[bins * 2, n]: what each bin of a one-sided spectrum adds to n real numbers."""
    twice = np.full(bins, 2.0)
    twice[0] = 1.0
    if n % 2 == 0 and bins == n // 2 + 1:
        twice[-1] = 1.0
    table: Array = _table(bins, n, n, 1, (2, 1)) * np.repeat(twice, 2)[:, None]
    single = np.flatnonzero(twice == 1.0)
    table[2 * single + 1] = 0.0  # these bins are real: their imaginary part counts for nothing
    return table


def _factor(n: int) -> int:
    """The divisor of n nearest below its square root; 1 for a prime."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _smooth(least: int) -> int:
    """The next power of two."""
    return 1 << (least - 1).bit_length()


# ---- transforms of [rows, n, 1 or 2]


def _product(g: GraphBuilder, x: Node, table: Array, columns: int, parts: int) -> Node:
    rows, n, c = x.type.dims
    flat = g.reshape(x, shape=(rows, n * c))
    y = g.matmul(flat, g.const(table, x.type.dtype))
    return g.reshape(y, shape=(rows, columns, parts))


def _transform(g: GraphBuilder, x: Node, n: int, sign: int, bins: int, scale: float = 1.0) -> Node:
    """The first `bins` of n: [rows, m <= n, 1 or 2] -> [rows, bins, 2], times `scale`."""
    _, m, parts = x.type.dims
    affordable(TensorType("f64", (n, 16)))   # tables of several times n complex numbers
    if m * parts * bins * 2 <= (TABLE if _factor(n) > 1 else PRIME_TABLE):
        return _product(g, x, _table(m, bins, n, sign, (parts, 2)) * scale, bins, 2)
    x = _lengthened(g, x, n)
    whole = _bluestein if _factor(n) == 1 else _split
    return g.slice(whole(g, x, n, sign, scale), starts=(0,), ends=(bins,), axes=(1,))


def _lengthened(g: GraphBuilder, x: Node, n: int) -> Node:
    missing = n - x.type.dims[1]
    return x if not missing else g.pad(x, 0.0, pads=(0, 0, 0, 0, missing, 0))


def _split(g: GraphBuilder, x: Node, n: int, sign: int, scale: float) -> Node:
    """n = p * q: with j = a * q + b and k = c + p * d, the sum over a is q transforms of p points,
    and the sum over b, of these times exp(sign * 2 pi i b c / n), p transforms of q points."""
    rows, _, parts = x.type.dims
    p = _factor(n)
    q = n // p
    y = g.transpose(g.reshape(x, shape=(rows, p, q, parts)), perm=(0, 2, 1, 3))
    y = _transform(g, g.reshape(y, shape=(rows * q, p, parts)), p, sign, p)
    twiddles = _table(q, p, n, sign, (1, 2)).reshape(q, p, 2) * scale
    y = g.complex_mul(g.reshape(y, shape=(rows, q, p, 2)), g.const(twiddles, x.type.dtype))
    y = g.reshape(g.transpose(y, perm=(0, 2, 1, 3)), shape=(rows * p, q, 2))
    y = g.reshape(_transform(g, y, q, sign, q), shape=(rows, p, q, 2))
    return g.reshape(g.transpose(y, perm=(0, 2, 1, 3)), shape=(rows, n, 2))


def _bluestein(g: GraphBuilder, x: Node, n: int, sign: int, scale: float) -> Node:
    """With j * k = (j^2 + k^2 - (k - j)^2) / 2 the transform is a convolution with a chirp."""
    size = _smooth(2 * n - 1)
    square = np.arange(n, dtype=np.int64) ** 2 % (2 * n)
    chirp = np.exp(sign * 1j * np.pi / n * square)
    kernel = np.zeros(size, complex)
    kernel[:n] = chirp.conj()
    kernel[size - n + 1 :] = chirp.conj()[:0:-1]

    def numbers(z: Array) -> Node:
        return g.const(np.stack([z.real, z.imag], -1), x.type.dtype)

    y = g.complex_mul(x, numbers(chirp))
    y = g.complex_mul(_transform(g, y, size, -1, size), numbers(np.fft.fft(kernel) * scale))
    return g.complex_mul(_transform(g, y, size, 1, n, 1 / size), numbers(chirp))


def _real_inverse(g: GraphBuilder, x: Node, n: int) -> Node:
    """[rows, bins, 2] of a one-sided spectrum -> [rows, n, 1] real numbers."""
    bins = n // 2 + 1
    x = _shortened(g, x, bins)
    have = x.type.dims[1]
    if have * 2 * n <= TABLE:
        return _product(g, x, _half_table(bins, n)[: 2 * have] / n, n, 1)
    x = _lengthened(g, x, bins)
    mirrored = g.slice(x, starts=(n - bins,), ends=(0,), axes=(1,), steps=(-1,))
    mirrored = g.mul(mirrored, g.const(np.array([1.0, -1.0]), x.type.dtype))
    whole = _transform(g, g.concat(x, mirrored, axis=1), n, 1, n, 1 / n)
    return g.slice(whole, starts=(0,), ends=(1,), axes=(2,))


def _shortened(g: GraphBuilder, x: Node, n: int) -> Node:
    return x if x.type.dims[1] <= n else g.slice(x, starts=(0,), ends=(n,), axes=(1,))


def _product_type(x: TensorType, w: TensorType) -> TensorType:
    if x.shape[-1] not in (1, 2) or w.shape[-1] != 2 or w.shape != (*x.shape[-w.rank : -1], 2):
        raise ShapeError(f"complex_mul: {x} and {w} do not agree: wanted [..., 1 or 2] and "
                         "[..., 2]")
    return x.with_(shape=(*x.shape[:-1], 2))


def _product_ref(x: Array, w: Array) -> Array:
    z = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    z = z * (w[..., 0] + 1j * w[..., 1])
    return np.stack([z.real, z.imag], -1).astype(x.dtype)


@indexed("window", range="grows", infer=_product_type, ref=_product_ref, samples=[
    sample(F32(3, 4, 2), F32(4, 2)), sample(F32(2, 3, 1), F32(2, 3, 2))])
def complex_mul(s: KernelBuilder, ix: Index, x: Loader, w: Loader) -> Expr:
    """x[..., 0] + i x[..., 1] times the numbers w, whose axes are the last of x's."""
    at, there = ix[:-1], ix[len(ix) - len(w.shape) : -1]
    imaginary = s.eq(ix[-1], 1)
    same = x(*at, 0) * w(*there, ix[-1])
    if x.shape[-1] == 1:
        return same
    other = x(*at, 1) * w(*there, 1 - ix[-1])
    return s.select(imaginary, same + other, same - other)


# ---- DFT


def _dft_ref(x: Array, axis: int = -2, length: int | None = None, inverse: bool = False,
             onesided: bool = False) -> Array:
    axis %= x.ndim
    z = x[..., 0].astype(complex) + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    if inverse and onesided:
        return np.fft.irfft(z, length, axis)[..., None].astype(x.dtype)
    y = (np.fft.ifft if inverse else np.fft.fft)(z, length, axis)
    if onesided:
        y = np.take(y, range(y.shape[axis] // 2 + 1), axis)
    return np.stack([y.real, y.imag], -1).astype(x.dtype)


@composite(ref=_dft_ref, samples=[
    sample(F32(2, 10, 1)), sample(F32(2, 10, 2), axis=-2, inverse=True),
    sample(F32(2, 10, 1), onesided=True), sample(F32(5, 3, 2), axis=0, length=4),
    sample(F32(2, 6, 2), length=9, inverse=True),
    sample(F32(3, 6, 2), inverse=True, onesided=True),
    sample(F32(3, 6, 2), inverse=True, onesided=True, length=9),
    sample(F16(2, 12, 1), rtol=2e-3), sample(Spec((2, 12, 2), "f64")),
    sample(F32(2, 768, 2), rtol=1e-4), sample(F32(1, 700, 1), length=1031, rtol=1e-4),
    sample(F32(1, 500, 2), inverse=True, onesided=True, length=1024, rtol=1e-4)])
def dft(g: GraphBuilder, x: Node, axis: int = -2, length: int | None = None,
        inverse: bool = False, onesided: bool = False) -> Node:
    """Fourier transform along an axis of [..., 1 or 2], of `length` points (zeros are added, or
    points left out); `inverse` divides by the length.

    `onesided` gives the bins up to the middle, or with `inverse` takes them and gives real
    numbers.
    """
    dims = x.type.dims
    axis = _check(x.type, axis)
    if length is None:
        length = 2 * (dims[axis] - 1) if inverse and onesided else dims[axis]
    if length < 1:
        raise ShapeError(f"dft: a transform of {length} points of {x.type}: wanted 1 or more")
    stored = x.type.dtype
    if dtypes.compute(stored) != stored:
        x = g.cast(x, to=dtypes.compute(stored))
    others = [a for a in range(len(dims) - 1) if a != axis]
    perm = (*others, axis, len(dims) - 1)
    rows = math.prod(dims[a] for a in others)
    y = g.reshape(g.transpose(x, perm=perm), shape=(rows, dims[axis], dims[-1]))
    if inverse and onesided:
        y = _real_inverse(g, _complex(g, y), length)
    else:
        sign, scale = (1, 1 / length) if inverse else (-1, 1.0)
        bins = length // 2 + 1 if onesided else length
        y = _transform(g, _shortened(g, y, length), length, sign, bins, scale)
    y = g.reshape(y, shape=(*(dims[a] for a in others), *y.type.dims[1:]))
    y = g.transpose(y, perm=tuple(perm.index(a) for a in range(len(dims))))
    return y if dtypes.compute(stored) == stored else g.cast(y, to=stored)


def _complex(g: GraphBuilder, x: Node) -> Node:
    return x if x.type.dims[-1] == 2 else g.pad(x, 0.0, pads=(0, 0, 0, 0, 0, 1))


def _check(x: TensorType, axis: int) -> int:
    """The axis, not negative; errors unless x is [..., 1 or 2] of floats and has such an axis."""
    if not dtypes.is_float(x.dtype):
        raise TypeError_(f"a Fourier transform takes floats, got {x}")
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise ShapeError(f"a Fourier transform takes [..., 1] real or [..., 2] complex numbers, "
                         f"got {x}")
    axis = norm_axis(axis, x.rank)
    if axis == x.rank - 1:
        raise ShapeError(f"axis {axis} of {x} holds real and imaginary parts: name another one")
    return axis


def _scalar(node: Any, i: int) -> int | None:
    value = node.static(i)
    if value is None:
        return None
    if np.size(value) != 1:
        raise ShapeError(f"its input {i} is one number, got {np.size(value)}")
    return int(np.reshape(value, ()))


@onnx_rule("DFT")
def _dft(g: GraphBuilder, node: Any) -> Node:
    axis = _scalar(node, 2)
    return g.dft(node.inputs[0], axis=-2 if axis is None else axis, length=_scalar(node, 1),
                 inverse=bool(node.attrs.get("inverse", 0)),
                 onesided=bool(node.attrs.get("onesided", 0)))


# ---- STFT


def _frames_type(x: TensorType, step: int, count: int, size: int) -> TensorType:
    if step < 1:
        raise ShapeError(f"frames are {step} apart: wanted 1 or more")
    return x.with_(shape=(x.shape[0], count, size, x.shape[2]))


def _frames_ref(x: Array, step: int, count: int, size: int) -> Array:
    x = np.pad(x, [(0, 0), (0, size), (0, 0)])
    return np.stack([x[:, f * step : f * step + size] for f in range(count)], 1)


@indexed("movement", infer=_frames_type, ref=_frames_ref, samples=[
    sample(F32(2, 10, 1), step=3, count=3, size=4),
    sample(F32(1, 7, 2), step=2, count=3, size=5)])
def frames(s: KernelBuilder, ix: Index, x: Loader, step: int, count: int, size: int) -> Expr:
    """y[b, f, i] = x[b, f * step + i], zeros behind the end."""
    b, f, i, c = ix
    at = f * step + i
    return x(b, at, c, guard=at < x.shape[1])


def _stft_ref(x: Array, window: Array | None = None, *, step: int, length: int,
              onesided: bool = True) -> Array:
    z = x[..., 0].astype(complex) + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    w = np.ones(length) if window is None else window.astype(np.float64)
    z = np.pad(z, [(0, 0), (0, len(w))])
    found = [np.fft.fft(z[:, a : a + len(w)] * w, length, axis=1)
             for a in range(0, x.shape[1] - length + 1, step)]
    y = np.stack(found, 1)[..., : length // 2 + 1 if onesided else length]
    return np.stack([y.real, y.imag], -1).astype(x.dtype)


@composite(ref=_stft_ref, samples=[
    sample(F32(2, 40, 1), step=5, length=12), sample(F32(2, 40, 1), F32(12), step=5, length=12),
    sample(F32(1, 40, 2), F32(9), step=7, length=16, onesided=False),
    sample(F32(1, 2500, 1), F32(2048), step=100, length=2048, rtol=1e-4)])
def stft(g: GraphBuilder, x: Node, *window: Node, step: int, length: int,
         onesided: bool = True) -> Node:
    """[batch, samples, 1 or 2] -> [batch, frames, bins, 2]: transforms of windowed frames of
    `length` points, `step` apart.

    The window is multiplied into a short transform's table, where it costs nothing.
    """
    _check(x.type, 1)
    batch, total, parts = x.type.dims
    if not 1 <= length <= total or step < 1:
        raise ShapeError(f"stft: frames of {length} samples every {step} do not fit {x.type}")
    size = min(length, window[0].type.dims[0]) if window else length
    stored, held = x.type.dtype, dtypes.compute(x.type.dtype)
    count, bins = 1 + (total - length) // step, length // 2 + 1 if onesided else length
    cut = g.frames(g.cast(x, to=held), step=step, count=count, size=size)
    rows = g.reshape(cut, shape=(batch * count, size, parts))
    y: Node
    if not window:
        y = _transform(g, rows, length, -1, bins)
    else:
        scale = g.reshape(g.cast(window[0], to=held), shape=(window[0].type.dims[0], 1, 1))
        scale = g.slice(scale, starts=(0,), ends=(size,), axes=(0,))
        if size * parts * bins * 2 <= TABLE:
            table = g.const(_table(size, bins, length, -1, (parts, 2)), held)
            table = g.mul(g.reshape(table, shape=(size, parts, bins * 2)), scale)
            flat = g.reshape(rows, shape=(batch * count, size * parts))
            y = g.matmul(flat, g.reshape(table, shape=(size * parts, bins * 2)))
        else:
            rows = g.mul(rows, g.reshape(scale, shape=(size, 1)))
            y = _transform(g, rows, length, -1, bins)
    return g.cast(g.reshape(y, shape=(batch, count, bins, 2)), to=stored)


@onnx_rule("STFT")
def _stft(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    if x.type.rank == 2:
        x = g.reshape(x, shape=(*x.type.dims, 1))
    if x.type.rank != 3:
        raise ShapeError(f"STFT takes a signal [batch, samples, 1 or 2], got {x.type}")
    window, step, length = node.input(2), _scalar(node, 1), _scalar(node, 3)
    if window is not None and window.type.rank != 1:
        raise ShapeError(f"STFT takes a window of one axis, got {window.type}")
    if length is None:
        length = x.type.dims[1] if window is None else window.type.dims[0]
    operands = [x] if window is None else [x, window]
    return g.stft(*operands, step=step, length=length,
                  onesided=bool(node.attrs.get("onesided", 1)))


# ---- mel filters


def mel_weights(bins: int, length: int, rate: int, low: float, high: float) -> Array:
    """[length // 2 + 1, bins]: triangles over a spectrum, evenly apart on the mel scale,
    mel(f) = 2595 log10(1 + f / 700) (O'Shaughnessy, 1987), with corners at whole bins."""
    start, end = (2595 * math.log10(1 + f / 700) for f in (low, high))
    affordable(TensorType("f64", (length // 2 + 1, bins)))
    mel = np.linspace(start, end, bins + 2, endpoint=False)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    corners = np.floor((length + 1) * hertz / rate)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    at = np.arange(length // 2 + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(left == middle, at == middle, (at - left) / (middle - left))
        falling = (right - at) / (right - middle)
    falls = (at >= middle) & (at < right)
    rises = (at >= left) & (at <= middle)
    return np.where(falls, falling, np.where(rises, rising, 0.0))


@onnx_rule("MelWeightMatrix")
def _mel_weight_matrix(g: GraphBuilder, node: Any) -> Node:
    """Corners lie at whole bins: one rounding more or less moves a triangle, so that the matrix is
    computed at import, in f64, for the values that are fed."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    values = [float(np.reshape(node.static(i), ())) for i in range(5)]
    if min(values[:3]) < 1 or values[3] < 0:
        text = ", ".join(f"{n} {v:g}" for n, v in zip(names, values))
        raise ShapeError(f"no mel filters for {text}: sizes are 1 or more, edges not negative")
    weights = mel_weights(int(values[0]), int(values[1]), int(values[2]), *values[3:])
    return g.const(weights, onnx_dtype(node.attrs.get("output_datatype", 1)))

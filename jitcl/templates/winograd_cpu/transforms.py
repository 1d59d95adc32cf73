"""Winograd's transforms for filters of 3x3, and of 3 along one axis, as data, of which kernels and
their check are made.

F(m x m, 3x3) gives m x m outputs of N x N inputs, N = m + 2, by N * N products instead of 9 m * m;
F(m, 3) along one axis m outputs by N products instead of 3 m:

    y = A^T [ (G w G^T) * (B^T d B) ] A          y = A^T [ (G w) * (B^T d) ]

A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), with interpolation
points 0, +-3/4, +-3/2 and infinity for m = 4: its errors are a third of those of the usual +-1,
+-2, at the same count of operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

SAMPLED_TILES, SAMPLED_FILTERS = 8, 16


@dataclass(frozen=True)
class Step:
    """to = x * y + z ("fma"), x * y ("mul"), x + y ("add") or x - y ("sub"); products are with
    constants."""

    to: str
    op: str
    x: str
    y: str | float
    z: str = ""

    def __str__(self) -> str:
        """The statement in a kernel."""
        if self.op == "fma":
            return f"{self.to} = fma({self.x}, f32({self.y}), {self.z})"
        if self.op == "mul":
            return f"{self.to} = {self.x} * f32({self.y})"
        return f"{self.to} = {self.x} {'+' if self.op == 'add' else '-'} {self.y}"


@dataclass(frozen=True)
class Transforms:
    """One-dimensional: filters by the matrix `filters` [N, 3], data d0 .. -> o0 .. o<N - 1>, and
    results d0 .. -> o0 .. o<outputs - 1> by steps."""

    outputs: int
    filters: tuple[tuple[float, ...], ...]
    data: tuple[Step, ...]
    results: tuple[Step, ...]

    @property
    def size(self) -> int:
        """N: inputs of a tile along an axis."""
        return self.outputs + 2

    def weights(self, w: np.ndarray) -> np.ndarray:
        """[K, C, 3, 3] -> [K, C, N * N], or [K, C, 3] -> [K, C, N], computed in f64, given in f32.
        """
        g = np.array(self.filters)
        k, c = w.shape[:2]
        with np.errstate(over="ignore", invalid="ignore"):       # `relative_error` sees it
            g = np.kron(g, g) if w.ndim == 4 else g
            both = w.reshape(k * c, -1).astype(np.float64) @ g.T
            return both.astype(np.float32).reshape(k, c, -1)


_A, _B = 0.75, 1.5
_AA, _BB = _A * _A, _B * _B
_FA, _FB = 2 * _AA * (_AA - _BB), 2 * _BB * (_BB - _AA)

F4 = Transforms(
    4,
    (
        (1 / (_AA * _BB), 0.0, 0.0), (1 / _FA, _A / _FA, _AA / _FA),
        (1 / _FA, -_A / _FA, _AA / _FA), (1 / _FB, _B / _FB, _BB / _FB),
        (1 / _FB, -_B / _FB, _BB / _FB), (0.0, 0.0, 1.0)),
    (
        Step("even", "fma", "d2", -_AA - _BB, "d4"), Step("o0", "fma", "d0", _AA * _BB, "even"),
        Step("even", "fma", "d2", -_BB, "d4"), Step("odd", "fma", "d1", -_BB, "d3"),
        Step("o1", "fma", "odd", _A, "even"), Step("o2", "fma", "odd", -_A, "even"),
        Step("even", "fma", "d2", -_AA, "d4"), Step("odd", "fma", "d1", -_AA, "d3"),
        Step("o3", "fma", "odd", _B, "even"), Step("o4", "fma", "odd", -_B, "even"),
        Step("even", "fma", "d3", -_AA - _BB, "d5"), Step("o5", "fma", "d1", _AA * _BB, "even")),
    (
        Step("sum_a", "add", "d1", "d2"), Step("dif_a", "sub", "d1", "d2"),
        Step("sum_b", "add", "d3", "d4"), Step("dif_b", "sub", "d3", "d4"),
        Step("o0", "add", "sum_a", "sum_b"), Step("o0", "add", "d0", "o0"),
        Step("o1", "mul", "dif_a", _A), Step("o1", "fma", "dif_b", _B, "o1"),
        Step("o2", "mul", "sum_a", _AA), Step("o2", "fma", "sum_b", _BB, "o2"),
        Step("o3", "fma", "dif_a", _A * _AA, "d5"), Step("o3", "fma", "dif_b", _B * _BB, "o3")),
)
F2 = Transforms(
    2,
    ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0)),
    (
        Step("o0", "sub", "d0", "d2"), Step("o1", "add", "d1", "d2"), Step("o2", "sub", "d2", "d1"),
        Step("o3", "sub", "d1", "d3")),
    (
        Step("sum_a", "add", "d1", "d2"), Step("dif_a", "sub", "d1", "d2"),
        Step("o0", "add", "d0", "sum_a"), Step("o1", "sub", "dif_a", "d3")),
)
TRANSFORMS = {2: F2, 4: F4}


def relative_error(w: np.ndarray, t: Transforms, *, fused: bool = True) -> float:
    """How far Winograd in f32, with the kernel's operations in its order, is from the convolution
    in f64: the largest difference over the largest result, on some of the filters [K, C, 3, 3] or
    [K, C, 3] and tiles of random data without negative numbers, as a ReLU leaves it (sums of both
    signs cancel less). `fused`: the target rounds x * y + z once. NaN or infinite where filters
    don't fit in f32.
    """
    k, c = w.shape[:2]
    axes = w.ndim - 2
    w = w[:: -(-k // SAMPLED_FILTERS)].astype(np.float64)
    rng = np.random.default_rng(0)
    x = np.abs(rng.standard_normal((SAMPLED_TILES, c, *[t.size] * axes))).astype(np.float32)
    last = tuple(range(2, 2 + axes))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3,) * axes, axis=last)
    taps = range(2 + axes, 2 + 2 * axes)
    want = np.tensordot(windows, w, ((1, *taps), (1, *last)))        # [tile, (y,) x, k]
    weights = t.weights(w).reshape(len(w), c, *[t.size] * axes)
    with np.errstate(all="ignore"):                                  # the caller refuses NaN
        data = _transformed(x, t.data, t.size, fused, axes)          # [tile, c, (N,) N]
        sums = np.zeros((SAMPLED_TILES, len(w), *[t.size] * axes), np.float32)
        for i in range(c):
            sums = _fma(data[:, None, i], weights[None, :, i], sums, fused)
        got = np.moveaxis(_transformed(sums, t.results, t.outputs, fused, axes), 1, -1)
        largest = np.abs(want).max()
        return float(np.abs(got - want).max() / largest) if largest else 0.0


def _transformed(x: np.ndarray, steps: Iterable[Step], outputs: int, fused: bool,
                 axes: int) -> np.ndarray:
    """Columns first if there are two axes, then rows, as kernels do."""
    if axes == 2:
        columns = _evaluate([x[..., i, :] for i in range(x.shape[-2])], steps, outputs, fused)
        x = np.stack(columns, axis=-2)
    rows = _evaluate([x[..., i] for i in range(x.shape[-1])], steps, outputs, fused)
    return np.stack(rows, axis=-1)


def _evaluate(d: list[np.ndarray], steps: Iterable[Step], outputs: int,
              fused: bool) -> list[np.ndarray]:
    values = {f"d{i}": x for i, x in enumerate(d)}
    for s in steps:
        x = values[s.x]
        y = values[s.y] if isinstance(s.y, str) else np.float32(s.y)
        if s.op == "fma":
            values[s.to] = _fma(x, y, values[s.z], fused)
        else:
            values[s.to] = {"mul": np.multiply, "add": np.add, "sub": np.subtract}[s.op](x, y)
    return [values[f"o{i}"] for i in range(outputs)]


def _fma(x: np.ndarray, y: np.ndarray | np.float32, z: np.ndarray, fused: bool) -> np.ndarray:
    """x * y + z in f32. The product of two f32 is exact in f64."""
    if not fused:
        return x * y + z
    return (x.astype(np.float64) * y + z).astype(np.float32)

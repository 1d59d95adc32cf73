"""Convolutions in 1 to 3 dimensions, forward and transposed, with groups and dilation.

Padding is explicit (`pads` = all begins, then all ends, as ONNX orders them): `auto_pad` is
resolved at import, and a bias is an add behind the convolution, so that fusion treats it as it
treats any epilogue.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.sizes import whole
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import F16, F32, Index, Loader, indexed, onnx_rule, same_dtype, sample

Ints = tuple[int, ...]


def window_extent(
    size: Any, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False
) -> int:
    """Windows that fit along an axis. With `ceil` a last, partial one counts if it starts
    inside."""
    room = whole(size) + before + after - ((kernel - 1) * dilation + 1)
    if not ceil and room < 0:
        raise ShapeError(
            f"a window of {kernel} (dilation {dilation}) does not fit an axis of {size} "
            f"padded by {before} and {after}"
        )
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= whole(size) + before:
        count -= 1
    if count < 0:
        raise ShapeError(f"a window of {kernel} does not fit an axis of {size}")
    return count


# ---- conv


def conv_type(
    x: TensorType, w: TensorType, strides: Ints, pads: Ints, dilations: Ints, group: int
) -> TensorType:
    dtype = same_dtype(x, w)
    check_rank(x, w)
    channels, reads = x.shape[1], w.shape[1] * group  # type: ignore[operator]
    if channels != reads:
        raise ShapeError(
            f"input 'x' {x} has {channels} channels, but the weight 'w' {w} reads "
            f"{reads}" + (f" ({group} groups)" if group > 1 else "")
        )
    if w.dims[0] % group:
        raise ShapeError(
            f"weight 'w' {w} has {w.shape[0]} outputs, not a multiple of {group} groups")
    n = x.rank - 2
    spatial = (
        window_extent(x.shape[2 + d], w.dims[2 + d], strides[d], pads[d], pads[n + d], dilations[d])
        for d in range(n)
    )
    return TensorType(dtype, (x.shape[0], w.shape[0], *spatial))


def check_rank(x: TensorType, w: TensorType) -> None:
    """ShapeError unless x is N, C and 1 to 3 spatial axes, and w has as many axes."""
    if x.rank != w.rank or not 3 <= x.rank <= 5:
        raise ShapeError(
            f"convolution takes an input of rank 3 to 5 and a weight of the same rank, "
            f"got x: {x} and w: {w}"
        )


def tap_slices(kernel: Ints, out: Sequence[int], strides: Ints, dilations: Ints
               ) -> Iterator[tuple[slice, ...]]:
    """Where in a padded image each tap of a window lies, for all of the `out` places of it."""
    for tap in itertools.product(*map(range, kernel)):
        firsts = [k * d for k, d in zip(tap, dilations)]
        yield tuple(slice(first, first + (count - 1) * step + 1, step)
                    for first, count, step in zip(firsts, out, strides))


def conv_ref(
        x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], strides: Ints, pads: Ints,
        dilations: Ints, group: int
) -> np.ndarray[Any, Any]:
    """One matrix product a tap and group, summed over the taps."""
    n = x.ndim - 2
    x, kernel = wide(x), w.shape[2:]
    padded = np.pad(x, [(0, 0), (0, 0), *((pads[d], pads[n + d]) for d in range(n))])
    out = [
        (padded.shape[2 + d] - (kernel[d] - 1) * dilations[d] - 1) // strides[d] + 1
        for d in range(n)
    ]
    a = wide(w).reshape(group, w.shape[0] // group, w.shape[1], -1)
    y = np.zeros((x.shape[0], group, a.shape[1], math.prod(out)), x.dtype)
    for t, at in enumerate(tap_slices(kernel, out, strides, dilations)):
        part = np.ascontiguousarray(padded[(slice(None), slice(None), *at)])
        y += np.matmul(a[..., t], part.reshape(x.shape[0], group, w.shape[1], -1))
    return y.reshape(x.shape[0], w.shape[0], *out).astype(w.dtype)


_PLAIN1: dict[str, Any] = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "group": 1}
_PLAIN2: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


@indexed(
    "contraction",
    infer=conv_type,
    ref=conv_ref,
    samples=[
        sample(F32(2, 3, 6, 7), F32(4, 3, 3, 3), **{**_PLAIN2, "pads": (1, 0, 1, 2)}),
        sample(F32(1, 4, 7, 7), F32(6, 2, 3, 2), **{**_PLAIN2, "strides": (2, 1), "group": 2}),
        sample(F32(1, 4, 8, 8), F32(4, 1, 3, 3), **{**_PLAIN2, "dilations": (2, 1), "group": 4}),
        sample(F32(1, 2, 9), F32(3, 2, 3), **_PLAIN1),
        sample(F16(1, 2, 5), F16(2, 2, 2), rtol=2e-3, **_PLAIN1),
        sample(
            F32(1, 2, 4, 5, 3), F32(2, 2, 2, 2, 2), strides=(1, 2, 1), pads=(1, 0, 0, 0, 0, 1),
            dilations=(1, 1, 1), group=1),
    ],
)
def conv(
        s: KernelBuilder, ix: Index, x: Loader, w: Loader, strides: Ints, pads: Ints,
        dilations: Ints, group: int
) -> Expr:
    """y[n, m, o...] = sum over c, k of x[n, c, o * stride + k * dilation - pad] * w[m, c, k]."""

    def product(pixel: Index, inside: Expr, weight: Index) -> Expr:
        return x(*pixel, guard=inside) * w(*weight)

    return convolved(s, ix, x, w, strides, pads, dilations, group, product)


def convolved(
        s: KernelBuilder, ix: Index, x: Loader, w: Loader, strides: Ints, pads: Ints,
        dilations: Ints, group: int, product: Callable[[Index, Expr, Index], Expr]
) -> Expr:
    """The sum of a convolution's products over c and k. `product` is given the index into x,
    whether it lies inside of x, and the index into w."""
    n, m, *out = ix
    inputs, spatial = w.shape[1], x.shape[2:]
    first = (m // (w.shape[0] // group)) * inputs if group > 1 else None

    def term(c: Expr, *ks: Expr) -> Expr:
        at = [o * strides[d] + k * dilations[d] - pads[d] for d, (o, k) in enumerate(zip(out, ks))]
        channel = c if first is None else first + c
        return product((n, channel, *at), all_inside(s, at, spatial), (m, c, *ks))

    return s.reduce("add", w.shape[1:], term)


def all_inside(s: KernelBuilder, at: list[Expr], extents: Ints) -> Expr:
    """Whether every index lies in its axis; a constant true where that is known."""
    total = s.const(True, "bool")
    for i, extent in zip(at, extents):
        total = total & s.inside(i, extent)
    return total


def window_attrs(
    node: Any, size: Ints, kernel: Ints, *, transposed: bool = False
) -> dict[str, Ints]:
    """strides, dilations and explicit pads of a convolution or pooling node (auto_pad resolved)."""
    n = len(size)
    attrs = node.attrs
    strides, dilations = attrs.get("strides", (1,) * n), attrs.get("dilations", (1,) * n)
    pads, auto = tuple(attrs.get("pads", (0,) * 2 * n)), attrs.get("auto_pad", "NOTSET")
    for name, value, length in (
        ("strides", strides, n), ("dilations", dilations, n), ("pads", pads, 2 * n)):
        if len(value) != length:
            raise ModelError(
                f"attribute {name}={list(value)} has {len(value)} values, wanted {length} "
                f"for {n} spatial axes"
            )
    if min(strides, default=1) < 1 or min(dilations, default=1) < 1:
        raise ModelError(
            f"strides {list(strides)} and dilations {list(dilations)} must be positive")
    if auto == "VALID":
        pads = (0,) * 2 * n
    elif auto in ("SAME_UPPER", "SAME_LOWER") and not transposed:
        totals = [
            max(
                0,
                (-(-size[d] // strides[d]) - 1) * strides[d]
                + (kernel[d] - 1) * dilations[d]
                + 1
                - size[d],
            )
            for d in range(n)
        ]
        pads = halves(totals, auto == "SAME_UPPER")
    elif auto not in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"auto_pad='{auto}' is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    return {"strides": tuple(strides), "pads": pads, "dilations": tuple(dilations)}


def halves(totals: list[int], upper: bool) -> Ints:
    """Padding split over both sides, the odd element behind where `upper`, else in front."""
    small = [t // 2 for t in totals]
    large = [t - t // 2 for t in totals]
    return (*small, *large) if upper else (*large, *small)


def with_bias(g: GraphBuilder, y: Node, bias: Node | None) -> Node:
    """y + bias along axis 1."""
    if bias is None:
        return y
    shape = (*bias.type.shape, *(1,) * (y.type.rank - 2))
    return g.add(y, g.reshape(bias, shape=shape))


def checked_kernel(node: Any, x: Node, w: Node) -> Ints:
    """The kernel's extents; errors where rank or kernel_shape contradict the weight."""
    check_rank(x.type, w.type)
    kernel = w.type.dims[2:]
    if tuple(node.attrs.get("kernel_shape", kernel)) != kernel:
        raise ModelError(
            f"attribute kernel_shape={list(node.attrs['kernel_shape'])} contradicts the "
            f"weight 'w' {w.type}"
        )
    return kernel


@onnx_rule("Conv")
def _conv(g: GraphBuilder, node: Any) -> Node:
    x, w = node.inputs[:2]
    kernel = checked_kernel(node, x, w)
    y = g.conv(
        x, w, **window_attrs(node, x.type.dims[2:], kernel), group=node.attrs.get("group", 1))
    return with_bias(g, y, node.inputs[2] if len(node.inputs) > 2 else None)


# ---- conv_transpose


def _transpose_type(
        x: TensorType, w: TensorType, strides: Ints, pads: Ints, dilations: Ints,
        output_padding: Ints, group: int
) -> TensorType:
    dtype = same_dtype(x, w)
    check_rank(x, w)
    if x.shape[1] != w.shape[0]:
        raise ShapeError(
            f"input 'x' {x} has {x.shape[1]} channels, but the weight 'w' {w} reads {w.shape[0]}")
    if x.dims[1] % group:
        raise ShapeError(
            f"input 'x' {x} has {x.shape[1]} channels, not a multiple of {group} groups")
    n = x.rank - 2
    spatial = tuple(
        strides[d] * (x.dims[2 + d] - 1)
        + (w.dims[2 + d] - 1) * dilations[d]
        + 1
        + output_padding[d]
        - pads[d]
        - pads[n + d]
        for d in range(n)
    )
    if any(extent < 0 for extent in spatial):
        raise ShapeError(f"pads {list(pads)} leave nothing of the output: {spatial}")
    return TensorType(dtype, (x.shape[0], w.dims[1] * group, *spatial))


def _transpose_ref(
        x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], strides: Ints, pads: Ints,
        dilations: Ints, output_padding: Ints, group: int
) -> np.ndarray[Any, Any]:
    """Scatter form: every input pixel adds its scaled kernel to the output."""
    n, kernel, dtype = x.ndim - 2, w.shape[2:], x.dtype
    x, w = wide(x), wide(w)
    full = [
        strides[d] * (x.shape[2 + d] - 1)
        + (kernel[d] - 1) * dilations[d]
        + 1
        + max(0, output_padding[d] - pads[n + d])
        for d in range(n)
    ]
    xs = x.reshape(x.shape[0], group, x.shape[1] // group, -1)
    ws = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    y = np.zeros((x.shape[0], group * w.shape[1], *full), x.dtype)
    for t, k in enumerate(itertools.product(*map(range, kernel))):
        part = np.einsum("ngcp,gcm->ngmp", xs, ws[..., t]).reshape(x.shape[0], -1, *x.shape[2:])
        at = tuple(
            slice(
                k[d] * dilations[d], k[d] * dilations[d] + strides[d] * (x.shape[2 + d] - 1) + 1,
                strides[d])
            for d in range(n)
        )
        y[(slice(None), slice(None), *at)] += part
    cut = tuple(
        slice(
            pads[d],
            strides[d] * (x.shape[2 + d] - 1)
            + (kernel[d] - 1) * dilations[d]
            + 1
            + output_padding[d]
            - pads[n + d],
        )
        for d in range(n)
    )
    return y[(slice(None), slice(None), *cut)].astype(dtype)


_PLAIN2T: dict[str, Any] = {**_PLAIN2, "output_padding": (0, 0)}


@indexed(
    "contraction",
    infer=_transpose_type,
    ref=_transpose_ref,
    samples=[
        sample(F32(2, 3, 4, 5), F32(3, 2, 3, 3), **_PLAIN2T),
        sample(
            F32(1, 4, 3, 3),
            F32(4, 2, 3, 3),
            **{
                **_PLAIN2T, "strides": (2, 3), "pads": (1, 0, 0, 1), "group": 2,
                "output_padding": (1, 2)},
        ),
        sample(
            F32(1, 2, 3, 3), F32(2, 2, 2, 2), **{**_PLAIN2T, "dilations": (2, 2), "strides": (3, 1)}
        ),
        sample(F32(1, 2, 5), F32(2, 3, 4), output_padding=(0,), **{**_PLAIN1, "strides": (2,)}),
        sample(
            F32(1, 1, 2, 3, 2), F32(1, 2, 2, 2, 2), strides=(2, 1, 1), pads=(0,) * 6,
            dilations=(1, 1, 1), group=1, output_padding=(0, 0, 0)),
    ],
)
def conv_transpose(
        s: KernelBuilder, ix: Index, x: Loader, w: Loader, strides: Ints, pads: Ints,
        dilations: Ints, output_padding: Ints, group: int
) -> Expr:
    """Gather form: y[n, m, o] = sum over c, k of x[n, c, (o + pad - k * dilation) / stride] * w[c,
    m, k], over the k for which the division leaves no rest. Without dilation only those are
    visited."""
    n, m, *out = ix
    outputs, kernel, spatial = w.shape[1], w.shape[2:], x.shape[2:]
    inputs = w.shape[0] // group
    taps = [-(-k // strides[d]) if dilations[d] == 1 else k for d, k in enumerate(kernel)]

    def term(c: Expr, *js: Expr) -> Expr:
        channel = (m // outputs) * inputs + c if group > 1 else c
        valid, ks, at = s.const(True, "bool"), [], []
        for d, (o, j) in enumerate(zip(out, js)):
            place, stride = o + pads[d], strides[d]
            if dilations[d] == 1:
                k, i = place % stride + j * stride, place // stride - j
            else:
                k, reach = j, place - j * dilations[d]
                i = reach // stride
                valid = valid & s.eq(reach % stride, 0)
            valid = valid & (k < kernel[d]) & s.inside(i, spatial[d])
            ks.append(k)
            at.append(i)
        return x(n, channel, *at, guard=valid) * w(channel, m % outputs, *ks, guard=valid)

    return s.reduce("add", (inputs, *taps), term)


@onnx_rule("ConvTranspose")
def _conv_transpose(g: GraphBuilder, node: Any) -> Node:
    x, w = node.inputs[:2]
    kernel = checked_kernel(node, x, w)
    n, size, attrs = len(kernel), x.type.dims[2:], node.attrs
    window = window_attrs(node, size, kernel, transposed=True)
    strides, dilations = window["strides"], window["dilations"]
    extra, auto = tuple(attrs.get("output_padding", (0,) * n)), attrs.get("auto_pad", "NOTSET")
    wanted = attrs.get("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size[d] * strides[d] for d in range(n)]
    if wanted is not None:
        totals = [
            strides[d] * (size[d] - 1)
            + extra[d]
            + (kernel[d] - 1) * dilations[d]
            + 1
            - wanted[len(wanted) - n + d]
            for d in range(n)
        ]
        window["pads"] = halves([max(0, t) for t in totals], auto == "SAME_UPPER")
        extra = tuple(e + max(0, -t) for e, t in zip(extra, totals))
    y = g.conv_transpose(x, w, output_padding=extra, group=attrs.get("group", 1), **window)
    return with_bias(g, y, node.inputs[2] if len(node.inputs) > 2 else None)

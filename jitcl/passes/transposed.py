"""Transposed convolutions as ordinary ones, where no template computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jitcl.ir.graph import Node, const
from jitcl.passes.base import RewritePass, Rewriter
from jitcl.target import Target


@dataclass(frozen=True)
class PhasesOfTransposed(RewritePass):
    """Outputs of a transposed convolution whose places leave the same rest when divided by the
    stride (a phase) are an ordinary convolution with every stride-th tap. All phases together are
    one with as many times the channels, whose results are interleaved.

        %y = conv_transpose(%x, w: [C,M,k])       %1 = conv(%x, v: [M*s,C,t])
             {strides=[s]}                  =>    %2 = reshape(%1) {shape=[N,M,s,Q]}
                                                  %3 = transpose(%2) {perm=[0,1,3,2]}
                                                  %4 = reshape(%3) {shape=[N,M,Q*s]}
                                                  %y = slice(%4)

    t = ceil(k / s) taps, reversed, zeros where a phase has fewer. On OpenCL; the CPU's template
    takes each phase alone.
    """

    target: Target

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        if self.target.kind != "opencl" or node.op != "conv_transpose":
            return None
        x, w = node.inputs
        if w.op != "const" or any(d != 1 for d in node.attr("dilations")):
            return None
        axes = [_Axis(*of_axis) for of_axis in zip(
            w.type.dims[2:], node.attr("strides"), node.attr("pads"),
            node.attr("pads")[len(node.attr("strides")):], node.attr("output_padding"))]
        if any(min(a.before, a.after) < 0 for a in axes):
            return None                             # cuts off whole inputs
        strides, group = [a.stride for a in axes], node.attr("group")

        def phases() -> np.ndarray:
            return _weights(w.data, axes, group)

        weights = const(phases(), w.type.dtype, phases if w.attr("data").reloads else None)
        n, m = node.type.dims[:2]
        y = g.op("conv", x, weights, strides=(1,) * len(axes),
                 pads=(*(a.before for a in axes), *(a.after for a in axes)),
                 dilations=(1,) * len(axes), group=group)
        size = y.type.dims[2:]
        if math.prod(strides) > 1:
            y = g.reshape(y, shape=(n, m, *strides, *size))
            perm = [axis for d in range(len(axes)) for axis in (2 + len(axes) + d, 2 + d)]
            y = g.transpose(y, perm=(0, 1, *perm))
            y = g.reshape(y, shape=(n, m, *(q * s for q, s in zip(size, strides))))
        starts = tuple(a.start for a in axes)
        ends = tuple(a.start + d for a, d in zip(axes, node.type.dims[2:]))
        if not any(starts) and ends == tuple(y.type.dims[2:]):
            return y
        return g.slice(y, starts=starts, ends=ends, axes=tuple(range(2, node.type.rank)))


@dataclass(frozen=True)
class _Axis:
    """One spatial axis: y[s * q + r - pad] = sum over j of x[q - j] * w[r + s * j]."""

    kernel: int
    stride: int
    pad: int
    pad_after: int
    extra: int                  # output_padding

    @property
    def taps(self) -> int:
        return -(-self.kernel // self.stride)

    @property
    def before(self) -> int:
        """The convolution's padding: its first output is the q of y's first element."""
        return self.taps - 1 - self.pad // self.stride

    @property
    def after(self) -> int:
        return (self.kernel + self.extra - self.pad_after - 1) // self.stride

    @property
    def start(self) -> int:
        """Where y begins in the interleaved results."""
        return self.pad % self.stride


def _weights(w: np.ndarray, axes: list[_Axis], group: int) -> np.ndarray:
    """[C, M/group, kernel...] -> [M * phases, C/group, taps...]"""
    padded = np.pad(w, [(0, 0), (0, 0), *((0, a.taps * a.stride - a.kernel) for a in axes)])
    split = padded.reshape(group, w.shape[0] // group, w.shape[1],
                           *(n for a in axes for n in (a.taps, a.stride)))
    flipped = np.flip(split, tuple(range(3, split.ndim, 2)))
    order = (0, 2, *range(4, split.ndim, 2), 1, *range(3, split.ndim, 2))
    taps = (a.taps for a in axes)
    return np.ascontiguousarray(flipped.transpose(order)).reshape(-1, w.shape[0] // group, *taps)

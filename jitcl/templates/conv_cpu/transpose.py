"""Transposed convolution as one ordinary convolution for each remainder of an output index by the
stride.

stride 2: y[2q] and y[2q + 1] each gather from x[q], x[q - 1], ... with every second tap of the
filter
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.target import Target
from jitcl.templates.base import CpuHooks, Emitted, Match, Template
from jitcl.templates.conv_cpu.template import FEW_CHANNELS, Phase, Writer, padded_input
from jitcl.templates.convolution import ConvShape, packable


class ConvTransposeCpu(Template[Match, CpuHooks]):
    """conv_transpose in 1 and 2 dimensions with a constant weight, without groups and dilation."""

    name = "conv_transpose_cpu"

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        node = packable(group.anchor, "conv_transpose")
        if node is None or target.kind != "cpu":
            return ()
        if node.attr("group") != 1 or any(d != 1 for d in node.attr("dilations")):
            return ()
        return (Match(),)

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        node = hooks.anchor
        phases = list(_phases(node))
        top, left, bottom, right = (max(0, *(s.pads[i] for s, _ in phases)) for i in range(4))
        x = node.inputs[0]
        few = x.type.dims[1] < FEW_CHANNELS
        before, a, physical, inset = padded_input(
            replace(phases[0][0], pads=(top, left, bottom, right)), x, hooks, planes=few)
        return [*before, *(_PhaseWriter(s, hooks, p).write(a, physical, inset) for s, p in phases)]


def _phases(node: Node) -> list[tuple[ConvShape, Phase]]:
    """The convolutions that interleave to a transposed one."""
    x, w = (i.type.dims for i in node.inputs)
    axes = [
        _axis(*args)
        for args in zip(x[2:], node.type.dims[2:], w[2:], node.attr("strides"), node.attr("pads"))
    ]
    if len(axes) == 1:
        axes.insert(0, [(0, 1, 1, 0, 0)])
    up_h, up_w = (1, *node.attr("strides"))[-2:]
    height, width = (1, *x[2:])[-2:]
    found = []
    for top, taps_h, rows, before_h, after_h in axes[0]:
        for left, taps_w, columns, before_w, after_w in axes[1]:
            shape = ConvShape(
                x[0], x[1], w[1], (height, width), (rows, columns), (taps_h, taps_w), (1, 1),
                (1, 1), (before_h, before_w, after_h, after_w), 1)
            found.append((shape, Phase((up_h, up_w), (top, left))))
    return found


def _axis(
    size: int, out: int, kernel: int, stride: int, pad: int
) -> list[tuple[int, int, int, int, int]]:
    """For each remainder: (first output, taps, outputs, padding before, padding after); paddings
    may be negative."""
    found = []
    for first in range(min(stride, out)):
        shift, rest = divmod(first + pad, stride)
        taps = max(1, -(-(kernel - rest) // stride))
        count = -(-(out - first) // stride)
        found.append((first, taps, count, taps - 1 - shift, count - 1 + shift - (size - 1)))
    return found


class _PhaseWriter(Writer):
    def weights(self, w: np.ndarray) -> np.ndarray:
        """[C, K, kh, kw] -> the taps of this phase, reversed, [K, C, taps_h, taps_w]; zeros where
        there is no tap."""
        assert self.phase is not None and self.group.anchor is not None
        if w.ndim == 3:
            w = w[:, :, None]
        pads = (
            (0, *self.group.anchor.attr("pads"))
            if self.root.rank == 3
            else self.group.anchor.attr("pads")
        )
        out = np.zeros((w.shape[1], w.shape[0], *self.s.kernel), w.dtype)
        picks = []
        for axis in (0, 1):
            stride = self.phase.up[axis]
            rest = (self.phase.first[axis] + pads[axis]) % stride
            taps = self.s.kernel[axis]
            picks.append(
                [
                    (u, k)
                    for u in range(taps)
                    if (k := rest + stride * (taps - 1 - u)) < w.shape[2 + axis]
                ]
            )
        for u, k in picks[0]:
            for v, m in picks[1]:
                out[:, :, u, v] = w[:, :, k, m].T
        return out

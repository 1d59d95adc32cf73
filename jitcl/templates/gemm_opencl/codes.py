"""Weights of 4 or 8 bits that a product decodes by vectors of columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.target import Target
from jitcl.templates.base import Packed
from jitcl.templates.opencl.tiling import in_half
from jitcl.templates.packed import PIECE, Weights, narrow

CODED = 4                      # columns of a word of codes
LEAST_BLOCK = 8                # terms that are decoded at once: of one scale
LONGEST = 64                   # terms that are added up by an inner loop


@dataclass(frozen=True)
class Coded:
    """Elements of B are (code - zero) * scale + shift.

    `words` are u32 [k / terms][n / 4][4]: a byte for each of 4 columns, of 8 bits a term, of 4 two,
    the lower ones first. The last columns end at n, as those of scales and shifts [k / block][n /
    4][4].
    """

    weights: Weights

    @staticmethod
    def of(group: Group, target: Target) -> Coded | None:
        """Of a group that decodes its weights, on a GPU with such vectors; None for another."""
        node = group.anchor
        if node is None or target.device_type == "cpu" or in_half(group, target):
            return None
        w = Weights.of(node.inputs[1]) if group.decodes(node.inputs[1]) else None
        fits = min(target.vector_width, target.max_vector_width, node.type.dims[-1]) >= CODED
        return Coded(w) if w is not None and fits and w.block % LEAST_BLOCK == 0 else None

    @property
    def bits(self) -> int:
        return self.weights.bits

    @property
    def zero(self) -> int:
        """What is taken from the codes as they lie: those that have a sign then are stored so."""
        return 0 if self.signed else self.weights.zero

    @property
    def signed(self) -> bool:
        return self.weights.zero == 1 << self.bits - 1

    @property
    def block(self) -> int:
        """Terms that share a scale."""
        return self.weights.block

    @property
    def together(self) -> int:
        """Terms between two looks at scales."""
        return math.gcd(self.block, LONGEST)

    @property
    def terms(self) -> int:
        """Of a column in the four words that are read at once."""
        return 32 // self.bits

    @property
    def words(self) -> Packed:
        form = f"words of {CODED} {self.weights.form} {self.signed}"
        return Packed(self.weights.const, form, self._words)

    @property
    def beside(self) -> list[tuple[str, str, Packed]]:
        """(name, type, buffer) of scales and shifts."""
        return [(name, narrow(node.data), Packed(node, f"rows of {CODED}", _rows)) for name, node in
                (("scales", self.weights.scales), ("shifts", self.weights.shifts)) if node]

    @property
    def shifts(self) -> Node | None:
        return self.weights.shifts

    def _words(self, data: np.ndarray) -> np.ndarray:
        panels, length = overlapping(self.weights.n, CODED), self.weights.k * self.bits // 8
        found = np.empty((length // 4, len(panels), 4), "<u4")
        step = -(-PIECE // (CODED * self.weights.k))
        for at in range(0, len(panels), step):
            rows = panels[at:at + step]
            first = int(rows[0, 0])
            codes = self.weights.numbers(data, first, int(rows[-1, -1]) + 1)
            if self.signed:
                codes = codes ^ np.uint8(self.weights.zero)
            codes = codes[rows - first]                                   # [panels, 4, k]
            if self.bits == 4:
                codes = codes[..., ::2] | codes[..., 1::2] << 4
            turned = codes.reshape(len(rows), CODED, length // 4, 4).transpose(2, 0, 3, 1)
            found[:, at:at + step] = np.ascontiguousarray(turned).view("<u4")[..., 0]
        return found


def overlapping(count: int, size: int) -> np.ndarray:
    """Row numbers of tiles of `size` rows, [tiles, size]; the last tile overlaps the one before."""
    first = np.minimum(np.arange(0, count, size), count - size)
    return first[:, None] + np.arange(size)


def _rows(data: np.ndarray) -> np.ndarray:
    each = data.reshape(len(data), -1)[overlapping(len(data), CODED)]
    return np.ascontiguousarray(each.transpose(2, 0, 1).astype(dtypes.to_numpy(narrow(data))))


__all__ = ["CODED", "Coded", "overlapping"]

"""Weights of 4 or 8 bits that stay packed: what a product finds behind it, and how CPUs have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from jitcl import dtypes
from jitcl.ir.graph import Node
from jitcl.target import Target
from jitcl.templates.base import Packed

PIECE = 1 << 22             # codes that are arranged at once; a table of tokens has 30 times more
UNIT = 32                   # terms at most that share a factor, and are added as whole numbers
OFFSETS = {"i8": 128, "u8": 0}      # what makes codes unsigned


@dataclass(frozen=True)
class Weights:
    """(codes - zero) * scales + shifts, where codes are [n, blocks, block] of 4 or 8 unsigned bits.
    """

    const: Node                 # of bytes, in the order of the codes; the first of two lies low
    scales: Node                # [n, blocks, 1]
    shifts: Node | None         # [n, blocks, 1]; None: zeros
    bits: int
    offset: int                 # what makes codes unsigned
    zero: int                   # of unsigned codes
    block: int

    @staticmethod
    def of(b: Node) -> Weights | None:
        """The weights that `b` [k, n] is decoded from; None for another form of decoding."""
        if b.op != "transpose" or b.attr("perm") != (1, 0):
            return None
        decoded = b.inputs[0]
        if decoded.op == "reshape":
            decoded = decoded.inputs[0]
        shifts = None
        if decoded.op == "add":
            decoded, shifts = decoded.inputs
        if decoded.op != "dequantize" or decoded.type.rank != 3:
            return None
        codes, scales, *zeros = decoded.inputs
        dims = codes.type.dims
        if dims != decoded.type.dims or any(
                v.op != "const" or v.type.dims != (*dims[:2], 1)
                or v.type.dtype not in ("f32", "f16")
                for v in (scales, shifts) if v is not None):
            return None
        if any(z.op != "const" or z.type.size != 1 or z.type.dtype != codes.type.dtype
               for z in zeros):
            return None
        zero = int(zeros[0].data.reshape(())) if zeros else 0
        node, bits, offset = codes, 8, OFFSETS.get(codes.type.dtype)
        while node.op == "reshape" or node.op == "unpack_uint4" and bits == 8:
            bits = bits if node.op == "reshape" else 4
            node = node.inputs[0]
        if node.op != "const" or offset is None or dims[2] % 2:
            return None
        return Weights(node, scales, shifts, bits, offset, zero + offset, dims[2])

    @property
    def n(self) -> int:
        return self.scales.type.dims[0]

    @property
    def k(self) -> int:
        return self.scales.type.dims[1] * self.block

    @property
    def form(self) -> str:
        """What makes codes of the bytes."""
        return f"{self.bits} bits {self.offset} {self.n}x{self.k}"

    @property
    def unit(self) -> int:
        return min(self.block, UNIT)

    def pairs(self, target: Target) -> bool:
        """Whether 16 bits of a row are multiplied with a byte that takes 16, two by two."""
        return target.byte_dot == "pairs" and self.bits == 8

    def numbers(self, data: np.ndarray, first: int, last: int) -> np.ndarray:
        """u8 [last - first, k]: the unsigned codes of these rows."""
        row = self.k * self.bits // 8
        codes = data.reshape(-1)[first * row:last * row].view(np.uint8)
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1)
        return (codes ^ np.uint8(self.offset)).reshape(-1, self.k)     # 0, or half of all: adds it

    def codes(self, data: np.ndarray, width: int, pairs: bool) -> np.ndarray:
        """u8 [n / width][units][unit * bits / 32][width][4], zeros behind n.

        Of 4 bits the low halves of a vector are four terms, the high ones the four after them. Of
        pairs the first two of four terms are bytes 0 and 2.
        """
        units, quads = self.k // self.unit, self.unit // 4
        found = np.empty((-(-self.n // width), units, quads * self.bits // 8, width, 4), np.uint8)
        step = -(-PIECE // (width * self.k))
        for at in range(0, len(found), step):
            codes = self.numbers(data, at * width, min((at + step) * width, self.n))
            codes = np.pad(codes, ((0, -len(codes) % width), (0, 0)))
            turned = codes.reshape(-1, width, units, quads, 4).transpose(0, 2, 3, 1, 4)
            if self.bits == 4:
                turned = turned[:, :, ::2] | turned[:, :, 1::2] << 4
            elif pairs:
                turned = turned[..., [0, 2, 1, 3]]
            found[at:at + step] = turned
        return found

    def spread(self, data: np.ndarray, width: int, dtype: str) -> np.ndarray:
        """Scales or shifts as [n / width][units][width], zeros behind n."""
        n = len(data)
        each = np.repeat(data.reshape(n, -1), self.block // self.unit, axis=1)
        full = np.zeros((-(-n // width) * width, each.shape[1]), each.dtype)
        full[:n] = each
        turned = full.reshape(-1, width, each.shape[1]).transpose(0, 2, 1)
        return np.ascontiguousarray(turned.astype(dtypes.to_numpy(dtype)))

    def packed(self, target: Target) -> list[tuple[str, str, Packed]]:
        """Names and types of the buffers that every kernel of these weights reads."""
        width, pairs = target.vector_width, self.pairs(target)
        form = f"{width} {self.unit} {self.form}"
        named = [("w", "i32", Packed(self.const, f"codes {form}{' pairs' * pairs}",
                                     partial(self.codes, width=width, pairs=pairs)))]
        for name, each in (("scales", self.scales), ("shifts", self.shifts)):
            if each is not None:
                dtype = narrow(each.data)
                named.append((name, dtype, Packed(each, f"spread {form} {dtype}", partial(
                    self.spread, width=width, dtype=dtype))))
        return named


def narrow(data: np.ndarray) -> str:
    """f16 where no element is rounded by it, else f32."""
    with np.errstate(over="ignore"):
        return "f16" if np.array_equal(data, data.astype(np.float16)) else "f32"

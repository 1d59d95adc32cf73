"""Weights in few bits: what options say of them, and how they are rounded.

    real = (code - zero) * scale        a scale (f16), and a zero point, for each block of a row

Rows [n, k] are the weights that one output sums over, in the order of that sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl.errors import OptionError
from jitcl.ir.graph import Data

if TYPE_CHECKING:
    from jitcl.passes.options import Held

Array = np.ndarray[Any, Any]

BLOCKS = (32, 64, 128)
SMALLEST = BLOCKS[0]
FIELDS: dict[str, tuple[Any, ...]] = {
    "bits": (4, 8), "block": BLOCKS, "symmetric": (True, False), "plan": ("low", "normal", "high")}
NAMES = {"skip": 0, "wide": 8}      # options that are names of nodes: bits of their weights
LEAST_SCALE = 2.0 ** -20            # of any block: steps of f16 are a sixteenth of it there
DAMPING = 0.01                      # of the mean of a Hessian's diagonal, as GPTQ's authors have it
SHRUNK = tuple(np.arange(1.0, 0.6, -0.05))      # parts of a block's range that scales are tried for


@dataclass(frozen=True)
class Packing:
    """Which weights are stored in few bits, and how. bits: 4 or 8. block: weights along the sum's
    axis that share a scale; halved, to 32 at least, where it does not divide the sum's length.
    symmetric: without zero points. skip: names or patterns of nodes whose weights stay as they are;
    wide: of those whose weights take 8 bits. plan: what `memory` means without weights.

    calibration: a digest of what `rows` were rounded for; these are rows by their `key_of`, and
    others are rounded to the nearest. held: where a tolerance found skip and wide, what it came to.
    """

    bits: int = 8
    block: int = 64
    symmetric: bool = True
    skip: tuple[str, ...] = ()
    plan: str = "normal"
    wide: tuple[str, ...] = ()
    calibration: str = field(default="", kw_only=True)
    rows: Mapping[str, Rows] = field(default_factory=dict, kw_only=True, compare=False, repr=False)
    held: Held | None = field(default=None, kw_only=True, compare=False, repr=False)

    @staticmethod
    def of(given: Mapping[Any, Any] | str) -> Packing:
        """Of {"bits": 4, "block": 64, "skip": [..]}, or text, "bits=4;block=64;skip=NAME;skip=..".
        Raises OptionError.
        """
        said = _parsed(given) if isinstance(given, str) else dict(given)
        allowed = [f.name for f in fields(Packing)][:6]
        if "tolerance" in said:
            raise OptionError("memory: a tolerance is looked for by jitcl.compile, jitcl.quantize "
                              "and `jitcl run` alone\n  Here, give as skip and wide the nodes that "
                              "the report of one of these names.")
        for name, value in said.items():
            if name not in allowed:
                raise OptionError(f"memory: got {name!r}, wanted {', '.join(allowed)}, tolerance")
            wanted = FIELDS.get(name, (value,))
            if not any(value is w or (type(value) is type(w) and value == w) for w in wanted):
                raise OptionError(f"memory: {name} is {value!r}: use one of "
                                  f"{', '.join(map(str, wanted))}")
        for option in NAMES:
            given = said.pop(option, ())
            names = [given] if isinstance(given, str) else given
            if not isinstance(names, Iterable) or not all(isinstance(n, str) and n for n in names):
                raise OptionError(f"memory: {option} is {given!r}: use a list of names or patterns "
                                  "of nodes")
            said[option] = tuple(names)
        return Packing(**said)

    @property
    def said(self) -> str:
        """As text, which says the same when it is given as one."""
        return ";".join([*(f"{n}={getattr(self, n)}" for n in FIELDS),
                         *(f"{option}={n}" for option in NAMES for n in getattr(self, option))])

    def __str__(self) -> str:
        return f"{self.said} {self.calibration}".rstrip()

    def bits_of(self, name: str) -> int | None:
        """Of a node's weights, where its name says so; 0: they stay."""
        for option, bits in NAMES.items():
            if any(name == given or fnmatchcase(name, given) for given in getattr(self, option)):
                return bits
        return None

    def block_of(self, k: int) -> int:
        """The block for sums of k terms."""
        block = self.block
        while k % block and block > SMALLEST:
            block //= 2
        return block

    def packed(self, rows: Array) -> Rows | None:
        """The rows as they were calibrated, or rounded to the nearest; None where scales of f16
        don't reach them: weights that are not finite, too large, or so small that codes are zeros.
        """
        if not np.isfinite(rows).all():
            return None
        found = self.rows.get(key_of(rows, self.bits)) if self.rows else None
        found = found or nearest(rows, self)
        largest = float(found.scales.max(initial=0))
        return found if largest == 0 or LEAST_SCALE <= largest < np.inf else None

    def calibrated(self, digest: str, rows: Mapping[str, Rows]) -> Packing:
        return replace(self, calibration=digest, rows=rows)


def tolerated(given: Any) -> tuple[Any, Any]:
    """(`memory=` without its tolerance, the tolerance; None where it has none). Raises OptionError.
    """
    if not isinstance(given, Mapping) and not (isinstance(given, str) and "=" in given):
        return given, None
    said = _parsed(given) if isinstance(given, str) else dict(given)
    if "tolerance" not in said:
        return given, None
    limit = value = said.pop("tolerance")
    if isinstance(given, str):
        with suppress(ValueError):          # it is said below
            limit = float(value)
    number = isinstance(limit, (int, float, np.integer, np.floating))
    if not callable(limit) and (not number or isinstance(limit, bool) or not 0 <= limit < np.inf):
        raise OptionError(f"memory: tolerance is {value!r}: use a number from 0 up, in units of an "
                          "output's largest element, or a function of (outputs, outputs with "
                          "weights as they are)")
    return said, limit


def _parsed(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, value = (p.strip() for p in part.partition("="))
        if name in NAMES:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise OptionError(f"memory={text!r} says twice what '{name}' is")
        else:
            known = {str(v).lower(): v for v in FIELDS.get(name, ())}
            found[name] = known.get(value.lower(), value)
    return found


# ---- rows in blocks

@dataclass(frozen=True)
class Rows:
    """codes u8 [n, blocks, block], of which the last may lie behind the rows' end; scales f16 and
    zeros u8 [n, blocks, 1], zeros None: the middle of the codes.
    """

    bits: int
    codes: Array
    scales: Array
    zeros: Array | None = None

    @property
    def zero(self) -> Array | int:
        return 1 << (self.bits - 1) if self.zeros is None else self.zeros.astype(np.float32)

    def numbers(self, k: int) -> Array:
        """The weights that they stand for, f32 [n, k]."""
        real = (self.codes.astype(np.float32) - self.zero) * self.scales.astype(np.float32)
        return np.asarray(real.reshape(len(real), -1)[:, :k])


def key_of(rows: Array, bits: int) -> str:
    """Of rows' elements, in so many bits: one table may be read in 4 and in 8."""
    return f"{Data(rows, lambda: rows).digest}-{bits}"


def nearest(rows: Array, packing: Packing) -> Rows:
    """Each weight rounded to the nearest code: off by half a scale at most."""
    n, k = rows.shape
    block = packing.block_of(k)
    full = np.zeros((n, -(-k // block) * block), np.float32)
    full[:, :k] = rows
    parts = full.reshape(n, -1, block)
    scales, zeros = _grid(parts, packing)
    codes = _codes(parts, scales, zeros, packing.bits)
    return _rows(codes, scales, zeros, packing)


def _grid(parts: Array, packing: Packing, shrunk: float = 1.0) -> tuple[Array, Array]:
    """(scales, zeros), f32, with which codes reach the ends of the last axis' range, or a part of
    it. Scales are numbers of f16, rounded up."""
    low, high = (f(parts, axis=-1, keepdims=True) for f in (np.min, np.max))
    half = 1 << (packing.bits - 1)
    if packing.symmetric:
        scale = np.maximum(high / (half - 0.5), low / (-half - 0.5))
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = (high - low) / (2 * half - 1)
    scale = (scale * shrunk).astype(np.float32)
    with np.errstate(over="ignore"):
        stored = scale.astype(np.float16)
        stored = np.where(stored < scale, np.nextafter(stored, np.float16(np.inf)), stored)
    scale = stored.astype(np.float32)
    if packing.symmetric:
        return scale, np.full_like(scale, half)
    return scale, np.clip(np.rint(-low / _divisor(scale)), 0, 2 * half - 1)


def _divisor(scales: Array) -> Array:
    return np.where(scales > 0, scales, np.float32(1))


def _codes(w: Array, scales: Array, zeros: Array, bits: int) -> Array:
    return np.clip(np.rint(w / _divisor(scales)) + zeros, 0, (1 << bits) - 1)


def _rows(codes: Array, scales: Array, zeros: Array, packing: Packing) -> Rows:
    return Rows(packing.bits, codes.astype(np.uint8), scales.astype(np.float16),
                None if packing.symmetric else zeros.astype(np.uint8))


def gptq(rows: Array, inputs: Array, packing: Packing) -> Rows:
    """Weights [n, k] rounded so that sums over inputs [m, k] stay what they were: a column at a
    time, its error spread over those that are not rounded yet, by the Cholesky factor of the
    inverse Hessian of the inputs (Frantar et al., 2022, "GPTQ: Accurate Post-Training Quantization
    for Generative Pre-trained Transformers", arXiv:2210.17323). Scales are those of the weights as
    they are when their block's turn comes, for the part of their range that loses least.
    """
    n, k = rows.shape
    block = packing.block_of(k)
    hessian = (inputs.T @ inputs).astype(np.float64)
    mean = float(np.mean(np.diag(hessian)))
    if not np.isfinite(mean) or mean <= 0:
        return nearest(rows, packing)
    hessian[np.diag_indices(k)] += DAMPING * mean
    factor = np.linalg.cholesky(np.linalg.inv(hessian)).T.astype(np.float32)
    w = np.array(rows.T, np.float32, order="C")          # a column is contiguous here
    blocks = -(-k // block)
    codes = np.empty((blocks * block, n), np.float32)
    grids = []
    for first in range(0, k, block):
        part, u = w[first:first + block], factor[first:first + block]
        size = len(part)
        own = u[:, first:first + size]
        scale, zero = _best_grid(part.T, np.diag(own), packing)
        grids.append((scale, zero))
        scale, zero = scale[:, 0], zero[:, 0]
        codes[first:first + block] = zero
        errors = np.empty_like(part)
        for j in range(size):
            codes[first + j] = code = _codes(part[j], scale, zero, packing.bits)
            errors[j] = (part[j] - (code - zero) * scale) / own[j, j]
            part[j + 1:] -= own[j, j + 1:, None] * errors[j]
        w[first + size:] -= u[:, first + size:].T @ errors
    scales, zeros = (np.stack(g, axis=1) for g in zip(*grids))
    return _rows(codes.T.reshape(n, blocks, block), scales, zeros, packing)


def _best_grid(part: Array, pivots: Array, packing: Packing) -> tuple[Array, Array]:
    """The scales and zeros [n, 1] of a block [n, size] that lose least, where a column's error
    counts by its pivot of the factor."""
    best = scale = zero = None
    for shrunk in SHRUNK:
        s, z = _grid(part, packing, shrunk)
        off = (part - (_codes(part, s, z, packing.bits) - z) * s) / pivots
        lost = np.sum(off * off, axis=-1, keepdims=True)
        better = True if best is None else lost < best
        best = lost if best is None else np.where(better, lost, best)
        scale = s if scale is None else np.where(better, s, scale)
        zero = z if zero is None else np.where(better, z, zero)
    assert scale is not None and zero is not None
    return scale, zero


__all__ = ["Packing", "Rows", "gptq", "key_of", "nearest", "tolerated"]

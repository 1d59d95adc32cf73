"""What register tiles compute with: the intrinsic, and what an element is to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jitcl.target import Target


@dataclass(frozen=True)
class Arithmetic:
    """A tile's kind of numbers."""

    tile: str                # the intrinsic of devices/cpu/tiles.py
    dtype: str               # of packed weights and of sums
    together: int            # terms of a sum that are one element of the input and of weights
    less: int = 0            # what the intrinsic takes from each term's first factor


FLOATS = Arithmetic("tile", "f32", 1)
BYTES = Arithmetic("dot_tile", "i32", 4)
SIGNED_BYTES = Arithmetic("signed_dot_tile", "i32", 4, less=128)


def of_bytes(target: Target) -> Arithmetic:
    """As the CPU multiplies unsigned bytes with signed ones."""
    return SIGNED_BYTES if target.byte_dot == "signed" else BYTES


def fours(w: np.ndarray, axis: int) -> np.ndarray:
    """i8 -> i32: bytes along an axis by fours, the first one lowest, zeros behind the last.

        [K, C, kh, kw], axis 1  ->  [K, C / 4, kh, kw]
    """
    w = np.moveaxis(w, axis, -1)
    full = np.zeros((*w.shape[:-1], -(-w.shape[-1] // 4) * 4), np.int8)
    full[..., : w.shape[-1]] = w
    return np.ascontiguousarray(np.moveaxis(full.view("<i4"), -1, axis))

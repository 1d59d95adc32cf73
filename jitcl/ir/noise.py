"""Random numbers that are the same everywhere: a hash of a counter, vectorised.

NumPy's generators would do, but importing them costs more than what trials draw.
"""

from __future__ import annotations

import functools

import numpy as np

from jitcl import dtypes

KINDS = ("shifted", "positive")              # of floats, in the order that they are tried
ORIGIN = "origin"                            # as shifted, but all integers are 0: valid anywhere
POOL = 65521                                 # a prime: no row or plane meets its own numbers again
INDICES = 12                                 # wide integers lie below it: they may be indices


def noise(seed: int, count: int) -> np.ndarray:
    """`count` random 64-bit numbers: splitmix64 (Steele, Lea and Flood, 2014)."""
    z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 20)) * np.uint64(
        0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(seed: int, count: int) -> np.ndarray:
    """Float64 in (0, 1)."""
    return ((noise(seed, count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0 ** -52


class Noise:
    """Elements of a random buffer, by position: element i is pool[(start + i) % POOL]. No array of
    the buffer's size is made until `array` is asked for."""

    def __init__(self, size: int, dtype: str, seed: int, kind: str) -> None:
        self.size, self.pool, self.start = size, _pool(dtype, kind), seed % POOL

    def take(self, positions: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.pool.take((positions + self.start) % POOL)
        return found

    def array(self, supply: Supply) -> np.ndarray:
        """All elements, in memory that the supply's other arrays share: only to be read."""
        return supply.repeated(self.pool, self.start + self.size)[self.start:]


class Supply:
    """Long read-only arrays that repeat a short one. Each is made once, as long as was asked for:
    what many trials are fed are parts of few arrays."""

    def __init__(self) -> None:
        self._made: dict[int, np.ndarray] = {}
        self._short: list[np.ndarray] = []   # kept, so that no other array gets the id of one

    def repeated(self, short: np.ndarray, size: int) -> np.ndarray:
        """`size` elements: short, short, ..."""
        found = self._made.get(id(short))
        if found is None or found.size < size:
            found = np.empty(size, short.dtype)
            found[:short.size] = short[:size]
            done = short.size
            while done < size:                # what is there already, once more behind it
                found[done:2 * done] = found[:min(done, size - done)]
                done *= 2
            found.flags.writeable = False
            self._made[id(short)] = found
            self._short.append(short)
        return found[:size]


@functools.cache
def _pool(dtype: str, kind: str) -> np.ndarray:
    """Floats of deviation 1 around 1/2 (sums of them don't vanish), or all above 0.1; bytes of
    their whole range, wider integers from 0 to 11, both without what is not positive where the
    floats are; even truth values."""
    type = dtypes.to_numpy(dtype)
    if dtype == "bool":
        even: np.ndarray = uniform(1, POOL) < 0.5
        return even
    if dtypes.is_float(dtype):
        size = np.sqrt(-2 * np.log(uniform(1, POOL)))        # Box and Muller, 1958
        values = size * np.cos(2 * np.pi * uniform(2, POOL))
        positive = kind == "positive" or dtype == "f8e8m0"      # which has no sign
        values = np.abs(values) + 0.1 if positive else values + 0.5
        return np.asarray(values.astype(type))
    low, high = dtypes.limits(dtype) if type.itemsize == 1 else (0, INDICES - 1)
    if kind != KINDS[0]:
        low, high = (0, 0) if kind == ORIGIN else (1, high)
    values = np.floor(uniform(1, POOL) * (int(high) - int(low) + 1)) + int(low)
    return np.asarray(values.astype(type))

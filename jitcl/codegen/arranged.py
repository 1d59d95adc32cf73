"""Constants as templates have arranged them, once for all plans of this process that hold them.

A language model has a plan for a prompt and one for a token, a trial one for each candidate: to
arrange the weights for each takes seconds, and as much memory again until the second is in the
cache. Nothing is kept here that no plan holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import numpy as np

from jitcl import forking
from jitcl.ir.graph import Data
from jitcl.target import Target

_held: weakref.WeakValueDictionary[tuple[str, Data, str], np.ndarray] = (
    weakref.WeakValueDictionary())
_lock = forking.lock()


def arranged(data: Data, key: str, target: Target, make: Callable[[np.ndarray], np.ndarray]
             ) -> np.ndarray:
    """What `make` gives for the elements; `key` names it among those of the target's templates."""
    what = (target.key, data, key)
    with _lock:
        found = _held.get(what)
    if found is None:
        found = np.ascontiguousarray(make(data.array))
        with _lock:
            _held[what] = found
    return found


def moved(to: Mapping[int, np.ndarray]) -> None:
    """Arrays of these ids lie elsewhere, where they take no memory of this process alone."""
    with _lock:
        _held.update({what: to[id(held)] for what, held in _held.items() if id(held) in to})


__all__ = ["arranged", "moved"]

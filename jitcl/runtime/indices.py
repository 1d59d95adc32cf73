"""The check of a run's indices: two reductions of each integer input that is one, before a run; of
what is computed (JITCL_CHECK_INDICES), a look at two outputs behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence

import numpy as np

from jitcl.devices import recording
from jitcl.errors import InputError
from jitcl.ir.indices import IndexCheck, outside, range_text
from jitcl.runtime.tensors import elements


def check_indices(checks: Sequence[IndexCheck], arrays: Mapping[str, np.ndarray],
                  called: Callable[[str], str] = "input '{}'".format) -> None:
    """InputError where an input holds an index that lies outside. `called`: an input for people.
    """
    for check in checks:
        if check.computed:
            continue
        with recording.span("guard", "indices"):
            found = outside(elements(arrays[check.source]), check.low, check.high)
        if found is None:
            continue
        value, place, n = found
        at = f" at {list(place)}" if place else ""
        raise InputError(
            f"{called(check.source)}: index {value}{at} is out of range\n"
            f"  node '{check.node}' ({check.op_type}) takes "
            f"{range_text(check.low[n], check.high[n])}")


def check_computed(checks: Sequence[IndexCheck], results: MutableMapping[str, np.ndarray]) -> None:
    """Take the outputs out that are there for checks; InputError where one tells of an index that
    lies outside."""
    for check in checks:
        if not check.computed:
            continue
        ends = [elements(results.pop(name)).reshape(-1).tolist() for name in check.outputs]
        for least, most, low, high in zip(*ends, check.low, check.high):
            if not low <= least or not most <= high:
                raise InputError(
                    f"node '{check.node}' ({check.op_type}): the indices that the model computes "
                    f"for it from these inputs lie in {least} to {most}\n"
                    f"  It takes {range_text(low, high)}. Without JITCL_CHECK_INDICES the nearest "
                    "one inside is read, and none outside is written.")


__all__ = ["check_computed", "check_indices"]

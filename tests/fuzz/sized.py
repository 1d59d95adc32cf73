"""Several shapes for one compiled model: an extent of a case's inputs is left open, and fed larger.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper

import jitcl
from jitcl.errors import JitclError, UnsupportedError
from tests import devices
from tests.fuzz import oracle
from tests.fuzz.drawing import Case
from tests.fuzz.engines import Verdict, judge, types_of

FACTORS = ((2, 0), (1, 1), (3, 0), (1, 0), (5, 0), (1, 2))      # others are k * extent + c


def opened(case: Case) -> tuple[onnx.ModelProto, int] | None:
    """The model with the longest extent of its inputs as a dimension `n`, and that extent."""
    extent = max((d for x in case.feeds.values() for d in x.shape), default=0)
    if extent < 2:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in model.graph.input:
        dims = ["n" if d == extent else d for d in case.feeds[value.name].shape]
        value.CopyFrom(helper.make_tensor_value_info(
            value.name, value.type.tensor_type.elem_type, dims))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model, extent


def fed(case: Case, extent: int) -> Iterator[dict[str, np.ndarray]]:
    """The case's inputs, and inputs of other extents with the same elements."""
    yield case.feeds
    for k, c in FACTORS:
        yield {name: np.resize(x, [k * d + c if d == extent else d for d in x.shape])
               for name, x in case.feeds.items()}


def judge_sizes(case: Case, device: str) -> Verdict:
    """What one compiled model makes of several shapes; undecided where onnx's reference takes fewer
    than three.
    """
    found = opened(case)
    if found is None:
        return Verdict("undecided")
    model, extent = found
    types, right = types_of(case), []
    for feeds in fed(case, extent):
        try:
            right.append((feeds, oracle.wanted(model, feeds, types)))
        except Exception:  # noqa: BLE001  a constant of the graph wants the drawn extent
            continue
    if len(right) < 3:
        return Verdict("undecided")
    place = devices.device(device)
    assert place is not None, f"no device {device}"
    compiled = jitcl.compile(model, device=place)
    for number, (feeds, wanted) in enumerate(itertools.chain(right, right[:2])):
        at = f"run {number} of n = {[d for x in feeds.values() for d in x.shape]}"
        try:
            outputs = compiled.run(feeds)
        except UnsupportedError as error:
            return Verdict("unsupported", str(error))
        except JitclError as error:
            alone = judge(Case(model, feeds), device)
            if alone.outcome == "error":        # not these shapes: onnx's reference takes more
                continue
            return Verdict("error", f"{at}: {type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001  any other exception is a find, too
            return Verdict("error", f"{at}: {type(error).__name__}: {error}")
        for name, want in wanted.items():
            wrong = oracle.difference(np.asarray(outputs[name]), want, types[name])
            if wrong:
                return Verdict("wrong", f"{at}, output {name}: {wrong}")
    return Verdict("ok")

"""Constants that templates arrange: once for all plans that hold them, and no longer than these."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np

from jitcl.codegen import arranged
from jitcl.ir.graph import Data
from tests.generated.kernels import TARGETS

GPU = dataclasses.replace(TARGETS["gpu"], name="of these tests alone")


def test_plans_share_what_is_arranged() -> None:
    made = []

    def make(x: np.ndarray) -> np.ndarray:
        made.append(1)
        return x.T

    x = np.arange(600, dtype=np.float32).reshape(20, 30)
    first = arranged.arranged(Data(x), "turned", GPU, make)
    assert (first == x.T).all() and first.flags.c_contiguous
    assert arranged.arranged(Data(x.copy()), "turned", GPU, make) is first and len(made) == 1
    other = dataclasses.replace(GPU, vector_width=8)
    for data, key, target in ((x + 1, "turned", GPU), (x, "so", GPU), (x, "turned", other)):
        assert arranged.arranged(Data(data), key, target, make) is not first
    assert len(made) == 4
    mapped = first.copy()                       # as the cache has it
    arranged.moved({id(first): mapped})
    del first
    gc.collect()
    assert arranged.arranged(Data(x), "turned", GPU, make) is mapped and len(made) == 4
    del mapped
    gc.collect()
    assert GPU.key not in {target for target, _, _ in arranged._held}
    arranged.arranged(Data(x), "turned", GPU, make)
    assert len(made) == 5

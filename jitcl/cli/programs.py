"""`jitcl dump` of a model that is no single graph: its parts, at the shapes that a run meets.

What a part's inputs look like, data may decide. So the program runs once, on the CPU, and each part
is lowered for the device that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jitcl.cli.feeds import Scaling, read_feeds
from jitcl.cli.lowered import LoweredProgram, lower_part
from jitcl.cli.options import full_shapes
from jitcl.errors import InputError
from jitcl.runtime.inputs import random_feed

if TYPE_CHECKING:
    from jitcl.runtime.model import Model


def lower_program(model: Model, shapes: Mapping[str, tuple[int, ...]],
                  given: Sequence[str]) -> LoweredProgram:
    """Run the model on the CPU, with random numbers for what is not given, and lower its parts."""
    from jitcl.devices.select import open_device
    from jitcl.runtime.model import Model as Opened

    feeds = all_feeds(model, shapes, given)
    found = Opened(model.source, open_device("cpu"), model.options, False,
                   model.cache.cache.root, None)
    found.run(feeds)
    assert found.program is not None
    parts = [lower_part(model, ran.model.source, ran.shapes, ran.values)
             for ran in found.program.last if ran.model is not None]
    return LoweredProgram(parts, found.report())


def all_feeds(model: Model, shapes: Mapping[str, tuple[int, ...]],
              given: Sequence[str]) -> dict[str, np.ndarray]:
    """What was given, and random numbers for other tensors; InputError for what can't be random."""
    feeds = read_feeds(model, given, Scaling(), shapes)
    for t in model.inputs:
        if t.value is not None and t.name not in feeds and not t.optional and (
                t.value.kind != "optional"):
            raise InputError(f"input {t} was not given\n  Say what it is: -i {t.name}='[...]'")
    wanted = full_shapes(model, shapes, known=tuple(feeds))
    return feeds | {t.name: random_feed(t, wanted[t.name], 0)
                    for t in model.inputs if t.name in wanted}


__all__ = ["all_feeds", "lower_program"]

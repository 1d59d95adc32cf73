"""The strategy: graphs of 1 to 8 nodes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import assume
from hypothesis import strategies as st

from tests.fuzz import heavy, pointwise, shaping
from tests.fuzz.drawing import KINDS, ORDINARY, Case, Drawer, Skip
from tests.fuzz.registry import DRAWS

MODULES = (pointwise, shaping, heavy)       # importing them fills DRAWS


@st.composite
def cases(draw: st.DrawFn, ops: Sequence[str] = (), most: int = 8) -> Case:
    """A valid model of up to `most` nodes that onnx's reference computes. `ops`: of these only."""
    d = Drawer(draw)
    # graphs with NaN and infinities are a kind of their own: they hide what is wrong elsewhere
    d.kinds = KINDS if d.int(0, 4) == 4 else ORDINARY
    known = sorted(set(ops) & set(DRAWS) if ops else DRAWS)
    for _ in range(d.int(1, most)):
        op = d.pick(known)
        made, values = len(d.nodes), len(d.values)
        try:
            DRAWS[op](d, op)
        except Skip:
            del d.nodes[made:], d.values[values:]
    assume(d.nodes)
    return d.case()

"""The pipeline: what happens to a graph between import and code generation, in order."""

from __future__ import annotations

from jitcl.passes.base import Pass
from jitcl.passes.decompose import Decompose
from jitcl.passes.fold import FoldConstants
from jitcl.passes.options import Options
from jitcl.target import Target


def pipeline(target: Target, options: Options) -> tuple[Pass, ...]:
    return (
        FoldConstants(),
        Decompose(),
        FoldConstants(),
    )

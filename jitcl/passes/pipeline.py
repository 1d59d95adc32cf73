"""The pipeline: what happens to a graph between import and code generation, in order."""

from __future__ import annotations

from collections.abc import Mapping

from jitcl.passes.base import Pass
from jitcl.passes.canonicalise import Canonicalise
from jitcl.passes.concat import SplitConcat
from jitcl.passes.decompose import Decompose
from jitcl.passes.fold import FoldConstants
from jitcl.passes.integer_products import FloatProducts, IntegerProducts, UnsignedBytes
from jitcl.passes.layout import AssignLayouts
from jitcl.passes.options import Options
from jitcl.passes.pack_weights import PackWeights
from jitcl.passes.pointwise import ConvolveSmall, MergeProducts, PixelProducts
from jitcl.passes.precision import CheckTypes
from jitcl.passes.projected_bytes import ProjectedBytes
from jitcl.passes.simplify import (
    DivideOnce,
    FoldPad,
    FoldScale,
    FoldScaleBefore,
    MergeBounds,
    NameActivations,
)
from jitcl.passes.transposed import PhasesOfTransposed
from jitcl.passes.views import ViewsLast
from jitcl.passes.weight_rows import WeightRows
from jitcl.passes.wide_softmax import WidenSoftmax
from jitcl.target import Target


def pipeline(target: Target, options: Options, bits: Mapping[str, int] | None = None
             ) -> tuple[Pass, ...]:
    """The passes for a target. `fuse` follows them, which makes groups of the graph that they
    leave, and `assign_precision`, which says what is stored and computed as f16. bits: of
    the model's nodes whose weights take others than the rest.
    """
    packed = target.packed_weights
    return (
        FoldConstants(packed=packed),                # shape arithmetic, reshaped weights
        UnsignedBytes(target),
        IntegerProducts(target),
        ProjectedBytes(target),
        FloatProducts(target),
        *((WidenSoftmax(),) if options.precision == "high" else ()),
        Decompose(),
        Canonicalise(),
        FoldConstants(packed=packed),
        ViewsLast(),
        FoldScale(),
        FoldScaleBefore(),
        FoldPad(),
        *((PackWeights(options.weights, bits or {}),) if options.weights is not None else ()),
        PixelProducts(),
        ConvolveSmall(),
        MergeProducts(),
        FoldScale(),                                 # shifts that two products left in a row
        PhasesOfTransposed(target),
        MergeBounds(),
        NameActivations(),
        DivideOnce(),
        Canonicalise(),
        FoldConstants(packed=packed),
        WeightRows(target),
        SplitConcat(target.max_concat),
        CheckTypes(target),
        AssignLayouts(target, options.low and target.computes_f16),
    )

"""Ops by kind; importing the package declares them all."""

from __future__ import annotations

import importlib

from jitcl.ops.core import ONNX, OPS

MODULES = (                      # one a line, so that two additions never clash
    "elementwise",
    "low_bits",
    "logic",
    "activation",
    "reduction",
    "movement",
    "slicing",
    "gather",
    "scatter",
    "sorting",
    "creation",
    "sizes",
    "contraction",
    "window",
    "pooling",
    "normalisation",
    "resize",
    "quantise",
    "quantised",
    "attention",
    "sampling",
    "contrib_fused",
    "contrib_nbits",
    "contrib_quantised",
    "rotary",
    "contrib_attention",
    "contrib_misc",
    "contrib_experts",
    "inverse",
    "legacy",
    "fourier",
    "roi",
    "deform",
    "linear_algebra",
    "random",
    "selection",
    "nonzero",
    "detection",
    "training",
    "text",
    "recurrent",
    "recurrent_onnx",
    "linear_attention",
    "trees",
    "ml_trees",
    "ml_linear",
    "ml_svm",
    "ml_features",
)

for _name in MODULES:
    importlib.import_module(f"{__name__}.{_name}")

__all__ = ["MODULES", "ONNX", "OPS"]

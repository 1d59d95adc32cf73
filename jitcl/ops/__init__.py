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
    "attention",
    "sampling",
    "rotary",
    "inverse",
    "fourier",
    "roi",
    "deform",
    "linear_algebra",
    "random",
    "selection",
    "nonzero",
    "detection",
    "text",
    "recurrent",
    "linear_attention",
    "trees",
    "ml_svm",
    "ml_features",
)

for _name in MODULES:
    importlib.import_module(f"{__name__}.{_name}")

__all__ = ["MODULES", "ONNX", "OPS"]

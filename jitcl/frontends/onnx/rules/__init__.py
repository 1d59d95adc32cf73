"""Import rules of ONNX ops that others express, with no op of their own; importing the package
enters them into `ONNX`, beside the rules that stand with their ops.
"""

from __future__ import annotations

import importlib

from jitcl.ops import ONNX

MODULES = (                      # one a line, so that two additions never clash
    "contrib_attention",
    "contrib_experts",
    "contrib_fused",
    "contrib_misc",
    "contrib_nbits",
    "contrib_quantised",
    "legacy",
    "recurrent",
    "ml_trees",
    "ml_linear",
    "training",
    "quantised",
)

for _name in MODULES:
    importlib.import_module(f"{__name__}.{_name}")

__all__ = ["MODULES", "ONNX"]

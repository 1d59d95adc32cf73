"""Ops by kind; importing the package declares them all."""

from jitcl.ops import contraction, elementwise, normalisation, pooling, window
from jitcl.ops.core import ONNX, OPS

__all__ = ["ONNX", "OPS", "contraction", "elementwise", "normalisation", "pooling", "window"]

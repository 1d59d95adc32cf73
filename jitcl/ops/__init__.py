"""Ops by kind; importing the package declares them all."""

from jitcl.ops import elementwise
from jitcl.ops.core import ONNX, OPS

__all__ = ["ONNX", "OPS", "elementwise"]

"""ONNX models, from opset 7 on.

    model = load("model.onnx")                            # checked; ModelError says what is wrong
    graph = import_model(model, {"x": (1, 3, 224, 224)})   # concrete shapes, one graph each

Differences between opsets live in `opsets`, function bodies in `functions`; rules of ops stand
beside the ops, those of what other ops express in `rules`.
"""

from jitcl.frontends.onnx.importer import import_model
from jitcl.frontends.onnx.model import OnnxModel, load

__all__ = ["OnnxModel", "import_model", "load"]

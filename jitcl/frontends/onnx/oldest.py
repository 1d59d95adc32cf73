"""Differences of the opsets 1 to 6 from opset 7: broadcasting by attributes, `consumed_inputs`,
parameters that were attributes. What changed later stands in `opsets`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from jitcl.errors import ModelError, ShapeError
from jitcl.frontends.onnx.node import OnnxNode
from jitcl.ir.graph import const
from jitcl.ops.core import norm_axis

Change = Callable[[Any, OnnxNode], OnnxNode]
BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")
# attributes that said how to run, not what to compute; is_test: models are run, not trained
DROPPED = ("consumed_inputs", "is_test", "output_sequence")


def _broadcast(g: Any, node: OnnxNode) -> OnnxNode:
    """The second operand's axes lie at those of the first from `axis` on; at the last ones where
    there is none, as everywhere now."""
    a, b = node.inputs[:2]
    assert a is not None and b is not None
    attrs = {k: v for k, v in node.attrs.items() if k not in ("axis", "broadcast")}
    if not node.attrs.get("broadcast", 0):
        if a.type.dims != b.type.dims:
            raise ShapeError(f"operands {a.type} and {b.type} must have one shape, as the node has "
                             f"no attribute broadcast=1 (opset {node.opset})")
        return node.with_(attrs=attrs)
    axis = node.attrs.get("axis")
    if axis is not None and b.type.rank:
        behind = a.type.rank - norm_axis(int(axis), a.type.rank) - b.type.rank
        if behind < 0:
            raise ShapeError(f"{b.type} does not fit {a.type} from axis {axis} on")
        b = g.reshape(b, shape=(*b.type.dims, *(1,) * behind))
    return node.with_(inputs=(a, b), attrs=attrs)


def _slope(g: Any, node: OnnxNode) -> OnnxNode:
    """One slope for all, or one a channel (axis 1)."""
    x, slope = node.inputs[:2]
    assert x is not None and slope is not None
    if slope.type.rank == 1 and x.type.rank > 2 and slope.type.size > 1:
        slope = g.reshape(slope, shape=(*slope.type.dims, *(1,) * (x.type.rank - 2)))
    return node.with_(inputs=(x, slope))


def _reshape(g: Any, node: OnnxNode) -> OnnxNode:
    if node.input(1) is not None:
        return node
    if "shape" not in node.attrs:
        raise ModelError("has no attribute 'shape', which Reshape of opset 1 to 4 takes")
    shape = const(np.array(node.attrs["shape"], np.int64))
    return node.with_(inputs=(node.inputs[0], shape), attrs={})


def _tile(g: Any, node: OnnxNode) -> OnnxNode:
    """One count, for one axis."""
    x, tiles, axis = node.inputs[0], node.static(1), node.static(2)
    assert x is not None and tiles is not None and axis is not None
    repeats = np.ones(x.type.rank, np.int64)
    repeats[norm_axis(int(axis.reshape(())), x.type.rank)] = int(tiles.reshape(()))
    return node.with_(inputs=(x, const(repeats)))


def _pad(g: Any, node: OnnxNode) -> OnnxNode:
    attrs = dict(node.attrs)
    if "paddings" in attrs:
        attrs["pads"] = attrs.pop("paddings")
    return node.with_(attrs=attrs)


def _concat(g: Any, node: OnnxNode) -> OnnxNode:
    return node.with_(attrs={"axis": 1, **node.attrs})


def _cast(g: Any, node: OnnxNode) -> OnnxNode:
    """The type was a name."""
    to = node.attrs.get("to")
    if not isinstance(to, str):
        return node
    known = dict(onnx.TensorProto.DataType.items())
    if to.upper() not in known:
        raise ModelError(f"attribute to='{to}' is no element type of ONNX")
    return node.with_(attrs={"to": known[to.upper()]})


def _gemm(g: Any, node: OnnxNode) -> OnnxNode:
    return node.with_(attrs={k: v for k, v in node.attrs.items() if k != "broadcast"})


def _upsample(g: Any, node: OnnxNode) -> OnnxNode:
    """Scales of height and width."""
    if "scales" in node.attrs or node.input(1) is not None:
        return node
    attrs = dict(node.attrs)
    try:
        scales = (1.0, 1.0, attrs.pop("height_scale"), attrs.pop("width_scale"))
    except KeyError as error:
        raise ModelError(f"has no attribute {error}, which Upsample of opset 1 takes") from error
    return node.with_(attrs={**attrs, "scales": scales})


# op type -> (first opset of the new form, change); in the order of opsets
CHANGES: dict[str, tuple[int, Change]] = {
    **dict.fromkeys(BROADCASTING, (7, _broadcast)), "PRelu": (7, _slope), "Reshape": (5, _reshape),
    "Tile": (6, _tile), "Pad": (2, _pad), "Concat": (4, _concat), "Cast": (6, _cast),
    "Gemm": (7, _gemm), "Upsample": (7, _upsample)}


def as_of_7(g: Any, node: OnnxNode) -> OnnxNode:
    """A node of the opsets 1 to 6 as opset 7 writes it."""
    before, change = CHANGES.get(node.op_type, (0, None))
    if change is not None and node.opset < before:
        node = change(g, node)
    dropped = [k for k in DROPPED if k in node.attrs]
    if not dropped:
        return node
    return node.with_(attrs={k: v for k, v in node.attrs.items() if k not in dropped})

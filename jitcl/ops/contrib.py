"""What import rules of onnxruntime's ops (domain com.microsoft) share: they are built from ONNX's
own ops, so that they fuse and meet the templates as those do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitcl.errors import ModelError, UnsupportedError
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import ONNX, Rule, norm_axis, onnx_rule

MICROSOFT = "com.microsoft"
NEWEST_FORM = 22           # the opset whose attributes and inputs `standard` is given


def microsoft(*op_types: str) -> Callable[[Rule], Rule]:
    """Import rule of ops of com.microsoft."""
    return onnx_rule(*op_types, domain=MICROSOFT)


def both_domains(*op_types: str) -> Callable[[Rule], Rule]:
    """Import rule of ops that onnxruntime registers in ONNX's domain, too."""
    def enter(rule: Rule) -> Rule:
        for domain in ("", MICROSOFT):
            onnx_rule(*op_types, domain=domain)(rule)
        return rule
    return enter


def standard(g: GraphBuilder, node: Any, op_type: str, *inputs: Node | None,
             attrs: dict[str, Any] | None = None, opset: int = NEWEST_FORM) -> Node:
    """The (first) result of ONNX's op on these operands; `attrs` are the node's where not given."""
    attrs = node.attrs if attrs is None else attrs
    inner = node.with_(op_type=op_type, domain="", inputs=inputs, attrs=attrs, opset=opset,
                       n_outputs=1)
    y = ONNX["", op_type](g, inner)
    if y is NotImplemented:
        raise UnsupportedError(f"needs a form of {op_type} that has no rule")
    result: Node = y[0] if isinstance(y, tuple) else y
    return result


def inputs_of(node: Any, count: int, needs: Sequence[int] = (0,)) -> tuple[Any, ...]:
    """The first `count` inputs, None where one is left out; ModelError where one of `needs` is."""
    for i in needs:
        if node.input(i) is None:
            raise ModelError(f"input {i} is left out, which {node.op_type} needs")
    return tuple(node.input(i) for i in range(count))


def channels_first(g: GraphBuilder, x: Node) -> Node:
    """NHWC (any number of spatial axes) as NCHW."""
    rank = x.type.rank
    return g.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(g: GraphBuilder, x: Node) -> Node:
    """NCHW (any number of spatial axes) as NHWC."""
    rank = x.type.rank
    return g.transpose(x, perm=(0, *range(2, rank), 1))


def flat_softmax(g: GraphBuilder, x: Node, axis: int) -> Node:
    """Softmax before opset 13: over all axes from `axis` on, as one."""
    lead = x.type.dims[:norm_axis(axis, x.type.rank)]
    return g.reshape(g.softmax(g.reshape(x, shape=(*lead, -1))), shape=x.type.dims)


def refuse(condition: bool, what: str, how: str) -> None:
    """UnsupportedError for a form of an op that jitcl does not compile, with the way out."""
    if condition:
        raise UnsupportedError(f"{what}: {how}")

"""Gradient of ai.onnx.preview.training: it names a value of the graph, so it is no plain rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx import NodeProto

from jitcl.errors import ModelError
from jitcl.frontends.onnx.scope import MISSING, Scope, Value
from jitcl.ir.graph import Node
from jitcl.ops.gradient import gradients


def _gradient(importer: Any, proto: NodeProto, inputs: Sequence[Value | None],
              attrs: dict[str, Any], scope: Scope) -> Sequence[Value | None]:
    """The derivative of the value that attribute y names by each of xs, the first inputs."""
    name, count = attrs["y"], len(attrs["xs"])
    known, y = scope.find(name)
    if y is MISSING:
        return [MISSING] * len(proto.output)
    if not known or not isinstance(y, Node):
        raise ModelError(f"differentiates '{name}', which no node before it makes")
    xs = [x for x in inputs[:count] if isinstance(x, Node)]
    if len(xs) != count:
        raise ModelError(f"differentiates by {count} values ({', '.join(attrs['xs'])}), but "
                         f"{len(xs)} are given")
    return gradients(importer.g, y, xs)


RULES: dict[str, Callable[..., Sequence[Value | None]]] = {"Gradient": _gradient}

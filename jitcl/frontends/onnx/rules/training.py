"""Optimisers of ai.onnx.preview.training: each is a formula over a tensor, its gradient and its
accumulated state. Several tensors in one node are several formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import onnx_rule

DOMAIN = "ai.onnx.preview.training"
# (learning rate, update count, tensor, gradient, states) -> the new tensor, the new states
Step = Callable[[Node, Node, Node, Node, list[Node]], tuple[Node, ...]]


def _optimised(g: GraphBuilder, node: Any, states: int, step: Step) -> tuple[Node, ...]:
    """Inputs R, T, all X, all gradients, all of each state; outputs all new X, then states."""
    given = [i for i in node.inputs if i is not None]
    if len(given) < 4 + states or (len(given) - 2) % (2 + states):
        raise ShapeError(f"{node.op_type} takes R, T and {2 + states} tensors for each that is "
                         f"optimised, got {len(given)} inputs")
    rate, count, *tensors = given
    many = len(tensors) // (2 + states)
    results = []
    for k in range(many):
        x, gradient, *state = tensors[k::many]
        for other in (gradient, *state):
            if other.type != x.type:
                raise TypeError_(f"{node.op_type}: X is {x.type}; its gradient and state must be "
                                 f"alike, got {other.type}")
        if not dtypes.is_float(x.type.dtype):
            raise TypeError_(f"{node.op_type} optimises floats, got {x.type}")
        r, t = (g.reshape(g.cast(v, to=x.type.dtype), shape=()) for v in (rate, count))
        results.append(step(r, t, x, _regularised(g, node, x, gradient), state))
    return tuple(new for kind in zip(*results) for new in kind)


def _regularised(g: GraphBuilder, node: Any, x: Node, gradient: Node) -> Node:
    weight = node.attrs.get("norm_coefficient", 0.0)
    return g.add(g.mul(x, float(weight)), gradient) if weight else gradient


@onnx_rule("Momentum", domain=DOMAIN)
def _momentum(g: GraphBuilder, node: Any) -> tuple[Node, ...]:
    """Stochastic gradient descent with momentum, plain or Nesterov's."""
    alpha, beta = float(node.attrs["alpha"]), float(node.attrs["beta"])
    mode = node.attrs["mode"]
    if mode not in ("standard", "nesterov"):
        raise ModelError(f"Momentum's mode is '{mode}': wanted standard or nesterov")

    def step(r: Node, t: Node, x: Node, gradient: Node, state: list[Node]) -> tuple[Node, ...]:
        first = g.where(g.greater(t, 0.0), g.const(beta, x.type.dtype), g.const(1, x.type.dtype))
        moved = g.add(g.mul(state[0], alpha), g.mul(gradient, first))
        along = moved if mode == "standard" else g.add(g.mul(moved, alpha), gradient)
        return g.sub(x, g.mul(along, r)), moved
    return _optimised(g, node, 1, step)


@onnx_rule("Adagrad", domain=DOMAIN)
def _adagrad(g: GraphBuilder, node: Any) -> tuple[Node, ...]:
    """Steps shrink with the squares of all gradients so far (Duchi et al., 2011)."""
    decay, epsilon = node.attrs.get("decay_factor", 0.0), node.attrs.get("epsilon", 1e-6)

    def step(r: Node, t: Node, x: Node, gradient: Node, state: list[Node]) -> tuple[Node, ...]:
        rate = g.div(r, g.add(g.mul(t, float(decay)), 1.0))
        squares = g.add(state[0], g.mul(gradient, gradient))
        scale = g.add(g.sqrt(squares), float(epsilon))
        return g.sub(x, g.div(g.mul(gradient, rate), scale)), squares
    return _optimised(g, node, 1, step)


@onnx_rule("Adam", domain=DOMAIN)
def _adam(g: GraphBuilder, node: Any) -> tuple[Node, ...]:
    """Adaptive moments (Kingma and Ba, 2014), corrected for their start at 0 from T = 1 on."""
    alpha, beta = float(node.attrs.get("alpha", 0.9)), float(node.attrs.get("beta", 0.999))
    epsilon = float(node.attrs.get("epsilon", 1e-6))
    after = float(node.attrs.get("norm_coefficient_post", 0.0))

    def step(r: Node, t: Node, x: Node, gradient: Node, state: list[Node]) -> tuple[Node, ...]:
        def left(factor: float) -> Node:
            """1 - factor^t."""
            return g.sub(g.const(1, x.type.dtype), g.pow(g.const(factor, x.type.dtype), t))
        first = g.add(g.mul(state[0], alpha), g.mul(gradient, 1 - alpha))
        second = g.add(g.mul(state[1], beta), g.mul(g.mul(gradient, gradient), 1 - beta))
        corrected = g.div(g.mul(r, g.sqrt(left(beta))), left(alpha))
        rate = g.where(g.greater(t, 0.0), corrected, r)
        new = g.sub(x, g.mul(g.div(first, g.add(g.sqrt(second), epsilon)), rate))
        return g.mul(new, 1 - after) if after else new, first, second
    return _optimised(g, node, 2, step)

"""onnxruntime's mixtures of experts, and its LSTM with quantised weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitcl.errors import ModelError, ShapeError
from jitcl.frontends.onnx.rules.contrib_nbits import dequantised, unpacked
from jitcl.frontends.onnx.rules.recurrent import lstm
from jitcl.ir.graph import Node, const
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contrib import inputs_of, microsoft, refuse
from jitcl.ops.core import ONNX

ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")

# ---- mixtures of experts: all experts are computed, those not chosen weigh nothing


def _routing(g: GraphBuilder, node: Any, logits: Node, mixing: Node | None) -> Node:
    """[tokens, experts]: what each expert's result weighs; all but the k best have 0. (QMoE of
    onnxruntime's CPU normalises the weights whatever its attribute says; MoE does not.)"""
    tokens, experts = logits.type.dims
    k = int(node.attrs.get("k", 1))
    probabilities = g.softmax(logits, axis=-1)
    inner = node.with_(op_type="TopK", domain="", attrs={"axis": -1}, n_outputs=2, opset=22,
                       inputs=(probabilities, g.const(np.array([k]))))
    best, which = ONNX["", "TopK"](g, inner)
    if mixing is not None:
        best = g.gather_elements(mixing, which, axis=1)
    if node.attrs.get("normalize_routing_weights", 0):
        best = g.div(best, g.reduce_sum(best, axes=(1,), keepdims=True))
    chosen = g.equal(g.reshape(which, shape=(tokens, k, 1)),
                     g.const(np.arange(experts), which.type.dtype))
    each = g.where(chosen, g.reshape(best, shape=(tokens, k, 1)), g.const(0, best.type.dtype))
    return g.reduce_sum(each, axes=(1,), keepdims=False)


def _linear(g: GraphBuilder, x: Node, w: Node, bias: Node | None) -> Node:
    """x [experts or 1, tokens, in] @ w' [experts, out, in] + bias [experts, out]."""
    y = g.matmul(x, g.transpose(w, perm=(0, 2, 1)))
    if bias is None:
        return y
    return g.add(y, g.reshape(bias, shape=(bias.type.dims[0], 1, bias.type.dims[1])))


def _swiglu(g: GraphBuilder, node: Any, gate: Node, linear: Node) -> Node:
    """clipped gate * sigmoid(alpha * gate) * (clipped linear + beta)."""
    limit = float(node.attrs.get("swiglu_limit", math.inf))
    if math.isfinite(limit):
        gate, linear = g.min(gate, limit), g.clip(linear, -limit, limit)
    gate = g.swish(gate, alpha=float(node.attrs.get("activation_alpha", 1.0)))
    beta = float(node.attrs.get("activation_beta", 0.0))
    return g.mul(gate, g.add(linear, beta) if beta else linear)


def _hidden(g: GraphBuilder, node: Any, y: Node, third: Node | None) -> Node:
    """The experts' activation of y [experts, tokens, fused inner]."""
    kind = str(node.attrs.get("activation_type", "relu"))
    if kind not in ACTIVATIONS:
        raise ModelError(f"activation_type='{kind}' is none of {', '.join(ACTIVATIONS)}")
    fusion = int(node.attrs.get("swiglu_fusion", 0))
    if kind == "swiglu":
        if fusion == 0:
            if third is None:
                raise ModelError("is a swiglu of two products (swiglu_fusion=0) without fc3")
            return _swiglu(g, node, y, third)
        experts, tokens, width = y.type.dims
        pairs = (width // 2, 2) if fusion == 1 else (2, width // 2)
        split = g.reshape(y, shape=(experts, tokens, *pairs))
        axis = 3 if fusion == 1 else 2
        gate, linear = (g.reshape(g.slice(split, starts=(i,), ends=(i + 1,), axes=(axis,)),
                                  shape=(experts, tokens, width // 2)) for i in (0, 1))
        return _swiglu(g, node, gate, linear)
    if kind == "gelu":
        y = g.gelu(y, approximate="tanh")
    elif kind != "identity":
        y = g.relu(y) if kind == "relu" else g.swish(y)
    return y if third is None else g.mul(y, third)


def _mixture(g: GraphBuilder, node: Any, x: Node, logits: Node, mixing: Node | None,
             layers: list[tuple[Node | None, Node | None]]) -> Node:
    (w1, b1), (w2, b2), (w3, b3) = layers
    refuse(bool(node.attrs.get("use_sparse_mixer", 0)), "routes by a sparse mixer",
           "export the model with softmax routing")
    assert w1 is not None and w2 is not None
    width, tokens = x.type.dims[-1], logits.type.dims[0]
    if x.type.size != tokens * width:
        raise ShapeError(f"router_probs {logits.type} wants a row for each token of {x.type}")
    flat = g.reshape(x, shape=(1, tokens, width))
    third = None if w3 is None else _linear(g, flat, w3, b3)
    y = _linear(g, _hidden(g, node, _linear(g, flat, w1, b1), third), w2, b2)
    weights = g.transpose(_routing(g, node, logits, mixing), perm=(1, 0))
    weighed = g.mul(y, g.reshape(weights, shape=(*weights.type.dims, 1)))
    return g.reshape(g.reduce_sum(weighed, axes=(0,), keepdims=False), shape=x.type.dims)


@microsoft("MoE")
def _moe(g: GraphBuilder, node: Any) -> Node:
    """The weighted sum of the k best experts for each token (Shazeer et al., 2017)."""
    x, logits, *w = inputs_of(node, 8, needs=(0, 1, 2, 4))
    return _mixture(g, node, x, logits, None, [(w[0], w[1]), (w[2], w[3]), (w[4], w[5])])


@microsoft("QMoE")
def _qmoe(g: GraphBuilder, node: Any) -> Node:
    """MoE with weights of 2, 4 or 8 bits, which stay packed."""
    x, logits, *w = inputs_of(node, 15, needs=(0, 1, 2, 3, 5, 6))
    kind = node.attrs.get("quant_type", "int")
    refuse(kind != "int", f"has weights of quant_type='{kind}'", "quantise to integers")
    refuse(int(node.attrs.get("weights_prepacked", 0)) > 0, "has weights packed for one GPU",
           "export them as they are")
    layers: list[tuple[Node | None, Node | None]] = []
    for i in range(3):
        packed, scales, bias, zeros = (*w[3 * i:3 * i + 3], w[9 + i])
        if packed is None or scales is None:
            layers.append((None, None))
            continue
        bits = int(node.attrs.get(f"fc{i + 1}_expert_weight_bits",
                                  node.attrs.get("expert_weight_bits", 4)))
        layers.append((_expert_weights(g, node, packed, scales, zeros, bits, x.type.dtype), bias))
    return _mixture(g, node, x, logits, w[12], layers)


def _expert_weights(g: GraphBuilder, node: Any, packed: Node, scales: Node, zeros: Node | None,
                    bits: int, to: str) -> Node:
    """[experts, out, in] from bytes, a scale for each row or for each block of one."""
    experts, rows, held = packed.type.dims
    width = held * 8 // bits
    block = int(node.attrs.get("block_size", 0)) or width
    if block == width and zeros is not None and zeros.type.dtype == "u8":
        each = zeros.type.dims[-1] * 8 // bits              # packed along the rows
        zeros = g.slice(unpacked(g, zeros, bits, (experts, each)), starts=(0,), ends=(rows,),
                        axes=(1,))
        zeros = g.reshape(zeros, shape=(experts * rows, 1, 1))
        w = g.reshape(unpacked(g, packed, bits, (experts, rows, width)),
                      shape=(experts * rows, 1, width))
        w = g.dequantize(w, g.reshape(scales, shape=(experts * rows, 1, 1)), zeros, to=to)
    else:
        w = dequantised(g, packed, scales, zeros, n=experts * rows, k=width, bits=bits,
                        block=block, to=to)
    return g.reshape(w, shape=(experts, rows, width))


# ---- LSTM


@microsoft("DynamicQuantizeLSTM")
def _dynamic_quantize_lstm(g: GraphBuilder, node: Any) -> Any:
    """LSTM on the numbers that its 8-bit weights stand for. Its inputs and states stay floats,
    where onnxruntime rounds them to 8 bits: the results are closer to the model before it was
    quantised."""
    x, w, r, bias, lengths, start_h, start_c, peepholes = inputs_of(node, 8, needs=(0, 1, 2))
    w_scale, w_zero, r_scale, r_zero = (node.input(i) for i in range(8, 12))

    def columns(v: Node, p: Node) -> Node:
        return g.reshape(p, shape=(v.type.dims[0], 1, p.type.size // v.type.dims[0]))

    def weights(v: Node, scale: Node, zero: Node) -> Node:
        signed = signed_bytes(v, zero)
        real = (g.dequantize(v, columns(v, scale), columns(v, zero)) if signed is None
                else g.dequantize(signed, columns(v, scale)))
        return g.transpose(real, perm=(0, 2, 1))
    signed, scales = signed_bytes(r, r_zero), None
    if signed is not None:
        directions, _, rows = r.type.dims
        scales = g.expand(g.reshape(columns(r, r_scale), shape=(directions, -1)),
                          shape=(directions, rows))
    r = weights(r, r_scale, r_zero) if signed is None else g.transpose(signed, perm=(0, 2, 1))
    plain = node.with_(op_type="LSTM", domain="", opset=22, inputs=(
        x, weights(w, w_scale, w_zero), r, bias, lengths, start_h, start_c, peepholes))
    return lstm(g, plain, scales)


def signed_bytes(v: Node, zero: Node) -> Node | None:
    """Constant bytes [directions, .., columns] less their zero points, as i8; None where they don't
    fit."""
    if v.op != "const" or zero.op != "const":
        return None
    zeros = zero.data.astype(np.int16).reshape(v.type.dims[0], 1, -1)
    less = v.data.astype(np.int16) - zeros
    fits = less.size == 0 or -128 <= less.min() <= less.max() <= 127
    return const(less.astype(np.int8), "i8") if fits else None

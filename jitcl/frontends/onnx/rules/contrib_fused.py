"""Fused ops that onnxruntime's optimiser writes into models: activations with a bias, products and
convolutions with an activation, normalisations behind a residual sum. They are taken apart again,
as fusion puts them together for the device at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.graph import Node
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import product, scaled
from jitcl.ops.contrib import (
    both_domains,
    channels_first,
    channels_last,
    flat_softmax,
    inputs_of,
    microsoft,
    standard,
)
from jitcl.ops.core import norm_axis
from jitcl.ops.normalisation import statistics, stats_type

# ---- activations


def plus(g: GraphBuilder, x: Node, bias: Node | None) -> Node:
    """x + bias where there is one."""
    return x if bias is None else g.add(x, bias)


@microsoft("Gelu", "BiasGelu")
def _gelu(g: GraphBuilder, node: Any) -> Node:
    return g.gelu(plus(g, node.inputs[0], node.input(1)))


@microsoft("FastGelu")
def _fast_gelu(g: GraphBuilder, node: Any) -> Node:
    return g.gelu(plus(g, node.inputs[0], node.input(1)), approximate="tanh")


@microsoft("GemmFastGelu")
def _gemm_fast_gelu(g: GraphBuilder, node: Any) -> Node:
    y = product(g, node.inputs[0], node.inputs[1])
    return g.gelu(plus(g, y, node.input(2)), approximate="tanh")


@microsoft("QuickGelu")
def _quick_gelu(g: GraphBuilder, node: Any) -> Node:
    return g.swish(node.inputs[0], alpha=float(node.attrs.get("alpha", 1.702)))


@microsoft("ScaledSiLU")
def _scaled_silu(g: GraphBuilder, node: Any) -> Node:
    x, scale = node.inputs[0], node.input(1)
    if scale is None:
        return g.swish(scaled(g, x, float(node.attrs.get("alpha", 1.0))))
    return g.swish(g.mul(x, g.cast(scale, to=x.type.dtype)))


@microsoft("BiasSplitGelu")
def _bias_split_gelu(g: GraphBuilder, node: Any) -> Node:
    """left * gelu(right) of the two halves of x + bias."""
    y = g.add(node.inputs[0], node.inputs[1])
    width = y.type.dims[-1]
    if width % 2:
        raise ShapeError(f"x {y.type} can't be halved along its last axis")
    left, right = (g.slice(y, starts=(i * width // 2,), ends=((i + 1) * width // 2,), axes=(-1,))
                   for i in (0, 1))
    return g.mul(left, g.gelu(right))


@microsoft("BiasAdd")
def _bias_add(g: GraphBuilder, node: Any) -> Node:
    x, bias, skip = node.inputs[:3]
    return g.add(g.add(x, bias), skip)


@microsoft("BiasDropout")
def _bias_dropout(g: GraphBuilder, node: Any) -> Node:
    """data + bias + residual: for inference."""
    data, bias, residual, _, training = inputs_of(node, 5)
    if training is not None and bool(node.static(4)):
        raise UnsupportedError("drops out at random in training mode: export it for inference")
    return plus(g, plus(g, data, bias), residual)


@microsoft("BiasSoftmax")
def _bias_softmax(g: GraphBuilder, node: Any) -> Node:
    """softmax(data + bias) over all axes from `axis` on, as one."""
    x = g.add(node.inputs[0], node.inputs[1])
    return flat_softmax(g, x, int(node.attrs.get("axis", 1)))


_NAMED: dict[str, tuple[str, ...]] = {     # activation -> names of its parameters, in their order
    "Relu": (), "Sigmoid": (), "Tanh": (), "Softplus": (), "Softsign": (), "HardSwish": (),
    "Gelu": (), "Mish": (), "LeakyRelu": ("alpha",), "Elu": ("alpha",), "Celu": ("alpha",),
    "Selu": ("alpha", "gamma"), "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"), "QuickGelu": ("alpha",), "Swish": ("alpha",),
    "ParametricSoftplus": ("alpha", "beta"), "ScaledTanh": ("alpha", "beta"),
    "Affine": ("alpha", "beta"),
}


def activated(g: GraphBuilder, node: Any, y: Node, given: dict[str, float] | list[float]) -> Node:
    """y behind the activation that the node's attribute names; parameters by name or in order."""
    name = node.attrs.get("activation", "")
    if name in ("", "Identity"):
        return y
    if name not in _NAMED:
        raise UnsupportedError(f"the activation '{name}' is none of {', '.join(_NAMED)}")
    if isinstance(given, list):
        given = dict(zip(_NAMED[name], given))
    attrs = {k: v for k, v in given.items() if k in _NAMED[name]}
    if name == "Clip":
        kind = y.type.dtype
        limits = (None if attrs.get(k) is None else g.const(attrs[k], kind) for k in ("min", "max"))
        return standard(g, node, "Clip", y, *limits, attrs={})
    if name == "QuickGelu":
        return g.swish(y, alpha=float(attrs.get("alpha", 1.702)))
    return standard(g, node, name, y, attrs=attrs)


def _greek(node: Any) -> dict[str, float]:
    """The activation's parameters where attributes name them."""
    found = {k: node.attrs[f"activation_{k}"] for k in ("alpha", "beta", "gamma")
             if f"activation_{k}" in node.attrs}
    if "leaky_relu_alpha" in node.attrs:                       # onnxruntime before 1.3
        found["alpha"] = node.attrs["leaky_relu_alpha"]
    return found


# ---- products

def _turned(g: GraphBuilder, x: Node, batch: bool, last: bool) -> Node:
    """x with its first axis moved behind the others but the last (`batch`), then its last two
    exchanged (`last`)."""
    rank = x.type.rank
    if rank < 2:
        return x
    perm = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if last:
        perm[-2:] = perm[:-3:-1]
    return x if perm == list(range(rank)) else g.transpose(x, perm=perm)


@microsoft("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")
def _fused_matmul(g: GraphBuilder, node: Any) -> Node:
    """alpha * A' @ B', with an activation behind in FusedMatMulActivation."""
    a, b = (_turned(g, x, bool(node.attrs.get(f"transBatch{name}", 0)),
                    bool(node.attrs.get(f"trans{name}", 0)))
            for name, x in zip("AB", node.inputs))
    y = scaled(g, product(g, a, b), float(node.attrs.get("alpha", 1.0)))
    return activated(g, node, y, _greek(node))


@microsoft("FusedGemm")
def _fused_gemm(g: GraphBuilder, node: Any) -> Node:
    return activated(g, node, standard(g, node, "Gemm", *node.inputs), _greek(node))


# ---- convolutions and pooling

def _fused(g: GraphBuilder, node: Any, turn: Callable[[GraphBuilder, Node], Node],
           back: Callable[[GraphBuilder, Node], Node]) -> Node:
    x, w, bias, z = inputs_of(node, 4, needs=(0, 1))
    y = standard(g, node, "Conv", turn(g, x), w, bias)
    if z is not None:
        y = g.add(y, turn(g, z))
    return back(g, activated(g, node, y, list(node.attrs.get("activation_params", ()))))


def _same(g: GraphBuilder, x: Node) -> Node:
    return x


@microsoft("FusedConv")
def _fused_conv(g: GraphBuilder, node: Any) -> Node:
    """activation(conv(x, w) + b + z)."""
    return _fused(g, node, _same, _same)


@microsoft("NhwcConv", "NhwcFusedConv")
def _nhwc_conv(g: GraphBuilder, node: Any) -> Node:
    return _fused(g, node, channels_first, channels_last)


@microsoft("NhwcMaxPool")
def _nhwc_max_pool(g: GraphBuilder, node: Any) -> Node:
    return channels_last(g, standard(g, node, "MaxPool", channels_first(g, node.inputs[0])))


@microsoft("ConvTransposeWithDynamicPads")
def _conv_transpose(g: GraphBuilder, node: Any) -> Node:
    """ConvTranspose whose pads are an input."""
    x, w, _, bias = inputs_of(node, 4)
    pads = node.static(2)
    attrs = {k: v for k, v in node.attrs.items() if k != "auto_pad"} if pads is not None else None
    if attrs is not None:
        attrs["pads"] = tuple(int(p) for p in pads.reshape(-1))
    return standard(g, node, "ConvTranspose", x, w, bias, attrs=attrs)


# ---- normalisations

def _epsilon(node: Any, default: float) -> float:
    return float(node.attrs.get("epsilon", default))


@both_domains("SimplifiedLayerNormalization")
def _simplified(g: GraphBuilder, node: Any) -> Any:
    """RMSNormalization before ONNX had it; its second output is 1 / sqrt(mean(x^2) + epsilon)."""
    x, scale = node.inputs[:2]
    axis, epsilon = int(node.attrs.get("axis", -1)), _epsilon(node, 1e-5)
    scale = g.cast(scale, to=x.type.dtype) if scale.type.dtype != x.type.dtype else scale
    y = g.rms_norm(x, scale, axis=axis, epsilon=epsilon)
    return y if node.n_outputs < 2 else (y, _inverse_rms(g, x, axis, epsilon))


def _inverse_rms(g: GraphBuilder, x: Node, axis: int, epsilon: float) -> Node:
    axes = tuple(range(norm_axis(axis, x.type.rank), x.type.rank))
    wide = g.cast(x, to=stats_type(x.type.dtype))
    mean = g.reduce_mean(g.mul(wide, wide), axes=axes, keepdims=True)
    return g.reciprocal(g.sqrt(g.add(mean, epsilon)))


def _skipped(g: GraphBuilder, x: Node, skip: Node, bias: Node | None) -> Node:
    """x + skip + bias, summed in the compute type as the fused kernels do, stored as x is."""
    kind = stats_type(x.type.dtype)
    total = g.add(g.cast(x, to=kind), g.cast(skip, to=kind))
    if bias is not None:
        total = g.add(total, g.cast(bias, to=kind))
    return g.cast(total, to=x.type.dtype)


@microsoft("SkipLayerNormalization")
def _skip_layer_norm(g: GraphBuilder, node: Any) -> Any:
    """layer_norm(x + skip + bias); outputs: it, mean, 1 / deviation, and the sum."""
    x, skip, gamma, beta, bias = inputs_of(node, 5, needs=(0, 1))
    total, epsilon = _skipped(g, x, skip, bias), _epsilon(node, 1e-12)
    y = g.layer_norm(total, gamma, *([] if beta is None else [beta]), axis=-1, epsilon=epsilon)
    if node.n_outputs < 2:
        return y
    return (y, *statistics(g, total, -1, epsilon), total)[:node.n_outputs]


@microsoft("SkipSimplifiedLayerNormalization")
def _skip_rms_norm(g: GraphBuilder, node: Any) -> Any:
    """rms_norm(x + skip + bias); outputs: it, nothing, 1 / rms, and the sum."""
    x, skip, gamma, bias = inputs_of(node, 4, needs=(0, 1))
    total, epsilon = _skipped(g, x, skip, bias), _epsilon(node, 1e-12)
    y = g.rms_norm(total, gamma, axis=-1, epsilon=epsilon)
    if node.n_outputs < 2:
        return y
    return (y, None, _inverse_rms(g, total, -1, epsilon), total)[:node.n_outputs]


@microsoft("GroupNorm", "SkipGroupNorm")
def _group_norm(g: GraphBuilder, node: Any) -> Any:
    """group_norm of x (+ skip + bias), SiLU behind it where asked for; channels last by default."""
    x, gamma, beta, skip, bias = inputs_of(node, 5, needs=(0, 1, 2))
    total, last = x, bool(node.attrs.get("channels_last", 1))
    if skip is not None:
        if skip.type.rank == 2:
            skip = g.reshape(skip, shape=(skip.type.dims[0], 1, 1, skip.type.dims[1]))
        total = plus(g, g.add(x, skip), bias)
    y = channels_first(g, total) if last else total
    kind = x.type.dtype
    y = g.group_norm(y, g.cast(gamma, to=kind), g.cast(beta, to=kind),
                     groups=int(node.attrs["groups"]), epsilon=_epsilon(node, 1e-5))
    if node.attrs["activation"] not in (0, 1):
        raise ModelError(f"activation={node.attrs['activation']} is neither 0 (none) nor 1 (SiLU)")
    y = g.swish(y) if node.attrs["activation"] == 1 else y
    y = channels_last(g, y) if last else y
    return y if node.n_outputs < 2 else (y, total)

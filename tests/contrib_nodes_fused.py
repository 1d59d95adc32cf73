"""Cases of fused, normalising and rotary ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.contrib_cases import Array, case, f16, f32, i64

# ---- activations

X = f32(2, 3, 8, low=-3, high=3)
for _op in ("Gelu", "FastGelu", "QuickGelu"):
    case(_op.lower(), _op, X)
case("quickgelu_alpha", "QuickGelu", X, alpha=0.7)
case("biasgelu", "BiasGelu", X, f32(8))
case("fastgelu_bias", "FastGelu", X, f32(8))
case("fastgelu_f16", "FastGelu", X.astype(np.float16), f16(8), atol=4e-3)


def _gelu(x: Array) -> Array:
    return np.array(0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), np.float32)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _split_gelu(x: Array, bias: Array) -> list[Array]:
    left, right = np.split(x + bias, 2, axis=-1)
    return [left * _gelu(right)]


case("biassplitgelu", "BiasSplitGelu", X, f32(8), judge=_split_gelu)
case("biasadd", "BiasAdd", X, f32(8), f32(2, 3, 8), fed=(0, 2), judge=lambda x, b, s: [x + b + s])
case("gemmfastgelu", "GemmFastGelu", f32(3, 4), f32(4, 5), f32(5), judge=lambda x, w, b: [
    0.5 * (y := x @ w + b) * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))])
case("biasdropout", "BiasDropout", X, f32(8), f32(2, 3, 8), fed=(0, 2),
     judge=lambda x, b, r: [x + b + r])
case("biassoftmax", "BiasSoftmax", f32(2, 2, 3, 4), f32(2, 1, 1, 4), axis=3, is_inner_broadcast=1,
     judge=lambda x, b: [_softmax(x + b)])
case("scaledsilu", "ScaledSiLU", X, alpha=1.3, rows=None)

# ---- products

case("fusedmatmul", "FusedMatMul", f32(3, 4), f32(5, 4), fed=(0, 1), transB=1, alpha=0.5)
case("fusedmatmul_batched", "FusedMatMul", f32(2, 4, 3), f32(2, 4, 5), fed=(0, 1), transA=1)
case("fusedmatmul_batch_a", "FusedMatMul", f32(3, 2, 4), f32(2, 4, 5), transBatchA=1)
case("fusedmatmul_batch_ab", "FusedMatMul", f32(4, 2, 3), f32(5, 2, 4), fed=(0, 1), transBatchA=1,
     transBatchB=1, transA=1, transB=1)
case("fusedmatmul_vector", "FusedMatMul", f32(4), f32(4, 5), alpha=2.0)
case("transposematmul", "TransposeMatMul", f32(4, 3), f32(4, 5), transA=1, alpha=3.0)
for _name, _attrs in {"Relu": {}, "Tanh": {}, "LeakyRelu": {"activation_alpha": 0.2},
                      "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
                      "Elu": {"activation_alpha": 0.7}, "Sigmoid": {}, "Softplus": {},
                      "ThresholdedRelu": {"activation_alpha": 0.1}}.items():
    case(f"fusedgemm_{_name.lower()}", "FusedGemm", f32(3, 4), f32(5, 4), f32(5), transB=1,
         alpha=0.5, beta=2.0, activation=_name, **_attrs)
case("fusedmatmulactivation", "FusedMatMulActivation", f32(3, 4), f32(4, 5), activation="Relu",
     alpha=2.0, judge=lambda a, b: [np.maximum(2 * (a @ b), 0)])

# ---- convolutions and pooling

_conv: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
PICTURE, WEIGHT, BIAS = f32(2, 4, 6, 5), f32(6, 4, 3, 3), f32(6)
for _name, _params in {"Relu": [], "Sigmoid": [], "Tanh": [], "LeakyRelu": [0.1],
                       "Clip": [-0.2, 0.9], "HardSigmoid": [0.3, 0.4]}.items():
    _more = {"activation_params": _params} if _params else {}
    case(f"fusedconv_{_name.lower()}", "FusedConv", PICTURE, WEIGHT, BIAS, activation=_name,
         **_conv, **_more)
case("fusedconv_sum", "FusedConv", PICTURE, WEIGHT, BIAS, f32(2, 6, 6, 5), fed=(0, 3),
     activation="Relu", **_conv)
case("fusedconv_grouped", "FusedConv", PICTURE, f32(4, 1, 3, 3), None, group=4, strides=[2, 2],
     activation="Relu", **_conv)


def _nhwc(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def _conv_ref(x: Array, w: Array, b: Array, *more: Array) -> list[Array]:
    """A 3x3 convolution of a picture with channels last, padded by one."""
    p = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    y = sum(p[:, i:i + x.shape[1], j:j + x.shape[2]] @ w[:, :, i, j].T
            for i in range(3) for j in range(3)) + b
    return [np.maximum(y + more[0], 0) if more else y]


case("nhwcconv", "NhwcConv", _nhwc(PICTURE), WEIGHT, BIAS, judge=_conv_ref, **_conv)
case("nhwcfusedconv", "NhwcFusedConv", _nhwc(PICTURE), WEIGHT, BIAS, f32(2, 6, 5, 6), fed=(0, 3),
     judge=_conv_ref, activation="Relu", **_conv)
case("nhwcmaxpool", "NhwcMaxPool",
     np.random.default_rng(1).integers(0, 256, (1, 6, 5, 3)).astype(np.uint8), atol=0,
     kernel_shape=[2, 2], strides=[2, 2])
case("convtransposewithdynamicpads", "ConvTransposeWithDynamicPads", f32(1, 2, 4, 4),
     f32(2, 3, 3, 3), i64(1, 0, 1, 1), f32(3), strides=[2, 2])

# ---- normalisations

H = f32(2, 3, 16)
case("skiplayernorm", "SkipLayerNormalization", H, f32(2, 3, 16), f32(16), f32(16), f32(16),
     outputs=(0, 3), fed=(0, 1))
case("skiplayernorm_plain", "SkipLayerNormalization", H, f32(2, 3, 16), f32(16), fed=(0, 1),
     epsilon=1e-3)
case("skiplayernorm_broadcast", "SkipLayerNormalization", H, f32(3, 16), f32(16), f32(16),
     fed=(0, 1))
case("skiplayernorm_f16", "SkipLayerNormalization", f16(2, 3, 16), f16(2, 3, 16), f16(16), f16(16),
     fed=(0, 1), atol=8e-3)
case("skiprmsnorm", "SkipSimplifiedLayerNormalization", H, f32(2, 3, 16), f32(16), f32(16),
     outputs=(0, 3), fed=(0, 1))
case("skiprmsnorm_2d", "SkipSimplifiedLayerNormalization", f32(3, 16), f32(3, 16), f32(16),
     fed=(0, 1))
case("rmsnorm", "SimplifiedLayerNormalization", H, f32(16), domain="", axis=-1, epsilon=1e-4,
     stash_type=1)
case("rmsnorm_axis", "SimplifiedLayerNormalization", H, f32(3, 16), domain="", axis=1,
     outputs=(0, 1))
case("layernorm_before_17", "LayerNormalization", H, f32(16), f32(16), domain="", model_opset=12,
     axis=-1, outputs=(0, 1, 2))


def _group_norm(x: Array, gamma: Array, beta: Array, skip: Array | None = None,
                bias: Array | None = None) -> list[Array]:
    """Two groups, channels last, SiLU behind."""
    if skip is not None and bias is not None:
        x = x + skip.reshape(skip.shape[0], 1, 1, -1) + bias
    n, h, w, c = x.shape
    split = x.reshape(n, h * w, 2, c // 2)
    mean = split.mean(axis=(1, 3), keepdims=True)
    y = (split - mean) / np.sqrt(split.var(axis=(1, 3), keepdims=True) + 1e-5)
    y = y.reshape(x.shape) * gamma + beta
    return [y / (1 + np.exp(-y)), x]


case("groupnorm", "GroupNorm", f32(2, 3, 4, 6), f32(6), f32(6), groups=2, activation=1,
     judge=_group_norm)
case("skipgroupnorm", "SkipGroupNorm", f32(2, 3, 4, 6), f32(6), f32(6), f32(2, 6), f32(6),
     fed=(0, 3), groups=2, activation=1, outputs=(0, 1), judge=_group_norm)

# ---- rotary positions

COS, SIN = np.cos(f32(12, 4, high=3)), np.sin(f32(12, 4, high=3))
PLACES = i64([1, 2, 3], [0, 5, 11])
for _turn in (0, 1):
    case(f"rotary_{_turn}", "RotaryEmbedding", f32(2, 3, 16), PLACES, COS, SIN, fed=(0, 1),
         interleaved=_turn)
    case(f"rotary_heads_{_turn}", "RotaryEmbedding", f32(2, 2, 3, 8), PLACES, COS, SIN, fed=(0, 1),
         interleaved=_turn)
    case(f"rotary_partial_{_turn}", "RotaryEmbedding", f32(2, 3, 24), PLACES, COS, SIN, fed=(0, 1),
         interleaved=_turn, num_heads=2, rotary_embedding_dim=8)
case("rotary_offset", "RotaryEmbedding", f32(2, 3, 16), i64(4), COS, SIN, fed=(0, 1))

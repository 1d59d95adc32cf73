"""Cases of mixtures of experts, and of the LSTM with quantised weights."""

from __future__ import annotations

import numpy as np

from tests.contrib_cases import Array, case, f32, i8, i32, u8

TOKENS, ROUTES = f32(5, 32), f32(5, 4, low=-2, high=2)
W1, W2, W3 = f32(4, 48, 32), f32(4, 32, 48), f32(4, 48, 32)
for _kind in ("relu", "gelu", "silu", "identity"):
    case(f"moe_{_kind}", "MoE", TOKENS, ROUTES, W1, f32(4, 48), W2, f32(4, 32), fed=(0, 1), k=2,
         activation_type=_kind, atol=1e-4)
case("moe_normalised", "MoE", f32(2, 3, 32), f32(6, 4), W1, None, W2, fed=(0, 1), k=2,
     normalize_routing_weights=1, activation_type="silu", atol=1e-4)
case("moe_swiglu", "MoE", TOKENS, ROUTES, f32(4, 96, 32), f32(4, 96), W2, f32(4, 32), fed=(0, 1),
     k=2, activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0,
     swiglu_limit=2.0, normalize_routing_weights=1, atol=2e-4)


def _best_expert(x: Array, logits: Array, w1: Array, w2: Array) -> list[Array]:
    """The best expert's swiglu of two halves, times its probability."""
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = []
    for token, route, p in zip(x, logits, probability):
        e = int(route.argmax())
        gate, linear = np.split(w1[e] @ token, 2)
        rows.append(p[e] * (w2[e] @ (gate / (1 + np.exp(-gate)) * linear)))
    return [np.array(rows, np.float32)]


case("moe_swiglu_halves", "MoE", TOKENS, ROUTES, f32(4, 96, 32), None, W2, fed=(0, 1), k=1,
     activation_type="swiglu", swiglu_fusion=2, atol=1e-4, judge=_best_expert)
for _bits in (4, 8):
    _packed = u8(4, 96, 32 * _bits // 8), u8(4, 32, 48 * _bits // 8)
    case(f"qmoe_{_bits}", "QMoE", TOKENS, ROUTES, _packed[0], f32(4, 96, low=0.001, high=0.01),
         f32(4, 96), _packed[1], f32(4, 32, low=0.001, high=0.01), f32(4, 32), fed=(0, 1), k=2,
         activation_type="swiglu", swiglu_fusion=1, expert_weight_bits=_bits,
         normalize_routing_weights=1, atol=1e-3)
case("qmoe_blocks", "QMoE", TOKENS, ROUTES, u8(4, 96, 16), f32(4, 96, 2, low=0.001, high=0.01),
     f32(4, 96), u8(4, 32, 24), f32(4, 32, 3, low=0.001, high=0.01), f32(4, 32), fed=(0, 1), k=1,
     activation_type="swiglu", swiglu_fusion=1, block_size=16, normalize_routing_weights=1,
     atol=1e-3)

# ---- LSTM: onnxruntime rounds the activations to 8 bits

_scales = f32(1, low=0.004, high=0.006)
case("dynamicquantizelstm", "DynamicQuantizeLSTM", f32(4, 2, 6), i8(1, 6, 20), i8(1, 5, 20),
     f32(1, 40), None, None, None, None, _scales, np.int8([3]), _scales, np.int8([-2]),
     hidden_size=5, outputs=(0, 1, 2), atol=2e-2)
case("dynamicquantizelstm_both", "DynamicQuantizeLSTM", f32(4, 2, 6), i8(2, 6, 20), i8(2, 5, 20),
     f32(2, 40), i32(4, 3), None, None, None, f32(2, 20, low=0.004, high=0.006),
     np.zeros((2, 20), np.int8), f32(2, 20, low=0.004, high=0.006), np.zeros((2, 20), np.int8),
     hidden_size=5, direction="bidirectional", outputs=(0, 1, 2), atol=2e-2)
for _name, _zero in (("unsigned", 128), ("off_centre", 90)):       # the latter's don't fit i8
    case(f"dynamicquantizelstm_{_name}", "DynamicQuantizeLSTM", f32(5, 3, 24), u8(1, 24, 160),
         u8(1, 40, 160), f32(1, 320), None, None, None, None, _scales, np.uint8([_zero]), _scales,
         np.uint8([_zero]), hidden_size=40, outputs=(0, 1, 2), atol=3e-2)

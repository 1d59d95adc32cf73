"""Cases of onnxruntime's attention ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.contrib_cases import Array, case, f16, f32, i32, i64, one

# ---- Attention

X, W, B = f32(2, 4, 8), f32(8, 24), f32(24)
case("attention", "Attention", X, W, B, num_heads=2)
case("attention_causal", "Attention", X, W, B, num_heads=2, unidirectional=1, outputs=(0, 1))
case("attention_lengths", "Attention", X, W, B, i32(4, 2), fed=(0, 3), num_heads=2)
case("attention_starts", "Attention", X, W, B, i32(4, 4, 0, 2), fed=(0, 3), num_heads=2)
case("attention_raw_mask", "Attention", X, W, B, i32([1, 1, 1, 0], [1, 0, 1, 1]), fed=(0, 3),
     num_heads=2, mask_filter_value=-5.0, scale=0.7)
case("attention_mask_3d", "Attention", X, W, B, np.tril(np.ones((2, 4, 4), np.int32)), fed=(0, 3),
     num_heads=2)
case("attention_bias", "Attention", X, W, B, None, None, f32(1, 2, 4, 4), fed=(0, 5), num_heads=2)
case("attention_past", "Attention", X, W, B, np.ones((2, 7), np.int32), f32(2, 2, 2, 3, 4),
     fed=(0, 3, 4), num_heads=2, unidirectional=1, outputs=(0, 1))
case("attention_no_past", "Attention", X, W, B, None, f32(2, 2, 2, 0, 4), fed=(0, 4), num_heads=2,
     unidirectional=1, outputs=(0, 1))
case("attention_sizes", "Attention", X, f32(8, 22), f32(22), num_heads=2,
     qkv_hidden_sizes=[8, 8, 6])

# ---- MultiHeadAttention

Q, K, V = f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 12)
case("mha", "MultiHeadAttention", Q, K, V, fed=(0, 1, 2), num_heads=2)
case("mha_bias", "MultiHeadAttention", Q, K, V, f32(28), fed=(0, 1, 2), num_heads=2)
case("mha_lengths", "MultiHeadAttention", Q, K, V, None, i32(5, 3), fed=(0, 1, 2, 4), num_heads=2)
case("mha_mask", "MultiHeadAttention", Q, K, V, None, i32([1] * 5, [1, 0, 1, 1, 0]),
     fed=(0, 1, 2, 4), num_heads=2, scale=0.3)
case("mha_mask_3d", "MultiHeadAttention", Q, K, V, None, np.tri(3, 5, dtype=np.int32)[None].repeat(
    2, axis=0), fed=(0, 1, 2, 4), num_heads=2)
case("mha_scores_bias", "MultiHeadAttention", Q, K, V, None, None, f32(2, 1, 3, 5),
     fed=(0, 1, 2, 5), num_heads=2)
case("mha_past", "MultiHeadAttention", Q, f32(2, 3, 8), f32(2, 3, 8), None, None, None,
     f32(2, 2, 4, 4), f32(2, 2, 4, 4), fed=(0, 1, 2, 6, 7), num_heads=2, unidirectional=1,
     outputs=(0, 1, 2))
case("mha_no_past", "MultiHeadAttention", Q, f32(2, 3, 8), f32(2, 3, 8), None, None, None,
     f32(2, 2, 0, 4), f32(2, 2, 0, 4), fed=(0, 1, 2, 6, 7), num_heads=2, outputs=(0, 1, 2))
case("mha_one_batch", "MultiHeadAttention", Q[:1], K[:1], V[:1], None, i32([0, 1, 1, 0, 0]),
     fed=(0, 1, 2, 4), num_heads=2)
case("mha_cross", "MultiHeadAttention", Q, f32(2, 2, 5, 4), f32(2, 2, 5, 4), fed=(0, 1, 2),
     num_heads=2)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _packed(q: Array, kv: Array | None = None) -> list[Array]:
    """Attention of [B, S, N, 3, H], or of [B, S, N * H] and [B, T, N, 2, H]."""
    if kv is None:
        q, k, v = np.moveaxis(q, 3, 0)
    else:
        k, v = np.moveaxis(kv, 3, 0)
        q = q.reshape(*q.shape[:2], k.shape[2], -1)
    weights = _softmax(np.einsum("bsnh,btnh->bnst", q, k) / np.float32(np.sqrt(q.shape[-1])))
    return [np.einsum("bnst,btnh->bsnh", weights, v).reshape(*q.shape[:2], -1)]


case("mha_packed", "MultiHeadAttention", f32(2, 3, 2, 3, 4), num_heads=2, judge=_packed)
case("mha_packed_kv", "MultiHeadAttention", Q, f32(2, 5, 2, 2, 4), fed=(0, 1), num_heads=2,
     judge=_packed)
case("mha_f16", "MultiHeadAttention", f16(1, 3, 8), f16(1, 3, 8), f16(1, 3, 8), fed=(0, 1, 2),
     num_heads=2, atol=4e-3)

# ---- DecoderMaskedMultiHeadAttention



def _step(q: Array, k: Array, v: Array, past_k: Array, past_v: Array, *held: Array) -> list[Array]:
    """One query over the past, or the first `held` rows of its buffer, and itself."""
    def heads(x: Array) -> Array:
        return x.reshape(x.shape[0], 1, 2, -1).transpose(0, 2, 1, 3)
    kept = int(held[0][0]) if held else past_k.shape[2]
    k, v = (np.concatenate([p[:, :, :kept], heads(x)], axis=2) for p, x in ((past_k, k),
                                                                            (past_v, v)))
    weights = _softmax(heads(q) @ k.transpose(0, 1, 3, 2) / np.float32(np.sqrt(k.shape[-1])))
    return [(weights @ v).transpose(0, 2, 1, 3).reshape(q.shape), k, v]


_operands = f32(2, 1, 8), f32(2, 1, 8), f32(2, 1, 8), None, None
case("decoder", "DecoderMaskedMultiHeadAttention", *_operands, f32(2, 2, 4, 4), f32(2, 2, 4, 4),
     fed=(0, 1, 2, 5, 6), num_heads=2, outputs=(0, 1, 2), judge=_step)
case("decoder_buffer", "DecoderMaskedMultiHeadAttention", *_operands, f32(2, 2, 6, 4),
     f32(2, 2, 6, 4), i32(3), fed=(0, 1, 2, 5, 6), num_heads=2, past_present_share_buffer=1,
     judge=_step)

# ---- GroupQueryAttention: four heads that share two keys and values


def gqa(name: str, *, batch: int = 1, length: int = 1, past: int = 0, total: int | None = None,
        ends: tuple[int, ...] | None = None, rotary: bool = False, packed: bool = False,
        outputs: tuple[int, ...] = (0, 1, 2), places: Any = None, extra: Any = None,
        sink: Any = None, empty: bool = False, dtype: Any = np.float32, atol: float = 2e-5,
        rows: Any = None, **attrs: Any) -> None:
    total = past + length if total is None else total
    lengths = (total,) * batch if ends is None else ends
    q, k, v = (f32(batch, length, n * 16).astype(dtype) for n in (4, 2, 2))
    held = past or empty
    cache = [f32(batch, 2, past, 16).astype(dtype) if held else None for _ in range(2)]
    angle = f32(32, 8, high=3)
    tables = [np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)] if rotary else [None, None]
    given = [np.concatenate([q, k, v], axis=-1), None, None] if packed else [q, k, v]
    case(f"gqa_{name}", "GroupQueryAttention", *given, *cache, i32(*lengths) - 1,
         one(total, np.int32), *tables, places, extra, sink,
         fed=(0, 1, 2, 3, 4, 5, 9, 10), outputs=outputs, atol=atol, rows=rows, num_heads=4,
         kv_num_heads=2, do_rotary=int(rotary), **attrs)


def _held(count: int) -> Any:
    """The whole output, and of a cache the rows that every batch row has written."""
    return lambda y: y if y.ndim == 3 else y[:, :, :count]


gqa("prompt", length=5)
gqa("prompt_rotary", batch=2, length=5, rotary=True)
gqa("prompt_interleaved", length=5, rotary=True, rotary_interleaved=1)
gqa("prompt_packed", batch=2, length=5, rotary=True, packed=True)
gqa("prompt_empty_past", length=5, rotary=True, empty=True)
gqa("step", past=4)
gqa("step_rotary", past=4, rotary=True)
gqa("step_ragged", batch=2, past=6, total=7, ends=(7, 4), rotary=True, rows=_held(4))
gqa("step_buffer", past=12, total=5, rotary=True, rows=_held(5))
gqa("prompt_buffer", length=3, past=12, total=3, rotary=True, rows=_held(3))
gqa("chunk", length=3, past=4, rotary=True)
gqa("window", length=6, local_window_size=3)
gqa("window_step", past=6, local_window_size=3)
gqa("softcap", length=4, softcap=2.0, scale=0.9)
gqa("smooth", length=4, smooth_softmax=1)
gqa("sink", length=4, sink=f32(4))
gqa("extra", length=4, extra=f32(1, 4, 4, 4))
gqa("places", past=4, rotary=True, places=i64([6]))
gqa("places_prompt", length=3, rotary=True, places=i64([0, 1, 2]))
gqa("f16", length=4, rotary=True, dtype=np.float16, atol=4e-3)


def _first_rows(y: Array) -> Array:
    """Of a prompt padded on the right: what stands before the padding of its shorter row."""
    return y[:, :3] if y.ndim == 3 else y[:, :, :3]


gqa("prompt_ragged", batch=2, length=5, ends=(5, 3), rotary=True, rows=_first_rows)
gqa("bidirectional", length=4, causal=0)

"""Phi-3 and Phi-4-mini (Abdin et al., 2024): Llama with joined projections."""

from __future__ import annotations

from jitcl.ir.graph import Node
from jitcl.lm.decoder import Decoder, Layer


class Phi3(Decoder):
    """Queries, keys and values are one product, gate and up another."""

    classes = ("Phi3ForCausalLM",)
    defaults = {"phi3": {"rms_norm_eps": 1e-5}}

    def block(self, b: Layer, x: Node) -> Node:
        qkv = b.linear(b.norm(x, "input_layernorm"), "self_attn.qkv_proj")
        wide, narrow = self.heads * self.head_size, self.shared * self.head_size
        q, k, v = b.columns(qkv, wide, narrow, narrow)
        y = b.attention(b.turned(b.queries(q)), b.turned(b.keys(k)), b.keys(v))
        x = b.g.add(x, b.linear(y, "self_attn.o_proj"))
        both = b.linear(b.norm(x, "post_attention_layernorm"), "mlp.gate_up_proj")
        half = both.type.dims[1] // 2
        gate, up = b.columns(both, half, half)
        return b.g.add(x, b.linear(b.g.mul(b.activated(gate), up), "mlp.down_proj"))

    def slides(self, layer: int) -> bool:
        return True

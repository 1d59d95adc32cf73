"""Llama (Touvron et al., 2023), and what differs from it in biases, norms of heads, windows alone:
Mistral, Qwen 2 and 3, SmolLM, TinyLlama."""

from __future__ import annotations

from jitcl.ir.graph import Node
from jitcl.lm.decoder import Decoder, Layer


class Llama(Decoder):
    """Names of norms of heads, or of biases, that a file has say that the model has them."""

    classes = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
    defaults = {"mistral": {"sliding_window": 4096},
                "qwen2": {"sliding_window": 4096, "max_window_layers": 28},
                "qwen3": {"sliding_window": 4096, "max_window_layers": 28}}

    def block(self, b: Layer, x: Node) -> Node:
        h = b.norm(x, "input_layernorm")
        q, k, v = b.linears(h, *(f"self_attn.{n}_proj" for n in "qkv"))
        y = b.attention(b.turned(self._head_norm(b, b.queries(q), "q")),
                        b.turned(self._head_norm(b, b.keys(k), "k")), b.keys(v))
        x = b.g.add(x, b.linear(y, "self_attn.o_proj"))
        h = b.norm(x, "post_attention_layernorm")
        return b.g.add(x, b.gated(h, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))

    def _head_norm(self, b: Layer, x: Node, which: str) -> Node:
        name = f"self_attn.{which}_norm"
        return self.norm(b, x, name) if b.has(f"{name}.weight") else x

    def slides(self, layer: int) -> bool:
        c = self.config
        if c.get("model_type") == "mistral":
            return True
        return bool(c.get("use_sliding_window")) and layer >= c.get("max_window_layers", 0)

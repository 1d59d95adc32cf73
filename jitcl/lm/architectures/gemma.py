"""Gemma 1, 2 and 3 (Gemma Team, 2024, 2025): scaled embeddings, norms that scale by 1 + weight,
norms behind attention and the gated product from 2 on, layers with windows."""

from __future__ import annotations

import math

import numpy as np

from jitcl.ir.graph import Node
from jitcl.lm.decoder import ACTIVATIONS, Decoder, Layer
from jitcl.lm.rotary import Rotary, rotary
from jitcl.lm.settings import Settings


class Gemma(Decoder):
    """The norms that a file has say how a block is made."""

    classes = ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM")
    ties = True
    defaults = {"gemma2": {"query_pre_attn_scalar": 256, "sliding_window": 4096,
                           "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
                "gemma3_text": {"query_pre_attn_scalar": 256, "sliding_window": 4096,
                                "rope_theta": 1e6}}

    def embed(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return super().embed(ids, positions) * np.float32(math.sqrt(self.width))

    def norm(self, b: Layer, x: Node, name: str) -> Node:
        scale = b.g.add(b.weight(f"{name}.weight"), self.config.number("norm_offset", 1.0))
        return b.g.rms_norm(x, scale, axis=-1, epsilon=self.epsilon)

    def block(self, b: Layer, x: Node) -> Node:
        c = self.config
        h = b.norm(x, "input_layernorm")
        q, k, v = b.linears(h, *(f"self_attn.{n}_proj" for n in "qkv"))
        y = b.attention(b.turned(self._maybe(b, b.queries(q), "self_attn.q_norm")),
                        b.turned(self._maybe(b, b.keys(k), "self_attn.k_norm")), b.keys(v),
                        scale=c.number("query_pre_attn_scalar", self.head_size) ** -0.5,
                        softcap=c.number("attn_logit_softcapping", 0.0))
        y = b.linear(y, "self_attn.o_proj")
        around = b.has("pre_feedforward_layernorm.weight")
        x = b.g.add(x, b.norm(y, "post_attention_layernorm") if around else y)
        h = b.norm(x, "pre_feedforward_layernorm" if around else "post_attention_layernorm")
        y = b.gated(h, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        return b.g.add(x, b.norm(y, "post_feedforward_layernorm") if around else y)

    def _maybe(self, b: Layer, x: Node, name: str) -> Node:
        return self.norm(b, x, name) if b.has(f"{name}.weight") else x

    def logits(self, b: Layer, x: Node) -> Node:
        cap = self.config.number("final_logit_softcapping", 0.0)
        return b.g.mul(b.g.tanh(b.g.div(x, cap)), cap) if cap else x

    def activation(self) -> str:
        """Of Gemma 1, "gelu" in `hidden_act` means the approximation, as in transformers: it is
        what the official files say."""
        c, likely = self.config, "gelu_pytorch_tanh"
        if c.get("hidden_activation"):
            return str(c.only("hidden_activation", *ACTIVATIONS))
        return likely if c.get("hidden_act", "gelu") == "gelu" else super().activation()

    def slides(self, layer: int) -> bool:
        each = 2 if self.config.get("model_type") == "gemma2" else (
            self.config.whole("sliding_window_pattern", 6))
        return (layer + 1) % each != 0

    def _rotaries(self) -> dict[str, Rotary]:
        c = self.config
        if not self._two_rotaries:
            return super()._rotaries()
        if "sliding_attention" in (c.get("rope_parameters") or {}):
            near = rotary(c, self.head_size, "sliding_attention")
        else:                               # older files: of its own base, never stretched
            base = c.number("rope_local_base_freq", 10000.0)
            near = rotary(Settings({"rope_theta": base}, c.place), self.head_size)
        return {".full": rotary(c, self.head_size, "full_attention"), ".sliding": near}

    @property
    def _two_rotaries(self) -> bool:
        return str(self.config.get("model_type")).startswith("gemma3")

    def rotary_of(self, layer: int) -> str | None:
        if not self._two_rotaries:
            return ""
        return ".sliding" if self.windows[layer] else ".full"

"""GPT-2 (Radford et al., 2019): learnt positions, layer norms with shifts, weights [in, out]."""

from __future__ import annotations

import numpy as np

from jitcl.ir.graph import Node
from jitcl.lm.decoder import Decoder, Layer
from jitcl.lm.rotary import Rotary
from jitcl.lm.settings import Settings
from jitcl.lm.weights import Weights, wants

NAMES = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size",
         "n_positions": "max_position_embeddings", "activation_function": "hidden_act"}


class Gpt2(Decoder):
    """Positions are added to the embedded tokens."""

    classes = ("GPT2LMHeadModel",)
    embedding, last_norm, stem = "transformer.wte.weight", "transformer.ln_f", "transformer.h.{}."
    positions = "transformer.wpe.weight"
    ignored = (".attn.bias", ".attn.masked_bias")       # the causal mask, as old files hold it
    ties = True

    def __init__(self, config: Settings, weights: Weights) -> None:
        super().__init__(Settings({"hidden_act": "gelu_new", **{
            NAMES.get(k, k): v for k, v in config.values.items()}}, config.place), weights)
        for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
            self.config.only(key, False)
        self.config.only("scale_attn_weights", True)
        self.epsilon = self.config.number("layer_norm_epsilon", 1e-5)
        wants(weights, self.positions, (self.context, self.width))

    def embed(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        at = self.weights.rows(self.positions, np.minimum(positions, self.context - 1))
        return super().embed(ids, positions) + at

    def norm(self, b: Layer, x: Node, name: str) -> Node:
        return b.g.layer_norm(x, b.weight(f"{name}.weight"), b.weight(f"{name}.bias"), axis=-1,
                              epsilon=self.epsilon)

    def block(self, b: Layer, x: Node) -> Node:
        qkv = _affine(b, b.norm(x, "ln_1"), "attn.c_attn")
        q, k, v = map(b.queries, b.columns(qkv, *(self.width,) * 3))
        x = b.g.add(x, _affine(b, b.attention(q, k, v), "attn.c_proj"))
        h = b.activated(_affine(b, b.norm(x, "ln_2"), "mlp.c_fc"))
        return b.g.add(x, _affine(b, h, "mlp.c_proj"))

    def _rotaries(self) -> dict[str, Rotary]:
        return {}


def _affine(b: Layer, x: Node, name: str) -> Node:
    """x @ w + bias: the weight lies the other way round than others' do."""
    return b.g.add(b.g.matmul(x, b.weight(f"{name}.weight")), b.weight(f"{name}.bias"))

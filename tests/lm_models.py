"""Tiny language models of random weights, of every family, and what transformers says of them.

`python -m tests.lm_models` writes lm_references.json with transformers: configurations as it saves
them, names and shapes of weights, logits. The weights are made here, from their names, so that
tests need no file of them and no transformers.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitcl.ir.graph import Graph
from jitcl.lm.decoder import Decoder
from jitcl.ops.builder import evaluate

REFERENCES = Path(__file__).with_name("lm_references.json")
IDS = [5, 17, 3, 90, 41, 41, 8, 66, 23, 2, 50, 19, 77, 31, 4, 58, 12, 83, 9, 36]
SMALL = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
GATED = {**SMALL, "head_dim": 12}
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
LONG = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5,
            short_factor=[1.0, 1.5], long_factor=[2.0, 3.0])

# name -> (classes in transformers, what their configuration is given)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**SMALL, "tie_word_embeddings": True}),
    "llama-3": ("Llama", {**SMALL, "rope_parameters": LLAMA3, "attention_bias": True,
                          "mlp_bias": True}),
    "llama-linear": ("Llama", {**SMALL, "head_dim": 16, "rope_parameters": dict(
        rope_type="linear", rope_theta=500.0, factor=2.0)}),
    "llama-dynamic": ("Llama", {**SMALL, "rope_parameters": dict(
        rope_type="dynamic", rope_theta=500.0, factor=4.0)}),
    "mistral": ("Mistral", {**GATED, "sliding_window": 7}),
    "qwen2": ("Qwen2", {**SMALL, "use_sliding_window": True, "sliding_window": 5,
                        "max_window_layers": 1}),
    "qwen2-yarn": ("Qwen2", {**SMALL, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", {**GATED, "tie_word_embeddings": True}),
    "gpt2": ("GPT2", dict(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=128,
                          bos_token_id=1, eos_token_id=2)),
    "gemma": ("Gemma", GATED),
    "gemma2": ("Gemma2", {**GATED, "sliding_window": 6, "query_pre_attn_scalar": 20,
                          "attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3", {**GATED, "num_hidden_layers": 7, "sliding_window": 6,
                          "query_pre_attn_scalar": 20}),
    "phi3": ("Phi3", {**SMALL, "sliding_window": 9}),
    "phi3-long": ("Phi3", {**SMALL, "original_max_position_embeddings": 64,
                           "rope_parameters": LONG}),
}


@functools.cache
def references() -> dict[str, Any]:
    return json.loads(REFERENCES.read_text())


def weights(shapes: dict[str, Sequence[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 arrays, which stay small enough for three layers."""
    found = {}
    for name, shape in shapes.items():
        drawn = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
        found[name] = (drawn * 0.3 if len(shape) > 1 else 1 + drawn * 0.2).astype(np.float32)
    return found


def write(folder: Path, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """A Hugging Face folder without a tokenizer."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    (folder / "config.json").write_text(json.dumps(config))
    save_file(arrays, folder / "model.safetensors")
    return folder


def stored(name: str, folder: Path) -> Path:
    """The folder of a family's model."""
    said = references()[name]
    return write(folder, said["config"], weights(said["weights"]))


def lettered(name: str, folder: Path) -> Path:
    """The same with a tokenizer of letters, and a chat template; "~" ends texts."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = {chr(32 + k).replace(" ", "\u0120"): k for k in range(96)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({**letters, "?": 96}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        tokenizers.pre_tokenizers.Split("", "isolated")])
    words.decoder = tokenizers.decoders.ByteLevel()
    write(folder, {**references()[name]["config"], "eos_token_id": letters["~"]},
          weights(references()[name]["weights"]))
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "eos_token": {"content": "~"}, "chat_template":
        "{% for m in messages %}\n{{ m.role[0] }}:{{ m.content }}{{ eos_token }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}a:{% endif %}\n"
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"}))
    return folder


def by_references(decoder: Decoder, ids: list[int], splits: Sequence[int] = ()) -> np.ndarray:
    """Logits [ids, vocabulary] by the ops' NumPy references, in runs that end before `splits`."""
    shape = (1, 0, 2 * decoder.shared, decoder.head_size)
    past = {f"past.{k}": np.zeros(shape, np.float32) for k in range(decoder.layers)}
    found = []
    for first, last in zip((0, *splits), (*splits, len(ids))):
        feeds = {**decoder.feeds([ids[first:last]], [first], last - first, first), **past}
        graph: Graph = decoder.graph(decoder.inputs(last - first, "logits", "f32"), "logits",
                                     {n: a.shape for n, a in feeds.items()})
        memo = {node: feeds[str(node.attr("name"))] for node in graph.inputs}
        outputs = {n: evaluate(node, memo) for n, node in graph.outputs}
        found.append(outputs["logits"])
        past = {n: np.concatenate([a, outputs[n.replace("past", "new")]], axis=1)
                for n, a in past.items()}
    return np.concatenate(found)


def transformers_model(name: str) -> Any:
    """transformers' own, of a family's configuration and weights that are random as it has them."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers, with torch, makes random models of every family")
    pytest.importorskip("torch", reason="transformers computes with torch")
    family, settings = FAMILIES[name]
    config_class = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    head = {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    config = getattr(transformers, config_class)(**settings)
    return getattr(transformers, head)._from_config(config, attn_implementation="eager").eval()


def told(name: str, seed: int, folder: Path, own: float = math.inf) -> tuple[Path, np.ndarray]:
    """(the folder of a family's model as transformers saves it, its logits for IDS). own: how far
    they may lie from those in f64, that is what rounding does to this model: a seed that makes it
    more is passed over for the next."""
    import torch

    model, ids = transformers_model(name), torch.tensor([IDS])
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    for number in itertools.count(seed):
        with torch.no_grad():
            for parameter_name, array in weights(shapes, number).items():
                model.get_parameter(parameter_name).copy_(torch.from_numpy(array))
            logits = model(ids).logits[0].numpy()
            exact = copy.deepcopy(model).double()(ids).logits[0].numpy() if own < math.inf else 0
        if own == math.inf or np.abs(logits - exact).max() <= own:
            break
    model.save_pretrained(folder)
    return folder, logits


def main() -> None:
    from safetensors import safe_open

    found = {}
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as place:
            folder, logits = told(name, 0, Path(place))
            config = json.loads((folder / "config.json").read_text())
            with safe_open(folder / "model.safetensors", framework="numpy") as file:
                shapes = {n: file.get_slice(n).get_shape() for n in sorted(file.keys())}
        rows = {str(k): [float(f"{v:.7g}") for v in logits[k]] for k in (0, 7, len(IDS) - 1)}
        found[name] = {"config": config, "weights": shapes, "logits": rows}
    REFERENCES.write_text("{\n" + ",\n".join(
        f" {json.dumps(n)}: {json.dumps(v, separators=(',', ':'))}" for n, v in found.items())
        + "\n}\n")


if __name__ == "__main__":
    main()

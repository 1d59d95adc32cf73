"""GGUF files of our own, as llama.cpp's converter writes them from Hugging Face's folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitcl.lm.gguf import CLASSES, KEYS
from jitcl.lm.weights import safetensors


def write(folder: Path, file: Path, kind: str = "F32",
          tensors: Mapping[str, np.ndarray] | None = None, **metadata: Any) -> Path:
    """The folder's model with matrices of a type, where rows are whole blocks of it, and tensors
    that no folder has."""
    gguf = pytest.importorskip("gguf", reason="the extra lm brings gguf, which writes files, too")
    config = json.loads((folder / "config.json").read_text())
    name = next(n for n, c in CLASSES.items() if c == config["architectures"][0])
    writer = gguf.GGUFWriter(file, name)
    for key, said in KEYS.items():
        value = config.get(said)
        if value is None and said == "rope_theta":
            value = config["rope_parameters"].get("full_attention", config["rope_parameters"])[said]
        if isinstance(value, float):
            writer.add_float32(f"{name}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{name}.{key}", value)
    for key, value in metadata.items():
        writer.add_key_value(key.replace("__", "."), value, _type(gguf, value),
                             *([_type(gguf, value[0])] if isinstance(value, list) else []))
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    stored = safetensors(folder)
    for their, array in stored.arrays.items():
        array = np.array(array, np.float32)
        if name == "llama" and their.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in their else "num_key_value_heads"]
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        if name.startswith("gemma") and array.ndim == 1:
            array = array + 1
        t = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        if array.shape[-1] % gguf.GGML_QUANT_SIZES[t][0]:
            t = gguf.GGMLQuantizationType.F32
        writer.add_tensor(names.get_name(their, try_suffixes=(".weight", ".bias")),
                          gguf.quants.quantize(array, t), raw_dtype=t)
    for their, array in (tensors or {}).items():
        writer.add_tensor(their, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _type(gguf: Any, value: Any) -> Any:
    return gguf.GGUFValueType.get_type(value)


def words_of(folder: Path) -> dict[str, Any]:
    """Metadata of a tokenizer of merged bytes."""
    said = json.loads((folder / "tokenizer.json").read_text())
    model, special = said["model"], {t["id"] for t in said["added_tokens"]}
    added = {t["content"]: t["id"] for t in said["added_tokens"]}
    words = sorted({**model["vocab"], **added}.items(), key=lambda item: item[1])
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "gpt-2",
            "tokenizer__ggml__tokens": [w for w, _ in words],
            "tokenizer__ggml__token_type": [3 if k in special else 1 for _, k in words],
            "tokenizer__ggml__merges": merges, "tokenizer__ggml__bos_token_id": 0,
            "tokenizer__ggml__eos_token_id": 1, "tokenizer__ggml__add_bos_token": False}

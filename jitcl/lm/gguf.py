"""GGUF files: weights, and the configuration by the names that Hugging Face has for it.

What the library `gguf` says is what a quantised weight means. Types whose blocks are integers
times a scale, and some a minimum, stay packed, and kernels that read them decode them to the same
float32 numbers:

    Q4_0, Q4_1, Q4_K   4 bits, a scale for 32     Q8_0   8 bits, a scale for 32
    Q5_0, Q5_1, Q5_K   as 8 bits                  Q6_K   as 8 bits, a scale for 16

The others become float32 when the model is compiled.

The library takes a NumPy array for each of a tokenizer's words: seconds, and 500 MB of memory for
150,000 of them. So what it says of a file is kept in the cache, and a warm start does without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, UnsupportedError
from jitcl.ir.graph import Node, const, derived
from jitcl.ir.types import TensorType
from jitcl.lm.extra import library
from jitcl.lm.gguf_tokens import of_metadata
from jitcl.lm.tokens import Tokenizer
from jitcl.lm.weights import TYPES, Weights, loaded, together
from jitcl.runtime.arguments import is_whole
from jitcl.runtime.cache import DeviceCache, Key, code_version
from jitcl.runtime.digests import file_digest

if TYPE_CHECKING:
    from jitcl.ops.builder import GraphBuilder

# GGUF's names of architectures -> Hugging Face's
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
           "phi3": "Phi3ForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
           "gemma3": "Gemma3ForCausalLM"}
# metadata, behind the architecture's name -> key of config.json
KEYS = {"block_count": "num_hidden_layers", "embedding_length": "hidden_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps", "context_length":
        "max_position_embeddings", "rope.freq_base": "rope_theta", "vocab_size": "vocab_size",
        "attention.sliding_window": "sliding_window", "rope.dimension_count": "rotary_dim",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping"}
FACTORS = ("rope_freqs.weight", "rope_factors_short.weight")    # what frequencies are divided by
# Gemmas whose attention is scaled by another size than a head's, which no metadata says: the 27B
# ones, by their layers, as llama.cpp tells them
HUGE = (("gemma2", 46), ("gemma3", 62))
HEADS = ("model.", "lm_head")   # that names of weights begin with, of these architectures
LONG = "rope_factors_long.weight"      # the same for texts that are longer than the model's first
PIECE = 1 << 22                 # bytes of a file that are decoded at once


class Tensor(NamedTuple):
    """kind: the library's name of its type; shape: in elements, of which a row is whole blocks;
    offset, nbytes: where they are in the file."""

    kind: str
    shape: list[int]
    offset: int
    nbytes: int


def contents(path: Path) -> dict[str, Any]:
    """What a file holds, as JSON values: metadata of its architecture, tensors, the file's names of
    Hugging Face's, tokens that end texts, the tokenizer and how many words it has. Raises
    ModelError, UnsupportedError."""
    lib = library("gguf", "reading GGUF files")
    try:
        reader = lib.GGUFReader(path)
        said = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelError(f"{path}: is no GGUF file, or not all of one: {error}") from None
    architecture = str(said.get("general.architecture"))
    if architecture not in CLASSES:
        raise UnsupportedError(f"{path}: architecture '{architecture}' is not supported "
                               f"in GGUF files: jitcl has {', '.join(CLASSES)}")
    if reader.byte_order != "I":
        raise UnsupportedError(f"{path}: is of the other byte order than this machine")
    parts = said.get("split.count", 1)
    if parts != 1:
        raise UnsupportedError(f"{path}: is one of {parts} files of a model\n  Join them with "
                               "llama.cpp's llama-gguf-split --merge.")
    tensors = {t.name: Tensor(t.tensor_type.name, t.shape[::-1].tolist(), int(t.data_offset),
                              int(t.n_bytes)) for t in reader.tensors}
    arch = next(a for a, n in lib.MODEL_ARCH_NAMES.items() if n == architecture)
    layers = _said(path, said, f"{architecture}.block_count")
    if not is_whole(layers):
        raise ModelError(f"{path}: '{architecture}.block_count' is {layers!r}: wanted a whole "
                         "number above 0")
    names = lib.get_tensor_name_map(arch, min(layers, len(tensors))).mapping
    ends = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    tokenizer = of_metadata(said, str(path))
    return {
        "architecture": architecture, "tensors": tensors,
        "metadata": {k: v for k, v in said.items() if k.startswith(f"{architecture}.")},
        "names": {f"{their}.{end}": f"{own}.{end}" for their, (_, own) in names.items()
                  for end in ("weight", "bias")
                  if their.startswith(HEADS) and f"{own}.{end}" in tensors},
        "ends": [int(said[key]) for key in ends if key in said],
        "words": len(said.get("tokenizer.ggml.tokens", ())),
        "tokenizer": tokenizer and tokenizer.row()}


def _said(path: Path, said: Mapping[str, Any], key: str) -> Any:
    if key not in said:
        raise ModelError(f"{path}: has no '{key}'")
    return said[key]


def _known(path: Path, cache: DeviceCache) -> dict[str, Any]:
    """`contents`, which the cache holds."""
    try:
        digest = file_digest(path, cache.cache.root, None)
    except OSError as error:
        raise ModelError(f"{path}: is no GGUF file: {error}") from None
    key = Key({"gguf": digest, "code": code_version()}, f"contents of {path.name}")
    stored = cache.get("model", key)
    if stored is None:
        stored = json.dumps(contents(path)).encode()
        cache.put("model", key, stored)
    found: dict[str, Any] = json.loads(stored)
    return found


class Gguf(Weights):
    """A file's weights, by Hugging Face's names. ends: tokens that end texts."""

    def __init__(self, path: Path, cache: DeviceCache | None = None) -> None:
        super().__init__()
        found = contents(path) if cache is None else _known(path, cache)
        self.path, self.place = path, str(path)
        self.read: set[str] = set()
        self.data = np.memmap(path, np.uint8, "r")
        self.architecture, self.metadata = found["architecture"], found["metadata"]
        self.ends, self._words = frozenset(found["ends"]), found["words"]
        row = found["tokenizer"]
        self.tokenizer = row and Tokenizer.of_row(row, self.place)
        self._names: dict[str, str] = found["names"]
        self._tensors = {name: Tensor(*t) for name, t in found["tensors"].items()}

    def config(self) -> dict[str, Any]:
        """As config.json has it."""
        arch, said = self.architecture, self.metadata
        found = {name: said[f"{arch}.{key}"] for key, name in KEYS.items()
                 if f"{arch}.{key}" in said}
        found.update(architectures=[CLASSES[arch]], model_type=arch,
                     rope_interleaved=arch == "llama", hidden_act=(
                         "gelu_pytorch_tanh" if arch.startswith("gemma") else "silu"),
                     norm_offset=0.0)       # of Gemma: 1 is in the file's weights
        found.setdefault("vocab_size", self._words)
        found["rope_scaling"] = self._scaling(found)
        if "head_dim" in found:
            found["query_pre_attn_scalar"] = found["head_dim"]
        if (arch, found.get("num_hidden_layers")) in HUGE:
            found["query_pre_attn_scalar"] = (
                found["hidden_size"] / _said(self.path, said, f"{arch}.attention.head_count"))
        return found

    def _scaling(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """How rotary positions are stretched."""
        stem = f"{self.architecture}.rope.scaling."
        said = {k.removeprefix(stem): v for k, v in self.metadata.items() if k.startswith(stem)}
        original = said.get("original_context_length", config.get("max_position_embeddings"))
        factors = next((n for n in FACTORS if n in self._tensors), None)
        if factors is not None:
            short = self._array(factors).tolist()
            long = self._array(LONG).tolist() if LONG in self._tensors else short
            return {"rope_type": "longrope", "short_factor": short, "long_factor": long,
                    "attention_factor": said.get("attn_factor", 1.0),
                    "original_max_position_embeddings": original}
        kind = said.get("type", "none")
        if kind == "none":
            return None
        return {"rope_type": kind, "factor": said.get("factor", 1.0),
                "original_max_position_embeddings": original}

    # ---- weights

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def names(self) -> set[str]:
        return {*self._tensors}

    def _tensor(self, name: str) -> Tensor:
        found = self._names.get(name)
        if found is None:
            raise ModelError(f"{self.path}: weight '{name}' is missing")
        self.read.add(found)
        return self._tensors[found]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensor(name).shape)

    def rows(self, name: str, which: np.ndarray) -> np.ndarray:
        t = self._tensor(name)
        return self._float(t, self._bytes(t)[which])

    def _array(self, file_name: str) -> np.ndarray:
        self.read.add(file_name)
        t = self._tensors[file_name]
        return self._float(t, self._bytes(t))

    def _bytes(self, t: Tensor) -> np.ndarray:
        """[.., bytes of a row]: the file is mapped, so nothing of it need stay."""
        return np.asarray(self.data)[t.offset:t.offset + t.nbytes].reshape(*t.shape[:-1], -1)

    def _float(self, t: Tensor, data: np.ndarray) -> np.ndarray:
        """What `_bytes`, or rows of them, mean."""
        if t.kind in TYPES:
            return data.view(dtypes.to_numpy(TYPES[t.kind])).astype(np.float32, copy=False)
        if t.kind in PACKED:
            return PACKED[t.kind].floats(data)
        lib = library("gguf", "reading GGUF files")
        try:
            kind = lib.GGMLQuantizationType[t.kind]
            return np.asarray(lib.quants.dequantize(data, kind), np.float32)
        except NotImplementedError:         # what the library raises for types that it only names
            raise UnsupportedError(f"{self.path}: has weights of type {t.kind}, which the library "
                                   "gguf does not decode") from None

    def alike(self, names: Sequence[str]) -> bool:
        return super().alike(names) and len({self._tensor(n).kind for n in names}) == 1

    def made(self, g: GraphBuilder, *names: str) -> Node:
        tensors = [self._tensor(name) for name in names]
        kind, decode = tensors[0].kind, PACKED.get(tensors[0].kind)
        if decode is None and kind != "F16":
            return loaded(lambda: together([self._float(t, self._bytes(t)) for t in tensors]))

        def data() -> np.ndarray:
            return together([self._bytes(t).reshape(t.shape[0], -1) for t in tensors])

        if decode is None:
            return g.cast(loaded(lambda: data().view(np.float16)), to="f32")
        file = loaded(data).attr("data")
        first = decode.blocks(self._bytes(tensors[0]).reshape(tensors[0].shape[0], -1)[:1])
        n, k = sum(self.shape(name)[0] for name in names), self.shape(names[0])[1]

        def part(name: str, elements: Callable[[np.ndarray], np.ndarray], *dims: int) -> Node:
            """Of all blocks, when it is asked for."""
            dtype = dtypes.from_numpy(elements(first).dtype)
            assert dtype is not None
            return derived(TensorType(dtype, dims), f"{name} of {kind}", [file],
                           lambda: decode.each(elements, data()).reshape(dims))

        signed = decode.codes(first).dtype == np.int8
        dims = n, k // decode.block, decode.block
        codes = part("codes", decode.codes, *(dims if signed else (n * k // 2,)))
        if not signed:
            codes = g.unpack_uint4(codes, shape=dims)
        zeros = [] if signed or decode.shifts is not None else [const(8, "u8")]
        w = g.dequantize(codes, part("scales", decode.scales, *dims[:2], 1), *zeros, to="f32")
        if decode.shifts is not None:
            w = g.add(w, part("shifts", decode.shifts, *dims[:2], 1))
        return g.reshape(w, shape=(n, k))

    def digest(self, root: Path) -> str:
        return file_digest(self.path, root, None)

    def mapped(self) -> list[np.ndarray]:
        return [self.data]


# ---- blocks, of rows [rows, bytes]

class Kind(NamedTuple):
    """A type: its blocks have so many bytes, and a scale for so many elements. Of blocks [rows,
    blocks, bytes]: codes [rows, n] of signed bytes, or of two unsigned halves a byte, less 8 where
    there are no shifts; what they are multiplied by, and what is added then [rows, n / block].
    """

    nbytes: int
    block: int
    codes: Callable[[np.ndarray], np.ndarray]
    scales: Callable[[np.ndarray], np.ndarray]
    shifts: Callable[[np.ndarray], np.ndarray] | None = None

    def blocks(self, data: np.ndarray) -> np.ndarray:
        return data.reshape(len(data), -1, self.nbytes)

    def each(self, elements: Callable[[np.ndarray], np.ndarray], data: np.ndarray) -> np.ndarray:
        """Elements of rows [rows, bytes], some at a time: they take several times the memory of
        what comes out, and a table of tokens is half of a small model."""
        step = max(1, PIECE // data.shape[1])
        first = elements(self.blocks(data[:step]))
        found = np.empty((len(data), *first.shape[1:]), first.dtype)
        found[:step] = first
        for at in range(step, len(data), step):
            found[at:at + step] = elements(self.blocks(data[at:at + step]))
        return found

    def floats(self, data: np.ndarray) -> np.ndarray:
        """The numbers that rows mean [rows, n], float32."""
        b = self.blocks(data)
        codes, scales = self.codes(b), self.scales(b).astype(np.float32)
        if codes.dtype != np.int8:
            codes = _nibbles(codes, 1)
            codes = codes.view(np.int8) - np.int8(8) if self.shifts is None else codes
        w = codes.reshape(*scales.shape, self.block) * scales[..., None]
        if self.shifts is not None:
            w += self.shifts(b)[..., None]
        return w.reshape(len(data), -1)


def _half(b: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(b).view(np.float16)[..., 0]


def _nibbles(b: np.ndarray, run: int) -> np.ndarray:
    """[..., n] -> [..., 2 n]: the low halves of each `run` bytes, then their high ones."""
    parts = b.reshape(*b.shape[:-1], -1, 1, run) >> np.array([[0], [4]], np.uint8)
    return (parts & 15).reshape(*b.shape[:-1], -1)


def _pairs(b: np.ndarray, run: int) -> np.ndarray:
    """[rows, blocks, n] -> [rows, blocks * n]: `_nibbles`, two in a byte, the first one low."""
    even, odd = np.moveaxis(b.reshape(*b.shape[:-1], -1, run // 2, 2), -1, 0)
    return np.stack([even & 15 | odd << 4, even >> 4 | odd & 240], -2).reshape(len(b), -1)


def _fifth(b: np.ndarray) -> np.ndarray:
    """A bit for each of 32 elements, from 4 bytes."""
    return np.unpackbits(np.ascontiguousarray(b), axis=-1, bitorder="little")


def _bytes(b: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(b).view(np.int8)


def _signed(codes: np.ndarray, zero: int) -> np.ndarray:
    return (codes.view(np.int8) - np.int8(zero)).reshape(len(codes), -1)


def _of_k(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and shifts [rows, n / 32] of blocks of 256, whose heads hold both in 6 bits."""
    packed = np.ascontiguousarray(b[..., 4:16]).reshape(-1, 12)
    found = library("gguf.quants", "reading GGUF files").Q4_K.get_scale_min(packed)
    scales, least = (f.reshape(*b.shape[:2], 8).astype(np.float32) for f in found)
    scales *= _half(b[..., :2])[..., None]
    least *= -_half(b[..., 2:4])[..., None]
    return scales.reshape(len(b), -1), least.reshape(len(b), -1)


def _codes_q5_k(b: np.ndarray) -> np.ndarray:
    fifth = b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _signed(_nibbles(b[..., 48:], 32) | fifth.reshape(*b.shape[:2], 256) << 4, 0)


def _codes_q6_k(b: np.ndarray) -> np.ndarray:
    rows, n, _ = b.shape
    high = b[..., 128:192].reshape(rows, n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return _signed(_nibbles(b[..., :128], 64) | (high & 3).reshape(rows, n, 256) << 4, 32)


def _scales_q6_k(b: np.ndarray) -> np.ndarray:
    scales = _half(b[..., 208:])[..., None].astype(np.float32) * _bytes(b[..., 192:208])
    return scales.reshape(len(b), -1)


def _scale(b: np.ndarray) -> np.ndarray:
    return _half(b[..., :2])


def _shift(b: np.ndarray) -> np.ndarray:
    return _half(b[..., 2:4]).astype(np.float32)


PACKED = {
    "Q4_0": Kind(18, 32, lambda b: _pairs(b[..., 2:], 16), _scale),
    "Q4_1": Kind(20, 32, lambda b: _pairs(b[..., 4:], 16), _scale, _shift),
    "Q4_K": Kind(144, 32, lambda b: _pairs(b[..., 16:], 32), lambda b: _of_k(b)[0],
                 lambda b: _of_k(b)[1]),
    "Q5_0": Kind(22, 32, lambda b: _signed(_nibbles(b[..., 6:], 16) | _fifth(b[..., 2:6]) << 4, 16),
                 _scale),
    "Q5_1": Kind(24, 32, lambda b: _signed(_nibbles(b[..., 8:], 16) | _fifth(b[..., 4:8]) << 4, 0),
                 _scale, _shift),
    "Q5_K": Kind(176, 32, _codes_q5_k, lambda b: _of_k(b)[0], lambda b: _of_k(b)[1]),
    "Q6_K": Kind(210, 16, _codes_q6_k, _scales_q6_k),
    "Q8_0": Kind(34, 32, lambda b: _bytes(b[..., 2:]).reshape(len(b), -1), _scale),
}

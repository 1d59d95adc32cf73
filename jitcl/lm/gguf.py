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
from jitcl.ir.graph import Node, const
from jitcl.lm.extra import library
from jitcl.lm.gguf_tokens import of_metadata
from jitcl.lm.tokens import Tokenizer
from jitcl.lm.weights import KEPT, TYPES, Weights, loaded, together
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
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping"}
FACTORS = ("rope_freqs.weight", "rope_factors_short.weight")    # what frequencies are divided by
# Gemmas whose attention is scaled by another size than a head's, which no metadata says: the 27B
# ones, by their layers, as llama.cpp tells them
HUGE = (("gemma2", 46), ("gemma3", 62))
HEADS = ("model.", "lm_head")   # that names of weights begin with, of these architectures
UNUSED = ("rope_factors_long.weight",)
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
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelError(f"{path}: is no GGUF file: {error}") from None
    said = {name: field.contents() for name, field in reader.fields.items()}
    architecture = str(said.get("general.architecture"))
    if architecture not in CLASSES:
        raise UnsupportedError(f"{path}: architecture '{architecture}' is not supported "
                               f"in GGUF files: jitcl has {', '.join(CLASSES)}")
    if reader.byte_order != "I":
        raise UnsupportedError(f"{path}: is of the other byte order than this machine")
    tensors = {t.name: Tensor(t.tensor_type.name, t.shape[::-1].tolist(), int(t.data_offset),
                              int(t.n_bytes)) for t in reader.tensors}
    arch = next(a for a, n in lib.MODEL_ARCH_NAMES.items() if n == architecture)
    layers = _said(path, said, f"{architecture}.block_count")
    names = lib.get_tensor_name_map(arch, int(layers)).mapping
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
        self.read: set[str] = set(UNUSED)
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
        turned = said.get(f"{arch}.rope.dimension_count")
        if turned and "head_dim" in found:
            found["partial_rotary_factor"] = turned / found["head_dim"]
        found["rope_scaling"] = self._scaling(found)
        if (arch, found.get("num_hidden_layers")) in HUGE:
            found["query_pre_attn_scalar"] = (
                found["hidden_size"] / _said(self.path, said, f"{arch}.attention.head_count"))
        return found

    def _scaling(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """How rotary positions are stretched."""
        stem = f"{self.architecture}.rope.scaling."
        said = {k.removeprefix(stem): v for k, v in self.metadata.items() if k.startswith(stem)}
        factors = next((n for n in FACTORS if n in self._tensors), None)
        if factors is not None:
            return {"rope_type": "longrope", "short_factor": self._array(factors).tolist(),
                    "attention_factor": said.get("attn_factor", 1.0)}
        kind = said.get("type", "none")
        if kind == "none":
            return None
        original = said.get("original_context_length", config.get("max_position_embeddings"))
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
            return _floats(PACKED[t.kind](data))
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
        decode = PACKED.get(tensors[0].kind)
        if decode is None:
            if tensors[0].kind == "F16":
                return g.cast(loaded(lambda: together(
                    [self._bytes(t).view(np.float16) for t in tensors])), to="f32")
            return loaded(lambda: together([self._float(t, self._bytes(t)) for t in tensors]))
        shape = (sum(self.shape(name)[0] for name in names), *self.shape(names[0])[1:])

        def data() -> np.ndarray:
            return together([self._bytes(t).reshape(t.shape[0], -1) for t in tensors])

        found = _decoded(decode, data())
        codes, scales, block, shifts = found
        signed = codes.dtype == np.int8
        form = (shape[0], -1, block) if signed else (codes.size,)

        def kept(elements: Callable[[Decoded], np.ndarray]) -> Node:
            array = elements(found)
            return const(array, reload=(lambda: elements(_decoded(decode, data())))
                         if array.nbytes > KEPT else None)

        packed = kept(lambda d: d.codes.reshape(form))
        scale = kept(lambda d: _narrow(d.scales).reshape(shape[0], -1, 1))
        if not signed:
            packed = g.unpack_uint4(packed, shape=(*scale.type.dims[:2], block))
        zeros = [] if signed or shifts is not None else [const(8, "u8")]
        w = g.dequantize(packed, scale, *zeros, to="f32")
        if shifts is not None:
            w = g.add(w, kept(lambda d: _shifts(d).reshape(scale.type.dims)))
        return g.reshape(w, shape=shape)

    def digest(self, root: Path) -> str:
        return file_digest(self.path, root, None)

    def mapped(self) -> list[np.ndarray]:
        return [self.data]


# ---- blocks, of rows [rows, bytes]

class Decoded(NamedTuple):
    """codes [rows, n] of signed bytes, or of two unsigned halves a byte, less 8 where there are no
    shifts; what they are multiplied by, and what is added then [rows, n / block], float32."""

    codes: np.ndarray
    scales: np.ndarray
    block: int
    shifts: np.ndarray | None = None


def _decoded(decode: Callable[[np.ndarray], Decoded], data: np.ndarray) -> Decoded:
    """`decode` of rows [rows, bytes], some at a time: it takes several times the memory of what it
    gives, and a table of tokens is half of a small model."""
    step = max(1, PIECE // data.shape[1])
    first = decode(data[:step])
    if len(data) <= step:
        return first

    def room(a: np.ndarray) -> np.ndarray:
        return np.empty((len(data), *a.shape[1:]), a.dtype)

    shifts = None if first.shifts is None else room(first.shifts)
    whole = Decoded(room(first.codes), room(first.scales), first.block, shifts)
    for at in range(0, len(data), step):
        rows = slice(at, at + step)
        piece = decode(data[rows]) if at else first
        whole.codes[rows], whole.scales[rows] = piece.codes, piece.scales
        if shifts is not None:
            shifts[rows] = piece.shifts
    return whole


def _floats(d: Decoded) -> np.ndarray:
    """The numbers that are meant [rows, n], float32."""
    codes = d.codes if d.codes.dtype == np.int8 else _nibbles(d.codes, 1)
    if codes.dtype != np.int8 and d.shifts is None:
        codes = codes.view(np.int8) - np.int8(8)
    w = codes.reshape(*d.scales.shape, d.block) * d.scales[..., None]
    if d.shifts is not None:
        w += d.shifts[..., None]
    return w.reshape(len(codes), -1)


def _blocks(data: np.ndarray, nbytes: int) -> np.ndarray:
    return data.reshape(data.shape[0], -1, nbytes)


def _narrow(scales: np.ndarray) -> np.ndarray:
    """As f16 where that is exact: as files have the scales of most types."""
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    return halves if np.array_equal(halves, scales) else scales


def _shifts(decoded: Decoded) -> np.ndarray:
    assert decoded.shifts is not None
    return decoded.shifts


def _half(data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(data: np.ndarray, run: int) -> np.ndarray:
    """[..., n] -> [..., 2 n]: the low halves of each `run` bytes, then their high ones."""
    parts = data.reshape(*data.shape[:-1], -1, 1, run) >> np.array([[0], [4]], np.uint8)
    return (parts & 15).reshape(*data.shape[:-1], -1)


def _pairs(codes: np.ndarray) -> np.ndarray:
    """Two codes in a byte, the first one low."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def _fifth(data: np.ndarray) -> np.ndarray:
    """A bit for each of 32 elements, from 4 bytes."""
    return np.unpackbits(np.ascontiguousarray(data), axis=-1, bitorder="little")


def _q4_0(data: np.ndarray) -> Decoded:
    b = _blocks(data, 18)
    return Decoded(_pairs(_nibbles(b[..., 2:], 16)), _half(b[..., :2]), 32)


def _q4_1(data: np.ndarray) -> Decoded:
    b = _blocks(data, 20)
    return Decoded(_pairs(_nibbles(b[..., 4:], 16)), _half(b[..., :2]), 32, _half(b[..., 2:4]))


def _q8_0(data: np.ndarray) -> Decoded:
    b = _blocks(data, 34)
    codes = np.ascontiguousarray(b[..., 2:]).view(np.int8)
    return Decoded(codes.reshape(data.shape[0], -1), _half(b[..., :2]), 32)


def _q5_0(data: np.ndarray) -> Decoded:
    b = _blocks(data, 22)
    codes = (_nibbles(b[..., 6:], 16) | _fifth(b[..., 2:6]) << 4).astype(np.int8) - np.int8(16)
    return Decoded(codes.reshape(data.shape[0], -1), _half(b[..., :2]), 32)


def _q5_1(data: np.ndarray) -> Decoded:
    b = _blocks(data, 24)
    codes = (_nibbles(b[..., 8:], 16) | _fifth(b[..., 4:8]) << 4).astype(np.int8)
    return Decoded(codes.reshape(data.shape[0], -1), _half(b[..., :2]), 32, _half(b[..., 2:4]))


def _scales_k(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and shifts [rows, n / 32] of blocks of 256, whose heads hold both in 6 bits."""
    packed = np.ascontiguousarray(b[..., 4:16]).reshape(-1, 12)
    found = library("gguf.quants", "reading GGUF files").Q4_K.get_scale_min(packed)
    scales, least = (f.reshape(*b.shape[:2], 8).astype(np.float32) for f in found)
    scales *= _half(b[..., :2])[..., None]
    least *= -_half(b[..., 2:4])[..., None]
    return scales.reshape(len(b), -1), least.reshape(len(b), -1)


def _q4_k(data: np.ndarray) -> Decoded:
    b = _blocks(data, 144)
    scales, shifts = _scales_k(b)
    return Decoded(_pairs(_nibbles(b[..., 16:], 32)), scales, 32, shifts)


def _q5_k(data: np.ndarray) -> Decoded:
    b = _blocks(data, 176)
    scales, shifts = _scales_k(b)
    fifth = b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _nibbles(b[..., 48:], 32) | fifth.reshape(*b.shape[:2], 256) << 4
    return Decoded(codes.astype(np.int8).reshape(len(b), -1), scales, 32, shifts)


def _q6_k(data: np.ndarray) -> Decoded:
    b = _blocks(data, 210)
    rows, n = b.shape[:2]
    scales = np.ascontiguousarray(b[..., 192:208]).view(np.int8).astype(np.float32)
    scales = _half(b[..., 208:])[..., None] * scales
    high = b[..., 128:192].reshape(rows, n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    codes = _nibbles(b[..., :128], 64) | (high & 3).reshape(rows, n, 256) << 4
    codes = (codes.astype(np.int8) - np.int8(32)).reshape(rows, -1)
    return Decoded(codes, scales.reshape(rows, -1), 16)


PACKED = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k, "Q5_0": _q5_0, "Q5_1": _q5_1,
          "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_0": _q8_0}

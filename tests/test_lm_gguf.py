"""GGUF files: what quantised weights mean, the models and tokenizers in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitcl
from jitcl.errors import ModelError, UnsupportedError
from jitcl.lm import gguf as gguf_module
from jitcl.lm.architectures import decoder
from jitcl.lm.gguf import PACKED, Gguf
from jitcl.lm.gguf_tokens import of_metadata
from jitcl.lm.weights import safetensors
from jitcl.ops.builder import GraphBuilder, evaluate
from tests import gguf_models, lm_models
from tests.lm_models import IDS
from tests.real_models import MODELS, needs_models

gguf = pytest.importorskip("gguf", reason="the extra lm brings gguf")
SHAKESPEARE = MODELS / "shakespeare-llama"
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("at_once", [gguf_module.PIECE, 700])
@pytest.mark.parametrize("kind", TYPES)
def test_weights_are_what_the_library_says(kind: str, at_once: int, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, of random blocks: all codes and scales, rows looked up, too."""
    monkeypatch.setattr(gguf_module, "PIECE", at_once)
    t = gguf.GGMLQuantizationType[kind]
    block, nbytes = gguf.GGML_QUANT_SIZES[t]
    random = np.random.default_rng(2)
    data = random.integers(0, 256, (5, 512 // block, nbytes), np.uint8)
    if kind in ("F32", "F16", "BF16"):      # numbers, none of them infinite
        data = gguf.quants.quantize(random.standard_normal((5, 512)).astype(np.float32), t)
    else:                                   # finite scales, where they are halves
        at = [nbytes - 2] if kind == "Q6_K" else [0, 2] if kind[-1] in "1K" else [0]
        for first in at:
            data[..., first + 1] &= 0xBB
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "qwen2")
    writer.add_uint32("qwen2.block_count", 1)
    raw = data if kind[0] in "FB" else data.reshape(5, -1)
    writer.add_tensor("output.weight", raw, raw_dtype=t)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = Gguf(tmp_path / "a.gguf")
    wanted = np.array(gguf.quants.dequantize(raw, t), np.float32).reshape(5, 512)
    assert np.isfinite(wanted).all() and len(np.unique(wanted)) > 200
    node = file.node(GraphBuilder(), "lm_head.weight")
    assert node.op == {"F16": "cast"}.get(kind, node.op if kind in PACKED else "const")
    assert evaluate(node).tobytes() == wanted.tobytes()
    assert (file.rows("lm_head.weight", np.array([3, 0, 3])) == wanted[[3, 0, 3]]).all()
    many = np.array([3, 0, 3, 4, 1])
    assert file.rows("lm_head.weight", many).tobytes() == wanted[many].tobytes()
    with pytest.raises(IndexError):
        file.rows("lm_head.weight", np.array([3, 0, 5]))


@pytest.mark.parametrize("name", ["llama", "llama-linear", "qwen2", "qwen3", "phi3", "gemma",
                                  "gemma2", "gemma3"])
def test_a_familys_logits_are_transformers(name: str, tmp_path: Path) -> None:
    folder = lm_models.stored(name, tmp_path)
    said: dict[str, Any] = {}
    if name == "llama-linear":
        said = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.0}
    file = Gguf(gguf_models.write(folder, tmp_path / "a.gguf", **said))
    config = file.config()
    for key in ("layer_types", "query_pre_attn_scalar"):    # which no file says: models of one kind
        if key in lm_models.references()[name]["config"]:   # have the same, but for these tiny ones
            config[key] = lm_models.references()[name]["config"][key]
    found = lm_models.by_references(decoder(config, file), IDS)
    for row, wanted in lm_models.references()[name]["logits"].items():
        np.testing.assert_allclose(found[int(row)], wanted, rtol=0, atol=1e-4)


def test_the_largest_gemmas_scale_attention_otherwise(tmp_path: Path) -> None:
    file = gguf.GGUFWriter(tmp_path / "a.gguf", "gemma2")
    for key, value in (("block_count", 46), ("embedding_length", 4608),
                       ("attention.head_count", 32), ("attention.key_length", 128)):
        file.add_uint32(f"gemma2.{key}", value)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.close()
    assert Gguf(tmp_path / "a.gguf").config()["query_pre_attn_scalar"] == 144


def test_frequencies_with_factors(tmp_path: Path) -> None:
    """Llama 3.1's files hold what each frequency is divided by."""
    folder = lm_models.stored("llama-3", tmp_path)
    wanted = decoder(json.loads((folder / "config.json").read_text()), safetensors(folder))
    plain = 10000.0 ** -(np.arange(4) / 4)
    writer = gguf.GGUFWriter(tmp_path / "f.gguf", "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_tensor("rope_freqs.weight", (plain / wanted.rotaries[""].frequencies).astype("f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from jitcl.lm.rotary import rotary
    from jitcl.lm.settings import Settings
    config = {**Gguf(tmp_path / "f.gguf").config(), "max_position_embeddings": 128}
    found = rotary(Settings(config, "here"), 8)
    np.testing.assert_allclose(found.frequencies, wanted.rotaries[""].frequencies, rtol=1e-6)
    assert found.scale == 1


@pytest.mark.slow
@needs_models
def test_shakespeare(tmp_path: Path) -> None:
    """The folder's text from a file of halves, and a text close to it from 8 bits."""
    said = lm_models.references()["shakespeare-llama"]
    words = gguf_models.words_of(SHAKESPEARE)
    held = json.loads((SHAKESPEARE / "expected.json").read_text())["val_tokens_first_256"][:64]
    losses = []
    for kind in ("F16", "Q8_0", "Q4_0"):
        file = gguf_models.write(SHAKESPEARE, tmp_path / f"{kind}.gguf", kind, **words)
        with jitcl.lm.load(file, device="cpu", cache_dir=tmp_path / "cache") as model:
            losses.append(model.score(held).loss)
            if kind == "F16":
                model.generate("ROMEO:\n", max_new_tokens=60)
                assert model.tokenize("ROMEO:\n") + model.last.ids == said["ids"][:63]
    assert abs(losses[1] - losses[0]) < 0.01 and 0 < abs(losses[2] - losses[0]) < 0.2


@needs_models
def test_bytes_are_merged_as_in_the_folder() -> None:
    from jitcl.lm import tokens

    said = {k.replace("__", "."): v for k, v in gguf_models.words_of(SHAKESPEARE).items()}
    ours, theirs = of_metadata(said, "here"), tokens.of_folder(SHAKESPEARE)
    assert ours is not None and theirs is not None
    for text in ("ROMEO:\nWhat, art thou  mad?<|eos|> n\u00e4'll 1234", " ", "a"):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


@pytest.mark.parametrize(("pre", "words"), [
    ("gpt-2", ["It", "'s", " HelloWorld", " 1234", "!/", "\n", "\n", "x"]),
    ("smollm", ["It", "'s", " HelloWorld", " ", "1", "2", "3", "4", "!/", "\n", "\n", "x"]),
    ("qwen2", ["It", "'s", " HelloWorld", " ", "1", "2", "3", "4", "!/\n\n", "x"]),
    ("deepseek-r1-qwen", ["It", "'s", " HelloWorld", " ", "1", "2", "3", "4", "!/\n\n", "x"]),
    ("llama-bpe", ["It", "'s", " HelloWorld", " ", "123", "4", "!/\n\n", "x"]),
    ("gpt-4o", ["It's", " Hello", "World", " ", "123", "4", "!/\n\n", "x"]),
    ("tekken", ["It", "'s", " Hello", "World", " ", "1", "2", "3", "4", "!/\n\n", "x"])])
def test_text_is_split_as_the_file_says(pre: str, words: list[str]) -> None:
    """Where whole words are tokens, they are what comes out: as SmolLM's, Phi-4-mini's and Mistral
    Nemo's own tokenizers split, among others."""
    letters = sorted({c for w in words for c in w.replace(" ", "\u0120").replace("\n", "\u010a")})
    tokens = [*letters, "<s>"]
    merges = []
    for word in dict.fromkeys(w.replace(" ", "\u0120").replace("\n", "\u010a") for w in words):
        for n in range(1, len(word)):
            if word[:n + 1] not in tokens:
                tokens.append(word[:n + 1])
                merges.append(f"{word[:n]} {word[n]}")
    found = of_metadata({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
                         "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
                         "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
                         "tokenizer.ggml.token_type": [1] * len(letters) + [3] + [1] * len(merges)},
                        "here")
    assert found is not None
    ids = found.encode("".join(words))
    begins = pre in ("llama-bpe", "tekken")
    assert [found.decode([k]) for k in ids[begins:]] == words
    assert begins == (tokens[ids[0]] == "<s>")


def test_pieces_are_merged_by_their_scores() -> None:
    """As SentencePiece does: ab before bc, where its score is higher; bytes for what is unknown."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{k:02X}>" for k in range(256)), "\u2581", "a", "b", "c",
             "ab", "bc", "\u2581ab", "abc"]
    scores = [0.0] * 263 + [-1.0, -2.0, -3.0, -4.0]
    said = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type":
            [2, 3, 3] + [6] * 256 + [1] * 8, "tokenizer.ggml.bos_token_id": 1}
    found = of_metadata(said, "here")
    assert found is not None

    def pieces(text: str) -> list[str]:
        return [words[k] for k in found.encode(text)]

    assert pieces("abc") == ["<s>", "\u2581ab", "c"]
    assert pieces("a\u00e9") == ["<s>", "\u2581", "a", "<0xC3>", "<0xA9>"]
    assert found.decode(found.encode("bc a\u00e9")) == "bc a\u00e9"
    assert of_metadata({}, "here") is None
    with pytest.raises(UnsupportedError, match="tokenizers of kind 'rwkv' are not supported"):
        of_metadata({**said, "tokenizer.ggml.model": "rwkv"}, "here")
    with pytest.raises(UnsupportedError, match="text that is split as 'odd' is not supported"):
        of_metadata({**said, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "odd"}, "here")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(ModelError, match="is no GGUF file"):
        jitcl.lm.load(tmp_path / "a.gguf")
    with pytest.raises(ModelError, match="is no GGUF file"):
        jitcl.lm.load(tmp_path / "b.gguf")
    writer = gguf.GGUFWriter(tmp_path / "c.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="architecture 'mamba' is not supported in GGUF"):
        jitcl.lm.load(tmp_path / "c.gguf")


def test_a_warm_start_reads_what_is_known_of_a_file(tmp_path: Path) -> None:
    """Without the library, or ops: the same text and tokens."""
    letters = [chr(32 + k) for k in range(96)]
    said = {"tokenizer__ggml__model": "llama", "tokenizer__ggml__tokens": letters,
            "tokenizer__ggml__scores": [0.0] * 96, "tokenizer__ggml__add_space_prefix": False,
            "tokenizer__ggml__eos_token_id": 94, "tokenizer__chat_template": "{{ messages }}"}
    file = gguf_models.write(lm_models.stored("qwen2", tmp_path), tmp_path / "a.gguf", "Q8_0",
                             **said)
    code = ("import jitcl.lm, sys\n"
            f"m = jitcl.lm.load({str(file)!r}, device='cpu', cache_dir={str(tmp_path / 'c')!r})\n"
            "print(m.generate('abc', max_new_tokens=8), m.last.ids, m.tokenize('a b'), m.ends, "
            "m.tokenizer.template, m.tokenizer.specials)\n"
            "print(sorted({'gguf', 'jitcl.ops', 'ml_dtypes', 'importlib.metadata', 'html'} "
            "& {*sys.modules}))")

    def told() -> list[str]:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()

    cold, warm = told(), told()
    assert warm[:-1] == cold[:-1] and "frozenset({94})" in warm[0]
    assert "gguf" in cold[-1] and warm[-1] == "[]"


def test_a_file_of_the_other_byte_order(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_uint32("llama.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="is of the other byte order"):
        Gguf(tmp_path / "a.gguf")

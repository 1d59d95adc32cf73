"""Language models in files that say less than most, or otherwise, or nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitcl
from jitcl.errors import InputError, JitclError, ModelError, ShapeError, UnsupportedError
from jitcl.lm.architectures import decoder, prefixed
from jitcl.lm.decoder import Decoder
from jitcl.lm.gguf import Gguf
from jitcl.lm.gguf_tokens import of_metadata
from jitcl.lm.tokens import Tokenizer, of_folder
from jitcl.lm.weights import safetensors
from tests import gguf_models, lm_models
from tests.lm_models import IDS

MESSAGES = [{"role": "user", "content": "h\u00e9 <b>"}]


def opened(folder: Path, **changes: Any) -> Decoder:
    """changes: of the configuration; None: without the key."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    config = {k: v for k, v in config.items() if v is not None}
    return decoder(config, prefixed(config, safetensors(folder)))


def says_what_transformers_does(model: Decoder, name: str) -> None:
    found = lm_models.by_references(model, IDS)
    for row, wanted in lm_models.references()[name]["logits"].items():
        np.testing.assert_allclose(found[int(row)], wanted, rtol=0, atol=1e-4)


# ---- what a configuration leaves out, or old ones say otherwise


@pytest.mark.parametrize(("name", "changes"), [
    ("gemma", dict(hidden_act="gelu")),     # of official files: it means the approximation
    ("gemma", dict(hidden_act=None)), ("gemma2", dict(hidden_activation=None)),
    ("gpt2", dict(activation_function=None)), ("llama", dict(hidden_act=None)),
    ("llama", dict(sliding_window=0, layer_types=["sliding_attention"] * 3))])
def test_what_is_left_out_is_what_transformers_takes(name: str, changes: dict[str, Any],
                                                     tmp_path: Path) -> None:
    says_what_transformers_does(opened(lm_models.stored(name, tmp_path), **changes), name)


@pytest.mark.parametrize(("name", "key", "value"), [
    ("gemma2", "attn_logit_softcapping", 50), ("gemma2", "final_logit_softcapping", 30),
    ("gemma2", "query_pre_attn_scalar", 256), ("gemma2", "sliding_window", 4096),
    ("gemma3", "query_pre_attn_scalar", 256), ("gemma3", "sliding_window", 4096),
    ("mistral", "sliding_window", 4096), ("qwen2", "max_window_layers", 28),
    ("qwen3", "max_window_layers", 28), ("phi3", "rms_norm_eps", 1e-5)])
def test_a_key_that_is_left_out_has_the_value_that_transformers_gives_it(
        name: str, key: str, value: float, tmp_path: Path) -> None:
    folder = lm_models.stored(name, tmp_path)
    assert opened(folder, **{key: None}).config.get(key) == value
    if key.endswith(("softcapping", "sliding_window")):             # null is none of it
        config = {**json.loads((folder / "config.json").read_text()), key: None}
        assert decoder(config, safetensors(folder)).config.get(key) is None


def test_gemma_3_has_a_base_of_its_own(tmp_path: Path) -> None:
    model = opened(lm_models.stored("gemma3", tmp_path), rope_parameters=None, rope_theta=None)
    found = {n: r.frequencies[1] for n, r in model.rotaries.items()}
    np.testing.assert_allclose([found[".full"], found[".sliding"]],
                               [1e6 ** (-1 / 6), 1e4 ** (-1 / 6)], rtol=1e-5)


def test_gemma_2_has_the_exact_function_where_it_says_so(tmp_path: Path) -> None:
    folder = lm_models.stored("gemma2", tmp_path)
    assert opened(folder, hidden_activation="gelu").activation() == "gelu"


def test_weights_without_the_module_that_they_lie_in(tmp_path: Path) -> None:
    """OpenAI's GPT-2 has "wte.weight"; a head keeps its name."""
    said = lm_models.references()["gpt2"]
    arrays = {n.removeprefix("transformer."): a
              for n, a in lm_models.weights(said["weights"]).items()}
    head = {"lm_head.weight": arrays["wte.weight"]}
    says_what_transformers_does(
        opened(lm_models.write(tmp_path, said["config"], {**arrays, **head})), "gpt2")
    with jitcl.lm.load(tmp_path, device="cpu") as model:
        assert model.logits([1, 2]).shape == (2, 97)


def test_angles_that_grow_with_a_text_hold_while_they_do_not(tmp_path: Path) -> None:
    """NTK's."""
    folder = lm_models.stored("llama-dynamic", tmp_path)
    assert opened(folder).context == 128
    with jitcl.lm.load(folder, device="cpu") as model, pytest.raises(
            InputError, match="the text has 129 tokens; the model takes 128"):
        model.embed([1] * 129)


def test_factors_of_short_texts_hold_for_short_texts(tmp_path: Path) -> None:
    """Longer ones than the model was first trained for would be another model's."""
    folder = lm_models.stored("phi3-long", tmp_path)
    assert opened(folder).context == 64
    alike = {**lm_models.LONG, "long_factor": lm_models.LONG["short_factor"]}
    assert opened(folder, rope_parameters=alike).context == 128
    assert opened(folder, rope_parameters={**lm_models.LONG, "rope_type": "su"}).context == 64
    with jitcl.lm.load(folder, device="cpu") as model, pytest.raises(
            InputError, match="the text has 65 tokens; the model takes 64"):
        model.embed([1] * 65)


@pytest.mark.parametrize(("changes", "message"), [
    (dict(rope_parameters={"rope_type": "longrope"}), "'short_factor' is missing"),
    (dict(rope_parameters={"rope_type": "longrope", "short_factor": [1.0]}),
     "'short_factor' is 1 of them: wanted a list of 4 numbers"),
    (dict(rope_parameters={"rope_type": "longrope", "short_factor": [1.0, 0, 1, 1]}),
     "'short_factor' is 0.0: wanted a number above 0"),
    (dict(rope_parameters={"rope_type": "yarn", "factor": 0}), "'factor' is 0.0: wanted a number"),
    (dict(rope_parameters=None, rope_theta=0), "'rope_theta' is 0.0: wanted a number above 0"),
    (dict(rope_parameters="yarn"), "'rope_scaling' is 'yarn': wanted an object"),
    (dict(sliding_window=4, layer_types=["sliding_attention"]),
     "'layer_types' has 1 entries for 3 layers"),
    (dict(num_hidden_layers=10 ** 11), "'num_hidden_layers' is 100000000000, but there are 29 "),
    (dict(num_key_value_heads=3), r"llama: weights do not fit the configuration \(4 heads of 8, 3 "
     r"for keys and values, width 32\): .*16 elements"),
])
def test_a_configuration_that_means_nothing(changes: dict[str, Any], message: str, tmp_path: Path
                                            ) -> None:
    (tmp_path / "llama").mkdir()
    with pytest.raises((ModelError, ShapeError), match=message):
        opened(lm_models.stored("llama", tmp_path / "llama"), **changes)


@pytest.mark.parametrize(("file", "holds", "message"), [
    ("generation_config.json", '{"eos_token_id": ["~"]}', r"'eos_token_id' is \['~'\]"),
    ("model.safetensors.index.json", "[]", "is no index of safetensors files"),
    ("model.safetensors.index.json", '{"weight_map": {"a": 5}}', "is no index of safetensors"),
    ("tokenizer_config.json", '{"chat_template": 5}', "'chat_template' is of int: wanted a str"),
])
def test_files_of_nonsense(file: str, holds: str, message: str, tmp_path: Path) -> None:
    lm_models.lettered("llama", tmp_path)
    (tmp_path / file).write_text(holds)
    with pytest.raises(ModelError, match=message):
        jitcl.lm.load(tmp_path, device="cpu")


def test_minus_one_is_no_token_that_ends_texts(tmp_path: Path) -> None:
    lm_models.lettered("llama", tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [-1, 94]}')
    with jitcl.lm.load(tmp_path, device="cpu") as model:
        assert model.ends == {94}
    for path in (None, 5):
        with pytest.raises(ModelError, match="pass the path of a folder"):
            jitcl.lm.load(path)     # type: ignore[arg-type]


# ---- chat templates


@pytest.mark.parametrize(("template", "text"), [
    ("{% generation %}{% set a = 1 %}{{ messages[0].role }}{% endgeneration %}{{ a is defined }}",
     "userFalse"),
    ("{{ tools is none and documents is none }}", "True"),
    ("{{ messages[0] | tojson(separators=(',', ':'), sort_keys=True) }}",
     '{"content":"h\u00e9 <b>","role":"user"}'),
    ("{{ messages[0].content | tojson(ensure_ascii=True) }}", '"h\\u00e9 <b>"'),
])
def test_templates_have_what_transformers_gives_them(template: str, text: str, tmp_path: Path
                                                     ) -> None:
    words = of_folder(lm_models.lettered("llama", tmp_path))
    assert words is not None
    found = Tokenizer(_Text(words.tokenizer), template, {}, "here")
    assert "".join(map(chr, found.conversation(MESSAGES))) == text


def test_special_tokens_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    """As older folders have them; what tokenizer_config.json says counts."""
    lm_models.lettered("llama", tmp_path)               # its eos_token is "~"
    (tmp_path / "special_tokens_map.json").write_text(
        '{"bos_token": {"content": "#"}, "eos_token": "x"}')
    words = of_folder(tmp_path)
    assert words is not None and words.specials == {"bos_token": "#", "eos_token": "~"}


class _Text:
    """A tokenizer whose tokens are letters."""

    def __init__(self, tokenizer: Any) -> None:
        self.ids: list[int] = []

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        self.ids = [*map(ord, text)]
        return self


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{% for i in range(10 ** 9) %}{% endfor %}",
                                      "{% bad %}", "{{ messages[0].x.y }}", "{{ messages + 1 }}"])
def test_templates_that_fail_say_so(template: str) -> None:
    with pytest.raises(InputError, match="here: the chat template refuses these messages"):
        Tokenizer(None, template, {}, "here").conversation(MESSAGES)


# ---- GGUF


def test_a_gguf_file_may_turn_a_part_of_heads_whose_size_it_leaves_out(tmp_path: Path) -> None:
    """As Phi-4-mini's does, and no window is a window of 0 there."""
    pytest.importorskip("gguf")
    folder = lm_models.stored("phi3-long", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    said = {"phi3__rope__dimension_count": 4, "phi3__rope__scaling__original_context_length": 64,
            "phi3__rope__scaling__attn_factor": float(opened(folder).rotaries[""].scale)}
    factors = {f"rope_factors_{n}.weight": np.array(lm_models.LONG[f"{n}_factor"], np.float32)
               for n in ("short", "long")}
    (folder / "config.json").write_text(json.dumps({**config, "sliding_window": 0}))
    file = Gguf(gguf_models.write(folder, tmp_path / "a.gguf", tensors=factors, **said))
    model = decoder(file.config(), file)
    assert model.context == 64
    says_what_transformers_does(model, "phi3-long")


BYTES = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b"],
         "tokenizer.ggml.tokens": ["a", "b", "ab", "c", "abc", "<s>"],
         "tokenizer.ggml.token_type": [1] * 5 + [3], "tokenizer.ggml.bos_token_id": 5}


def test_llama_3_takes_whole_words_and_begins_texts() -> None:
    """Which its files leave out: "abc" is a token that no merge gives."""
    for pre, ids in (("gpt-2", [2, 3]), ("llama-bpe", [5, 4])):
        found = of_metadata({**BYTES, "tokenizer.ggml.pre": pre}, "here")
        assert found is not None and found.encode("abc") == ids
    found = of_metadata({**BYTES, "tokenizer.ggml.pre": "llama-bpe",
                         "tokenizer.ggml.add_bos_token": False}, "here")
    assert found is not None and found.encode("abc") == [4]


@pytest.mark.parametrize(("change", "message"), [
    ({"merges": None}, "without 'tokenizer.ggml.merges'"),
    ({"merges": ["a z"]}, "tokens and merges do not fit"),
    ({"merges": ["a"]}, "tokens and merges do not fit"),
    ({"bos_token_id": 9}, "'tokenizer.ggml.bos_token_id' is 9: there are 6 tokens"),
    ({"model": "llama"}, "without 'tokenizer.ggml.scores'"),
    ({"model": "llama", "scores": [0.0]}, "'tokenizer.ggml.scores' has 1 entries"),
    ({"model": "llama", "scores": [0.0] * 6, "unknown_token_id": 6},
     "'tokenizer.ggml.unknown_token_id' is 6: there are 6 tokens"),
])
def test_tokenizers_that_are_none(change: dict[str, Any], message: str) -> None:
    said = {**BYTES, **{f"tokenizer.ggml.{k}": v for k, v in change.items()}}
    with pytest.raises(ModelError, match=f"here: .*{message}"):
        of_metadata(said, "here")


def test_a_part_of_a_gguf_model_is_not_one(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    file = gguf_models.write(lm_models.stored("qwen2", tmp_path), tmp_path / "a.gguf",
                             split__count=3)
    with pytest.raises(UnsupportedError, match="is one of 3 files of a model\n  Join them"):
        jitcl.lm.load(file, device="cpu")


def test_a_gguf_file_with_a_byte_changed_is_refused_or_read(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    said = {"tokenizer__ggml__model": "llama", "tokenizer__ggml__tokens":
            [chr(32 + k) for k in range(96)], "tokenizer__ggml__scores": [0.0] * 96}
    file = gguf_models.write(lm_models.stored("qwen2", tmp_path), tmp_path / "a.gguf", **said)
    whole, random = file.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        data = bytearray(whole)
        data[random.integers(0, 3000)] = random.integers(0, 256)
        file.write_bytes(data)
        try:
            found = Gguf(file)
            decoder(found.config(), found)
        except JitclError as error:
            assert str(file) in str(error)

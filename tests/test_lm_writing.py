"""How texts of language models are written: of a form, with guesses, with an adapter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import jitcl
from jitcl.cli.main import cli
from jitcl.errors import ModelError, OptionError, ShapeError, UnsupportedError
from jitcl.lm import drafts
from jitcl.lm.adapters import Adapted
from jitcl.lm.architectures import decoder
from jitcl.lm.sampling import Sampling
from jitcl.lm.weights import safetensors
from jitcl.lm.writing import rows_for, rows_on
from jitcl.target import Target
from tests import lm_models
from tests.devices import opened
from tests.lm_models import IDS
from tests.real_models import MODELS, needs_models

SHAKESPEARE = MODELS / "shakespeare-llama"
SCHEMA = {"type": "object", "required": ["name", "n"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 8},
                         "n": {"type": "integer", "minimum": 0, "maximum": 99}}}


@pytest.mark.parametrize("cores, count, rows", [
    (64, 300, [256, 64]), (64, 600, [1024]), (64, 2500, [1024, 1024, 256, 256]),
    (64, 17, [64]), (63, 600, [256, 256, 256]), (63, 17, [64])])
def test_a_prompt_is_computed_in_pieces_that_keep_a_device_busy(cores, count, rows):
    gpu = SimpleNamespace(target=Target("opencl", "gpu", device_type="gpu", compute_units=cores))
    sizes, found = rows_on(gpu), list[int]()
    while count > 0:
        found.append(rows_for(count, sizes))
        count -= found[-1]
    assert found == rows and rows_on(opened("cpu")) == (1, 16, 64, 256)


class Random:
    """A LanguageModel without kernels: what it says depends on the last three tokens alone."""

    def __init__(self, model: Any, flat: float = 1.0) -> None:
        self.model, self.flat, self.fed = model, flat, []       # type: ignore[var-annotated]
        model._run, model._together = self.run, self.together

    def together(self, slots: Sequence[Any], ids: Sequence[int]) -> np.ndarray:
        return np.concatenate([self.run([t], "next", s) for s, t in zip(slots, ids)])

    def run(self, ids: Sequence[int], give: str, past: Any, sizes: Any = (), then: Any = ()
            ) -> np.ndarray:
        self.fed.append(list(ids))
        found = []
        for token in ids:
            past.ids.append(token)
            random = np.random.default_rng([*past.ids[-3:]])
            found.append(random.standard_normal(97).astype(np.float32) / self.flat)
        return np.array(found[-1:] if give == "next" else found)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Any]:
    with jitcl.lm.load(lm_models.lettered("gpt2", tmp_path), device="cpu") as found:
        Random(found)
        yield found


# ---- forms


@pytest.mark.parametrize("seed", range(4))
def test_json_of_a_schema(model: Any, seed: int) -> None:
    text = model.generate("a", form=SCHEMA, temperature=1.0, seed=seed, max_new_tokens=100)
    said = json.loads(text)
    assert said.keys() == {"name", "n"} and 0 <= said["n"] <= 99 and len(said["name"]) <= 8
    assert model.last.finish == "stop"


def test_what_a_grammar_says(model: Any) -> None:
    grammar = 'start: "it is " KIND (", " KIND)*\nKIND: /[a-c]{2}/'
    found = {model.generate("a", form=grammar, temperature=2.0, seed=k, max_new_tokens=30)
             for k in range(3)}
    assert len(found) == 3
    for text in found:          # whole, or as much of it as the tokens sufficed for
        assert re.fullmatch(r"it is [a-c]{2}(, [a-c]{2})*(,|, |, [a-c])?", text)
    model.generate("a", form='start: "yes"')
    assert model.last.finish == "stop" and len(model.last.ids) == 3
    model.generate("a", form='start: "yes"', max_new_tokens=2)
    assert model.last.finish == "length"


@pytest.mark.parametrize(("form", "message"), [
    ({"type": "nothing"}, "form=.*: .*nothing"), ("begin: 1", "form='begin: 1': "),
    (["a"], "form=.*: is of list\n.*Pass a JSON schema as a dict"),
    ({"a": {1}}, "form=.*not JSON serializable")])
def test_forms_that_are_none(model: Any, form: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model.generate("a", form=form)


# ---- guesses


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_text_is_the_same_with_guesses(model: Any, temperature: float, tmp_path: Path) -> None:
    options = dict(temperature=temperature, seed=3, max_new_tokens=60)
    model.ends = frozenset()
    wanted = model.generate("abcabc", **options)
    assert model.generate("abcabc", draft="lookup", **options) == wanted
    folder = tmp_path / "draft"
    folder.mkdir()
    with jitcl.lm.load(lm_models.lettered("gpt2", folder), device="cpu") as draft:
        run = Random(draft)
        draft.ends = frozenset()
        fed = Random(model).fed
        assert model.generate("xyz", **options) == model.generate("xyz", draft=draft, **options)
        last = model.last
        assert run.fed and 0 < last.right_guesses < last.guessed_tokens or temperature == 0
        if temperature == 0:                    # the draft is the model: all guesses are right
            assert last.right_guesses == last.guessed_tokens
            assert [len(f) for f in fed[-3:-1]] == [1 + drafts.GUESSES] * 2
            assert f"{last.right_guesses} of {last.guessed_tokens} guesses right" in str(last)


def test_guesses_end_where_the_text_does(model: Any) -> None:
    model.ends = frozenset()
    for count in (1, 2, 3, 7):
        wanted = model.generate("ababab", max_new_tokens=count)
        assert model.generate("ababab", max_new_tokens=count, draft="lookup") == wanted
    long = "ab" * 62                            # the context has 128 tokens
    wanted = model.generate(long)
    assert model.generate(long, draft="lookup") == wanted and len(wanted) == 4
    text = model.generate("ab", form=SCHEMA, draft="lookup", max_new_tokens=100)
    assert text == model.generate("ab", form=SCHEMA, max_new_tokens=100)


def test_a_model_whose_draft_guesses_holds_nobody_up(model: Any, tmp_path: Path) -> None:
    """Two models that are each other's drafts, in two threads, would wait for each other."""
    def free() -> bool:
        with model._lock:
            return True

    def tokens(ids: Sequence[int], count: int, sampling: Sampling) -> Iterator[int]:
        asked.append(pool.submit(free).result(timeout=60))
        return iter([*ids][:count])

    asked: list[bool] = []
    wanted = model.generate("ababab", max_new_tokens=6)
    (tmp_path / "draft").mkdir()
    with ThreadPoolExecutor(1) as pool, jitcl.lm.load(
            lm_models.lettered("gpt2", tmp_path / "draft"), device="cpu") as draft:
        draft.tokens = tokens       # type: ignore[method-assign,assignment]
        assert model.generate("ababab", max_new_tokens=6, draft=draft) == wanted
    assert asked and all(asked)


def test_what_followed_the_last_time() -> None:
    ids = [1, 2, 3, 4, 5, 1, 2, 3]
    assert drafts.guesses("lookup", ids, 9) == [4, 5, 1]
    assert drafts.guesses("lookup", ids, 2) == [4, 5] and drafts.guesses("lookup", ids, 0) == []
    assert drafts.guesses("lookup", [9, 2, 3, 7, 8, 2, 3], 9) == [7, 8, 2]     # of two tokens
    assert drafts.guesses("lookup", [1, 2, 3], 9) == [] == drafts.guesses(None, ids, 9)


def test_drafts_that_are_none(model: Any, tmp_path: Path) -> None:
    for draft in ("look", model, 3):
        with pytest.raises(OptionError, match='wanted "lookup", or another LanguageModel'):
            model.generate("a", draft=draft)
    other = Random.__new__(Random)
    other.decoder = type("Decoder", (), {"vocabulary": 96})     # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="has 96 tokens, this model has 97"):
        model.generate("a", draft=other)


@pytest.mark.slow
@needs_models
def test_shakespeare_says_the_same_with_guesses(tmp_path: Path) -> None:
    with jitcl.lm.load(SHAKESPEARE, device="cpu", cache_dir=tmp_path) as model:
        wanted = model.generate("ROMEO:\n", max_new_tokens=200)
        assert model.generate("ROMEO:\n", max_new_tokens=200, draft="lookup") == wanted
        assert model.last.right_guesses > 0


# ---- adapters


def adapter(folder: Path, changed: dict[str, tuple[int, int]], config: dict[str, Any], seed: int = 0
            ) -> dict[str, np.ndarray]:
    """A folder as peft writes it; changed: weights and their (out, in)."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    arrays = {}
    for name, (outer, inner) in changed.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        arrays |= lm_models.weights({f"{stem}.lora_A.weight": (config["r"], inner),
                                     f"{stem}.lora_B.weight": (outer, config["r"])}, seed)
    folder.mkdir()
    save_file(arrays, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    return arrays


@pytest.mark.parametrize(("name", "weight", "config", "factor"), [
    ("llama", "model.layers.1.self_attn.q_proj.weight", dict(r=4, lora_alpha=8), 2.0),
    ("llama", "model.layers.0.mlp.down_proj.weight", dict(r=4, lora_alpha=8, use_rslora=True), 4.0),
    ("gpt2", "transformer.h.0.attn.c_attn.weight",
     dict(r=2, lora_alpha=2, fan_in_fan_out=True), 1.0)])
def test_an_adapter_is_added(name: str, weight: str, config: dict[str, Any], factor: float,
                             tmp_path: Path) -> None:
    folder = lm_models.stored(name, tmp_path)
    plain, said = safetensors(folder), json.loads((folder / "config.json").read_text())
    shape = plain.shape(weight)
    turned = config.get("fan_in_fan_out", False)
    arrays = adapter(tmp_path / "lora", {weight: shape[::-1] if turned else shape}, config)
    a, b = arrays.values()
    delta = factor * (b @ a).astype(np.float64)
    wanted = plain.array(weight) + (delta.T if turned else delta)
    adapted = Adapted(plain, tmp_path / "lora")
    np.testing.assert_allclose(adapted.rows(weight, np.arange(shape[0])), wanted, rtol=1e-5,
                               atol=1e-6)
    assert adapted.digest(tmp_path) != plain.digest(tmp_path)

    lm_models.write(tmp_path, said, {**{n: plain.array(n) for n in plain.names()},
                                     weight: wanted.astype(np.float32)})
    merged = lm_models.by_references(decoder(said, safetensors(tmp_path)), IDS)
    lm_models.stored(name, tmp_path)
    found = lm_models.by_references(decoder(said, adapted), IDS)
    np.testing.assert_allclose(found, merged, rtol=1e-4, atol=1e-4)
    assert np.abs(found - lm_models.by_references(decoder(said, plain), IDS)).max() > 1e-2


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(("changed", "config", "kind", "message"), [
    ({Q: (32, 32)}, dict(r=4, use_dora=True), UnsupportedError, "use_dora is True: jitcl merges"),
    ({Q: (32, 32)}, dict(r=4, peft_type="IA3"), UnsupportedError, "'peft_type' is 'IA3'"),
    ({Q: (32, 30)}, dict(r=4), ShapeError, r"are for a weight \[32, 30\], but .* is \[32, 32\]"),
    ({Q: (32, 32)}, dict(r=4, alora_invocation_tokens=[1]), UnsupportedError,
     r"alora_invocation_tokens is \[1\]: jitcl merges"),
    ({"model.nothing.weight": (2, 2)}, dict(r=1), ModelError, "it was made for another model"),
    ({}, dict(r=1), UnsupportedError, "has nothing: jitcl merges"),
    ({Q: (32, 32)}, dict(r=0), ModelError, "'r' is 0: wanted a whole number above 0")])
def test_adapters_that_do_not_fit(changed: Any, config: dict[str, Any], kind: type[Exception],
                                  message: str, tmp_path: Path) -> None:
    folder = lm_models.stored("llama", tmp_path)
    adapter(tmp_path / "lora", changed, {**config, "r": 4} if config["r"] == 0 else config)
    (tmp_path / "lora" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", **config}))
    with pytest.raises(kind, match=message):
        jitcl.lm.load(folder, device="cpu", adapter=tmp_path / "lora")


@pytest.mark.parametrize(("shapes", "message"), [
    (((4, 32), (32, 4)), r"A \[4, 32\] and B \[32, 4\], of rank 3, are for a weight \[32, 32\]"),
    (((3, 32, 1), (32, 3)), r"are for a weight \[32, 32, 1\], but .* is \[32, 32\]"),
    (((), (32, 3)), r"A \[\] and B \[32, 3\]")])
def test_a_rank_is_that_of_the_configuration(shapes: Any, message: str, tmp_path: Path) -> None:
    """The factor is by rank."""
    adapter(tmp_path / "lora", {Q: (32, 32)}, dict(r=3))
    stem = f"base_model.model.{Q.removesuffix('.weight')}"
    pytest.importorskip("safetensors.numpy").save_file(
        {f"{stem}.lora_{n}.weight": np.ones(s, np.float32) for n, s in zip("AB", shapes)},
        tmp_path / "lora" / "adapter_model.safetensors")
    with pytest.raises(ShapeError, match=message):
        jitcl.lm.load(lm_models.stored("llama", tmp_path), device="cpu", adapter=tmp_path / "lora")


def test_a_gguf_file_takes_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="Pass the folder that the file was made from"):
        jitcl.lm.load(tmp_path / "a.gguf", adapter=tmp_path)


@pytest.mark.slow
def test_peft_says_the_same(tmp_path: Path) -> None:
    """Where the library is: in CI with PyTorch."""
    peft = pytest.importorskip("peft", reason="peft writes adapters")
    torch = pytest.importorskip("torch", reason="peft computes with torch")
    folder, _ = lm_models.told("llama", 0, tmp_path)
    base = lm_models.transformers_model("llama").from_pretrained(folder)
    made = peft.get_peft_model(base, peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False))
    made.save_pretrained(tmp_path / "lora")
    with torch.no_grad():
        wanted = made(torch.tensor([IDS])).logits[0].numpy()
    said = json.loads((folder / "config.json").read_text())
    found = lm_models.by_references(
        decoder(said, Adapted(safetensors(folder), tmp_path / "lora")), IDS)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


# ---- commands


@pytest.mark.slow
def test_commands(tmp_path: Path) -> None:
    folder = lm_models.lettered("gpt2", tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps({"enum": ["yes", "no"]}))
    (tmp_path / "grammar").write_text("start: /[ab]{3}/")

    def run(*options: str) -> Any:
        return CliRunner().invoke(cli, ["generate", str(folder), "a", "-d", "cpu", "-n", "6",
                                        "--cache-dir", str(tmp_path / "cache"), *options])

    assert run("--schema", str(tmp_path / "schema.json")).stdout in ('"yes"\n', '"no"\n')
    found = run("--grammar", str(tmp_path / "grammar"), "--draft", "lookup")
    assert re.fullmatch("[ab]{3}\n", found.stdout), found.stderr
    both = run("--grammar", str(tmp_path / "grammar"), "--schema", str(tmp_path / "schema.json"))
    assert both.exit_code == 1 and "a text has one of them" in both.stderr
    wrong = run("--schema", str(tmp_path / "grammar"))
    assert wrong.exit_code == 1 and "grammar: cannot be read: Expecting value" in wrong.stderr
    assert "--adapter FOLDER" in CliRunner().invoke(cli, ["chat", "--help"]).stdout


def test_greedy_drafts_are_the_models_tokens(model: Any) -> None:
    assert drafts.guesses(model, [1, 2, 3], 2) == list(model.tokens([1, 2, 3], 2, Sampling()))
    assert drafts.guesses(model, [1] * 126, 2) == []        # the draft's context is full

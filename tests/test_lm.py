"""Language models: families, generation, sampling, errors."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

import jitcl
from jitcl import config
from jitcl.cli.main import cli
from jitcl.errors import (
    ClosedError,
    InputError,
    JitclError,
    ModelError,
    OptionError,
    ShapeError,
    UnsupportedError,
)
from jitcl.ir.files import MOST_BYTES
from jitcl.lm import feeds
from jitcl.lm.architectures import ARCHITECTURES, decoder
from jitcl.lm.decoder import Decoder, Tokens
from jitcl.lm.gguf import Gguf
from jitcl.lm.sampling import Sampling
from jitcl.lm.tokens import Tokenizer
from jitcl.lm.weights import Stored, safetensors
from jitcl.lm.writing import Letters
from jitcl.ops.builder import GraphBuilder
from tests import lm_models
from tests.devices import needs, present
from tests.lm_models import FAMILIES, IDS
from tests.real_models import MODELS, needs_models
from tests.test_families_memory import resident

SHAKESPEARE = MODELS / "shakespeare-llama"


def opened(folder: Path) -> Decoder:
    return decoder(json.loads((folder / "config.json").read_text()), safetensors(folder))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_logits_are_transformers(name: str, tmp_path: Path) -> None:
    """Of a prompt at once, and with parts of it as keys and values of the past."""
    model = opened(lm_models.stored(name, tmp_path))
    whole = lm_models.by_references(model, IDS)
    for row, wanted in lm_models.references()[name]["logits"].items():
        np.testing.assert_allclose(whole[int(row)], wanted, rtol=0, atol=1e-4)
    parts = lm_models.by_references(model, IDS, (9, 10, 11))
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_other_random_models_are_transformers_too(name: str, tmp_path: Path) -> None:
    lm_models.transformers_model(name)                      # skips where there is none
    folder, wanted = lm_models.told(name, 7, tmp_path, own=2e-5)
    found = lm_models.by_references(opened(folder), IDS)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_every_architecture_has_a_reference() -> None:
    named = {lm_models.references()[n]["config"]["architectures"][0] for n in FAMILIES}
    assert set(ARCHITECTURES) == named


@pytest.mark.long
def test_kernels_write_what_the_references_say(tmp_path: Path) -> None:
    folder = lm_models.stored("gpt2", tmp_path)
    ids = list(IDS)
    wanted = []
    for _ in range(6):
        wanted.append(int(lm_models.by_references(opened(folder), ids)[-1].argmax()))
        ids.append(wanted[-1])
    with jitcl.lm.load(folder, device="cpu", cache_dir=tmp_path / "cache") as model:
        model.ends = frozenset()
        assert list(model.tokens(IDS, 6, Sampling())) == wanted
        assert model.last.finish == "length" and model.last.reused_tokens == 0
        built = [m.cache.stats.writes for m in model._models.values()]
        assert list(model.tokens([*IDS, *wanted[:3]], 3, Sampling())) == wanted[3:]
        assert model.last.reused_tokens == len(IDS) + 2
        assert [m.cache.stats.writes for m in model._models.values()] == built
    with pytest.raises(ClosedError):
        model.logits(IDS)


@pytest.mark.parametrize("name", ["gpt2", "gemma"])         # positions are added, rows are scaled
@pytest.mark.parametrize("device", [d for d in present() if d.startswith("opencl")][:1])
def test_a_prompts_next_piece_is_embedded_while_a_device_computes(
        name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that is another than was embedded for is embedded anew."""
    monkeypatch.setattr(feeds, "ROWS_AT_ONCE", 5)       # several threads, and a rest
    prompt = [3 + 7 * k % 90 for k in range(60)]
    with jitcl.lm.load(lm_models.stored(name, tmp_path), device=device,
                       cache_dir=tmp_path / "cache") as model:
        model.ends, model._rows = frozenset(), (1, 16)
        wanted = list(model.tokens(prompt, 4, Sampling()))
        pairs = model._alone(prompt[:20], "hidden"), model._alone(prompt[20:40], "hidden")
        filled, inside = list[str](), list[bool]()
        fill, ahead = model._feeds._fill, model._feeds.ahead

        def told(*args: Any) -> None:
            filled.append("ahead" if inside else "at once")
            fill(*args)

        def meanwhile() -> None:
            inside.append(True)
            ahead()
            inside.clear()

        monkeypatch.setattr(model._feeds, "_fill", told)
        monkeypatch.setattr(model._feeds, "ahead", meanwhile)
        model._cache.slots[0].shorten(0)
        assert list(model.tokens(prompt, 4, Sampling())) == wanted
        assert filled == ["at once"] + ["ahead"] * 3 + ["at once"] * 3
        model._run(prompt[:16], "hidden", model._other.slots[0], then=prompt[16:20])
        assert (model._alone(prompt[:20], "hidden") == pairs[0]).all()
        assert (model._alone(prompt[20:40], "hidden") == pairs[1]).all()
        with pytest.raises(IndexError):                 # a thread's error is the caller's
            fill(np.empty((20, model.decoder.width), np.float32),
                 Tokens(np.full(20, 10 ** 6), np.arange(20)))


@needs_models
@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.long if d == "opencl:intel" else pytest.mark.slow)
    for d in present() if d != "reference"])
def test_shakespeare(device: str, tmp_path: Path) -> None:
    """The greedy text of transformers for 200 tokens, its loss on held text; nothing is compiled
    after the first ten tokens."""
    said = lm_models.references()["shakespeare-llama"]
    expected = json.loads((SHAKESPEARE / "expected.json").read_text())
    with jitcl.lm.load(SHAKESPEARE, device=device, cache_dir=tmp_path) as model:
        ids = model.tokenize(expected["prompt"])
        pieces, writes = [], []
        for piece in model.generate(expected["prompt"], max_new_tokens=200, stream=True):
            pieces.append(piece)
            writes.append(sum(m.cache.stats.writes for m in model._models.values()))
        assert ids + model.last.ids == said["ids"]
        assert (ids + model.last.ids)[:len(expected["greedy_ids"])] == expected["greedy_ids"]
        assert "".join(pieces) == model.detokenize(model.last.ids)
        assert set(writes[10:]) == {writes[10]}
        loss = model.score(expected["val_tokens_first_256"], window=256).loss
        assert loss == pytest.approx(said["loss"], abs=1e-5)


@pytest.mark.slow
@needs_models
@needs("opencl:pocl")
def test_shakespeare_without_local_memory(tmp_path: Path) -> None:
    """PoCL poses as a Mali, where attention of one token reads keys and values where they lie."""
    said = lm_models.references()["shakespeare-llama"]
    with config.override(target="device_type=gpu,local_is_real=0,vector_width=4,registers=5,"
                                "max_vector_width=4,max_work_group=64"), jitcl.lm.load(
            SHAKESPEARE, device="opencl:pocl", cache_dir=tmp_path) as model:
        model.generate(said["ids"][:3], max_new_tokens=200)
        assert model.last.ids == said["ids"][3:]


@pytest.mark.long
@needs_models
@pytest.mark.parametrize("device", [d for d in present() if d != "reference"])
@pytest.mark.parametrize("precision", ["normal", "low"])
def test_shakespeare_in_halves(device: str, precision: str, tmp_path: Path) -> None:
    """The same text; keys and values take half the memory."""
    said = lm_models.references()["shakespeare-llama"]
    expected = json.loads((SHAKESPEARE / "expected.json").read_text())
    with jitcl.lm.load(SHAKESPEARE, device=device, precision=precision, cache_dir=tmp_path
                       ) as model:
        model.generate(expected["prompt"], max_new_tokens=60)
        assert model.last.ids == said["ids"][3:63]
        assert model.last.cache_bytes == 256 * 6 * 2 * 2 * 32 * 2
        loss = model.score(expected["val_tokens_first_256"]).loss
        assert loss == pytest.approx(said["loss"], abs=1e-3)


@pytest.mark.sampled(quick=2, slow=2)
@pytest.mark.parametrize(("more", "precision"), [
    pytest.param({"tolerance": 0.05}, "low", marks=pytest.mark.slow),
    ({"calibrate": IDS}, "low"),
    pytest.param({"tolerance": 0}, "high", marks=pytest.mark.slow),
    ({"tolerance": lambda got, want: bool((got.argmax(-1) == want.argmax(-1)).all())}, "low"),
    pytest.param({"calibrate": IDS, "memory": {"bits": 8}}, "low", marks=pytest.mark.slow)])
def test_the_lowest_precision_that_says_the_same(
        more: dict[str, Any], precision: str, tmp_path: Path) -> None:
    """The models that were tried beside it hold nothing any more."""
    folder = lm_models.stored("llama", tmp_path)
    exact = jitcl.lm.load(folder, device="cpu", memory=more.get("memory", "normal"),
                          calibrate=IDS if "memory" in more else None)
    tried: list[jitcl.lm.LanguageModel] = []
    with pytest.MonkeyPatch.context() as patch:
        begin = jitcl.lm.LanguageModel.__init__
        patch.setattr(jitcl.lm.LanguageModel, "__init__",
                      lambda self, *args: tried.append(self) or begin(self, *args))
        found = jitcl.lm.load(folder, device="cpu", precision="auto", **more)
    assert found.options.precision == precision and found.options.reduced == (precision != "high")
    assert [m for m in tried if not m.closed] == [found] and len(tried) > 1
    got, want = found.logits(IDS), exact.logits(IDS)
    assert np.abs(got - want).max() <= (precision != "high") * 1e-2 * np.abs(want).max()


@pytest.mark.parametrize(("options", "message"), [
    ({"tolerance": 1e-3}, "tolerance is of precision='auto'"),
    ({"tolerance": True, "precision": "auto"}, "tolerance: got True, wanted a number from 0 up"),
    ({"precision": "least"}, "precision='least' is not known")])
def test_tolerances_that_are_none(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        jitcl.lm.load(lm_models.stored("llama", tmp_path), device="reference", **options)


# ---- a model whose next token is written down


class Script:
    """A LanguageModel over an alphabet that says a text, whatever it is fed."""

    def __init__(self, model: Any, text: str) -> None:
        self.model, self.text, self.fed = model, text, []       # type: ignore[var-annotated]
        model._run = self.run

    def run(self, ids: Sequence[int], give: str, past: Any, then: Any = ()) -> np.ndarray:
        self.fed.append(list(ids))
        past.ids += ids
        done = len(past.ids) - self.first
        logits = np.zeros((1, 97), np.float32)
        logits[0, ord(self.text[done]) - 32 if done < len(self.text) else 94] = 9
        return logits

    first = 0


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    folder = lm_models.lettered("gpt2", tmp_path)
    with jitcl.lm.load(folder, device="cpu") as model:
        yield Script(model, "one STOP two")


def test_stop_strings_end_a_text_and_are_no_part_of_it(script: Script) -> None:
    script.first = 2
    pieces = list(script.model.generate("ab", stop=["STOP", "xyz"], stream=True))
    assert "".join(pieces) == "one " and script.model.last.finish == "stop"
    assert pieces == ["o", "n", "e", " "]
    script.model._cache.slots[0].ids.clear()
    assert script.model.generate("ab", stop="STOPS") == "one STOP two"
    assert script.model.last.finish == "stop"               # by the token that ends texts
    script.model._cache.slots[0].ids.clear()
    assert script.model.generate("ab", max_new_tokens=6, stop="STOP") == "one ST"
    assert script.model.last.finish == "length"


def test_what_the_cache_holds_is_not_computed_again(script: Script) -> None:
    script.first = 2
    script.model.generate("ab", max_new_tokens=3)
    assert script.fed == [[65, 66], [79], [78]]
    del script.fed[:]
    script.model.generate("abon", max_new_tokens=1)
    assert script.fed == [[78]] and script.model.last.reused_tokens == 3
    del script.fed[:]
    script.model.generate("axon", max_new_tokens=1)
    assert script.fed == [[88, 79, 78]]


def test_the_context_is_an_end(script: Script) -> None:
    script.first, script.text = 126, "yes"
    assert script.model.generate("a" * 126) == "ye"
    assert script.model.last.finish == "length"
    with pytest.raises(InputError, match="the prompt has 128 tokens; the model takes 128"):
        script.model.generate("a" * 128)


def test_conversations(script: Script) -> None:
    messages = [{"role": "user", "content": "hi"}]
    words = script.model.tokenizer
    assert words.decode(words.conversation(messages)) == "u:hi~?a:"     # ?: a new line
    with pytest.raises(InputError, match="refuses these messages: no system"):
        script.model.generate([{"role": "system", "content": "x"}])
    with pytest.raises(InputError, match="wanted a dict with 'role' and 'content'"):
        script.model.generate([{"role": "user"}])
    words.template = None
    with pytest.raises(InputError, match="has no chat template"):
        script.model.generate(messages)


@pytest.mark.parametrize(("options", "message"), [
    (dict(temperature=-1), "temperature=-1: wanted 0 or more"),
    (dict(temperature=True), "temperature=True: wanted a number"),
    (dict(top_p=0), "top_p=0: wanted more than 0, up to 1"),
    (dict(top_k=1.5), "top_k=1.5: wanted a whole number"),
    (dict(min_p=2), "min_p=2: wanted 0 to 1"),
    (dict(repetition_penalty=0), "repetition_penalty=0: wanted more than 0"),
    (dict(temperature=math.nan), "temperature=nan: wanted 0 or more"),
    (dict(temperature=math.inf), "temperature=inf: wanted 0 or more"),
    (dict(top_k=math.inf), "top_k=inf: wanted a whole number"),
    (dict(repetition_penalty=math.inf), "repetition_penalty=inf: wanted more than 0"),
    (dict(seed=-1), "seed=-1: wanted a whole number from 0, or None"),
    (dict(seed=0.5), "seed=0.5: wanted a whole number from 0, or None"),
    (dict(stop=["a", ""]), "wanted strings that are not empty"),
    (dict(stop=None), "stop=None: wanted strings"), (dict(stop=5), "stop=5: wanted strings"),
    (dict(max_new_tokens=0), "max_new_tokens=0: wanted a whole number above 0"),
])
def test_wrong_options(script: Script, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        script.model.generate("a", **options)


@pytest.mark.parametrize(("prompt", "message"), [
    ("", "the prompt has no tokens"), ([], "the prompt has no tokens"),
    ([97], "token 0 of the prompt is 97: wanted whole numbers from 0 to 96"),
    ([1, "a"], "token 1 of the prompt is 'a'"), ([1.0], "token 0 of the prompt is 1.0"),
    (None, "the prompt is of NoneType: wanted a str, a list of messages, or token ids"),
    (5, "the prompt is of int"), (b"ab", "the prompt is of bytes"), (["a", 5], "is of int"),
    ({"role": "user", "content": "a"}, "the prompt is of dict"),
    (np.array([[1, 2]]), r"token 0 of the prompt is array\(\[1, 2\]\)")])
def test_wrong_prompts(script: Script, prompt: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        script.model.generate(prompt)


def test_prompts_may_be_arrays(script: Script) -> None:
    script.first, script.text = 3, "yes~"
    assert script.model.generate(np.array([33, 34, 35])) == "yes"
    assert script.model.generate([np.array([33, 34, 35])]) == ["yes"]


def test_what_is_no_text_and_no_tokens(script: Script) -> None:
    with pytest.raises(InputError, match="the text is of bytes: wanted a str"):
        script.model.tokenize(b"a")
    for ids in ([-1], ["a"], [1.5], 5):
        with pytest.raises(InputError, match="Pass token ids"):
            script.model.detokenize(ids)
    for window in (2.5, "2", 129):
        with pytest.raises(OptionError, match="wanted 2 to 128 tokens"):
            script.model.score("abc", window=window)


# ---- folders that are not what they should be


def changed(folder: Path, config: dict[str, Any], drop: str = "", add: str = "",
            reshape: str = "") -> Path:
    said = lm_models.references()["llama"]
    arrays = lm_models.weights(said["weights"])
    if drop:
        del arrays[drop]
    if add:
        arrays[add] = np.zeros(3, np.float32)
    if reshape:
        arrays[reshape] = np.ascontiguousarray(arrays[reshape][:-1])
    settings = {k: v for k, v in {**said["config"], **config}.items() if v != "gone"}
    return lm_models.write(folder, settings, arrays)


LAYER = "model.layers.1."


@pytest.mark.parametrize(("change", "kind", "message"), [
    (dict(config={"architectures": ["Mamba2"]}), UnsupportedError,
     "architecture 'Mamba2' is not supported: jitcl has GPT2LMHeadModel, Gemma"),
    (dict(config={"architectures": None}), ModelError, "names no 'architectures'"),
    (dict(config={"hidden_size": "gone"}), ModelError, "'hidden_size' is missing"),
    (dict(config={"num_hidden_layers": -3}), ModelError,
     "'num_hidden_layers' is -3: wanted a whole number above 0"),
    (dict(config={"hidden_act": "relu"}), UnsupportedError, "'hidden_act' is 'relu': jitcl has"),
    (dict(config={"rope_parameters": {"rope_type": "odd"}}), UnsupportedError,
     "rotary positions of type 'odd' are not supported"),
    (dict(config={}, drop=LAYER + "mlp.up_proj.weight"), ModelError,
     "weight 'model.layers.1.mlp.up_proj.weight' is missing"),
    (dict(config={}, add=LAYER + "self_attn.sinks"), UnsupportedError,
     "Llama has no use for weight 'model.layers.1.self_attn.sinks'"),
    (dict(config={"num_hidden_layers": 2}), UnsupportedError, "has no use for weight"),
    (dict(config={"vocab_size": 96}), ShapeError,
     r"'model.embed_tokens.weight' is \[97, 32\], but the configuration says \[96, 32\]"),
    (dict(config={}, reshape=LAYER + "mlp.up_proj.weight"), ShapeError, "47"),
    (dict(config={"num_attention_heads": 8}), ShapeError, "reshape"),
])
def test_files_that_do_not_fit(tmp_path: Path, change: dict[str, Any], kind: type[Exception],
                               message: str) -> None:
    with pytest.raises(kind, match=message):
        jitcl.lm.load(changed(tmp_path, **change), device="cpu")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    with pytest.raises(ModelError, match="has no config.json\n  Pass a folder"):
        jitcl.lm.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds a list, wanted an object"):
        jitcl.lm.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no model.safetensors"):
        jitcl.lm.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10" + bytes(30))
    with pytest.raises(ModelError, match="is no safetensors file"):
        jitcl.lm.load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../model.safetensors"}}')
    with pytest.raises(ModelError, match="outside of the folder"):
        jitcl.lm.load(tmp_path)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with jitcl.lm.load(lm_models.stored("gpt2", tmp_path), device="cpu") as model:
        with pytest.raises(OptionError, match="language models have one for all layers"):
            jitcl.lm.load(tmp_path, precision="low;a=high")
        with pytest.raises(InputError, match="has no tokenizer.json"):
            model.tokenize("a")
        with pytest.raises(OptionError, match="window=1: wanted 2 to 128 tokens"):
            model.score(IDS, window=1)
        with pytest.raises(InputError, match="score\\(\\) takes two tokens or more"):
            model.score([1])


def test_half_and_brain_floats_are_read_as_they_are(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    values = np.array([[1.0, -2.5, 65504.0, 6e-8]], np.float32)
    for kind in (np.float16, ml_dtypes.bfloat16, np.float64):
        save_file({"w": values.astype(kind)}, tmp_path / "model.safetensors")
        found = safetensors(tmp_path)
        wanted = values.astype(kind).astype(np.float32)
        assert (found.rows("w", np.array([0])) == wanted).all()
        assert (found.rows("w", np.zeros(300, np.int64)) == wanted).all()
    save_file({"w": np.array([[1]], np.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match="weight 'w' is I8"):
        safetensors(tmp_path)


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lm_models.stored("gpt2", tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(JitclError, match=r"pip install 'jitcl\[lm\]'"):
        jitcl.lm.load(folder, device="cpu")


def test_tokens_of_a_letter_come_when_it_is_whole(script: Script) -> None:
    """The euro sign of three bytes, and one that is cut off."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = tokenizers.Tokenizer(tokenizers.models.BPE({c: k for k, c in enumerate(alphabet)}, []))
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    script.model.tokenizer = Tokenizer(words, None, {}, "here")
    ids = words.encode("a\u20acb\u20ac").ids
    letters = Letters(script.model.tokenizer, ())
    assert [*filter(None, map(letters.take, ids))] == ["a", "\u20ac", "b", "\u20ac"]
    letters = Letters(script.model.tokenizer, ())
    assert "".join(map(letters.take, ids[:-1])) + letters.rest() == "a\u20acb\ufffd"


# ---- on the command line, and as the documents have it


@pytest.mark.slow
@needs_models
def test_the_page_and_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path / "cache"))
    page = (Path(__file__).resolve().parent.parent / "docs" / "language-models.md").read_text()
    scope: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for block in blocks:
        exec(compile(block.replace('"folder"', repr(str(SHAKESPEARE))), "page", "exec"), scope)
    assert len(blocks) == 6 and scope["text"].startswith("I'll be a bawd")
    folder = ["-d", "cpu", str(SHAKESPEARE)]
    found = CliRunner().invoke(cli, ["generate", *folder, "ROMEO:\n", "-n", "24"])
    assert found.stdout == scope["text"] + "\n"
    assert re.search(r"first token after [\d.]+ s; 24 new tokens, [\d.]+ tokens/s; cache 0.8 MiB; "
                     r"model [\d.]+ MiB", found.stderr)
    found = CliRunner().invoke(cli, ["generate", *folder, "-", "-n", "24", "--json"],
                               input="ROMEO:\n")
    said = json.loads(found.stdout)
    assert said["text"] == scope["text"] and len(said["ids"]) == 24 and said["finish"] == "length"
    (tmp_path / "held.txt").write_text("To be, or not to be, that is the question.")
    found = CliRunner().invoke(cli, ["perplexity", *folder, str(tmp_path / "held.txt"), "--json"])
    assert json.loads(found.stdout)["loss"] == pytest.approx(scope["score"].loss, abs=1e-6)
    found = CliRunner().invoke(cli, ["chat", *folder], input="hello\n")
    assert found.exit_code == 1 and "has no chat template" in found.stderr


def a_text_of_4096_tokens(folder: Path, device: str) -> tuple[dict[int, Any], list[float]]:
    """What the process had at some tokens (written kernels, bytes of the cache, resident bytes),
    and its processor time at each token."""
    with jitcl.lm.load(folder, device=device, cache_dir=folder / "cache") as model:
        model.ends, seconds, known = frozenset(), [time.process_time()], {}
        for k, _ in enumerate(model.tokens(IDS, 4096, Sampling())):
            seconds.append(time.process_time())
            if k in (9, 400, 4095):
                built = sum(m.cache.stats.writes for m in model._models.values())
                known[k] = built, model._cache.nbytes, resident()
        assert model._cache.room == 4352
    return known, seconds


@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.slow if d == "cpu" else pytest.mark.long)
    for d in present() if d != "reference"])
def test_a_text_of_4096_tokens(device: str, tmp_path: Path) -> None:
    """Nothing is built behind the tenth token, memory grows by the cache alone, and a token takes
    no longer than reading the cache explains. Room for tokens grows 16 times. In a process of its
    own, since processor time is also that of threads that other tests left behind."""
    folder = lm_models.stored("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4200}))
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        known, seconds = alone.apply(a_text_of_4096_tokens, (folder, device))
    assert known[9][0] == known[4095][0]
    cache, own = (known[4095][i] - known[400][i] for i in (1, 2))
    assert own < cache + (4 << 20)
    early, late = (np.percentile(np.diff(seconds)[a:a + 200], 10) for a in (300, 3800))
    rate = 2e9 if device == "cpu" else 5e8      # bytes a second: OpenCL copies them before products
    assert late - early < cache / rate


def test_arrays_that_weights_are_made_of_stay_writeable() -> None:
    """One that is read where it lies is not closed to who gave it."""
    given = np.ones((512, 1024), np.float32)
    node = Stored({"w": given}, (), "").node(GraphBuilder(), "w")
    assert node.data.sum() == given.size and not node.data.flags.writeable
    assert given.flags.writeable


@pytest.mark.slow
def test_files_of_weights_may_have_more_than_two_gigabytes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as made:
        made.truncate(MOST_BYTES + 1)               # zeros that take no room
    assert len(Stored({}, (file,), "").digest(tmp_path)) == 32
    assert len(Gguf.digest(Mock(path=file), tmp_path)) == 32


def test_what_fits_is_remembered_of_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    folder, asked = lm_models.stored("llama", tmp_path), []
    check = Decoder._check
    monkeypatch.setattr(Decoder, "_check", lambda d: (asked.append(d), check(d)))
    config = json.loads((folder / "config.json").read_text())
    for said in (config, config, {**config, "num_hidden_layers": 1}):
        (folder / "config.json").write_text(json.dumps(said))
        with pytest.raises(UnsupportedError, match="no use for weight") if said != config else (
                contextlib.nullcontext()):
            jitcl.lm.load(folder, device="cpu", cache_dir=tmp_path / "cache").close()
    assert len(asked) == 2

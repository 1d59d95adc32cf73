"""Several texts at once: each is what it is alone, whoever comes and goes beside it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import jitcl
from jitcl.errors import DeviceError, InputError, OptionError
from jitcl.lm.cache import ROOM, Cache
from jitcl.lm.sampling import Sampling
from jitcl.lm.writing import Text, step
from jitcl.runtime.guard import Guard
from tests import lm_models
from tests.devices import needs, opened, present
from tests.lm_models import IDS
from tests.real_models import MODELS, needs_models
from tests.test_lm_writing import SCHEMA, Random

PROMPTS = ["a", "bcd", "abcabc", "xyz xyz", "Q"]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Any]:
    with jitcl.lm.load(lm_models.lettered("gpt2", tmp_path), device="cpu", batch=3) as found:
        Random(found)
        yield found


@pytest.mark.parametrize("options", [
    dict(max_new_tokens=9), dict(temperature=0.9, seed=5, max_new_tokens=40),
    dict(stop=["e", "QQ"], max_new_tokens=60, temperature=1.0, seed=1),
    dict(form=SCHEMA, temperature=1.0, seed=2, max_new_tokens=100),
    dict(draft="lookup", max_new_tokens=50)])
def test_texts_are_what_they_are_alone(model: Any, options: dict[str, Any]) -> None:
    """Five prompts, three at once."""
    wanted, took = [], []
    for prompt in PROMPTS:
        wanted.append(model.generate(prompt, **options))
        took.append((model.last.ids, model.last.finish))
    assert model.generate(PROMPTS, **options) == wanted
    assert [(t.ids, t.finish) for t in model.last] == took
    found = [""] * len(PROMPTS)
    for k, piece in model.generate([model.tokenize(p) for p in PROMPTS], stream=True, **options):
        found[k] += piece
    assert found == wanted and len(model._cache.slots) == 3


def test_clients_in_turn_keep_what_was_read(model: Any) -> None:
    """Each reads its new tokens alone, as long as there are slots."""
    one, two = "abcabcabc", "xyzxyzxyz"
    for text in (one, two, one + "d", two + "d", one + "de"):
        model.generate(text, max_new_tokens=1)
        if len(text) > 9:
            assert model.last.reused_tokens >= 9
    assert len(model._cache.slots) == 2
    for text in ("QQQQ", "RRRR", "SSSS"):
        model.generate(text, max_new_tokens=1)
    assert len(model._cache.slots) == 3


def test_conversations_at_once(model: Any) -> None:
    talks = [[{"role": "user", "content": c}] for c in ("hi", "ho")]
    assert model.generate(talks, max_new_tokens=5) == [
        model.generate(t, max_new_tokens=5) for t in talks]


def test_a_batch_runs_its_texts_together(model: Any) -> None:
    model.ends, fed = frozenset(), []
    together = model._together
    model._together = lambda slots, ids: fed.append(len(ids)) or together(slots, ids)
    model.generate(["a", "b", "c", "d"], max_new_tokens=4)
    assert fed == [3] * 4 + [1] * 4         # a text that waits comes when another has left
    del fed[:]
    model.generate(["aaaa", "bbbb", "c"], max_new_tokens=3)
    assert fed == [1, 2, 3, 1]              # a prompt a step: nobody waits for all of them


def test_what_is_wrong_with_a_text_ends_that_one_alone(model: Any) -> None:
    good, bad = (model.text(p, max_new_tokens=6) for p in ("ab", "cd"))
    bad.sampling = None
    while not good.ended:
        step(model, [bad, good])
    assert isinstance(bad.failure, AttributeError) and good.failure is None
    assert good.done.ids == list(model.tokens(model.tokenize("ab"), 6, Sampling()))
    step(model, [bad])                                      # it is not computed any more
    assert not bad.known and not bad.done.ids
    with pytest.raises(InputError, match="the prompt has 200 tokens"):
        model.generate(["a", "b" * 200])
    with pytest.raises(OptionError, match="batch=0: wanted a whole number above 0"):
        jitcl.lm.load("folder", batch=0)


def test_a_cache_that_cannot_be_made_anew_ends_the_texts(model: Any, monkeypatch: pytest.MonkeyPatch
                                                          ) -> None:
    """A server waits for texts: one that raised nothing would be waited for for ever."""
    def renew(_: Any) -> None:
        raise DeviceError("no memory")

    monkeypatch.setattr(type(model._cache), "lost", True)
    monkeypatch.setattr(type(model._cache), "renew", renew)
    texts = [model.text(p, max_new_tokens=6) for p in ("ab", "cd")]
    step(model, texts)
    assert [str(t.failure) for t in texts] == ["no memory"] * 2 and texts[0].ended
    with pytest.raises(DeviceError, match="no memory"):
        model.generate("ab")


def test_batches_are_as_large_as_memory_allows(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model._fitting() == 8
    a_text = 128 * 2 * 2 * 32 * 4           # tokens, layers, keys and values, width, bytes
    assert model._cache.nbytes == a_text * ROOM // 128
    for have, wanted in ((4 * 5 * a_text, 5), (a_text, 1), (0, 8)):
        device = Mock()
        device.target.global_memory = have
        monkeypatch.setattr("jitcl.lm.model.open_device", Mock(return_value=device))
        assert model._fitting() == wanted


# ---- slots


def test_a_short_text_in_a_long_ones_cache(model: Any) -> None:
    """A run reads no more than its text has, in steps, and is bound anew when that changes."""
    cache, seen = Cache(model.decoder, np.float32), []

    def bind(arrays: Any) -> Any:
        seen.append({array.shape[1] for array in arrays.values()})
        assert all(array.flags.c_contiguous for array in arrays.values())
        return Mock()

    cache.grow(tokens=3 * ROOM)
    slot = cache.slots[0]
    for count in (0, ROOM, ROOM, ROOM + 1, 3 * ROOM, 5):
        slot.ids = [1] * count
        cache.bound("kernels", [slot], bind)
    assert seen == [{ROOM}, {2 * ROOM}, {3 * ROOM}, {ROOM}]
    cache.grow(slots=2)
    assert cache.reads(cache.slots) == 3 * ROOM


@pytest.mark.parametrize("where", ["host", *(s for s in present() if s.startswith("opencl"))])
def test_slots(model: Any, where: str) -> None:
    """Texts find what they share; who is in the way of a run changes places."""
    cache = Cache(model.decoder, np.float32,
                  None if where == "host" else opened(where))

    def fill(slot: Any, ids: list[int]) -> None:
        shape = (1, len(ids), 2 * model.decoder.shared, model.decoder.head_size)
        marks = np.array(ids, np.float32)[None, :, None, None]
        cache.extend([slot], [ids], {f"new.{k}": np.broadcast_to(marks, shape)
                                     for k in range(model.decoder.layers)})

    def right() -> None:
        for k, slot in enumerate(cache.slots):
            assert slot.index == k
            for array in (a for rows in cache.rows for a in rows.slots(0, len(cache.slots))):
                array = array if where == "host" else array.numpy()
                assert (array[k, :len(slot.ids), 0, 0] == slot.ids).all()
                assert not array[k, len(slot.ids):].any()

    first = cache.slot([1, 2, 3], [])
    fill(first, [1, 2, 3])
    second = cache.slot([1, 2, 9], [first])
    fill(second, [1, 2, 9, 8])
    assert cache.slot([1, 2, 9, 7], []) is second and cache.slot([1, 2, 3], []) is first
    assert cache.slot([5], []) is second                    # nothing in common: the older one
    third = cache.slot([4], [first, second])
    fill(third, [4])
    assert len(cache.slots) == 3 and cache.room == ROOM
    assert cache.first([third, first], 2) == [first, third] and second.index == 2
    right()
    cache.grow(tokens=ROOM + 1)
    assert cache.room == 2 * ROOM
    assert [s.shared([1, 2, 3, 4]) for s in cache.slots] == [3, 0, 2]
    second.shorten(1)
    right()
    other = cache.slot([1, 2, 5], [], most=4)               # in place of the half of a longer text
    assert other is first and len(cache.slots) == 3
    other = cache.slot([4, 5], [], most=4)
    assert other is third
    fill(first, [7, 8, 9])
    other = cache.slot([1, 2, 7], [], most=4)
    assert other is cache.slots[3] and other.ids == [1, 2] and first.ids == [1, 2, 3, 7, 8, 9]
    right()
    assert cache.first([second], 4)[:3] == [first, third, second] and len(cache.slots) == 4


def test_what_other_kernels_computed_is_put_once_more(model: Any) -> None:
    """Where the guard, or a driver's fault, had a run computed by other kernels than those behind
    which keys and values were put."""
    cache = Cache(model.decoder, np.float32)
    names = [f"new.{k}" for k in range(model.decoder.layers)]
    shape = (1, 2, 2 * model.decoder.shared, model.decoder.head_size)
    spoilt, right = ({name: np.full(shape, mark) for name in names} for mark in (np.nan, 7.0))

    class Repaired:
        kept, behind = spoilt, list[Any]()

        def run(self) -> Any:
            assert all(put(Mock()) == [] for put in self.behind)
            return right

    slot = cache.slot([3, 4], [])
    meanwhile = Mock(return_value=None)
    cache.run(Repaired(), [slot], [[3, 4]], meanwhile)      # type: ignore[arg-type]
    assert slot.ids == [3, 4] and Repaired.behind == [] and meanwhile.call_count == 1
    assert all((rows.array[:, 0, :2] == 7).all() for rows in cache.rows)
    assert not any(rows.array[:, 0, 2:].any() for rows in cache.rows)


@needs("opencl:pocl")
def test_a_run_that_fails_leaves_zeros_in_the_cache(tmp_path: Any,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    with jitcl.lm.load(lm_models.stored("llama", tmp_path), device="opencl:pocl") as model:
        model.ends = frozenset()
        wanted, (slot,) = list(model.tokens(IDS, 5, Sampling())), model._cache.slots
        slot.shorten(0)
        after, runs = Guard.after, itertools.count()

        def spoilt(self: Any, *args: Any) -> Any:
            if next(runs) == 2:
                raise RuntimeError("this run")
            return after(self, *args)

        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="this run"):
            patch.setattr(Guard, "after", spoilt)
            list(model.tokens(IDS, 5, Sampling()))
        for layer in (a.numpy()[0] for rows in model._cache.rows for a in rows.slots(0, 1)):
            assert layer[:len(slot.ids)].any() and not layer[len(slot.ids):].any()
        assert list(model.tokens(IDS, 5, Sampling())) == wanted
        places = ([len(slot.ids)], 1, ROOM), model.decoder.places([len(slot.ids)], 1, ROOM)
        assert model._feeds._known[0] == places[0]      # of the next token, made meanwhile
        assert all((a == places[1][n]).all() for n, a in model._feeds._known[1].items())


# ---- with kernels


def at_random(model: Any, asks: list[tuple[list[int], int]], monkeypatch: pytest.MonkeyPatch,
              exact: bool = False) -> None:
    """Texts that come and go in random order are what they are alone; exact: logits, too, bit for
    bit."""
    said: dict[Text, list[np.ndarray]] = {}
    take = Text.take

    def taking(text: Text, model: Any) -> None:
        said.setdefault(text, []).append(text.known[0].copy())
        take(text, model)

    monkeypatch.setattr(Text, "take", taking)
    model.ends = frozenset()

    def texts() -> list[Text]:
        return [Text(ids, count, Sampling(temperature=0.8 * (k % 2)), k)
                for k, (ids, count) in enumerate(asks)]

    alone, beside = texts(), texts()
    for text in alone:
        model._cache.slots[0].shorten(0)
        while not text.ended:
            step(model, [text])
        assert text.failure is None
    if exact:                   # else the last text is reused: computed in other pieces, whose
        model._cache.slots[0].shorten(0)        # sums may be rounded otherwise
    random = np.random.default_rng(4)
    waiting, going = [beside[k] for k in random.permutation(len(beside))], list[Text]()
    while waiting or going:
        if waiting and (not going or random.random() < 0.4):
            going.append(waiting.pop())
        step(model, going)
        assert not any(t.failure for t in going)
        going = [t for t in going if not t.ended]
    assert {texts for _, _, texts in model._models} >= {1, 2, 4}
    for one, other in zip(alone, beside):
        assert one.done.ids == other.done.ids
        found, wanted = np.array(said[other]), np.array(said[one])
        if exact:
            np.testing.assert_array_equal(found, wanted)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.sampled(slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.long if d == "opencl:intel" else ()) for d in present()
    if d != "reference"])
def test_rows_of_a_batch_know_nothing_of_each_other(device: str, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, shared heads; one text makes the cache grow for all."""
    folder = lm_models.stored("qwen2", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    random = np.random.default_rng(3)
    asks = [(random.integers(3, 97, n).tolist(), count)
            for n, count in ((1, 24), (5, 7), (17, 20), (250, 16), (3, 30))]
    with jitcl.lm.load(folder, device=device, cache_dir=tmp_path / "cache") as model:
        at_random(model, asks, monkeypatch)
        assert model._cache.room == 2 * ROOM


@pytest.mark.long
@needs_models
@pytest.mark.parametrize("device", [d for d in present() if d != "reference"])
def test_shakespeare_at_once(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    with jitcl.lm.load(MODELS / "shakespeare-llama", device=device, cache_dir=tmp_path) as model:
        asks = [(random.integers(3, model.decoder.vocabulary, n).tolist(), count)
                for n, count in ((1, 30), (5, 9), (16, 40), (40, 25), (90, 6), (250, 20))]
        at_random(model, asks, monkeypatch, exact=device == "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("device", [d for d in present() if d.startswith("opencl")][:1])
def test_a_lost_device_costs_time_alone(device: str, tmp_path: Path) -> None:
    """Keys and values lay there: they are computed again."""
    folder = lm_models.stored("llama", tmp_path)
    ids = [5, 9, 2, 7, 7, 1]
    with jitcl.lm.load(folder, device=device, cache_dir=tmp_path / "cache") as model:
        model.ends = frozenset()
        greedy = Sampling.of({}, {})
        wanted = list(model.tokens(ids, 8, greedy))
        found = []
        for k, token in enumerate(model.tokens(ids, 8, greedy)):
            found.append(token)
            if k == 3:
                model.device.reopen()
        assert found == wanted
        slot = model._cache.slots[0]
        before = model._run([3], "next", slot)
        slot.shorten(len(slot.ids) - 1)
        model.device.reopen()
        assert model._once([slot], [[3]], 1, "next").tobytes() == before.tobytes()

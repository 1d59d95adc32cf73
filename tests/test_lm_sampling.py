"""How the next token is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from jitcl.errors import ModelError
from jitcl.lm.model import Score
from jitcl.lm.sampling import Sampling, log_softmax


def drawn(sampling: Sampling, logits: list[float], seen: Sequence[int] = ()) -> np.ndarray:
    random = np.random.default_rng(3)
    found = [sampling.pick(np.array(logits, np.float32), seen, lambda: random) for _ in range(1500)]
    return np.bincount(found, minlength=len(logits)) / len(found)


def test_draws_follow_the_probabilities() -> None:
    chances = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(chances).tolist()
    np.testing.assert_allclose(drawn(Sampling(temperature=1), logits), chances, atol=0.05)
    hot = chances ** 0.5 / (chances ** 0.5).sum()
    np.testing.assert_allclose(drawn(Sampling(temperature=2), logits), hot, atol=0.05)
    for options, kept in ((dict(top_k=2), 2), (dict(top_p=0.7), 2), (dict(top_p=0.81), 3),
                          (dict(min_p=0.25), 3), (dict(top_k=3, min_p=0.5), 2)):
        wanted = np.where(np.arange(4) < kept, chances, 0)
        np.testing.assert_allclose(drawn(Sampling(temperature=1, **options), logits),
                                   wanted / wanted.sum(), atol=0.05)


def test_the_likeliest_and_what_was_there() -> None:
    pick = Sampling(repetition_penalty=2.0).pick
    random = partial(np.random.default_rng, 0)
    logits = np.array([2.0, 1.5, -0.5, -0.6], np.float32)
    assert Sampling().pick(logits, [0], random) == 0
    assert pick(logits, [0, 0], random) == 1
    assert pick(np.array([-0.5, -0.6], np.float32), [0], random) == 1
    assert logits[0] == 2.0


def test_extreme_numbers_draw_what_they_mean() -> None:
    random, logits = partial(np.random.default_rng, 0), np.array([2.0, 3.0, -np.inf], np.float32)
    for cold in (1e-3, 1e-300, 1e-320):
        assert Sampling(temperature=cold).pick(logits, [], random) == 1
        assert Sampling(cold, temperature=1.0).pick(logits, [0], random) == 0
        assert Sampling(1 / cold if cold > 1e-300 else 1e300, 0.1).pick(logits, [1], random) == 0
    assert Sampling(temperature=1e300).pick(logits, [], random) in (0, 1)
    for options in (Sampling(), Sampling(temperature=1.0)):
        with pytest.raises(ModelError, match="logits are no numbers"):
            options.pick(np.array([1.0, np.nan], np.float32), [], random)


def test_generation_config_decides_where_the_caller_does_not() -> None:
    drawing = dict(do_sample=True, temperature=0.6, top_k=20, repetition_penalty=1.1, top_p=None)
    assert Sampling.of({}, drawing) == Sampling(1.1, 0.6, 20)
    assert Sampling.of({"temperature": 0, "top_k": 5}, drawing) == Sampling(1.1, 0, 5)
    assert Sampling.of({}, {**drawing, "do_sample": False}) == Sampling(1.1)
    assert Sampling.of({"temperature": 0.5}, {}) == Sampling(temperature=0.5)


def test_log_softmax() -> None:
    found = log_softmax(np.array([[1000.0, 1000.0], [0.0, -np.inf]], np.float32))
    np.testing.assert_allclose(found, [[-np.log(2), -np.log(2)], [0, -np.inf]])


def test_perplexities_have_no_bound() -> None:
    assert Score([1, 2], np.array([-np.log(4)])).perplexity == pytest.approx(4)
    assert Score([1, 2], np.array([-1000.0])).perplexity == math.inf

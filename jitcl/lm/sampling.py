"""Which token comes next: the likeliest, or one drawn from what the options leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from jitcl.errors import ModelError, OptionError
from jitcl.runtime.arguments import is_number

LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True)
class Sampling:
    """Applied in this order, as transformers does.

    repetition_penalty: logits of tokens that were there are divided by it, or multiplied where they
    are below 0 (Keskar et al., 2019). temperature: 0 takes the likeliest. top_k: of so many tokens,
    0 of all. top_p: of the likeliest that make up this probability (Holtzman et al., 2020). min_p:
    of those that have this part of the likeliest's probability (Nguyen et al., 2024).
    """

    repetition_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, right, wanted in (
                ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "more than 0"),
                ("temperature", 0 <= self.temperature < math.inf, "0 or more"),
                ("top_k", 0 <= self.top_k < math.inf and self.top_k == int(self.top_k),
                 "a whole number"),
                ("top_p", 0 < self.top_p <= 1, "more than 0, up to 1"),
                ("min_p", 0 <= self.min_p <= 1, "0 to 1")):
            if not right:
                raise OptionError(f"{name}={getattr(self, name)!r}: wanted {wanted}")

    @staticmethod
    def of(given: Mapping[str, Any], configured: Mapping[str, Any]) -> Sampling:
        """What the caller gave, then what generation_config.json says, which draws where it says
        `do_sample`. Raises OptionError."""
        drawn = configured.get("do_sample") or given.get("temperature")
        found = {"temperature": 1.0 if drawn else 0.0}
        for f in fields(Sampling):
            for values in (configured if drawn or f.name == "repetition_penalty" else {}, given):
                value = values.get(f.name)
                if value is None:
                    continue
                if not is_number(value):
                    raise OptionError(f"{f.name}={value!r}: wanted a number")
                found[f.name] = value
        return Sampling(**found)  # type: ignore[arg-type]

    def pick(self, logits: np.ndarray, seen: Iterable[int],
             random: Callable[[], np.random.Generator]) -> int:
        """A token for logits [vocabulary]; `seen`: tokens so far. random: asked where one is drawn:
        making it imports numpy.random."""
        if np.isnan(logits.max()):
            raise ModelError("the model's logits are no numbers (NaN): its weights hold some, or "
                             "numbers too large for this precision\n  Take precision=\"high\".")
        if self.repetition_penalty != 1:
            logits, at = logits.astype(np.float64), np.array([*set(seen)], np.int64)
            with np.errstate(over="ignore"):
                punished = np.where(logits[at] < 0, logits[at] * self.repetition_penalty,
                                    logits[at] / self.repetition_penalty)
            logits[at] = np.clip(punished, -LARGEST, LARGEST)
        if self.temperature == 0:
            return int(logits.argmax())
        with np.errstate(over="ignore"):                # what is far below becomes -inf
            scores = logits.astype(np.float64)
            scores = (scores - scores.max()) / self.temperature
        if self.top_k and self.top_k < len(scores):
            scores[scores < np.partition(scores, -self.top_k)[-self.top_k]] = -np.inf
        likely = _softmax(scores)
        if self.top_p < 1:
            order = np.argsort(-likely, kind="stable")
            before = np.cumsum(likely[order]) - likely[order]
            likely[order[before >= self.top_p]] = 0
            likely /= likely.sum()
        if self.min_p:
            likely[likely < self.min_p * likely.max()] = 0
            likely /= likely.sum()
        return int(random().choice(len(likely), p=likely))


def _softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max())
    return e / e.sum()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))

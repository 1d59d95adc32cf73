"""`jitcl.lm.load(precision="auto")`: the lowest precision whose logits hold a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl.errors import OptionError
from jitcl.lm.sampling import Sampling
from jitcl.runtime.arguments import is_number

if TYPE_CHECKING:
    from jitcl.lm.model import LanguageModel

TOLERANCE = 1e-2            # of the largest logit
OWN = 128                   # tokens that the model writes where no text is given
Tolerance = float | Callable[[np.ndarray, np.ndarray], bool]


def limit_of(given: Any, auto: bool) -> Tolerance:
    """Of an argument of `load`. Raises OptionError."""
    if given is None or callable(given) and auto:
        return TOLERANCE if given is None else given
    if not auto:
        raise OptionError("tolerance is of precision='auto'")
    if not (is_number(given) and 0 <= given < np.inf):
        raise OptionError(f"tolerance: got {given!r}, wanted a number from 0 up, or a function of "
                          "(logits, logits in f32)")
    return float(given)


def lowest(exact: LanguageModel, text: Sequence[int] | None, limit: Tolerance,
           opened: Callable[[str], LanguageModel]) -> LanguageModel:
    """`exact`, or the model that is `opened` in less and says nearly the same behind each token of
    a text; the others are closed. text: None for one of the model's own, by chance."""
    if text is None:
        start = [min(exact.ends, default=0)]
        text = [*start, *exact.tokens(start, OWN, Sampling(temperature=1.0), seed=0)]
    text = text[:exact.decoder.context]
    wanted = exact.logits(text)
    for precision in ("low", "normal"):
        model = opened(precision)
        got = model.logits(text)
        if limit(got, wanted) if callable(limit) else (
                np.abs(got - wanted).max() <= limit * np.abs(wanted).max()):
            exact.close()
            return model
        model.close()
    return exact


__all__ = ["Tolerance", "limit_of", "lowest"]

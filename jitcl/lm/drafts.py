"""Guesses of what comes next, which the model looks at in one step instead of one each.

A text is the same with them and without: each token is chosen from the model's own logits, and a
guess that isn't that token, with all behind it, is thrown away (Leviathan et al., 2023, for models
that draw; here draws are compared, so that a seed gives the same text, too).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from jitcl.errors import OptionError
from jitcl.lm.sampling import Sampling

if TYPE_CHECKING:
    from jitcl.lm.model import LanguageModel

GUESSES = 3                                 # and the token before them: kernels of four rows
LENGTHS = (3, 2)                            # of what is looked for, in tokens

Draft = Literal["lookup"]


def checked(draft: LanguageModel | str | None, model: LanguageModel) -> None:
    """OptionError where this draft can't guess for this model."""
    if draft is None or draft == "lookup":
        return
    if isinstance(draft, str) or not hasattr(draft, "decoder") or draft is model:
        raise OptionError(f"draft={draft!r}: wanted \"lookup\", or another LanguageModel")
    other, own = draft.decoder.vocabulary, model.decoder.vocabulary
    if other != own:
        raise OptionError(f"draft={draft!r}: has {other} tokens, this model has {own}\n"
                          "  Pass a smaller model of the same family.")


def guesses(draft: LanguageModel | str | None, ids: Sequence[int], most: int) -> list[int]:
    """Up to `most` tokens, and GUESSES of them, that may follow."""
    most = min(most, GUESSES)
    if draft is None or most < 1:
        return []
    if isinstance(draft, str):
        return _looked_up(ids, most)
    if len(ids) + most >= draft.decoder.context:
        return []
    return list(draft.tokens(ids, most, Sampling()))


def _looked_up(ids: Sequence[int], most: int) -> list[int]:
    """What followed the last time that the text had its last tokens (Saxena, 2023)."""
    for length in LENGTHS:
        if len(ids) <= length:
            continue
        last = list(ids[-length:])
        for at in range(len(ids) - length - 1, -1, -1):
            if ids[at] == last[0] and list(ids[at:at + length]) == last:
                return list(ids[at + length:at + length + most])
    return []

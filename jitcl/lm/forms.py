"""Texts of a form: of a JSON schema, or of a grammar. The library llguidance says which tokens may
come next."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jitcl.errors import InputError, OptionError, UnsupportedError
from jitcl.lm.extra import library
from jitcl.lm.tokens import Tokenizer

Form = str | Mapping[str, Any]
SILENT = 0                                  # the library's log: errors are raised here
# Spaces where json.dumps writes them: where any may stand, small models write nothing else.
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Forms:
    """What a model's tokens are to the library. Making one takes up to a second."""

    def __init__(self, words: Tokenizer, vocabulary: int, ends: Collection[int]) -> None:
        self._lib = library("llguidance", "texts of a form")
        try:
            self._tokens = self._lib.LLTokenizer(words.tokenizer.to_str(), n_vocab=vocabulary,
                                                 eos_token=sorted(ends) or None)
        except ValueError as error:
            raise UnsupportedError(f"{words.place}: llguidance does not know what this tokenizer's "
                                   f"tokens stand for: {error}") from None
        self.vocabulary = vocabulary

    def begin(self, form: Form) -> Written:
        """form: a JSON schema ({}: any JSON), or a grammar in Lark's form with the rule `start`.

        Raises OptionError.
        """
        matcher = self._lib.LLMatcher
        try:
            if isinstance(form, str):
                grammar = matcher.grammar_from_lark(form)
            elif isinstance(form, Mapping):
                grammar = matcher.grammar_from_json_schema(json.dumps(form), overrides=COMPACT)
            else:
                raise TypeError(f"is of {type(form).__name__}")
            made = matcher(self._tokens, grammar, log_level=SILENT)
            wrong = made.get_error()
        except (TypeError, ValueError) as error:
            wrong = str(error)
        if wrong:
            raise OptionError(f"form={str(form)[:80]!r}: {wrong}\n  Pass a JSON schema as a dict, "
                              "or a grammar as Lark has them, with the rule `start`.")
        return Written(made, self.vocabulary)


class Written:
    """How far a text of a form has come."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def allowed(self) -> np.ndarray:
        """[vocabulary] bool: tokens that may come next; those that end texts, where it may end."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        found = np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(bool)
        if not found.any():
            raise InputError(f"no token of this model goes on with the form: "
                             f"{self._matcher.get_error() or 'its vocabulary lacks a letter'}")
        return found

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)

    @property
    def whole(self) -> bool:
        """Whether nothing can follow."""
        return bool(self._matcher.is_stopped())

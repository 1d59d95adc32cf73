"""Tokenizers as GGUF files hold them, made into those of the library `tokenizers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jitcl.errors import ModelError, UnsupportedError
from jitcl.lm.extra import library
from jitcl.lm.tokens import Tokenizer
from jitcl.runtime.arguments import is_whole

CONTROL, WRITTEN = 3, 4                     # types of tokens: special, and found as they stand
_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"       # of English words
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = _ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
# a small letter ends what capitals begin: "HelloWorld" is two words
_CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(ends)s"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(ends)s"
          r"|\p{N}%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*") + _REST


@dataclass(frozen=True)
class Split:
    """How text is split before its bytes are merged: by a regular expression, if there is one, and
    as GPT-2 does (`then`, or if there is none). What llama.cpp knows of these and files leave out:
    `whole`, a word that is a token is that one, whatever may be merged, and a text begins with the
    token for that.
    """

    regex: str = ""
    then: bool = False
    whole: bool = False


_LLAMA3, _QWEN2 = Split(_LETTERS % "{1,3}", whole=True), Split(_LETTERS % "")
SPLITS = {                                  # by `tokenizer.ggml.pre`
    "default": Split(), "gpt-2": Split(), "smollm": Split(r"\p{N}", then=True),
    "llama-bpe": _LLAMA3, "llama-v3": _LLAMA3, "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2,
    "gpt-4o": Split(_CASED % {"ends": _ENDS + "?", "digits": "{1,3}"}),
    "tekken": Split(_CASED % {"ends": "", "digits": ""}, whole=True)}


def of_metadata(said: Mapping[str, Any], place: str) -> Tokenizer | None:
    """The tokenizer that a file's metadata describes; None where it has none."""
    kind, words = said.get("tokenizer.ggml.model"), said.get("tokenizer.ggml.tokens")
    if kind in (None, "none", "no_vocab"):
        return None
    if not words:
        raise ModelError(f"{place}: has a tokenizer '{kind}' without tokens")
    lib = library("tokenizers", "the tokenizer of a GGUF file")
    vocabulary = {word: k for k, word in enumerate(words)}
    if kind == "gpt2":
        tokenizer = _by_bytes(lib, said, vocabulary, place)
    elif kind == "llama":
        tokenizer = _by_scores(lib, said, vocabulary, place)
    else:
        raise UnsupportedError(f"{place}: tokenizers of kind '{kind}' are not supported: jitcl has "
                               "gpt2 and llama")
    types = said.get("tokenizer.ggml.token_type", ())
    added = [(w, t) for w, t in zip(words, types) if t in (CONTROL, WRITTEN)]
    tokenizer.add_special_tokens([lib.AddedToken(w, special=True, normalized=False)
                                  for w, t in added if t == CONTROL])
    tokenizer.add_tokens([lib.AddedToken(w, normalized=False) for w, t in added if t == WRITTEN])
    specials = {f"{name}_token": _word(said, f"tokenizer.ggml.{name}_token_id", words, place)
                for name in ("bos", "eos") if f"tokenizer.ggml.{name}_token_id" in said}
    first = said.get("tokenizer.ggml.add_bos_token",
                     kind == "llama" or _split(said, place).whole)
    if first and "bos_token" in specials:
        bos = specials["bos_token"]
        tokenizer.post_processor = lib.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])])
    return Tokenizer(tokenizer, said.get("tokenizer.chat_template"), specials, place)


def _of_words(said: Mapping[str, Any], key: str, place: str) -> list[Any]:
    """What a tokenizer can't do without."""
    found = said.get(key)
    if not isinstance(found, list):
        raise ModelError(f"{place}: has a tokenizer without '{key}': its tokens would be others")
    return found


def _word(said: Mapping[str, Any], key: str, words: Sequence[str], place: str) -> str:
    """The token that a key names; the first where there is no key."""
    k = said.get(key, 0)
    if not is_whole(k, 0) or k >= len(words):
        raise ModelError(f"{place}: '{key}' is {k!r}: there are {len(words)} tokens")
    return words[k]


def _split(said: Mapping[str, Any], place: str) -> Split:
    pre = said.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in SPLITS:
        raise UnsupportedError(f"{place}: text that is split as '{pre}' is not supported: jitcl "
                               f"has {', '.join(SPLITS)}")
    return SPLITS[pre]


def _by_bytes(lib: Any, said: Mapping[str, Any], vocabulary: dict[str, int], place: str) -> Any:
    """Pairs of bytes, merged in the order of the file's list."""
    split = _split(said, place)
    merges = [tuple(m.split(" ", 1)) for m in _of_words(said, "tokenizer.ggml.merges", place)]
    try:
        model = lib.models.BPE(vocabulary, merges, ignore_merges=split.whole)
    except Exception as error:              # noqa: BLE001 - the library raises nothing narrower
        raise ModelError(f"{place}: tokens and merges do not fit: {error}") from None
    tokenizer = lib.Tokenizer(model)
    by_bytes = lib.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=split.then or not split.regex)
    regex = [lib.pre_tokenizers.Split(lib.Regex(split.regex), "isolated")] if split.regex else []
    tokenizer.pre_tokenizer = lib.pre_tokenizers.Sequence([*regex, by_bytes])
    tokenizer.decoder = lib.decoders.ByteLevel()
    return tokenizer


def _by_scores(lib: Any, said: Mapping[str, Any], vocabulary: dict[str, int], place: str) -> Any:
    """SentencePiece's pairs: of those that may be merged, the one whose token scores highest."""
    scores = _of_words(said, "tokenizer.ggml.scores", place)
    if len(scores) < len(said["tokenizer.ggml.tokens"]):
        raise ModelError(f"{place}: 'tokenizer.ggml.scores' has {len(scores)} entries, fewer than "
                         "tokens")
    merges = [(scores[k], k, word[:n], word[n:]) for word, k in vocabulary.items()
              for n in range(1, len(word)) if word[:n] in vocabulary and word[n:] in vocabulary]
    merges.sort(key=lambda m: (-m[0], m[1]))
    unknown = _word(said, "tokenizer.ggml.unknown_token_id", said["tokenizer.ggml.tokens"], place)
    tokenizer = lib.Tokenizer(lib.models.BPE(
        vocabulary, [(a, b) for _, _, a, b in merges], fuse_unk=True, byte_fallback=True,
        unk_token=unknown))
    space, prefix = "\u2581", said.get("tokenizer.ggml.add_space_prefix", True)
    parts = [lib.normalizers.Prepend(space)] if prefix else []
    tokenizer.normalizer = lib.normalizers.Sequence(
        [*parts, lib.normalizers.Replace(" ", space)])
    ends = [lib.decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = lib.decoders.Sequence(
        [lib.decoders.Replace(space, " "), lib.decoders.ByteFallback(), lib.decoders.Fuse(), *ends])
    return tokenizer

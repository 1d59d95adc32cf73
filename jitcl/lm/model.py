"""`jitcl.lm.load(...)` and the `LanguageModel` that it returns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from jitcl import forking
from jitcl.devices.base import Device, DeviceInfo, Progress
from jitcl.devices.select import open_device
from jitcl.errors import (
    DeviceError,
    InputError,
    ModelError,
    OptionError,
    UnsupportedError,
    closed_error,
)
from jitcl.lm import drafts, tokens
from jitcl.lm.adapters import Adapted
from jitcl.lm.architectures import decoder, prefixed
from jitcl.lm.cache import Cache, Slot
from jitcl.lm.decoder import ROOM, Decoder, DecoderSource, Tokens
from jitcl.lm.feeds import Feeds
from jitcl.lm.forms import Form, Forms
from jitcl.lm.gguf import Gguf
from jitcl.lm.lowest import Tolerance, limit_of, lowest
from jitcl.lm.sampling import Sampling, log_softmax
from jitcl.lm.tokens import Message, Tokenizer, read_json
from jitcl.lm.weights import safetensors
from jitcl.lm.writing import ROWS, Generation, Letters, Text, rows_for, rows_on, step
from jitcl.passes.options import Memory, Options
from jitcl.runtime.arguments import device_of, is_whole, isolation_of, tally_of
from jitcl.runtime.bound import Bound
from jitcl.runtime.cache import DeviceCache, kernel_cache
from jitcl.runtime.model import Model

BATCH = 8                                   # texts at once, where memory is enough
CACHE_SHARE = 0.25                          # of the host's memory, for keys and values

Prompt = str | Sequence[int] | Sequence[Message]


@dataclass(frozen=True)
class Score:
    """log_probs [n]: of each token after the first, in nats; loss: their mean, negative."""

    ids: list[int]
    log_probs: np.ndarray

    @property
    def loss(self) -> float:
        return float(-self.log_probs.mean())

    @property
    def perplexity(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(self.loss))


class _ForAnyPast(Model):
    """Compiled for all lengths of the past at once, which other models are when lengths go on
    changing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._families.grows.add(("past.0", 1))


class LanguageModel:
    """A language model on a device. Calls of several threads take turns; `close`, or `with`, gives
    memory back.

    last: what the last `generate` took, while it is under way, too; of several prompts, for each.
    batch: how many texts are written at once.
    """

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer | None, ends: frozenset[int],
                 configured: Mapping[str, Any], device: Device, options: Options,
                 cache_dir: str | Path | None, progress: Any, isolation: str | None,
                 batch: int | None = None) -> None:
        self.decoder, self.tokenizer, self.ends = decoder, tokenizer, ends
        self.configured, self.device, self.options = configured, device, options
        self._cache_dir, self._progress, self._isolation = cache_dir, progress, isolation
        self._kind = "f32" if options.precision == "high" else "f16"
        self._rows = rows_on(device)
        self._models: dict[tuple[int, str, int], Model] = {}
        self._made = tuple(f"new.{k}" for k in range(decoder.layers))
        self._lock = forking.rlock()
        self._cache, self._other = self._empty(), self._empty()    # other: of no conversation
        self._feeds = Feeds(decoder)
        self.batch = self._fitting() if batch is None else batch
        self.closed = False
        self.last: Generation | list[Generation] = Generation()
        self._forms: Forms | None = None

    def __repr__(self) -> str:
        d = self.decoder
        return (f"<jitcl.lm.LanguageModel {Path(d.weights.place).name} on {self.device.name}: "
                f"{type(d).__name__}, {d.layers} layers of {d.width}, {d.context} tokens>")

    # ---- text and tokens

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a text, with those that the model begins texts with."""
        return self._words.encode(text)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._words.decode(ids)

    @property
    def _words(self) -> Tokenizer:
        if self.tokenizer is None:
            place = self.decoder.weights.place
            lacks = "no tokenizer" if place.endswith(".gguf") else "no tokenizer.json"
            raise InputError(f"{place}: has {lacks}, so no text\n"
                             "  score(), embed() and logits() take token ids.")
        return self.tokenizer

    def _ids(self, prompt: Prompt) -> list[int]:
        """Checked tokens of whatever a prompt is."""
        if isinstance(prompt, (bytes, Mapping)) or not hasattr(prompt, "__iter__"):
            raise InputError(f"the prompt is of {type(prompt).__name__}: wanted a str, a list of "
                             "messages, or token ids")
        ids: list[Any] = (
            self._words.encode(prompt) if isinstance(prompt, str) else list(prompt))
        if ids and all(isinstance(p, Mapping) for p in ids):
            ids = self._words.conversation(ids)
        for k, t in enumerate(ids):
            if not (is_whole(t, 0) and t < self.decoder.vocabulary):
                raise InputError(f"token {k} of the prompt is {t!r}: wanted whole numbers from 0 "
                                 f"to {self.decoder.vocabulary - 1}, a str, or messages")
        if not ids:
            raise InputError("the prompt has no tokens: pass some text")
        return [int(t) for t in ids]

    # ---- generation

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = ..., **options: Any) -> str: ...

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **options: Any
                 ) -> Iterator[str]: ...

    @overload
    def generate(self, prompt: Sequence[Prompt], *, stream: Literal[False] = ..., **options: Any
                 ) -> list[str]: ...

    @overload
    def generate(self, prompt: Sequence[Prompt], *, stream: Literal[True], **options: Any
                 ) -> Iterator[tuple[int, str]]: ...

    def generate(  # type: ignore[misc]     # the overloads stand for these options
                 self, prompt: Prompt | Sequence[Prompt], *, max_new_tokens: int = 256,
                 temperature: float | None = None, top_k: int | None = None,
                 top_p: float | None = None, min_p: float | None = None,
                 repetition_penalty: float | None = None, seed: int | None = None,
                 stop: str | Sequence[str] = (), form: Form | None = None,
                 draft: LanguageModel | drafts.Draft | None = None, stream: bool = False
                 ) -> str | Iterator[str] | list[str] | Iterator[tuple[int, str]]:
        """The text that follows; with `stream`, an iterator of its pieces as they are written.

        prompt: a str to go on from, messages ({"role": .., "content": ..}), or token ids. What of
        it was in the last prompt or answer is not computed again. A list of several: the texts,
        each as it would be alone, or pairs of a text's number and a piece; `batch` at once.
        temperature, top_k, top_p, min_p, repetition_penalty: see `Sampling`; None: as
        generation_config.json says, else the likeliest token. seed: the same gives the same text on
        a device; None draws one. stop: strings before which the text ends.
        form: what the text has to be: JSON of a schema (a dict; {} is any JSON), or what a grammar
        says (a str as Lark has them); where `max_new_tokens` end it, it is the beginning of that.
        draft: who guesses what follows, for the model to look at in one step: "lookup", the text
        itself, or a smaller LanguageModel of the same tokens. The text is the same, but for ties
        that rounding decides.
        Ends at a token that ends texts, too, and where the model's context is full.

        Raises InputError, OptionError, and what running a model raises.
        """
        options = dict(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            min_p=min_p, repetition_penalty=repetition_penalty, seed=seed, stop=stop, form=form,
            draft=draft)
        if isinstance(prompt, (list, tuple)) and prompt and hasattr(prompt[0], "__len__") and (
                not isinstance(prompt[0], Mapping)):
            texts = [self.text(p, **options) for p in prompt]  # type: ignore[arg-type]
            found = self._written(texts, [t.done for t in texts])
            if stream:
                return found
            whole: list[list[str]] = [[] for _ in texts]
            for k, piece in found:
                whole[k].append(piece)
            return ["".join(pieces) for pieces in whole]
        text = self.text(prompt, **options)  # type: ignore[arg-type]
        pieces = (piece for _, piece in self._written([text], text.done))
        return pieces if stream else "".join(pieces)

    def text(self, prompt: Prompt, *, max_new_tokens: int = 256, seed: int | None = None,
             stop: str | Sequence[str] = (), form: Form | None = None,
             draft: LanguageModel | drafts.Draft | None = None, **sampling: Any) -> Text:
        """What `generate` is asked for, checked; `step` writes it."""
        drawn = Sampling.of(sampling, self.configured)
        several = hasattr(stop, "__iter__") and not isinstance(stop, str)
        stops: tuple[Any, ...] = tuple(stop) if several else (stop,)
        if any(not isinstance(s, str) or not s for s in stops):
            raise OptionError(f"stop={stop!r}: wanted strings that are not empty")
        whole_number("max_new_tokens", max_new_tokens)
        if seed is not None and not is_whole(seed, 0):
            raise OptionError(f"seed={seed!r}: wanted a whole number from 0, or None")
        drafts.checked(draft, self)
        ids = self._ids(prompt)
        if len(ids) >= self.decoder.context:
            raise InputError(f"the prompt has {len(ids)} tokens; the model takes "
                             f"{self.decoder.context}, and one is to follow\n  Shorten it.")
        written = None
        if form is not None:
            self._forms = self._forms or Forms(self._words, self.decoder.vocabulary, self.ends)
            written = self._forms.begin(form)
        return Text(ids, max_new_tokens, drawn, seed, Letters(self._words, stops), written, draft)

    def tokens(self, ids: Sequence[int], count: int, sampling: Sampling, seed: int | None = None
               ) -> Iterator[int]:
        """Tokens that follow, up to `count` of them, without the one that ends the text."""
        text = Text(ids, count, sampling, seed)
        self.last, told = text.done, 0
        while not text.ended:
            step(self, [text])
            yield from text.done.ids[told:]
            told = len(text.done.ids)
        if text.failure is not None:
            raise text.failure

    def _written(self, texts: Sequence[Text], last: Generation | list[Generation]
                 ) -> Iterator[tuple[int, str]]:
        """Pieces of texts, and whose they are: `batch` at a time, in their order."""
        self.last, going = last, [*enumerate(texts)]
        while going:
            step(self, [text for _, text in going[:self.batch]])
            for k, text in going[:self.batch]:
                if text.failure is not None:
                    raise text.failure
                yield from ((k, piece) for piece in text.told)
                text.told.clear()
            going = [(k, text) for k, text in going if not text.ended]

    # ---- numbers

    def score(self, text: str | Sequence[int], *, window: int | None = None) -> Score:
        """How likely the model finds each token of a text, after those before it.

        window: tokens that are looked at together, each window for itself and without the first
        token of it; the model's context at most, and by default.
        """
        size = self.decoder.context if window is None else window
        if not (is_whole(size, 2) and size <= self.decoder.context):
            raise OptionError(f"window={window!r}: wanted 2 to {self.decoder.context} tokens")
        ids = self._ids(text)
        if len(ids) < 2:
            raise InputError("score() takes two tokens or more: the first is not predicted")
        found = []
        for first in range(0, len(ids) - 1, size):
            part = ids[first:first + size]
            if len(part) > 1:
                logits = log_softmax(self._alone(part[:-1], "logits"))
                found.append(logits[np.arange(len(part) - 1), part[1:]])
        return Score(ids, np.concatenate(found))

    def embed(self, text: str | Sequence[int]) -> np.ndarray:
        """A text as a vector [width] of length 1: the mean of its tokens' last hidden states."""
        ids = self._ids(text)
        if len(ids) > self.decoder.context:
            raise InputError(f"the text has {len(ids)} tokens; the model takes "
                             f"{self.decoder.context}\n  Embed parts of it.")
        mean = self._alone(ids, "hidden").mean(axis=0, dtype=np.float64)
        return (mean / max(float(np.linalg.norm(mean)), 1e-12)).astype(np.float32)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """[tokens, vocabulary], float32: what the model says behind each token."""
        return self._alone(self._ids(ids), "logits")

    def _calibrate(self, text: Prompt) -> None:
        """Round packed weights for this text, in pieces of 256 tokens at most."""
        if self.options.weights is None:
            raise OptionError("calibrate: weights are rounded for a text where memory= says in how "
                              "many bits, such as {'bits': 4}")
        from jitcl.runtime.calibrated import calibrated  # a start does without it, and passes

        cache = kernel_cache(self._cache_dir)
        source, feeds = self.decoder.pieces(self._ids(text), ROWS[-1], cache.root)
        self.options = replace(self.options, memory=calibrated(
            source, self.options.weights, feeds, cache.for_target(open_device("cpu").target),
            self._progress))

    # ---- running

    def _empty(self) -> Cache:
        return Cache(self.decoder, np.float32 if self._kind == "f32" else np.float16, self.device)

    def _fitting(self) -> int:
        """Texts whose keys and values fit into a share of the host's memory, as long as they may
        be."""
        a_text = self._cache.nbytes / ROOM * self.decoder.context
        have = open_device("cpu").target.global_memory
        return max(1, min(BATCH, int(have * CACHE_SHARE / a_text))) if have else BATCH

    def _alone(self, ids: Sequence[int], give: str) -> np.ndarray:
        """What `give` says for a text that nothing is kept of."""
        with self._lock:
            if self._other.lost:
                self._other.renew()
            (slot,) = self._other.slots
            slot.shorten(0)
            return self._run(ids, give, slot)

    def _run(self, ids: Sequence[int], give: str, slot: Slot, sizes: Sequence[int] = (),
             then: Sequence[int] = ()) -> np.ndarray:
        """What `give` says for these tokens, behind those of `slot`, which grows by them: the
        kernels' rows are filled from the front, a few numbers of rows for all lengths. then: those
        of the next call."""
        found, sizes = [], sizes or self._rows
        with self._lock:
            while len(ids):
                rows = rows_for(len(ids), sizes)
                part, ids = list(ids[:rows]), ids[rows:]
                rest, past = ids or then, len(slot.ids) + len(part)
                more = rows_for(len(rest), sizes)
                behind = Tokens.of([rest[:more]], [past], more) if rest else None
                found.append(self._once([slot], [part], rows, give, behind)[:len(part)])
        return found[-1] if give == "next" else np.concatenate(found)

    def _together(self, slots: Sequence[Slot], ids: Sequence[int]) -> np.ndarray:
        """Logits [texts, vocabulary] behind a token of each text, in one run: of 2, 4, 8.. rows,
        of which some may be nobody's."""
        if len(slots) == 1:
            return self._run(ids, "next", slots[0])
        with self._lock:
            count = max(len(slots), min(self.batch, 1 << (len(slots) - 1).bit_length()))
            parts: list[list[int]] = [[] for _ in range(count)]
            row = slots[0].cache.first(slots, count)
            for slot, token in zip(slots, ids):
                parts[slot.index] = [token]
            return self._once(row, parts, 1, "logits")[[slot.index for slot in slots]]

    def _once(self, slots: Sequence[Slot], parts: list[list[int]], rows: int, give: str,
              behind: Tokens | None = None) -> np.ndarray:
        """A run with `rows` for new tokens of each of neighbouring slots, which grow by them. Where
        the device is lost, what lay there is computed again. behind: what the next run takes."""
        try:
            return self._computed(slots, parts, rows, give, behind)
        except DeviceError:
            cache = slots[0].cache
            if not cache.lost:
                raise
            for slot, ids in zip(cache.slots, cache.renew()):
                while ids:
                    count = rows_for(len(ids), self._rows)
                    part, ids = ids[:count], ids[count:]
                    self._computed([slot], [part], count, "next")
            return self._computed(slots, parts, rows, give)

    def _computed(self, slots: Sequence[Slot], parts: list[list[int]], rows: int, give: str,
                  behind: Tokens | None = None) -> np.ndarray:
        if self.closed:
            raise closed_error(repr(self))
        cache, past = slots[0].cache, [len(s.ids) for s in slots]
        cache.grow(tokens=max(map(int.__add__, past, map(len, parts))))
        room = cache.reads(slots)

        def bind(arrays: Mapping[str, Any]) -> Bound:
            found = self._model(rows, give, len(slots)).bind(
                {"keys": (len(slots), room + rows)}, inputs=arrays, keep=self._made)
            self.decoder.weights.give_back()
            return found

        bound = cache.bound((rows, give, len(slots)), slots, bind)
        if give == "next":
            bound.inputs["row"][...] = len(parts[0]) - 1
        self._feeds.fill(bound.inputs, parts, past, rows, room, behind)
        outputs = cache.run(bound, slots, parts, self._feeds.ahead)
        found: np.ndarray = outputs["hidden" if give == "hidden" else "logits"].copy()
        return found

    def _model(self, rows: int, give: str, texts: int = 1) -> Model:
        if (rows, give, texts) not in self._models:
            root = kernel_cache(self._cache_dir).root
            source = DecoderSource(self.decoder, rows, give, self._kind, root, texts)
            self._models[rows, give, texts] = _ForAnyPast(
                source, self.device, self.options, False, self._cache_dir, self._progress,
                self._isolation)
        return self._models[rows, give, texts]

    def close(self) -> None:
        """Give back memory; whatever else is asked then raises ClosedError. Twice is fine."""
        with self._lock:
            self.closed = True
            for model in self._models.values():
                model.close()
            self._models.clear()
            for cache in (self._cache, self._other):
                cache.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load(path: str | Path, *, device: str | Device | DeviceInfo | None = "auto",
         precision: str = "high", memory: Memory = "normal", isolation: str | None = None,
         cache_dir: str | Path | None = None, progress: Progress | None = None,
         adapter: str | Path | None = None, calibrate: Prompt | None = None,
         batch: int | None = None, tolerance: Tolerance | None = None) -> LanguageModel:
    """A language model of files that are there; nothing is downloaded.

    path: a folder as Hugging Face's save_pretrained() writes it, or a .gguf file. The other options
    are those of `jitcl.compile`; below "high" precision, keys and values are kept as f16. Kernels
    are written when they are first needed. adapter: a folder as peft's save_pretrained() writes
    LoRA's, which is added to the weights of a folder. calibrate: of memory={"bits": 4}, a text, or
    tokens, that weights are rounded for. batch: texts that are written at once, each of which has
    keys and values as long as the longest's; by default 8, fewer where a quarter of the host's
    memory would not hold them at full length.

    precision="auto" is "low", else "normal", else "high": the first whose logits behind each token
    of a text, that of `calibrate` or one that the model writes itself, are off by `tolerance` of
    the largest one at most (default 1e-2), or as a function of (logits, logits in f32) says.

    Raises ModelError, UnsupportedError, ShapeError, OptionError, DeviceError; JitclError where a
    library is missing (`pip install 'jitcl[lm]'`).
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"cannot load a {type(path).__name__}: pass the path of a folder as "
                         "Hugging Face's save_pretrained() writes it, or of a .gguf file")
    auto = precision == "auto"
    limit = limit_of(tolerance, auto)
    options = Options("high" if auto else precision, memory, "none")
    isolation = isolation_of(isolation)
    if options.layers:
        raise OptionError(f"precision={precision!r}: language models have one for all layers")
    if options.weights is not None and (options.weights.skip or options.weights.wide):
        raise OptionError("memory: skip and wide name nodes of ONNX models; language models have "
                          "none")
    if batch is not None:
        whole_number("batch", batch)
    tally = tally_of(progress)
    place = device_of(device, tally)
    cache = kernel_cache(cache_dir).for_target(place.target)
    read = _gguf if str(path).endswith(".gguf") else _folder
    found, tokenizer, ends, configured = read(Path(path), adapter, cache)

    def opened(options: Options) -> LanguageModel:
        return LanguageModel(found, tokenizer, ends, configured, place, options, cache_dir, tally,
                             isolation, batch)

    model = opened(options)
    if calibrate is not None and not (auto and options.weights is None):
        model._calibrate(calibrate)
    if not auto:
        return model
    options, text = model.options, None if calibrate is None else model._ids(calibrate)
    return lowest(model, text, limit, lambda p: opened(replace(options, precision=p, guard=None)))


def whole_number(name: str, value: Any) -> None:
    if not is_whole(value):
        raise OptionError(f"{name}={value!r}: wanted a whole number above 0")


_Parts = tuple[Decoder, Tokenizer | None, frozenset[int], Mapping[str, Any]]


def _folder(path: Path, adapter: str | Path | None, cache: DeviceCache) -> _Parts:
    config, weights = read_json(path / "config.json"), safetensors(path)
    configured = read_json(path / "generation_config.json", {})
    ends = configured.get("eos_token_id", config.get("eos_token_id"))
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(is_whole(t, -1) for t in ends):              # -1: none
        raise ModelError(f"{path}: 'eos_token_id' is {ends!r}: wanted token ids")
    weights = prefixed(config, weights)
    adapted = weights if adapter is None else Adapted(weights, Path(adapter))
    found = decoder(config, adapted, cache)
    return found, tokens.of_folder(path), frozenset(t for t in ends if t >= 0), configured


def _gguf(path: Path, adapter: str | Path | None, cache: DeviceCache) -> _Parts:
    if adapter is not None:                 # heads lie otherwise there, weights are packed
        raise UnsupportedError(f"{path}: adapter={str(adapter)!r}: adapters are for weights as "
                               "Hugging Face's folders have them\n  Pass the folder that the file "
                               "was made from.")
    file = Gguf(path, cache)
    return decoder(file.config(), file, cache), file.tokenizer, file.ends, {}

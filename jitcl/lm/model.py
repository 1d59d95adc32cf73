"""`jitcl.lm.load(...)` and the `LanguageModel` that it returns."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from jitcl import forking
from jitcl.devices.base import Device, DeviceInfo, Progress
from jitcl.devices.select import open_device
from jitcl.errors import InputError, OptionError, UnsupportedError, closed_error
from jitcl.lm import drafts, tokens
from jitcl.lm.adapters import Adapted
from jitcl.lm.architectures import decoder
from jitcl.lm.decoder import Decoder, DecoderSource
from jitcl.lm.forms import Form, Forms, Written
from jitcl.lm.gguf import Gguf
from jitcl.lm.gguf_tokens import of_metadata
from jitcl.lm.sampling import Sampling, log_softmax
from jitcl.lm.tokens import Message, Tokenizer, read_json
from jitcl.lm.weights import safetensors
from jitcl.passes.options import Memory, Options
from jitcl.runtime.arguments import device_of, isolation_of, tally_of
from jitcl.runtime.bound import Bound
from jitcl.runtime.cache import kernel_cache
from jitcl.runtime.calibrated import calibrated
from jitcl.runtime.model import Model

ROWS = (1, 16, 64, 256)                     # tokens that are computed at once, by kernels of each
ROOM = 256                                  # tokens that a cache grows by

Prompt = str | Sequence[int] | Sequence[Message]


@dataclass
class Generation:
    """What a text took to write. Seconds are of the wall clock, the first ones compile."""

    prompt_tokens: int = 0
    reused_tokens: int = 0                  # of the prompt, whose keys and values were there
    ids: list[int] = field(default_factory=list)        # new tokens
    finish: str = ""                        # "stop" (by a token or a string), "length", or not yet
    prefill_seconds: float = 0.0            # until the first token
    decode_seconds: float = 0.0             # of the others
    cache_bytes: int = 0
    guessed_tokens: int = 0                 # by a draft
    right_guesses: int = 0

    def __str__(self) -> str:
        new, rest = self.prompt_tokens - self.reused_tokens, max(0, len(self.ids) - 1)
        decode = rest / self.decode_seconds if rest and self.decode_seconds else 0.0
        prefill = new / self.prefill_seconds if self.prefill_seconds else 0.0
        drafts = (f"{self.right_guesses} of {self.guessed_tokens} guesses right; "
                  if self.guessed_tokens else "")
        return (f"prompt {self.prompt_tokens} tokens ({self.reused_tokens} reused), "
                f"{prefill:.1f} tokens/s; first token after {self.prefill_seconds:.3f} s; "
                f"{len(self.ids)} new tokens, {decode:.1f} tokens/s; {drafts}"
                f"cache {self.cache_bytes / 2**20:.1f} MiB")


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
        return math.exp(self.loss)


class _Past:
    """Keys and values of tokens, [room, heads, size] a layer, and runs that read them there.

    Places without a token hold finite numbers: they count for nothing, but 0 * NaN is NaN.
    """

    def __init__(self, decoder: Decoder, dtype: Any) -> None:
        self.ids: list[int] = []
        self.room = ROOM
        shape = (ROOM, decoder.shared, decoder.head_size)
        self.arrays = {f"past_{part}.{k}": np.zeros(shape, dtype)
                       for k in range(decoder.layers) for part in ("key", "value")}
        self.bound: dict[tuple[int, str], Bound] = {}

    def make_room(self, tokens: int) -> None:
        """For so many more."""
        first, wanted = len(self.ids), len(self.ids) + tokens
        if wanted <= self.room:
            return
        self.room = -(-wanted // ROOM) * ROOM
        self.unbind()
        for name, array in self.arrays.items():
            self.arrays[name] = np.zeros((self.room, *array.shape[1:]), array.dtype)
            self.arrays[name][:first] = array[:first]

    def extend(self, ids: Sequence[int], made: Mapping[str, np.ndarray]) -> None:
        first, last = len(self.ids), len(self.ids) + len(ids)
        for name, array in self.arrays.items():
            array[first:last] = made[name.removeprefix("past_")][:len(ids)]
        self.ids += ids

    def shorten(self, kept: int) -> None:
        """Forget all but the first tokens."""
        for array in self.arrays.values():
            array[kept:len(self.ids)] = 0
        del self.ids[kept:]

    def unbind(self) -> None:
        for bound in self.bound.values():
            bound.close()
        self.bound.clear()

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())


class _ForAnyPast(Model):
    """Compiled for all lengths of the past at once, which other models are when lengths go on
    changing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._families.grows.add(("past_key.0", 0))


class LanguageModel:
    """A language model on a device. Calls of several threads take turns; `close`, or `with`, gives
    memory back.

    last: what the last `generate` took, while it is under way, too.
    """

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer | None, ends: frozenset[int],
                 configured: Mapping[str, Any], device: Device, options: Options,
                 cache_dir: str | Path | None, progress: Any, isolation: str | None) -> None:
        self.decoder, self.tokenizer, self.ends = decoder, tokenizer, ends
        self.configured, self.device, self.options = configured, device, options
        self._cache_dir, self._progress, self._isolation = cache_dir, progress, isolation
        self._kind = "f32" if options.precision == "high" else "f16"
        self._models: dict[tuple[int, str], Model] = {}
        self._lock = forking.rlock()
        self._past, self._other = self._empty(), self._empty()     # other: of no conversation
        self.closed, self.last = False, Generation()
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
            raise InputError(f"{self.decoder.weights.place}: has no tokenizer.json\n"
                             "  Pass token ids, or add the file.")
        return self.tokenizer

    def _ids(self, prompt: Prompt) -> list[int]:
        """Checked tokens of whatever a prompt is."""
        if isinstance(prompt, str):
            ids = self._words.encode(prompt)
        elif prompt and all(isinstance(p, Mapping) for p in prompt):
            ids = self._words.conversation(prompt)  # type: ignore[arg-type]
        else:
            ids = list(prompt)  # type: ignore[arg-type]
        for k, t in enumerate(ids):
            if isinstance(t, bool) or not isinstance(t, (int, np.integer)) or (
                    not 0 <= t < self.decoder.vocabulary):
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

    def generate(  # type: ignore[misc]     # the overloads stand for these options
                 self, prompt: Prompt, *, max_new_tokens: int = 256,
                 temperature: float | None = None, top_k: int | None = None,
                 top_p: float | None = None, min_p: float | None = None,
                 repetition_penalty: float | None = None, seed: int | None = None,
                 stop: str | Sequence[str] = (), form: Form | None = None,
                 draft: LanguageModel | drafts.Draft | None = None, stream: bool = False
                 ) -> str | Iterator[str]:
        """The text that follows; with `stream`, an iterator of its pieces as they are written.

        prompt: a str to go on from, messages ({"role": .., "content": ..}), or token ids. What of
        it was in the last prompt or answer is not computed again.
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
        given = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                     repetition_penalty=repetition_penalty)
        sampling = Sampling.of(given, self.configured)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if any(not isinstance(s, str) or not s for s in stops):
            raise OptionError(f"stop={stop!r}: wanted strings that are not empty")
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or (
                max_new_tokens < 1):
            raise OptionError(f"max_new_tokens={max_new_tokens!r}: wanted a whole number above 0")
        drafts.checked(draft, self)
        ids = self._ids(prompt)
        if len(ids) >= self.decoder.context:
            raise InputError(f"the prompt has {len(ids)} tokens; the model takes "
                             f"{self.decoder.context}, and one is to follow\n  Shorten it.")
        written = None
        if form is not None:
            self._forms = self._forms or Forms(self._words, self.decoder.vocabulary, self.ends)
            written = self._forms.begin(form)
        done = Generation(len(ids))
        found = self._pieces(
            self._tokens(done, ids, max_new_tokens, sampling, seed, written, draft), stops, done)
        return found if stream else "".join(found)

    def tokens(self, ids: Sequence[int], count: int, sampling: Sampling, seed: int | None = None
               ) -> Iterator[int]:
        """Tokens that follow, up to `count` of them, without the one that ends the text."""
        return self._tokens(Generation(len(ids)), ids, count, sampling, seed)

    def _tokens(self, done: Generation, ids: Sequence[int], count: int, sampling: Sampling,
                seed: int | None, form: Written | None = None,
                draft: LanguageModel | drafts.Draft | None = None) -> Iterator[int]:
        random = np.random.default_rng(seed)
        self.last, begin = done, time.perf_counter()
        seen, guesses = list(ids), list[int]()
        known: list[np.ndarray] = []                # logits behind seen, then behind guesses
        while len(done.ids) < count and len(seen) < self.decoder.context:
            with self._lock:            # another text may have taken the cache meanwhile
                if not known:
                    room = min(count - len(done.ids), self.decoder.context - len(seen)) - 1
                    guesses = drafts.guesses(draft, seen, room) if done.ids else []
                    done.guessed_tokens += len(guesses)
                    known = list(self._next(seen, guesses, done))
                logits = known.pop(0)
                if form is not None:
                    logits = np.where(form.allowed(), logits, -np.inf)
                token = sampling.pick(logits, seen, random)
                if known and guesses.pop(0) == token:
                    done.right_guesses += 1
                else:
                    known = []
                now = time.perf_counter()
                if not done.ids:
                    done.prefill_seconds, begin = now - begin, now
                else:
                    done.decode_seconds = now - begin
                done.cache_bytes = self._past.nbytes
            if token in self.ends:
                done.finish = "stop"
                return
            done.ids.append(token)
            seen.append(token)
            yield token
            if form is not None:
                form.take(token)
                if form.whole:
                    done.finish = "stop"
                    return
        done.finish = "length"

    def _next(self, ids: list[int], guesses: list[int], done: Generation) -> np.ndarray:
        """Logits behind these tokens, and behind each guess. What the cache shares with them stays
        in it."""
        past = self._past.ids
        if past != ids[:-1]:
            self._past.shorten(next((k for k, (a, b) in enumerate(zip(past, ids[:-1])) if a != b),
                                    min(len(past), len(ids) - 1)))
        if not done.ids:
            done.reused_tokens = len(past)
        if guesses and len(past) == len(ids) - 1:
            return self._run([ids[-1], *guesses], "logits", self._past, (1 + drafts.GUESSES,))
        return self._run(ids[len(past):], "next", self._past)

    def _pieces(self, found: Iterator[int], stops: tuple[str, ...], done: Generation
                ) -> Iterator[str]:
        """Text of tokens, whole letters at a time; what may become a stop string waits."""
        words, held, ids, told = self._words, "", [], 0
        stream = words.stream()
        for token in found:
            ids.append(token)
            piece = stream.step(words.tokenizer, token) or ""
            told += len(piece)
            held += piece
            at = min((k for k in map(held.find, stops) if k >= 0), default=-1)
            if at >= 0:
                done.finish = "stop"
                if held[:at]:
                    yield held[:at]
                return
            kept = max((n for s in stops for n in range(1, len(s)) if held.endswith(s[:n])),
                       default=0)
            if len(held) > kept:
                yield held[:len(held) - kept]
                held = held[len(held) - kept:]
        held += words.decode(ids)[told:]    # letters of which the end is missing
        if held:
            yield held

    # ---- numbers

    def score(self, text: str | Sequence[int], *, window: int | None = None) -> Score:
        """How likely the model finds each token of a text, after those before it.

        window: tokens that are looked at together, each window for itself and without the first
        token of it; the model's context at most, and by default.
        """
        size = self.decoder.context if window is None else window
        if not 2 <= size <= self.decoder.context:
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
        cache = kernel_cache(self._cache_dir)
        source, feeds = self.decoder.pieces(self._ids(text), ROWS[-1], cache.root)
        self.options = replace(self.options, memory=calibrated(
            source, self.options.weights, feeds, cache.for_target(open_device("cpu").target),
            self._progress))

    # ---- running

    def _empty(self) -> _Past:
        return _Past(self.decoder, np.float32 if self._kind == "f32" else np.float16)

    def _alone(self, ids: Sequence[int], give: str) -> np.ndarray:
        """What `give` says for a text that nothing is kept of."""
        with self._lock:
            self._other.shorten(0)
            return self._run(ids, give, self._other)

    def _run(self, ids: Sequence[int], give: str, past: _Past, sizes: Sequence[int] = ROWS
             ) -> np.ndarray:
        """What `give` says for these tokens, behind those of `past`, which grows by them: the
        kernels' rows are filled from the front, a few numbers of rows for all lengths."""
        found = []
        with self._lock:
            if self.closed:
                raise closed_error(repr(self))
            while len(ids):
                rows = next((r for r in sizes if r >= len(ids)), sizes[-1])
                part, ids = list(ids[:rows]), ids[rows:]
                past.make_room(len(part))
                bound = past.bound.get((rows, give))
                feeds = self.decoder.feeds(part, len(past.ids), rows, past.room)
                if bound is None:
                    shapes = {"keys": feeds["keys"].shape}
                    bound = past.bound[rows, give] = self._model(rows, give).bind(
                        shapes, inputs=past.arrays)
                if give == "next":
                    feeds["row"] = np.array([len(part) - 1], np.int32)
                for name, array in feeds.items():
                    bound.inputs[name] = array
                outputs = bound.run()
                last = outputs["hidden" if give == "hidden" else "logits"]
                found.append(last[:len(part)].copy())
                past.extend(part, outputs)
        return found[-1] if give == "next" else np.concatenate(found)

    def _model(self, rows: int, give: str) -> Model:
        if (rows, give) not in self._models:
            root = kernel_cache(self._cache_dir).root
            source = DecoderSource(self.decoder, rows, give, self._kind, root)
            self._models[rows, give] = _ForAnyPast(
                source, self.device, self.options, False, self._cache_dir, self._progress,
                self._isolation)
        return self._models[rows, give]

    def close(self) -> None:
        """Give back memory; whatever else is asked then raises ClosedError. Twice is fine."""
        with self._lock:
            self.closed = True
            for model in self._models.values():
                model.close()
            self._models.clear()
            self._past, self._other = self._empty(), self._empty()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load(path: str | Path, *, device: str | Device | DeviceInfo | None = "auto",
         precision: str = "high", memory: Memory = "normal", isolation: str | None = None,
         cache_dir: str | Path | None = None, progress: Progress | None = None,
         adapter: str | Path | None = None, calibrate: Prompt | None = None) -> LanguageModel:
    """A language model of files that are there; nothing is downloaded.

    path: a folder as Hugging Face's save_pretrained() writes it, or a .gguf file. The other options
    are those of `jitcl.compile`; below "high" precision, keys and values are kept as f16. Kernels
    are written when they are first needed. adapter: a folder as peft's save_pretrained() writes
    LoRA's, which is added to the weights of a folder. calibrate: of memory={"bits": 4}, a text, or
    tokens, that weights are rounded for.

    Raises ModelError, UnsupportedError, ShapeError, OptionError, DeviceError; JitclError where a
    library is missing (`pip install 'jitcl[lm]'`).
    """
    options, isolation = Options(precision, memory, "none"), isolation_of(isolation)
    if options.layers:
        raise OptionError(f"precision={precision!r}: language models have one for all layers")
    if options.weights is not None and options.weights.skip:
        raise OptionError("memory: skip names nodes of ONNX models; language models have none")
    found, tokenizer, ends, configured = (
        _gguf(Path(path), adapter) if str(path).endswith(".gguf") else _folder(Path(path), adapter))
    tally = tally_of(progress)
    model = LanguageModel(found, tokenizer, ends, configured, device_of(device, tally), options,
                          cache_dir, tally, isolation)
    if calibrate is not None:
        model._calibrate(calibrate)
    return model


_Parts = tuple[Decoder, Tokenizer | None, frozenset[int], Mapping[str, Any]]


def _folder(path: Path, adapter: str | Path | None) -> _Parts:
    config, weights = read_json(path / "config.json"), safetensors(path)
    configured = read_json(path / "generation_config.json", {})
    ends = configured.get("eos_token_id", config.get("eos_token_id"))
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    adapted = weights if adapter is None else Adapted(weights, Path(adapter))
    return decoder(config, adapted), tokens.of_folder(path), frozenset(ends), configured


def _gguf(path: Path, adapter: str | Path | None) -> _Parts:
    if adapter is not None:                 # heads lie otherwise there, weights are packed
        raise UnsupportedError(f"{path}: adapter={str(adapter)!r}: adapters are for weights as "
                               "Hugging Face's folders have them\n  Pass the folder that the file "
                               "was made from.")
    file = Gguf(path)
    said = file.metadata
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    return (decoder(file.config(), file), of_metadata(said, file.place),
            frozenset(int(said[key]) for key in keys if key in said), {})

"""How texts come about: a step gives each of several texts its next token, in one run of the model.

A text is the same alone and beside others, but for what kernels of several rows round otherwise:
rows know nothing of each other, it draws from random numbers of its own, and its keys and values
lie in a slot of its own. It may come and go between any two steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from jitcl.forking import cached_property
from jitcl.lm import drafts
from jitcl.lm.cache import Slot
from jitcl.lm.forms import Written
from jitcl.lm.sampling import Sampling
from jitcl.lm.tokens import Tokenizer

if TYPE_CHECKING:
    from jitcl.devices.base import Device
    from jitcl.lm.model import LanguageModel

ROWS = (1, 16, 64, 256)                     # tokens that are computed at once, by kernels of each
MANY_ROWS, MANY_CORES = 1024, 64            # more, on GPUs with more cores than 256 keep busy


@dataclass
class Generation:
    """What a text took to write. Seconds are of the wall clock, the first ones compile."""

    prompt_tokens: int = 0
    reused_tokens: int = 0                  # of the prompt, whose keys and values were there
    ids: list[int] = field(default_factory=list)        # new tokens
    finish: str = ""                        # "stop" (by a token or a string), "length", or not yet
    prefill_seconds: float = 0.0            # until the first token
    decode_seconds: float = 0.0             # of the others
    cache_bytes: int = 0                    # of all slots
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


def rows_on(device: Device) -> tuple[int, ...]:
    """Of tokens, as ROWS."""
    target = device.target
    many = target.device_type == "gpu" and target.compute_units >= MANY_CORES
    return (*ROWS, MANY_ROWS) if many else ROWS


def rows_for(count: int, sizes: Sequence[int]) -> int:
    """Which of these rows take the first of `count` tokens. MANY_ROWS cost a lot: no more than half
    of them are for nobody."""
    if count <= MANY_ROWS // 2:
        sizes = [r for r in sizes if r < MANY_ROWS]
    return next((r for r in sizes if r >= count), sizes[-1])


class Letters:
    """Text of tokens, whole letters at a time; what may become a stop string waits."""

    def __init__(self, words: Tokenizer, stops: Sequence[str]) -> None:
        self._words, self._stops, self._stream = words, stops, words.stream()
        self._ids, self._told, self._held = list[int](), 0, ""
        self.stopped = False                # by a stop string

    def take(self, token: int) -> str:
        """What can be told since the last token."""
        self._ids.append(token)
        piece = self._stream.step(self._words.tokenizer, token) or ""
        self._told += len(piece)
        held = self._held + piece
        at = min((k for k in map(held.find, self._stops) if k >= 0), default=-1)
        if at >= 0:
            self.stopped = True
            return held[:at]
        kept = max((n for s in self._stops for n in range(1, len(s)) if held.endswith(s[:n])),
                   default=0)
        self._held = held[len(held) - kept:]
        return held[:len(held) - kept]

    def rest(self) -> str:
        """At the end: what waited, and letters of which a part is missing."""
        return self._held + self._words.decode(self._ids)[self._told:]


class Text:
    """One that is being written: `ids`, and up to `count` tokens behind them.

    told: pieces that nobody has fetched yet; done: what it took; failure: what ended it. letters:
    None where tokens alone are wanted, which `done.ids` are.
    """

    def __init__(self, ids: Sequence[int], count: int, sampling: Sampling, seed: int | None = None,
                 letters: Letters | None = None, form: Written | None = None,
                 draft: LanguageModel | drafts.Draft | None = None) -> None:
        self.seen, self.count, self.sampling = list(ids), count, sampling
        self.draft, self.done, self.told = draft, Generation(len(ids)), list[str]()
        self.slot: Slot | None = None
        self.failure: Exception | None = None
        self.known = list[np.ndarray]()     # logits behind seen, then behind guesses
        self.guesses = list[int]()
        self._letters, self._form = letters, form
        self._seed, self._begin = seed, 0.0

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng(self._seed)

    @property
    def ended(self) -> bool:
        return bool(self.done.finish) or self.failure is not None

    def missing(self, slot: Slot) -> list[int]:
        """Tokens that are to be computed in this slot, which forgets what it does not share."""
        if self._begin == 0.0:
            self._begin = time.perf_counter()
        kept = min(slot.shared(self.seen), len(self.seen) - 1)
        if kept < len(slot.ids):
            slot.shorten(kept)
        if self.slot is None:
            self.done.reused_tokens = kept
        self.slot = slot
        return self.seen[kept:]

    def guess(self, context: int) -> None:
        """What may follow the next token."""
        if self.done.ids and not (self.known or self.guesses or self.ended):
            room = min(self.count - len(self.done.ids), context - len(self.seen)) - 1
            self.guesses = drafts.guesses(self.draft, self.seen, room)

    def take(self, model: LanguageModel) -> None:
        """The next token, by the logits that are known."""
        done, logits = self.done, self.known.pop(0)
        if self._form is not None:
            logits = np.where(self._form.allowed(), logits, -np.inf)
        token = self.sampling.pick(logits, self.seen, lambda: self._random)
        if self.known and self.guesses.pop(0) == token:
            done.right_guesses += 1
        else:
            self.known, self.guesses = [], []
        now = time.perf_counter()
        if not done.ids:
            done.prefill_seconds, self._begin = now - self._begin, now
        else:
            done.decode_seconds = now - self._begin
        done.cache_bytes = model._cache.nbytes
        if token in model.ends:
            done.finish = "stop"
        else:
            done.ids.append(token)
            self.seen.append(token)
            self._tell(token)
            if self._form is not None:
                self._form.take(token)
                if self._form.whole:
                    done.finish = "stop"
            if len(done.ids) == self.count or len(self.seen) == model.decoder.context:
                done.finish = done.finish or "length"
        if done.finish and self._letters is not None and not self._letters.stopped:
            self._say(self._letters.rest())

    def _tell(self, token: int) -> None:
        if self._letters is not None:
            self._say(self._letters.take(token))
            if self._letters.stopped:
                self.done.finish = "stop"

    def _say(self, piece: str) -> None:
        if piece:
            self.told.append(piece)


def step(model: LanguageModel, texts: Sequence[Text]) -> None:
    """The next token of each text; of one whose prompt is not computed yet, a piece of that first,
    while other prompts wait. A failure is the text's own, or that of all in the same run."""
    for text in texts:              # without the lock: another thread may write with this as draft
        with _failing([text]):
            text.guess(model.decoder.context)
    with model._lock:
        with _failing(texts):
            if model._cache.lost:
                model._cache.renew()        # texts compute what they miss
        asked, ready = False, list[tuple[Text, Slot, int]]()
        for text in texts:
            if text.known or text.failure is not None:
                continue
            with _failing([text]):
                slot = _slot(model, text, texts)
                missing = text.missing(slot)
                if len(missing) > 1 and asked:
                    continue
                if len(missing) > 1:
                    asked = True
                    most = model._rows[-1]
                    logits = model._run(missing[:most], "next", slot,
                                        then=missing[most:2 * most])
                    text.known = [logits[-1]] if len(missing) <= most else []
                elif text.guesses:
                    text.done.guessed_tokens += len(text.guesses)
                    text.known = list(model._run([*missing, *text.guesses], "logits", slot,
                                                 (1 + drafts.GUESSES,)))
                else:
                    ready.append((text, slot, missing[0]))
        with _failing([t for t, _, _ in ready]):
            if ready:
                found = model._together([s for _, s, _ in ready], [t for _, _, t in ready])
                for (text, _, _), logits in zip(ready, found):
                    text.known = [logits]
        for text in texts:
            if text.known:
                with _failing([text]):
                    text.take(model)


@contextlib.contextmanager
def _failing(texts: Sequence[Text]) -> Iterator[None]:
    """What goes wrong ends these texts, and no others."""
    try:
        yield
    except Exception as failure:            # noqa: BLE001 - raised where the text is waited for
        for text in texts:
            text.failure, text.known = failure, []


def _slot(model: LanguageModel, text: Text, texts: Sequence[Text]) -> Slot:
    """The text's own where it still is that, else one that none of the others has."""
    slot, cache = text.slot, model._cache
    others = [t.slot for t in texts if t is not text and t.slot is not None]
    if slot is None or slot.cache is not cache or slot in others:
        return cache.slot(text.seen, others, model.batch)
    return slot

"""What runs read beside keys and values: places of tokens, and tokens embedded, which the host
gathers, many by several threads. What the next run wants is made while a device computes this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jitcl import config
from jitcl.lm.decoder import Decoder, Tokens

ROWS_AT_ONCE = 64               # tokens: what is made on the way stays in a core's cache
Places = tuple[list[int], int, int]             # tokens of the past, rows, room


class Feeds:
    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._known: tuple[Places, Mapping[str, np.ndarray]] = ([], 0, 0), {}
        self._next: Places = [], 0, 0
        self._wanted: Tokens | None = None
        self._embedded: tuple[Tokens, np.ndarray] | None = None

    def fill(self, inputs: Mapping[str, np.ndarray], parts: Sequence[Sequence[int]],
             past: list[int], rows: int, room: int, behind: Tokens | None) -> None:
        """As `Decoder.feeds` has them. behind: the tokens of the next run, where they are known."""
        at = past, rows, room
        places = self._known[1] if self._known[0] == at else self._decoder.places(*at)
        for name, array in places.items():
            inputs[name][...] = array
        self._next = [n + len(part) for n, part in zip(past, parts)], rows, room
        self._embed(inputs["x"], Tokens.of(parts, past, rows))
        self._wanted = behind

    def ahead(self) -> None:
        """Make what the run behind that of the last `fill` reads: when all kernels of that are
        enqueued. A thread that did it earlier would share Python's lock with the launches, which
        would wait for it up to 5 ms each time.
        """
        self._known = self._next, self._decoder.places(*self._next)
        if self._wanted is not None:
            x = np.empty((len(self._wanted.ids), self._decoder.width), np.float32)
            self._fill(x, self._wanted)
            self._embedded = self._wanted, x

    def _embed(self, x: np.ndarray, tokens: Tokens) -> None:
        embedded, self._embedded = self._embedded, None
        if embedded is not None and embedded[0].same(tokens):
            x[...] = embedded[1]
        else:
            self._fill(x, tokens)

    def _fill(self, x: np.ndarray, tokens: Tokens) -> None:
        ids, positions, embed = tokens.ids, tokens.positions, self._decoder.embed
        if len(ids) <= ROWS_AT_ONCE:
            x[...] = embed(ids, positions)
            return
        from concurrent.futures import ThreadPoolExecutor

        def part(first: int) -> None:
            some = slice(first, first + ROWS_AT_ONCE)
            x[some] = embed(ids[some], positions[some])

        firsts = range(0, len(ids), ROWS_AT_ONCE)
        with ThreadPoolExecutor(min(len(firsts), config.get("threads")), "jitcl-rows") as threads:
            list(threads.map(part, firsts))             # raises what one of them did

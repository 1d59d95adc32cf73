"""What runs read beside keys and values: places of tokens, and tokens embedded, which the host
gathers, many by several threads. What the next run wants is made while a GPU computes this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from jitcl import config, forking
from jitcl.lm.decoder import Decoder, Tokens
from jitcl.target import Target

ROWS_AT_ONCE = 64               # tokens: what is made on the way stays in a core's cache


Places = tuple[list[int], int, int]             # tokens of the past, rows, room


class Feeds:
    def __init__(self, decoder: Decoder, target: Target) -> None:
        self._decoder = decoder
        self._ahead = target.device_type == "gpu"       # a CPU's cores have no time for it
        self._begun: tuple[Tokens, int, Future[np.ndarray]] | None = None

        self._known: tuple[Places, Mapping[str, np.ndarray]] = ([], 0, 0), {}
        self._next: Places = [], 0, 0

    def fill(self, inputs: Mapping[str, np.ndarray], parts: Sequence[Sequence[int]],
             past: list[int], rows: int, room: int, behind: Tokens | None) -> None:
        """As `Decoder.feeds` has them; embed in a thread what will be wanted `behind` these."""
        at = past, rows, room
        places = self._known[1] if self._known[0] == at else self._decoder.places(*at)
        for name, array in places.items():
            inputs[name][...] = array
        self._next = [n + len(part) for n, part in zip(past, parts)], rows, room
        self._embed(inputs["x"], Tokens.of(parts, past, rows))
        if behind is not None and self._ahead:
            self._begin(behind)

    def ahead(self) -> None:
        """Make the places of the tokens behind those of the last `fill`."""
        self._known = self._next, self._decoder.places(*self._next)

    def _embed(self, x: np.ndarray, tokens: Tokens) -> None:
        begun, self._begun = self._begun, None
        if begun is not None and begun[0].same(tokens) and begun[1] == forking.generation:
            x[...] = begun[2].result()
        else:
            self._fill(x, tokens)

    def _begin(self, tokens: Tokens) -> None:
        from concurrent.futures import ThreadPoolExecutor  # texts of few tokens do without it

        def embedded() -> np.ndarray:
            x = np.empty((len(tokens.ids), self._decoder.width), np.float32)
            self._fill(x, tokens)
            return x

        thread = ThreadPoolExecutor(1, "jitcl-embedding")
        self._begun = tokens, forking.generation, thread.submit(embedded)
        thread.shutdown(wait=False)

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

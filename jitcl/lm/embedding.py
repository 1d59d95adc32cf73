"""Embedded tokens, which the host gathers: many by several threads, and those of a prompt's next
piece while a GPU computes this one.
"""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from jitcl import config, forking
from jitcl.lm.decoder import Decoder, Tokens
from jitcl.target import Target

ROWS_AT_ONCE = 64               # tokens: what is made on the way stays in a core's cache


class Embedding:
    def __init__(self, decoder: Decoder, target: Target) -> None:
        self._decoder = decoder
        self._ahead = target.device_type == "gpu"       # a CPU's cores have no time for it
        self._begun: tuple[Tokens, int, Future[np.ndarray]] | None = None

    def into(self, x: np.ndarray, tokens: Tokens, behind: Tokens | None) -> None:
        """Fill x [rows, width]; embed in a thread what will be wanted `behind` it."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0].same(tokens) and begun[1] == forking.generation:
            x[...] = begun[2].result()
        else:
            self._fill(x, tokens)
        if behind is not None and self._ahead:
            self._begin(behind)

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

"""Inference on batches of Ray Data: `dataset.map_batches(jitcl.ray.Predictor, ...)`.

Nothing of Ray is imported: a `Predictor` is a class whose objects take a batch of columns and give
one with more. Ray makes one in each worker process; those of a machine share the kernel cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jitcl.errors import InputError, OptionError
from jitcl.runtime.arguments import is_whole
from jitcl.runtime.model import Model, open_model


class Predictor:
    """Runs a model on batches.

    model: what `jitcl.compile` takes; bytes travel to other machines, a path must be there.
    columns: input's name -> column, where they are called otherwise. rows: how many rows the model
    is run with: larger batches are cut, and the last piece is filled up with copies of its last
    row, so that all workers need one plan. threads: of each worker's CPU path. options: those of
    `jitcl.compile`.

    Rows must not depend on each other: each input's and output's first axis is rows. Raises
    what `jitcl.compile` raises, OptionError for `rows` below 1.
    """

    def __init__(self, model: bytes | str | Path, *, columns: Mapping[str, str] | None = None,
                 rows: int = 256, threads: int | None = None, **options: Any) -> None:
        if not is_whole(rows):
            raise OptionError(f"Predictor: rows={rows!r}, wanted how many rows a run is to have")
        if threads is not None:
            os.environ["JITCL_THREADS"] = str(threads)          # the process is this worker's own
        self.rows, self.model = rows, open_model(model, **options)
        self.columns = {t.name: (columns or {}).get(t.name, t.name) for t in self.model.inputs}
        unknown = sorted(set(columns or {}) - set(self.columns))
        if unknown:
            raise InputError(f"Predictor: columns names {', '.join(unknown)}; the model's inputs "
                             f"are {', '.join(self.columns)}")

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch's columns and the model's outputs. InputError where a column is missing or
        columns have no equal count of rows.
        """
        lost = sorted(set(self.columns.values()) - set(batch))
        if lost:
            raise InputError(f"Predictor: the batch has no column {', '.join(lost)}; it has "
                             f"{', '.join(batch)}\n  Name them: columns={{input: column}}.")
        feeds = {name: _dense(batch[column], column) for name, column in self.columns.items()}
        counts = {len(x) for x in feeds.values()}
        if len(counts) != 1:
            raise InputError(f"Predictor: columns of {sorted(counts)} rows in one batch")
        pieces = list(_runs(self.model, feeds, counts.pop(), self.rows))
        return {**batch, **{t.name: np.concatenate([piece[t.name] for piece in pieces])
                            for t in self.model.outputs}}


def _dense(column: np.ndarray, name: str) -> np.ndarray:
    """One array: Ray gives rows of arrays as objects where their shapes may differ."""
    array = np.asarray(column)
    if array.dtype != object:
        return array
    try:
        return np.stack([np.asarray(row) for row in array])
    except ValueError as error:
        raise InputError(f"Predictor: rows of column '{name}' have different shapes: {error}"
                         ) from error


def _runs(model: Model, feeds: Mapping[str, np.ndarray], count: int, rows: int
          ) -> Iterator[dict[str, np.ndarray]]:
    """The model's outputs for `rows` rows at a time; an empty batch is one run of zeros."""
    for start in range(0, max(count, 1), rows):
        part = {name: x[start:start + rows] for name, x in feeds.items()}
        have = min(rows, count - start)
        if have < rows:
            part = {name: np.concatenate([x, np.repeat(x[-1:], rows - have, axis=0)]) if have
                    else np.zeros((rows, *x.shape[1:]), x.dtype) for name, x in part.items()}
        if not start:           # a plan for these shapes alone, which is the fastest
            model.prepare({name: x.shape for name, x in part.items()})
        yield {name: y[:have] for name, y in model.run(part).items()}


__all__ = ["Predictor"]

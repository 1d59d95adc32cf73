"""Ops of ai.onnx.ml with maps and strings that onnx.reference has not, or otherwise than
onnxruntime: they run on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]
Keys = Sequence[Any] | None


class ZipMap(OpRun):
    """Each row of scores as a map from label to score, in the labels' order; a vector is one row.
    """

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, classlabels_int64s: Keys = None, classlabels_strings: Keys = None
             ) -> tuple[list[dict[Any, float]]]:
        keys = list(classlabels_strings or classlabels_int64s or ())
        rows = x.reshape(1, -1) if x.ndim == 1 else x
        if rows.ndim != 2 or rows.shape[1] != len(keys):
            raise ValueError(f"scores {list(x.shape)} have not one column for each of {len(keys)} "
                             "labels")
        order = sorted(range(len(keys)), key=keys.__getitem__)
        make = _maps_of(tuple(keys[k] for k in order))
        return (make(zip(*rows[:, order].T.tolist())) if keys else [{} for _ in rows],)


@functools.lru_cache(maxsize=64)
def _maps_of(names: tuple[Any, ...]) -> Callable[[Iterable[Any]], list[dict[Any, float]]]:
    """`[{n0: v0, n1: v1, ...} for v0, v1, ... in rows]` with these names: with as many rows as
    predictions have, a display takes 0.4 of the time of dict(zip(names, row)).
    """
    values = [f"v{k}" for k in range(len(names))]
    pairs = ", ".join(f"n{k}: {v}" for k, v in enumerate(values))
    bound = {f"n{k}": name for k, name in enumerate(names)}     # names are data, never text
    found: Any = eval(f"lambda rows: [{{{pairs}}} for {', '.join(values)}, in rows]", bound)
    return found


class CategoryMapper(OpRun):
    """Strings to the integers beside them, or back."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, cats_int64s: Keys = None, cats_strings: Keys = None,
             default_int64: int | None = None, default_string: str | None = None) -> tuple[Array]:
        numbers, texts = cats_int64s or (), cats_strings or ()
        if len(numbers) != len(texts):
            raise ValueError(f"{len(numbers)} integers for {len(texts)} strings")
        if x.dtype.kind in "iu":
            back = dict(zip(numbers, texts))
            other = "_Unused" if default_string is None else default_string
            found = np.array([back.get(v, other) for v in x.ravel().tolist()], object)
            return (found.reshape(x.shape),)
        table = dict(zip(texts, numbers))
        missing = -1 if default_int64 is None else default_int64
        keys = (v.decode() if isinstance(v, bytes) else str(v) for v in x.ravel().tolist())
        return (np.array([table.get(k, missing) for k in keys], np.int64).reshape(x.shape),)


class CastMap(OpRun):
    """A map from integers as one row: its values in the order of its keys (DENSE), or at them."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Mapping[int, Any], cast_to: str = "TO_FLOAT", map_form: str = "DENSE",
             max_map: int = 1) -> tuple[Array]:
        convert: Any = {"TO_FLOAT": float, "TO_INT64": int, "TO_STRING": str}[cast_to or "TO_FLOAT"]
        dtype: Any = {float: np.float32, int: np.int64, str: object}[convert]
        keys = sorted(x)
        if (map_form or "DENSE") == "DENSE":
            return (np.array([[convert(x[k]) for k in keys]], dtype),)
        row = np.full((1, max_map), "" if convert is str else 0, dtype)
        for key in keys:
            if not 0 <= key < max_map:
                raise ValueError(f"key {key} is outside 0 .. {max_map - 1}, as max_map says")
            row[0, key] = convert(x[key])
        return (row,)


class DictVectorizer(OpRun):
    """A map's values in the order of a vocabulary, 0 for keys that it has not."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Any, int64_vocabulary: Keys = None, string_vocabulary: Keys = None
             ) -> tuple[Array]:
        keys = string_vocabulary or int64_vocabulary or ()
        maps = [x] if isinstance(x, Mapping) else list(x)
        sample = next((v for m in maps for v in m.values()), 0.0)
        empty: Any = "" if isinstance(sample, str) else 0
        dtype: Any = object if isinstance(sample, str) else (
            np.int64 if isinstance(sample, int) else getattr(sample, "dtype", np.float32))
        return (np.array([[m.get(k, empty) for k in keys] for m in maps], dtype),)


class OneHotEncoder(OpRun):
    """A row of zeros and a one for each category; as onnx.reference has it, without its loop over
    elements: rows are looked up as bytes, and joined.
    """

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, cats_int64s: Keys = None, cats_strings: Keys = None,
             zeros: int | None = 1) -> tuple[Array]:
        categories = list(cats_int64s or cats_strings or ())
        if not categories:
            raise ValueError("neither cats_int64s nor cats_strings has a category")
        ones = np.eye(len(categories), dtype=np.float32)
        rows = {category: row.tobytes() for category, row in zip(categories, ones)}
        values = x.ravel().tolist()
        if not zeros and not rows.keys() >= set(values):
            odd = next(v for v in values if v not in rows)
            raise ValueError(f"zeros is 0, and {odd!r} is none of the {len(rows)} categories")
        none = bytes(ones[0].nbytes)
        try:
            found = itemgetter(*values, values[0])(rows)[:-1]   # 0.7 of the time of map(rows.get)
        except (KeyError, IndexError):                          # other values, or none
            found = map(rows.get, values, repeat(none))
        joined = bytearray().join(found)
        return (np.frombuffer(joined, np.float32).reshape(*x.shape, len(categories)),)


OPS = [ZipMap, CategoryMapper, CastMap, DictVectorizer, OneHotEncoder]

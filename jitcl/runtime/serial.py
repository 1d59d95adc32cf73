"""`Plan` as bytes and back, for the kernel cache: JSON, and the constants raw behind it.

    0   8s   magic "JITCLPLN"            16  u64  where the constants start
    8   u64  bytes of the JSON           24       JSON: {"schema", "plan", "constants", "extra"}
                                         ...      constants, each on a 64-byte boundary

A plan read from a mapped cache entry uses the constants where they are: nothing is copied. Those
that plans share (`Plan.weights`) are named by their digests and lie elsewhere. Nothing in the
bytes is executed. `schema` holds the fields' names: a plan that was written by another version of
jitcl is refused (the cache's keys hold the code version, so it never happens there).
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.errors import CacheError
from jitcl.ir.group import Watched
from jitcl.ir.indices import IndexCheck
from jitcl.ir.size_formulas import Formula
from jitcl.ir.sizes import Atom, Size, Space

MAGIC = b"JITCLPLN"
ALIGN = 64
_FIXED = struct.Struct("<8sQQ")
_RECORDS = {cls.__name__: cls for cls in (
    KernelSource, Step, BufferSpec, TensorSpec, IndexCheck, Watched)}
_LEAVES = (int, str, bool)
_NAMES = {cls: name for name, cls in _RECORDS.items()}
_SCHEMA = {cls.__name__: [f.name for f in dataclasses.fields(cls)]
           for cls in (Plan, *_RECORDS.values())}


def encode(plan: Plan, extra: Any = None) -> list[bytes | bytearray | memoryview]:
    """Pieces whose concatenation is the plan; the cache's `put` takes them without a copy.

    `extra`: any JSON value to keep with the plan. Raises CacheError for a field that is not plain
    data.
    """
    places: list[list[Any]] = []
    pieces: list[bytes | bytearray | memoryview] = []
    offset = 0
    for buffer, array in plan.constants.items():
        data = little_endian(array, buffer)
        if buffer in plan.weights:
            places.append([buffer, data.dtype.str, list(data.shape), plan.weights[buffer]])
            continue
        places.append([operator.index(buffer), data.dtype.str, list(data.shape), offset])
        padding = bytes(-data.nbytes % ALIGN)
        pieces += [data.reshape(-1).view(np.uint8).data, padding]
        offset += data.nbytes + len(padding)
    fields = {f.name: _plain(getattr(plan, f.name), f.name)
              for f in dataclasses.fields(plan) if f.name not in ("constants", "space", "weights")}
    document = {"schema": _SCHEMA, "plan": fields, "constants": places, "extra": extra,
                "space": space_rows(plan.space) if plan.space is not None else None}
    try:
        text = json.dumps(document, separators=(",", ":")).encode()
    except TypeError as error:
        raise CacheError(f"'extra' of a plan is no JSON value: {error}") from error
    start = -(-(_FIXED.size + len(text)) // ALIGN) * ALIGN
    head = (_FIXED.pack(MAGIC, len(text), start) + text).ljust(start, b"\0")
    return [head, *pieces]


def decode(data: bytes | memoryview, shared: Callable[[str], np.ndarray[Any, Any]] | None = None
           ) -> tuple[Plan, Any]:
    """(plan, extra). Constants are read-only views into `data`, which they keep alive; those that
    plans share are views of what `shared` gives for their digests: bytes, as an array.

    They are aligned to 64 bytes if `data` is, as every mapped cache entry is. Raises CacheError for
    bytes that are not a plan of this version, and what `shared` does.
    """
    view = memoryview(data).toreadonly()
    if len(view) < _FIXED.size or bytes(view[:8]) != MAGIC:
        raise CacheError("these bytes are not a plan: they do not start with JITCLPLN")
    _, length, start = _FIXED.unpack_from(view)
    document = json.loads(bytes(view[_FIXED.size:_FIXED.size + length]))
    if document["schema"] != _SCHEMA:
        raise CacheError("the plan was written by another version of jitcl: clear the cache")
    constants, weights = {}, {}
    for buffer, dtype, shape, offset in document["constants"]:
        kind = np.dtype(dtype)
        count = math.prod(shape)
        if isinstance(offset, str):
            if shared is None:
                raise CacheError("the plan's weights lie elsewhere")
            weights[buffer] = offset
            constants[buffer] = shared(offset).view(kind).reshape(shape)
            continue
        constants[buffer] = (
            np.frombuffer(view, kind, count, start + offset) if count else np.empty(0, kind)
        ).reshape(shape)
        constants[buffer].flags.writeable = False
    space = space_of(document["space"]) if document["space"] is not None else None
    fields = {name: _restored(value, space) for name, value in document["plan"].items()}
    return Plan(**fields, constants=constants, weights=weights, space=space), document["extra"]


def little_endian(array: np.ndarray[Any, Any], buffer: int) -> np.ndarray[Any, Any]:
    """The array, C-contiguous and little-endian. bfloat16 and low types come as their bits."""
    data = np.asarray(array, order="C")
    if data.dtype.kind not in "biufc":
        raise CacheError(f"constant of buffer {buffer} has NumPy dtype {data.dtype}, "
                         "wanted numbers or bool (ml_dtypes as their bits)")
    return data.astype(data.dtype.newbyteorder("<"), copy=False)


def _plain(value: Any, where: str) -> Any:
    """A field as JSON: a tuple as a list, records as {"of": class, "rows": [[fields] ...]}."""
    if type(value) is Size:
        return {"size": size_row(value)}
    if value is None or isinstance(value, (str, bool, float)):
        return value
    if isinstance(value, tuple):
        if value and type(value[0]) in _NAMES:
            return _rows(value, where)
        return [_plain(v, where) for v in value]
    try:
        return operator.index(value)
    except TypeError:
        raise CacheError(f"field '{where}' of a plan holds a {type(value).__name__}, "
                         "wanted text, numbers and tuples of them") from None


def _rows(records: tuple[Any, ...], where: str) -> dict[str, Any]:
    cls = type(records[0])
    if any(type(r) is not cls for r in records):
        raise CacheError(f"field '{where}' of a plan mixes {cls.__name__} with other classes")
    name = _NAMES[cls]
    rows = [[_plain(getattr(r, f), f"{where}.{f}") for f in _SCHEMA[name]] for r in records]
    return {"of": name, "rows": rows}


def _restored(value: Any, space: Space | None) -> Any:
    if type(value) is list:
        return tuple([v if type(v) in _LEAVES else _restored(v, space) for v in value])
    if not isinstance(value, dict):
        return value
    if "size" in value:
        return size_of(value["size"], space)
    cls = _RECORDS[value["of"]]
    return tuple([cls(*[v if type(v) in _LEAVES else _restored(v, space) for v in row])
                  for row in value["rows"]])


# ---- sizes, of plans for many shapes

def size_row(size: Any) -> Any:
    """A size as JSON: its hint and its terms; a number as it is."""
    if type(size) is not Size:
        return size
    return [size.hint, [[list(monomial), k] for monomial, k in size.key]]


def size_of(row: Any, space: Space | None) -> Any:
    """What `size_row` wrote; CacheError where it is damaged."""
    if not isinstance(row, list):
        return row
    value, terms = row
    if space is None or any(n >= len(space.atoms) for monomial, _ in terms for n in monomial):
        raise CacheError("a size of a plan names no symbol of it")
    return Size(space, {tuple(monomial): k for monomial, k in terms}, value)


def space_rows(space: Space) -> dict[str, Any]:
    atoms = [[a.symbol, size_row(a.numerator), size_row(a.denominator), a.hint, a.low, a.high,
              a.how, _formula_row(a.formula)] for a in space.atoms]
    return {"atoms": atoms, "guards": [[how, size_row(size)] for how, size in space.guards]}


def _formula_row(x: Any) -> Any:
    """A formula as JSON; what else stands in one as it is."""
    if isinstance(x, Formula):
        return {"formula": [x.op, x.dtype, *map(_formula_row, x.operands)]}
    return size_row(x)


def _formula_of(row: Any, space: Space) -> Any:
    """What `_formula_row` wrote."""
    if isinstance(row, dict):
        op, dtype, *operands = row["formula"]
        return Formula(op, dtype, tuple(_formula_of(x, space) for x in operands))
    return size_of(row, space)


def space_of(rows: dict[str, Any]) -> Space:
    """A space that asks no more."""
    space = Space()
    for symbol, numerator, denominator, value, low, high, how, formula in rows["atoms"]:
        space.atoms.append(Atom(symbol, size_of(numerator, space), size_of(denominator, space),
                                value, low, high, how, _formula_of(formula, space)))
    for how, row in rows["guards"]:
        space.guards[how, size_of(row, space)] = None
    space.sealed = True
    return space

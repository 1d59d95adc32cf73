"""Ops on the host that compute nothing: what is in a sequence or an optional, and Identity.

They are written here as they need no onnx at a warm start, and as onnx.reference (1.23) inserts at
the end of a sequence as if at its beginning, fails to insert by position into an empty one, and
makes of Optional a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitcl.errors import ModelError

HostOp = Callable[[str, Sequence[Any]], Any]


def _insert(node: str, operands: Sequence[Any]) -> list[Any]:
    sequence = _sequence(node, "SequenceInsert", operands)
    at = len(sequence)
    if len(operands) > 2 and operands[2] is not None:
        at = _position(node, "SequenceInsert", operands[2], len(sequence), 1)
    return [*sequence[:at], operands[1], *sequence[at:]]


def _erase(node: str, operands: Sequence[Any]) -> list[Any]:
    sequence = _sequence(node, "SequenceErase", operands)
    at = len(sequence) - 1
    if len(operands) > 1 and operands[1] is not None:
        at = _position(node, "SequenceErase", operands[1], len(sequence), 0)
    return [v for i, v in enumerate(sequence) if i != at]


def _at(node: str, operands: Sequence[Any]) -> Any:
    sequence = _sequence(node, "SequenceAt", operands)
    return sequence[_position(node, "SequenceAt", operands[1], len(sequence), 0)]


def _length(node: str, operands: Sequence[Any]) -> np.ndarray:
    return np.array(len(_sequence(node, "SequenceLength", operands)), np.int64)


def _optional(node: str, operands: Sequence[Any]) -> Any:
    return operands[0] if operands else None


def _get(node: str, operands: Sequence[Any]) -> Any:
    if operands[0] is None:
        raise ModelError(f"node '{node}' (OptionalGetElement): the optional is empty\n"
                         "  Ask OptionalHasElement first, or feed a value.")
    return operands[0]


def _has(node: str, operands: Sequence[Any]) -> np.ndarray:
    return np.array(bool(operands) and operands[0] is not None)


def _sequence(node: str, op: str, operands: Sequence[Any]) -> list[Any]:
    if not isinstance(operands[0], list):
        raise ModelError(f"node '{node}' ({op}): got a {type(operands[0]).__name__}, wanted a "
                         "sequence")
    return operands[0]


def _position(node: str, op: str, value: Any, length: int, more: int) -> int:
    at = int(np.asarray(value).reshape(-1)[0])
    if not -length <= at < length + more:
        raise ModelError(f"node '{node}' ({op}): position {at} is outside a sequence of {length}")
    return at + length if at < 0 else at


SEQUENCE_OPS: Mapping[str, HostOp] = {
    "SequenceInsert": _insert, "SequenceErase": _erase, "SequenceAt": _at,
    "SequenceLength": _length, "SequenceConstruct": lambda node, operands: list(operands),
    "SequenceEmpty": lambda node, operands: [], "Optional": _optional,
    "OptionalGetElement": _get, "OptionalHasElement": _has,
    "Identity": lambda node, operands: operands[0]}

__all__ = ["SEQUENCE_OPS"]

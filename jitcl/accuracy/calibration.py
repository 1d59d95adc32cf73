"""Inputs to try: of a dict, an iterable of dicts, or a folder. Errors say which one is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from jitcl.errors import InputError
from jitcl.runtime.arguments import shown
from jitcl.runtime.array_files import files_of, read_npy, read_npz
from jitcl.runtime.inputs import check_feeds
from jitcl.runtime.source import Tensor
from jitcl.runtime.tensors import elements

MOST = 64                               # inputs that are taken of an iterable, or a folder
WANTED = "a dict of input name -> array, an iterable of such dicts, or a folder of .npz files"
Feeds = Mapping[str, Any]


def feeds_of_calibration(given: Any, inputs: Sequence[Tensor]) -> list[Feeds]:
    """Checked feeds. What an iterator gives is copied: it may fill the same arrays again."""
    if isinstance(given, Mapping):
        return [_checked(given, inputs, "")]
    if isinstance(given, (str, Path)):
        return [_checked(_of_file(f, inputs), inputs, f"'{f}': ")
                for f in files_of(Path(given), "calibrate")[:MOST]]
    if not isinstance(given, Iterable):
        raise InputError(f"calibrate: got {shown(given)}, wanted {WANTED}")
    found: list[Feeds] = []
    for k, feeds in enumerate(islice(given, MOST)):
        if not isinstance(feeds, Mapping):
            raise InputError(f"calibrate: element {k} of {shown(given)} is {shown(feeds)}, wanted "
                             f"{WANTED}")
        checked = _checked(feeds, inputs, f"element {k}: ")
        found.append(checked if isinstance(given, (list, tuple)) else copied(checked))
    if not found:
        raise InputError(f"calibrate: got {shown(given)} that gives nothing (an iterator gives "
                         f"what it has once), wanted {WANTED}")
    return found


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs or outputs that share no memory with what was given."""
    return {name: _copy(value) for name, value in values.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(v) for v in value]
    value = elements(value)
    return value.copy() if isinstance(value, (np.ndarray, dict)) else value


def _of_file(file: Path, inputs: Sequence[Tensor]) -> Feeds:
    if file.suffix.lower() == ".npz":
        return read_npz(file)
    required = [t for t in inputs if not t.optional]
    if len(required) != 1:
        raise InputError(f"calibrate: '{file}' is one array, and the model has {len(required)} "
                         f"inputs: {', '.join(map(str, required)) or 'none'}\n"
                         "  Give them by name, in an .npz.")
    return {required[0].name: read_npy(file)}


def _checked(feeds: Feeds, inputs: Sequence[Tensor], which: str) -> Feeds:
    try:
        return check_feeds(inputs, feeds)
    except InputError as error:
        raise InputError(f"calibrate: {which}{error}") from error


__all__ = ["copied", "feeds_of_calibration"]

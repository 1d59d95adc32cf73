"""Outputs for people: summaries, best classes, pictures; and for programs: .npy and .npz files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.cli.feeds import picture_axes
from jitcl.errors import InputError
from jitcl.ir.files import read_regular

MIN_CLASSES = 5              # vectors of so many elements show their best
MIN_PIXELS = 8               # height and width from which an output may be a picture


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Items of sequences under names of their own, "y[0]"; arrays, None and dicts as they are."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            found |= flattened({f"{name}[{i}]": v for i, v in enumerate(value)})
        else:
            found[name] = value
    return found


def words(value: Any, count: int = 6) -> str:
    """The first strings of an array of them, a map's first entries; "" of numbers."""
    if isinstance(value, dict):
        items = [f"{k!r}: {v!r}" for k, v in list(value.items())[:count]]
    elif isinstance(value, np.ndarray) and value.dtype == object:
        items = [repr(v) for v in value.reshape(-1)[:count].tolist()]
    else:
        return ""
    size = len(value) if isinstance(value, dict) else value.size
    return ", ".join(items) + (f" and {size - count} more" if size > count else "")


def summary(name: str, array: Any) -> dict[str, Any]:
    """Name, dtype, shape, and min, mean and max of what is finite (None where nothing is). Of
    strings and maps, their first words; an empty optional has the dtype "none".
    """
    if not isinstance(array, np.ndarray) or array.dtype == object:
        kind = "none" if array is None else "map" if isinstance(array, dict) else "string"
        shape = list(array.shape) if isinstance(array, np.ndarray) else []
        return {"name": name, "dtype": kind, "shape": shape, "min": None, "mean": None,
                "max": None, "not_finite": 0, "words": words(array)}
    row: dict[str, Any] = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape),
                           "min": None, "mean": None, "max": None, "not_finite": 0}
    if array.size:
        x = array.astype(np.float64)
        finite = x[np.isfinite(x)]
        row["not_finite"] = int(x.size - finite.size)
        if finite.size:
            row.update(min=float(finite.min()), mean=float(finite.mean()), max=float(finite.max()))
    return row


def best(array: Any, count: int = 5) -> list[tuple[int, float]]:
    """(index, value) of the largest of a class-like vector ([K], [1,K], [1,K,1,1]), else []."""
    if not isinstance(array, np.ndarray):
        return []
    if array.dtype.kind != "f" or array.size < MIN_CLASSES or array.size != max(array.shape):
        return []
    flat = array.reshape(-1).astype(np.float64)
    order = np.argsort(-flat, kind="stable")[:count]
    return [(int(i), float(flat[i])) for i in order]


def read_labels(path: Path) -> list[str]:
    """One name of a class a line."""
    try:
        return read_regular(path).decode("utf-8").splitlines()
    except (OSError, ValueError) as e:       # ValueError: not UTF-8, or a zero byte in the name
        raise InputError(f"cannot read labels '{path}': {e}") from e


def file_name(name: str) -> str:
    """A tensor's name as part of a file's name: "layer1/out:0" -> "layer1_out_0"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "output"


def _plain(array: np.ndarray) -> np.ndarray:
    """The array in types that .npy files know: bfloat16 and low floats as float32, low integers as
    int32, strings of a fixed length."""
    if array.dtype == object:
        return array.astype(str)
    dtype = dtypes.from_numpy(array.dtype) or ""
    foreign = dtype == "bf16" or dtype in dtypes.LOW
    return dtypes.converted(array, dtypes.compute(dtype)) if foreign else array


def save_arrays(outputs: Mapping[str, np.ndarray], where: Path) -> list[Path]:
    """All outputs into one .npz, one output into a .npy, or each into a .npy of a folder."""
    arrays = {n: _plain(a) for n, a in flattened(outputs).items() if isinstance(a, np.ndarray)}
    try:
        if where.suffix == ".npz":
            where.parent.mkdir(parents=True, exist_ok=True)
            with open(where, "wb") as file:
                np.savez(file, **arrays)              # type: ignore[arg-type]
            return [where]
        if where.suffix == ".npy":
            if len(arrays) != 1:
                raise InputError(f"{len(arrays)} outputs do not fit into one {where}: "
                                 "name a folder, or a .npz")
            where.parent.mkdir(parents=True, exist_ok=True)
            np.save(where, next(iter(arrays.values())))
            return [where]
        where.mkdir(parents=True, exist_ok=True)
        paths = _paths(arrays, where, ".npy")
        for path, array in zip(paths, arrays.values()):
            np.save(path, array)
        return paths
    except OSError as e:
        raise InputError(f"cannot write to '{where}': {e.strerror or e}") from e


def _paths(names: Mapping[str, Any], folder: Path, suffix: str) -> list[Path]:
    """A file for each name; names that look the same as files are numbered."""
    found: list[Path] = []
    for k, name in enumerate(names):
        path = folder / (file_name(name) + suffix)
        found.append(path if path not in found else folder / f"{file_name(name)}.{k}{suffix}")
    return found


def pictures(array: np.ndarray) -> tuple[list[np.ndarray], str]:
    """An output that looks like pictures as [height, width(, channels)] u8, and how it was scaled.

    0..1 and 0..255 are taken as they are (a little overshoot is clipped), -1..1 is shifted, and
    anything else is stretched from its least to its largest value. ([], "") for other outputs.
    """
    axes = picture_axes(array.shape)
    if axes is None or array.dtype.kind not in "fiu" or not array.size:
        return [], ""
    height, width = array.shape[axes[0]], array.shape[axes[1]]
    if min(height, width) < MIN_PIXELS or not np.isfinite(array).all():
        return [], ""
    x = array.astype(np.float64)
    x = x[None] if x.ndim == 3 else x
    if axes[2] < axes[0]:
        x = x.transpose(0, 2, 3, 1)
    x, how = _to_bytes(x, float(x.min()), float(x.max()))
    pixels = np.rint(np.clip(x, 0, 255)).astype(np.uint8)
    return [p[:, :, 0] if p.shape[2] == 1 else p for p in pixels], how


def _to_bytes(x: np.ndarray, low: float, high: float) -> tuple[np.ndarray, str]:
    if low >= -0.3 and high <= 1.3:
        return x * 255, "0..1"
    if low >= -1.3 and high <= 1.3:
        return (x + 1) * 127.5, "-1..1"
    if low >= -64 and high <= 320:
        return x, "0..255"
    return (x - low) / (high - low) * 255, f"stretched from {low:.3g}..{high:.3g}"


def save_pictures(outputs: Mapping[str, np.ndarray], folder: Path) -> list[tuple[Path, str]]:
    """(file, how it was scaled) of each output that looks like a picture, saved as PNG."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("--save-pictures needs Pillow: pip install pillow") from None
    saved = []
    for name, array in flattened(outputs).items():
        if not isinstance(array, np.ndarray):
            continue
        found, how = pictures(array)
        for k, pixels in enumerate(found):
            number = f".{k}" if len(found) > 1 else ""
            path = folder / f"{file_name(name)}{number}.png"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
            except OSError as e:
                raise InputError(f"cannot write '{path}': {e.strerror or e}") from e
            saved.append((path, how))
    return saved


def class_lines(found: Sequence[tuple[int, float]], labels: Sequence[str]) -> list[str]:
    """"  281  0.8132  tabby cat" for each of the best."""
    return [f"  {i:>5}  {v:<12.6g}{labels[i] if i < len(labels) else ''}".rstrip()
            for i, v in found]

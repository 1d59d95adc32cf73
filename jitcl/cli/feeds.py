"""What `-i NAME=FILE` means: arrays from .npy and .npz files, pictures, or numbers in JSON.

A picture becomes what the model's input looks like: NCHW or NHWC by where the input has 1, 3 or 4
channels, grey or colour by how many, resized where the model fixes height and width, floats scaled
to 0..1 unless --scale says otherwise. Several pictures for one input are a batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes
from jitcl.cli.options import full_shapes, only_input
from jitcl.errors import InputError
from jitcl.ir.files import check_regular
from jitcl.ir.types import Dim
from jitcl.runtime.array_files import read_npy, read_npz
from jitcl.runtime.arrays import as_array
from jitcl.runtime.inputs import random_feed

if TYPE_CHECKING:
    from jitcl.frontends.values import ValueType
    from jitcl.runtime.model import Model
    from jitcl.runtime.source import Tensor

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Scaling:
    """element = (pixel * scale - mean) / std, pixels being 0..255; mean and std are per channel.

    scale None: 1/255 for floats, 1 for integers.
    """

    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    bgr: bool = False

    def apply(self, pixels: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """Pixels [height, width, channels] u8 as elements of `dtype`."""
        channels = pixels.shape[2]
        for name, values in (("--mean", self.mean), ("--std", self.std)):
            if len(values) not in (0, 1, channels):
                raise InputError(f"{name} has {len(values)} numbers, the picture {channels} "
                                 "channels: give one number for all, or one for each")
        if self.bgr:
            pixels = pixels[:, :, ::-1]
        floats = dtypes.is_float(dtypes.from_numpy(dtype) or "")
        scale = self.scale if self.scale is not None else 1 / 255 if floats else 1.0
        x = pixels.astype(np.float64) * scale
        x = (x - np.array(self.mean or (0.0,))) / np.array(self.std or (1.0,))
        return (x if floats else np.rint(x)).astype(dtype)


def complete_feeds(model: Model, given: Sequence[str], scaling: Scaling,
                   shapes: Mapping[str, tuple[int, ...]], random: bool, seed: int
                   ) -> dict[str, np.ndarray]:
    """All inputs: from -i options, and with `random` numbers for the others; InputError for one
    that is missing.
    """
    feeds = read_feeds(model, given, scaling, shapes)
    missing = [t for t in model.inputs if t.name not in feeds and not t.optional
               and not (t.value is not None and t.value.kind == "optional")]
    odd = [t for t in missing if t.value is not None]
    if odd:
        raise InputError(f"input {odd[0]} was not given\n  Say what it is as JSON: -i "
                         f"{odd[0].name}='[...]'; random numbers make tensors only.")
    if missing and not random:
        raise InputError(f"input {missing[0]} was not given\n"
                         f"  Say where it is, -i {missing[0].name}=FILE, or take --random numbers.")
    if random:
        wanted = full_shapes(model, shapes, known=tuple(feeds))
        feeds |= {t.name: random_feed(t, wanted[t.name], seed)
                  for t in model.inputs if t.name in wanted}
    return feeds


def read_feeds(model: Model, given: Sequence[str], scaling: Scaling,
               shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Arrays by input name, of all `[NAME=]FILE` options. Raises InputError.

    `shapes` fixes what the model leaves open: a picture is resized to it.
    """
    inputs = {t.name: replace(t, shape=shapes.get(t.name, t.shape)) for t in model.inputs}
    found: dict[str, list[tuple[str, np.ndarray]]] = {}
    for text in given:
        name, value = _split(text, inputs)
        if not name and value.lower().endswith(".npz"):
            for key, array in read_npz(Path(value)).items():
                found.setdefault(key, []).append((value, array))
            continue
        name = name or only_input(model, "-i NAME=FILE")
        if name not in inputs:
            raise InputError(f"-i {text}: there is no input '{name}'; the inputs are "
                             f"{', '.join(map(str, model.inputs)) or 'none'}")
        found.setdefault(name, []).append((value, _read(value, inputs[name], scaling)))
    return {name: _joined(name, arrays) for name, arrays in found.items()}


def _split(text: str, inputs: Mapping[str, Any]) -> tuple[str, str]:
    """(name, value) of `[NAME=]VALUE`; names and files may hold "=" themselves."""
    for name in sorted(inputs, key=len, reverse=True):
        if text.startswith(name + "="):
            return name, text[len(name) + 1:]
    if "=" not in text or Path(text).exists():
        return "", text
    name, _, value = text.partition("=")
    return name, value


def _read(value: str, tensor: Tensor, scaling: Scaling) -> np.ndarray:
    path, kind = Path(value), Path(value).suffix.lower()
    if kind == ".npy":
        return read_npy(path)
    if kind == ".npz":
        arrays = read_npz(path)
        if tensor.name in arrays or len(arrays) == 1:
            return arrays.get(tensor.name, next(iter(arrays.values())))
        raise InputError(f"'{path}' has no array '{tensor.name}'; it has {', '.join(arrays)}")
    if kind in PICTURES:
        return _read_picture(path, tensor, scaling)
    if tensor.value is not None:
        return _from_json(value, tensor, tensor.value)
    try:
        numbers = json.loads(value)
    except (ValueError, RecursionError):
        raise InputError(
            f"-i {tensor.name}={value}: wanted a file (.npy, .npz, or a picture: "
            f"{', '.join(PICTURES)}), or numbers such as [1, 2, 3]") from None
    return as_array(numbers, tensor.dtype, f"-i {tensor.name}: input {tensor}")


def _from_json(value: str, tensor: Tensor, type: ValueType) -> Any:
    """Strings, sequences, optionals and maps: lists, null and objects of JSON."""
    try:
        return _built(json.loads(value), type)
    except (ValueError, TypeError, OverflowError, AttributeError, RecursionError):
        raise InputError(f"-i {tensor.name}={value}: wanted {type} as JSON: strings in quotes, a "
                         "list for a sequence, null for an empty optional") from None


def _built(raw: Any, type: ValueType) -> Any:
    if type.kind == "optional":
        return None if raw is None else _built(raw, type.of) if type.of else raw
    if type.kind == "sequence" and type.of is not None:
        return [_built(item, type.of) for item in list(raw)]
    if type.kind == "map":
        return {int(k) if dtypes.is_int(type.dtype) else k: v for k, v in raw.items()}
    return np.asarray(raw, object if type.dtype == "string" else dtypes.to_numpy(type.dtype))


def _joined(name: str, arrays: list[tuple[str, np.ndarray]]) -> np.ndarray:
    """One array, or several pictures as one batch."""
    if len(arrays) == 1:
        return arrays[0][1]
    if any(not v.lower().endswith(PICTURES) for v, _ in arrays):
        raise InputError(f"input '{name}' was given twice: {arrays[0][0]} and {arrays[1][0]}")
    shapes = {a.shape for _, a in arrays}
    if len(shapes) != 1:
        raise InputError(f"input '{name}': the pictures of a batch have different shapes, "
                         f"{' and '.join(map(str, sorted(shapes)))}")
    return np.concatenate([a for _, a in arrays])


def picture_axes(shape: Sequence[Dim]) -> tuple[int, int, int] | None:
    """Axes of (height, width, channels) of a picture of 3 or 4 axes; None where it is none."""
    if len(shape) not in (3, 4):
        return None
    lead = len(shape) - 3
    if shape[lead] in MODES or not isinstance(shape[lead], int) and shape[-1] not in MODES:
        return lead + 1, lead + 2, lead
    return (lead, lead + 1, lead + 2) if shape[-1] in MODES else None


def _read_picture(path: Path, tensor: Tensor, scaling: Scaling) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(f"reading '{path}' needs Pillow: pip install pillow") from None
    axes = picture_axes(tensor.shape)
    if axes is None:
        raise InputError(f"'{path}' is a picture, but input {tensor} is not shaped like one\n"
                         "  Wanted [N,C,H,W] or [N,H,W,C] with 1, 3 or 4 channels.")
    height, width, channels = (tensor.shape[a] for a in axes)
    try:
        with Image.open(check_regular(path)) as image:
            size = (width if isinstance(width, int) else image.width,
                    height if isinstance(height, int) else image.height)
            picture = image.convert(MODES[channels if isinstance(channels, int) else 3])
            if size != image.size:
                picture = picture.resize(size, Image.Resampling.BILINEAR)
            pixels = np.asarray(picture)
    except (UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as e:
        raise InputError(f"'{path}' is no picture that Pillow can read: {e}") from None
    except OSError as e:
        raise InputError(f"cannot read '{path}': {e.strerror or e}") from e
    x = scaling.apply(pixels.reshape(*pixels.shape[:2], -1), dtypes.to_numpy(tensor.dtype))
    if axes[2] < axes[0]:
        x = x.transpose(2, 0, 1)
    return np.ascontiguousarray(x[None] if len(tensor.shape) == 4 else x)

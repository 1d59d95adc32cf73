"""Arrays from .npy and .npz files: what can't be read is an InputError that names the file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from jitcl.errors import InputError
from jitcl.ir.files import check_regular

# what reading a damaged .npy or .npz raises; NotImplementedError: an archive packed otherwise
UNREADABLE = (ValueError, EOFError, MemoryError, NotImplementedError, OverflowError, SyntaxError,
              TypeError, zipfile.BadZipFile, zlib.error)


def files_of(folder: Path, given: str, hint: str = "") -> list[Path]:
    """The .npy and .npz files of a folder that was given for inputs, in the order of their names.
    given, hint: what errors begin with, and say where it is no folder.
    """
    if not folder.is_dir():
        raise InputError(f"{given}: '{folder}' is no folder{hint}")
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in (".npz", ".npy"))
    if not files:
        raise InputError(f"{given}: '{folder}' has no .npz or .npy file\n  An .npz holds all "
                         "inputs by name, an .npy the only one.")
    return files


def read_npy(path: Path) -> Any:
    """The array of a .npy; of a .npz, the open archive."""
    try:
        return np.load(check_regular(path), allow_pickle=False)
    except OSError as e:
        raise InputError(f"cannot read '{path}': {e.strerror or e}") from e
    except UNREADABLE as e:
        raise InputError(f"'{path}' holds no arrays as numpy.save writes them: {e}") from e


def read_npz(path: Path) -> dict[str, np.ndarray]:
    loaded = read_npy(path)
    if isinstance(loaded, np.ndarray):
        raise InputError(f"'{path}' is one array, not an archive: call it .npy")
    with loaded:
        try:
            return dict(loaded.items())
        except (OSError, *UNREADABLE) as e:
            raise InputError(f"'{path}' holds arrays that cannot be read: {e}") from e


__all__ = ["files_of", "read_npy", "read_npz"]

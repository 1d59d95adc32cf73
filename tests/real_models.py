"""Real models, which are not ours: a folder beside the repository has them, or tests skip."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"


def absent(name: str = "") -> str:
    """Why a model of this name, or any, can't be had, for skips; "" where it can. Where CI=true it
    must be had: FileNotFoundError, since nobody reads what a green run skipped.
    """
    wanted = MODELS / f"{name}.onnx" if name else MODELS
    if wanted.exists():
        return ""
    if os.environ.get("CI") == "true":
        raise FileNotFoundError(f"{wanted} is missing: real models are tested wherever CI=true. "
                                f"Put their folder there, or unset CI to skip these tests")
    return f"there is no {wanted}"


needs_models = pytest.mark.skipif(bool(absent()), reason=absent() or "they are there")


Arrays = dict[str, np.ndarray]


def goldens(name: str) -> list[tuple[Arrays, Arrays]]:
    """(feeds, expected outputs) of each golden run of a model, by name; the first alone is
    `goldens(name)[0]`. FileNotFoundError where there is none.
    """
    files = sorted((MODELS / "golden").glob(f"{name}.*.npz"))
    if not files:
        raise FileNotFoundError(f"{MODELS / 'golden'} has no run of {name}")
    found = []
    for file in files:
        with np.load(file) as z:
            feeds, outputs = ({k.split(":", 1)[1]: z[k] for k in z.files if k.startswith(part)}
                              for part in ("in", "out"))
        found.append((feeds, outputs))
    return found

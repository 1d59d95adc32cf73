"""Real models, which are not ours: a folder beside the repository has them, or tests skip."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.lacking import missing, unless

MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"


def absent(name: str = "") -> str:
    """Why a model of this name, or any, can't be had, for skips; "" where it can. Raises what
    `missing` does.
    """
    wanted = MODELS / f"{name}.onnx" if name else MODELS
    return "" if wanted.exists() else missing(str(wanted), "the models' folder belongs there")


needs_models = unless(not absent(), absent())


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

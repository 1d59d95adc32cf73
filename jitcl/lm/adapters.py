"""LoRA adapters (Hu et al., 2021) as the library peft saves them, added to a model's weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jitcl.errors import ModelError, ShapeError, UnsupportedError
from jitcl.ir.graph import Node
from jitcl.lm.settings import Settings
from jitcl.lm.tokens import read_json
from jitcl.lm.weights import Weights, loaded, safetensors
from jitcl.runtime.digests import digest

if TYPE_CHECKING:
    from jitcl.ops.builder import GraphBuilder

STEM = "base_model.model."                  # of the adapter's names
NEITHER = {"bias": "none", "use_dora": False, "lora_bias": False, "modules_to_save": None,
           "rank_pattern": {}, "alpha_pattern": {}, "layer_replication": None,
           "use_qalora": False, "alora_invocation_tokens": None}


class Adapted(Weights):
    """Weights to which an adapter is added: w + factor * B @ A, in float32. What it leaves alone
    stays packed as it is."""

    def __init__(self, weights: Weights, folder: Path) -> None:
        super().__init__()
        said = read_json(folder / "adapter_config.json")
        config = Settings(said, str(folder / "adapter_config.json"))
        config.only("peft_type", "LORA")
        for name, value in NEITHER.items():
            if said.get(name) not in (value, None, [], {}):
                raise UnsupportedError(f"{config.place}: {name} is {said[name]!r}: jitcl merges "
                                       "plain LoRA, A and B of each weight")
        rank = config.whole("r")
        self.factor: float = config.number("lora_alpha", rank) / (
            math.sqrt(rank) if said.get("use_rslora") else rank)
        self.turned = bool(said.get("fan_in_fan_out"))      # weights are [in, out]
        self.weights, self.place, self.read = weights, weights.place, weights.read
        self._pair = safetensors(folder, "adapter_model")
        self._config = json.dumps(said, sort_keys=True)
        self._names = self._changed(folder, rank)

    def _changed(self, folder: Path, rank: int) -> dict[str, tuple[str, str]]:
        """Weights that change, and their A [rank, in] and B [out, rank]."""
        found, left = {}, self._pair.names()
        for name in sorted(left):
            stem, part, end = name.partition(".lora_A.")
            if not part or end != "weight":
                continue
            pair = name, f"{stem}.lora_B.weight"
            weight = f"{stem.removeprefix(STEM)}.weight"
            if weight not in self.weights:
                raise ModelError(f"{folder}: changes '{weight}', which {self.place} does not have: "
                                 "it was made for another model")
            a, b = map(self._pair.shape, pair)
            own = self.weights.shape(weight)
            got = (*a[1:], *b[:1]) if self.turned else (*b[:1], *a[1:])
            if (a[:1], b[1:], got) != ((rank,), (rank,), own):
                raise ShapeError(f"{folder}: A {list(a)} and B {list(b)}, of rank {rank}, are for "
                                 f"a weight {list(got)}, but '{weight}' is {list(own)}")
            found[weight] = pair
            left -= {*pair}
        if left or not found:
            raise UnsupportedError(f"{folder}: has {sorted(left)[:3] or 'nothing'}: jitcl merges "
                                   "A and B of matrices, of one adapter")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    def names(self) -> set[str]:
        return self.weights.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.weights.shape(name)

    def rows(self, name: str, which: np.ndarray) -> np.ndarray:
        found = self.weights.rows(name, which)
        if name in self._names:
            a, b = (self._pair.array(n).astype(np.float32) for n in self._names[name])
            found = found + self.factor * (a[:, which].T @ b.T if self.turned else b[which] @ a)
        return found

    def made(self, g: GraphBuilder, *names: str) -> Node:
        if not any(name in self._names for name in names):
            return self.weights.node(g, *names)
        return loaded(lambda: np.concatenate(
            [self.rows(name, np.arange(self.shape(name)[0])) for name in names]))

    def mapped(self) -> list[np.ndarray]:
        return self.weights.mapped()

    def digest(self, root: Path) -> str:
        return digest("".join([self.weights.digest(root), self._pair.digest(root), self._config])
                      .encode())

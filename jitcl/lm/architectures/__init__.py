"""Architectures, a file each: what `config.json` names, and the block that it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitcl.errors import ModelError, UnsupportedError
from jitcl.lm.architectures.gemma import Gemma
from jitcl.lm.architectures.gpt2 import Gpt2
from jitcl.lm.architectures.llama import Llama
from jitcl.lm.architectures.phi3 import Phi3
from jitcl.lm.decoder import Decoder
from jitcl.lm.settings import Settings
from jitcl.lm.weights import Stored, Weights
from jitcl.runtime.cache import DeviceCache

ARCHITECTURES: dict[str, type[Decoder]] = {
    name: kind for kind in (Llama, Gpt2, Gemma, Phi3) for name in kind.classes}


def prefixed(config: Mapping[str, Any], weights: Stored) -> Stored:
    """Weights by an architecture's names, where a file leaves out the module that all but the head
    lies in, as OpenAI's GPT-2 does: "wte.weight" for "transformer.wte.weight"."""
    kind = ARCHITECTURES.get(str((config.get("architectures") or [""])[0]), Llama)
    stem, _, rest = kind.embedding.partition(".")
    if kind.embedding in weights or rest not in weights:
        return weights
    return Stored({n if n.startswith(kind.head) else f"{stem}.{n}": array
                   for n, array in weights.arrays.items()}, weights.files, weights.place)


def decoder(config: Mapping[str, Any], weights: Weights, cache: DeviceCache | None = None
            ) -> Decoder:
    """The model that a configuration describes. Raises UnsupportedError for an architecture that
    jitcl does not have, ModelError or ShapeError where configuration and weights do not fit; what
    `cache` knows to fit is not checked again."""
    place = weights.place
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise ModelError(f"{place}: the configuration names no 'architectures'")
    kind = ARCHITECTURES.get(str(names[0]))
    if kind is None:
        raise UnsupportedError(f"{place}: architecture '{names[0]}' is not supported: jitcl has "
                               f"{', '.join(sorted(ARCHITECTURES))}")
    found = kind(Settings(config, place), weights)
    found.check(cache)
    return found

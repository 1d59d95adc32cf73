"""What is known of a model before it is parsed, kept in the cache: its inputs and outputs, files
beside it, inputs whose values decide shapes, whether it runs as a program. And keys of its plans.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from jitcl import __version__, config
from jitcl.devices.base import Device
from jitcl.passes.options import Options
from jitcl.runtime.cache import DeviceCache, Key, code_version
from jitcl.runtime.digests import stamp
from jitcl.runtime.source import Source, Tensor


def load(source: Source, cache: DeviceCache) -> dict[str, Any]:
    """The signature from the cache, or of the source, which is parsed then."""
    stored = cache.get("model", _key(source))
    if stored is not None:
        raw = json.loads(stored)
        return {
            "inputs": tuple(Tensor.of_row(r) for r in raw["inputs"]), "by_value": raw["by_value"],
            "outputs": tuple(Tensor.of_row(r) for r in raw["outputs"]),
            "beside": tuple(raw["beside"]), "program": raw["program"]}
    inputs, outputs, beside = source.signature()
    found = {"inputs": inputs, "outputs": outputs, "beside": beside, "by_value": [],
             "program": False}
    store(source, cache, found)
    return found


def store(source: Source, cache: DeviceCache, found: Mapping[str, Any]) -> None:
    """Keep what `load` gives, with what was found out since."""
    raw = {
        "inputs": [t.row() for t in found["inputs"]],
        "outputs": [t.row() for t in found["outputs"]], "beside": list(found["beside"]),
        "by_value": list(found["by_value"]), "program": found["program"]}
    cache.put("model", _key(source), json.dumps(raw).encode())


def check_layers(source: Source, options: Options, cache: DeviceCache) -> None:
    """OptionError where options name layers that the model has not. What was checked once
    is not parsed for it again.
    """
    weights = options.weights
    named = (weights.skip, weights.wide) if weights is not None else ((), ())
    if not options.layers and not any(named):
        return
    from jitcl.passes.layers import check_layers as check

    key = Key({**_key(source).parts, "layers": json.dumps([options.layers, named])},
              f"layers of {source.name}")
    if cache.get("model", key) is None:
        check(f"model {source.name}", source.nodes(), options)
        cache.put("model", key, b"known")


def plan_key(source: Source, beside: tuple[str, ...], options: Options, device: Device,
             arrays: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> Key:
    """Of the plan for inputs of these shapes, and for the values of those that decide shapes."""
    shapes = {n: list(a.shape) for n, a in sorted(arrays.items())}
    by_value = {n: [v.dtype.str, v.tolist()] for n, v in sorted(values.items())}
    return Key(
        {
            "model": source.digest, "beside": stamp(beside), "shapes": json.dumps(shapes),
            "values": json.dumps(by_value), **options.key_parts(), **config.key_parts(),
            "faults": str(device.faults.epoch if device.faults is not None else 0),
            "code": code_version(), "jitcl": __version__},
        f"model {source.name}",
    )


def _key(source: Source) -> Key:
    return Key({"model": source.digest, "code": code_version()}, f"model {source.name}")


__all__ = ["check_layers", "load", "plan_key", "store"]

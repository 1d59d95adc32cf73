"""Weights that are packed for what they are multiplied with: the model runs on inputs to try, and
each layer's weights are rounded for the layer's inputs there.

All that layers read is asked for as outputs of the graph in which weights are packed, on the CPU
path, so that all devices get the same weights; they are kept in the cache, by model and inputs.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitcl.devices.base import Tally
from jitcl.devices.select import open_device
from jitcl.errors import InputError, NeedsValue, NotOneGraph, UnsupportedError
from jitcl.ir.graph import Graph, Node
from jitcl.passes.base import run_passes
from jitcl.passes.indices import take_checks
from jitcl.passes.layers import weight_bits
from jitcl.passes.options import Options
from jitcl.passes.pack_weights import PackWeights, Weight
from jitcl.passes.packing import Array, Packing, Rows, gptq
from jitcl.passes.pipeline import pipeline
from jitcl.runtime.cache import DeviceCache, Key, code_version
from jitcl.runtime.inputs import digest_of
from jitcl.runtime.model import Model
from jitcl.runtime.source import GraphSource, Source

SUMS = 2048                     # of each layer, that its weights are rounded for
Feeds = Mapping[str, Any]


def calibrated(source: Source, packing: Packing, feeds: Sequence[Feeds], cache: DeviceCache,
               tally: Tally, folded: bool = True) -> Packing:
    """The packing with rows that were rounded for these inputs (`gptq`). Look-ups are rounded to
    the nearest, and so are weights of several matrices in one. folded: whether scales are folded
    into weights before, as in plans; else weights are those that the model has.

    Raises what running the model raises, and UnsupportedError for one that is no single graph.
    """
    inputs = digest_of(feeds)
    key = Key({"model": source.digest, "code": code_version(), "of": "packed weights",
               "weights": packing.said, "inputs": inputs, "folded": str(folded)},
              f"packed weights of {source.name}")
    stored = cache.get("model", key)
    if stored is not None:
        return packing.calibrated(inputs, _read(stored))
    step = step_of(source, packing)
    seen: dict[str, tuple[Weight, list[list[Array]]]] = {}
    models: dict[Any, tuple[Model, Mapping[str, Weight]]] = {}
    try:
        for arrays in feeds:
            odd = [n for n, a in arrays.items() if not hasattr(a, "shape")]
            if odd:
                raise UnsupportedError(
                    f"calibrate: input '{odd[0]}' of model {source.name} is no tensor\n"
                    "  Leave calibrate= out: weights are then rounded to the nearest.")
            shapes = tuple((n, np.shape(a)) for n, a in sorted(arrays.items()))
            if shapes not in models:
                models[shapes] = _tapped(source, arrays, step, cache, tally, folded)
            model, weights = models[shapes]
            tally.now(f"running {source.name} for what its layers read")
            given = model.run({t.name: arrays[t.name] for t in model.inputs})
            for name, weight in weights.items():
                sums = list(weight.sums(np.asarray(given[name], np.float32),
                                        max(1, SUMS // len(feeds))))
                seen.setdefault(name, (weight, []))[1].append(sums)
    finally:
        for model, _ in models.values():
            model.close()
    found: dict[str, Rows] = {}
    for name, (weight, parts) in seen.items():
        tally.now(f"rounding weights: {len(found) + 1} of {len(seen)}")
        found[name] = _rounded(weight, parts, packing)
    cache.put("model", key, _written(found))
    return packing.calibrated(inputs, found)


def step_of(source: Source, packing: Packing) -> PackWeights:
    """The pass that packs a model's weights."""
    named = packing.skip or packing.wide
    return PackWeights(packing, weight_bits(source.nodes(), packing) if named else {})


def _tapped(source: Source, feeds: Feeds, step: PackWeights, cache: DeviceCache, tally: Tally,
            folded: bool) -> tuple[Model, Mapping[str, Weight]]:
    """A model that gives what each layer reads, by the identity of its weights."""
    graph, told = packable(source, feeds, step, folded)
    weights = step.weights(graph)
    read: dict[str, Node] = {n: x for n, w in weights.items() if (x := w.source) is not None}
    if not read:
        raise InputError(f"calibrate: model {source.name} has no weights that would be packed")
    tapped = Graph(graph.name, graph.inputs, tuple(read.items()), graph.origins)
    part = derived(tapped, source, [*told, sorted(read), folded])
    return Model(part, open_device("cpu"), Options("high"), False, cache.cache.root, tally), weights


def derived(graph: Graph, source: Source, told: Sequence[Any]) -> GraphSource:
    """A graph that was made of a model, with all that it was made by."""
    return GraphSource(graph, source.name, hashlib.sha256(repr(told).encode()).hexdigest())


def packable(source: Source, feeds: Feeds, step: PackWeights, folded: bool,
             otherwise: str = "Leave calibrate= out: weights are then rounded to the nearest."
             ) -> tuple[Graph, list[Any]]:
    """(the graph in which weights are packed, for the CPU path and inputs of these shapes; what it
    depends on). Raises UnsupportedError, which says what to do otherwise, for no single graph.
    """
    shapes = {name: np.shape(value) for name, value in feeds.items()}
    values: dict[str, Array] = {}
    while True:
        try:
            graph, _ = take_checks(source.graph(shapes, values), False)
            break
        except NeedsValue as error:
            values[error.input_name] = np.asarray(feeds[error.input_name])
        except NotOneGraph as error:
            raise UnsupportedError(
                f"calibrate: model {source.name} is computed in several parts: {error}\n"
                f"  {otherwise}") from None
    options = Options("high", step.packing)
    passes = pipeline(open_device("cpu").target, options, step.bits)
    graph = run_passes(graph, passes[:passes.index(step) if folded else 1])    # 1: constants
    return graph, [source.digest, shapes, sorted(values.items())]


def _rounded(weight: Weight, parts: Sequence[Sequence[Array]], packing: Packing) -> Rows:
    """parts: of each input, the sums' terms by groups of outputs."""
    rows = weight.rows(weight.node.inputs[weight.slot].data)
    groups = [np.concatenate(terms) for terms in zip(*parts)]
    packing = replace(packing, bits=weight.bits)
    found = [gptq(w, x, packing) for w, x in zip(np.split(rows, len(groups)), groups)]
    zeros = [f.zeros for f in found if f.zeros is not None]
    return Rows(packing.bits, np.concatenate([f.codes for f in found]),
                np.concatenate([f.scales for f in found]), np.concatenate(zeros) if zeros else None)


def _written(found: Mapping[str, Rows]) -> bytes:
    file = io.BytesIO()
    arrays = {f"{name} {part}": a for name, r in found.items()
              for part in ("bits", "codes", "scales", "zeros")
              if (a := getattr(r, part)) is not None}
    np.savez(file, **arrays)
    return file.getvalue()


def _read(data: bytes) -> dict[str, Rows]:
    with np.load(io.BytesIO(data)) as arrays:
        names = dict.fromkeys(n.split()[0] for n in arrays)
        return {n: Rows(int(arrays[f"{n} bits"]), arrays[f"{n} codes"], arrays[f"{n} scales"],
                        arrays[f"{n} zeros"] if f"{n} zeros" in arrays else None) for n in names}


__all__ = ["calibrated", "derived", "packable", "step_of"]

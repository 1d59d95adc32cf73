"""`memory={"bits": 4, "tolerance": 0.05}`: which weights take 8 bits or stay as they are, so that
outputs are within a tolerance of those of the model whose weights all stay, on inputs to try.

    1  are all in the bits that were asked for within the tolerance?
    2  else the effect of each layer's weights on outputs is measured, with these alone in few bits
    3  layers go up, to 8 bits or as they are, that do most for the bytes that this takes, as few as
       it takes; then each comes back down as far as it can, the dearest first
    4  what was found is compiled, checked on every input, and kept in the cache

It is done in f32 on the CPU path, so that all devices get the same weights. What is tried in 1 to 3
is one compiled model whose weights are inputs: it is fed what the codes stand for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from glob import escape
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.accuracy.auto import Runs, Search, Trial, error
from jitcl.accuracy.cure import fewest
from jitcl.devices.progress import Tally
from jitcl.devices.select import open_device
from jitcl.errors import InputError, UnsupportedError
from jitcl.frontends.onnx.packed import readers
from jitcl.ir.graph import Node, graph_input, rebuild
from jitcl.passes.layers import may_fold
from jitcl.passes.options import ALL, Held, Options
from jitcl.passes.pack_weights import SMALL, PackWeights, Weight
from jitcl.passes.packing import Array, Packing, Rows, key_of
from jitcl.runtime.cache import DeviceCache
from jitcl.runtime.calibrated import calibrated, derived, packable, step_of
from jitcl.runtime.model import Model
from jitcl.runtime.source import Source

KEPT, WIDE = 0, 8                       # bits of weights that stay, and of those that go up first
SIXTEENTH = 1 / 16                      # of an effect in 4 bits, in 8: that of the codes' steps
MOST = 1e9                              # of effects: beyond are infinities
OTHERWISE = ("Leave the tolerance out, and name the nodes that are to take 8 bits (wide), or whose "
             "weights stay (skip).")
log = logging.getLogger("jitcl")
Written = Callable[[Packing], Source]


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights that have the same bits: of the same rows, or of nodes with the same names. said:
    of all names those that say enough; bits: what was asked for; bytes: what they take, by bits.
    """

    names: tuple[str, ...]
    said: tuple[str, ...]
    bits: int
    bytes: Mapping[int, int]

    @property
    def levels(self) -> tuple[int, ...]:
        """Bits that it may have, the fewest first."""
        return tuple(dict.fromkeys((self.bits, WIDE, KEPT)))


@dataclass(frozen=True)
class Slot:
    """Weights that are an input of the model that is tried; key: the identity of their rows."""

    name: str
    weight: Weight
    w: Node
    key: str



def held(source: Source, packing: Packing, trial: Trial, rounded: bool, cache: DeviceCache,
         tally: Tally, written: Written | None = None) -> Packing:
    """The packing with more nodes in wide and skip, and in `held` why. rounded: whether weights are
    rounded for the inputs to try. written: what is to be checked in the end, where weights are
    rounded as the model has them, before scales are folded into them.

    Raises what compiling and running raise, and UnsupportedError for a model that keeps no names of
    layers or is no single graph.
    """
    search = _Search(source, packing, trial, rounded, cache, tally, written)
    skip, wide, row = search.kept(cache, {
        "weights": packing.said, "rounded": str(rounded), "folded": str(written is None),
        "random": str(trial.random)})
    return replace(search.rounded(skip, wide), held=Held(**row))


class _Search(Search):
    """One model's weights, tried in few bits."""

    def __init__(self, source: Source, packing: Packing, trial: Trial, rounded: bool,
                 cache: DeviceCache, tally: Tally, written: Written | None) -> None:
        super().__init__(source, trial, tally, "memory: tolerance")
        self.packing, self.cache, self.written, self._rounds = packing, cache, written, rounded
        self._rows: dict[tuple[str, int], Rows | None] = {}
        self._eight = packing.bits == WIDE              # rows of 8 bits are rounded, too

    def run(self) -> list[Any]:
        self.packing = self._calibrated(self.packing)
        fed = _Fed(self)
        try:
            return self._found(fed)
        finally:
            fed.close()

    @contextmanager
    def running(self, bits: Mapping[Layer, int]) -> Iterator[Callable[[int], Runs]]:
        yield lambda k: [self.fed.run(k, bits)]

    def _found(self, fed: _Fed) -> list[Any]:
        self.fed, self.layers = fed, fed.layers
        if not self.layers:
            raise InputError(f"memory: tolerance: model {self.source.name} has no weights that "
                             "would be packed, of nodes with names")
        kept = dict.fromkeys(self.layers, KEPT)
        self.wanted = [[fed.run(k, None)] for k in self.order]
        start = {layer: layer.bits for layer in self.layers}
        self.effects: dict[tuple[Layer, int], float] = {}
        if self.holds(start, always=True):
            return self._checked([start, kept])
        self._round_eight()                 # is no search, and not counted as one
        self.begin()
        eight = dict.fromkeys(self.layers, WIDE)
        enough_in_eight = start != eight and self.holds(eight)
        moves = self._moves(not enough_in_eight)
        enough = fewest(moves, lambda some: self.holds({**start, **dict(some)}))
        raised = {**start, **dict(enough)}
        return self._checked([self._lowered(raised), raised, kept])

    def _moves(self, stay: bool) -> list[tuple[Layer, int]]:
        """(layer, bits that it goes up to), those first that do most for what they take. stay:
        whether any may stay as they are.
        """
        for layer in sorted(self.layers, key=_cost, reverse=True):
            self._measure(layer, layer.bits)
        if stay:
            for layer in sorted(self.layers, key=lambda at: self._effect(at, at.bits),
                                reverse=True):
                self._measure(layer, WIDE)
        found: list[tuple[float, Layer, int]] = []
        for layer in self.layers:
            of, steps = self._effect, layer.levels if stay else layer.levels[:-1]
            gains = [((of(layer, a) - of(layer, b)) / (layer.bytes[b] - layer.bytes[a]), b)
                     for a, b in zip(steps, steps[1:])]
            if len(gains) == 2 and gains[1][0] >= gains[0][0]:      # 8 bits are not worth a stop
                gains = [(of(layer, layer.bits) / _cost(layer), KEPT)]
            found += [(gain, layer, bits) for gain, bits in gains]
        found.sort(key=lambda move: -move[0])           # stable: 8 bits before none
        return [(layer, bits) for _, layer, bits in found]

    def _measure(self, layer: Layer, bits: int) -> None:
        """The effect of one layer's weights, for the hardest input."""
        if (layer, bits) in self.effects or self.late(self.half):
            return
        self.tally.now(f"measuring weights in few bits: {len(self.effects) + 1} of "
                       f"{sum(len(at.levels) - 1 for at in self.layers)}")
        alone = {**dict.fromkeys(self.layers, KEPT), layer: bits}
        self.effects[layer, bits] = min(self.effect(alone), MOST)

    def _effect(self, layer: Layer, bits: int) -> float:
        """What was measured; where there was no time, the layer goes up first."""
        if bits == KEPT:
            return 0.0
        known = self.effects.get((layer, bits))
        if known is None and bits != layer.bits:
            return SIXTEENTH * self._effect(layer, layer.bits)
        return MOST if known is None else known

    def _lowered(self, raised: dict[Layer, int]) -> dict[Layer, int]:
        """What needs not be raised, or not as far, comes back."""
        for layer in sorted((at for at in raised if raised[at] != at.bits), key=_cost,
                            reverse=True):
            for bits in layer.levels[:layer.levels.index(raised[layer])]:
                if self.holds({**raised, layer: bits}):
                    raised = {**raised, layer: bits}
                    break
        return raised

    # ---- what it comes to

    def _checked(self, candidates: Sequence[Mapping[Layer, int]]) -> list[Any]:
        """Of the first which holds the tolerance as it is compiled, or the last: names that stay,
        names that take 8 bits, and what these came to.
        """
        self.tally.now("checking bits of weights")
        with self.model(self.source, Options("high")) as model:
            wanted = [[model.run(feeds)] for feeds in self.trial.feeds]
        for bits in candidates:
            packing = self._packing(bits)
            options = Options("high", packing if self.written is None else "normal")
            source = self.source if self.written is None else self.written(packing)
            with self.model(source, options) as model:
                found = [[model.run(feeds)] for feeds in self.trial.feeds]
            holds = all(map(self.fine, found, wanted))
            if holds:
                break
        reasons = [(name, why) for layer in self.layers if bits[layer] != layer.bits
                   for why in [self._why(layer, bits[layer])] for name in layer.said]
        if not holds:
            reasons = [(ALL, "stay: no bits hold the tolerance, nor do weights as they are")]
            log.warning("%s: memory: no weights hold the tolerance of %s: all stay as they are",
                        self.source.name, self.trial.said)
        if self.short:
            self.notes.append("not all was tried: fewer bits may be enough")
        self.remark([outputs for (outputs,) in wanted], "with weights as they are")
        share = (sum(layer.bytes[bits[layer]] for layer in self.layers)
                 / sum(layer.bytes[KEPT] for layer in self.layers))
        held = Held(self.trial.said, max(map(error, found, wanted)), len(wanted), self.trial.random,
                    share, tuple(reasons), tuple(self.notes), bits=packing.bits)
        return [packing.skip, packing.wide, asdict(held)]

    def _why(self, layer: Layer, bits: int) -> str:
        tried = WIDE if bits == KEPT and (layer, WIDE) in self.effects else layer.bits
        known = self.effects.get((layer, tried))
        effect = "there was no time to try fewer" if known is None else (
            f"in {tried} bits its weights alone move outputs by {known:.2g}")
        return f"{'stays' if bits == KEPT else f'in {bits} bits'}: {effect}"

    def _packing(self, bits: Mapping[Layer, int]) -> Packing:
        names = {level: [escape(n) for layer in self.layers if bits[layer] == level != layer.bits
                         for n in layer.names] for level in (KEPT, WIDE)}
        given = self.packing
        unseen = [escape(n) for n in self.fed.unseen if given.bits_of(n) != KEPT]
        return self.rounded((*given.skip, *names[KEPT], *unseen), (*given.wide, *names[WIDE]))

    def rounded(self, skip: Sequence[str], wide: Sequence[str]) -> Packing:
        """The packing with these nodes, rounded for the inputs where that was asked for."""
        self.packing = self._calibrated(self.packing)
        if len(wide) > len(self.packing.wide):
            self._round_eight()
        return replace(self.packing, skip=tuple(skip), wide=tuple(wide))

    def _calibrated(self, packing: Packing) -> Packing:
        if not self._rounds or packing.calibration:
            return packing
        return calibrated(self.source, packing, self.trial.feeds, self.cache, self.tally,
                          self.written is None)

    def _round_eight(self) -> None:
        """Rows in 8 bits of all that is in 4."""
        if not self._eight and self._rounds:
            eight = self._calibrated(replace(self.packing, bits=WIDE, wide=(), calibration=""))
            self.packing = replace(self.packing, rows={**eight.rows, **self.packing.rows})
        self._eight = True

    def rows(self, slot: Slot, bits: int) -> Rows | None:
        """None where the weights can't be in so many bits: they stay."""
        if bits == WIDE:
            self._round_eight()
        at = slot.key, bits
        if at not in self._rows:
            rows = slot.weight.rows(slot.w.data)
            self._rows[at] = replace(self.packing, bits=bits).packed(rows)
        return self._rows[at]

    def bytes(self, slot: Slot, bits: int) -> int:
        """Of weights in so many bits."""
        if bits == KEPT:
            return slot.w.type.size * dtypes.itemsize(slot.w.type.dtype)
        k = slot.weight.terms(slot.w)
        block = self.packing.block_of(k)
        blocks = slot.w.type.size // k * -(-k // block)
        zero = 0 if self.packing.symmetric else bits
        return blocks * (block * bits + 16 + zero) // 8

    def model(self, source: Source, options: Options) -> Model:
        return Model(source, open_device("cpu"), options, False, self.cache.cache.root, self.tally)


class _Fed:
    """The model with inputs in place of its weights, for each set of shapes of the inputs to try.
    """

    def __init__(self, search: _Search) -> None:
        self.search, self.models = search, dict[Any, tuple[Model, list[Slot]]]()
        self.known = search.source.nodes()
        self.sums: dict[str, list[str]] = {}    # whose weights may have the name of what was folded
        for name in self.known:
            for behind in may_fold(self.known, name):
                self.sums.setdefault(behind, []).append(name)
        self.readers: dict[str, list[tuple[str, ...]]] = {}     # by rows: names of those nodes
        self._arrays: dict[Any, tuple[int, Array]] = {}         # (bits, weights), by slot
        step = step_of(search.source, search.packing)
        try:
            for feeds in search.trial.feeds:
                if (shapes := _shapes(feeds)) not in self.models:
                    self.models[shapes] = self._opened(step, feeds)
        except BaseException:
            self.close()
            raise
        # What is a constant for these shapes, and packed in a plan for many: it was not tried.
        seen = {n for found in self.readers.values() for names in found for n in names}
        self.unseen = [n for n in readers(search.source.model, SMALL) if n not in seen]
        self._layer: dict[str, Layer] = {}                      # by rows
        self.layers = self._layers()

    def close(self) -> None:
        for model, _ in self.models.values():
            model.close()

    def _opened(self, step: PackWeights, feeds: Mapping[str, Any]) -> tuple[Model, list[Slot]]:
        search = self.search
        graph, told = packable(search.source, feeds, step, search.written is None, OTHERWISE)
        slots: dict[tuple[Node, str, int], Slot] = {}
        fed: dict[tuple[Node, int], Node] = {}                  # (reader, operand) -> input
        present = {origin.name for origin in graph.origins.values()}
        for weight in step.read(graph):
            w = weight.node.inputs[weight.slot]
            kind = w, weight.order, weight.bits
            if kind not in slots:
                key = key_of(weight.rows(w.data), weight.bits)
                slots[kind] = Slot(f"weights {len(slots)}", weight, w, key)
            slot, origin = slots[kind], graph.origins.get(weight.node)
            fed[weight.node, weight.slot] = graph_input(slot.name, w.type)
            names = () if origin is None else (origin.name, *origin.twins)
            sums = [s for n in names for s in self.sums.get(n, ()) if s not in present]
            self.readers.setdefault(slot.key, []).append(
                tuple(n for n in (*sums, *names) if n in self.known))

        def change(node: Node, inputs: tuple[Node, ...]) -> Node:
            inputs = tuple(fed.get((node, k), i) for k, i in enumerate(inputs))
            return node if node.inputs == inputs else node.with_inputs(inputs)

        rest = rebuild(graph, change)
        rest = replace(rest, inputs=(*rest.inputs, *dict.fromkeys(fed.values())))
        told = [*told, search.written is None, [slot.key for slot in slots.values()]]
        return search.model(derived(rest, search.source, told), Options("high")), [*slots.values()]

    def _layers(self) -> list[Layer]:
        """Of weights that are packed, and that can be named."""
        search, sets = self.search, list[tuple[set[str], set[str]]]()    # (names, rows)
        slots = {slot.key: slot for _, made in self.models.values() for slot in made}
        for key, slot in slots.items():
            if all(self.readers[key]) and search.rows(slot, slot.weight.bits) is not None:
                names, keys = {n for reader in self.readers[key] for n in reader}, {key}
                for other in [s for s in sets if s[0] & names]:
                    sets.remove(other)
                    names, keys = names | other[0], keys | other[1]
                sets.append((names, keys))
        found: list[Layer] = []
        for names, keys in sets:
            bits = max(slots[k].weight.bits for k in keys)
            first = {reader[0] for k in keys for reader in self.readers[k]}
            layer = Layer(_sorted(names, self.known), _sorted(first, self.known), bits,
                          {b: sum(search.bytes(slots[k], b) for k in keys)
                           for b in (bits, WIDE, KEPT)})
            found.append(layer)
            self._layer |= dict.fromkeys(keys, layer)
        return found

    def run(self, k: int, bits: Mapping[Layer, int] | None) -> dict[str, Any]:
        """Outputs for input k, with layers in these bits; None: with all weights as they are."""
        feeds = self.search.trial.feeds[k]
        model, slots = self.models[_shapes(feeds)]
        weights = {slot.name: self._weights(slot, bits) for slot in slots}
        return model.run({t.name: weights[t.name] if t.name in weights else feeds[t.name]
                          for t in model.inputs})

    def _weights(self, slot: Slot, said: Mapping[Layer, int] | None) -> Array:
        if said is None:
            return slot.w.data
        layer = self._layer.get(slot.key)
        bits = slot.weight.bits if layer is None else said[layer]
        at = slot.key, slot.weight.order, slot.w.type
        have = self._arrays.get(at)
        if bits == KEPT or (rows := self.search.rows(slot, bits)) is None:
            return slot.w.data
        if have is None or have[0] != bits:
            numbers = rows.numbers(slot.weight.terms(slot.w))
            array = slot.weight.whole(numbers, slot.w.type.dims)
            have = self._arrays[at] = bits, array.astype(slot.w.data.dtype)
        return have[1]


def _shapes(feeds: Mapping[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    odd = [n for n, a in feeds.items() if not hasattr(a, "shape")]
    if odd:
        raise UnsupportedError(f"memory: tolerance: input '{odd[0]}' is no tensor\n  {OTHERWISE}")
    return tuple((n, np.shape(a)) for n, a in sorted(feeds.items()))


def _sorted(names: set[str], order: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in order if name in names)


def _cost(layer: Layer) -> int:
    """Bytes that it saves."""
    return layer.bytes[KEPT] - layer.bytes[layer.bits]


__all__ = ["held"]

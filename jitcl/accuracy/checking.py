"""`jitcl.check`: two configurations of a model, compared layer by layer under ONNX names.

    1  outputs of both for every input; the worst input is looked into
    2  every tensor as the other configuration has it: the exact ones
    3  a run with the results of all kernels as outputs: errors in total
    4  a run of the model cut open there, all pieces on exact tensors: each one's own error
    5  3 and 4 for the layers inside of kernels whose own error is beyond the tolerance

Tensors that the configuration stores in halves are so in 3 and 4, too; one that they can't hold is
fed in its own type: it is its maker that errs. The configuration compiles three models, five where
something is wrong, however many layers there are. Kernels of the cut model are those of the model,
but for layouts, as they are cut where tensors are stored anyway.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import dtypes
from jitcl.accuracy.cure import find_cure, precision_with
from jitcl.accuracy.engines import OTHERS, Configuration, Engine, open_engine, tensors_in
from jitcl.accuracy.measures import Difference, bit_equal, difference, errors, parts, tells
from jitcl.accuracy.report import Check, Layer, Repeats
from jitcl.errors import InputError, OptionError, UnsupportedError
from jitcl.passes.options import Options, Precision
from jitcl.runtime.arguments import is_number, is_whole, shown, tally_of
from jitcl.runtime.cache import kernel_cache
from jitcl.runtime.inputs import check_feeds, fixed_shapes, random_feed
from jitcl.runtime.source import OnnxSource, Tensor, open_source

if TYPE_CHECKING:
    from jitcl.frontends.onnx.inner import Layer as OnnxLayer
    from jitcl.ir.graph import ModelNode

AS_MODEL, HALF = 1e-3, 1e-2             # tolerances: of f32 on both sides, of anything less
HALVES = ("f16", "bf16")                # what tensors of f32 may be stored in
NOTHING = np.empty(0)                   # beside an item that only one sequence has
CUT = ("f16", "bf16", "f32", "f64", "i8", "u8")    # what is fed exactly; others decide shapes


def check(
        model: Any, inputs: Any = None, *, device: Any = "auto", precision: Precision = "high",
        memory: str = "normal", templates: bool | None = None, against: Any = "onnx",
        against_model: Any = None, tolerance: float | None = None, repeat: int = 0,
        cure: bool = False, seed: int = 0, shapes: Mapping[str, tuple[int, ...]] | None = None,
        cache_dir: str | Path | None = None, progress: Any = None
) -> Check:
    """Compare two configurations of an ONNX model, layer by layer.

    inputs: a dict of input name -> array; several of them in a list, or in a dict by names of
    their own; None: random numbers (floats of 0..1, integers 0 and 1) of `seed`, for `shapes` where
    the model leaves them open.
    device, precision, memory: as of `jitcl.compile`. templates: False for generated loops alone.
    device may name them, too, as `against` does.
    against: the other configuration: text such as "cpu,precision=high,templates=off", a dict of
    these, "onnxruntime", or "onnx", onnx's reference evaluator.
    against_model: the other one's model, where it is not the same: tensors are compared by name.
    tolerance: of the largest error, in units of a tensor's largest element; default 1e-3 where both
    compute as the model says, else 1e-2.
    repeat: run so many times more, and compare the results to the last bit.
    cure: where outputs differ, find the smallest set of layers which at precision "high" brings
    them within the tolerance; each set that is tried is compiled.

    Raises what `compile` and `run` raise, and OptionError.
    """
    start = time.perf_counter()
    if not isinstance(cure, bool):
        raise OptionError(f"cure: got {shown(cure)}, wanted True or False")
    one = Configuration.of(device).with_options(precision, memory, templates)
    other = Configuration.of(against)
    limit = _tolerance(tolerance, one, other)
    if cure and (one.device in OTHERS or not Options(one.precision).reduced):
        raise OptionError(f"cure: {one} computes all layers as the model says\n"
                          "  Give it a precision below high.")
    if not is_whole(repeat, 0):
        raise OptionError(f"repeat: got {shown(repeat)}, wanted a whole number from 0 up")
    tally, root = tally_of(progress), kernel_cache(cache_dir).root
    source = _onnx(open_source(model, root))
    beside = source if against_model is None else _onnx(open_source(against_model, root))
    got, exact = (open_engine(s, c, cache_dir, tally) for s, c in ((source, one), (beside, other)))
    fed = {name: check_feeds(source.signature()[0], feeds)
           for name, feeds in _named(inputs, source, shapes, seed).items()}
    ran = {name: _outputs(got, exact, feeds) for name, feeds in fed.items()}
    off = tuple((n, max((d.relative for d in found.values()), default=0.0))
                for n, (found, _) in ran.items())
    worst = max(off, key=lambda row: row[1])[0]
    layered = _Layered(got, exact, fed[worst], limit)
    rows, cured = tuple(layered.rows()), None
    if cure and max(e for _, e in off) > limit:
        cured = find_cure(rows, _Cures(source, one, exact, fed, worst, limit, cache_dir, tally))
    return Check(
        source.name, got.name, exact.name, limit, off, ran[worst][0],
        rows, _repeats(got, fed[worst], repeat), layered.missing,
        time.perf_counter() - start,
        _notes(off, layered.found, limit, ran[worst][1]), cured)


def _tolerance(given: Any, one: Configuration, other: Configuration) -> float:
    if given is None:
        both = [Options(c.precision, c.memory) for c in (one, other)]
        return HALF if any(o.reduced or o.weights for o in both) else AS_MODEL
    if not (is_number(given) and 0 <= given < np.inf):
        raise OptionError(f"tolerance: got {shown(given)}, wanted a number from 0 up, such as 1e-3")
    return float(given)


def _onnx(source: Any) -> OnnxSource:
    if not isinstance(source, OnnxSource):
        raise UnsupportedError(f"check: '{source.name}' is a text graph, which keeps no names of "
                               "layers\n  Give the ONNX model that it was made of.")
    return source


def _named(given: Any, source: OnnxSource, shapes: Any, seed: int) -> dict[str, Mapping[str, Any]]:
    """Feeds by what they are called."""
    if given is None:
        return {f"random numbers, seed {seed}": _random(source, shapes, seed)}
    if isinstance(given, Mapping):
        several = bool(given) and all(isinstance(v, Mapping) for v in given.values())
        return dict(given) if several else {"the inputs": given}
    if isinstance(given, (list, tuple)) and given and all(isinstance(f, Mapping) for f in given):
        return {f"input {k}": feeds for k, feeds in enumerate(given)}
    raise InputError(f"inputs: got {shown(given)}, wanted a dict of input name -> array, a list of "
                     "such dicts, or None for random numbers")


def _random(source: OnnxSource, shapes: Any, seed: int) -> dict[str, np.ndarray]:
    wanted: Sequence[Tensor] = source.signature()[0]
    fixed = fixed_shapes(wanted, shapes)
    if fixed is None:
        raise InputError(f"check: {source.name} leaves shapes of its inputs open, or takes what is "
                         f"no tensor: {', '.join(map(str, wanted))}\n  Give shapes, or inputs.")
    return {t.name: random_feed(t, fixed[t.name], seed) for t in wanted if t.name in fixed}


def _outputs(got: Engine, exact: Engine, feeds: Mapping[str, Any]
             ) -> tuple[dict[str, Difference], bool]:
    """Of the outputs that both have; of sequences and maps, of all that is in them. And whether
    anything in them could be wrong.
    """
    mine, theirs = got.outputs(feeds), exact.outputs(feeds)
    both = [n for n in mine if n in theirs]
    if not both:
        raise InputError(f"check: no output of {got.source.name} is one of {exact.source.name}, "
                         f"too: {', '.join(mine)}; {', '.join(theirs)}")
    a, b = (parts({n: x[n] for n in both}) for x in (mine, theirs))
    return {n: difference(a.get(n, NOTHING), b.get(n, NOTHING)) for n in {**b, **a}}, tells(b)


class _Cures:
    """Whether outputs are within the tolerance with some nodes high, for all inputs."""

    def __init__(self, source: OnnxSource, chosen: Configuration, exact: Engine,
                 fed: Mapping[str, Mapping[str, Any]], worst: str, limit: float,
                 cache_dir: str | Path | None, tally: Any) -> None:
        self.source, self.chosen, self.limit, self.fed = source, chosen, limit, fed
        self.open = cache_dir, tally
        self.wanted = {name: exact.outputs(feeds) for name, feeds in fed.items()}
        self.order = [worst, *(n for n in fed if n != worst)]       # the hardest first

    def __call__(self, names: Sequence[str]) -> bool:
        precision = precision_with(self.chosen.precision, names)
        engine = open_engine(self.source, replace(self.chosen, precision=precision), *self.open)
        for name in self.order:
            if not self._error(engine, name) <= self.limit:
                self.order.remove(name)
                self.order.insert(0, name)
                return False
        return True

    def _error(self, engine: Engine, name: str) -> float:
        found, wanted = engine.outputs(self.fed[name]), self.wanted[name]
        both = {n: x for n, x in wanted.items() if n in found}
        return max(errors({n: found[n] for n in both}, both).values())


@dataclass
class _Kernel:
    """Tensors that are stored, and what else is computed on the way to them."""

    name: str
    layers: list[OnnxLayer]                 # in the model's order; the last one's are stored
    dtype: str = ""                         # in which they are


class _Layered:
    """Layers of one input, compared."""

    def __init__(self, got: Engine, exact: Engine, feeds: Mapping[str, Any], limit: float) -> None:
        from jitcl.frontends.onnx.inner import layers

        self.got, self.feeds, self.limit = got, feeds, limit
        self.all = [x for x in layers(got.source.model) if x.op_type != "Constant"]
        theirs = {o for x in layers(exact.source.model) for o in x.outputs}
        self.missing = tuple(x.name for x in self.all if theirs.isdisjoint(x.outputs))
        names = [o for x in self.all for o in x.outputs if o in theirs]
        self.exact = tensors_in(exact.inner(feeds, names), names)
        self.constant = {o: x for x in self.all if not x.fed for o in x.outputs}
        self.given = {v.name for v in got.source.model.proto.graph.output}
        self.found: list[Layer] = []

    def rows(self) -> list[Layer]:
        """One a stored tensor; and one a layer of a kernel that is not what it should be."""
        kernels = self._kernels()
        stored = [k.layers[-1] for k in kernels]
        found = self._compared(stored, kernels)
        wrong = [k for k in kernels if len(k.layers) > 1 and any(
            _own(found[o]) > self.limit for o in k.layers[-1].outputs if o in found)]
        if wrong:
            inside = {x.name: x for k in wrong for x in k.layers}
            finer = self._compared([*stored, *inside.values()], kernels)
            for kernel in wrong:
                rows = {o: finer[o] for x in kernel.layers for o in x.outputs if o in finer}
                if any(_own(r) > self.limit for r in rows.values()):
                    found.update(rows)          # else it goes wrong only as one kernel
        order = {o: k for k, o in enumerate(o for x in self.all for o in x.outputs)}
        self.found = [found[o] for o in sorted(found, key=order.__getitem__)]
        return self.found

    def _kernels(self) -> list[_Kernel]:
        """The configuration's kernels, in the order in which they end; each layer in one."""
        place = {x.name: k for k, x in enumerate(self.all)}
        names = self.got.source.nodes()
        ran = self.got.kernels()
        if ran is None:
            return [_Kernel("", [x]) for x in self.all]
        found: dict[str, _Kernel] = {}
        for step in ran:
            inside = sorted({at for n in step.nodes if (at := _place(n, place, names)) is not None})
            if inside:
                last = self.all[inside[-1]]
                before = found[last.name].layers if last.name in found else []
                both = sorted({*inside, *(place[x.name] for x in before)})
                found[last.name] = _Kernel(step.kernel, [self.all[k] for k in both], step.dtype)
        for layer in self.all:                  # views of what a kernel stores, constants
            if not self.given.isdisjoint(layer.outputs):
                found.setdefault(layer.name, _Kernel("", [layer]))
        kept = set(found)
        for kernel in found.values():
            *inner, last = kernel.layers
            inner = [x for x in inner if x.name not in kept]
            kernel.layers = [*self._folded([*inner, last]), *inner, last]
        return sorted(found.values(), key=lambda k: place[k.layers[-1].name])

    def _folded(self, inside: Sequence[OnnxLayer]) -> list[OnnxLayer]:
        """What was computed of constants when the model was compiled: weights that are dequantised.
        """
        found: dict[str, OnnxLayer] = {}
        stack = [i for x in inside for i in x.inputs]
        while stack:
            layer = self.constant.get(stack.pop())
            if layer is not None and layer.name not in found and layer not in inside:
                found[layer.name] = layer
                stack += layer.inputs
        return [x for x in self.all if x.name in found]

    def _compared(self, asked: Iterable[OnnxLayer], kernels: Sequence[_Kernel]) -> dict[str, Layer]:
        """Rows of the tensors that layers give, by name; the model is cut at all of them."""
        layers = {o: x for x in asked for o in x.outputs if o in self.exact}
        if not layers:
            return {}
        last = {k.layers[-1].name: k for k in kernels}
        stored = {o: k.dtype for o, x in layers.items() if (k := last.get(x.name)) is not None
                  and k.dtype in HALVES and o not in self.given
                  and dtypes.is_float(dtypes.from_numpy(self.exact[o].dtype) or "")}
        totals = tensors_in(self.got.inner(self.feeds, [*layers], stored), layers)
        cuts = {o: self.exact[o] for o in layers
                if dtypes.from_numpy(self.exact[o].dtype) in CUT}
        own = tensors_in(self.got.own(self.feeds, cuts, [*totals], stored), totals)
        rows = {}
        for tensor, total in totals.items():
            layer, exact = layers[tensor], self.exact[tensor]
            kernel = last.get(layer.name, _Kernel("", [layer]))
            fused = tuple(x.name for x in kernel.layers if x.name != layer.name and x.fed
                          and layers.keys().isdisjoint(x.outputs))
            rows[tensor] = Layer(
                layer.name, layer.op_type, tensor, dtypes.from_numpy(exact.dtype) or "",
                exact.shape, difference(total, exact),
                difference(own[tensor], exact) if tensor in own else None, kernel.name, fused)
        return rows


def _place(node: str, place: Mapping[str, int], names: Mapping[str, ModelNode]) -> int | None:
    """Which layer a node is, or is in the body or function of."""
    while node not in place and node in names:
        node = names[node].inside
    return place.get(node)


def _own(row: Layer) -> float:
    return row.own.relative if row.own is not None else 0.0


def _repeats(got: Engine, feeds: Mapping[str, Any], runs: int) -> Repeats | None:
    """Outputs of more runs, compared to the last bit; None where none were asked for."""
    if not runs:
        return None
    first = got.outputs(feeds)
    for run in range(1, runs + 1):
        again = got.outputs(feeds)
        differs = [n for n in first if not bit_equal(first[n], again[n])]
        if differs:
            return Repeats(runs, differs[0], run)
    return Repeats(runs)


def _notes(off: Sequence[tuple[str, float]], rows: Sequence[Layer], limit: float,
           told: bool) -> tuple[str, ...]:
    """What the table does not tell."""
    notes = []
    if max(e for _, e in off) > limit and rows and all(
            r.total.relative <= limit for r in rows):
        notes.append("outputs differ, but not where inner tensors are outputs, too: other kernels "
                     "run then")
    if not told and max(e for _, e in off) <= limit:
        notes.append("outputs prove nothing here: the exact ones are infinite, NaN, zero or empty")
    return tuple(notes)


__all__ = ["check"]

"""`precision="auto"`: f16 wherever the outputs stay within a tolerance of f32, on inputs to try.

    1  the lowest precision, guarded layer by layer: what f16 can't hold goes to f32
    2  outputs are off by more than the tolerance: the effect of layers on them is measured, with
       these alone in low precision. What does most, of all layers, is halved, again and again
    3  the parts go up that do most for their FLOPs, as few as it takes; then layers come back down
       that are not needed, the dearest first
    4  what was found runs twice on every input, and is kept in the device's cache

Where a device computes in f16, layers go up to f16 storage alone, if that is enough for the model;
else to f32. Where that takes longer than f32 (a driver emulates it), storage alone is the lowest.
The static rules of passes/precision.py hold in all that is tried. Parts are runs of layers in the
model's order: errors are local, and a part costs two casts at its ends.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jitcl import config
from jitcl.accuracy.calibration import copied, feeds_of_calibration
from jitcl.accuracy.cure import fewest, without_needless
from jitcl.accuracy.measures import bit_equal, errors, tells
from jitcl.devices.base import Device
from jitcl.devices.progress import Tally
from jitcl.errors import InputError, OptionError, UnsupportedError
from jitcl.passes.options import ALL, Chosen, Memory, Options
from jitcl.runtime.arguments import check_takes, is_number, shown
from jitcl.runtime.cache import DeviceCache, Key, code_version, kernel_cache
from jitcl.runtime.inputs import digest_of, fixed_shapes, random_feed
from jitcl.runtime.model import Model
from jitcl.runtime.source import OnnxSource, Source, Tensor

TOLERANCE, BUDGET = 1e-2, 300.0         # of an output's largest element; seconds
MADE_UP = 2                             # inputs that are random
SPLITS, TRIALS = 12, 40                 # of parts of the model; of sets of layers
SLOWER, TIMED = 1.25, 3                 # f16 arithmetic, beside f32, that is not used; runs
Feeds = Mapping[str, Any]
Runs = Sequence[Mapping[str, Any]]      # on one input: outputs of each run
Judge = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]      # (outputs, in f32): fine?
Use = Callable[[Callable[[Feeds], Any]], Any]       # runs a model as it is used: steps, say
log = logging.getLogger("jitcl")


@dataclass(frozen=True)
class Trial:
    """What outputs are held to, and on what. tolerance: of the largest error, in units of an
    output's largest element, or a function of (outputs, outputs in f32). feeds: checked; none where
    there is a use. random: they were made up. budget: seconds after which no search goes on.
    """

    tolerance: float | Judge
    feeds: tuple[Feeds, ...]
    random: bool
    budget: float
    use: Use | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None

    @staticmethod
    def of(tolerance: Any, calibrate: Any, shapes: Any, budget: Any,
           inputs: Sequence[Tensor]) -> Trial:
        """Of arguments of `jitcl.compile`. Raises OptionError, InputError."""
        for name, value in (("tolerance", tolerance), ("budget", budget)):
            if name == "tolerance" and callable(value):
                check_takes(name, value, ({}, {}), "wanted a number, or a function of (outputs, "
                            "outputs in f32)")
            elif value is not None and not (is_number(value) and 0 <= value < np.inf):
                raise OptionError(f"{name}: got {shown(value)}, wanted a number from 0 up")
        use = calibrate if callable(calibrate) else None
        if use is not None:
            check_takes("calibrate", use, (len,), "wanted a function of run(inputs) -> outputs, or "
                        "inputs")
        random = calibrate is None
        fixed = fixed_shapes(inputs, shapes) if random or shapes else None
        if random and fixed is None:
            raise InputError(
                "precision='auto': shapes of inputs are open, or one is no tensor: "
                f"{', '.join(map(str, inputs))}\n  Give inputs to try, calibrate=, or shapes=.")
        if random:
            assert fixed is not None
            calibrate = [{t.name: random_feed(t, fixed[t.name], seed) for t in inputs
                          if t.name in fixed} for seed in range(MADE_UP)]
        given = [] if use else feeds_of_calibration(calibrate, inputs)
        return Trial(TOLERANCE if tolerance is None else tolerance, tuple(given), random,
                     BUDGET if budget is None else float(budget), use, fixed if shapes else None)

    @property
    def said(self) -> str:
        """The tolerance as text."""
        limit = self.tolerance
        return getattr(limit, "__qualname__", "a function") if callable(limit) else f"{limit:.3g}"

    def key(self) -> dict[str, str] | None:
        """Parts of a key; None where a function decides, which can't be told from others."""
        if callable(self.tolerance) or self.use is not None:
            return None
        return {"tolerance": repr(float(self.tolerance)), "inputs": digest_of(self.feeds),
                "shapes": repr(self.shapes and sorted(self.shapes.items()))}

    def fine(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """What the tolerance, a function, says of outputs."""
        assert callable(self.tolerance)
        said = self.tolerance(found, copied(wanted))
        answer = np.asarray(said)
        if answer.dtype != bool or answer.size != 1:
            raise OptionError(f"tolerance: {self.said} gave {shown(said)}, wanted True or False: "
                              "whether outputs are fine")
        return bool(answer.item())


class Search(ABC):
    """One model with one choice after the other, run on inputs to try. what: is tried; most: how
    many choices.
    """

    def __init__(self, source: Any, trial: Trial, tally: Tally, what: str, most: float = np.inf
                 ) -> None:
        self.source, self.trial, self.tally, self.what, self.most = source, trial, tally, what, most
        self.tried, self.short = 0, False       # short: with more time, less may be raised
        self.notes: list[str] = []
        self.order = list(range(len(trial.feeds) or 1))     # of inputs, the hardest first
        self.wanted: list[Runs] = []            # of each input, what others are held to

    @abstractmethod
    def run(self) -> list[Any]:
        """What is found, as JSON values."""

    @abstractmethod
    def running(self, choice: Any) -> AbstractContextManager[Callable[[int], Runs]]:
        """The model with a choice, to be run on the input of a number."""

    def kept(self, cache: DeviceCache, parts: Mapping[str, str]) -> list[Any]:
        """What was found before in as much time, else what `run` finds. parts: of its key in the
        cache. Raises UnsupportedError for a model that keeps no names of layers.
        """
        if not isinstance(self.source, OnnxSource):
            raise UnsupportedError(
                f"{self.what}: '{self.source.name}' is a text graph, which keeps no names of "
                "layers\n  Give the ONNX model that it was made of.")
        told = self.trial.key()
        key = None if told is None else Key(
            {"model": self.source.digest, "code": code_version(), "of": self.what,
             **config.key_parts(), **parts, **told}, f"{self.what} of {self.source.name}")
        stored = cache.get("model", key) if key is not None else None
        if stored is not None:
            *row, ended = json.loads(bytes(stored))
            if ended is None or self.trial.budget <= ended:     # else there is more time now
                return row
        found = self.run()
        if key is not None:
            ended = self.trial.budget if self.short else None
            cache.put("model", key, json.dumps([*found, ended]).encode())
        return found

    def begin(self) -> None:
        """From now on time runs: half of it is for effects, the rest for choices."""
        now = time.monotonic()
        self.half, self.end = now + self.trial.budget / 2, now + self.trial.budget

    def late(self, when: float) -> bool:
        late = time.monotonic() > when
        self.short = self.short or late
        return late

    def holds(self, choice: Any, always: bool = False) -> bool:
        """Whether outputs are within the tolerance for all inputs; False when time is over,
        unless it is tried `always`."""
        self.tried += 1
        if not always and (self.late(self.end) or self.tried > self.most):
            return False
        self.tally.now(f"trying {self.what}: {self.tried} sets of layers")
        with self.running(choice) as outputs:
            for k in list(self.order):
                if not self.fine(outputs(k), self.wanted[k]):
                    self.order.remove(k)
                    self.order.insert(0, k)
                    return False
        return True

    def effect(self, choice: Any) -> float:
        """The error of outputs for the hardest input."""
        k = self.order[0]
        with self.running(choice) as outputs:
            return error(outputs(k), self.wanted[k])

    def fine(self, found: Runs, wanted: Runs) -> bool:
        limit = self.trial.tolerance
        if callable(limit):
            return len(found) == len(wanted) and all(map(self.trial.fine, found, wanted))
        return error(found, wanted) <= limit

    def remark(self, wanted: Sequence[Mapping[str, Any]], otherwise: str) -> None:
        """Note what inputs do not prove. wanted: outputs of all runs `otherwise`."""
        if self.trial.random:
            self.notes.append("tried on random inputs: calibrate= takes real ones")
        if blank := sum(not tells(outputs) for outputs in wanted):
            self.notes.append(f"{blank} of {len(wanted)} runs prove nothing: {otherwise}, too, all "
                              "that they give is infinite, NaN, zero or empty")



def choose(source: Source, device: Device, memory: Memory, trial: Trial,
           cache_dir: str | Path | None, tally: Tally) -> Options:
    """Options with the precision of each layer, and in `chosen` why. Raises what compiling and
    running raise, and UnsupportedError for a model that keeps no names of layers.
    """
    search = _Search(source, device, memory, trial, cache_dir, tally)
    precision, promoted, scaled, row = search.kept(
        kernel_cache(cache_dir).for_target(device.target), {"memory": str(memory)})
    return Options(precision, memory, promoted=tuple(promoted), chosen=Chosen(**row),
                   scaled=tuple((tuple(names), power) for names, power in scaled))


class _Search(Search):
    """One model's layers, tried on one device."""

    def __init__(self, source: Source, device: Device, memory: Memory, trial: Trial,
                 cache_dir: str | Path | None, tally: Tally) -> None:
        super().__init__(source, trial, tally, "precision='auto'", TRIALS)
        self.device, self.memory, self.cache_dir = device, memory, cache_dir
        self.reasons: dict[str, str] = {}

    def run(self) -> list[Any]:
        self.begin()
        with self._model(Options("high", self.memory, promoted=(ALL,))) as model:
            self.wanted = [self._outputs(model, k) for k in self.order]
        if not self.wanted[0]:
            raise InputError("calibrate: the function ended without a run: it is to call what it "
                             "is given, run(inputs) -> outputs")
        self.base = self._lowest()
        options = self._in_range()
        if ALL not in options.promoted and not self.holds(options, always=True):
            options = self._raised(options)
        return self._checked(options)

    @contextmanager
    def running(self, options: Options) -> Iterator[Callable[[int], Runs]]:
        with self._model(options) as model:
            yield partial(self._outputs, model)

    def _model(self, options: Options, guard: str = "off") -> Model:
        model = Model(self.source, self.device, replace(options, guard=guard), False,
                      self.cache_dir, self.tally)
        if self.trial.shapes is not None:
            model.prepare(self.trial.shapes)            # whose plan it is that the caller gets
        return model

    def _outputs(self, model: Model, k: int) -> Runs:
        """For input k; where there is a use, of all of its runs."""
        if self.trial.use is None:
            return [model.run(self.trial.feeds[k])]
        found: list[dict[str, Any]] = []

        def run(feeds: Feeds) -> dict[str, Any]:
            outputs = model.run(feeds)
            found.append(copied(outputs))               # the function may write to its own
            return outputs

        self.trial.use(run)
        return found

    def _lowest(self) -> str:
        """The precision to begin with."""
        target = self.device.target
        if target.kind != "opencl" or not target.computes_f16:
            return "low"                # the interpreter's times say nothing
        self.tally.now("timing f16 arithmetic")
        low, normal = self._seconds("low"), self._seconds("normal")
        if low <= SLOWER * normal:
            return "low"
        self.notes.append(f"f16 arithmetic takes {low / normal:.1f} times as long as f32 on "
                          f"{self.device.name}: f16 is stored alone")
        return "normal"

    def _seconds(self, precision: str) -> float:
        """Of the first input's runs."""
        took: list[float] = []
        with self._model(Options(precision, self.memory)) as model:
            for _ in range(1 + TIMED):
                begin = time.perf_counter()
                self._outputs(model, 0)
                took.append(time.perf_counter() - begin)
        return min(took)

    def _in_range(self) -> Options:
        """The lowest precision, with the nodes in f32 that the guard puts there for these inputs:
        those alone that no power of two brings into f16's range."""
        options = Options(self.base, self.memory)
        promoted, reach = self._caught(options)
        powers = {names: power for names, (_, power) in reach.items() if power}
        if powers and ALL not in promoted:
            fixed = [n for n in promoted if not any(n in names for names in powers)]
            left, _ = self._caught(replace(
                options, promoted=tuple(fixed), scaled=tuple(powers.items())))
            if len(left) < len(promoted) and ALL not in left:
                promoted = left
                powers = {n: by for n, by in powers.items() if left.keys().isdisjoint(n)}
                options = replace(options, scaled=tuple(powers.items()))
                self.notes += [
                    f"'{names[0]}' is stored times 2^{-by}, by way of weights: its magnitudes are "
                    f"up to {reach[names][0]:.4g}" for names, by in powers.items()]
        known = {n: most for names, (most, _) in reach.items() for n in names}
        self.reasons |= {n: f"f16 can't hold magnitudes up to {known[n]:.4g}" if known.get(n) else
                         "f16 can't hold infinities, or zeros" for n in promoted}
        return replace(options, promoted=tuple(promoted))

    def _caught(self, options: Options
                ) -> tuple[dict[str, None], dict[tuple[str, ...], tuple[float, int]]]:
        """The nodes that the guard puts into f32, and `Guard.reach`."""
        self.tally.now("looking for layers that f16 can't hold")
        with self._model(options, "layers") as model:
            for k in self.order:
                self._outputs(model, k)
            program = model.program
            guards = [model.guard, *(p.guard for p in program.parts)] if program else [model.guard]
        return (dict.fromkeys(n for g in guards for n in g.options.promoted),
                {names: found for g in guards for names, found in g.reach.items()})

    def _raised(self, options: Options) -> Options:
        """The fewest layers of a higher precision that bring the outputs within the tolerance."""
        target, base, level = self.device.target, self.base, "high"
        if base == "low" and target.kind != "cpu" and target.computes_f16:
            whole = replace(options, precision="normal")
            base, level = ("low", "normal") if self.holds(whole) else ("normal", "high")
        layers = self._layers(Options(base, self.memory))

        def low(names: Sequence[str]) -> Options:
            up = dict.fromkeys((n for n in layers if n not in names), level)
            return replace(options, precision={**up, ALL: base})

        # What is written in place is a kernel of its own beside one of another precision.
        layers = self._whole({**self._layers(low([])), **layers})

        def holds(up: Sequence[str]) -> bool:
            return self.holds(low([n for n in layers if n not in up]))

        if not self.holds(low([]), always=True):
            # "high" would be as the model says, which may be f16: what is exact here is f32
            self.reasons = {ALL: "no set of layers was found that holds the tolerance"}
            return Options("high", self.memory, promoted=(ALL,))
        parts = self._parts(list(layers), lambda names: self.effect(low(names)))
        order = sorted(parts, key=lambda p: -parts[p] / (1 + sum(layers[n] for n in p)))
        enough = fewest(order, lambda some: holds([n for part in some for n in part]))
        up = without_needless(sorted((n for part in enough for n in part),
                                     key=lambda n: -layers[n]), holds)
        if self.late(self.end) or self.tried >= TRIALS:
            self.notes.append("not all was tried: fewer layers may be enough")
        effect = {n: e for part, e in parts.items() for n in part}
        kind = "f16 arithmetic" if level == "normal" else "f16"
        self.reasons |= {n: f"{kind} in it and its neighbours moves outputs by {effect[n]:.2g}"
                         if len(parts) > 1 else f"there was no time to try {kind} in parts"
                         for n in layers if n in up}
        return low([n for n in layers if n not in up])

    def _parts(self, layers: Sequence[str], effect: Callable[[Sequence[str]], float]
               ) -> dict[tuple[str, ...], float]:
        """Runs of layers, and what each does to outputs."""
        found = {tuple(layers): float("inf")}
        for _ in range(SPLITS):
            most = max(found, key=lambda p: found[p] * (len(p) > 1))
            if len(most) < 2 or not found[most] or self.late(self.half):
                break                   # the other half of the time is for sets of layers
            half = len(most) // 2
            del found[most]
            found |= {part: effect(part) for part in (most[:half], most[half:])}
        return found

    def _layers(self, options: Options) -> dict[str, int]:
        """Layers in the order in which they run, and the FLOPs of their kernels."""
        with self._model(options) as model:
            self._outputs(model, self.order[0])
            found: dict[str, int] = {}
            for plan in model.plans_of_run:
                for step in plan.steps:
                    for name, _ in step.origins[-1:]:           # a kernel is as its strictest node
                        found[name] = found.get(name, 0) + step.flops
        return found

    def _whole(self, layers: Mapping[str, int]) -> dict[str, int]:
        """With those in the bodies of others counted as part of these: a precision that is said of
        a node holds for all in it, of which some kernels are called after others.
        """
        names, found = self.source.nodes(), dict[str, int]()
        for name, flops in layers.items():
            at = name
            while at in names:
                name, at = at if at in layers else name, names[at].inside
            found[name] = found.get(name, 0) + flops
        return found

    def _checked(self, options: Options) -> list[Any]:
        """The options, and what they came to: two runs of each input, compared."""
        most, same = 0.0, True
        with self._model(options) as model:
            for k, wanted in enumerate(self.wanted):
                one, two = (self._outputs(model, k) for _ in range(2))
                most = max(most, error(one, wanted))
                same = same and all(bit_equal(a[n], b[n]) for a, b in zip(one, two) for n in a)
            share = 0.0 if ALL in options.promoted else _share(model, self.reasons)
        if not same:
            self.notes.append(f"two runs on {self.device.name} differ in their bits")
            log.warning("%s: %s", self.source.name, self.notes[-1])
        runs = [outputs for wanted in self.wanted for outputs in wanted]
        self.remark(runs, "in f32")
        chosen = Chosen(self.trial.said, most, len(runs), self.trial.random, share,
                        tuple(self.reasons.items()), tuple(self.notes))
        return [{**dict(options.layers), ALL: options.precision}, options.promoted, options.scaled,
                asdict(chosen)]


def error(found: Runs, wanted: Runs) -> float:
    """The largest one of an output; without end where there are more runs, or fewer."""
    if len(found) != len(wanted):
        return float("inf")
    return max((e for f, w in zip(found, wanted) for e in errors(f, w).values()), default=0.0)


def _share(model: Model, raised: Mapping[str, str]) -> float:
    """Of all FLOPs, those of groups that read or write f16, and have none of these nodes."""
    half = total = 0
    for plan in model.plans_of_run:
        low = {s.group for s in plan.steps if any(plan.buffers[b].dtype == "f16" for b in s.buffers)
               and not any(name in raised for name, _ in s.origins)}
        total += sum(s.flops for s in plan.steps)
        half += sum(s.flops for s in plan.steps if s.group in low)
    return half / total if total else 0.0


__all__ = ["BUDGET", "TOLERANCE", "Runs", "Search", "Trial", "choose", "error"]

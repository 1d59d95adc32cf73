"""The guard of f16: results that its range spoilt are computed again, in f32 where it is needed.

    run ─► infinite, NaN, or all zeros? ─► the same in f32: right there?
                                             └► which groups leave f16's range ─► f32 for these,
                                                from now on, and in the device's cache; run again

What f32 computes so, too, is the model's own, and stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jitcl.devices.base import DeviceArray
from jitcl.errors import OutOfMemoryError
from jitcl.passes.options import Options
from jitcl.runtime.cache import DeviceCache, Key, code_version
from jitcl.runtime.inputs import digest_of
from jitcl.runtime.source import Source
from jitcl.runtime.specialise import Patience, Specialisation, free_frames, opening
from jitcl.runtime.tensors import elements

if TYPE_CHECKING:
    from jitcl.codegen.plan import Plan
    from jitcl.ir.group import Group
    from jitcl.runtime.lowering import Lowering
    from jitcl.runtime.model import Model

HUGE, LEAST = 65504.0, 2.0 ** -25       # beyond these, halves are infinite and zero
IN_VAIN = 8                             # repeats of one result that f32 made no better
FEW = 256                               # elements that show that a result is not zeros alone
SHORT = 8192                            # elements whose product NumPy's BLAS keeps in one thread
ROUNDS = 8                              # of finding layers, before all are computed in f32

Compute = Callable[[Specialisation], list[np.ndarray]]
# (which result, or ~number of a group; "zeros", "" of all or some, or a digest of which elements
# are not finite; a digest of the inputs where that alone says little)
Sign = tuple[int, str, str]
log = logging.getLogger("jitcl")


class Stored(NamedTuple):
    """What a group stores: the largest finite magnitude, and how many elements are not finite."""

    largest: float
    lost: int


UNKNOWN = Stored(0.0, -1)

@dataclass(eq=False)
class Guard:
    """What one model's results are looked at for. options: with what was put into f32 so far."""

    source: Source
    cache: DeviceCache
    options: Options
    known: set[Sign] = field(default_factory=set)       # that f32 gives, too
    vain: Counter[tuple[int, bool]] = field(default_factory=Counter)    # True: of zeros
    # nodes of each kernel that it put into f32: the largest magnitude that kernel stored, and the
    # power of two by which it can be divided; 0: by none
    reach: dict[tuple[str, ...], tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stored = self.cache.get("model", self._key()) if self.options.guard != "off" else None
        if stored is not None:
            self._take(stored)

    def signs(self, values: Sequence[Any], plan: Plan, arrays: Mapping[str, Any]) -> list[Sign]:
        """What is suspicious of a run's results, behind which stand the plan's flags. Of results
        that stay on the device, small ones are read; flags tell of the others, but not of zeros.
        arrays: the inputs.
        """
        if self.options.guard == "off" or not plan.stores_f16:
            return []
        finite = plan.watched_results
        found: list[tuple[int, str]] = []
        if plan.watched:
            flags = values[-1].tolist()
            if any(flags):
                hit = [w for w in plan.watched if flags[w.place]]
                finite = finite.difference(w.result for w in hit)
                found = [(~w.group, "") for w in hit if w.result < 0]
        for place in plan.float_results:
            value, flagged = values[place], place in finite
            if isinstance(value, DeviceArray) and not flagged:
                value = value.read()
            if not isinstance(value, np.ndarray) or (_any(value) if flagged else _fine(value)):
                continue
            sign = _sign(value)
            if sign is not None:
                found.append((place, sign))
        found = [f for f in found if self.vain[_kind(f)] < IN_VAIN]
        if not found:
            return []
        # other inputs may give the same zeros for another reason
        given = digest_of([{n: elements(a) for n, a in arrays.items()}]) if any(
            sign in ("", "zeros") for _, sign in found) else ""
        told = [(*f, given if f[1] in ("", "zeros") else "") for f in found]
        return [s for s in told if s not in self.known]

    def after(self, model: Model, arrays: Mapping[str, np.ndarray], compute: Compute,
              special: Specialisation, values: list[np.ndarray]
              ) -> tuple[list[np.ndarray], Specialisation]:
        """The results of a run, less flags, and what computed them; or of a better one."""
        signs = self.signs(values, special.plan, arrays)
        if signs:
            try:
                values, special = _Repair(self, model, arrays, compute).run(special, values)
            except OutOfMemoryError as error:   # as f16 it fits
                free_frames(error)
                self.known.update(signs)
                log.warning("%s: results are infinite, NaN or zeros alone, perhaps as f16 can't "
                            "hold them: there is no memory to compute them in f32, too\n  Compile "
                            "with precision='high', or on a device with more memory.",
                            self.source.name)
        return values[:len(values) - len(special.plan.looked_at)], special

    def not_ours(self, signs: Sequence[Sign], plan: Plan) -> None:
        """f32 gives them, too. What it never betters is given up, and that is said: from then on
        nobody would tell what f16 does to it.
        """
        self.known.update(signs)
        ended = []
        for kind in dict.fromkeys(map(_kind, signs)):
            self.vain[kind] += 1
            if self.vain[kind] == IN_VAIN:
                ended.append(kind)
        if ended:
            number, zeros = ended[0]
            nodes = [n for w in plan.watched if w.group == ~number for n, _ in w.nodes[:1]]
            what = (f"output '{plan.output_names[number]}'" if number >= 0 else
                    f"layer {', '.join(map(repr, nodes)) or ~number}")
            what += f" (and {len(ended) - 1} more)" if len(ended) > 1 else ""
            log.warning("%s: %s was %s in f32, too, in %d runs: the guard looks for that no more "
                        "in this process", self.source.name, what,
                        "zeros alone" if zeros else "infinite or NaN", IN_VAIN)

    def promote(self, names: Sequence[str]) -> None:
        """Compute these nodes in f32 from now on, in later processes too."""
        stored = self.cache.get("model", self._key())
        if stored is not None:
            self._take(stored)
        self._promote(names)
        self.cache.put("model", self._key(), json.dumps(
            [self.options.promoted, list(self.reach.items())]).encode())

    def _take(self, stored: bytes | memoryview) -> None:
        """What another guard has found."""
        promoted, reach = json.loads(bytes(stored))
        self._promote(promoted)
        self.reach = {**{tuple(names): tuple(found) for names, found in reach}, **self.reach}

    def _promote(self, names: Sequence[str]) -> None:
        more = dict.fromkeys((*self.options.promoted, *names))
        self.options = replace(self.options, promoted=("*",) if "*" in more else tuple(more))

    def _key(self) -> Key:
        asked = replace(self.options, promoted=(), guard="off", each=False).key_parts()
        return Key({"model": self.source.digest, "code": code_version(), "of": "promoted",
                    **asked}, f"layers of {self.source.name}")


class _Repair:
    """One run that the guard caught."""

    def __init__(self, guard: Guard, model: Model, arrays: Mapping[str, np.ndarray],
                 compute: Compute) -> None:
        self.guard, self.model, self.arrays, self.compute = guard, model, arrays, compute
        self.values = model._identity(arrays)[0]

    def run(self, special: Specialisation, values: list[np.ndarray]
            ) -> tuple[list[np.ndarray], Specialisation]:
        guard, model = self.guard, self.model
        with model._lock:
            newest = model._specialise(self.arrays, Patience())
            if newest.plan is not special.plan:         # another thread has caught it
                special, values = newest, self.compute(newest)
            wide = self._lowering(Options("high", guard.options.weights or guard.options.memory,
                                           promoted=("*",), scaled=guard.options.scaled))
            wide.watch(range(len(wide.groups)))
            exact, sound = self._computed(wide)
            for _ in range(ROUNDS):
                signs = guard.signs(values, special.plan, self.arrays)
                wrong = self._wrong(signs, values, exact, sound)
                theirs = [s for s in signs if s not in wrong]
                if not guard.options.each and any(n < 0 for n, *_ in theirs):
                    guard.options = replace(guard.options, each=True)   # whom do these tell of?
                    special = self._recompiled()
                    values = self.compute(special)
                    continue
                guard.not_ours(theirs, special.plan)
                if not wrong or "*" in guard.options.promoted:
                    break
                special = self._promoted(sound)
                values = self.compute(special)
            return values, special

    def _wrong(self, signs: Sequence[Sign], values: Sequence[np.ndarray],
               exact: Sequence[np.ndarray], sound: Mapping[int, Stored]) -> list[Sign]:
        """Those of which f32 gives a better result."""
        wrong = [s for s in signs if s[0] >= 0 and _better(exact[s[0]], _here(values[s[0]]))]
        layers = [s for s in signs if s[0] < 0]
        wrong += [s for s in layers if sound.get(~s[0], UNKNOWN).lost == 0]
        left = [s for s in layers if s not in wrong]
        if left:                                # in f32, too, elements are not finite: as many?
            got = self._as_it_runs()[3]
            if any(v.lost > sound.get(i, UNKNOWN).lost >= 0 for i, v in got.items()):
                wrong += left
        return wrong

    def _as_it_runs(self) -> tuple[list[Group], Any, set[int], dict[int, Stored]]:
        """Groups of the model with what f16 is used for now, the graph, which of them store f16,
        and what they store."""
        lowering = self._lowering(replace(self.guard.options, guard="off"))
        groups, graph, halves = list(lowering.groups), lowering.graph, lowering.halves
        lowering.watch(range(len(groups)))
        return groups, graph, halves, self._computed(lowering)[1]

    def _promoted(self, exact: Mapping[int, Stored]) -> Specialisation:
        """What was compiled with the layers in f32 that leave f16's range."""
        from jitcl.passes.rescale import power_of, rescaled

        guard = self.guard
        groups, graph, halves, got = self._as_it_runs()
        culprits = _culprits(groups, halves, got, exact)
        names = _nodes(groups, graph, culprits)
        fresh = {n: op for n, op in names.items() if n not in guard.options.promoted}
        if not culprits or not fresh or any(not _nodes(groups, graph, [c]) for c in culprits):
            fresh = {"*": ""}
        for c in culprits:
            inside, largest = tuple(_nodes(groups, graph, [c])), exact.get(c, UNKNOWN).largest
            power = power_of(largest)
            divided = rescaled(graph, ((inside, power),)) is not graph
            guard.reach[inside] = largest, power if divided else 0
        self._tell(fresh, groups, graph, culprits, exact)
        guard.promote(list(fresh))
        return self._recompiled()

    def _recompiled(self) -> Specialisation:
        self.model.recompile(self.guard.options)
        return self.model._specialise(self.arrays, Patience())

    def _lowering(self, options: Options) -> Lowering:
        from jitcl.runtime.lowering import Lowering

        shapes = {n: a.shape for n, a in self.arrays.items()}
        return Lowering(self.model.source, shapes, self.values, self.model.device, options)

    def _computed(self, lowering: Lowering) -> tuple[list[np.ndarray], dict[int, Stored]]:
        """Results, and what groups store, by their number."""
        model = self.model
        _, plan = lowering.plan(None)
        loaded = model.device.load(plan, model.cache)
        try:
            found = list(map(_here, self.compute(
                Specialisation(plan, loaded, model.device, opening(model.device)))))
        finally:
            loaded.close()
        count = len(found) - len(plan.watched)
        said = zip(plan.watched[::2], found[count::2], found[count + 1::2])
        return found[:count], {w.group: Stored(float(np.max(largest)), int(np.max(lost)))
                               for w, largest, lost in said}

    def _tell(self, fresh: Mapping[str, str], groups: Sequence[Group], graph: Any,
              culprits: Sequence[int], exact: Mapping[int, Stored]) -> None:
        fed = {n: elements(a) for n, a in self.arrays.items() if a.dtype.kind == "f"}
        ranges = ", ".join(
            f"'{n}' {np.nanmin(a):.4g} to {np.nanmax(a):.4g}" for n, a in fed.items()
            if not np.isnan(a).all()) or "none of floats"
        if "*" in fresh:
            where, reach = "a layer that could not be told apart leaves", ""
            now = "the model is computed in f32"
        else:
            first = culprits[0]
            inside = _nodes(groups, graph, [first])
            name, *others = inside
            where = f"layer '{name}' ({inside[name]})"
            where += f" with {', '.join(map(repr, others))}" if others else ""
            rest = len(fresh) - len(inside)
            where += f", and {rest} more leave" if rest > 0 else " leaves"
            largest = exact[first].largest if first in exact else 0.0
            reach = f" (magnitudes up to {largest:.4g}; f16 holds {LEAST:.0g} to {HUGE:.0f})"
            now = "computed in f32"
        log.warning("%s: %s the range of f16%s for inputs %s; from now on %s: "
                    "see guard= of jitcl.compile", self.model.source.name, where, reach, ranges,
                    f"it is {now}" if not now.startswith("the") else now)


def _better(exact: np.ndarray, got: np.ndarray) -> bool:
    """Whether a result in f32 is finite where the other is not, or not zeros alone, as that is."""
    return bool((np.isfinite(exact) & ~np.isfinite(got)).any() or (exact.any() and not got.any()))


def _here(value: Any) -> Any:
    """A result for the host, wherever it lies."""
    return value.read() if isinstance(value, DeviceArray) else value


def _fine(value: np.ndarray) -> bool:
    """Whether a sum shows that a result is finite, and not zeros alone: one of squares, by `vdot`,
    which warns of nothing; it is slow for halves: of these it is the plain one. Code is cold behind
    a run: each call of NumPy's, be it for a view, takes 2 to 9 us, so there is one.
    """
    if value.itemsize == 2:
        with np.errstate(all="ignore"):         # sums of large halves are infinite
            total = float(np.add.reduce(value, axis=None, dtype=np.float32))
            return total != 0 and math.isfinite(total)
    if value.size <= SHORT:
        return 0 < float(np.vdot(value, value)) < math.inf
    x, total = value.reshape(-1), 0.0
    for k in range(0, x.size, SHORT):
        part = x[k:k + SHORT]
        total += float(np.vdot(part, part))
    return 0 < total < math.inf


def _any(value: np.ndarray) -> bool:
    """Whether the beginning of a result, which is finite, is not zeros alone."""
    if value.item(0) != 0:
        return True
    x = value.reshape(-1)[:FEW]
    return bool(np.vdot(x, x) != 0)


def _sign(value: np.ndarray) -> str | None:
    """None where nothing is suspicious."""
    finite = np.isfinite(value)
    if finite.all():
        return "zeros" if value.size and not value.any() else None
    return hashlib.sha256(np.packbits(finite).tobytes()).hexdigest() if finite.any() else ""


def _kind(sign: Sequence[Any]) -> tuple[int, bool]:
    """By which looks in vain are counted."""
    return sign[0], sign[1] == "zeros"


def _culprits(groups: Sequence[Group], halves: set[int], got: Mapping[int, Stored],
              exact: Mapping[int, Stored]) -> list[int]:
    """Groups whose results f16 can't hold, and those that made wrong ones of right operands."""
    number = {g.root: i for i, g in enumerate(groups)}
    bad = {i for i, v in got.items() if i in exact and (
        v.lost > exact[i].lost or (v == (0.0, 0) and exact[i].largest > 0))}
    unfit = {i for i in halves if i in exact and (
        exact[i].largest > HUGE or 0 < exact[i].largest < LEAST)}
    own = {i for i in bad if not any(number.get(n) in bad for n in groups[i].operands)}
    return sorted(own | unfit)


def _nodes(groups: Sequence[Group], graph: Any, chosen: Sequence[int]) -> dict[str, str]:
    """Names and op types of the model's nodes in groups."""
    from jitcl.passes.precision import names_in

    return {n: op for i in chosen for n, op in names_in(groups[i], graph).items()}


__all__ = ["Guard"]

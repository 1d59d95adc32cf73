"""RNN, GRU and LSTM: each step's products with the recurrent weights as register tiles.

The cell's arithmetic is the op's own: its scan is run once on a builder that puts a vector in the
place of each product with r, and the template computes these vectors.

Where r is bytes, so are the factors, on CPUs that add products of bytes by fours: each step's
states are rounded to 16 bits of the largest one, and their two bytes are rows of one tile. A step
reads all of r, a quarter of what it would be as floats; a state's second byte costs no reading.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from jitcl.errors import JitclError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr, Number
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import Store
from jitcl.ir.types import ROW
from jitcl.ops.builder import lookup
from jitcl.ops.core import Part, Scan
from jitcl.target import Target
from jitcl.templates.base import ENTRY, Argument, CpuHooks, Emitted, Match, Packed, Template
from jitcl.templates.cpu.arithmetic import FLOATS, Arithmetic, fours, of_bytes

CELLS = ("lstm_states", "gru_states", "rnn_states")
MOST_VECTORS = 12              # sums of one row that a tile keeps in registers
NARROWEST = 4                  # lanes


@dataclass(frozen=True, order=True)
class Source:
    """Which state a product reads: a slot of the row this many steps behind the current one."""

    row: int
    slot: int


@dataclass(frozen=True)
class Product:
    """r @ state, of one gate."""

    gate: int
    source: Source

    @property
    def name(self) -> str:
        return f"g{self.gate}_{self.source.row}{self.source.slot}"


@dataclass(frozen=True)
class Stage:
    """Products that are computed together, and the stores that need them."""

    products: tuple[Product, ...]
    stores: tuple[Store, ...]

    def sources(self, most: int) -> list[tuple[Source, tuple[int, ...]]]:
        """Each source with the gates that are multiplied with it, at most so many at once."""
        by_source = sorted(self.products, key=lambda p: p.source)
        found = []
        for source, products in itertools.groupby(by_source, lambda p: p.source):
            gates = tuple(p.gate for p in products)
            found += [(source, gates[k:k + most]) for k in range(0, len(gates), most)]
        return found


@dataclass(frozen=True)
class Tiling:
    """`rows` sequences of the batch share `units` vectors of hidden units of `gates` gates."""

    lanes: int
    rows: int
    units: int
    gates: int


def pack_gates(r: np.ndarray, gates: tuple[int, ...], t: Tiling, numbers: Arithmetic
               ) -> np.ndarray:
    """[directions, G * H, H] -> [directions][panels][H][units][gates][lanes]; zeros behind H.
    Of bytes, H / 4 words of four."""
    directions, _, hidden = r.shape
    r = r.astype(np.float32) if numbers is FLOATS else fours(r, 2)
    panel = t.units * t.lanes
    panels = -(-hidden // panel)
    full = np.zeros((directions, len(gates), panels * panel, r.shape[2]), r.dtype)
    for k, gate in enumerate(gates):
        full[:, k, :hidden] = r[:, gate * hidden:(gate + 1) * hidden]
    split = full.reshape(directions, len(gates), panels, t.units, t.lanes, r.shape[2])
    return np.ascontiguousarray(split.transpose(0, 2, 5, 3, 1, 4))


def row_sums(r: np.ndarray, lanes: int) -> np.ndarray:
    """Sums of rows times 128, what a byte's middle adds: i32 [directions][G][vectors * lanes]."""
    directions, rows, hidden = r.shape
    sums = 128 * r.sum(2, dtype=np.int32).reshape(directions, rows // hidden, hidden)
    return np.ascontiguousarray(np.pad(sums, ((0, 0), (0, 0), (0, -hidden % lanes))))


class _Products(KernelBuilder):
    """Gives the vector g<gate> for each sum of products of the state with recurrent weights."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.found: list[Product] = []

    def reduce(self, combine: str, extents: Sequence[int], term: Callable[..., Expr],
               init: Number | None = None) -> Expr:
        value = term(*(E.var(f"k{a}", extent=d) for a, d in enumerate(extents)))
        state, weight = value.args if value.op == "mul" else (value, value)
        if combine != "add" or state.value != "y" or weight.value != "r":
            raise JitclError(f"a recurrent cell sums {value!r}: the template knows r * state only")
        _, offset = E.linear(weight.indices[1])
        row, slot = E.linear(state.indices[2])[1], state.indices[3].value
        product = Product(offset // self.hidden, Source(row, slot))
        if product not in self.found:
            self.found.append(product)
        return E.var(product.name, "f32")


class RecurrentCpu(Template[Match, CpuHooks]):
    """The states of recurrent cells in f32 with constant recurrent weights, f32 or bytes."""

    name = "recurrent_cpu"

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]:
        root = group.root
        if root.op not in CELLS or target.kind != "cpu" or group.inlined:
            return ()
        if root.type.dtype != "f32" or root.type.layout != ROW or root.type.size == 0:
            return ()
        if root.inputs[1].op != "const" or root.type.dims[-1] < 2 or root.type.dims[2] < 2:
            return ()
        return (Match(),)

    def emit(self, match: Match, hooks: CpuHooks) -> list[Emitted]:
        return [_Writer(hooks).emit()]


class _Writer:
    def __init__(self, hooks: CpuHooks) -> None:
        self.hooks = hooks
        self.root: Node = hooks.group.root
        self.r = self.root.inputs[1]
        self.directions, self.batch, self.rows, self.slots, self.hidden = self.root.type.dims
        self.gates = self.r.type.dims[1] // self.hidden
        target: Target = hooks.target
        bytes_too = self.r.type.dtype == "i8" and target.byte_dot and (
            self.lanes() == target.vector_width)
        self.numbers = of_bytes(target) if bytes_too else FLOATS
        self.each = 2 if bytes_too else 1        # rows of a tile that a sequence has

    def emit(self) -> Emitted:
        starts, stages = self.stages()
        widest = max(len(s.products) for s in stages)
        t = self.tiling(widest, self.hooks.target)
        vectors = -(-self.hidden // t.lanes)
        texts: list[tuple[list[tuple[Source, tuple[int, ...], str]], list[str]]] = []
        packed: list[Packed] = []
        for stage in stages:
            found = []
            for source, gates in stage.sources(t.gates):
                found.append((source, gates, f"w{len(packed)}"))
                packed.append(Packed(self.r, f"recurrent {gates} {t} {self.numbers}", partial(
                    pack_gates, gates=gates, t=t, numbers=self.numbers)))
            texts.append((found, self.lines(stage, t)))
        sums = [] if self.numbers is FLOATS else [
            Packed(self.r, f"recurrent sums {t.lanes}", partial(row_sums, lanes=t.lanes))]
        operands = [n for n in self.hooks.names if n is not self.r]
        body = self.hooks.render(
            "recurrent_cpu/numba.py.j2", entry=ENTRY, stages=texts, starts=starts,
            packed=[*((f"w{k}", self.numbers.dtype) for k in range(len(packed))),
                    *(("row_sums", "i32") for _ in sums)],
            operands=[(self.hooks.names[n], n.type.dtype) for n in operands],
            directions=self.directions, batch=self.batch, steps=self.rows - 1,
            tiles=-(-self.batch // t.rows), slots=self.slots, hidden=self.hidden, vectors=vectors,
            panels=-(-vectors // t.units), ROWS=t.rows, UNITS=t.units, W=t.lanes, VECTORS=widest,
            tile=self.numbers.tile, kind=self.numbers.dtype, EACH=self.each,
            DEPTH=-(-self.hidden // self.numbers.together))
        arguments: tuple[Argument, ...] = (*packed, *sums, *operands, self.root)
        stem = self.root.op.removesuffix("_states") + ("_bytes" if sums else "")
        stem += f"_{t.rows}x{t.units}"
        return Emitted(stem, body, arguments, (self.root,))

    # ---- what the op's own scan says

    def stages(self) -> tuple[list[str], list[Stage]]:
        """Lines that store the initial states, and the stages of one step. Parts that need no state
        of their own step from a product share a stage."""
        s = _Products(self.hidden)
        s.out = self.root.type
        loaders = [_Weights(n) if n is self.r else self.hooks.loader(n) for n in self.root.inputs]
        run = lookup(self.root.op).scan
        assert run is not None
        scan: Scan = run(s, self.own, *loaders, **self.root.kwargs)
        chain = (self.variable("d", self.directions), self.variable("b", self.batch))
        unit = E.var("j", extent=self.hidden)
        starts = self.hooks.cell_starts([self.store(p, unit) for p in scan.init(chain)])
        lane = E.var("nb") * self.lanes() + E.var("lane", extent=self.lanes())
        stages: list[Stage] = []
        for part in scan.step(chain, E.var("t", extent=scan.steps)):
            s.found = []
            store = self.store(part, lane)
            if stages and all(p.source.row == 0 for p in s.found):
                more = tuple(p for p in s.found if p not in stages[-1].products)
                stages[-1] = Stage((*stages[-1].products, *more), (*stages[-1].stores, store))
            else:
                stages.append(Stage(tuple(s.found), (store,)))
        return starts, stages

    def own(self, *ix: Expr | int) -> Expr:
        at = tuple(E.index(i) if isinstance(i, int) else i for i in ix)
        return E.load("y", at, "f32")

    def variable(self, name: str, extent: int) -> Expr:
        return E.index(0) if extent == 1 else E.var(name, extent=extent)

    def store(self, part: Part, j: Expr) -> Store:
        return Store("y", part.at(j), part.value(j))

    # ---- the kernel's form

    def lanes(self) -> int:
        """Lanes of a vector: fewer where there are few hidden units."""
        width: int = self.hooks.target.vector_width
        while width > NARROWEST and width // 2 >= self.hidden:
            width //= 2
        return width

    def tiling(self, gates: int, target: Target) -> Tiling:
        """The tile with the fewest cycles for a step, as `choose_tile` counts them. Fewer gates at
        once leave registers for more rows, or units, that share what is loaded.
        """
        lanes = self.lanes()
        vectors, free = -(-self.hidden // lanes), target.registers - 3
        best, least = Tiling(lanes, 1, 1, gates), math.inf
        for rows, most in itertools.product(range(1, min(self.batch, 8) + 1), range(1, gates + 1)):
            for units in range(1, vectors + 1):
                wide, height = units * most, rows * self.each
                if wide > max(MOST_VECTORS, most) or (height + 1) * wide > free:
                    break
                cycles = max(height * wide / 2, (height + wide) / 2, target.core.fma_chain)
                cycles = (cycles + 0.15 * wide + 0.4) * -(-gates // most)
                chains = self.directions * -(-self.batch // rows)
                turns = -(-chains // max(1, target.compute_units))
                total = cycles * -(-vectors // units) * turns
                if total < least:
                    best, least = Tiling(lanes, rows, units, most), total
        return best

    def lines(self, stage: Stage, t: Tiling) -> list[str]:
        """A stage's stores for one vector of hidden units of one sequence."""
        lane = E.var("lane", extent=t.lanes)
        left = f"{self.hidden} - nb * {t.lanes}" if self.hidden % t.lanes else ""
        names = tuple(p.name for p in stage.products)
        loads, at = [], 0
        for source, gates in stage.sources(t.gates):
            for gate in gates:
                name = Product(gate, source).name
                block = f"({at} + u * {len(gates)} + {gates.index(gate)}) * {t.rows * self.each}"
                loads += self.total(name, gate, block, t)
            at += len(gates) * t.units
        lines = self.hooks.cell_lines(stage.stores, lane, t.lanes, names, left)
        if lines is None:
            raise JitclError(f"'{self.root.op}' is no function of vectors of hidden units")
        return [*loads, *lines]


    def total(self, name: str, gate: int, block: str, t: Tiling) -> list[str]:
        """Lines that make a product of what the tile left in `acc`."""
        if self.numbers is FLOATS:
            return [f"{name} = vload(acc, ({block} + c) * {t.lanes}, {t.lanes})"]
        vectors = -(-self.hidden // t.lanes)
        high, low = (f"vload(acc, ({block} + c * 2 + {k}) * {t.lanes}, {t.lanes})" for k in (0, 1))
        middle = f"vload(row_sums, ((d * {self.gates} + {gate}) * {vectors} + nb) * {t.lanes}, " \
                 f"{t.lanes})"
        if self.numbers.less:              # the tile took it from both bytes: the low one has none
            low = f"{low} + {middle}"
        else:
            high = f"{high} - {middle}"
        return [f"{name} = fma(to_f32({high}), f32(256), to_f32({low})) * splat(load(factors, c), "
                f"{t.lanes})"]


class _Weights:
    """Stands for the recurrent weights in the op's scan."""

    def __init__(self, r: Node) -> None:
        self.type, self.shape, self.dtype = r.type, r.type.dims, r.type.dtype

    def __call__(self, *ix: Expr) -> Expr:
        return E.load("r", ix, "f32")

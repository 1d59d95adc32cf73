"""Random graphs: `Drawer` makes one node after the other and keeps every value concrete, so that
what is drawn next can be made to fit (indices inside their axes, divisors that are not zero)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz import oracle

OPSET = onnx.defs.onnx_opset_version()
ELEMENTS = 700                          # most elements of a tensor: the interpreter is slow
FLOATS = ("float32", "float16", "float64", "bfloat16")
INTS = ("int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
ANY = (*FLOATS, *INTS, "bool")
KINDS = ("normal", "whole", "positive", "wide", "special")
# NaN and infinities: how an op treats them is only asked where ONNX leaves no doubt
ORDINARY = KINDS[:4]
_DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 0, 16, 17, 33)

T = TypeVar("T")


class Skip(Exception):
    """The drawn node makes no sense, or onnx's reference does not compute it: draw another."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph and what it is for the drawn feeds."""

    name: str
    array: np.ndarray

    @property
    def dtype(self) -> str:
        return self.array.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim


@dataclass(frozen=True)
class Case:
    """A drawn model and what to feed it."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]

    def ops(self) -> list[str]:
        return [n.op_type for n in self.model.graph.node]

    def __repr__(self) -> str:
        """For Hypothesis, which prints the minimal failing case."""
        lines = [onnx.printer.to_text(self.model)]
        for name, x in self.feeds.items():
            lines.append(f"{name}: {x.dtype}{list(x.shape)} = {x.reshape(-1)[:40].tolist()}")
        return "\n".join(lines)


class Drawer:
    """Draws one graph. `draw` is Hypothesis's."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 9999)))
        self.values: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[Value] = []
        self.stored: list[Value] = []
        self.kinds: tuple[str, ...] = KINDS
        self.count = 0

    # ---- choices

    def pick(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    def int(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def shape(self, low: int = 0, high: int = 6, least: int = 0) -> tuple[int, ...]:
        """A shape of low to high axes of at least `least` elements; at most ELEMENTS in all."""
        found: list[int] = []
        room = ELEMENTS
        for _ in range(self.int(low, high)):
            fits = [d for d in _DIMS if least <= d <= room]
            found.append(self.pick(fits or [1]))
            room //= max(1, found[-1])
        return tuple(found)

    def axis(self, rank: int) -> int:
        return self.int(0, rank - 1) - (rank if self.flag() else 0)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        if rank == 0:
            return []
        some = self.draw(st.lists(st.integers(0, rank - 1), unique=True, min_size=least,
                                  max_size=rank))
        return [a - rank if self.flag() else a for a in some]

    # ---- values

    def array(self, dtype: str, shape: Sequence[int], kinds: Sequence[str] | None = None
              ) -> np.ndarray:
        return content(self.rng, dtype, tuple(shape), self.pick(kinds or self.kinds))

    def fresh(self, dtype: str, shape: Sequence[int], kinds: Sequence[str] | None = None) -> Value:
        """A new graph input or initialiser."""
        return self.given(self.array(dtype, shape, kinds))

    def given(self, array: np.ndarray) -> Value:
        """A new graph input or initialiser of these elements."""
        value = Value(self.name(), np.asarray(array))
        (self.stored if self.int(0, 3) == 0 else self.inputs).append(value)
        self.values.append(value)
        return value

    def constant(self, values: Any, dtype: str = "int64") -> Value:
        """A parameter: mostly an initialiser, at times the input of the graph."""
        value = Value(self.name(), np.asarray(values, np_dtype(dtype)))
        (self.inputs if self.int(0, 5) == 5 else self.stored).append(value)
        return value

    def any(self, dtypes: Sequence[str] = FLOATS, low: int = 0, high: int = 6,
            where: Callable[[Value], bool] = lambda v: True,
            shape: Callable[[], Sequence[int]] | None = None,
            kinds: Sequence[str] | None = None) -> Value:
        """A value of the graph that fits, or a new one. `where` holds for the new one's `shape`."""
        fits = [v for v in self.values[-6:] if v.dtype in dtypes and low <= v.rank <= high
                and where(v)]
        if fits and self.int(0, 9) < 7:
            return self.pick(fits)
        made = shape() if shape is not None else self.shape(low, high)
        return self.fresh(self.pick(dtypes), made, kinds)

    def like(self, value: Value, kinds: Sequence[str] | None = None) -> Value:
        """An operand that broadcasts with `value`, of its type."""
        fits = [v for v in self.values[-6:] if v.dtype == value.dtype and _broadcast(v, value)]
        if fits and kinds is None and self.flag():
            return self.pick(fits)
        shape = [d if self.int(0, 3) else 1 for d in value.shape]
        shape = shape[self.int(0, len(shape)) if self.flag() else 0:]
        if self.int(0, 3) == 0 and value.array.size and value.rank < 6:
            widened = [self.pick((2, 3)) if d == 1 and value.array.size < 60 else d
                       for d in (value.shape[len(value.shape) - len(shape):])]
            if not value.rank and self.flag():
                widened = [3]
            shape = widened
        return self.fresh(value.dtype, shape, kinds)

    # ---- nodes

    def node(self, op: str, *inputs: Value | None, outputs: int = 1, domain: str = "",
             **attrs: Any) -> list[Value]:
        """Add a node; Skip where ONNX's inference or its reference refuses it."""
        given = [v for v in inputs if v is not None]
        names = ["" if v is None else v.name for v in inputs]
        while names and not names[-1]:
            names.pop()
        results = [self.name() for _ in range(outputs)]
        proto = helper.make_node(op, names, results, domain=domain,
                                 **{k: v for k, v in attrs.items() if v is not None})
        types = output_types(proto, given)
        try:
            arrays = oracle.evaluate(proto, [None if v is None else v.array for v in inputs])
        except oracle.Refused as error:
            raise Skip(str(error)) from error
        found = []
        for name, array, (dtype, dims) in zip(results, arrays, types):
            if array.size > 4 * ELEMENTS:
                raise Skip("large")
            if dims is not None and (len(dims) != array.ndim or any(
                    d is not None and d != n for d, n in zip(dims, array.shape))):
                raise Skip(f"ONNX infers {dims}, its reference gives {array.shape}")
            found.append(Value(name, np.asarray(array).astype(np_dtype(dtype))))
        self.nodes.append(proto)
        self.values += found
        return found

    # ---- the whole

    def case(self) -> Case:
        """The model of what was drawn; whatever no node reads is an output, and some more."""
        read = {n for p in self.nodes for n in p.input}
        made = [v for v in self.values if any(v.name in p.output for p in self.nodes)]
        outputs = [v for v in made if v.name not in read or self.int(0, 4) == 0]
        used = read | {v.name for v in outputs}
        inputs = [v for v in self.inputs if v.name in used]
        stored = [v for v in self.stored if v.name in used]
        graph = helper.make_graph(
            self.nodes, "fuzz", [_info(v) for v in inputs], [_info(v) for v in outputs],
            [_tensor(v.name, v.array) for v in stored])
        versions = [helper.make_opsetid("", OPSET)]
        domains = {n.domain for n in self.nodes} - {""}
        versions += [helper.make_opsetid(d, 1) for d in sorted(domains)]
        model = helper.make_model(graph, opset_imports=versions)
        return Case(model, {v.name: v.array for v in inputs})


def np_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)


def onnx_type(dtype: np.dtype) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def _info(v: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(v.name, onnx_type(v.array.dtype), v.shape)


def _tensor(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _broadcast(a: Value, b: Value) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a.shape, b.shape), dtype=int)) <= ELEMENTS
    except ValueError:
        return False


Dims = tuple[int | None, ...] | None


def output_types(proto: onnx.NodeProto, inputs: Sequence[Value]) -> list[tuple[str, Dims]]:
    """Element types and shapes of a node's outputs by ONNX's inference; Skip where the node is no
    valid one."""
    graph = helper.make_graph(
        [proto], "one", [_info(v) for v in {v.name: v for v in inputs}.values()],
        [onnx.ValueInfoProto(name=n) for n in proto.output])
    versions = [helper.make_opsetid("", OPSET)]
    if proto.domain:
        versions.append(helper.make_opsetid(proto.domain, 1))
    model = helper.make_model(graph, opset_imports=versions)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise Skip(str(error)) from error
    found: list[tuple[str, Dims]] = []
    for output in inferred.graph.output:
        kind = output.type.tensor_type
        if not kind.elem_type:
            raise Skip("no type")
        dims = None
        if kind.HasField("shape"):
            dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
        found.append((np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)).name, dims))
    return found


def content(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Random elements of a kind."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in INTS:
        return _integers(rng, dtype, shape, kind)
    x = rng.uniform(-3, 3, shape)
    if kind == "whole":
        x = np.floor(x)
    elif kind == "positive":
        x = np.abs(x) + 0.1
    elif kind == "wide":
        x = np.sign(x) * 10.0 ** rng.uniform(-3, 3, shape)
    elif kind == "special" and x.size:
        picks = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5])
        x = np.where(rng.random(shape) < 0.5, picks[rng.integers(0, len(picks), shape)], x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(x).astype(np_dtype(dtype))


def _integers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], kind: str
              ) -> np.ndarray:
    info = np.iinfo(dtype)
    low, high = {"positive": (1, 9), "wide": (-100, 100)}.get(kind, (-5, 5))
    if kind == "special":
        picks = np.array([info.min, info.max, 0, 1, info.max // 2], dtype)
        return picks[rng.integers(0, len(picks), shape)]
    return rng.integers(max(low, info.min), min(high, info.max), shape, endpoint=True).astype(dtype)


def quietly(function: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(*args)

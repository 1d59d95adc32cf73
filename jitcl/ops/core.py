"""What an op is: one declaration that inference, evaluation, code, import and tests derive from.

    @elementwise(ref=lambda x: np.maximum(x, 0), onnx="Relu", samples=[sample(F32(2, 3))])
    def relu(s, x):
        return s.max(x, 0.0)

The universal form is a body `body(s, ix, *loaders, **attrs) -> Expr`: the value at output index
`ix`, where `s` is a `KernelBuilder` (`s.out` is the result's type), and
`loader(*index, guard=None, other=0)` reads an operand at a logical index. The decorators below are
sugar over it. `ref(*arrays, **attrs)` is an independent NumPy implementation: it folds constants,
and tests compare bodies with it, so it must not share code with the body.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from jitcl import dtypes
from jitcl.errors import JitclError, ShapeError, TypeError_, UnsupportedError
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr, Number
from jitcl.ir.graph import Node
from jitcl.ir.sizes import has_size, same
from jitcl.ir.types import Dim, TensorType

Index = tuple[Expr, ...]
Infer = Callable[..., TensorType]            # infer(*types, **attrs)
Body = Callable[..., Expr]                   # body(s, ix, *loaders, **attrs)
Rule = Callable[..., Any]                    # rule(g, node): ONNX import


# What becomes of the range of f16, whose largest number is 65504 and whose smallest normal one is
# 2^-14, where the operands are within it:
#     keeps      results are about as large as operands
#     grows      results leave it soon (exponentials, powers, sums)
#     bounds     results are within it, whatever the operands are (tanh, sqrt, log)
#     divides    as `bounds` where the divisor stays away from 0, else as `grows`
#     exact      neither operands nor results survive f16: positions, scales, tables, bits
Range = Literal["keeps", "grows", "bounds", "divides", "exact"]


class Loader(Protocol):
    """Reads an operand at a logical index."""

    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...              # the compute type of what is read

    def __call__(self, *ix: Expr | int, guard: Expr | None = None, other: Number = 0) -> Expr: ...


@dataclass(frozen=True)
class Spec:
    """A random test operand: shape, dtype and the range of its values."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    low: float = -2.0
    high: float = 2.0
    values: tuple[Any, ...] | None = None    # fixed elements instead of random ones

    def array(self, rng: np.random.Generator) -> np.ndarray:
        if self.values is not None:
            return np.array(self.values, dtypes.to_numpy(self.dtype)).reshape(self.shape)
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        x = rng.uniform(self.low, self.high, self.shape)
        if dtypes.is_int(self.dtype):
            x = np.floor(x)
        if self.dtype in (*dtypes.UNSIGNED, "f8e8m0"):
            x = np.abs(x)
        return dtypes.converted(x, self.dtype)


def F32(*shape: int, low: float = -2.0, high: float = 2.0) -> Spec:
    return Spec(shape, "f32", low, high)


def F16(*shape: int, low: float = -2.0, high: float = 2.0) -> Spec:
    return Spec(shape, "f16", low, high)


def I64(*shape: int, low: float = -8, high: float = 8) -> Spec:
    return Spec(shape, "i64", low, high)


def I32(*shape: int, low: float = -8, high: float = 8) -> Spec:
    return Spec(shape, "i32", low, high)


def fixed(*values: float, dtype: str = "f32") -> Spec:
    """A vector of these elements."""
    return Spec((len(values),), dtype, values=values)


def BOOL(*shape: int) -> Spec:
    return Spec(shape, "bool")


@dataclass(frozen=True)
class Sample:
    """A row of the op table: operands, attributes; `rtol` is relative to the largest result."""

    args: tuple[Spec, ...]
    attrs: dict[str, Any] = field(default_factory=dict, hash=False)
    rtol: float = 1e-5


def sample(*args: Spec, rtol: float = 1e-5, **attrs: Any) -> Sample:
    return Sample(args, attrs, rtol)


@dataclass(frozen=True)
class Op:
    """A declared op. Exactly one of `body` (kernels), `expand` (a composite's graph) and `scan` (a
    recurrence's steps) is set."""

    name: str
    kind: str
    infer: Infer | None                      # None: a composite's is that of its graph
    ref: Callable[..., np.ndarray]
    body: Body | None = None
    expand: Callable[..., Any] | None = None
    samples: tuple[Sample, ...] = ()
    doc: str = ""
    scan: Callable[..., Any] | None = None
    range: Range = "keeps"


@dataclass(frozen=True)
class Bounded:
    """What an import rule returns where data decides how long the results are (NonZero, Compress,
    Unique, NonMaxSuppression): results of the largest size that there can be, and how much of them
    counts.

    padded: the node's outputs in order, None for one that is not computed; what lies beyond the
    count is never looked at. count: one element of i32 or i64, how long the results are. axes: for
    each of `padded` the axis that is cut to the count, None for a result of a fixed size.

    Kernels compute all of it. The runtime reads the count, cuts the results to size and compiles
    what follows for it. Where the count is known at import, the graph slices instead.
    """

    padded: tuple[Node | None, ...]
    count: Node
    axes: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.padded):
            raise JitclError(f"Bounded: {len(self.padded)} results and {len(self.axes)} axes")
        if self.count.type.size != 1 or self.count.type.dtype not in ("i32", "i64"):
            raise JitclError(f"Bounded: the count is {self.count.type}, wanted one i32 or i64")


OPS: dict[str, Op] = {}
ONNX: dict[tuple[str, str], Callable[..., Any]] = {}     # (domain, op type) -> rule(g, node)


def declare(op: Op) -> Op:
    """Enter an op into the registry; each name once."""
    if op.name in OPS:
        raise JitclError(f"op '{op.name}' is declared twice")
    OPS[op.name] = op
    return op


def onnx_rule(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Import rule of ONNX ops: `rule(g, node) -> Node or tuple of Nodes`, one for each output that
    it gives.

    A rule whose results are as long as data says returns `Bounded`.

    `node` is the frontend's neutral view: `.op_type`, `.inputs` (Nodes; None where left out),
    `.attrs` (plain Python values), `.opset`, `.n_outputs`, `.input(i)` (None where left out),
    `.static(i)` (its value as an ndarray). It is in the newest opset's form. A rule that returns
    NotImplemented leaves the node to the function body that ONNX defines the op by.
    """
    def enter(rule: Rule) -> Rule:
        for op_type in op_types:
            if (domain, op_type) in ONNX:
                raise JitclError(f"ONNX op '{op_type}' has two import rules")
            ONNX[domain, op_type] = rule
        return rule
    return enter


def _plain_rule(op_type: str, name: str) -> None:
    """ONNX op with the same operands and (snake-cased) attributes as ours."""
    def rule(g: Any, node: Any) -> Any:
        return g.op(name, *(i for i in node.inputs if i is not None), **node.attrs)
    onnx_rule(op_type)(rule)


# ---- ONNX's element types

_ONNX_OTHER = {8: "string", 14: "complex64", 15: "complex128", 27: "float6e2m3", 28: "float6e3m2"}


def onnx_dtype(code: int) -> str:
    """The dtype of TensorProto.DataType `code`; UnsupportedError where jitcl has none."""
    if code not in dtypes.ONNX:
        name = _ONNX_OTHER.get(code, f"number {code}")
        raise UnsupportedError(f"element type {name} is not supported: "
                               f"use {', '.join(dtypes.ONNX.values())}")
    return dtypes.ONNX[code]


# ---- inference helpers

def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """NumPy's broadcasting of shapes (symbolic dimensions and sizes match themselves and 1)."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for axis in range(rank):
        dim: Dim = 1
        for shape in shapes:
            at = axis - rank + len(shape)
            if at < 0 or same(shape[at], 1):
                continue
            if not same(dim, 1):
                if shape[at] == dim:
                    continue
                text = " and ".join(str([str(d) for d in s]).replace("'", "") for s in shapes)
                raise ShapeError(f"shapes {text} do not broadcast: "
                                 f"axis {axis} is {dim} and {shape[at]}")
            dim = shape[at]
        result.append(dim)
    return tuple(result)


def same_dtype(*types: TensorType) -> str:
    for t in types:
        if t.dtype != types[0].dtype:
            kinds = ", ".join(str(t) for t in types)
            raise TypeError_(f"operands have different element types: {kinds}; cast one of them")
    return types[0].dtype


def norm_axis(axis: int, rank: int) -> int:
    """A possibly negative axis as 0 <= axis < rank; ShapeError outside."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is outside a tensor of rank {rank}: "
                         f"use {-rank} to {rank - 1}")
    return axis % rank


def norm_axes(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted, non-negative, distinct axes; None means all."""
    if axes is None:
        return tuple(range(rank))
    found = sorted(norm_axis(a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"axes {tuple(axes)} name an axis of rank {rank} twice")
    return tuple(found)


# ---- decorators

def elementwise(*, ref: Callable[..., Any], result: str | None = None, onnx: str | None = None,
                infer: Infer | None = None, samples: Sequence[Sample] = (),
                range: Range = "keeps") -> Callable[[Callable[..., Expr]], Op]:
    """`fn(s, *values, **attrs)` at each element; operands broadcast. `result`: dtype if another."""
    def typed(*types: TensorType, **_: Any) -> TensorType:
        dtype = same_dtype(*types)
        return TensorType(result or dtype, broadcast(*(t.shape for t in types)))

    def wrap(fn: Callable[..., Expr]) -> Op:
        def body(s: KernelBuilder, ix: Index, *xs: Loader, **attrs: Any) -> Expr:
            return fn(s, *(x(*aligned(ix, x.shape)) for x in xs), **attrs)
        name = fn.__name__.rstrip("_")
        if onnx:
            _plain_rule(onnx, name)
        return declare(Op(name, "elementwise", infer or typed, ref, body, samples=tuple(samples),
                          doc=fn.__doc__ or "", range=range))
    return wrap


def among_floats(n: int, dtype: str) -> Any:
    """A size as an operand of floats: a number where it is known, else an expression."""
    from jitcl.ir import expr as E
    return E.const(n, dtype) if has_size((n,)) else float(n)


def aligned(ix: Index, shape: Sequence[int]) -> Index:
    """The index of a broadcast operand: trailing axes aligned, 0 where it has one element."""
    from jitcl.ir import expr as E
    tail = ix[len(ix) - len(shape):]
    return tuple(E.index(0) if same(d, 1) else i for i, d in zip(tail, shape))


def clamped(s: KernelBuilder, value: Expr, extent: int) -> Expr:
    """A value as the nearest index of an axis: whatever it is, nothing is read outside."""
    return s.min(s.max(s.index(value), 0), extent - 1)


def indexed(kind: str, *, infer: Infer, ref: Callable[..., Any], onnx: str | None = None,
            samples: Sequence[Sample] = (), range: Range = "keeps") -> Callable[[Body], Op]:
    """The universal form: `fn(s, ix, *loaders, **attrs)`."""
    def wrap(fn: Body) -> Op:
        name = fn.__name__.rstrip("_")
        if onnx:
            _plain_rule(onnx, name)
        return declare(Op(name, kind, infer, ref, fn, samples=tuple(samples),
                          doc=fn.__doc__ or "", range=range))
    return wrap


def movement(*, infer: Infer, ref: Callable[..., Any], samples: Sequence[Sample] = ()
             ) -> Callable[[Callable[..., Any]], Op]:
    """One operand read at another index: `fn(ix, in_shape, out_shape, **attrs) -> input index`."""
    def wrap(fn: Callable[..., Any]) -> Op:
        def body(s: KernelBuilder, ix: Index, x: Loader, **attrs: Any) -> Expr:
            return x(*fn(ix, x.shape, s.out.dims, **attrs))
        return declare(Op(fn.__name__.rstrip("_"), "movement", infer, ref, body,
                          samples=tuple(samples), doc=fn.__doc__ or ""))
    return wrap


def reduction(combine: str, *, ref: Callable[..., Any], samples: Sequence[Sample] = (),
              range: Range = "keeps") -> Callable[[Callable[[KernelBuilder, Expr, int], Expr]], Op]:
    """`combine` over `axes` (None: all), then `fn(s, total, count)` on what it gave."""
    def typed(x: TensorType, axes: Sequence[int] | None = None,
              keepdims: bool = True) -> TensorType:
        return x.with_(shape=reduced(x.shape, norm_axes(axes, x.rank), keepdims))

    def wrap(fn: Callable[[KernelBuilder, Expr, int], Expr]) -> Op:
        def body(s: KernelBuilder, ix: Index, x: Loader, axes: Sequence[int] | None = None,
                 keepdims: bool = True) -> Expr:
            over = norm_axes(axes, len(x.shape))
            kept = [i for a, i in enumerate(ix) if not (keepdims and a in over)]

            def term(*ks: Expr) -> Expr:
                k, i = iter(ks), iter(kept)
                return x(*(next(k if a in over else i) for a, _ in enumerate(x.shape)))
            extents = [x.shape[a] for a in over]
            how = {"max": "or", "min": "and"}[combine] if x.dtype == "bool" else combine
            return fn(s, s.reduce(how, extents, term), math.prod(extents))
        return declare(Op(fn.__name__, "reduction", typed, ref, body, samples=tuple(samples),
                          doc=fn.__doc__ or "", range=range))
    return wrap


def reduced(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """The shape that is left when `axes` (normalised) are reduced."""
    return tuple(1 if a in axes else d for a, d in enumerate(shape) if keepdims or a not in axes)


@dataclass(frozen=True)
class Part:
    """One assignment of a recurrence: `out[at(*j)] = value(*j)` for all j in `extents`, in any
    order, so it must not read what it writes itself."""

    extents: tuple[int, ...]
    at: Callable[..., Index]
    value: Callable[..., Expr]


@dataclass(frozen=True)
class Scan:
    """What a recurrence does: for each chain the parts of `init(chain)`, then `steps` times those
    of `step(chain, t)`, one after the other. No chain writes where another reads or writes."""

    chains: tuple[int, ...]
    steps: int
    init: Callable[[Index], Sequence[Part]]
    step: Callable[[Index, Expr], Sequence[Part]]


def recurrence(*, infer: Infer, ref: Callable[..., Any],
               samples: Sequence[Sample] = ()) -> Callable[[Callable[..., Scan]], Op]:
    """An op that reads its own output at earlier steps: `fn(s, own, *loaders, **attrs) -> Scan`.

    `own(*index)` is an element of the output that a part before this one has written. Such a node
    is computed in a kernel of its own, each chain's steps in a sequential loop.
    """
    def wrap(fn: Callable[..., Scan]) -> Op:
        return declare(Op(fn.__name__, "recurrence", infer, ref, samples=tuple(samples),
                          doc=fn.__doc__ or "", scan=fn))
    return wrap


def composite(*, ref: Callable[..., Any], onnx: str | None = None,
              samples: Sequence[Sample] = ()) -> Callable[[Callable[..., Any]], Op]:
    """A small graph: `fn(g, *nodes, **attrs) -> Node`, expanded by the pass `decompose`."""
    def wrap(fn: Callable[..., Any]) -> Op:
        name = fn.__name__.rstrip("_")
        if onnx:
            _plain_rule(onnx, name)
        return declare(Op(name, "composite", None, ref, expand=fn, samples=tuple(samples),
                          doc=fn.__doc__ or ""))
    return wrap

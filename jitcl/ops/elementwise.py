"""Arithmetic and mathematical functions, element by element; operands broadcast as in NumPy."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import TypeError_
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    BOOL,
    F16,
    F32,
    I32,
    I64,
    Sample,
    Spec,
    broadcast,
    elementwise,
    fixed,
    onnx_rule,
    same_dtype,
    sample,
)

_ONE = [sample(F32(2, 3)), sample(F16(7), rtol=1e-3), sample(Spec((5,), "f64"), rtol=1e-14)]
_TWO = [sample(F32(2, 3), F32(3)), sample(F32(4, 1), F32(1, 5)), sample(F16(5), F16(5), rtol=1e-3),
        sample(Spec((5,), "f64"), Spec((1,), "f64"), rtol=1e-14),
        sample(Spec((5,), "bf16"), Spec((5,), "bf16"), rtol=1e-2)]
_INT = [sample(I32(4), I32(4)), sample(I64(2, 3), I64(1)),
        *(sample(Spec((6,), t, 0, 9), Spec((6,), t, 0, 9)) for t in ("u8", "i8", "u16", "u64"))]
_NAN = [sample(fixed(math.nan, 1.0, -math.inf, -0.0, math.inf),
               fixed(0.0, math.nan, 1.0, 2.0, 3.0))]


def _within(low: float, high: float) -> list[Sample]:
    """Samples of one operand between two values."""
    return [sample(F32(3, 5, low=low, high=high)), sample(F16(7, low=low, high=high), rtol=1e-3)]


# ---- arithmetic

@elementwise(onnx="Add", ref=np.add, samples=[*_TWO, *_INT])
def add(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x + y


@elementwise(onnx="Sub", ref=np.subtract, samples=[*_TWO, *_INT])
def sub(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x - y


@elementwise(onnx="Mul", ref=np.multiply, samples=[*_TWO, *_INT])
def mul(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    return x * y


def _div(x: np.ndarray, y: np.ndarray) -> Any:
    if np.issubdtype(x.dtype, np.floating):
        return np.true_divide(x, y)
    quotient = np.abs(x) // np.abs(y)
    return np.where((x < 0) != (y < 0), -quotient, quotient)


@elementwise(onnx="Div", range="divides", ref=_div, samples=[
    sample(F32(2, 3), F32(3, low=0.5)), sample(I32(2, 9), I32(9, low=1)),
    sample(I64(9), Spec((), "i64", -3, -2)),
    sample(Spec((9,), "u8", 0, 99), Spec((9,), "u8", 1, 9))])
def div(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    """x / y; of integers, rounded toward zero."""
    return x / y


@elementwise(ref=lambda x, y, fmod=False: np.fmod(x, y) if fmod else np.mod(x, y), samples=[
    sample(F32(9), F32(9, low=0.5), fmod=True), sample(F32(9), F32(9, low=0.5)),
    sample(I32(9), I32(9, low=1)),
    sample(I64(9), I64(9, low=1), fmod=True), sample(I64(9), Spec((1,), "i64", -5, -4))])
def mod(s: KernelBuilder, x: Expr, y: Expr, fmod: bool = False) -> Expr:
    """The rest of x / y: with the sign of y, or with that of x where `fmod`."""
    return s.fmod(x, y) if fmod else s.mod(x, y)


@onnx_rule("Mod")
def _mod(g: GraphBuilder, node: Any) -> Node:
    return g.mod(*node.inputs, fmod=bool(node.attrs.get("fmod", 0)))


def _pow_type(x: TensorType, y: TensorType) -> TensorType:
    for t in (x, y):
        if t.dtype == "bool":
            raise TypeError_(f"pow has no bool operands, got {t}: cast it")
    return TensorType(x.dtype, broadcast(x.shape, y.shape))


def _pow_ref(x: np.ndarray, y: np.ndarray) -> Any:
    exact = np.issubdtype(x.dtype, np.integer) and np.issubdtype(y.dtype, np.integer)
    if not exact:
        return np.power(x, y).astype(x.dtype)
    pairs = [(int(a), int(b)) for a, b in np.broadcast(x, y)]
    powers = [a ** b if b >= 0 else int(float(a) ** b) for a, b in pairs]
    wrapped = np.array([p & (2 ** 64 - 1) for p in powers], np.uint64)
    return wrapped.astype(x.dtype).reshape(np.broadcast_shapes(x.shape, y.shape))


@elementwise(onnx="Pow", range="grows", infer=_pow_type, ref=_pow_ref, samples=[
    sample(F32(2, 9, low=0.1), F32(9)), sample(F32(9, low=0.1), F32()),
    sample(F32(9), I64(9, low=-2, high=3)),
    sample(I32(9), I32(9, low=0, high=6)), sample(I64(9, low=1), F32(9, low=0)),
    sample(F16(9, low=0.5), F16(9), rtol=2e-3),
    *(sample(F32(9, low=0.5), Spec((), values=(e,))) for e in (2.0, 0.5, -0.5, 3.0, -1.0, 1.0))])
def pow_(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    """x to the power y, with x's type; whole powers of integers are exact and wrap around."""
    if dtypes.is_float(x.dtype):
        cheap = _cheap_power(s, x, y.value) if y.is_const else None
        return cheap if cheap is not None else s.pow(x, s.cast(y, x.dtype))
    if dtypes.is_float(y.dtype):
        return s.cast(s.pow(s.cast(x, y.dtype), y), x.dtype)
    return _whole_power(s, x, s.cast(y, x.dtype))


def _cheap_power(s: KernelBuilder, x: Expr, y: float) -> Expr | None:
    if y == 0.5:
        return s.sqrt(x)
    if y == -0.5:
        return s.div(1.0, s.sqrt(x))
    if y == -1:
        return s.div(1.0, x)
    return {1.0: x, 2.0: x * x, 3.0: x * x * x}.get(float(y))


def _whole_power(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    """By squaring, over six bits; of longer exponents only the parity matters, for x = -1."""
    many = s.abs(y) if y.dtype in dtypes.SIGNED else y
    many = s.select(many > 63, s.bitand(many, 1) + 62, many)
    result, square = s.const(1, x.dtype), x
    for bit in range(6):
        result = s.select(s.ne(s.bitand(many, 1 << bit), 0), result * square, result)
        square = square * square
    return s.select(y < 0, s.div(1, result), result) if y.dtype in dtypes.SIGNED else result


@elementwise(ref=np.minimum, samples=[*_TWO, *_INT, *_NAN])
def min_(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    """The lesser; NaN where either is NaN."""
    return s.min(x, y)


@elementwise(ref=np.maximum, samples=[*_TWO, *_INT, *_NAN])
def max_(s: KernelBuilder, x: Expr, y: Expr) -> Expr:
    """The greater; NaN where either is NaN."""
    return s.max(x, y)


@onnx_rule("Min", "Max", "Sum", "Mean")
def _variadic(g: GraphBuilder, node: Any) -> Node:
    name = {"Min": "min", "Max": "max"}.get(node.op_type, "add")
    total: Node = reduce(partial(g.op, name), node.inputs)
    return g.div(total, len(node.inputs)) if node.op_type == "Mean" else total


@elementwise(range="bounds", ref=lambda x, low, high: np.minimum(np.maximum(x, low), high),
             samples=[
    sample(F32(2, 9), Spec((), values=(-1.0,)), Spec((), values=(0.5,))),
    sample(I32(9), Spec((), "i32", values=(-3,)), Spec((), "i32", values=(2,))),
    sample(F16(9), Spec((), "f16", values=(1.0,)), Spec((), "f16", values=(-1.0,)))])
def clip(s: KernelBuilder, x: Expr, low: Expr, high: Expr) -> Expr:
    """x between low and high; high where they cross."""
    return s.min(s.max(x, low), high)


@onnx_rule("Clip")
def _clip(g: GraphBuilder, node: Any) -> Node:
    x, *bounds = (node.input(i) for i in (0, 1, 2))
    low, high = (b if b is None or b.type.rank == 0 else g.reshape(b, shape=()) for b in bounds)
    if low is not None and high is not None:
        return g.clip(x, low, high)
    return g.max(x, low) if low is not None else g.min(x, high) if high is not None else x


# ---- functions of one operand

@elementwise(onnx="Neg", ref=np.negative, samples=[*_ONE, sample(I32(4))])
def neg(s: KernelBuilder, x: Expr) -> Expr:
    return -x


@elementwise(onnx="Abs", ref=np.abs, samples=[
    *_ONE, sample(I32(4)), sample(Spec((4,), "u8", 0, 9))])
def abs_(s: KernelBuilder, x: Expr) -> Expr:
    return s.abs(x)


@elementwise(onnx="Sign", range="bounds", ref=np.sign, samples=[
    *_ONE, sample(I64(9)), sample(fixed(math.nan, -0.0, 2.0))])
def sign(s: KernelBuilder, x: Expr) -> Expr:
    """-1, 0 or 1; NaN of NaN."""
    return s.sign(x)


@elementwise(onnx="Floor", ref=np.floor, samples=_ONE)
def floor(s: KernelBuilder, x: Expr) -> Expr:
    return s.floor(x)


@elementwise(onnx="Ceil", ref=np.ceil, samples=_ONE)
def ceil(s: KernelBuilder, x: Expr) -> Expr:
    return s.ceil(x)


@elementwise(onnx="Round", ref=np.round, samples=[
    *_ONE, sample(fixed(-1.5, -0.5, 0.5, 1.5, 2.5))])
def round_(s: KernelBuilder, x: Expr) -> Expr:
    """To the nearest whole number, halves to the even one."""
    return s.round(x)


@elementwise(onnx="Sqrt", range="bounds", ref=np.sqrt, samples=_within(0.0, 4.0))
def sqrt(s: KernelBuilder, x: Expr) -> Expr:
    return s.sqrt(x)


@elementwise(onnx="Reciprocal", range="divides", ref=lambda x: 1 / x, samples=_within(0.25, 4.0))
def reciprocal(s: KernelBuilder, x: Expr) -> Expr:
    return s.div(1.0, x)


@elementwise(onnx="Exp", range="grows", ref=np.exp, samples=[
    *_ONE, sample(fixed(-math.inf, 89.0, math.nan))])
def exp(s: KernelBuilder, x: Expr) -> Expr:
    return s.exp(x)


@elementwise(onnx="Log", range="bounds", ref=np.log, samples=[
    *_within(0.1, 4.0), sample(fixed(0.0, math.inf, -1.0))])
def log(s: KernelBuilder, x: Expr) -> Expr:
    return s.log(x)


@elementwise(onnx="Erf", range="bounds", ref=np.vectorize(math.erf, otypes=[np.float64]),
             samples=_ONE)
def erf(s: KernelBuilder, x: Expr) -> Expr:
    """The error function 2/sqrt(pi) * integral of exp(-t^2) from 0 to x."""
    return s.erf(x)


@elementwise(onnx="Sin", range="bounds", ref=np.sin, samples=_ONE)
def sin(s: KernelBuilder, x: Expr) -> Expr:
    return s.sin(x)


@elementwise(onnx="Cos", range="bounds", ref=np.cos, samples=_ONE)
def cos(s: KernelBuilder, x: Expr) -> Expr:
    return s.cos(x)


@elementwise(onnx="Tan", range="grows", ref=np.tan, samples=_within(-1.0, 1.0))
def tan(s: KernelBuilder, x: Expr) -> Expr:
    return s.tan(x)


@elementwise(onnx="Asin", range="bounds", ref=np.arcsin, samples=_within(-1.0, 1.0))
def asin(s: KernelBuilder, x: Expr) -> Expr:
    return s.asin(x)


@elementwise(onnx="Acos", range="bounds", ref=np.arccos, samples=_within(-1.0, 1.0))
def acos(s: KernelBuilder, x: Expr) -> Expr:
    return s.acos(x)


@elementwise(onnx="Atan", range="bounds", ref=np.arctan, samples=_ONE)
def atan(s: KernelBuilder, x: Expr) -> Expr:
    return s.atan(x)


@elementwise(onnx="Sinh", range="grows", ref=np.sinh, samples=_ONE)
def sinh(s: KernelBuilder, x: Expr) -> Expr:
    return s.sinh(x)


@elementwise(onnx="Cosh", range="grows", ref=np.cosh, samples=_ONE)
def cosh(s: KernelBuilder, x: Expr) -> Expr:
    return s.cosh(x)


@elementwise(onnx="Tanh", range="bounds", ref=np.tanh, samples=[
    *_ONE, sample(fixed(-99.0, 99.0, math.nan))])
def tanh(s: KernelBuilder, x: Expr) -> Expr:
    return s.tanh(x)


@elementwise(onnx="Asinh", range="bounds", ref=np.arcsinh, samples=_ONE)
def asinh(s: KernelBuilder, x: Expr) -> Expr:
    return s.asinh(x)


@elementwise(onnx="Acosh", range="bounds", ref=np.arccosh, samples=_within(1.0, 9.0))
def acosh(s: KernelBuilder, x: Expr) -> Expr:
    return s.acosh(x)


@elementwise(onnx="Atanh", range="bounds", ref=np.arctanh, samples=_within(-0.9, 0.9))
def atanh(s: KernelBuilder, x: Expr) -> Expr:
    return s.atanh(x)


# ---- conversion and choice

def _cast_samples() -> list[Sample]:
    every = [sample(F32(9, low=0, high=100), to=t) for t in dtypes.STORED]
    more = [sample(Spec((9,), t, 0, 100), to="f32") for t in dtypes.STORED]
    return [*every, *more, sample(F16(9), to="i32"), sample(BOOL(9), to="i64"),
            sample(I64(9), to="bool"),
            sample(F32(9, low=-5, high=5), to="i8"), sample(I32(9, low=-300, high=300), to="u8")]


@elementwise(ref=lambda x, to: dtypes.converted(x, to), infer=lambda x, to: x.with_(dtype=to),
             samples=_cast_samples())
def cast(s: KernelBuilder, x: Expr, to: str) -> Expr:
    """Convert to dtype `to`: floats to integers toward zero, anything but 0 to True. Low floats
    are infinite or NaN beyond their range, low integers wrap around."""
    return s.cast(x, to)


def _where_type(condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    if condition.dtype != "bool":
        raise TypeError_(f"the condition is {condition}, wanted bool: compare or cast it")
    return TensorType(same_dtype(x, y), broadcast(condition.shape, x.shape, y.shape))


@elementwise(onnx="Where", ref=np.where, infer=_where_type, samples=[
    sample(BOOL(2, 3), F32(2, 3), F32(3)), sample(BOOL(3, 1), I64(3, 4), I64(1)),
    sample(BOOL(5), BOOL(5), BOOL(5))])
def where(s: KernelBuilder, condition: Expr, x: Expr, y: Expr) -> Expr:
    """x where the condition holds, else y."""
    return s.select(condition, x, y)


@onnx_rule("Identity")
def _identity(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    return x

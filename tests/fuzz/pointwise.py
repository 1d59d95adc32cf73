"""Ops that treat elements one by one, and broadcast."""

from __future__ import annotations

import numpy as np

from tests.fuzz.drawing import (
    ANY,
    FLOATS,
    INTS,
    ORDINARY,
    Drawer,
    Skip,
    Value,
    np_dtype,
    onnx_type,
)
from tests.fuzz.registry import draws

NUMBERS = (*FLOATS, *INTS)
SIGNED = (*FLOATS, "int32", "int64", "int8", "int16")


def weighted(d: Drawer, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Mostly float32, where the op takes it."""
    return ("float32",) if "float32" in dtypes and d.flag() else dtypes


@draws("Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Reciprocal Round Sigmoid",
       "Sin Sinh Softplus Softsign Sqrt Tan Tanh Selu HardSwish Mish Relu IsNaN")
def unary(d: Drawer, op: str) -> None:
    # HardSwish: its 1/6 is a float32 in ONNX's function body, and a real number in its text
    d.node(op, d.any(weighted(d, tuple(t for t in FLOATS if (op, t) != ("HardSwish", "float64")))))


@draws("Abs Neg Sign")
def signed(d: Drawer, op: str) -> None:
    d.node(op, d.any(weighted(d, SIGNED), where=lambda v: not is_lowest(v), kinds=ORDINARY))


def is_lowest(v: Value) -> bool:
    """Whether -x overflows somewhere."""
    return v.array.dtype.kind == "i" and bool((v.array == np.iinfo(v.array.dtype).min).any())


@draws("Not")
def not_(d: Drawer, op: str) -> None:
    d.node(op, d.any(("bool",)))


@draws("Identity")
def identity(d: Drawer, op: str) -> None:
    d.node(op, d.any(ANY))


@draws("BitwiseNot")
def bitwise_not(d: Drawer, op: str) -> None:
    d.node(op, d.any(INTS))


@draws("IsInf")
def isinf(d: Drawer, op: str) -> None:
    d.node(op, d.any(("float32", "float16", "float64")), detect_negative=d.pick((None, 0, 1)),
           detect_positive=d.pick((None, 0, 1)))


@draws("Elu Celu LeakyRelu ThresholdedRelu Swish")
def alpha(d: Drawer, op: str) -> None:
    values = (None, 0.5, 1.0, 2.0) if op in ("Celu", "Elu", "ThresholdedRelu") else (
        None, 0.0, 0.3, -0.5, 2.0)
    d.node(op, d.any(weighted(d, ("float32",) if op == "Celu" else FLOATS)),
           alpha=d.pick(values))


@draws("HardSigmoid")
def hard_sigmoid(d: Drawer, op: str) -> None:
    d.node(op, d.any(weighted(d, FLOATS)), alpha=d.pick((None, 0.5)), beta=d.pick((None, 0.1)))


@draws("Shrink")
def shrink(d: Drawer, op: str) -> None:
    d.node(op, d.any(weighted(d, ("float32", "float16", "float64"))), lambd=d.pick((None, 1.0)),
           bias=d.pick((None, 0.25)))


@draws("Gelu")
def gelu(d: Drawer, op: str) -> None:
    d.node(op, d.any(weighted(d, FLOATS)), approximate=d.pick((None, "none", "tanh")))


@draws("Add Sub Mul")
def arithmetic(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, NUMBERS))
    pair(d, op, x, d.like(x))


def pair(d: Drawer, op: str, x: Value, y: Value, **attrs: object) -> None:
    """The operands in any order."""
    d.node(op, *((x, y) if d.flag() else (y, x)), **attrs)


@draws("Div")
def div(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, NUMBERS))
    divided(d, op, x)


def divided(d: Drawer, op: str, x: Value, **attrs: object) -> None:
    """x by something; of integers, by what is neither 0 nor -1."""
    y = d.like(x, None if x.dtype in FLOATS else ("positive",))
    d.node(op, x, y, **attrs)


@draws("Mod")
def mod(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, NUMBERS), kinds=("normal", "whole", "positive"))
    if x.dtype in FLOATS:
        divided(d, op, x, fmod=1)
        return
    y = d.like(x, ("positive",))
    if y.array.dtype.kind == "i" and d.flag():
        y = d.given(-y.array)
    d.node(op, x, y, fmod=d.pick((None, 0, 1)))


@draws("Pow")
def power(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, ("float32", "float16", "float64", "int32", "int64")), kinds=ORDINARY)
    if x.dtype in FLOATS:
        base = x if d.flag() else d.node("Abs", x)[0]
        exponent = d.like(x, ("whole", "normal"))
        if d.flag():
            exponent = d.fresh(d.pick(("int32", "int64", "float32")), (), ("whole",))
        d.node(op, base, exponent)
        return
    d.node(op, x, d.fresh(d.pick((x.dtype, "int32", "float32")), d.pick(((), (1,))), ("positive",)))


@draws("PRelu")
def prelu(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, FLOATS))
    slope = d.like(x)
    if slope.rank > x.rank:
        raise Skip("the slope is broadcast to x only")
    d.node(op, x, slope)


@draws("Max Min Sum Mean")
def variadic(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, NUMBERS if op in ("Max", "Min") else FLOATS))
    d.node(op, x, *(d.like(x) for _ in range(d.int(0, 3))))


@draws("Equal Less LessOrEqual Greater GreaterOrEqual")
def compare(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, ANY if op == "Equal" else NUMBERS))
    pair(d, op, x, d.like(x))


@draws("And Or Xor")
def logic(d: Drawer, op: str) -> None:
    x = d.any(("bool",))
    pair(d, op, x, d.like(x))


@draws("BitwiseAnd BitwiseOr BitwiseXor")
def bitwise(d: Drawer, op: str) -> None:
    x = d.any(INTS)
    pair(d, op, x, d.like(x))


@draws("BitShift")
def shift(d: Drawer, op: str) -> None:
    x = d.any(("uint8", "uint16", "uint32", "uint64"))
    amount = d.like(x, ("positive",))
    amount = d.given((amount.array % (8 * amount.array.itemsize)).astype(np_dtype(x.dtype)))
    d.node(op, x, amount, direction=d.pick(("LEFT", "RIGHT")))
    assert np.all(amount.array < 64)


@draws("Where")
def where(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, ANY))
    y = d.like(x)
    condition = d.any(("bool",), where=lambda v: broadcast(v, x, y),
                      shape=lambda: x.shape)
    d.node(op, condition, *((x, y) if d.flag() else (y, x)))


def broadcast(*values: Value) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(*(v.shape for v in values)), dtype=int)) < 2000
    except ValueError:
        return False


@draws("Clip")
def clip(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, NUMBERS))
    low = d.constant(0 if x.array.dtype.kind == "u" else -1, x.dtype) if d.flag() else None
    d.node(op, x, low, d.constant(2, x.dtype) if d.flag() else None)


@draws("Cast")
def cast(d: Drawer, op: str) -> None:
    x = d.any(ANY)
    d.node(op, x, to=onnx_type(np_dtype(d.pick(ANY))))


@draws("CastLike")
def cast_like(d: Drawer, op: str) -> None:
    x = d.any(ANY)
    d.node(op, x, d.any(ANY))

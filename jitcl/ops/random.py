"""Random numbers that are the same in every run.

With a `seed` they are those of ONNX's reference implementation (NumPy's RandomState, a Mersenne
twister, drawn at import as constants). Without one, ONNX leaves the choice: jitcl derives a key
from the node's name, so that two nodes differ and runs are repeatable, and kernels compute the
numbers with a counter-based generator, Threefry-2x32-20 (Salmon et al., 2011): element i is a
function of the key and i.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.contraction import wide
from jitcl.ops.core import (
    F32,
    Index,
    Loader,
    Spec,
    elementwise,
    fixed,
    indexed,
    onnx_dtype,
    onnx_rule,
    sample,
)

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
_KEY = fixed(0x243F6A88, 0x85A308D3, dtype="u32")


# ---- the generator


def threefry(key: Array, counts: Array) -> tuple[Array, Array]:
    """Two u32 words for each count below 2^32."""
    keys = [np.uint32(key[0]), np.uint32(key[1]), np.uint32(key[0] ^ key[1] ^ np.uint32(PARITY))]
    with np.errstate(over="ignore"):
        a, b = counts.astype(np.uint32) + keys[0], np.full(counts.shape, keys[1], np.uint32)
        for turn in range(5):
            for r in ROTATIONS[turn % 2 * 4:turn % 2 * 4 + 4]:
                a = a + b
                b = (b << np.uint32(r) | b >> np.uint32(32 - r)) ^ a
            a = a + keys[(turn + 1) % 3]
            b = b + keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return a, b


def _words(s: KernelBuilder, ix: Index, key: Loader) -> tuple[Expr, Expr]:
    """The two words of the element that the body is at."""
    number = E.index(0)
    for i, extent in zip(ix, s.out.dims):
        number = number * extent + i
    first, second = key(0), key(1)
    third = s.bitxor(s.bitxor(first, second), PARITY)
    keys = [first, second, third]
    a, b = E.cast(number, "u32") + first, second
    for turn in range(5):
        for r in ROTATIONS[turn % 2 * 4:turn % 2 * 4 + 4]:
            a = a + b
            b = s.bitxor(s.bitor(s.shl(b, r), s.shr(b, 32 - r)), a)
        a = a + keys[(turn + 1) % 3]
        b = b + keys[(turn + 2) % 3] + (turn + 1)
    return a, b


def _drawn_type(key: TensorType, shape: Shape, dtype: str = "f32") -> TensorType:
    if key != TensorType("u32", (2,)):
        raise TypeError_(f"a generator's key is u32[2], got {key}")
    if dtype not in ("f32", "f64"):
        raise TypeError_(f"random numbers are drawn as f32 or f64, not {dtype}: cast them")
    if math.prod(shape) > 1 << 31:
        raise ShapeError(f"{math.prod(shape)} random numbers: wanted 2^31 or fewer")
    return TensorType(dtype, tuple(shape))


def _uniform_ref(key: Array, shape: Shape, dtype: str = "f32") -> Array:
    a, b = threefry(key, np.arange(math.prod(shape)).reshape(shape))
    if dtype == "f32":
        return ((a >> 8) * 2.0 ** -24).astype(np.float32)
    return ((a >> 5) * 2.0 ** 26 + (b >> 6)) * 2.0 ** -53


@indexed("window", infer=_drawn_type, ref=_uniform_ref, samples=[
    sample(_KEY, shape=(3, 5)), sample(_KEY, shape=(40000,)), sample(_KEY, shape=()),
    sample(_KEY, shape=(70,), dtype="f64")])
def random_uniform(s: KernelBuilder, ix: Index, key: Loader, shape: Shape,
                   dtype: str = "f32") -> Expr:
    """Numbers in [0, 1): multiples of 2^-24 (f32) or 2^-53 (f64)."""
    a, b = _words(s, ix, key)
    if dtype == "f32":
        return E.cast(s.shr(a, 8), dtype) * 2.0 ** -24
    return (E.cast(s.shr(a, 5), dtype) * 2.0 ** 26 + E.cast(s.shr(b, 6), dtype)) * 2.0 ** -53


def _normal_ref(key: Array, shape: Shape, dtype: str = "f32") -> Array:
    a, b = threefry(key, np.arange(math.prod(shape)).reshape(shape))
    radius = np.sqrt(-2 * np.log(((a >> 8) + 1) * 2.0 ** -24))
    y = radius * np.cos(2 * np.pi * ((b >> 8) * 2.0 ** -24))
    return np.asarray(y, dtypes.to_numpy(dtype))


@indexed("window", infer=_drawn_type, ref=_normal_ref, samples=[
    sample(_KEY, shape=(3, 5)), sample(_KEY, shape=(40000,)),
    sample(_KEY, shape=(70,), dtype="f64")])
def random_normal(s: KernelBuilder, ix: Index, key: Loader, shape: Shape,
                  dtype: str = "f32") -> Expr:
    """Numbers of mean 0 and deviation 1 (Box and Muller, 1958)."""
    a, b = _words(s, ix, key)
    length = (E.cast(s.shr(a, 8), dtype) + 1.0) * 2.0 ** -24
    angle = E.cast(s.shr(b, 8), dtype) * (2 * math.pi * 2.0 ** -24)
    return s.sqrt(s.log(length) * -2.0) * s.cos(angle)


# ---- tensors of random numbers


def _key(node: Any) -> Array:
    return np.frombuffer(hashlib.sha256(node.name.encode()).digest()[:8], "<u4")


def _state(node: Any) -> np.random.RandomState | None:
    """The seeded generator of ONNX's reference implementation, or None without a seed."""
    seed = node.attrs.get("seed")
    if seed is None or math.isnan(seed):
        return None
    if not 0 <= int(seed) < 1 << 32:
        raise ModelError(f"seed is {seed}: wanted 0 to 2^32 - 1")
    return np.random.RandomState(int(seed))


def uniforms(g: GraphBuilder, node: Any, shape: Shape, dtype: str = "f32") -> Node:
    """Numbers in [0, 1): the seeded ones, or the node's own."""
    state = _state(node)
    if state is not None:
        return g.const(state.uniform(0.0, 1.0, shape), dtype)
    drawn = "f64" if dtype == "f64" else "f32"
    y = g.random_uniform(g.const(_key(node)), shape=shape, dtype=drawn)
    return y if drawn == dtype else g.cast(y, to=dtype)


def _result(node: Any) -> tuple[Shape, str]:
    """Shape and dtype of a generator's result, from its attributes or the tensor it is like."""
    like = node.input(0)
    if like is None and "shape" not in node.attrs:
        raise ModelError(f"{node.op_type} needs the attribute 'shape'")
    shape = tuple(node.attrs["shape"]) if like is None else like.type.dims
    code = node.attrs.get("dtype")
    dtype = onnx_dtype(code) if code else "f32" if like is None else like.type.dtype
    if not dtypes.is_float(dtype):
        raise TypeError_(f"{node.op_type} makes floats, not {dtype}: give a dtype of floats")
    return shape, dtype


@onnx_rule("RandomUniform", "RandomUniformLike")
def _random_uniform(g: GraphBuilder, node: Any) -> Node:
    shape, dtype = _result(node)
    low, high = node.attrs.get("low", 0.0), node.attrs.get("high", 1.0)
    held = dtypes.compute(dtype)
    y = g.add(g.mul(uniforms(g, node, shape, held), float(high - low)), float(low))
    return g.cast(y, to=dtype)


@onnx_rule("RandomNormal", "RandomNormalLike")
def _random_normal(g: GraphBuilder, node: Any) -> Node:
    shape, dtype = _result(node)
    held, state = dtypes.compute(dtype), _state(node)
    if state is None:
        y = g.random_normal(g.const(_key(node)), shape=shape, dtype=held)
    else:
        y = g.const(state.standard_normal(shape), held)
    scale, mean = node.attrs.get("scale", 1.0), node.attrs.get("mean", 0.0)
    return g.cast(g.add(g.mul(y, float(scale)), float(mean)), to=dtype)


# ---- what is decided by chance


@elementwise(range="exact", result="bool", ref=lambda p, u: np.where(p <= 0.5, u > 1 - p, u <= p),
             samples=[sample(F32(50, low=0, high=1), F32(50, low=0, high=1)),
                      sample(fixed(0.0, 1.0, 0.5), fixed(0.5, 0.5, 0.5))])
def happens(s: KernelBuilder, p: Expr, u: Expr) -> Expr:
    """Whether something of probability p happens, by a number in [0, 1): as NumPy decides it, which
    inverts the distribution from the likelier end."""
    return s.or_(s.and_(p <= 0.5, u > 1.0 - p), s.and_(p > 0.5, u <= p))


@onnx_rule("Bernoulli")
def _bernoulli(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    if not dtypes.is_float(x.type.dtype):
        raise TypeError_(f"Bernoulli takes probabilities, got {x.type}")
    held, code = dtypes.compute(x.type.dtype), node.attrs.get("dtype")
    chance = g.happens(g.cast(x, to=held), uniforms(g, node, x.type.dims, held))
    return g.cast(chance, to=onnx_dtype(code) if code else x.type.dtype)


def _choice_type(x: TensorType, u: TensorType, dtype: str = "i32") -> TensorType:
    if x.rank != 2 or u.rank != 2 or u.shape[0] != x.shape[0] or x.shape[1] == 0:
        raise ShapeError(f"multinomial: wanted [batch, classes] and [batch, samples], got {x} and "
                         f"{u}")
    return TensorType(dtype, u.shape)


def _choice_ref(x: Array, u: Array, dtype: str = "i32") -> Array:
    p = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    reached = p.cumsum(1)[:, None, :] <= (wide(u) * p.sum(1, keepdims=True))[..., None]
    return np.asarray(np.minimum(reached.sum(-1), x.shape[1] - 1), dtypes.to_numpy(dtype))


@indexed("scan", infer=_choice_type, ref=_choice_ref, samples=[
    sample(F32(3, 5), F32(3, 20, low=0, high=1)), sample(F32(1, 1), F32(1, 2, low=0, high=1)),
    sample(Spec((1, 4), values=(0.0, -200.0, 1.0, 0.0)),
           Spec((1, 3), values=(0.0, 0.5, 0.99)), dtype="i64")])
def multinomial(s: KernelBuilder, ix: Index, x: Loader, u: Loader, dtype: str = "i32") -> Expr:
    """The classes that numbers in [0, 1) choose, of x [batch, classes], the logarithms of what
    their probabilities are proportional to."""
    b, _ = ix
    classes = x.shape[1]
    most = s.reduce("max", [classes], lambda k: x(b, k))
    total = s.reduce("add", [classes], lambda k: s.exp(x(b, k) - most))
    wanted = u(*ix) * total

    def step(k: Expr, sum: Expr, passed: Expr) -> tuple[Expr, Expr]:
        sum = sum + s.exp(x(b, k) - most)
        return sum, passed + E.cast(sum <= wanted, "i32")
    _, passed = s.fold(classes, (s.const(0, x.dtype), s.const(0, "i32")), step)
    return s.cast(s.min(passed, classes - 1), dtype)


@onnx_rule("Multinomial")
def _multinomial(g: GraphBuilder, node: Any) -> Node:
    x: Node = node.inputs[0]
    if x.type.rank != 2:
        raise ShapeError(f"Multinomial takes [batch, classes], got {x.type}")
    dtype = onnx_dtype(node.attrs.get("dtype", 6))
    if dtype not in ("i32", "i64"):
        raise TypeError_(f"Multinomial gives int32 or int64, not {dtype}")
    held = dtypes.compute(x.type.dtype)
    drawn = uniforms(g, node, (x.type.dims[0], node.attrs.get("sample_size", 1)), held)
    return g.multinomial(g.cast(x, to=held), drawn, dtype=dtype)


@onnx_rule("Dropout")
def _dropout(g: GraphBuilder, node: Any) -> tuple[Node, ...]:
    """In training, elements are 0 by chance and the others grow; in inference nothing happens."""
    x: Node = node.inputs[0]
    given, training = (node.static(i) for i in (1, 2))
    ratio = 0.5 if given is None else float(np.reshape(given, ()))
    if training is None or not bool(training) or ratio == 0:
        return (x, g.expand(g.const(True), shape=x.type.shape))[:node.n_outputs]
    if not 0 <= ratio < 1:
        raise ModelError(f"Dropout's ratio is {ratio}: wanted 0 to 1, 1 excluded")
    state = _state(node)
    mask = (g.greater_or_equal(uniforms(g, node, x.type.dims), ratio) if state is None
            else g.const(state.uniform(0.0, 1.0, x.type.dims) >= ratio))
    kept = g.mul(g.cast(mask, to=x.type.dtype), x)
    return (g.mul(kept, 1 / (1 - ratio)), mask)[:node.n_outputs]

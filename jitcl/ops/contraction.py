"""Contractions: matmul, Gemm, Einsum and their integer kin. f16 and bf16 accumulate in f32."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.errors import ModelError, ShapeError, TypeError_
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.sizes import same
from jitcl.ir.types import Dim, TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.ops.core import (
    F16,
    F32,
    I32,
    Index,
    Loader,
    aligned,
    broadcast,
    indexed,
    onnx_rule,
    same_dtype,
    sample,
)


def wide(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The 16-bit floats as f32, in which references accumulate; others as they are."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


# ---- matmul


def matmul_type(a: TensorType, b: TensorType) -> TensorType:
    dtype = same_dtype(a, b)
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(f"matmul takes operands of rank 2 or more, got {a} and {b}")
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"matmul: 'a' {a} has {a.shape[-1]} columns, but 'b' {b} has "
            f"{b.shape[-2]} rows; they must be equal"
        )
    return TensorType(dtype, (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))


def _matmul_ref(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.matmul(wide(a), wide(b)).astype(a.dtype))


@indexed(
    "contraction",
    infer=matmul_type,
    ref=_matmul_ref,
    samples=[
        sample(F32(3, 4), F32(4, 5)), sample(F32(2, 1, 3, 4), F32(5, 4, 2)),
        sample(F16(3, 8), F16(8, 2), rtol=2e-3), sample(I32(3, 4), I32(4, 2))],
)
def matmul(s: KernelBuilder, ix: Index, a: Loader, b: Loader) -> Expr:
    """a[..., m, k] @ b[..., k, n]; leading axes broadcast."""
    *batch, i, j = ix
    ia, ib = aligned(tuple(batch), a.shape[:-2]), aligned(tuple(batch), b.shape[:-2])
    return s.reduce("add", (a.shape[-1],), lambda k: a(*ia, i, k) * b(*ib, k, j))


def product(
    g: GraphBuilder, a: Node, b: Node, multiply: Callable[[Node, Node], Node] | None = None
) -> Node:
    """NumPy's matmul of nodes, 1-D operands included; `multiply` is given those of rank 2 and
    more."""
    if a.type.rank == 0 or b.type.rank == 0:
        raise ShapeError(f"matmul takes operands of rank 1 or more, got {a.type} and {b.type}")
    rows: tuple[Dim, ...] = () if a.type.rank == 1 else (-2,)
    if a.type.rank == 1:
        a = g.reshape(a, shape=(1, *a.type.shape))
    drop_column = b.type.rank == 1
    if drop_column:
        b = g.reshape(b, shape=(*b.type.shape, 1))
    y: Node = (multiply or g.matmul)(a, b)
    if rows and not drop_column:
        return y
    shape = (
        *y.type.shape[:-2], *(y.type.shape[-2:-1] if rows else ()),
        *(() if drop_column else y.type.shape[-1:]))
    return g.reshape(y, shape=shape)


@onnx_rule("MatMul")
def _matmul(g: GraphBuilder, node: Any) -> Node:
    return product(g, *node.inputs[:2])


@onnx_rule("Gemm")
def _gemm(g: GraphBuilder, node: Any) -> Node:
    """alpha * A' @ B' + beta * C."""
    a, b = node.inputs[:2]
    c = node.inputs[2] if len(node.inputs) > 2 else None
    if a.type.rank != 2 or b.type.rank != 2:
        raise ShapeError(f"Gemm takes matrices, got {a.type} and {b.type}")
    if node.attrs.get("transA", 0):
        a = g.transpose(a, perm=(1, 0))
    if node.attrs.get("transB", 0):
        b = g.transpose(b, perm=(1, 0))
    y: Node = scaled(g, g.matmul(a, b), node.attrs.get("alpha", 1.0))
    beta = node.attrs.get("beta", 1.0)
    if c is None or beta == 0:
        return y
    return g.add(y, scaled(g, c, beta))


def scaled(g: GraphBuilder, x: Node, factor: float) -> Node:
    """factor * x; a whole factor for integer tensors, as ONNX casts it."""
    if factor == 1:
        return x
    if dtypes.is_int(x.type.dtype) and factor != int(factor):
        raise TypeError_(f"a tensor of {x.type.dtype} can't be scaled by {factor}")
    return g.mul(x, int(factor) if dtypes.is_int(x.type.dtype) else float(factor))


# ---- einsum


def parse_equation(equation: str, ranks: tuple[int, ...]) -> tuple[list[str], str]:
    """Operands' and result's letters; an ellipsis becomes the letters 0, 1, ... from the right."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(f"einsum '{equation}' names {len(terms)} operands, got {len(ranks)}")
    dots = 0
    for i, (term, rank) in enumerate(zip(terms, ranks)):
        named = len(term.replace("...", ""))
        extra = rank - named
        if extra < 0 or (extra and "..." not in term):
            raise ShapeError(
                f"einsum '{equation}': operand {i} has rank {rank}, but '{term}' names {named} axes"
            )
        dots = max(dots, extra if "..." in term else 0)
        terms[i] = term.replace("...", _dots(extra))
    if not arrow:
        once = sorted(
            c for c in set("".join(terms)) if c.isalpha() and "".join(terms).count(c) == 1)
        right = "..." + "".join(once)
    result = right.replace("...", _dots(dots))
    known = set("".join(terms))
    if not known <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"):
        raise ModelError(
            f"einsum equation '{equation}' is malformed: use letters, ',', '...', '->'")
    if not set(result) <= known or len(set(result)) != len(result):
        raise ModelError(f"einsum '{equation}': the result names axes twice or unknown ones")
    return terms, result


def _dots(n: int) -> str:
    return "".join(str(d) for d in reversed(range(n)))


def _sizes(terms: list[str], shapes: list[tuple[Any, ...]], equation: str) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for term, shape in zip(terms, shapes):
        for letter, dim in zip(term, shape):
            known = sizes.setdefault(letter, dim)
            if same(known, dim) or same(dim, 1):
                continue
            if same(known, 1) or known != dim and known == 1:
                sizes[letter] = dim
            elif known != dim and dim != 1:
                raise ShapeError(
                    f"einsum '{equation}': axis '{letter}' is {sizes[letter]} in one "
                    f"operand and {dim} in another"
                )
    return sizes


def _einsum_type(*types: TensorType, equation: str) -> TensorType:
    terms, result = parse_equation(equation, tuple(t.rank for t in types))
    sizes = _sizes(terms, [t.shape for t in types], equation)
    return TensorType(same_dtype(*types), tuple(sizes[c] for c in result))


def _einsum_ref(*xs: np.ndarray[Any, Any], equation: str) -> np.ndarray[Any, Any]:
    return np.asarray(np.einsum(equation, *(wide(x) for x in xs), optimize=len(xs) > 2)).astype(
        xs[0].dtype)


@indexed(
    "contraction",
    infer=_einsum_type,
    ref=_einsum_ref,
    samples=[
        sample(F32(3, 4), F32(4, 5), equation="ij,jk->ik"), sample(F32(4, 4), equation="ii->i"),
        sample(F32(3, 4), equation="ij->j"), sample(F32(5), F32(5), equation="i,i"),
        sample(F32(2, 3, 4), F32(2, 4, 5), equation="...ij,...jk->...ik"),
        sample(F32(2, 3), F32(3, 4), F32(4), equation="ab,bc,c->a"),
        sample(F32(4, 4), equation="ii")],
)
def einsum(s: KernelBuilder, ix: Index, *xs: Loader, equation: str) -> Expr:
    """Einstein's sum over the letters that the result does not name."""
    terms, result = parse_equation(equation, tuple(len(x.shape) for x in xs))
    sizes = _sizes(terms, [x.shape for x in xs], equation)
    summed = [c for c in dict.fromkeys("".join(terms)) if c not in result]
    outer = dict(zip(result, ix))

    def term(*ks: Expr) -> Expr:
        at = {**outer, **dict(zip(summed, ks))}
        return reduce(mul, [x(*aligned(tuple(at[c] for c in letters), x.shape))
                            for letters, x in zip(terms, xs)])

    return s.reduce("add", [sizes[c] for c in summed], term) if summed else term()


@onnx_rule("Einsum")
def _einsum(g: GraphBuilder, node: Any) -> Node:
    equation = node.attrs["equation"].replace(" ", "")
    plain = _as_matmul(g, equation, node.inputs)
    if plain is not None:
        return plain
    return g.einsum(*node.inputs, equation=equation)


def _as_matmul(g: GraphBuilder, equation: str, xs: tuple[Node, ...]) -> Node | None:
    """Two operands, batch letters in front, one letter summed: a matmul, which templates know."""
    if len(xs) != 2 or "->" not in equation or "..." in equation:
        return None
    (a, b), result = parse_equation(equation, (xs[0].type.rank, xs[1].type.rank))
    summed = [c for c in a if c in b and c not in result]
    batch = [c for c in result if c in a and c in b]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    if (
        [len(summed), len(rows), len(columns)] != [1, 1, 1]
        or len(set(a)) != len(a)
        or (len(set(b)) != len(b))
    ):
        return None
    if result != "".join(batch + rows + columns):
        return None
    x = _ordered(g, xs[0], a, batch + rows + summed)
    y: Node = g.matmul(x, _ordered(g, xs[1], b, batch + summed + columns))
    return y


def _ordered(g: GraphBuilder, x: Node, letters: str, wanted: list[str]) -> Node:
    perm = tuple(letters.index(c) for c in wanted)
    if perm == tuple(range(len(perm))):
        return x
    return g.transpose(x, perm=perm)

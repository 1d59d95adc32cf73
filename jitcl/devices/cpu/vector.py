"""The language of generated CPU kernels: typed pointers, vectors of any width, and every scalar
operation.

A kernel's text does `from jitcl.devices.cpu.vector import *` and defines

    def relu_3(args, tid, nthreads):
        x = ptr(args, 0, "f32")
        y = ptr(args, 1, "f32")
        n = param(args, 2)
        for i in range(share(n, tid, nthreads), share(n, tid + 1, nthreads)):
            store(y, i, max_(load(x, i), f32(0)))

`args` is the address of a table of int64: buffer addresses, then integer parameters. All operations
are Numba intrinsics (no call, no bounds check, no exception), work on scalars and vectors alike,
give the type that they are given, and carry the names of `ir.scalar.SCALARS` (with `_` behind a
name that Python owns). Buffers never alias unless both are only read: each `ptr` has its own alias
scope, so loops vectorise without checks at run time.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from jitcl import dtypes
from jitcl.devices.cpu.convert import cast_value, from_storage, to_storage
from jitcl.devices.cpu.emit import (
    I32,
    I64,
    POINTER,
    constant,
    declare,
    mangle,
    room,
    vector_of,
)
from jitcl.devices.cpu.emit import (
    splat as emit_splat,
)
from jitcl.devices.cpu.kept import keep, kept_overflows
from jitcl.devices.cpu.numba_parts import intrinsic
from jitcl.devices.cpu.operations import OPERATIONS, REDUCE, TABLE
from jitcl.devices.cpu.vtypes import (
    DTYPES,
    STORAGE,
    Pointer,
    Vector,
    element_type,
    lanes_of,
    llvm_type,
    with_element,
)

f32, f64 = types.float32, types.float64
i8, i16, i32, i64 = types.int8, types.int16, types.int32, types.int64
u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64
SCOPES = 24  # buffers of one kernel that are told apart; more share the last scope
SCRATCH_SCOPE = SCOPES - 1


# ---------------------------------------------------------------------------------------- arguments
def _table(b: ir.IRBuilder, args: ir.Value, k: int) -> ir.Value:
    table = b.inttoptr(args, POINTER)
    value = b.load(b.gep(table, [constant(I64, k)], source_etype=I64), typ=I64)
    value.set_metadata("invariant.load", b.module.add_metadata([]))
    return value


@intrinsic(prefer_literal=True)
def ptr(typingctx, args, k, dtype):
    """The buffer in argument `k` (a literal) as elements of jitcl dtype `dtype` (a literal)."""
    number = k.literal_value

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        return b.inttoptr(_table(b, values[0], number), POINTER)

    return Pointer(dtype.literal_value, min(number, SCOPES - 2))(args, k, dtype), codegen


@intrinsic(prefer_literal=True)
def param(typingctx, args, k):
    """The integer in argument `k` (a literal)."""
    number = k.literal_value  # signatures keep literal types: Numba tells codegens apart by them
    return i64(args, k), lambda context, b, sig, values: _table(b, values[0], number)


@intrinsic(prefer_literal=True)
def scratch(typingctx, count, dtype):
    """`count` (a literal) elements on the thread's stack, aligned to 64 bytes, uninitialised. Keep
    below 256 KiB."""
    memory_type = ir.ArrayType(STORAGE[dtype.literal_value], count.literal_value)

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        return room(b, memory_type)

    return Pointer(dtype.literal_value, SCRATCH_SCOPE)(count, dtype), codegen


@intrinsic
def share(typingctx, n, k, parts):
    """Where part `k` of `parts` equal parts of 0 .. n begins: n * k // parts, of non-negative
    integers."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        begin = b.udiv(b.mul(values[0], values[1]), values[2])
        # that this is at most n is plain to us; said aloud, LLVM knows that addresses don't wrap
        return b.call(declare(b, "llvm.umin.i64", I64, [I64, I64]), [begin, values[0]])

    return i64(i64, i64, i64), codegen


@intrinsic
def offset(typingctx, p, i):
    """The pointer `i` elements further."""

    return p(p, i64), lambda context, b, sig, values: _address(b, sig.args[0], *values)


@intrinsic
def place(typingctx, p, i):
    """The address of element `i`, which may lie outside the buffer: nothing but a number."""

    return i64(p, i64), lambda context, b, sig, values: place_of(b, sig.args[0], *values)


# ------------------------------------------------------------------------------------------- memory
def place_of(b: ir.IRBuilder, ty: Pointer, p: ir.Value, i: ir.Value) -> ir.Value:
    return b.add(b.ptrtoint(p, I64), b.mul(i, constant(I64, dtypes.itemsize(ty.dtype))))


def _address(b: ir.IRBuilder, ty: Pointer, p: ir.Value, i: ir.Value) -> ir.Value:
    return b.gep(p, [i], inbounds=True, source_etype=STORAGE[ty.dtype])


def _mark(b: ir.IRBuilder, access: ir.Value, ty: Pointer) -> None:
    """Notes an access, for `tell_scopes`."""
    vars(b.module).setdefault("jitcl_accesses", []).append((access, ty.scope))


def tell_scopes(module: ir.Module) -> None:
    """Puts each access into its buffer's alias scope, and into none of the others that there are.
    """
    accesses = vars(module).get("jitcl_accesses", [])
    domain = module.add_metadata(["jitcl"])
    scopes = {k: module.add_metadata([f"jitcl.{k}", domain])
              for k in sorted({scope for _, scope in accesses})}
    marks = {k: (module.add_metadata([own]),
                 module.add_metadata([s for s in scopes.values() if s != own]))
             for k, own in scopes.items()}
    for access, scope in accesses:
        own, others = marks[scope]
        access.set_metadata("alias.scope", own)
        access.set_metadata("noalias", others)


def load_at(b: ir.IRBuilder, ty: Pointer, p: ir.Value, i: ir.Value, lanes: int = 0) -> ir.Value:
    """Emits a load of one element or `lanes` of them, as values of the compute type."""
    value = b.load(_address(b, ty, p, i), typ=vector_of(STORAGE[ty.dtype], lanes))
    value.align = dtypes.itemsize(ty.dtype)
    _mark(b, value, ty)
    return from_storage(b, value, ty.dtype)


def store_at(b: ir.IRBuilder, ty: Pointer, p: ir.Value, i: ir.Value, value: ir.Value) -> None:
    """Emits a store of a value of the compute type, scalar or vector."""
    value = to_storage(b, value, ty.dtype)
    done = b.store(value, _address(b, ty, p, i))
    done.align = dtypes.itemsize(ty.dtype)
    _mark(b, done, ty)


@intrinsic
def load(typingctx, p, i):
    """Element `i`: small floats come as f32, integers of less than eight bits as i32, bool as bool.
    """
    return DTYPES[p.dtype](p, i64), lambda context, b, sig, v: load_at(b, sig.args[0], *v)


@intrinsic
def store(typingctx, p, i, value):
    """Writes one value, or a vector's lanes, from element `i` on; casts to the buffer's type."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        x = cast_value(b, v[2], element_type(sig.args[2]), DTYPES[p.dtype])
        store_at(b, sig.args[0], v[0], v[1], x)
        return context.get_dummy_value()

    return types.void(p, i64, value), codegen


@intrinsic(prefer_literal=True)
def vload(typingctx, p, i, lanes):
    """`lanes` (a literal) elements from `i` on."""
    n = lanes.literal_value
    result = Vector(DTYPES[p.dtype], n)
    return result(p, i64, lanes), lambda context, b, sig, v: load_at(b, sig.args[0], v[0], v[1], n)


def _lane_mask(b: ir.IRBuilder, count: ir.Value, lanes: int) -> ir.Value:
    """Lanes 0 .. count-1."""
    steps = ir.Constant(ir.VectorType(I64, lanes), [ir.Constant(I64, k) for k in range(lanes)])
    return b.icmp_signed("<", steps, emit_splat(b, count, lanes))


@intrinsic(prefer_literal=True)
def vload_part(typingctx, p, i, count, lanes):
    """The first `count` of `lanes` (a literal) elements from `i` on; the others are 0 and are not
    touched."""
    n = lanes.literal_value
    result = Vector(DTYPES[p.dtype], n)

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        memory = vector_of(STORAGE[p.dtype], n)
        address = _address(b, sig.args[0], v[0], v[1])
        mask = _lane_mask(b, v[2], n)
        fn = declare(
            b, f"llvm.masked.load.{mangle(memory)}.p0", memory,
            [POINTER, I32, mask.type, memory])
        align = constant(I32, dtypes.itemsize(p.dtype))
        value = b.call(fn, [address, align, mask, ir.Constant(memory, None)])
        _mark(b, value, p)
        return from_storage(b, value, p.dtype)

    return result(p, i64, i64, lanes), codegen


@intrinsic
def vstore_part(typingctx, p, i, value, count):
    """Writes the first `count` lanes of a vector from element `i` on."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        x = cast_value(b, v[2], value.dtype, DTYPES[p.dtype])
        x = to_storage(b, x, p.dtype)
        address = _address(b, sig.args[0], v[0], v[1])
        mask = _lane_mask(b, v[3], value.lanes)
        fn = declare(
            b, f"llvm.masked.store.{mangle(x.type)}.p0", ir.VoidType(),
            [x.type, POINTER, I32, mask.type])
        align = constant(I32, dtypes.itemsize(p.dtype))
        _mark(b, b.call(fn, [x, address, align, mask]), p)
        return context.get_dummy_value()

    return types.void(p, i64, value, i64), codegen


# ------------------------------------------------------------------------------------------ vectors
@intrinsic(prefer_literal=True)
def splat(typingctx, x, lanes):
    """`x` in every one of `lanes` (a literal) lanes."""
    n, element = lanes.literal_value, element_type(x)
    return Vector(element, n)(element, lanes), lambda context, b, sig, v: emit_splat(b, v[0], n)


@intrinsic(prefer_literal=True)
def lane_index(typingctx, lanes):
    """i64 vector 0, 1, 2 ... lanes-1."""
    n = lanes.literal_value
    values = ir.Constant(ir.VectorType(I64, n), [ir.Constant(I64, k) for k in range(n)])
    return Vector(i64, n)(lanes), lambda context, b, sig, v: values


@intrinsic
def lane(typingctx, x, k):
    """One lane of a vector."""

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        return b.extract_element(v[0], b.trunc(v[1], I32))

    return x.dtype(x, i64), codegen


def _reduction(name: str, doc: str) -> Any:
    def op(typingctx, x):
        def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
            return _reduce(b, name, x.dtype, v[0])

        return x.dtype(x), codegen

    op.__name__ = op.__qualname__ = f"lanes_{name}"
    op.__doc__ = doc
    return intrinsic(op)


def _reduce(b: ir.IRBuilder, name: str, element: Any, x: ir.Value) -> ir.Value:
    is_float = isinstance(element, types.Float)
    scalar = llvm_type(element)
    if name == "add" and is_float:
        fn = declare(b, f"llvm.vector.reduce.fadd.{mangle(x.type)}", scalar, [scalar, x.type])
        return b.call(
            fn, [constant(scalar, -0.0), x], fastmath=REDUCE)  # reassoc: a tree, of fixed shape
    if is_float:                # half by half: LLVM's fmaximum takes the lanes one by one
        while isinstance(x.type, ir.VectorType):
            n = x.type.count // 2
            halves = [_lanes(b, x, range(k, k + n)) for k in (0, n)]
            x = TABLE[name][1](b, element, halves)
        return x
    full = {"add": "add", "max": "smax", "min": "smin"}[name]
    return b.call(declare(b, f"llvm.vector.reduce.{full}.{mangle(x.type)}", scalar, [x.type]), [x])


def _lanes(b: ir.IRBuilder, x: ir.Value, numbers: Sequence[int]) -> ir.Value:
    """Some lanes of a vector, as a vector; one, as a scalar."""
    if len(numbers) == 1:
        return b.extract_element(x, constant(I32, numbers[0]))
    mask = ir.Constant(ir.VectorType(I32, len(numbers)), [ir.Constant(I32, k) for k in numbers])
    return b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), mask)


lanes_add = _reduction("add", "Sum of the lanes, in an order that depends on the lane count only.")
lanes_max = _reduction("max", "Largest lane; NaN if any is NaN.")
lanes_min = _reduction("min", "Smallest lane; NaN if any is NaN.")   # a kernel's text names it


@intrinsic(prefer_literal=True)
def transpose(typingctx, target, source, lanes):
    """`lanes` (a literal power of two) rows of as many elements, from one tile of memory to another
    with rows and columns exchanged, in registers. Low types move as bytes."""
    n = lanes.literal_value

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        to, from_ = (
            Pointer("u8", ty.scope) if ty.dtype in dtypes.LOW else ty for ty in sig.args[:2])
        at = [constant(I64, k * n) for k in range(n)]
        rows = [load_at(b, from_, v[1], i, n) for i in at]
        for i, row in zip(at, _transposed(b, rows)):
            store_at(b, to, v[0], i, row)
        return context.get_dummy_value()

    return types.void(target, source, lanes), codegen


def _transposed(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Exchanges off-diagonal blocks of 1, 2, 4 ... rows and columns in turn."""
    n, size = len(rows), 1
    while size < n:
        low = [k + n - size if k & size else k for k in range(n)]
        high = [k + n if k & size else k + size for k in range(n)]
        pairs = {}
        for r in range(n):
            if not r & size:
                x, y = rows[r], rows[r + size]
                pairs[r], pairs[r + size] = (
                    b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, n), mask))
                    for mask in (low, high)
                )
        rows = [pairs[r] for r in range(n)]
        size *= 2
    return rows


# -------------------------------------------------------------------------------------------- casts
def _cast_to(dtype: str) -> Any:
    target = DTYPES[dtype]

    def op(typingctx, x):
        source = element_type(x)
        result = with_element(x, target)

        def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
            value = cast_value(b, v[0], element_type(sig.args[0]), target)
            # a 16-bit float is rounded to its precision, though it is held as f32; so low types
            return (
                from_storage(b, to_storage(b, value, dtype), dtype)
                if dtypes.compute(dtype) != dtype
                else value
            )

        return result(source if not isinstance(x, Vector) else x), codegen

    op.__name__ = op.__qualname__ = f"to_{dtype}"
    op.__doc__ = f"Cast to {dtype} as `convert.cast_value` defines it."
    return intrinsic(op)


@intrinsic(prefer_literal=True)
def as_type(typingctx, x, have, to):
    """The bits of `x`, of jitcl dtype `have`, as dtype `to` (literals of as many bits)."""
    old, new = have.literal_value, to.literal_value
    result = with_element(x, DTYPES[new])

    def codegen(context: Any, b: ir.IRBuilder, sig: Any, v: Any) -> ir.Value:
        value = cast_value(b, v[0], element_type(sig.args[0]), DTYPES[old])
        bits = to_storage(b, value, old)
        memory = vector_of(STORAGE[new], lanes_of(sig.args[0]))
        return from_storage(b, bits if bits.type == memory else b.bitcast(bits, memory), new)

    return result(x, have, to), codegen


@intrinsic
def bits(typingctx, p):
    """The same memory as unsigned integers of as many bytes as an element has."""
    result = Pointer(f"u{8 * dtypes.itemsize(p.dtype)}", p.scope)
    return result(p), lambda context, b, sig, v: v[0]


CASTS = {f"to_{dtype}": _cast_to(dtype) for dtype in DTYPES}


# ---------------------------------------------------------------------------------------- operators
def _operator(symbol: Any, generate: Any) -> None:
    """`+ - * /` between vectors, and between a vector and a scalar."""

    @infer_global(symbol)
    class _(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            vectors = [a for a in args if isinstance(a, Vector)]
            if (
                not vectors
                or len(args) != 2
                or not all(isinstance(a, (Vector, types.Number)) for a in args)
            ):
                return None
            return signature(
                vectors[0], *(a if isinstance(a, Vector) else vectors[0].dtype for a in args))

    def lower(context: Any, b: ir.IRBuilder, sig: Any, values: Any) -> ir.Value:
        lanes = lanes_of(sig.return_type)
        both = [
            x if isinstance(ty, Vector) else emit_splat(b, x, lanes)
            for ty, x in zip(sig.args, values)
        ]
        return generate(b, sig.return_type.dtype, both)

    for operands in ((Vector, Vector), (Vector, types.Number), (types.Number, Vector)):
        lower_builtin(symbol, *operands)(lower)


for _symbol, _name in (
    (operator.add, "add"), (operator.sub, "sub"), (operator.mul, "mul"), (operator.truediv, "div")):
    _operator(_symbol, TABLE[_name][1])

globals().update(OPERATIONS)
globals().update(CASTS)
__all__ = [
    "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "ptr", "param", "place",
    "share", "scratch", "offset", "load", "store", "keep", "kept_overflows", "vload",
    "vload_part", "vstore_part", "splat",
    "lane", "lane_index", "transpose", "as_type", "bits", "lanes_add", "lanes_max", "lanes_min",
    *OPERATIONS, *CASTS]

"""Contractions, windows, normalisations, quantisation."""

from __future__ import annotations

import numpy as np

from tests.fuzz.drawing import Drawer, Skip, Value
from tests.fuzz.pointwise import weighted
from tests.fuzz.registry import draws

TAME = ("normal", "whole", "positive")
HALVES = ("float32", "float16", "float64")


@draws("MatMul")
def matmul(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, (*HALVES, "bfloat16", "int32")), 1, 4, kinds=TAME)
    k, n = x.shape[-1], d.pick((1, 2, 5, 8, 17, 0))
    batch = [m if d.flag() else 1 for m in x.shape[:-2]]
    batch = batch[d.int(0, len(batch)):]
    shape = (k,) if d.int(0, 5) == 0 else (*batch, k, n)
    d.node(op, x, d.fresh(x.dtype, shape, TAME))


@draws("Gemm")
def gemm(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, HALVES), 2, 2, kinds=TAME)
    ta, tb = d.flag(), d.flag()
    m, k = x.shape[::-1] if ta else x.shape
    n = d.pick((1, 3, 4, 16))
    b = d.fresh(x.dtype, (n, k) if tb else (k, n), TAME)
    c = d.fresh(x.dtype, d.pick(((), (n,), (1, n), (m, 1), (m, n))), TAME) if d.flag() else None
    d.node(op, x, b, c, transA=int(ta), transB=int(tb), alpha=d.pick((None, 0.5)),
           beta=d.pick((None, 2.0)))


def spatial(d: Drawer, n: int) -> tuple[int, ...]:
    return tuple(d.int(3, (12, 7, 5)[n - 1]) for _ in range(n))


def window(d: Drawer, size: tuple[int, ...], pads: bool = True, dilate: bool = True
           ) -> dict[str, object]:
    """Attributes of a window that fits."""
    n = len(size)
    kernel = [d.int(1, 3) for _ in range(n)]
    found: dict[str, object] = {"kernel_shape": kernel}
    if dilate and d.int(0, 3) == 0:
        found["dilations"] = [d.int(1, 2) if (k - 1) * 2 < s else 1 for k, s in zip(kernel, size)]
    if d.flag():
        found["strides"] = [d.int(1, 3) for _ in range(n)]
    how = d.int(0, 3)
    if how == 0:
        found["auto_pad"] = d.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif how == 1 and pads:
        found["pads"] = [d.int(0, k - 1) for k in (*kernel, *kernel)]
    return found


@draws("Conv")
def conv(d: Drawer, op: str) -> None:
    n, group = d.int(1, 3), d.pick((1, 1, 2, 3))
    size = spatial(d, n)
    x = d.fresh(d.pick(("float32", "float32", "float16", "float64")),
                (d.int(1, 2), group * d.int(1, 4), *size), TAME)
    attrs = window(d, size)
    kernel = attrs["kernel_shape"]
    outs = group * d.int(1, 5)
    w = d.fresh(x.dtype, (outs, x.shape[1] // group, *kernel), TAME)  # type: ignore[misc]
    if d.flag():
        del attrs["kernel_shape"]
    d.node(op, x, w, d.fresh(x.dtype, (outs,), TAME) if d.flag() else None,
           group=group if group > 1 else None, **attrs)


@draws("ConvTranspose")
def conv_transpose(d: Drawer, op: str) -> None:
    n, group = d.int(1, 2), d.pick((1, 1, 2))
    size = spatial(d, n)
    x = d.fresh("float32", (d.int(1, 2), group * d.int(1, 3), *size), TAME)
    attrs = window(d, size)
    if attrs.get("auto_pad", "").startswith("SAME"):  # type: ignore[attr-defined]
        del attrs["auto_pad"]
    kernel = attrs["kernel_shape"]
    outs = d.int(1, 3)
    if "strides" in attrs and d.flag():
        attrs["output_padding"] = [d.int(0, s - 1) for s in attrs["strides"]]  # type: ignore
    w = d.fresh(x.dtype, (x.shape[1], outs, *kernel), TAME)  # type: ignore[misc]
    d.node(op, x, w, d.fresh(x.dtype, (outs * group,), TAME) if d.flag() else None,
           group=group if group > 1 else None, **attrs)


@draws("MaxPool AveragePool LpPool")
def pool(d: Drawer, op: str) -> None:
    n = d.int(1, 3)
    size = spatial(d, n)
    dtypes = HALVES if op != "MaxPool" else (*HALVES, "int8", "uint8")
    x = d.fresh(d.pick(("float32", *dtypes)), (d.int(1, 2), d.int(1, 3), *size), TAME)
    attrs = window(d, size)
    if d.int(0, 3) == 0 and "auto_pad" not in attrs and op != "LpPool":     # wrong there, too
        attrs["ceil_mode"] = 1
    if op == "AveragePool" and d.flag():
        attrs["count_include_pad"] = d.int(0, 1)
    if op == "LpPool":
        attrs["p"] = d.pick((1, 2, 3))
    if op in ("LpPool", "AveragePool") and "auto_pad" in attrs:
        attrs.pop("dilations", None)    # the reference pads as if there were none
    outputs = 2 if op == "MaxPool" and d.flag() and x.dtype == "float32" else 1
    if outputs == 2 and d.flag():
        attrs["storage_order"] = d.int(0, 1)
    d.node(op, x, outputs=outputs, **attrs)


@draws("GlobalAveragePool GlobalMaxPool")
def global_pool(d: Drawer, op: str) -> None:
    x = d.any(weighted(d, HALVES), 3, 5, where=lambda v: v.array.size > 0,
              shape=lambda: d.shape(3, 5, 1), kinds=TAME)
    d.node(op, x)


def _normalised(d: Drawer, low: int = 2) -> Value:
    return d.any(weighted(d, ("float32", "float16", "float64", "bfloat16")), low, 5,
                 where=lambda v: v.array.size > 0, shape=lambda: d.shape(low, 4, 1), kinds=TAME)


@draws("LayerNormalization RMSNormalization")
def layer_norm(d: Drawer, op: str) -> None:
    x = _normalised(d, 1)
    axis = d.axis(x.rank)
    shape = x.shape[axis % x.rank:]
    scale = d.fresh(x.dtype, shape, TAME)
    bias = d.fresh(x.dtype, shape, TAME) if op == "LayerNormalization" and d.flag() else None
    d.node(op, x, scale, *([bias] if bias is not None else []), axis=axis,
           epsilon=d.pick((None, 1e-3)))


@draws("BatchNormalization")
def batch_norm(d: Drawer, op: str) -> None:
    x = _normalised(d)
    c = (x.shape[1],)
    scale, bias, mean = (d.fresh(x.dtype, c, TAME) for _ in range(3))
    d.node(op, x, scale, bias, mean, d.fresh(x.dtype, c, ("positive",)),
           epsilon=d.pick((None, 1e-3)))


@draws("InstanceNormalization")
def instance_norm(d: Drawer, op: str) -> None:
    x = _normalised(d, 3)
    if x.dtype == "bfloat16":
        raise Skip("no bfloat16 reference")
    c = (x.shape[1],)
    d.node(op, x, d.fresh(x.dtype, c, TAME), d.fresh(x.dtype, c, TAME))


@draws("GroupNormalization")
def group_norm(d: Drawer, op: str) -> None:
    groups, per = d.int(1, 3), d.int(1, 3)
    x = d.fresh("float32", (d.int(1, 2), groups * per, *d.shape(1, 2, 1)), TAME)
    c = (groups * per,)
    d.node(op, x, d.fresh(x.dtype, c, TAME), d.fresh(x.dtype, c, TAME), num_groups=groups)


@draws("LRN")
def lrn(d: Drawer, op: str) -> None:
    x = d.fresh("float32", (d.int(1, 2), d.int(1, 7), d.int(1, 4), d.int(1, 4)), TAME)
    d.node(op, x, size=d.pick((1, 3, 5)), alpha=d.pick((None, 0.1)), beta=d.pick((None, 0.5)),
           bias=d.pick((None, 2.0)))


@draws("Einsum")
def einsum(d: Drawer, op: str) -> None:
    equation = d.pick(("ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij->", "ii->i", "i,j->ij",
                       "bhid,bhjd->bhij", "...ij,...jk->...ik", "ij,ij->i", "abc->ca", "ij,j",
                       "ab,bc,cd->ad", "...i,i->..."))
    sizes = {c: d.pick((1, 2, 3, 5)) for c in "abcdhijk"}
    dots = d.shape(0, 1, 1)
    dtype = d.pick(("float32", "float32", "float64"))
    operands = []
    for term in equation.split("->")[0].split(","):
        lead = dots if "..." in term else ()
        operands.append(d.fresh(dtype, (*lead, *(sizes[c] for c in term if c != ".")), TAME))
    d.node(op, *operands, equation=equation)


@draws("Resize")
def resize(d: Drawer, op: str) -> None:
    x = d.fresh(d.pick(("float32", "float32", "float16")),
                (d.int(1, 2), d.int(1, 2), d.int(2, 5), d.int(2, 5)), TAME)
    mode = d.pick(("nearest", "linear", "cubic"))
    attrs: dict[str, object] = {"mode": mode, "coordinate_transformation_mode": d.pick(
        (None, "half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric",
         "pytorch_half_pixel"))}
    if mode == "nearest":
        attrs["nearest_mode"] = d.pick((None, "floor", "ceil", "round_prefer_ceil"))
    if mode == "cubic":
        attrs.update(cubic_coeff_a=d.pick((None, -0.5)), exclude_outside=d.pick((None, 1)))
    if mode != "nearest" and d.flag():
        attrs["antialias"] = 1
    if d.flag():
        sizes = [*x.shape[:2], d.int(1, 9), d.int(1, 9)]
        d.node(op, x, None, None, d.constant(sizes), **attrs)
        return
    scales = [1.0, 1.0, *(d.pick((0.5, 1.0, 2.0, 1.5, 3.0, 2.5)) for _ in "hw")]
    d.node(op, x, None, d.constant(scales, "float32"), **attrs)


@draws("GridSample")
def grid_sample(d: Drawer, op: str) -> None:
    x = d.fresh("float32", (d.int(1, 2), d.int(1, 2), d.int(1, 5), d.int(1, 5)), TAME)
    grid = d.given(d.rng.uniform(-1.3, 1.3, (x.shape[0], d.int(1, 4), d.int(1, 4), 2)).astype("f4"))
    d.node(op, x, grid, mode=d.pick((None, "nearest", "cubic")), align_corners=d.pick((None, 1)),
           padding_mode=d.pick((None, "border", "reflection")))


@draws("MatMulInteger")
def matmul_integer(d: Drawer, op: str) -> None:
    m, k, n = d.int(1, 5), d.int(0, 17), d.int(1, 9)
    a = d.fresh(d.pick(("uint8", "int8")), (*d.shape(0, 1, 1), m, k), ("wide",))
    b = d.fresh(d.pick(("uint8", "int8")), (k, n), ("wide",))
    d.node(op, a, b, d.fresh(a.dtype, (), ("positive",)) if d.flag() else None,
           d.fresh(b.dtype, d.pick(((), (n,))), ("positive",)) if d.flag() else None)


@draws("QuantizeLinear")
def quantize(d: Drawer, op: str) -> None:
    x = d.any(("float32", "float32", "float16"), 1, 4, kinds=TAME)
    axis = d.axis(x.rank)
    shape = (x.shape[axis],) if d.flag() else ()
    scale = d.given(d.rng.uniform(0.01, 0.2, shape).astype(x.array.dtype))
    zero = d.fresh(d.pick(("uint8", "int8", "int16", "uint16")), shape, ("positive",))
    d.node(op, x, scale, zero if d.flag() else None, axis=axis)


@draws("DequantizeLinear")
def dequantize(d: Drawer, op: str) -> None:
    x = d.any(("uint8", "int8", "int16", "uint16", "int32"), 1, 4)
    axis = d.axis(x.rank)
    shape = (x.shape[axis],) if d.flag() else ()
    scale = d.given(d.rng.uniform(0.01, 0.2, shape).astype(d.pick(("float32", "float16"))))
    zero = d.fresh(x.dtype, shape, ("positive",)) if d.flag() and x.dtype != "int32" else None
    d.node(op, x, scale, zero, axis=axis)


@draws("QLinearMatMul")
def qlinear_matmul(d: Drawer, op: str) -> None:
    m, k, n = d.int(1, 5), d.int(1, 17), d.int(1, 9)
    dtype = d.pick(("uint8", "int8"))

    def scale() -> Value:
        return d.given(np.asarray(d.rng.uniform(0.02, 0.1), np.float32))

    def zero() -> Value:
        return d.fresh(dtype, (), ("positive",))
    d.node(op, d.fresh(dtype, (m, k), ("wide",)), scale(), zero(),
           d.fresh(dtype, (k, n), ("wide",)), scale(), zero(), scale(), zero())


@draws("Attention")
def attention(d: Drawer, op: str) -> None:
    b, h, kv, q, k, e = d.int(1, 2), d.pick((1, 2, 4)), d.pick((1, 2)), d.int(1, 5), d.int(1, 5), 4
    if h % kv:
        raise Skip("groups")
    dtype = d.pick(("float32", "float32", "float16"))
    q4 = d.fresh(dtype, (b, h, q, e), TAME)
    k4, v4 = d.fresh(dtype, (b, kv, k, e), TAME), d.fresh(dtype, (b, kv, k, d.int(1, 5)), TAME)
    mask = None
    if d.flag():
        mask = d.fresh(d.pick(("bool", dtype)), d.pick(((q, k), (1, 1, q, k), (b, 1, q, k))), TAME)
        if mask.dtype == "bool":        # a row without any key has no softmax
            full = mask.array.copy()
            full[..., 0] = True
            mask = d.given(full)
    d.node(op, q4, k4, v4, mask, is_causal=d.pick((None, 1)), softcap=d.pick((None, 2.0)),
           scale=d.pick((None, 0.3)))


@draws("SwiGLU")
def swiglu(d: Drawer, op: str) -> None:
    x = d.any(("float32", "float16"), 1, 4, kinds=TAME)
    d.node(op, x, d.fresh(x.dtype, x.shape, TAME))


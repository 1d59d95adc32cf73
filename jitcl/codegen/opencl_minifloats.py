"""C functions between low types, which lie in bytes, and the float or int that kernels compute in.

They are integer arithmetic, as those of bfloat16 are: no driver has these types. What is subnormal
is converted by a float instruction, and rounded by adding a number whose last place is the type's
smallest number.
"""

from __future__ import annotations

from jitcl import dtypes
from jitcl.dtypes import MINIFLOATS, Minifloat

_NAN = "0x7fc00000u"
_POWERS = {
    "from": """float jitcl_from_f8e8m0(uchar a)
{
    if (a == 255) return NAN;
    return as_float(a == 0 ? 0x400000u : (uint)a << 23);
}""",
    "to": """uchar jitcl_to_f8e8m0(float a)
{
    uint u = as_uint(a);                    // halves up; no power of two is 0, negative or infinite
    if (u - 1u >= 0x7f7fffffu) return 255;
    return (uchar)((u + (u < 0x800000u ? 0x3fffffu : 0x400000u)) >> 23);
}""",
}


def low_helper(name: str, op: str, dtype: str) -> str:
    """`jitcl_to_<dtype>`, a byte of a value, or `jitcl_from_<dtype>`, a byte's value."""
    if dtype in dtypes.LOW_INTS:
        return _to_int(name, dtype) if op == "to" else _from_int(name, dtype)
    if dtype == "f8e8m0":
        return _POWERS[op]
    f = MINIFLOATS[dtype]
    return _to_float(name, f) if op == "to" else _from_float(name, f)


def _to_int(name: str, dtype: str) -> str:
    mask = (1 << dtypes.bits(dtype)) - 1
    return f"uchar jitcl_{name}(int a)\n{{\n    return (uchar)(a & {mask});\n}}"


def _from_int(name: str, dtype: str) -> str:
    width = dtypes.bits(dtype)
    half, text = 1 << (width - 1), f"((int)a & {(1 << width) - 1})"
    value = text if dtype in dtypes.UNSIGNED else f"({text} ^ {half}) - {half}"
    return f"int jitcl_{name}(uchar a)\n{{\n    return {value};\n}}"


def _from_float(name: str, f: Minifloat) -> str:
    """The exponent is rebiased, subnormals are multiples of the smallest number."""
    special = {
        "ieee": f"if (m > {f.top:#x}u) u += {(112 << 23):#x}u;",
        "nan": f"if (m > {f.top:#x}u) u = {_NAN};",
        "zero": f"if (m == 0 && (a & {f.sign:#x}u) != 0) return NAN;",
    }.get(f.specials, "")
    lines = [
        f"float jitcl_{name}(uchar a)", "{",
        f"    uint m = a & {f.sign - 1:#x}u, sign = ((uint)a & {f.sign:#x}u)"
        f" << {31 - f.exponent - f.mantissa};",
        f"    uint u = (m << {23 - f.mantissa}) + {(127 - f.bias) << 23:#x}u;",
        f"    if (m < {1 << f.mantissa}u) u = as_uint(convert_float(m) * {f.step!r}f);",
        *([f"    {special}"] if special else []),
        "    return as_float(sign | u);", "}"]
    return "\n".join(lines)


def _to_float(name: str, f: Minifloat) -> str:
    """To the nearest, ties to even; beyond the largest number what the type has there."""
    drop = 23 - f.mantissa
    shift = 31 - f.exponent - f.mantissa
    beyond = {
        "ieee": f"if (u > 0x7f800000u) return (uchar)(sign | {f.sign - 2:#x}u);",
        "nan": f"if (u > 0x7f800000u) return (uchar)(sign | {f.sign - 1:#x}u);",
        "none": f"if (u > 0x7f800000u) return {f.sign};",
        "zero": f"if (u > 0x7f800000u) return {f.sign};",
    }[f.specials]
    above = {"none": f"(uchar)(sign | {f.top:#x}u)", "zero": f"{f.sign}"}.get(
        f.specials, f"(uchar)(sign | {f.top + 1:#x}u)")
    lines = [
        f"uchar jitcl_{name}(float a)", "{",
        f"    uint u = as_uint(a) & 0x7fffffffu, sign = (as_uint(a) >> {shift}) & {f.sign:#x}u, m;",
        f"    {beyond}",
        f"    if (u < {(128 - f.bias) << 23:#x}u)",
        f"        m = as_uint(as_float(u) + {f.step * 2.0 ** 23!r}f) & 0xffu;",
        "    else",
        f"        m = (u - {(127 - f.bias) << 23:#x}u + {(1 << (drop - 1)) - 1:#x}u"
        f" + ((u >> {drop}) & 1u)) >> {drop};",
        f"    if (m > {f.top:#x}u) return {above};",
        *(["    if (m == 0) return 0;"] if f.specials == "zero" else []),
        "    return (uchar)(sign | m);", "}"]
    return "\n".join(lines)

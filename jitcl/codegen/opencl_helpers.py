"""Small C functions that generated OpenCL kernels call: what C leaves undefined or does otherwise
than NumPy.

A kernel's text holds the helpers that it uses, each guarded by a macro, so that kernels may be
built in one program. Names end in the jitcl dtype: `jitcl_floordiv_i32`.
"""

from __future__ import annotations

from jitcl import dtypes
from jitcl.codegen.opencl_minifloats import low_helper
from jitcl.errors import JitclError

CTYPE = {
    "f16": "float",
    "bf16": "float",
    "f32": "float",
    "f64": "double",
    "bool": "bool",
    "i8": "char",
    "i16": "short",
    "i32": "int",
    "i64": "long",
    "u8": "uchar",
    "u16": "ushort",
    "u32": "uint",
    "u64": "ulong",
    **dict.fromkeys(dtypes.LOW_FLOATS, "float"),
    **dict.fromkeys(dtypes.LOW_INTS, "int"),
}
STORED = {**CTYPE, "f16": "half", "bf16": "ushort", "bool": "uchar",  # of buffers
          **dict.fromkeys(dtypes.LOW, "uchar")}


_FLOAT = {
    # NaN where either operand is NaN: fmax would drop it
    "max": "return (a > b || a != a) ? a : b;",
    "min": "return (a < b || a != a) ? a : b;",
    "sign": "return a > 0 ? ({T})1 : a < 0 ? ({T})-1 : a;",
    "floordiv": "return floor(a / b);",
    "mod": """{T} r = fmod(a, b);
    if (r == 0) return copysign(({T})0, b);
    return (r < 0) != (b < 0) ? r + b : r;""",
}
_INTEGER = {
    "max": "return a > b ? a : b;",
    "min": "return a < b ? a : b;",
    "sign": "return ({T})(a > 0) - ({T})(a < 0);",
    "abs": "return a < 0 ? ({T})-a : a;",
    # never a trap: x / 0 is 0, lowest / -1 wraps ({negated}, {nothing}: lines of signed types)
    "div": """if (b == 0) return 0;
{negated}    return a / b;""",
    "fmod": """if (b == 0) return 0;
{nothing}    return a % b;""",
    "floordiv": """if (b == 0) return 0;
{negated}    {T} q = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? ({T})(q - 1) : q;""",
    "mod": """if (b == 0) return 0;
{nothing}    {T} r = a % b;
    return (r != 0 && (r < 0) != (b < 0)) ? ({T})(r + b) : r;""",
    "shl": "return b < 0 || b >= ({T})(8 * sizeof({T})) ? ({T})0 : ({T})(a << b);",
    "shr": "return b < 0 || b >= ({T})(8 * sizeof({T}))"
           " ? (a < 0 ? ({T})-1 : ({T})0) : ({T})(a >> b);",
    # four bits from bit b on, with and without a sign; b is 0 or 4
    "int4": "return ({T})(((a >> b & 15) ^ 8) - 8);",
    "uint4": "return ({T})(a >> b & 15);",
    # a negative power is 0 but for the bases 1 and -1
    "pow": """if (b < 0)"""
           """ return a == 1 || (a == ({T})-1 && b % 2 == 0) ? ({T})1 : a == ({T})-1 ? a : ({T})0;
    {T} r = 1;
    for ({T} n = b, p = a; n > 0; n >>= 1, p = ({T})(p * p))
        if (n & 1) r = ({T})(r * p);
    return r;""",
}
# x / -1 and x % -1, which trap for the lowest x
_MINUS_ONE = {"negated": "    if (b == -1) return ({T})(0 - a);\n",
              "nothing": "    if (b == -1) return 0;\n"}
_UNARY = ("sign", "abs")
_TO_INT = """{narrow} jitcl_{name}({source} a)
{{
    return a >= {low} && a < {high} ? convert_{wide}_rtz(a) : {lowest};
}}"""
_OTHER = {
    "quotient_i32": """int jitcl_quotient_i32(int a, int factor, int shift)
{
    return (int)(mul_hi((uint)a, (uint)factor) >> shift);
}""",
    "round_f16": """float jitcl_round_f16(float a)
{
    float m = fabs(a);                      // to the nearest binary16, ties to even
    if (m < 6.103515625e-05f) return copysign((m + 0.5f) - 0.5f, a);
    uint u = as_uint(m);
    u = (u + 0xfffu + ((u >> 13) & 1u)) & ~0x1fffu;
    return isnan(a) ? a : copysign(as_float(u) > 65504.0f ? INFINITY : as_float(u), a);
}""",
    "to_bf16": """ushort jitcl_to_bf16(float a)
{
    uint u = as_uint(a);                    // to the nearest bfloat16, ties to even
    if (isnan(a)) return (ushort)((u >> 16) | 0x40u);
    return (ushort)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}""",
    "from_bf16": """float jitcl_from_bf16(ushort a)
{
    return as_float((uint)a << 16);
}""",
}
# of drivers without the type half; they round as vstore_half_rte does
_OTHER |= {
    "to_f16": """ushort jitcl_to_f16(float a)
{
    uint u = as_uint(a) & 0x7fffffffu, sign = (as_uint(a) >> 16) & 0x8000u;
    if (u > 0x7f800000u) return (ushort)(sign | 0x7e00u);           // NaN
    if (u >= 0x477ff000u) return (ushort)(sign | 0x7c00u);          // from 65520 on infinity
    if (u <= 0x33000000u) return (ushort)sign;                      // up to 2^-25
    if (u < 0x38800000u) {                                          // multiples of 2^-24
        uint drop = 126u - (u >> 23), m = (u & 0x7fffffu) | 0x800000u;
        uint kept = m >> drop, rest = m & ((1u << drop) - 1u), tie = 1u << (drop - 1u);
        return (ushort)(sign | (kept + (rest > tie || (rest == tie && (kept & 1u)) ? 1u : 0u)));
    }
    u += 0xfffu + ((u >> 13) & 1u);                                 // to the nearest, ties to even
    return (ushort)(sign | ((u - 0x38000000u) >> 13));
}""",
    "from_f16": """float jitcl_from_f16(ushort a)
{
    uint sign = ((uint)a & 0x8000u) << 16, u = (uint)a & 0x7fffu;
    if (u >= 0x7c00u) return as_float(sign | 0x7f800000u | ((u & 0x3ffu) << 13));
    if (u >= 0x0400u) return as_float(sign | ((u << 13) + 0x38000000u));
    return as_float(sign | as_uint(convert_float(u) * 5.9604644775390625e-08f));
}""",
}
# a code among the lower bits of the mantissa of 2^23, exactly: less than a conversion, and no shift
_OTHER |= {name: f"""float jitcl_{name}(uint masked, float factor, float bias)
{{
    return as_float(masked | 0x4b000000u) * factor - bias;
}}""" for name in ("uint4_code", "uint8_code")}
# x P(x^2) / Q(x^2) as Eigen has it, 7 ulp; with half_recip as bad as OpenCL C allows 12 of the 16
# that erf may have. Mali's spills: 180 instructions a value, of which a tile has eight.
_ERF = """{T} jitcl_{name}({T} a)
{{
    {T} x = clamp(a, -4.0f, 4.0f), s = x * x;
    {T} p = -2.72614225801306e-10f * s + 2.77068142495902e-08f;
    p = p * s - 2.10102402082508e-06f;
    p = p * s - 5.69250639462346e-05f;
    p = p * s - 7.34990630326855e-04f;
    p = p * s - 2.95459980854025e-03f;
    p = p * s - 1.60960333262415e-02f;
    {T} q = -1.45660718464996e-05f * s - 2.13374055278905e-04f;
    q = q * s - 1.68282697438203e-03f;
    q = q * s - 7.37332916720468e-03f;
    q = q * s - 1.42647390514189e-02f;
    {T} r = half_recip(q);
    r = r * (2.0f - q * r);
    return select(clamp(x * p * r, -1.0f, 1.0f), a, isnan(a));
}}"""
LANE_BY_LANE = ("to", "from", "round")           # helpers of vectors that call those of one value
# numbers in the upper and lower halves of a word's bytes, in its bytes
_CODES = {"int4": ("char", "a & 0xf0f0f0f0u"), "uint4": ("uchar", "a & 0x0f0f0f0fu"),
          "int8": ("char", "a"), "uint8": ("uchar", "a")}
_INTS = {"int": ("2147483648", "INT_MIN"), "long": ("9223372036854775808", "LONG_MIN")}


class Calls:
    """The helpers that a template's text calls, and those whose text it holds."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.defined: set[str] = set()

    def call(self, name: str, *args: str) -> str:
        self.called.add(name)
        return f"jitcl_{name}({', '.join(args)})"

    def define(self, name: str) -> str:
        self.defined.add(name)
        return helper(name)

    def missing(self) -> list[str]:
        """What else the text needs, in an order in which C knows each function that it calls."""
        found = sorted(self.called - self.defined)
        return list(dict.fromkeys([*(n for name in found for n in needs(name)), *found]))


def needs(name: str) -> list[str]:
    """The helpers that a helper calls: halves of a vector are converted one by one."""
    op, _, dtype = name.rpartition("_")
    scalar, _, lanes = dtype.partition("x")
    return [f"{op}_{scalar}"] if scalar == "f16" and lanes and op in LANE_BY_LANE else []


def helper(name: str) -> str:
    """The text of a helper and its guard: "max_f32", "int_from_f64", "round_f16", ..."""
    guard = f"JITCL_{name.upper()}"
    return f"#ifndef {guard}\n#define {guard}\n{_body(name)}\n#endif\n"


def _body(name: str) -> str:
    if name in _OTHER:
        return _OTHER[name]
    op, _, dtype = name.rpartition("_")
    if dtype in dtypes.LOW and op in ("to", "from"):
        return low_helper(name, op, dtype)
    if op.endswith("_from"):
        wide, source = op.removesuffix("_from"), CTYPE[dtype]
        high, lowest = _INTS[wide]
        suffix = "f" if source == "float" else ""
        return _TO_INT.format(
            narrow=wide,
            name=name,
            source=source,
            low=f"-{high}.0{suffix}",
            high=f"{high}.0{suffix}",
            wide=wide,
            lowest=lowest,
        )
    if "x" in dtype:
        return _vector_body(name, op, dtype)
    texts = _FLOAT if dtypes.is_float(dtype) else _INTEGER
    if op not in texts:
        raise JitclError(f"no OpenCL helper '{name}'")
    ctype = CTYPE[dtype]
    arguments = f"{ctype} a" if op in _UNARY else f"{ctype} a, {ctype} b"
    signed = dtype in dtypes.SIGNED
    lines = {name: line.format(T=ctype) if signed else "" for name, line in _MINUS_ONE.items()}
    text = texts[op].format(T=ctype, **lines)
    return f"{ctype} jitcl_{name}({arguments})\n{{\n    {text}\n}}"


def _vector_body(name: str, op: str, dtype: str) -> str:
    """max and min of vectors: "max_f32x16"; conversions of lanes one by one: "to_f16x4"; halves
    that are moved at once, where vload_half4 makes four accesses (Mali, Adreno): "load_f16x4";
    conversions of the type half, which NVIDIA's compiler has casts of, but no convert_half:
    "to_halfx4"; the error function where registers are few: "erf_f32x4"; numbers in the bytes of a
    word: "int8_f32x4", in their lower halves: "uint4_f32x4", 16 times as large ones in their upper
    halves: "int4_f32x4".
    """
    scalar, _, n = dtype.partition("x")
    if op in _CODES:
        lanes, bits = _CODES[op]
        return (f"float{n} jitcl_{name}(uint a)\n{{\n    {lanes}{n} b = as_{lanes}{n}({bits});\n"
                f"    return convert_float{n}(b);\n}}")
    if op == "erf":
        return _ERF.format(T=f"float{n}", name=name)
    if scalar == "half":
        source, result = ("float", "half") if op == "to" else ("half", "float")
        each = ", ".join(f"({result})a.s{k:x}" for k in range(int(n)))
        return (f"#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
                f"{result}{n} jitcl_{name}({source}{n} a)\n{{\n"
                f"    return ({result}{n})({each});\n}}")
    if op == "load":
        return (f"float{n} jitcl_{name}(__global const half *p)\n{{\n"
                f"    ushort{n} bits = *(__global const ushort{n} *)p;\n"
                f"    return vload_half{n}(0, (const half *)&bits);\n}}")
    if op == "store":
        return (f"void jitcl_{name}(float{n} a, __global half *p)\n{{\n"
                f"    ushort{n} bits;\n"
                f"    vstore_half{n}_rte(a, 0, (half *)&bits);\n"
                f"    *(__global ushort{n} *)p = bits;\n}}")
    if op in LANE_BY_LANE:
        source, result = ("ushort" if op == "from" else "float",
                          "ushort" if op == "to" else "float")
        each = ", ".join(f"jitcl_{op}_f16(a.s{k:x})" for k in range(int(n)))
        return (f"{result}{n} jitcl_{name}({source}{n} a)\n{{\n"
                f"    return ({result}{n})({each});\n}}")
    test = "isgreater" if op == "max" else "isless"
    kind = f"half{n}" if scalar == "f16" else f"float{n}"
    return (
        f"{kind} jitcl_{name}({kind} a, {kind} b)\n{{\n"
        f"    return select(b, a, {test}(a, b) | isnan(a));\n}}"
    )

"""How each scalar operation reads in OpenCL C 1.2, and the small functions that some of them need.

Builtins are used where their meaning is ours. They are not where a builtin drops NaN (`fmax`), traps or is undefined
(division by zero, shifts by the width), or rounds the wrong way (`%` of negatives): those call a static function that
is written into the program once.
"""

from __future__ import annotations

TYPES = {"f32": "float", "f64": "double", "f16": "half", "i8": "char", "i16": "short", "i32": "int", "i64": "long",
         "u8": "uchar", "u16": "ushort", "u32": "uint", "u64": "ulong", "bool": "uchar", "bf16": "ushort"}
FLOAT_BUILTINS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint", "sqrt": "sqrt", "exp": "exp",
                  "log": "log", "erf": "erf", "tanh": "tanh", "sin": "sin", "cos": "cos", "tan": "tan",
                  "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
                  "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "abs": "fabs", "fmod": "fmod",
                  "pow": "pow"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
         "and": "&&", "or": "||", "bitand": "&", "bitor": "|", "bitxor": "^"}

# T: the operands' C type, K: jitcl's name for it, BITS: its width
FUNCTIONS = {
    "max": "T max_K(T a, T b) { return a > b || a != a ? a : b; }",
    "min": "T min_K(T a, T b) { return a < b || a != a ? a : b; }",
    "div": "T div_K(T a, T b) { return b == 0 ? (T)0 : a / b; }",
    "fmod": "T fmod_K(T a, T b) { return b == 0 ? (T)0 : a % b; }",
    "floordiv_signed": "T floordiv_K(T a, T b) { T q; if (b == 0) return 0; q = a / b; "
                       "return q * b != a && (a < 0) != (b < 0) ? q - 1 : q; }",
    "floordiv_unsigned": "T floordiv_K(T a, T b) { return b == 0 ? (T)0 : a / b; }",
    "floordiv_float": "T floordiv_K(T a, T b) { return floor(a / b); }",
    "mod_signed": "T mod_K(T a, T b) { T r; if (b == 0) return 0; r = a % b; "
                  "return r != 0 && (r < 0) != (b < 0) ? r + b : r; }",
    "mod_unsigned": "T mod_K(T a, T b) { return b == 0 ? (T)0 : a % b; }",
    "mod_float": "T mod_K(T a, T b) { T r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }",
    "pow_int": "T pow_K(T a, T b) { T r = 1; if (b < 0) return a == 1 ? 1 : 0; "
               "while (b > 0) { if (b & 1) r *= a; a *= a; b >>= 1; } return r; }",
    "abs_signed": "T abs_K(T a) { return a < 0 ? -a : a; }",
    "sign": "T sign_K(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : a; }",
    "sign_unsigned": "T sign_K(T a) { return a > 0 ? (T)1 : (T)0; }",
    "shl": "T shl_K(T a, T b) { return b < 0 || b >= BITS ? (T)0 : a << b; }",
    "shr": "T shr_K(T a, T b) { return b < 0 || b >= BITS ? (a < 0 ? (T)-1 : (T)0) : a >> b; }",
    "shl_unsigned": "T shl_K(T a, T b) { return b >= BITS ? (T)0 : a << b; }",
    "shr_unsigned": "T shr_K(T a, T b) { return b >= BITS ? (T)0 : a >> b; }",
    # 16-bit floats are storage: these round a float to them and back
    "round_f16": "float round_f16(float a) { ushort h; vstore_half_rte(a, 0, (half *)&h); "
                 "return vload_half(0, (const half *)&h); }",
    "load_bf16": "float load_bf16(ushort a) { return as_float((uint)a << 16); }",
    "store_bf16": "ushort store_bf16(float a) { uint u = as_uint(a); if (a != a) return 0x7fc0; "
                  "return convert_ushort((u + 0x7fff + ((u >> 16) & 1)) >> 16); }",
    "round_bf16": "float round_bf16(float a) { uint u = as_uint(a); if (a != a) return a; "
                  "return as_float((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u); }",
}


def function(name: str, dtype: str) -> str:
    """The text of a helper function for operands of a dtype."""
    bits = str({"8": 8, "6": 16, "2": 32, "4": 64}.get(dtype[-1], 8))
    text = FUNCTIONS[name].replace("BITS", bits).replace("_K(", f"_{dtype}(" if "_K(" in FUNCTIONS[name] else "_K(")
    ctype = TYPES[dtype]
    out = []
    for word in text.replace("(T)", f"({ctype})").split(" "):
        out.append(ctype if word == "T" else f"({ctype}" if word == "(T" else word)
    return "static " + " ".join(w.replace("(T ", f"({ctype} ") for w in out).replace("(T ", f"({ctype} ")


def literal(value: float | int | bool, dtype: str) -> str:
    """A literal of exactly the type: a half or float expression never meets a double."""
    if dtype == "bool":
        return "1" if value else "0"
    if dtype in ("f32", "f16", "bf16"):
        return _float(float(value), "f", "INFINITY", "NAN")
    if dtype == "f64":
        return _float(float(value), "", "as_double(0x7ff0000000000000UL)", "as_double(0x7ff8000000000000UL)")
    value = int(value)
    suffix = {"i64": "L", "u64": "UL", "u32": "u"}.get(dtype, "")
    if value == -(1 << 63):
        return "(-9223372036854775807L - 1L)"
    if value == -(1 << 31) and dtype in ("i32", "index"):
        return "(-2147483647 - 1)"
    return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"


def _float(value: float, suffix: str, inf: str, nan: str) -> str:
    if value != value:
        return nan
    if value in (float("inf"), float("-inf")):
        return inf if value > 0 else f"(-{inf})"
    text = repr(value)
    text = text if any(c in text for c in ".en") else text + ".0"
    return f"({text}{suffix})" if text.startswith("-") else text + suffix

"""What a kernel uses that a driver may get wrong, read from its text.

The names are the vocabulary of probes (`Target.proven`), suspects (`Target.suspects`), and crash
signatures in the fault database.
"""

from __future__ import annotations

import re
from functools import lru_cache

_NUMBER = r"(?:float|double|half|char|uchar|short|ushort|int|uint|long|ulong)"
# builtins whose names say how many lanes they take: vload8, vstore_half4_rte, convert_float16
_LANES = r"\b(?:v(?:load|store)|vloada_|vstorea_|convert_|as_)[a-z_]*"
# OpenCL C 1.2's builtins that compute
_MATH = tuple("""
    acos acosh acospi asin asinh asinpi atan atan2 atan2pi atanh atanpi cbrt ceil clamp copysign
    cos cosh cospi dot erf erfc exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp
    hypot ilogb isgreater isinf isless isnan ldexp lgamma log log10 log1p log2 logb mad mad24
    max min modf mul24 nextafter popcount pow pown powr remainder rint rootn round rsqrt select
    sin sincos sinh sinpi sqrt tan tanh tanpi tgamma trunc
""".split())


def _vector(lanes: str) -> str:
    return rf"\b{_NUMBER}{lanes}\b|{_LANES}{lanes}(?![0-9])"


PATTERNS: dict[str, re.Pattern[str]] = {name: re.compile(pattern) for name, pattern in {
    # half as a type that computes; a pointer to halves is storage, unless the text asks for more
    "half": r"\bhalf(?:2|3|4|8|16)?\b(?!\s*\*)|\bconvert_half|\bcl_khr_fp16\b",
    # halves that are moved as vectors of the type, and computed with as floats
    "half_cast": r"\bjitcl_(?:to|from)_halfx\d",
    "half_storage": r"\bv(?:load|store)a?_half|\bhalf\s*\*",
    "fp64": r"\bdouble(?:2|3|4|8|16)?\b|\bconvert_double",
    "local": r"\b__local\b|\blocal\s+(?:float|half|int)",
    "barrier": r"\bbarrier\s*\(",
    "image": r"\bimage[123]d(?:_\w+)?_t\b|\bread_image",
    "vec16": _vector("16"),
    "vec8": _vector("8"),
    "vec4": _vector("[234]"),
    "int8": r"\bu?char(?:2|3|4|8|16)?\b",
    "int4": r"\bjitcl_u?int4\w*\s*\(",
    "quotient": r"\bjitcl_(?:div|fmod|floordiv|mod)_[iu]32\b",
    "int64": r"\bu?long(?:2|3|4|8|16)?\b|\bconvert_u?long",
    "subgroup": r"\bsub_group_\w+\s*\(",
    "assembly": r"\basm\b",
    "warpgroups": r"\bwgmma\b",
}.items()}

# features that only a probe (or a build in another process) shows to work; the rest is C
GATED = frozenset(("half", "half_cast", "half_storage", "fp64", "local", "barrier", "image",
                   "vec16", "vec8", "int4", "subgroup", "assembly", "warpgroups"))

_CALL = re.compile(r"\b(" + "|".join(_MATH) + r")\s*\(")
_COMMENT = re.compile(r"(\"[^\"\n]*\")|//[^\n]*|/\*.*?\*/", re.S)   # strings are none
# the helpers of "half_cast", which name the type half: alone they are no arithmetic in it
_CASTS = re.compile(r"^#ifndef JITCL_(?:TO|FROM)_HALFX\d+\n.*?^#endif\n", re.M | re.S)


@lru_cache(maxsize=4096)
def features_of(body: str, options: tuple[str, ...] = (), template: str = "") -> frozenset[str]:
    """The features of a kernel's text: names of PATTERNS, "call:exp" for each builtin called,
    "option:-cl..." for its own build options, "template:gemm_opencl" for who wrote it.
    """
    text = _COMMENT.sub(lambda found: found[1] or " ", body)
    computed = _CASTS.sub("", text)
    found = {name for name, pattern in PATTERNS.items()
             if pattern.search(computed if name == "half" else text)}
    found |= {f"call:{name}" for name in _CALL.findall(text)}
    found |= {f"option:{o}" for o in options}
    if template:
        found.add(f"template:{template}")
    return frozenset(found)

"""Elementary functions of f32 as inline polynomials: one text for scalars and vectors (see
`emit.Emit`).

Errors are the largest seen against float64 over the whole range, in units in the last place (ulp)
of f32; the tests hold them to it. Every function gives NaN for NaN, and the limits of C99's Annex F
at infinities and zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from jitcl.devices.cpu.emit import Emit

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LN2_HIGH, LN2_LOW = (
    0.693359375,
    -2.12194440054690583e-4,
)  # the high part has 9 bits: n * high is exact
ROUNDS = 12582912.0  # 3 * 2**22: a sum with it is rounded to whole numbers, its low bits are theirs
_ROOTS = [float(np.float32(2 ** (k / 16))) for k in range(16)]
_ROOTS_LOW = [2 ** (k / 16) - _ROOTS[k] for k in range(16)]


def exp(e: Emit, x: Any) -> ir.Value:
    """e**x, 0.9 ulp (1.2 where there is no fma; 0.6 by AVX-512's table); 0 below -104, inf above
    88.73.

    e**r for the rest r of x by ln 2, |r| <= 0.35, is a polynomial with a relative error of 3e-9
    (fitted by Lawson's iteration, its lowest coefficients being 1).
    """
    if e.avx512:
        return _exp_by_table(e, x)
    x = e.at_least(e.at_most(x, 89.0), -104.0)
    t = e.fma(x, LOG2E, ROUNDS)
    r = _rest(e, x, e.sub(t, ROUNDS))
    p = e.poly(
        r, 1.3814433478e-3, 8.3687966689e-3, 4.1668396443e-2, 1.6666519642e-1, 4.9999994040e-1, 1, 1
    )
    return e.scale(p, e.b.sub(e.bits_of(t), e.bits_of(e.value(ROUNDS))))


def _exp_by_table(e: Emit, x: Any) -> ir.Value:
    """x / ln 2 = n + r / ln 2, n a multiple of 1/16: 2**(n mod 1) is in a table, as a sum of two
    floats, and |r| <= 0.022 needs a cubic (relative error 2e-9). Arguments for which r is nothing
    (huge ones, NaN) get their 0, inf or NaN from the scaling by n.
    """
    t = e.fma(x, LOG2E, ROUNDS / 16)
    n = e.sub(t, ROUNDS / 16)
    r = e.within(_rest(e, x, n), 0.5)
    high, low = e.entry(_ROOTS, e.bits_of(t)), e.entry(_ROOTS_LOW, e.bits_of(t))
    slope = e.poly(r, 1.6666717827e-1, 5.0001615286e-1, 1)
    return e.times_power(e.add(high, e.fma(e.mul(high, r), slope, low)), n)


def exp_less(e: Emit, x: Any, base: Any) -> ir.Value:
    """e**(x - base), 1.2 ulp beside what x - base is rounded by and 7.5e-8 of that, in fewer
    instructions than exp(x - base).
    """
    d = e.sub(x, base)         # first of all: products with log2 e overflow near the largest
    if not e.avx512:
        return exp(e, d)
    t = e.fma(d, LOG2E, ROUNDS / 16)
    n = e.sub(t, ROUNDS / 16)
    r = e.within(e.fma(d, LOG2E, e.neg(n)), 0.5)
    root = e.entry(_ROOTS, e.bits_of(t))
    slope = e.poly(r, 1.6666717827e-1 * LN2**3, 5.0001615286e-1 * LN2**2, LN2)
    return e.times_power(e.fma(e.mul(root, r), slope, root), n)


def _rest(e: Emit, x: Any, n: Any) -> ir.Value:
    """x - n ln 2."""
    return e.fma(n, -LN2_LOW, e.fma(n, -LN2_HIGH, x))


def sigmoid(e: Emit, x: Any) -> ir.Value:
    """1 / (1 + e**-x), 2.5 ulp; no overflow on the way, so that the far left tail keeps its
    digits.
    """
    t = exp(e, e.neg(e.abs(x)))
    return e.div(e.select(e.lt(x, 0.0), t, 1.0), e.add(t, 1.0))


def log(e: Emit, x: Any) -> ir.Value:
    """Natural logarithm, 1 ulp (fdlibm's logf); -inf at 0, NaN below."""
    tiny = e.lt(x, 1.17549435e-38)
    scaled = e.select(tiny, e.mul(x, 8388608.0), x)
    bits = e.b.sub(e.bits_of(scaled), e.integer(0x3F3504F3))  # the bits of sqrt(1/2)
    n = e.b.ashr(bits, e.integer(23))
    mantissa = e.b.add(e.b.and_(bits, e.integer(0x007FFFFF)), e.integer(0x3F3504F3))
    n = e.to_float(e.b.sub(n, e.b.select(tiny, e.integer(23), e.integer(0))))
    f = e.sub(e.from_bits(mantissa), 1.0)
    s = e.div(f, e.add(f, 2.0))
    z = e.mul(s, s)
    rest = e.mul(z, e.poly(z, 0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693))
    half_square = e.mul(e.mul(f, f), 0.5)
    tail = e.fma(s, e.add(half_square, rest), e.mul(n, 9.0580006145e-6))
    y = e.fma(n, 6.9313812256e-1, e.sub(f, e.sub(half_square, tail)))
    y = e.select(e.eq(x, 0.0), float("-inf"), y)
    y = e.select(e.eq(x, float("inf")), float("inf"), y)
    return e.select(e.b.fcmp_unordered("<", x, e.value(0.0)), float("nan"), y)


def tanh(e: Emit, x: Any) -> ir.Value:
    """Hyperbolic tangent, 2 ulp (Cephes' polynomial near 0, 1 - 2/(e**2x + 1) beyond)."""
    a = e.abs(x)
    s = e.mul(a, a)
    p = e.poly(
        s, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
        -3.33332819422e-1)
    near = e.fma(e.mul(p, s), a, a)
    far = e.sub(1.0, e.div(2.0, e.add(exp(e, e.add(a, a)), 1.0)))
    return e.copysign(e.select(e.lt(a, 0.625), near, far), x)


def erf(e: Emit, x: Any) -> ir.Value:
    """Error function, 1.5 ulp (two minimax pieces after N. Juffa; by AVX-512 sixteen)."""
    if e.avx512:
        return _erf_by_table(e, x)
    t, s = e.abs(x), e.mul(x, x)
    far = e.fma(-1.72853470e-5, t, 3.83197126e-4)
    far = e.fma(far, s, e.fma(-3.88396438e-3, t, 2.42546219e-2))
    far = e.poly(t, far, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1)
    far = e.sub(1.0, exp(e, e.fma(far, t, e.neg(t))))
    near = e.poly(
        s, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1,
        1.28379166e-1)
    near = e.fma(near, x, x)
    return e.select(e.gt(t, 0.927734375), e.copysign(far, x), near)


# For |x| in [k/4 - 1/8, k/4 + 1/8], k = 0 .. 15: a centre c, erf(c) and the coefficients of u =
# |x| - c and its powers (fitted by Lawson's iteration; relative error below 2.5e-8). In the first
# two u itself is left out of the polynomial and added to erf(c). The centres are floats for which
# erf(c) is as good as one; where it is just below 1/4, a sum c + u is never coarser than the
# result.
_ERF_CENTRES = (
    0.0, 0.224672601, 0.498077959, 0.750109434, 0.9982481, 1.25234807, 1.49853742, 1.74818432,
    1.99813914, 2.25288367, 2.49960423, 2.75216365, 3.00155544, 3.25244665, 3.50299978,
    3.74799991,
)
_ERF_KEEPS_U = (1.0, 1.0, *[0.0] * 14)
_ERF_STARTS = (
    0.0, 0.24931407, 0.518809199, 0.711225986, 0.841972291, 0.923453867, 0.96593082,
    0.986575544, 0.995283663, 0.998557746, 0.999592185, 0.999900639, 0.999978125, 0.999995768,
    0.999999285, 0.999999881,
)
_ERF_RISING = (
    (
        0.128379166, 0.0728346407, 0.880470037, 0.642825544, 0.416563243, 0.235135466, 0.11945302,
        0.0531112663, 0.020821318, 0.00705017801, 0.00218259869, 0.000579340267, 0.000137959621,
        2.87285566e-05, 5.28718147e-06, 9.97086318e-07,
    ),
    (
        0.0, -0.241033867, -0.438537419, -0.482186675, -0.41583389, -0.294473678, -0.179006845,
        -0.0928492323, -0.0416039489, -0.0158829261, -0.00545533979, -0.00159426359,
        -0.000414014678, -9.34096533e-05, -2.45719675e-05, 2.18284117e-06,
    ),
    (
        -0.376122713, -0.32144776, -0.147877499, 0.0268458389, 0.137877971, 0.167479575,
        0.139011756, 0.0905070901, 0.0484805964, 0.0215047672, 0.0083637042, 0.00273183989,
        0.000782424817, 0.000192922816, 3.91608992e-05, 6.77306889e-06,
    ),
    (
        0.0, 0.115849152, 0.181917712, 0.150074661, 0.0698852092, -0.00625101104, -0.0440694131,
        -0.0479654483, -0.0345554128, -0.0189928245, -0.00869526621, -0.00326418644, -0.00105251605,
        -0.000288448267, 0.000321392989, -0.000342643063,
    ),
    (
        0.112210259, 0.0809170827, 0.00820189528, -0.0524835289, -0.068749018, -0.0471170209,
        -0.015028242, 0.00643829769, 0.0129880533, 0.010637423, 0.00613357732, 0.0027752372,
        0.00102832844, 0.000318943523, 0.000379997102, 0.000186380581,
    ),
)


def _erf_by_table(e: Emit, x: Any) -> ir.Value:
    """One polynomial with coefficients from registers; 1 from 3.875 on."""
    t = e.at_most(e.abs(x), 3.8749998)
    k = e.bits_of(e.add(t, ROUNDS / 4))
    u = e.sub(t, e.entry(_ERF_CENTRES, k))
    start = e.fma(u, e.entry(_ERF_KEEPS_U, k), e.entry(_ERF_STARTS, k))
    slope = e.poly(u, *(e.entry(column, k) for column in _ERF_RISING[::-1]))
    y = e.fma(slope, u, start)
    return e.copysign(y, x)


def _log2_double(e: Emit, x: Any) -> ir.Value:
    """log2 of a positive normal f64, relative error below 1e-13: enough for pow in f32."""
    bits = e.b.sub(e.bits_of(x), e.integer(0x3FE6A09E667F3BCD))
    n = e.to_float(e.b.ashr(bits, e.integer(52)))
    mantissa = e.b.add(e.b.and_(bits, e.integer((1 << 52) - 1)), e.integer(0x3FE6A09E667F3BCD))
    m = e.from_bits(mantissa)
    s = e.div(e.sub(m, 1.0), e.add(m, 1.0))  # |s| < 0.1716
    p = e.poly(e.mul(s, s), *(2 * LOG2E / k for k in (15, 13, 11, 9, 7, 5, 3, 1)))
    return e.fma(s, p, n)


def _exp2_double(e: Emit, y: Any) -> ir.Value:
    """2**y in f64 for |y| < 300, relative error below 1e-10."""
    n = e.rint(y)
    r = e.mul(e.sub(y, n), LN2)
    p = e.poly(r, 1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)
    return e.mul(p, e.power_of_two(e.to_int(n)))


def pow(e: Emit, x: Any, y: Any) -> ir.Value:
    """x**y, 1 ulp, through f64; C99's special cases (pow(x, 0) = pow(1, y) = 1, NaN for x < 0
    unless y is whole)."""
    d, wide = e.to_double(e.abs(x))
    _, exponent = e.to_double(y)
    zero, infinite = d.eq(wide, 0.0), d.eq(wide, float("inf"))
    finite = d.select(e.b.or_(zero, infinite), 1.0, wide)
    product = d.at_least(d.at_most(d.mul(_log2_double(d, finite), exponent), 300.0), -300.0)
    product = d.select(d.eq(wide, 1.0), 0.0, product)  # and not inf * 0
    limit = d.copysign(300.0, exponent)  # 2**300 is inf in f32, 2**-300 is 0
    product = d.select(infinite, limit, d.select(zero, d.neg(limit), product))
    y_f = e.b.fptrunc(_exp2_double(d, product), e.ty)
    far = e.gt(e.abs(y), 16777216.0)  # such floats are even
    halved = e.mul(y, 0.5)
    whole = e.eq(e.call("floor", y), y)
    odd = e.b.and_(whole, e.b.not_(e.b.or_(far, e.eq(e.call("floor", halved), halved))))
    negative = e.b.icmp_signed("<", e.bits_of(x), e.integer(0))
    y_f = e.select(e.b.and_(negative, odd), e.neg(y_f), y_f)
    undefined = e.b.and_(e.b.and_(e.lt(x, 0.0), e.gt(x, float("-inf"))), e.b.not_(whole))
    y_f = e.select(undefined, float("nan"), y_f)
    y_f = e.select(e.b.or_(e.isnan(x), e.isnan(y)), float("nan"), y_f)
    return e.select(e.b.or_(e.eq(y, 0.0), e.eq(x, 1.0)), 1.0, y_f)


F32 = {f.__name__: f for f in (exp, exp_less, log, tanh, erf, sigmoid)}

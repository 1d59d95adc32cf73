"""Elementary functions of f32 as inline polynomials: one text for scalars and vectors (see
`emit.Emit`).

Errors are the largest seen against float64 over the whole range, in units in the last place (ulp)
of f32; the tests hold them to it. Every function gives NaN for NaN, and the limits of C99's Annex F
at infinities and zeros.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from jitcl.devices.cpu.emit import Emit

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LN2_HIGH, LN2_LOW = (
    0.693359375,
    -2.12194440054690583e-4,
)  # the high part has 9 bits: n * high is exact


def exp(e: Emit, x: Any) -> ir.Value:
    """e**x, 1 ulp; 0 below -104, inf above 88.73."""
    x = e.at_least(e.at_most(x, 89.0), -104.0)
    n = e.rint(e.mul(x, LOG2E))
    return e.scale_by(_exp_reduced(e, x, n), n)


def _exp_reduced(e: Emit, x: Any, n: Any) -> ir.Value:
    """e**(x - n ln 2), |x - n ln 2| <= 0.35 (Cephes' coefficients)."""
    r = e.fma(n, -LN2_LOW, e.fma(n, -LN2_HIGH, x))
    p = e.poly(
        r, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5
    )
    return e.add(e.fma(p, e.mul(r, r), r), 1.0)


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
        s,
        -5.70498872745e-3,
        2.06390887954e-2,
        -5.37397155531e-2,
        1.33314422036e-1,
        -3.33332819422e-1,
    )
    near = e.fma(e.mul(p, s), a, a)
    far = e.sub(1.0, e.div(2.0, e.add(exp(e, e.add(a, a)), 1.0)))
    return e.copysign(e.select(e.lt(a, 0.625), near, far), x)


def erf(e: Emit, x: Any) -> ir.Value:
    """Error function, 1.5 ulp (two minimax pieces after N. Juffa)."""
    t, s = e.abs(x), e.mul(x, x)
    far = e.fma(-1.72853470e-5, t, 3.83197126e-4)
    far = e.fma(far, s, e.fma(-3.88396438e-3, t, 2.42546219e-2))
    far = e.poly(t, far, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1)
    far = e.sub(1.0, exp(e, e.fma(far, t, e.neg(t))))
    near = e.poly(
        s,
        -5.96761703e-4,
        4.99119423e-3,
        -2.67681349e-2,
        1.12819925e-1,
        -3.76125336e-1,
        1.28379166e-1,
    )
    near = e.fma(near, x, x)
    return e.select(e.gt(t, 0.927734375), e.copysign(far, x), near)


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


F32 = {"exp": exp, "log": log, "tanh": tanh, "erf": erf, "sigmoid": sigmoid}

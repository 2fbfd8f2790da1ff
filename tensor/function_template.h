/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions of f32, written once for scalars and for vectors. vector_math.h includes this file with F (the
 * number type), BITS and SIGNED (integers of its width) and M (the suffix of names). There are no branches, calls or
 * tables. Polynomials are Chebyshev fits of the remainders named next to them. */

#define FMA(x, y, z) M(fma)(x, y, z)
#define K(constant) M(spread)(constant)
#define STEP(p, x, constant) p = FMA(p, x, K(constant))

/* Splits x = n ln(2) + r with |r| <= ln(2)/2; whole and shifted are n in the form that M(scale) needs. |x| < 2^21. */
TREK_WIDE_INLINE F M(exp_reduce)(F x, F *whole, F *shifted)
{
    *shifted = FMA(x, K(0x1.715476p+0f), K(0x1.8p23f)); /* adding 1.5 * 2^23 rounds to an integer */
    *whole = *shifted - 0x1.8p23f;
    F r = FMA(*whole, K(-0x1.62e4p-1f), x);
    return FMA(*whole, K(-0x1.7f7d1cp-20f), r);
}
/* (e^(s r) - 1 - s r) / r^2; s is a constant, as are the factors with its powers. */
TREK_WIDE_INLINE F M(exp_series)(F r, const float s)
{
    F p = K(0x1.6d1606p-10f * (s * s * s * s * s * s));
    STEP(p, r, 0x1.12106cp-7f * (s * s * s * s * s));
    STEP(p, r, 0x1.555516p-5f * (s * s * s * s));
    STEP(p, r, 0x1.5554d8p-3f * (s * s * s));
    STEP(p, r, 0.5f * (s * s));
    return p;
}
TREK_WIDE_INLINE F M(exp_of_remainder)(F r, const float s)
{
    F p = M(exp_series)(r, s);
    STEP(p, r, s);
    STEP(p, r, 1.0f);
    return p;
}

/* Below this e^x rounds to 0; computing it would underflow, which takes processors a hundred cycles. */
TREK_WIDE_INLINE F M(exp)(F x)
{
    const F lowest = K(-104.0f);
    F whole, shifted;
    F r = M(exp_reduce)(M(choose)(x, lowest, K(0.0f), M(at_most)(x, 90.0f)), &whole, &shifted);
    return M(choose)(x, lowest, K(0.0f), M(scale)(M(exp_of_remainder)(r, 1.0f), whole, shifted));
}
/* Computes e^x for x <= 0 (or NaN). It is cheaper because it cannot overflow. It is 0 below 2^-126, because subnormal
 * numbers take the machine as long as a hundred others, and next to 1 they do not matter. */
TREK_WIDE_INLINE F M(exp_negative)(F x)
{
    F whole, shifted;
    F r = M(exp_reduce)(M(at_least)(x, -87.33f), &whole, &shifted);
    return M(choose)(x, K(-87.33f), K(0.0f), M(scale_down)(M(exp_of_remainder)(r, 1.0f), whole, shifted));
}

/* Computes e^x - 1 except for the sign of 0 and the last bit of denormals. */
TREK_WIDE_INLINE F M(expm1_rough)(F x)
{
    F whole, shifted;
    x = M(at_least)(M(at_most)(x, 88.8f), -25.0f);
    F r = M(exp_reduce)(x, &whole, &shifted);
    F p = FMA(r * r, M(exp_series)(r, 1.0f), r);
    F half = M(scale)(K(0.5f), whole, shifted); /* halved, because 2^128 is infinite */
    return 2.0f * FMA(half, p, half - 0.5f);
}
TREK_WIDE_INLINE F M(magnitude)(F x) { return M(from_bits)(M(as_bits)(x) & 0x7fffffffu); }
TREK_WIDE_INLINE F M(with_sign)(F magnitude, F sign)
{
    return M(from_bits)(M(as_bits)(magnitude) | (M(as_bits)(sign) & 0x80000000u));
}
TREK_WIDE_INLINE F M(expm1)(F x) { return M(choose)(M(magnitude)(x), K(0x1p-40f), x, M(expm1_rough)(x)); }

/* Splits x = (1 + f) 2^e for positive finite x, sqrt(1/2) <= 1 + f <= sqrt(2). */
TREK_WIDE_INLINE F M(log_split)(F x, F *e)
{
    F scaled = M(choose)(x, K(0x1p-126f), x * 0x1p23f, x);
    BITS bits = M(as_bits)(scaled) - 0x3f3504f3u; /* sqrt(1/2) */
    /* the exponent as a float: its bits are placed after 2^23, which is then subtracted */
    F exponent = M(from_bits)((((bits >> 23) ^ 0x100u) & 0x1ffu) | 0x4b000000u) - 0x1.0002p23f;
    *e = M(choose)(x, K(0x1p-126f), exponent - 23.0f, exponent);
    return M(from_bits)((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
}

/* (log(1 + f) - f + f^2/2) / f^3 */
TREK_WIDE_INLINE F M(log_series)(F f)
{
    F p = K(0x1.1dedf8p-4f);
    STEP(p, f, -0x1.d6d10ep-4f);
    STEP(p, f, 0x1.dec8ccp-4f);
    STEP(p, f, -0x1.fce37ap-4f);
    STEP(p, f, 0x1.23cf72p-3f);
    STEP(p, f, -0x1.555b8ap-3f);
    STEP(p, f, 0x1.999d6ep-3f);
    STEP(p, f, -0x1.fffffcp-3f);
    STEP(p, f, 0x1.555554p-2f);
    return p;
}

/* Returns log of 0, of negative numbers, infinity and NaN; otherwise `result`. */
TREK_WIDE_INLINE F M(log_special)(F x, F result)
{
    F nowhere = M(choose)(x, K(0.0f), K(__builtin_nanf("")), K(-__builtin_inff()));
    result = M(choose)(K(0.0f), x, result, nowhere);
    return M(choose)(x, K(__builtin_inff()), result, x);
}

TREK_WIDE_INLINE F M(log)(F x)
{
    F e, f = M(log_split)(x, &e), square = f * f;
    F low = FMA(square * f, M(log_series)(f), e * 0x1.7f7d1cp-20f);
    F result = FMA(K(-0.5f), square, low) + f;
    return M(log_special)(x, FMA(e, K(0x1.62e4p-1f), result));
}
TREK_WIDE_INLINE F M(log2)(F x)
{
    F e, f = M(log_split)(x, &e), square = f * f;
    F low = FMA(square * f, M(log_series)(f), -0.5f * square);
    /* (f + low) / ln 2 with 1 / ln 2 = 1 + 0.4427 */
    F fraction = FMA(low, K(0x1.715476p+0f), f * 0x1.c551dap-2f) + f;
    return M(log_special)(x, e + fraction);
}
TREK_WIDE_INLINE F M(log10)(F x)
{
    F e, f = M(log_split)(x, &e), square = f * f;
    F low = FMA(square * f, M(log_series)(f), -0.5f * square) + f;
    /* log10(2) in two parts, the first short enough for an exact product */
    F result = FMA(low, K(0x1.bcb7b2p-2f), e * 0x1.3509f8p-18f);
    return M(log_special)(x, FMA(e, K(0x1.344p-2f), result));
}
TREK_WIDE_INLINE F M(log1p)(F x)
{
    F u = 1.0f + x;
    F lost = M(choose)(K(1.0f), x, 1.0f - (u - x), x - (u - 1.0f)); /* u + lost is exactly 1 + x */
    lost = M(choose)(u, K(0x1p24f), lost / u, K(0.0f));
    F e, f = M(log_split)(u, &e), square = f * f;
    F low = FMA(square * f, M(log_series)(f), FMA(e, K(0x1.7f7d1cp-20f), lost));
    F result = FMA(K(-0.5f), square, low) + f;
    result = M(log_special)(u, FMA(e, K(0x1.62e4p-1f), result));
    return M(choose)(M(magnitude)(x), K(0x1p-40f), x, result);
}

TREK_WIDE_INLINE F M(sigmoid)(F x)
{
    F least = M(choose)(x, K(0.0f), x, K(-60.0f)); /* for a large x nothing is lost, and no denormal occurs */
    F magnitude = -M(magnitude)(x);
    F e = M(exp_negative)(M(choose)(magnitude, least, least, magnitude)); /* never overflows */
    return M(choose)(x, K(0.0f), e, K(1.0f)) / (1.0f + e);
}
TREK_WIDE_INLINE F M(tanh)(F x)
{
    F magnitude = M(magnitude)(x);
    F e = M(expm1_rough)(2.0f * M(at_most)(magnitude, 10.0f));
    F result = M(choose)(magnitude, K(0x1p-40f), magnitude, e / (e + 2.0f));
    return M(with_sign)(result, x);
}

/* erf(x) for |x| < 1: x (2/sqrt(pi) + x^2 P(x^2)), a fit for |x| <= 0.938. */
TREK_WIDE_INLINE F M(erf_small)(F x)
{
    F square = x * x;
    F p = K(0x1.6edabep-14f);
    STEP(p, square, -0x1.afffd4p-11f);
    STEP(p, square, 0x1.557622p-8f);
    STEP(p, square, -0x1.b82138p-6f);
    STEP(p, square, 0x1.ce2eeap-4f);
    STEP(p, square, -0x1.812746p-2f);
    STEP(p, square, 0x1.06eba8p-3f); /* 2/sqrt(pi) = 1 + 0.128... */
    return FMA(p, x, x);
}
/* Top and bottom of a fraction that is the normal distribution's area beyond a divided by e^(-a^2/2), for 0 <= a <= 12.75: a
 * minimax fit, 5e-9, whose factors are all positive. a is given divided by u; the top is multiplied by `by`. */
TREK_WIDE_INLINE F M(area_top)(F a, const float u, const float by)
{
    F p = K(0x1.9885f8p-2f * (by * u * u * u * u));
    STEP(p, a, 0x1.fdd53ap+1f * (by * u * u * u));
    STEP(p, a, 0x1.21ca7ap+4f * (by * u * u));
    STEP(p, a, 0x1.5d0120p+5f * (by * u));
    STEP(p, a, 0x1.91bdf2p+5f * by);
    return p;
}
TREK_WIDE_INLINE F M(area_bottom)(F a, const float u)
{
    F p = a * (u * u * u * u * u) + 0x1.3f840ap+3f * (u * u * u * u);
    STEP(p, a, 0x1.730f3ep+5f * (u * u * u));
    STEP(p, a, 0x1.de3ec0p+6f * (u * u));
    STEP(p, a, 0x1.4ec62cp+7f * u);
    STEP(p, a, 0x1.91bdf2p+6f);
    return p;
}
/* Computes e^(-a^2 s) for s = 1 or 1/2, if that is a normal number; the square is in two parts, so that large ones
 * keep their last bits. */
TREK_WIDE_INLINE F M(exp_of_square)(F a, const float s)
{
    F whole, shifted;
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    F square = a * a; /* the remainder is left divided by s, which its series has */
    shifted = FMA(square, K(-s * 0x1.715476p+0f), K(0x1.8p23f));
    whole = shifted - 0x1.8p23f;
    F r = FMA(whole, K(-0x1.7f7d1cp-20f / s), FMA(whole, K(-0x1.62e4p-1f / s), -square)) - FMA(a, a, -square);
    return M(scale_down)(M(exp_of_remainder)(r, s), whole, shifted);
#else
    F high = M(from_bits)(M(as_bits)(a) & 0xfffff000u); /* its square is exact */
    F r = M(exp_reduce)(-s * high * high, &whole, &shifted);
    r = FMA(s * (high - a), high + a, r); /* the rest is at most 2^-11 times a^2 */
    return M(scale_down)(M(exp_of_remainder)(r, 1.0f), whole, shifted);
#endif
}
TREK_WIDE_INLINE F M(erf)(F x)
{
    const float u = 0x1.6a09e6p+0f; /* the square root of 2 */
    F a = M(at_most)(M(magnitude)(x), 9.0f); /* from 4 on it is 1; for larger x the factors would become subnormal */
    F large = 1.0f - M(area_top)(a, u, 2.0f) * M(exp_of_square)(a, 1.0f) / M(area_bottom)(a, u);
    return M(choose)(a, K(0.9f), M(erf_small)(x), M(with_sign)(large, x));
}

/* e^(-x^2) */
TREK_WIDE_INLINE F M(exp_minus_square)(F x)
{
    F a = M(at_most)(M(magnitude)(x), 10.3f), high = M(from_bits)(M(as_bits)(a) & 0xfffff000u), whole, shifted;
    F r = FMA(high - a, high + a, M(exp_reduce)(-high * high, &whole, &shifted));
    return M(scale)(M(exp_of_remainder)(r, 1.0f), whole, shifted);
}

/* Returns the normal distribution's area beyond |x|, |x| and e^(-x^2/2). From 12.75 on, where the area would become
 * subnormal, it and the last are 0, and |x| is 12.75. */
TREK_WIDE_INLINE F M(normal_tail)(F x, F *size, F *density)
{
    *size = M(at_most)(M(magnitude)(x), 12.75f);
    *density = M(choose)(*size, K(12.75f), M(exp_of_square)(*size, 0.5f), K(0.0f));
    return M(area_top)(*size, 1.0f, 1.0f) * *density / M(area_bottom)(*size, 1.0f);
}
/* The same for results of 16 bits: errors are below 3e-5. */
TREK_WIDE_INLINE F M(normal_tail_short)(F x, F *size, F *density)
{
    F a = M(at_most)(M(magnitude)(x), 12.75f), power = a * a * -0x1.715476p-1f;
    F shifted = power + 0x1.8p23f, whole = shifted - 0x1.8p23f, r = power - whole;
    F e = K(0x1.3997d4p-7f), top = K(0x1.990a80p-2f), bottom = a + 0x1.215d36p+2f;
    STEP(e, r, 0x1.ca1440p-5f);
    STEP(e, r, 0x1.ec06dap-3f);
    STEP(e, r, 0x1.62e0dcp-1f);
    STEP(e, r, 0x1.ffffe8p-1f);
    STEP(top, a, 0x1.ca28b6p+0f);
    STEP(top, a, 0x1.9ec2bcp+1f);
    STEP(bottom, a, 0x1.182506p+3f);
    STEP(bottom, a, 0x1.9ec068p+2f);
    *size = a;
    *density = M(choose)(a, K(12.75f), M(scale_down)(e, whole, shifted), K(0.0f));
    return top * *density / bottom;
}
/* The normal distribution's cumulative function, without cancellation for negative x. */
TREK_WIDE_INLINE F M(normal_cdf)(F x)
{
    F size, density, tail = M(normal_tail)(x, &size, &density);
    return M(choose)(x, K(0.0f), tail, 1.0f - tail);
}
/* x times that, as max(x, -0) - |x| tail; at -infinity it is -0, its limit. */
TREK_WIDE_INLINE F M(gelu)(F x)
{
    F size, density, tail = M(normal_tail)(x, &size, &density);
    return FMA(-size, tail, M(at_least)(x, -0.0f));
}
TREK_WIDE_INLINE F M(gelu_short)(F x)
{
    F size, density, tail = M(normal_tail_short)(x, &size, &density);
    return FMA(-size, tail, M(at_least)(x, -0.0f));
}
/* d gelu(x) / dx; that of -x is 1 minus it. */
TREK_WIDE_INLINE F M(gelu_derivative)(F x)
{
    F size, density, tail = M(normal_tail)(x, &size, &density), slope = FMA(size, -0x1.988454p-2f * density, tail);
    return M(choose)(x, K(0.0f), slope, 1.0f - slope);
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (...)) */
TREK_WIDE_INLINE F M(gelu_tanh)(F x)
{
    F inner = x * FMA(K(0x1.2444f2p-4f), x * x, K(0x1.988454p+0f));
    return M(at_least)(x, -1e3f) * M(sigmoid)(inner);
}
TREK_WIDE_INLINE F M(gelu_tanh_derivative)(F x)
{
    F t = M(at_least)(M(at_most)(x, 1e3f), -1e3f), square = t * t;
    F s = M(sigmoid)(t * FMA(K(0x1.2444f2p-4f), square, K(0x1.988454p+0f)));
    F slope = FMA(K(0x1.b6676cp-3f), square, K(0x1.988454p+0f));
    return FMA(t * slope, s * (1.0f - s), s);
}

TREK_WIDE_INLINE F M(silu)(F x) { return x * M(sigmoid)(x); }
TREK_WIDE_INLINE F M(silu_derivative)(F x)
{
    F s = M(sigmoid)(x);
    return s * FMA(x, 1.0f - s, K(1.0f));
}

/* sin of quarter * pi/2 + r, |r| <= pi/4. */
TREK_WIDE_INLINE F M(sin_quarter)(SIGNED quarter, F r)
{
    F square = r * r;
    F s = K(-0x1.9abc2cp-13f);
    STEP(s, square, 0x1.110c10p-7f);
    STEP(s, square, -0x1.555552p-3f);
    s = FMA(s * square, r, r);
    F c = K(0x1.9bcdc6p-16f);
    STEP(c, square, -0x1.6c12bep-10f);
    STEP(c, square, 0x1.555554p-5f);
    c = FMA(c * square, square, FMA(K(-0.5f), square, K(1.0f)));
    BITS odd = (BITS) - (quarter & 1);
    BITS bits = (M(as_bits)(c) & odd) | (M(as_bits)(s) & ~odd);
    return M(from_bits)(bits ^ ((BITS)(quarter & 2) << 30));
}

/* tan of quarter * pi/2 + r, |r| <= pi/4. The polynomial is that of Cephes' tanf (S. L. Moshier). */
TREK_WIDE_INLINE F M(tan_quarter)(SIGNED quarter, F r)
{
    F square = r * r;
    F p = K(9.38540185543e-3f);
    STEP(p, square, 3.11992232697e-3f);
    STEP(p, square, 2.44301354525e-2f);
    STEP(p, square, 5.34112807005e-2f);
    STEP(p, square, 1.33387994085e-1f);
    STEP(p, square, 3.33331568548e-1f);
    F t = FMA(p * square, r, r), turned = -1.0f / t;
    BITS odd = (BITS) - (quarter & 1);
    return M(from_bits)((M(as_bits)(turned) & odd) | (M(as_bits)(t) & ~odd));
}

#undef FMA
#undef K
#undef STEP

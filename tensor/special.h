/* SPDX-License-Identifier: Apache-2.0 */
/* Special functions of one f64 number that libm does not have, for CPUs and, with TREK_SPECIAL defined, for GPUs. */
#ifndef TREK_TENSOR_SPECIAL_H
#define TREK_TENSOR_SPECIAL_H

#include <math.h>

#ifndef TREK_SPECIAL
#define TREK_SPECIAL static inline
#endif

#define TREK_PI 3.14159265358979323846

/* The inverse of erf: Winitzki's approximation (2008), then Newton steps (of third order: Halley) on erfc, which
 * keeps precision near 1. */
TREK_SPECIAL double trek_erfinv(double y)
{
    double size = fabs(y);
    if (!(size < 1))
        return size == 1 ? y * INFINITY : NAN;
    if (size < 1e-9)
        return y * 0.88622692545275801365; /* sqrt(pi) / 2 */
    double l = log1p(-size * size), a = 4.3307467508 + l / 2; /* 2 / (pi 0.147) */
    double x = sqrt(sqrt(a * a - l / 0.147) - a), rest = 1 - size;
    for (int k = 0; k < 2; k++) { /* cubes the error each time: from 2e-3 */
        double off = (rest - erfc(x)) * 0.88622692545275801365 * exp(x * x); /* the distance of x, in units of the slope */
        x -= off / (1 + x * off);
    }
    return y < 0 ? -x : x;
}

/* The derivative of log gamma: recurrence up to 10, then the asymptotic series (Abramowitz and Stegun 6.3.18);
 * reflected below 0. */
TREK_SPECIAL double trek_digamma(double x)
{
    double sum = 0;
    if (x == 0)
        return copysign(INFINITY, -x);
    if (x < 0) {
        if (x == floor(x))
            return NAN;
        sum = -TREK_PI / tan(TREK_PI * remainder(x, 1.0));
        x = 1 - x;
    }
    for (; x < 10; x++)
        sum -= 1 / x;
    double r = 1 / (x * x);
    double series = r * (1.0 / 12 - r * (1.0 / 120 - r * (1.0 / 252 - r * (1.0 / 240 - r * (1.0 / 132 - r * (691.0 / 32760))))));
    return sum + log(x) - 0.5 / x - series;
}

/* x^-s. For the usual integers s the pow of libm would take several times as long. */
TREK_SPECIAL double trek_power_minus(double x, double s)
{
    if (!(s >= 0 && s < 1000))
        return pow(x, -s);
    double power = 1;
    for (int left = (int)s; left > 0; left >>= 1, x *= x)
        power *= left & 1 ? x : 1;
    return 1 / power;
}

/* The sum of (x + k)^-s over k >= 0, for an integer s >= 2: terms up to 10, then the formula of Euler and Maclaurin. */
TREK_SPECIAL double trek_zeta_by_terms(double s, double x)
{
    const double over[] = { 12, -720, 30240, -1209600, 47900160, -1892437580.3183791606, 74724249600, -2950130727918.1642244,
                            116467828143500.67248, -4597978722407472.6104, 181521054019435467.73, -7166165256175667011.3 };
                            /* (2k)! / B_2k */
    double sum = 0, term = 0;
    if (x <= 0 && x == floor(x))
        return INFINITY;
    int k = 0;
    for (; k < 10 || x < 10; k++, x++) {
        term = trek_power_minus(x, s);
        sum += term;
        if (fabs(term) < 1e-17 * fabs(sum) && x > 0)
            return sum;
    }
    term = trek_power_minus(x, s);
    sum += term * x / (s - 1) + 0.5 * term;
    double factor = s, power = term / x;
    for (int j = 0; j < 12; j++) {
        double part = factor * power / over[j];
        sum += part;
        if (fabs(part) < 1e-17 * fabs(sum))
            break;
        factor *= (s + 2 * j + 1) * (s + 2 * j + 2);
        power /= x * x;
    }
    return sum;
}

/* The same. Far below 0 there are too many terms up to 10; those of negative numbers are, but for their sign, the difference of
 * two sums of positive ones. */
TREK_SPECIAL double trek_zeta(double s, double x)
{
    if (!(x < -20))
        return trek_zeta_by_terms(s, x);
    if (x == floor(x))
        return INFINITY;
    double first = x - floor(x); /* the first positive number */
    double below = trek_zeta_by_terms(s, 1 - first) - trek_zeta_by_terms(s, 1 - x);
    return trek_zeta_by_terms(s, first) + (fmod(s, 2.0) == 0 ? below : -below);
}

/* The n-th derivative of digamma, for an integer n >= 0. */
TREK_SPECIAL double trek_polygamma(double n, double x)
{
    if (n < 1)
        return trek_digamma(x);
    double sign = fmod(n, 2.0) == 0 ? -1 : 1;
    return x != x || x == INFINITY ? (x != x ? x : 0) : sign * exp(lgamma(n + 1)) * trek_zeta(n + 1, x);
}

/* --- modified Bessel functions -------------------------------------------------------------------------- */

/* e^-|x| times the modified Bessel function of the first kind, of order 0 or 1: up to 30 its power series, whose
 * terms all have one sign; above, the asymptotic series (Abramowitz and Stegun 9.6.10, 9.7.1). */
TREK_SPECIAL double trek_bessel_scaled(int order, double x)
{
    double size = fabs(x), term = 1, sum = 1;
    if (size <= 30) {
        const double square = size * size / 4;
        for (int k = 1; k < 200 && term > 1e-18 * sum; k++) {
            term *= square / ((double)k * (k + order));
            sum += term;
        }
        sum *= exp(-size);
        return order ? x / 2 * sum : sum;
    }
    const double m = 4.0 * order;
    for (int k = 1; k < 40 && fabs(term) > 1e-18; k++) {
        term *= ((2.0 * k - 1) * (2.0 * k - 1) - m) / (8.0 * k * size);
        sum += term;
    }
    sum /= sqrt(2 * TREK_PI * size);
    return order && x < 0 ? -sum : sum;
}

/* The function itself, with e^|x| in two factors, because e^|x| overflows before the product does. */
TREK_SPECIAL double trek_bessel(int order, double x)
{
    const double half = exp(fabs(x) / 2);
    if (fabs(x) == INFINITY)
        return order ? x : INFINITY;
    return trek_bessel_scaled(order, x) * half * half;
}

/* The slopes of i0e, i1 and i1e; those of i1 and i1e at 0 are limits. */
TREK_SPECIAL double trek_i0e_slope(double x)
{
    const double sign = x > 0 ? 1 : x < 0 ? -1 : 0;
    return trek_bessel_scaled(1, x) - sign * trek_bessel_scaled(0, x);
}
TREK_SPECIAL double trek_i1_slope(double x)
{
    return x == 0 ? 0.5 : fabs(x) == INFINITY ? INFINITY : trek_bessel(0, x) - trek_bessel(1, x) / x;
}
TREK_SPECIAL double trek_i1e_slope(double x)
{
    const double sign = x > 0 ? 1 : -1;
    return x == 0 ? 0.5 : trek_bessel_scaled(0, x) - trek_bessel_scaled(1, x) * (sign + 1 / x);
}

/* --- the normal distribution's tail ------------------------------------------------------------------------ */

/* e^(x^2) erfc(x) for x >= 0, with the square in two parts, so that its rounding does not matter; from 10 on the
 * asymptotic series. */
TREK_SPECIAL double trek_erfcx(double x)
{
    if (x < 10) {
        const double square = x * x, rest = fma(x, x, -square);
        return exp(square) * (1 + rest) * erfc(x);
    }
    double term = 1, sum = 1;
    const double step = 0.5 / (x * x);
    for (int k = 1; k < 30 && fabs(term) > 1e-18; k++) {
        term *= -(2.0 * k - 1) * step;
        sum += term;
    }
    return sum / (x * 1.77245385090551602730); /* sqrt(pi) */
}

TREK_SPECIAL double trek_log_ndtr(double x)
{
    const double u = x * 0.70710678118654752440;
    return x < -1 ? log(trek_erfcx(-u) / 2) - u * u : log1p(-erfc(u) / 2);
}

/* The density divided by the area. */
TREK_SPECIAL double trek_log_ndtr_slope(double x)
{
    const double u = x * 0.70710678118654752440, factor = 0.79788456080286535588; /* sqrt(2 / pi) */
    return x < -1 ? factor / trek_erfcx(-u) : factor * exp(-u * u) / erfc(-u);
}

/* --- incomplete gamma functions ------------------------------------------------------------------------------- */

/* m - log(1 + m) for m > -1: by the series of log(1 + m) in m / (2 + m), in which m itself cancels. */
TREK_SPECIAL double trek_less_log1p(double m)
{
    if (fabs(m) > 0.5)
        return m - log1p(m);
    const double r = m / (2 + m), square = r * r;
    double power = 2 * r * square, sum = 0;
    for (int k = 3; k < 60 && fabs(power) > 1e-18 * fabs(m * r); k += 2, power *= square)
        sum += power / k;
    return m * r - sum;
}

/* x^a e^-x / Gamma(a + 1); for large a by Stirling's series, because logarithms that cancel would lose digits. */
TREK_SPECIAL double trek_gamma_factor(double a, double x)
{
    if (a < 16 || x < 0.01 * a)
        return exp(a * log(x) - x - lgamma(a + 1));
    const double r = 1 / (a * a), correction = (1.0 / 12 - r * (1.0 / 360 - r * (1.0 / 1260 - r * (1.0 / 1680 - r / 1188)))) / a;
    return exp(-a * trek_less_log1p((x - a) / a) - correction) / sqrt(2 * TREK_PI * a);
}

/* log Gamma(1 + a) for |a| <= 0.05, with a's own precision: Euler's constant and zeta(2) .. zeta(12). */
TREK_SPECIAL double trek_lgamma_near_1(double a)
{
    const double zeta[] = { 1.6449340668482264365, 1.2020569031595942854, 1.0823232337111381916, 1.0369277551433699263,
                            1.0173430619844491397, 1.0083492773819228268, 1.0040773561979443394, 1.0020083928260822144,
                            1.0009945751278180853, 1.0004941886041194646, 1.0002460865533080483 };
    double sum = 0;
    for (int k = 12; k >= 2; k--)
        sum = zeta[k - 2] / k - a * sum;
    return a * (a * sum - 0.57721566490153286061);
}

/* The upper function for x < 1.1 and small a, for which 1 minus the lower one would lose all digits. */
TREK_SPECIAL double trek_gamma_upper_small(double a, double x)
{
    double term = 1, sum = 0, power = a * log(x) - trek_lgamma_near_1(a);
    for (int k = 1; k < 60 && fabs(term) > 1e-18; k++) {
        term *= -x / k;
        sum += term / (a + k);
    }
    return -expm1(power) - exp(power) * a * sum;
}

/* For a above 10^6, where series need too many terms: Temme's uniform expansion (1979), two terms of it. */
TREK_SPECIAL double trek_gamma_uniform(double a, double x, int upper)
{
    const double m = (x - a) / a, half_square = trek_less_log1p(m);
    const double eta = m < 0 ? -sqrt(2 * half_square) : sqrt(2 * half_square), near = fabs(eta) < 0.1 ? eta : 0;
    const double first = -1.0 / 3 + near * (1.0 / 12 - near * (2.0 / 135 - near * (1.0 / 864 + near * (1.0 / 2835))));
    const double second = -1.0 / 540 - near * (1.0 / 288 - near * (1.0 / 378));
    const double rest = exp(-a * half_square) / sqrt(2 * TREK_PI * a) * (first + second / a);
    const double tail = 0.5 * erfc((upper ? eta : -eta) * sqrt(a / 2));
    return upper ? tail + rest : tail - rest;
}

/* The regularised lower function P(a, x), or the upper one, 1 - P: a series below a + 1, a continued fraction above
 * (Abramowitz and Stegun 6.5.29, 6.5.31). */
TREK_SPECIAL double trek_igamma(double a, double x, int upper)
{
    if (!(a >= 0) || !(x >= 0) || (a == 0 && x == 0) || (a == INFINITY && x == INFINITY))
        return NAN;
    if (a == 0 || x == INFINITY)
        return upper ? 0 : 1;
    if (x == 0 || a == INFINITY)
        return upper ? 1 : 0;
    if (a > 1e6)
        return trek_gamma_uniform(a, x, upper);
    if (upper && a < 0.05 && x < 1.1)
        return trek_gamma_upper_small(a, x);
    const double factor = trek_gamma_factor(a, x);
    if (x < a + 1) {
        double term = 1, sum = 1;
        const double fourth = x * x * (x * x);
        /* Four terms, each the last one times x / (a + k), need one division. The first twenty are added without asking, because
         * the machine cannot predict which is the last that counts. */
        for (int k = 1; k < 20 || (k < 100000 && term > 1e-17 * sum); k += 4) {
            const double d = a + k, last = d + 3, two = (d + 2) * last, by = 1 / (d * (d + 1) * two);
            sum += term * (x * by * ((d + 1) * two + x * (two + x * (last + x))));
            term *= fourth * by;
        }
        return upper ? 1 - factor * sum : factor * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, value = d; /* Lentz's steps */
    for (int k = 1; k < 100000; k++) {
        const double over = -k * (k - a);
        b += 2;
        d = over * d + b;
        c = b + over / c;
        d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
        c = fabs(c) < 1e-300 ? 1e-300 : c;
        value *= d * c;
        if (fabs(d * c - 1) < 1e-16)
            break;
    }
    value *= factor * a;
    return upper ? value : 1 - value;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Special functions of one f64 number that libm has not, for CPUs and, with TREK_SPECIAL defined, for GPUs. */
#ifndef TREK_TENSOR_SPECIAL_H
#define TREK_TENSOR_SPECIAL_H

#include <math.h>

#ifndef TREK_SPECIAL
#define TREK_SPECIAL static inline
#endif

#define TREK_PI 3.14159265358979323846

/* erf's inverse: Winitzki's approximation (2008), then Newton's steps (of third order: Halley) on erfc, which keeps what is
 * near 1. */
TREK_SPECIAL double trek_erfinv(double y)
{
    double size = fabs(y);
    if (!(size < 1))
        return size == 1 ? y * INFINITY : NAN;
    if (size < 1e-9)
        return y * 0.88622692545275801365; /* sqrt(pi) / 2 */
    double l = log1p(-size * size), a = 4.3307467508 + l / 2; /* 2 / (pi 0.147) */
    double x = sqrt(sqrt(a * a - l / 0.147) - a), rest = 1 - size;
    for (int k = 0; k < 2; k++) { /* to the third power each time: from 2e-3 */
        double off = (rest - erfc(x)) * 0.88622692545275801365 * exp(x * x); /* how far x is, in units of the slope */
        x -= off / (1 + x * off);
    }
    return y < 0 ? -x : x;
}

/* The derivative of log gamma: upwards to 10, then the asymptotic series (Abramowitz and Stegun 6.3.18); reflected below 0. */
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

/* The sum of (x + k)^-s over k >= 0, s >= 2 a whole number: terms up to 10, then Euler and Maclaurin's formula. */
TREK_SPECIAL double trek_zeta(double s, double x)
{
    const double over[] = { 12, -720, 30240, -1209600, 47900160, -1892437580.3183791606, 74724249600, -2950130727918.1642244,
                            116467828143500.67248, -4597978722407472.6104, 181521054019435467.73, -7166165256175667011.3 };
                            /* (2k)! / B_2k */
    double sum = 0, term = 0;
    if (x <= 0 && x == floor(x))
        return INFINITY;
    int k = 0;
    for (; k < 10 || x < 10; k++, x++) {
        term = pow(x, -s);
        sum += term;
        if (fabs(term) < 1e-17 * fabs(sum) && x > 0)
            return sum;
    }
    term = pow(x, -s);
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

/* The n-th derivative of digamma, n >= 0 a whole number. */
TREK_SPECIAL double trek_polygamma(double n, double x)
{
    if (n < 1)
        return trek_digamma(x);
    double sign = fmod(n, 2.0) == 0 ? -1 : 1;
    return x != x || x == INFINITY ? (x != x ? x : 0) : sign * exp(lgamma(n + 1)) * trek_zeta(n + 1, x);
}

#endif

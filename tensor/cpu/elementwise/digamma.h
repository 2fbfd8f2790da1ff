/* SPDX-License-Identifier: Apache-2.0 */
/* The first two derivatives of log Gamma for f32. As log Gamma is (log_gamma.h), they are computed in f64 and without branches,
 * so that compilers turn loops over them into vector code. */
#ifndef TREK_TENSOR_CPU_ELEMENTWISE_DIGAMMA_H
#define TREK_TENSOR_CPU_ELEMENTWISE_DIGAMMA_H

#include "tensor/cpu/elementwise/log_gamma.h"
#include "tensor/cpu/elementwise/map.h"

/* A row of polygamma of any order, attrs->f[0], one element after the other (special.c). */
void trek_cpu_polygamma_row(void *to, const void *const *from, int64_t n, const trek_attrs *attrs);

/* digamma(w) for w >= 7.5, by the asymptotic series. */
static inline double trek_digamma_far(double w)
{
    const double v = 1 / w, u = v * v;
    double p = 1.0 / 12;
    p = p * u - 691.0 / 32760;
    p = p * u + 1.0 / 132;
    p = p * u - 1.0 / 240;
    p = p * u + 1.0 / 252;
    p = p * u - 1.0 / 120;
    p = p * u + 1.0 / 12;
    return trek_log_of_f64(w) - 0.5 * v - u * p;
}

/* The distance from the next integer; numbers from 2^51 on are integers. */
static inline double trek_off_integer(double x)
{
    const double integers = 0x1.8p52;
    return x > -0x1p51 && x < 0x1p51 ? x - ((x + integers) - integers) : 0;
}

/* For x >= 1/2 it is digamma(x + 7) - 1/x - .. - 1/(x + 6); with v = x + 3 and u = x (x + 6), whose neighbours are (x + 1)(x + 5)
 * = u + 5 and (x + 2)(x + 4) = u + 8, the sum is 2 v (1/u + 1/(u + 5) + 1/(u + 8)) + 1/v. Below, it is digamma(1 - x) - pi /
 * tan(pi x), the reflection formula. */
static inline float trek_digamma_f32(float x)
{
    const double at = x, z = at < 0.5 ? 1 - at : at, v = z + 3, u = z * (z + 6);
    const double product = u * (u + 5) * (u + 8), pairs = (u + 5) * (u + 8) + u * ((u + 5) + (u + 8));
    const double upper = trek_digamma_far(z + 7) - (2 * v * v * pairs + product) / (product * v);
    const double r = trek_off_integer(at), size = r < 0 ? -r : r;
    const double sine = trek_sine_of_pi(size), cosine = trek_sine_of_pi(0.5 - size);
    const double cotangent = 3.14159265358979323846 * cosine / (r < 0 ? -sine : sine), pole = -1 / at;
    const double integer = at == 0 ? pole : (double)NAN, below = r != 0 ? upper - cotangent : integer;
    const float y = (float)(at >= 0.5 ? upper : below);
    return x - x == 0 ? y : x > 0 ? x : NAN;
}

/* The derivative of digamma for w >= 7.5, by the asymptotic series. */
static inline double trek_trigamma_far(double w)
{
    const double v = 1 / w, u = v * v;
    double p = 7.0 / 6;
    p = p * u - 691.0 / 2730;
    p = p * u + 5.0 / 66;
    p = p * u - 1.0 / 30;
    p = p * u + 1.0 / 42;
    p = p * u - 1.0 / 30;
    p = p * u + 1.0 / 6;
    return v + u * (0.5 + v * p);
}

/* For x >= 1/2 it is trigamma(x + 7) + 1/x^2 + .. + 1/(x + 6)^2, where fractions are added before they are divided; below, it is
 * (pi / sin(pi x))^2 - trigamma(1 - x). */
static inline float trek_trigamma_f32(float x)
{
    const double at = x, z = at < 0.5 ? 1 - at : at;
    const double a = z * z, b = (z + 6) * (z + 6), c = (z + 1) * (z + 1), d = (z + 5) * (z + 5), e = (z + 2) * (z + 2);
    const double f = (z + 4) * (z + 4), g = (z + 3) * (z + 3);
    const double first = ((a + b) * (c * d) + (c + d) * (a * b)) / ((a * b) * (c * d)),
        second = ((e + f) * g + e * f) / (e * f * g);
    const double upper = trek_trigamma_far(z + 7) + (first + second);
    const double r = trek_off_integer(at), slope = 3.14159265358979323846 / trek_sine_of_pi(r < 0 ? -r : r);
    const double below = r != 0 ? slope * slope - upper : (double)INFINITY;
    const float y = (float)(at >= 0.5 ? upper : below);
    return x - x == 0 ? y : x > 0 ? 0 : x != x ? x : INFINITY;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* log |Gamma(x)| of f32. It is computed in f64 and without branches, so that compilers turn loops over it into vector code, and
 * has the same bits with every instruction set. Compared with glibc's lgamma of f64 for all 2^32 numbers, the error is at
 * most 1.1 units in the last place, next to the zero at 2. */
#ifndef TREK_TENSOR_CPU_ELEMENTWISE_LOG_GAMMA_H
#define TREK_TENSOR_CPU_ELEMENTWISE_LOG_GAMMA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The natural logarithm of a positive normal number, from its power of two and its fraction m in [sqrt(1/2), sqrt(2)), for which
 * it is 2 atanh((m - 1) / (m + 1)), by the series. */
static inline double trek_log_of_f64(double x)
{
    const uint64_t half_root = UINT64_C(0x3fe6a09e667f3bcd), integers = UINT64_C(0x4330000000000000); /* sqrt(1/2) and 2^52 */
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits -= half_root;
    const uint64_t fraction = (bits & UINT64_C(0x000fffffffffffff)) + half_root;
    const uint64_t power = ((bits + UINT64_C(0x4000000000000000)) >> 52) | integers;
    double m, e;
    memcpy(&m, &fraction, sizeof m);
    memcpy(&e, &power, sizeof e);
    const double t = (m - 1) / (m + 1), s = t * t;
    double p = 1.0 / 21;
    p = p * s + 1.0 / 19;
    p = p * s + 1.0 / 17;
    p = p * s + 1.0 / 15;
    p = p * s + 1.0 / 13;
    p = p * s + 1.0 / 11;
    p = p * s + 1.0 / 9;
    p = p * s + 1.0 / 7;
    p = p * s + 1.0 / 5;
    p = p * s + 1.0 / 3;
    return (e - (0x1p52 + 1024)) * 0.69314718055994530942 + 2 * t * (p * s + 1);
}

/* |sin(pi x)|, by the series in the distance between x and the next integer. */
static inline double trek_sine_of_pi(double x)
{
    const double integers = 0x1.8p52, a = x < 0 ? -x : x, r = a < 0x1p51 ? a - ((a + integers) - integers) : 0, s = r * r;
    double p = -2.2948428997269856e-08;
    p = p * s + 7.952054001475508e-07;
    p = p * s - 2.1915353447830204e-05;
    p = p * s + 0.00046630280576761234;
    p = p * s - 0.007370430945714348;
    p = p * s + 0.08214588661112819;
    p = p * s - 0.5992645293207919;
    p = p * s + 2.550164039877345;
    p = p * s - 5.167712780049969;
    p = p * s + 3.141592653589793;
    return (r < 0 ? -r : r) * p;
}

/* log Gamma(w) for w >= 7.5, by Stirling's series. */
static inline double trek_stirling(double w)
{
    const double v = 1 / w, u = v * v;
    double p = -3617.0 / 122400;
    p = p * u + 1.0 / 156;
    p = p * u - 691.0 / 360360;
    p = p * u + 1.0 / 1188;
    p = p * u - 1.0 / 1680;
    p = p * u + 1.0 / 1260;
    p = p * u - 1.0 / 360;
    p = p * u + 1.0 / 12;
    return (w - 0.5) * trek_log_of_f64(w) - w + (0.91893853320467274178 + p * v);
}

/* For x >= 1/2 it is log Gamma(x + 7) - log(x (x + 1) .. (x + 6)); below, it is log(pi / |sin(pi x)|) - log Gamma(1 - x), the
 * reflection formula. */
static inline float trek_log_gamma_f32(float x)
{
    const double at = x, z = at < 0.5 ? 1 - at : at, sine = trek_sine_of_pi(at), far = trek_stirling(z + 7);
    const double product = ((z * (z + 6)) * ((z + 1) * (z + 5))) * (((z + 2) * (z + 4)) * (z + 3));
    const double reflected = trek_log_of_f64(product * 3.14159265358979323846 / (sine > 0 ? sine : 1)) - far;
    const float y = (float)(at >= 0.5 ? far - trek_log_of_f64(product) : sine > 0 ? reflected : (double)INFINITY);
    return x - x == 0 ? y : x != x ? x : INFINITY;
}

#endif

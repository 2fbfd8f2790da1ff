/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fp8.h"

#include <math.h>
#include <string.h>

typedef struct format {
    int fraction, bias;
    double largest;
    int last; /* code of the largest */
} format;

static format format_of(bool e5m2) { return e5m2 ? (format){ 2, 15, 57344, 0x7b } : (format){ 3, 7, 448, 0x7e }; }

static double number(format f, int code)
{
    int exponent = (code & 0x7f) >> f.fraction, fraction = code & ((1 << f.fraction) - 1);
    double value = ldexp((double)fraction / (1 << f.fraction) + (exponent > 0), (exponent > 0 ? exponent : 1) - f.bias);
    return (code & 0x7f) > f.last ? NAN : code & 0x80 ? -value : value;
}

double test_fp8_number(bool e5m2, int code) { return number(format_of(e5m2), code); }

int test_fp8_nearest(bool e5m2, double x)
{
    format f = format_of(e5m2);
    int best = 0, sign = signbit(x) ? 0x80 : 0;
    double size = fabs(x);
    if (!isfinite(x))
        return sign | 0x7f;
    for (int code = 1; code <= f.last; code++) {
        double off = fabs(number(f, code) - size), least = fabs(number(f, best) - size);
        if (off < least || (off == least && code % 2 == 0))
            best = code;
    }
    return sign | best;
}

double test_fp8_scale(bool e5m2, double magnitude, int margin)
{
    double largest = format_of(e5m2).largest;
    if (!(magnitude > 0) || !isfinite(magnitude))
        return 1;
    int e = (int)floor(log2(largest / magnitude));
    while (ldexp(magnitude, e) > largest)
        e--;
    while (ldexp(magnitude, e + 1) <= largest)
        e++;
    e -= margin;
    return ldexp(1, e < -126 ? -126 : e > 126 ? 126 : e);
}

float test_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

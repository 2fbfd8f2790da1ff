/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of frames: constants, computed in f64 on the host. */
#include <math.h>

#include "autograd/fft.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

#define TWO_PI 6.28318530717958647692

/* Returns the window's value at t in [0, 1], given its parameter. */
typedef double shape_of_window(double t, double number);

static double raised_cosine(double t, double middle) { return middle - (1 - middle) * cos(TWO_PI * t); }
static double blackman(double t, double number)
{
    (void)number;
    return 0.42 - 0.5 * cos(TWO_PI * t) + 0.08 * cos(2 * TWO_PI * t);
}
static double triangle(double t, double number)
{
    (void)number;
    return 1 - fabs(2 * t - 1);
}

/* The modified Bessel function of order 0, times e^-|x|, by its power series: terms rise up to about |x| / 2, then
 * fall. */
static double bessel(double x)
{
    double half = fabs(x) / 2, sum = 0;
    for (int k = 0;; k++) {
        double term = exp(2 * (half > 0 ? k * log(half) : k > 0 ? -INFINITY : 0) - 2 * lgamma(k + 1.0) - fabs(x));
        sum += term;
        if (k > half && term <= sum * 1e-17)
            return sum;
    }
}
static double kaiser(double t, double beta)
{
    double away = 2 * t - 1, inside = beta * sqrt(fmax(0, 1 - away * away));
    return bessel(inside) / bessel(beta) * exp(fabs(inside) - fabs(beta));
}

static trek_var *window(const char *name, int64_t n, bool periodic, shape_of_window *value, double number, trek_dtype dtype,
                        trek_device device)
{
    if (n < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: n: %lld elements; must be 0 or more", name, (long long)n);
    if (!trek_dtype_is_float(dtype))
        return trek_fail_null(TREK_ERR_DTYPE, "%s: dtype: %s; must be floating", name, trek_dtype_name(dtype));
    trek_tensor *made = trek_tensor_empty(trek_dims(n), TREK_F64, trek_cpu(0));
    if (!made)
        return NULL;
    double *to = (void *)made->data, steps = (double)(periodic ? n : n - 1);
    for (int64_t i = 0; i < n; i++)
        to[i] = n == 1 ? 1 : value((double)i / steps, number);
    trek_var *v = trek_cast(trek_var_from(made), dtype);
    return device.type == TREK_CPU ? v : trek_to(v, device);
}

trek_var *trek_hann_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device)
{
    return window("hann_window", n, periodic, raised_cosine, 0.5, dtype, device);
}
trek_var *trek_hamming_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device)
{
    return window("hamming_window", n, periodic, raised_cosine, 0.54, dtype, device);
}
trek_var *trek_blackman_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device)
{
    return window("blackman_window", n, periodic, blackman, 0, dtype, device);
}
trek_var *trek_bartlett_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device)
{
    return window("bartlett_window", n, periodic, triangle, 0, dtype, device);
}
trek_var *trek_kaiser_window(int64_t n, bool periodic, double beta, trek_dtype dtype, trek_device device)
{
    enum { MOST = 100000 }; /* the maximum number of terms */
    if (!(fabs(beta) <= MOST))
        return trek_fail_null(TREK_ERR_ARGUMENT, "kaiser_window: beta: %g; must be finite and not negative", beta);
    return window("kaiser_window", n, periodic, kaiser, beta, dtype, device);
}

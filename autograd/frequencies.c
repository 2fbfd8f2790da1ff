/* SPDX-License-Identifier: Apache-2.0 */
/* The frequencies of a transform's elements, and shifts that move frequency 0 to the middle. */
#include <math.h>

#include "autograd/fft.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

static trek_var *shifted(const char *name, trek_var *x, trek_dims_list dims, bool pairs, bool back)
{
    if (!x)
        return trek_fail_missing(name, "variable"), NULL;
    int ndim = trek_var_ndim(x) - pairs;
    trek_dims_list shifts = { 0 }, along = { 0 };
    unsigned seen = 0;
    if (ndim < 0 || (pairs && trek_var_size(x, -1) != 2))
        return trek_fail_null(TREK_ERR_SHAPE, "%s: x: must be pairs [..., 2]", name);
    for (int k = 0; k < (dims.ndim > 0 ? dims.ndim : ndim); k++) {
        int d = trek_normalize_dim(dims.ndim > 0 ? dims.sizes[k] : k, ndim, name);
        if (d < 0)
            return NULL;
        if (ndim == 0 || seen >> d & 1)
            return trek_fail_null(TREK_ERR_ARGUMENT, "%s: dims: dimension %d occurs twice, or does not exist", name, d);
        seen |= 1u << d;
        int64_t n = trek_var_size(x, d);
        along.sizes[along.ndim++] = d;
        shifts.sizes[shifts.ndim++] = back ? (n + 1) / 2 : n / 2;
    }
    return along.ndim > 0 ? trek_roll(x, shifts, along) : trek_clone(x);
}

trek_var *trek_fftshift(trek_var *x, trek_dims_list dims, bool pairs) { return shifted("fftshift", x, dims, pairs, false); }
trek_var *trek_ifftshift(trek_var *x, trek_dims_list dims, bool pairs) { return shifted("ifftshift", x, dims, pairs, true); }

/* Returns `count` frequencies, which are negative from `negative` on. */
static trek_var *frequencies(const char *name, int64_t n, int64_t count, int64_t negative, double d, trek_dtype dtype,
                             trek_device device)
{
    if (n < 1 || !isfinite(d) || d == 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: n: %lld, d: %g; must be at least 1, and finite and not 0", name,
                              (long long)n, d);
    if (!trek_dtype_is_float(dtype))
        return trek_fail_null(TREK_ERR_DTYPE, "%s: dtype: %s; must be floating", name, trek_dtype_name(dtype));
    trek_tensor *made = trek_tensor_empty(trek_dims(count), TREK_F64, trek_cpu(0));
    if (!made)
        return NULL;
    double *to = (void *)made->data;
    for (int64_t k = 0; k < count; k++)
        to[k] = (double)(k < negative ? k : k - n) / ((double)n * d);
    trek_var *v = trek_cast(trek_var_from(made), dtype);
    return device.type == TREK_CPU ? v : trek_to(v, device);
}

trek_var *trek_fftfreq(int64_t n, double d, trek_dtype dtype, trek_device device)
{
    return frequencies("fftfreq", n, n, (n + 1) / 2, d, dtype, device);
}

trek_var *trek_rfftfreq(int64_t n, double d, trek_dtype dtype, trek_device device)
{
    return frequencies("rfftfreq", n, n / 2 + 1, n / 2 + 1, d, dtype, device);
}

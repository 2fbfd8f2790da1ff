/* SPDX-License-Identifier: Apache-2.0 */
/* Power means over windows. */
#include <math.h>

#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/rules_internal.h"
#include "tensor/option_internal.h"

/* Averages the powers and takes the root of the sum. sign and relu are PyTorch's, for the derivative at 0. */
static trek_var *power_mean(const char *name, trek_var *x, double norm, const trek_pool_opts *opts, int dims,
                            trek_var *(*average)(trek_var *, const trek_pool_opts *))
{
    if (!x)
        return trek_fail_missing(name, "input"), NULL;
    if (!opts || opts->kernel[0] < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: kernel: missing or 0; must be at least 1", name);
    if (norm == 0 || isnan(norm))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: norm: %g; must be a number other than 0", name, norm);
    if (opts->divisor_override != 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: divisor_override: set; this pooling has none", name);
    double elements = 1;
    int64_t kernel = 0;
    for (int d = 0; d < dims; d++) {
        if (trek_option_integer(opts->padding[d], 0) != 0 || opts->dilation[d] < 0 || opts->dilation[d] > 1)
            return trek_fail_null(TREK_ERR_ARGUMENT, "%s: padding or dilation: set; this pooling has neither", name);
        kernel = opts->kernel[d] ? opts->kernel[d] : kernel;
        elements *= (double)kernel;
    }
    if (!trek_dtype_is_float(trek_var_dtype(x)))
        return trek_fail_null(TREK_ERR_DTYPE, "%s: x: dtype %s; must be floating", name, trek_dtype_name(trek_var_dtype(x)));
    if (trek_var_ndim(x) != 2 + dims)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: x: %d dimensions; must have %d", name, trek_var_ndim(x), 2 + dims);
    const char *before = trek_op_calling(name);
    trek_var *wide = trek_rule_wide(x), *mean = average(norm == 2 ? trek_square(wide) : trek_pow_scalar(wide, norm), opts);
    mean = trek_mul(trek_sign(mean), trek_relu(trek_abs(mean)));
    trek_var *sum = trek_mul_scalar(mean, elements);
    return trek_op_called_end(before, trek_rule_rounded(norm == 2 ? trek_sqrt(sum) : trek_pow_scalar(sum, 1 / norm), x));
}

trek_var *trek_lp_pool1d(trek_var *x, double norm, const trek_pool_opts *opts)
{
    return power_mean("lp_pool1d", x, norm, opts, 1, trek_avg_pool1d);
}
trek_var *trek_lp_pool2d(trek_var *x, double norm, const trek_pool_opts *opts)
{
    return power_mean("lp_pool2d", x, norm, opts, 2, trek_avg_pool2d);
}
trek_var *trek_lp_pool3d(trek_var *x, double norm, const trek_pool_opts *opts)
{
    return power_mean("lp_pool3d", x, norm, opts, 3, trek_avg_pool3d);
}

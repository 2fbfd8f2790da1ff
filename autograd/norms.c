/* SPDX-License-Identifier: Apache-2.0 */
/* Norms made from the fused ones, and dropout of channels. */
#include "autograd/norms.h"

#include <math.h>

#include "autograd/ops.h"
#include "autograd/rows.h"
#include "autograd/rules_internal.h"
#include "autograd/tape_internal.h"
#include "tensor/option_internal.h"
#include "tensor/random_internal.h"

/* Returns whether x is present, has a floating dtype and at least this many dimensions. */
static bool fits(const char *name, trek_var *x, int least)
{
    char text[TREK_SHAPE_TEXT];
    if (!x)
        trek_fail_missing(name, "input");
    else if (!trek_dtype_is_float(trek_var_dtype(x)))
        trek_fail(TREK_ERR_DTYPE, "%s: x: dtype %s is not supported", name, trek_dtype_name(trek_var_dtype(x)));
    else if (trek_var_ndim(x) < least)
        trek_fail(TREK_ERR_SHAPE, "%s: x: %s; must have at least %d dimensions", name,
                  trek_shape_format(trek_var_shape(x), text, sizeof text),
                  least);
    else
        return true;
    return false;
}

/* Returns the number of elements in one channel of one sample. */
static int64_t pixels_of(const trek_var *x)
{
    int64_t pixels = 1;
    for (int d = 2; d < trek_var_ndim(x); d++)
        pixels *= trek_var_size(x, d);
    return pixels;
}

/* --- norms ---------------------------------------------------------------------------------------- */

trek_var *trek_group_norm(trek_var *x, int64_t groups, trek_var *weight, trek_var *bias, double eps)
{
    return trek_apply_group_norm(x, weight, bias, groups, eps);
}

/* Repeats [C] to [N C]. */
static trek_var *for_each(trek_var *v, int64_t samples, int64_t channels)
{
    return v ? trek_reshape(trek_expand(v, trek_dims(samples, channels)), trek_dims(samples * channels)) : NULL;
}

/* Sets a running statistic to the mean, over the samples, of what it became for each. */
static trek_status settle(trek_var *running, trek_var *each, int64_t samples, int64_t channels)
{
    trek_var *mean = trek_mean(trek_reshape(each, trek_dims(samples, channels)), trek_dims(0), false);
    return trek_copy_(running, mean) ? TREK_OK : trek_error_status();
}

trek_var *trek_instance_norm(trek_var *x, trek_var *running_mean, trek_var *running_var, trek_var *weight, trek_var *bias,
                             bool use_input_stats, double momentum, double eps)
{
    if (!fits("instance_norm", x, 2))
        return NULL;
    if (!use_input_stats)
        return trek_batch_norm(x, running_mean, running_var, weight, bias, false, momentum, eps);
    trek_shape shape = trek_var_shape(x);
    int64_t samples = shape.sizes[0], channels = shape.sizes[1], pixels = pixels_of(x);
    if (pixels == 1)
        return trek_fail_null(TREK_ERR_SHAPE, "instance_norm: x: 1 value for each channel of a sample; must have more");
    trek_var *given[4] = { weight, bias, running_mean, running_var };
    for (int k = 0; k < 4; k++)
        if (given[k] && (trek_var_ndim(given[k]) != 1 || trek_var_size(given[k], 0) != channels))
            return trek_fail_null(TREK_ERR_SHAPE,
                                  "instance_norm: weight, bias or running statistics: wrong shape; must be [%lld]",
                                  (long long)channels);
    trek_no_grad_begin();
    trek_var *mean = running_mean ? trek_clone(for_each(running_mean, samples, channels)) : NULL; /* copies: each has its own */
    trek_var *variance = running_var ? trek_clone(for_each(running_var, samples, channels)) : NULL;
    trek_no_grad_end();
    trek_var *y = trek_batch_norm(trek_reshape(x, trek_dims(1, samples * channels, pixels)), mean,
                                  variance, for_each(weight, samples, channels), for_each(bias, samples, channels), true,
                                  momentum, eps);
    if (y && mean && samples > 0) {
        trek_no_grad_begin();
        trek_status status = settle(running_mean, mean, samples, channels);
        status = status == TREK_OK ? settle(running_var, variance, samples, channels) : status;
        trek_no_grad_end();
        if (status != TREK_OK)
            return NULL;
    }
    return trek_reshape(y, shape);
}

trek_var *trek_local_response_norm(trek_var *x, int64_t size, double alpha, double beta, double k)
{
    if (!fits("local_response_norm", x, 3))
        return NULL;
    if (size < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "local_response_norm: size: %lld; must be at least 1", (long long)size);
    trek_shape shape = trek_var_shape(x);
    if (trek_shape_numel(shape) == 0)
        return x;
    int64_t samples = shape.sizes[0], channels = shape.sizes[1], pixels = pixels_of(x);
    trek_pool_opts opts = { .kernel = { size, 1 }, .stride = { 1, 1 }, .padding = { size / 2, TREK_ZERO } };
    opts.padding[0] = size / 2 ? size / 2 : TREK_ZERO;
    trek_var *wide = trek_rule_wide(x), *square = trek_reshape(trek_square(wide), trek_dims(samples, 1, channels, pixels));
    trek_var *mean = trek_reshape(trek_narrow(trek_avg_pool2d(square, &opts), 2, 0, channels), shape);
    trek_var *divisor = trek_pow_scalar(trek_add_scalar(trek_mul_scalar(mean, alpha), k), beta);
    return trek_rule_rounded(trek_div(wide, divisor), x);
}

trek_var *trek_normalize(trek_var *x, double p, int dim, double eps)
{
    if (!fits("normalize", x, 0))
        return NULL;
    trek_var *size = trek_norm(x, p, trek_dims(dim), true);
    return trek_div(x, trek_clamp(size, eps, INFINITY));
}

/* --- dropout ------------------------------------------------------------------------------------------- */

/* For each channel of [N, C, ...] returns 0 with probability p, otherwise 1 / (1 - p), as [N, C, 1, ...]. */
static trek_var *channel_mask(trek_var *x, double p)
{
    trek_shape shape = trek_var_shape(x);
    int64_t strides[TREK_MAX_DIMS] = { 0 };
    for (int d = 2; d < shape.ndim; d++)
        shape.sizes[d] = 1;
    const trek_row_map *map = trek_rows_mapped(x);
    if (map)
        shape.sizes[0] = shape.sizes[0] / map->n * map->total;
    trek_tensor *channels = trek_tensor_make_view(x->data, x->data->data, shape.ndim, shape.sizes, strides);
    if (!channels)
        return NULL;
    trek_attrs draw = { 0 };
    trek_rng_attrs(channels, &draw); /* keyed by samples, as for x */
    trek_tensor_release(channels);
    trek_tensor *ones = trek_tensor_ones(shape, trek_var_dtype(x), trek_var_device(x));
    trek_var *mask = ones ? trek_apply_dropout(trek_var_from(ones), p, &draw) : NULL;
    return map ? trek_rows_pick(map, mask) : mask;
}

static bool probable(const char *name, double p)
{
    if (p >= 0 && p <= 1)
        return true;
    trek_fail(TREK_ERR_ARGUMENT, "%s: p: %g; must be inside [0, 1]", name, p);
    return false;
}

/* Handles x with `batched` dimensions, or with one less. In that case `single` says that the first one is missing;
 * otherwise x is used unchanged. */
static trek_var *dropout_channels(const char *name, trek_var *x, double p, bool training, int batched, bool single)
{
    char text[TREK_SHAPE_TEXT];
    if (!probable(name, p) || !fits(name, x, 0))
        return NULL;
    trek_shape shape = trek_var_shape(x);
    if (shape.ndim != batched && shape.ndim != batched - 1)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: x: %s; must have %d or %d dimensions", name,
                              trek_shape_format(shape, text, sizeof text),
                              batched - 1, batched);
    if (!training || p == 0)
        return x;
    bool lone = single && shape.ndim < batched;
    trek_var *all = lone ? trek_unsqueeze(x, 0) : x, *mask = all ? channel_mask(all, p) : NULL;
    trek_var *y = trek_mul(all, mask);
    return lone ? trek_squeeze(y, 0) : y;
}

trek_var *trek_dropout1d(trek_var *x, double p, bool training) { return dropout_channels("dropout1d", x, p, training, 3, true); }
trek_var *trek_dropout2d(trek_var *x, double p, bool training) { return dropout_channels("dropout2d", x, p, training, 4, false); }
trek_var *trek_dropout3d(trek_var *x, double p, bool training) { return dropout_channels("dropout3d", x, p, training, 5, true); }

/* With m either 0 or 1 / (1 - p): scale (m (1 - p) (x - low) + low) + shift, where low is the value of dropped
 * elements. */
static trek_var *alpha_dropout(const char *name, trek_var *x, double p, bool training, bool channels)
{
    const double low = -1.7580993408473766, variance = (1 - p) * (1 + p * low * low), scale = p < 1 ? 1 / sqrt(variance) : 0;
    if (!probable(name, p) || !fits(name, x, channels ? 2 : 0))
        return NULL;
    if (!training || p == 0)
        return x;
    if (p == 1)
        return trek_mul_scalar(x, 0);
    trek_var *above = trek_sub_scalar(trek_rule_wide(x), low);
    trek_var *kept = channels ? trek_mul(above, channel_mask(x, p)) : trek_dropout(above, p, true);
    return trek_rule_rounded(trek_add_scalar(trek_mul_scalar(kept, (1 - p) * scale), scale * low * (1 - p)), x);
}

trek_var *trek_alpha_dropout(trek_var *x, double p, bool training)
{
    return alpha_dropout("alpha_dropout", x, p, training, false);
}

trek_var *trek_feature_alpha_dropout(trek_var *x, double p, bool training)
{
    return alpha_dropout("feature_alpha_dropout", x, p, training, true);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Positions: rotary, sinusoidal, and as biases of attention scores. */
#include <inttypes.h>
#include <math.h>

#include "autograd/ops.h"
#include "autograd/rules_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"

static trek_var *made(trek_tensor *t) { return t ? trek_var_from(t) : NULL; }

/* --- angles ---------------------------------------------------------------------------------------------- */

/* Returns position base^(-2 i / dim) for i below n, in f64, as [..., n]. It has no gradient. */
static trek_var *angles(const char *name, trek_var *positions, int64_t n, int64_t dim, double base)
{
    char text[TREK_SHAPE_TEXT];
    if (!positions)
        return trek_fail_missing(name, "positions"), NULL;
    if (!(base > 0) || isinf(base))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: base: %g; must be finite and above 0", name, base);
    if (trek_var_dtype(positions) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "%s: positions: dtype bool; must be numbers", name);
    if (trek_var_ndim(positions) == TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: positions: %s; too many dimensions", name,
                              trek_shape_format(trek_var_shape(positions), text, sizeof text));
    double *rates = trek_block_alloc((size_t)n * sizeof *rates);
    if (!rates)
        return NULL;
    for (int64_t i = 0; i < n; i++)
        rates[i] = pow(base, -2.0 * (double)i / (double)dim);
    trek_var *rate = made(trek_tensor_from_data(rates, trek_dims(n), TREK_F64, trek_var_device(positions)));
    trek_block_free(rates);
    trek_var *wide = trek_cast(trek_var_detach(positions), TREK_F64);
    return rate ? trek_mul(trek_unsqueeze(wide, -1), rate) : NULL;
}

static trek_status check_dim(const char *name, int64_t dim, int64_t least, bool even)
{
    const int64_t most = (int64_t)1 << 40; /* no memory holds more */
    if (dim >= least && dim <= most && !(even && dim % 2 != 0))
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: dim: %" PRId64 "; must be %s from %" PRId64 " on", name, dim,
                     even ? "even numbers" : "numbers", least);
}

trek_var *trek_rotary_table(trek_var *positions, int64_t dim, double base, trek_dtype dtype)
{
    if (dtype != TREK_F32 && dtype != TREK_F64)
        return trek_fail_null(TREK_ERR_DTYPE, "rotary_table: dtype: %s; must be f32 or f64", trek_dtype_name(dtype));
    if (check_dim("rotary_table", dim, 2, true) != TREK_OK)
        return NULL;
    trek_var *angle = angles("rotary_table", positions, dim / 2, dim, base);
    return trek_cast(trek_cat((trek_var *[]){ trek_cos(angle), trek_sin(angle) }, 2, -1), dtype);
}

trek_var *trek_sinusoidal_positions(trek_var *positions, int64_t dim, double base, trek_dtype dtype)
{
    if (!trek_dtype_is_float(dtype))
        return trek_fail_null(TREK_ERR_DTYPE, "sinusoidal_positions: dtype: %s; must be floating", trek_dtype_name(dtype));
    if (check_dim("sinusoidal_positions", dim, 1, false) != TREK_OK)
        return NULL;
    trek_var *angle = angles("sinusoidal_positions", positions, (dim + 1) / 2, dim, base);
    trek_var *waves = trek_flatten(trek_stack((trek_var *[]){ trek_sin(angle), trek_cos(angle) }, 2, -1), -2, -1);
    return trek_cast(trek_narrow(waves, -1, 0, dim), dtype);
}

/* --- rotary ------------------------------------------------------------------------------------------------- */

static trek_var *table_of(trek_var *x, const trek_rotary_opts *opts)
{
    char text[TREK_SHAPE_TEXT];
    int ndim = trek_var_ndim(x);
    int64_t last = trek_var_size(x, -1), dim = opts->dim ? opts->dim : last;
    if (dim > last || dim < 2 || dim % 2 != 0)
        return trek_fail_null(opts->dim ? TREK_ERR_ARGUMENT : TREK_ERR_SHAPE,
                              "rotary: .dim: %" PRId64 ", for x %s; must be even, at least 2, and at most x's last size", dim,
                              trek_shape_format(trek_var_shape(x), text, sizeof text));
    trek_var *positions = opts->positions;
    if (!positions) {
        double first = (double)opts->offset, count = ndim > 1 ? (double)trek_var_size(x, -2) : 1;
        positions = made(trek_tensor_arange(first, first + count, 1, TREK_I64, trek_var_device(x)));
        if (positions && ndim == 1)
            positions = trek_squeeze(positions, 0);
    }
    double base = opts->base ? opts->base : 10000;
    return trek_rotary_table(positions, dim, base, trek_var_dtype(x) == TREK_F64 ? TREK_F64 : TREK_F32);
}

trek_var *trek_rotary(trek_var *x, const trek_rotary_opts *given)
{
    trek_rotary_opts opts = given ? *given : (trek_rotary_opts){ 0 };
    if (!x)
        return trek_fail_missing("rotary", "input"), NULL;
    if (trek_var_ndim(x) == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "rotary: x: it is a scalar; must have dimensions");
    if (!trek_dtype_is_float(trek_var_dtype(x)))
        return trek_fail_null(TREK_ERR_DTYPE, "rotary: x: dtype %s is not supported", trek_dtype_name(trek_var_dtype(x)));
    trek_var *table = opts.table ? trek_var_detach(opts.table) : table_of(x, &opts);
    if (table && trek_dtype_is_float(trek_var_dtype(table)))
        table = trek_cast(table, trek_var_dtype(x) == TREK_F64 ? TREK_F64 : TREK_F32);
    return table ? trek_apply_rotary(x, table, opts.interleaved, false) : NULL;
}

/* --- biases of scores ------------------------------------------------------------------------------------------ */

/* Returns the slope of head h of `heads`, as in the paper's own code. */
static double slope(int64_t h, int64_t heads)
{
    int64_t below = 1;
    while (2 * below <= heads)
        below *= 2;
    if (h < below)
        return pow(2, -8.0 * (double)(h + 1) / (double)below);
    return pow(2, -8.0 * (double)(2 * (h - below) + 1) / (double)(2 * below));
}

trek_var *trek_alibi(int64_t heads, int64_t queries, int64_t keys, trek_dtype dtype, trek_device device)
{
    const int64_t most = (int64_t)1 << 40;
    if (heads < 1 || queries < 1 || keys < 1 || heads > most || queries > most || keys > most)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "alibi: heads: %" PRId64 ", queries: %" PRId64 ", keys: %" PRId64 "; must be at least 1, 0 and 0",
                              heads, queries, keys);
    if (!trek_dtype_is_float(dtype))
        return trek_fail_null(TREK_ERR_DTYPE, "alibi: dtype: %s; must be floating", trek_dtype_name(dtype));
    double *slopes = trek_block_alloc((size_t)heads * sizeof *slopes);
    if (!slopes)
        return NULL;
    for (int64_t h = 0; h < heads; h++)
        slopes[h] = -slope(h, heads);
    trek_var *each = made(trek_tensor_from_data(slopes, trek_dims(heads, 1, 1), TREK_F64, device));
    trek_block_free(slopes);
    trek_var *key = made(trek_tensor_arange(0, (double)keys, 1, TREK_F64, device));
    trek_var *query = made(trek_tensor_arange((double)(keys - queries), (double)keys, 1, TREK_F64, device));
    trek_var *distance = query ? trek_abs(trek_sub(key, trek_unsqueeze(query, -1))) : NULL;
    return each && distance ? trek_cast(trek_mul(each, distance), dtype) : NULL;
}

trek_var *trek_relative_position_bucket(trek_var *relative, bool bidirectional, int64_t buckets, int64_t max_distance)
{
    static const char name[] = "relative_position_bucket";
    int64_t side = bidirectional ? buckets / 2 : buckets, exact = side / 2;
    if (!relative)
        return trek_fail_missing(name, "input"), NULL;
    if (trek_dtype_is_float(trek_var_dtype(relative)) || trek_var_dtype(relative) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "%s: relative: dtype %s; must be an integer dtype", name,
                              trek_dtype_name(trek_var_dtype(relative)));
    if (exact < 1 || max_distance <= exact)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "%s: buckets: %" PRId64 ", max_distance: %" PRId64 "; must be at least %d, and above %" PRId64,
                              name, buckets, max_distance, bidirectional ? 4 : 2, exact);
    trek_var *wide = trek_cast(relative, TREK_F64), *zero = trek_mul_scalar(wide, 0);
    trek_var *behind = bidirectional ? trek_mul_scalar(trek_cast(trek_gt_scalar(wide, 0), TREK_F64), (double)side) : zero;
    trek_var *distance = bidirectional ? trek_abs(wide) : trek_neg(trek_minimum(wide, zero));
    /* in f32, as models were trained with it: this decides which bucket a distance between two buckets falls into */
    trek_var *share = trek_cast(trek_clamp(distance, (double)exact, INFINITY), TREK_F32);
    share = trek_div_scalar(trek_log(trek_div_scalar(share, (double)exact)), log((double)max_distance / (double)exact));
    share = trek_floor(trek_mul_scalar(share, (double)(side - exact)));
    trek_var *far = trek_clamp(trek_add_scalar(trek_cast(share, TREK_F64), (double)exact), -INFINITY, (double)(side - 1));
    return trek_cast(trek_add(trek_where(trek_lt_scalar(distance, (double)exact), distance, far), behind), TREK_I64);
}

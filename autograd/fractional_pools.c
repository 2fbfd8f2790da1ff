/* SPDX-License-Identifier: Apache-2.0 */
/* Max pools whose windows begin at random positions: a table of the windows' positions, and the largest element in
 * each. */
#include <inttypes.h>

#include "autograd/calls_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

typedef struct fractional {
    int dims;
    int64_t kernel[3], in[3], out[3];
} fractional;

/* Resolves the spatial sizes. Returns false on failure. */
static bool resolve(const char *name, const trek_var *x, const trek_fractional_pool_opts *opts, fractional *f)
{
    bool sized = opts->output_size[0] != 0, shared = opts->output_ratio[0] != 0;
    if (sized == shared)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: output_size and output_ratio: exactly one of them must be set", name), false;
    for (int d = 0; d < f->dims; d++) {
        f->kernel[d] = opts->kernel[d] ? opts->kernel[d] : d > 0 ? f->kernel[d - 1] : 0;
        f->in[d] = trek_var_size(x, 2 + d);
        double ratio =
            opts->output_ratio[d] != 0 ? opts->output_ratio[d] : opts->output_ratio[d > 1 && opts->output_ratio[1] != 0];
        if (shared && !(ratio > 0 && ratio < 1))
            return trek_fail(TREK_ERR_ARGUMENT, "%s: output_ratio: %g; must be between 0 and 1", name, ratio), false;
        f->out[d] = shared                 ? (int64_t)((double)f->in[d] * ratio)
                    : opts->output_size[d] ? opts->output_size[d]
                    : d > 0                ? f->out[d - 1]
                                           : 0;
        if (f->kernel[d] < 1 || f->out[d] < 1 || f->kernel[d] > f->in[d] || f->out[d] > f->in[d] - f->kernel[d] + 1)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "%s: %" PRId64 " windows of %" PRId64 " elements do not fit along a size of %" PRId64, name,
                             f->out[d], f->kernel[d], f->in[d]),
                   false;
    }
    return true;
}

static trek_var *count_up(const trek_var *x, int64_t n, trek_dtype dtype)
{
    trek_tensor *t = trek_tensor_arange(0, (double)n, 1, dtype, trek_var_device(x));
    return t ? trek_var_from(t) : NULL;
}

/* Returns where the windows begin along dimension d: [planes, out], from samples [planes, dims]. The last window ends
 * at the edge. */
static trek_var *starts(const fractional *f, trek_var *samples, int d)
{
    int64_t n = f->out[d], room = f->in[d] - f->kernel[d], planes = trek_var_size(samples, 0);
    trek_tensor *edge = trek_tensor_full(trek_dims(planes, 1), (double)room, TREK_I64, trek_var_device(samples));
    trek_var *last = edge ? trek_var_from(edge) : NULL;
    if (n == 1 || !last)
        return last;
    double step = (double)room / (double)(n - 1);
    trek_var *drawn = trek_narrow(samples, 1, f->dims == 2 ? 1 - d : d, 1);
    trek_var *all = trek_add(drawn, count_up(samples, n - 1, trek_var_dtype(samples)));
    trek_var *from = trek_sub(trek_floor(trek_mul_scalar(all, step)), trek_floor(trek_mul_scalar(drawn, step)));
    return trek_cat((trek_var *[]){ trek_cast(from, TREK_I64), last }, 2, 1);
}

/* Returns the positions in a plane of each window's elements: [planes, windows, elements]. */
static trek_var *windows(const fractional *f, trek_var *samples)
{
    int64_t planes = trek_var_size(samples, 0), outs = 1, elements = 1;
    trek_tensor *zero = trek_tensor_zeros(trek_dims(planes, 1, 1), TREK_I64, trek_var_device(samples));
    trek_var *places = zero ? trek_var_from(zero) : NULL;
    for (int d = 0; places && d < f->dims; d++) {
        trek_var *begin = starts(f, samples, d), *within = count_up(samples, f->kernel[d], TREK_I64);
        trek_var *along = trek_add(trek_reshape(begin, trek_dims(planes, 1, f->out[d], 1, 1)), within);
        places = trek_mul_scalar(trek_reshape(places, trek_dims(planes, outs, 1, elements, 1)), (double)f->in[d]);
        outs *= f->out[d];
        elements *= f->kernel[d];
        places = trek_reshape(trek_add(places, along), trek_dims(planes, outs, elements));
    }
    return places;
}

static trek_var *samples_of(const char *name, trek_var *x, const trek_fractional_pool_opts *opts, int dims)
{
    int64_t images = trek_var_size(x, 0), channels = trek_var_size(x, 1);
    trek_dtype dtype = trek_var_dtype(x), work = dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    char text[TREK_SHAPE_TEXT];
    trek_var *given = opts->random_samples;
    if (!given) {
        trek_tensor *drawn = trek_tensor_rand(trek_dims(images * channels, dims), work, trek_var_device(x));
        return drawn ? trek_var_from(drawn) : NULL;
    }
    if (trek_var_dtype(given) != dtype)
        return trek_fail_null(TREK_ERR_DTYPE, "%s: x and samples: dtypes %s and %s; must be equal", name, trek_dtype_name(dtype),
                              trek_dtype_name(trek_var_dtype(given)));
    if (!trek_shape_equal(trek_var_shape(given), trek_dims(images, channels, dims)))
        return trek_fail_null(TREK_ERR_SHAPE, "%s: samples: %s; must be [N, C, %d]", name,
                              trek_shape_format(trek_var_shape(given), text, sizeof text), dims);
    trek_var *wide = trek_cast(trek_var_detach(given), work);
    trek_var *fine = trek_all(trek_logical_and(trek_ge_scalar(wide, 0), trek_lt_scalar(wide, 1)), trek_dims_all(), false);
    if (!fine)
        return NULL;
    if (trek_var_item(fine) == 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: samples: one is outside [0, 1); must be inside", name);
    return trek_reshape(wide, trek_dims(images * channels, dims));
}

/* Returns the largest element of each window, and its position. */
static trek_var *largest(const fractional *f, trek_var *x, trek_var *samples, trek_var **indices)
{
    trek_shape shape = trek_var_shape(x);
    int64_t planes = shape.sizes[0] * shape.sizes[1], size = 1;
    for (int d = 0; d < f->dims; d++) {
        size *= f->in[d];
        shape.sizes[2 + d] = f->out[d];
    }
    trek_var *places = windows(f, samples), *at = NULL;
    if (!places)
        return NULL;
    int64_t outs = trek_var_size(places, 1), elements = trek_var_size(places, 2);
    trek_var *taken =
        trek_gather(trek_reshape(x, trek_dims(planes, size)), 1, trek_reshape(places, trek_dims(planes, outs * elements)));
    trek_var *most = trek_max_with_indices(trek_reshape(taken, trek_dims(planes, outs, elements)), 2, true, &at);
    if (most && indices)
        *indices = trek_reshape(trek_gather(places, 2, at), shape);
    return most && (!indices || *indices) ? trek_reshape(most, shape) : NULL;
}

static trek_var *pooled(const char *name, trek_var *x, const trek_fractional_pool_opts *opts, int dims, trek_var **indices)
{
    fractional f = { .dims = dims };
    char text[TREK_SHAPE_TEXT];
    if (indices)
        *indices = NULL;
    TREK_NEEDED(name, x);
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", name);
    if (trek_var_ndim(x) != 2 + dims)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: x: %s; must have %d dimensions", name,
                              trek_shape_format(trek_var_shape(x), text, sizeof text), 2 + dims);
    if (!trek_dtype_is_float(trek_var_dtype(x)))
        return trek_fail_null(TREK_ERR_DTYPE, "%s: x: dtype %s; must be floating", name, trek_dtype_name(trek_var_dtype(x)));
    if (!resolve(name, x, opts, &f))
        return NULL;
    const char *before = trek_op_calling(name);
    trek_var *samples = samples_of(name, x, opts, dims);
    return trek_op_called_end(before, samples ? largest(&f, x, samples, indices) : NULL);
}

trek_var *trek_fractional_max_pool2d(trek_var *x, const trek_fractional_pool_opts *opts, trek_var **indices)
{
    return pooled("fractional_max_pool2d", x, opts, 2, indices);
}
trek_var *trek_fractional_max_pool3d(trek_var *x, const trek_fractional_pool_opts *opts, trek_var **indices)
{
    return pooled("fractional_max_pool3d", x, opts, 3, indices);
}

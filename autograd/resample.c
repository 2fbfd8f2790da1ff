/* SPDX-License-Identifier: Apache-2.0 */
/* Interpolation along one dimension after the other, and sliding windows as columns. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/resample.h"

/* --- windows ------------------------------------------------------------------------------- */

static trek_status check_windows(const char *name, trek_var *x, const trek_unfold_opts *opts, int least)
{
    char text[TREK_SHAPE_TEXT];
    if (!x)
        return trek_fail_missing(name, "input");
    if (!opts || opts->kernel[0] < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: kernel: missing or 0; must be at least 1", name);
    if (trek_var_ndim(x) != least && trek_var_ndim(x) != least + 1)
        return trek_fail(TREK_ERR_SHAPE, "%s: x: %s; must have %d or %d dimensions", name,
                         trek_shape_format(trek_var_shape(x), text, sizeof text), least, least + 1);
    return TREK_OK;
}

static trek_attrs window_attrs(const trek_unfold_opts *opts)
{
    trek_conv_opts conv = { .groups = 1 };
    memcpy(conv.stride, opts->stride, sizeof opts->stride);
    memcpy(conv.padding, opts->padding, sizeof opts->padding);
    memcpy(conv.dilation, opts->dilation, sizeof opts->dilation);
    trek_attrs attrs = { .i = { 0 } };
    trek_attrs_conv(&attrs, &conv);
    attrs.i[7] = opts->kernel[0];
    attrs.i[8] = opts->kernel[1] ? opts->kernel[1] : opts->kernel[0];
    return attrs;
}

trek_var *trek_unfold(trek_var *x, const trek_unfold_opts *opts)
{
    if (check_windows("unfold", x, opts, 3) != TREK_OK)
        return NULL;
    trek_attrs attrs = window_attrs(opts);
    bool batch = trek_var_ndim(x) == 4;
    trek_var *columns = trek_apply_unfold(batch ? x : trek_unsqueeze(x, 0), &attrs, attrs.i[7], attrs.i[8]);
    return batch || !columns ? columns : trek_squeeze(columns, 0);
}

trek_var *trek_fold(trek_var *x, int64_t height, int64_t width, const trek_unfold_opts *opts)
{
    if (check_windows("fold", x, opts, 2) != TREK_OK)
        return NULL;
    if (height < 1 || width < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "fold: height and width: %" PRId64 " x %" PRId64 "; must be at least 1", height,
                              width);
    trek_attrs attrs = window_attrs(opts);
    bool batch = trek_var_ndim(x) == 3;
    trek_var *image = trek_apply_fold(batch ? x : trek_unsqueeze(x, 0), &attrs, height, width);
    return batch || !image ? image : trek_squeeze(image, 0);
}

/* --- interpolation along one dimension ---------------------------------------------------------------- */

/* From `in` elements to `out`; the numbers are those of the row that computes it. */
typedef struct resample_dim {
    int dim;
    int64_t in, out;
    double scale; /* given, or 0 */
    const trek_interpolate_opts *opts;
} resample_dim;

/* PyTorch computes the positions in f32, whatever x's dtype. */
static trek_var *nearest(trek_var *x, const resample_dim *r)
{
    bool exact = r->opts->mode == TREK_INTERPOLATE_MODE_NEAREST_EXACT;
    float step = r->scale > 0 ? (float)(1 / r->scale) : (float)r->in / (float)r->out;
    int64_t *places = trek_alloc((size_t)r->out * sizeof *places);
    if (!places)
        return NULL;
    for (int64_t o = 0; o < r->out; o++) {
        int64_t at = (int64_t)floorf((exact ? (float)o + 0.5F : (float)o) * step);
        places[o] = at < r->in ? at : r->in - 1;
    }
    trek_tensor *index = trek_tensor_from_data(places, trek_dims(r->out), TREK_I64, trek_var_device(x));
    trek_free(places);
    return index ? trek_index_select(x, r->dim, trek_var_from(index)) : NULL;
}

static trek_var *resampled(trek_var *x, const resample_dim *r)
{
    const trek_interpolate_opts *o = r->opts;
    if (o->mode <= TREK_INTERPOLATE_MODE_NEAREST_EXACT)
        return nearest(x, r);
    bool linear = o->mode == TREK_INTERPOLATE_MODE_LINEAR;
    if (r->in == r->out && (linear || o->antialias)) /* for any scale, as in PyTorch */
        return x;
    int kind = o->antialias ? (linear ? TREK_RESAMPLE_LINEAR_ANTIALIAS : TREK_RESAMPLE_CUBIC_ANTIALIAS)
                            : (linear ? TREK_RESAMPLE_LINEAR : TREK_RESAMPLE_CUBIC);
    return trek_apply_resample(x, &(trek_attrs){ .i = { r->dim, r->out, kind, o->align_corners }, .f = { r->scale } });
}

/* --- interpolation: what is asked for ------------------------------------------------------------------ */

static trek_status check_mode(trek_var *x, const trek_interpolate_opts *o)
{
    char text[TREK_SHAPE_TEXT];
    trek_shape shape = trek_var_shape(x);
    if (o->mode < TREK_INTERPOLATE_MODE_NEAREST || o->mode > TREK_INTERPOLATE_MODE_AREA)
        return trek_fail(TREK_ERR_ARGUMENT, "interpolate: .mode: %d; must be a value of trek_interpolate_mode", (int)o->mode);
    if (o->align_corners && o->mode != TREK_INTERPOLATE_MODE_LINEAR && o->mode != TREK_INTERPOLATE_MODE_CUBIC)
        return trek_fail(TREK_ERR_ARGUMENT, "interpolate: .align_corners: set; only linear and cubic modes have it");
    if (shape.ndim < 3 || shape.ndim > 5 || (o->mode == TREK_INTERPOLATE_MODE_CUBIC && shape.ndim != 4))
        return trek_fail(TREK_ERR_SHAPE, "interpolate: x: %s; must have %s", trek_shape_format(shape, text, sizeof text),
                         o->mode == TREK_INTERPOLATE_MODE_CUBIC ? "4 dimensions" : "3 to 5 dimensions");
    if (o->antialias && o->mode != TREK_INTERPOLATE_MODE_LINEAR && o->mode != TREK_INTERPOLATE_MODE_CUBIC)
        return trek_fail(TREK_ERR_ARGUMENT, "interpolate: .antialias: set; only linear and cubic modes have it");
    if (o->antialias && shape.ndim != 4)
        return trek_fail(TREK_ERR_SHAPE, "interpolate: x: %s; antialiasing needs 4 dimensions",
                         trek_shape_format(shape, text, sizeof text));
    for (int d = 1; d < shape.ndim; d++)
        if (shape.sizes[d] == 0)
            return trek_fail(TREK_ERR_SHAPE, "interpolate: x: %s; must have elements",
                             trek_shape_format(shape, text, sizeof text));
    if (o->mode > TREK_INTERPOLATE_MODE_NEAREST_EXACT && !trek_dtype_is_float(trek_var_dtype(x)))
        return trek_fail(TREK_ERR_DTYPE, "interpolate: x: dtype %s; only nearest modes take it",
                         trek_dtype_name(trek_var_dtype(x)));
    return TREK_OK;
}

/* Determines the sizes of the result and the scales that positions follow (0: they follow the sizes). */
static trek_status plan_sizes(trek_var *x, const trek_interpolate_opts *o, int64_t *sizes, double *scales)
{
    const int64_t most = (int64_t)1 << 40; /* no memory holds more */
    bool by_size = o->size[0] != 0, by_scale = o->scale[0] != 0;
    if (by_size == by_scale)
        return trek_fail(TREK_ERR_ARGUMENT, "interpolate: .size and .scale: %s",
                         by_size ? "both are set; must be one of them" : "neither is set; one must be");
    for (int d = 0; d < trek_var_ndim(x) - 2; d++) {
        int64_t size = by_size && o->size[d] ? o->size[d] : d > 0 ? sizes[d - 1] : 0;
        double scale = by_scale && o->scale[d] != 0 ? o->scale[d] : d > 0 ? scales[d - 1] : 0;
        scales[d] = scale;
        if (by_scale) {
            double wanted = floor((double)trek_var_size(x, 2 + d) * scale);
            size = wanted >= 1 && wanted <= (double)most ? (int64_t)wanted : wanted > 0 ? most + 1 : 0;
        }
        if (size < 1)
            return trek_fail(TREK_ERR_ARGUMENT, "interpolate: result: it has 0 elements along dimension %d; must have some",
                             2 + d);
        if (size > most)
            return trek_fail(TREK_ERR_MEMORY,
                             "interpolate: result: %" PRId64 " elements and more along dimension %d; must be fewer", most, 2 + d);
        sizes[d] = size;
    }
    return TREK_OK;
}

/* Averages over space; with three dimensions, the first one and then the other two. */
static trek_var *areas(trek_var *x, const int64_t *sizes)
{
    trek_shape s = trek_var_shape(x);
    if (s.ndim == 3)
        return trek_adaptive_avg_pool1d(x, sizes[0]);
    if (s.ndim == 4)
        return trek_adaptive_avg_pool2d(x, sizes[0], sizes[1]);
    int64_t plane = s.sizes[3] * s.sizes[4];
    trek_var *deep = trek_adaptive_avg_pool2d(trek_reshape(x, trek_dims(s.sizes[0], s.sizes[1], s.sizes[2], plane)), sizes[0],
                                              plane);
    deep = trek_reshape(deep, trek_dims(s.sizes[0], s.sizes[1] * sizes[0], s.sizes[3], s.sizes[4]));
    return trek_reshape(trek_adaptive_avg_pool2d(deep, sizes[1], sizes[2]),
                        trek_dims(s.sizes[0], s.sizes[1], sizes[0], sizes[1], sizes[2]));
}

trek_var *trek_interpolate(trek_var *x, const trek_interpolate_opts *opts)
{
    static const trek_interpolate_opts defaults;
    const trek_interpolate_opts *o = opts ? opts : &defaults;
    int64_t sizes[3];
    double scales[3];
    if (!x)
        return trek_fail_missing("interpolate", "input"), NULL;
    if (check_mode(x, o) != TREK_OK || plan_sizes(x, o, sizes, scales) != TREK_OK)
        return NULL;
    trek_dtype dtype = trek_var_dtype(x);
    bool exact = o->mode <= TREK_INTERPOLATE_MODE_NEAREST_EXACT, narrow = !exact && (dtype == TREK_BF16 || dtype == TREK_F16);
    trek_var *made = narrow ? trek_cast(x, TREK_F32) : x; /* rounded once, at the end */
    if (o->mode == TREK_INTERPOLATE_MODE_AREA)
        made = areas(made, sizes);
    else
        for (int d = trek_var_ndim(x) - 3; made && d >= 0; d--) /* the last dimension first, because its steps are the
                                                                 * expensive ones */
            made = resampled(made, &(resample_dim){ 2 + d, trek_var_size(x, 2 + d), sizes[d], o->recompute_scale ? 0 : scales[d],
                                                    o });
    made = narrow && made ? trek_cast(made, dtype) : made;
    return made && made->data->storage == x->data->storage ? trek_clone(made) : made;
}

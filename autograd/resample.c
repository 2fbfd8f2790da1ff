/* SPDX-License-Identifier: Apache-2.0 */
/* Interpolation along one dimension after the other: the taps of each place, weighted and summed. Windows as columns. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/memory_internal.h"

/* --- windows ------------------------------------------------------------------------------- */

static trek_status check_windows(const char *name, trek_var *x, const trek_unfold_opts *opts, int least)
{
    char text[TREK_SHAPE_TEXT];
    if (!x)
        return trek_fail_missing(name, "an input");
    if (!opts || opts->kernel[0] < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: needs a kernel of at least 1", name);
    if (trek_var_ndim(x) != least && trek_var_ndim(x) != least + 1)
        return trek_fail(TREK_ERR_SHAPE, "%s: %d or %d dimensions are needed, not %s", name, least, least + 1,
                         trek_shape_text(trek_var_shape(x), text));
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
        return trek_fail_null(TREK_ERR_ARGUMENT, "fold: a result of %" PRId64 " x %" PRId64, height, width);
    trek_attrs attrs = window_attrs(opts);
    bool batch = trek_var_ndim(x) == 3;
    trek_var *image = trek_apply_fold(batch ? x : trek_unsqueeze(x, 0), &attrs, height, width);
    return batch || !image ? image : trek_squeeze(image, 0);
}

/* --- interpolation: where a place of the result lies, and what it takes ------------------------------ */

enum { TAPS = 4 };

/* One dimension, from `in` elements to `out`. step: elements of x for one of the result; in f32 unless x is f64, as torch's. */
typedef struct resample_dim {
    int dim;
    int64_t in, out;
    double scale; /* given, or 0 */
    trek_interpolate_mode mode;
    bool align, wide;
} resample_dim;

static double rounded(const resample_dim *r, double v) { return r->wide ? v : (double)(float)v; }

static double step_of(const resample_dim *r)
{
    if (r->align)
        return r->out > 1 ? rounded(r, rounded(r, (double)(r->in - 1)) / (double)(r->out - 1)) : 0;
    return rounded(r, r->scale > 0 ? 1 / r->scale : (double)r->in / (double)r->out);
}

static int64_t within(int64_t i, int64_t n) { return i < 0 ? 0 : i < n ? i : n - 1; }

/* Keys' kernel with a = -0.75, at a distance of up to 1, and from 1 to 2. */
static double near_weight(double x) { return ((-0.75 + 2) * x - (-0.75 + 3)) * x * x + 1; }
static double far_weight(double x) { return ((-0.75 * x + 5 * 0.75) * x - 8 * 0.75) * x + 4 * 0.75; }

/* The taps of place o; returns how many there are. */
static int taps_of(const resample_dim *r, double step, int64_t o, int64_t *index, double *weight)
{
    if (r->mode <= TREK_INTERPOLATE_NEAREST_EXACT) { /* torch's places are f32 whatever x is */
        float at = (r->mode == TREK_INTERPOLATE_NEAREST ? (float)o : (float)o + 0.5F) * (float)step;
        index[0] = within((int64_t)floorf(at), r->in);
        weight[0] = 1;
        return 1;
    }
    double at = r->align ? rounded(r, step * (double)o) : rounded(r, rounded(r, step * ((double)o + 0.5)) - 0.5);
    if (r->mode == TREK_INTERPOLATE_LINEAR) {
        at = at < 0 ? 0 : at;
        index[0] = within((int64_t)at, r->in);
        index[1] = within(index[0] + 1, r->in);
        weight[1] = fmin(fmax(at - (double)index[0], 0), 1);
        weight[0] = 1 - weight[1];
        return 2;
    }
    int64_t first = floor(at) < (double)(r->in - 1) ? (int64_t)floor(at) : r->in - 1;
    double past = fmin(fmax(at - (double)first, 0), 1);
    for (int t = 0; t < TAPS; t++)
        index[t] = within(first - 1 + t, r->in);
    weight[0] = far_weight(past + 1);
    weight[1] = near_weight(past);
    weight[2] = near_weight(1 - past);
    weight[3] = far_weight(2 - past);
    return TAPS;
}

/* Tap by tap: index[t * out + o], weight[t * out + o]; returns the number of taps. */
static int fill_taps(const resample_dim *r, int64_t *index, double *weight)
{
    double step = step_of(r), weights[TAPS];
    int64_t places[TAPS];
    int count = 0;
    for (int64_t o = 0; o < r->out; o++) {
        count = taps_of(r, step, o, places, weights);
        for (int t = 0; t < count; t++) {
            index[t * r->out + o] = places[t];
            weight[t * r->out + o] = weights[t];
        }
    }
    return count;
}

/* numbers[n], f64, as a variable of a dtype that lies along dim of `ndim`. */
static trek_var *along(const double *numbers, int64_t n, trek_var *x, int dim)
{
    trek_shape shape = { .ndim = trek_var_ndim(x) };
    for (int d = 0; d < shape.ndim; d++)
        shape.sizes[d] = d == dim ? n : 1;
    trek_tensor *t = trek_tensor_from_data(numbers, shape, TREK_F64, trek_var_device(x));
    trek_var *v = t ? trek_var_from(t) : NULL;
    return v ? trek_cast(v, trek_var_dtype(x)) : NULL;
}

static trek_var *tap(trek_var *x, const resample_dim *r, const int64_t *index, const double *weight)
{
    trek_tensor *places = trek_tensor_from_data(index, trek_dims(r->out), TREK_I64, trek_var_device(x));
    trek_var *taken = places ? trek_index_select(x, trek_var_from(places), r->dim) : NULL;
    if (!taken || r->mode <= TREK_INTERPOLATE_NEAREST_EXACT)
        return taken;
    return trek_mul(taken, along(weight, r->out, x, r->dim));
}

static trek_var *resampled(trek_var *x, const resample_dim *r)
{
    int64_t *index = trek_alloc((size_t)r->out * TAPS * sizeof *index);
    double *weight = trek_alloc((size_t)r->out * TAPS * sizeof *weight);
    trek_var *sum = NULL;
    if (index && weight) {
        int count = fill_taps(r, index, weight);
        sum = tap(x, r, index, weight);
        for (int t = 1; sum && t < count; t++)
            sum = trek_add(sum, tap(x, r, index + t * r->out, weight + t * r->out));
    }
    trek_free(index);
    trek_free(weight);
    return sum;
}

/* --- interpolation: what is asked for ------------------------------------------------------------------ */

static trek_status check_mode(trek_var *x, const trek_interpolate_opts *o)
{
    char text[TREK_SHAPE_TEXT];
    trek_shape shape = trek_var_shape(x);
    if (o->mode < TREK_INTERPOLATE_NEAREST || o->mode > TREK_INTERPOLATE_AREA)
        return trek_fail(TREK_ERR_ARGUMENT, "interpolate: %d is no mode", (int)o->mode);
    if (o->align_corners && o->mode != TREK_INTERPOLATE_LINEAR && o->mode != TREK_INTERPOLATE_CUBIC)
        return trek_fail(TREK_ERR_ARGUMENT, "interpolate: corners are aligned by linear and cubic modes alone");
    if (shape.ndim < 3 || shape.ndim > 5 || (o->mode == TREK_INTERPOLATE_CUBIC && shape.ndim != 4))
        return trek_fail(TREK_ERR_SHAPE, "interpolate: %s are needed, not %s",
                         o->mode == TREK_INTERPOLATE_CUBIC ? "4 dimensions" : "3 to 5 dimensions", trek_shape_text(shape, text));
    for (int d = 1; d < shape.ndim; d++)
        if (shape.sizes[d] == 0)
            return trek_fail(TREK_ERR_SHAPE, "interpolate: no elements in %s", trek_shape_text(shape, text));
    if (o->mode > TREK_INTERPOLATE_NEAREST_EXACT && !trek_dtype_is_float(trek_var_dtype(x)))
        return trek_fail(TREK_ERR_DTYPE, "interpolate: %s, which only nearest modes take", trek_dtype_name(trek_var_dtype(x)));
    return TREK_OK;
}

/* The sizes of the result and the scales that places follow (0: the sizes). */
static trek_status plan_sizes(trek_var *x, const trek_interpolate_opts *o, int64_t *sizes, double *scales)
{
    const int64_t most = (int64_t)1 << 40; /* no memory holds more */
    bool by_size = o->size[0] != 0, by_scale = o->scale[0] != 0;
    if (by_size == by_scale)
        return trek_fail(TREK_ERR_ARGUMENT, "interpolate: %s", by_size ? "a size and a scale" : "needs a size or a scale");
    for (int d = 0; d < trek_var_ndim(x) - 2; d++) {
        int64_t size = by_size && o->size[d] ? o->size[d] : d > 0 ? sizes[d - 1] : 0;
        double scale = by_scale && o->scale[d] != 0 ? o->scale[d] : d > 0 ? scales[d - 1] : 0;
        scales[d] = scale;
        if (by_scale) {
            double wanted = floor((double)trek_var_size(x, 2 + d) * scale);
            size = wanted >= 1 && wanted <= (double)most ? (int64_t)wanted : wanted > 0 ? most + 1 : 0;
        }
        if (size < 1)
            return trek_fail(TREK_ERR_ARGUMENT, "interpolate: a result without elements along dimension %d", 2 + d);
        if (size > most)
            return trek_fail(TREK_ERR_MEMORY, "interpolate: a result of %" PRId64 " elements and more along dimension %d", most,
                             2 + d);
        sizes[d] = size;
    }
    return TREK_OK;
}

/* Means over space: of three dimensions the first, then the other two. */
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
        return trek_fail_missing("interpolate", "an input"), NULL;
    if (check_mode(x, o) != TREK_OK || plan_sizes(x, o, sizes, scales) != TREK_OK)
        return NULL;
    trek_dtype dtype = trek_var_dtype(x);
    bool exact = o->mode <= TREK_INTERPOLATE_NEAREST_EXACT, narrow = !exact && (dtype == TREK_BF16 || dtype == TREK_F16);
    trek_var *made = narrow ? trek_cast(x, TREK_F32) : x; /* rounded once, at the end */
    if (o->mode == TREK_INTERPOLATE_AREA)
        made = areas(made, sizes);
    else
        for (int d = trek_var_ndim(x) - 3; made && d >= 0; d--) { /* the last one first: its steps are the dear ones */
            resample_dim r = { 2 + d, trek_var_size(x, 2 + d), sizes[d], o->recompute_scale ? 0 : scales[d],
                               o->mode, o->align_corners, !exact && dtype == TREK_F64 };
            if (r.mode != TREK_INTERPOLATE_LINEAR || r.in != r.out)
                made = resampled(made, &r);
        }
    made = narrow && made ? trek_cast(made, dtype) : made;
    return made && made->data->storage == x->data->storage ? trek_clone(made) : made;
}

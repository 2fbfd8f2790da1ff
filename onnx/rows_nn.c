/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling, resampling, normalisation and rotary positions. */
#include <math.h>

#include "onnx/onnx_internal.h"
#include "tensor/op_opts.h"
#include "tensor/resample.h"

static trek_dtype in_dtype(const trek_onnx *x) { return trek_onnx_in_seen(x, 0)->dtype; }

/* --- pooling ----------------------------------------------------------------------------------- */

static void window(trek_onnx *x, int64_t kernel_h, int64_t kernel_w, int64_t stride_h, int64_t stride_w, int64_t pad_h,
                   int64_t pad_w)
{
    trek_onnx_attr_ints(x, "kernel_shape", 2, (const int64_t[]){ kernel_h, kernel_w });
    trek_onnx_attr_ints(x, "strides", 2, (const int64_t[]){ stride_h, stride_w });
    trek_onnx_attr_ints(x, "pads", 4, (const int64_t[]){ pad_h, pad_w, pad_h, pad_w });
}

/* ONNX's indices count through the whole tensor, trek's within their plane. */
static const char *places_in_plane(trek_onnx *x, const char *places)
{
    const char *area = trek_onnx_2(x, "Mul", trek_onnx_dim_of(x, trek_onnx_in(x, 0), 2),
                                   trek_onnx_dim_of(x, trek_onnx_in(x, 0), 3));
    return trek_onnx_2(x, "Mod", places, area);
}

/* Returns how far the last window of a result reaches beyond the padding. This happens with ceil_mode, which runtimes
 * implement differently. */
static int64_t reached(trek_onnx *x, int d, int64_t kernel, int64_t stride, int64_t dilation, int64_t padding)
{
    int64_t steps = trek_onnx_out_seen(x, 0)->sizes[d] - 1, in = trek_onnx_fixed(x, 0, d);
    int64_t over = steps * stride + dilation * (kernel - 1) + 1 - in - 2 * padding;
    return over > 0 ? over : 0;
}

/* If no window can begin behind the input, ceil_mode is the same everywhere, and no fixed size is needed. */
static bool same_ceil(const int64_t *n, int d) { return n[2 + d] <= n[6 + d] * (n[d] - 1) + 1 - n[4 + d]; }

static const char *padded_with_lowest(trek_onnx *x, const char *a, const int64_t *over)
{
    if (!trek_dtype_is_float(in_dtype(x)))
        trek_onnx_refuse(x, "ceil_mode and padding of integers");
    return trek_onnx_3(x, "Pad", a, trek_onnx_ints(x, 8, (const int64_t[]){ 0, 0, 0, 0, 0, 0, over[0], over[1] }),
                       trek_onnx_scalar(x, in_dtype(x), -INFINITY));
}

static void max_pool(trek_onnx *x, const char **outs)
{
    int64_t n[9], over[2] = { 0 };
    for (int k = 0; k < 9; k++)
        n[k] = trek_onnx_i(x, k);
    bool by_mode = n[8] && same_ceil(n, 0) && same_ceil(n, 1);
    const char *a = trek_onnx_in(x, 0);
    for (int d = 0; n[8] && !by_mode && d < 2; d++)
        over[d] = reached(x, 2 + d, n[d], n[2 + d], n[6 + d], n[4 + d]);
    if (n[4] + over[0] >= n[0] || n[5] + over[1] >= n[1]) { /* more padding than runtimes accept: adds rows and columns of the
                                                             * lowest value */
        if (trek_onnx_wanted(x, 1))
            trek_onnx_refuse(x, "places with ceil_mode, dilation and padding");
        a = padded_with_lowest(x, a, over);
        over[0] = over[1] = 0;
    }
    outs[0] = trek_onnx_1(x, "MaxPool", a);
    trek_onnx_attr_ints(x, "kernel_shape", 2, n);
    trek_onnx_attr_ints(x, "strides", 2, n + 2);
    trek_onnx_attr_ints(x, "pads", 4, (const int64_t[]){ n[4], n[5], n[4] + over[0], n[5] + over[1] });
    trek_onnx_attr_ints(x, "dilations", 2, n + 6);
    trek_onnx_attr_int(x, "ceil_mode", by_mode);
    if (trek_onnx_wanted(x, 1))
        outs[1] = places_in_plane(x, trek_onnx_more(x));
}

/* What ceil_mode reaches beyond the padding never counts. It is written as padding. */
static void avg_pool(trek_onnx *x, const char **outs)
{
    int64_t n[10];
    for (int k = 0; k < 10; k++)
        n[k] = trek_onnx_i(x, k);
    bool ceil_mode = n[8] != 0, counts = n[9] != 0;
    int64_t over_h = ceil_mode ? reached(x, 2, n[0], n[2], 1, n[4]) : 0,
        over_w = ceil_mode ? reached(x, 3, n[1], n[3], 1, n[5]) : 0;
    const char *a = trek_onnx_in(x, 0);
    double divisor = trek_onnx_f(x, 0);
    counts = counts || divisor != 0; /* a custom divisor is derived from the kernel's */
    bool padded = divisor != 0 || (counts && (over_h > 0 || over_w > 0));
    outs[0] = trek_onnx_1(x, "AveragePool", a);
    trek_onnx_attr_ints(x, "kernel_shape", 2, n);
    trek_onnx_attr_ints(x, "strides", 2, n + 2);
    trek_onnx_attr_ints(x, "pads", 4, (const int64_t[]){ n[4], n[5], n[4] + over_h, n[5] + over_w });
    trek_onnx_attr_int(x, "count_include_pad", counts);
    if (!padded)
        return;
    /* divided by the kernel, of which only what lies within the padding counts: k / count */
    int64_t h = trek_onnx_fixed(x, 0, 2) + 2 * n[4], w = trek_onnx_fixed(x, 0, 3) + 2 * n[5];
    const trek_onnx_value *out = trek_onnx_out_seen(x, 0);
    float *factors = trek_onnx_alloc(x, (size_t)(out->sizes[2] * out->sizes[3]) * sizeof *factors);
    for (int64_t i = 0; factors && i < out->sizes[2]; i++)
        for (int64_t j = 0; j < out->sizes[3]; j++) {
            int64_t rows = h - i * n[2] < n[0] ? h - i * n[2] : n[0], columns = w - j * n[3] < n[1] ? w - j * n[3] : n[1];
            factors[i * out->sizes[3] + j] = (float)((double)(n[0] * n[1]) / (divisor != 0 ? divisor : (double)(rows * columns)));
        }
    trek_tensor *plain = factors ? trek_tensor_from_data(factors, trek_dims(1, 1, out->sizes[2], out->sizes[3]), TREK_F32,
                                                         trek_cpu(0))
                                 : NULL;
    trek_tensor *table = plain ? trek_tensor_cast(plain, in_dtype(x)) : NULL;
    if (table)
        outs[0] = trek_onnx_2(x, "Mul", outs[0], trek_onnx_constant(x, NULL, table));
    trek_tensor_release(table);
    trek_tensor_release(plain);
}

/* Returns [out, in], where each row averages its window. */
static const char *means(trek_onnx *x, int64_t in, int64_t out, bool turned)
{
    float *table = trek_onnx_alloc(x, (size_t)(in * out) * sizeof *table);
    for (int64_t o = 0; table && o < out; o++) {
        int64_t from = o * in / out, to = ((o + 1) * in + out - 1) / out;
        for (int64_t k = from; k < to; k++)
            table[turned ? k * out + o : o * in + k] = (float)(1.0 / (double)(to - from));
    }
    trek_tensor *plain = table ? trek_tensor_from_data(table, turned ? trek_dims(in, out) : trek_dims(out, in), TREK_F32,
                                                       trek_cpu(0))
                               : NULL;
    trek_tensor *cast = plain ? trek_tensor_cast(plain, in_dtype(x)) : NULL;
    const char *name = cast ? trek_onnx_constant(x, NULL, cast) : "";
    trek_tensor_release(cast);
    trek_tensor_release(plain);
    return name;
}

/* For a single window: a mean over the plane, whatever its size. For windows of equal size: a pool. Otherwise:
 * products with tables. */
static void adaptive_avg_pool(trek_onnx *x, const char **outs)
{
    int64_t h = trek_onnx_i(x, 0), w = trek_onnx_i(x, 1);
    const char *a = trek_onnx_in(x, 0);
    if (h == 1 && w == 1) {
        outs[0] = trek_onnx_1(x, "GlobalAveragePool", a);
        return;
    }
    int64_t in_h = trek_onnx_fixed(x, 0, 2), in_w = trek_onnx_fixed(x, 0, 3);
    if (in_h % h == 0 && in_w % w == 0) {
        outs[0] = trek_onnx_1(x, "AveragePool", a);
        window(x, in_h / h, in_w / w, in_h / h, in_w / w, 0, 0);
        return;
    }
    if (w != in_w)
        a = trek_onnx_2(x, "MatMul", a, means(x, in_w, w, true));
    outs[0] = h != in_h ? trek_onnx_2(x, "MatMul", means(x, in_h, h, false), a) : a;
}

/* Windows of several sizes become rows and columns of slices. */
static const char *extremes_along(trek_onnx *x, const char *a, int64_t in, int64_t out, int d)
{
    const char **parts = trek_onnx_alloc(x, (size_t)out * sizeof *parts);
    for (int64_t o = 0; parts && o < out; o++)
        parts[o] = trek_onnx_reduced(x, "ReduceMax",
                                     trek_onnx_sliced(x, a, o * in / out, ((o + 1) * in + out - 1) / out, d, 1), (int64_t)1 << d,
                                     true);
    const char *all = parts ? trek_onnx_node(x, "Concat", (int)out, parts) : "";
    trek_onnx_attr_int(x, "axis", d);
    return all;
}

static void adaptive_max_pool(trek_onnx *x, const char **outs)
{
    int64_t h = trek_onnx_i(x, 0), w = trek_onnx_i(x, 1);
    const char *a = trek_onnx_in(x, 0);
    if (h == 1 && w == 1 && !trek_onnx_wanted(x, 1)) {
        outs[0] = trek_onnx_1(x, "GlobalMaxPool", a);
        return;
    }
    int64_t in_h = trek_onnx_fixed(x, 0, 2), in_w = trek_onnx_fixed(x, 0, 3);
    if (in_h % h == 0 && in_w % w == 0) {
        outs[0] = trek_onnx_1(x, "MaxPool", a);
        window(x, in_h / h, in_w / w, in_h / h, in_w / w, 0, 0);
        if (trek_onnx_wanted(x, 1))
            outs[1] = places_in_plane(x, trek_onnx_more(x));
        return;
    }
    if (trek_onnx_wanted(x, 1))
        trek_onnx_refuse(x, "places of windows of several sizes");
    outs[0] = extremes_along(x, extremes_along(x, a, in_w, w, 3), in_h, h, 2);
}

/* --- resampling ------------------------------------------------------------------------------------ */

/* Kernels that grow with the step become a table of their weights, because runtimes support them in two dimensions at
 * once, if at all. */
static void resample_by_table(trek_onnx *x, const char **outs)
{
    int dim = (int)trek_onnx_i(x, 0), ndim = trek_onnx_in_seen(x, 0)->ndim;
    int64_t in = trek_onnx_fixed(x, 0, dim), out = trek_onnx_out_seen(x, 0)->sizes[dim];
    trek_resample_plan plan = trek_resample_planned(in, out, (int)trek_onnx_i(x, 2), trek_onnx_i(x, 3) != 0,
                                                    in_dtype(x) == TREK_F64, trek_onnx_f(x, 0));
    bool last = dim == ndim - 1;
    double *table = trek_onnx_alloc(x, (size_t)(in * out) * sizeof *table);
    for (int64_t o = 0; table && o < out; o++) {
        trek_resample_window w = trek_resample_window_of(&plan, o);
        for (int k = 0; k < w.count; k++) {
            int64_t at = trek_resample_place(&plan, &w, k);
            table[last ? at * out + o : o * in + at] += trek_resample_weight(&plan, &w, k);
        }
    }
    trek_tensor *wide = table ? trek_tensor_from_data(table, last ? trek_dims(in, out) : trek_dims(out, in), TREK_F64,
                                                      trek_cpu(0)) : NULL;
    trek_tensor *cast = wide ? trek_tensor_cast(wide, in_dtype(x)) : NULL;
    const char *weights = cast ? trek_onnx_constant(x, NULL, cast) : "";
    trek_tensor_release(cast);
    trek_tensor_release(wide);
    outs[0] = last ? trek_onnx_2(x, "MatMul", trek_onnx_in(x, 0), weights)
        : trek_onnx_2(x, "MatMul", weights, trek_onnx_in(x, 0));
}

/* Returns a scale for each dimension. */
static const char *scales_of(trek_onnx *x, int64_t dim, int ndim, double scale)
{
    float factors[TREK_MAX_DIMS];
    for (int d = 0; d < ndim; d++)
        factors[d] = d == dim ? (float)scale : 1;
    trek_tensor *t = trek_tensor_from_data(factors, trek_dims(ndim), TREK_F32, trek_cpu(0));
    const char *name = t ? trek_onnx_constant(x, NULL, t) : "";
    trek_tensor_release(t);
    return name;
}

static const char *output_shape(trek_onnx *x)
{
    int64_t sizes[TREK_MAX_DIMS][TREK_ONNX_RUNS];
    int ndim = trek_onnx_out_seen(x, 0)->ndim, out = trek_onnx_at(x, 0)->outputs[0];
    for (int d = 0; d < ndim; d++)
        for (int r = 0; r < x->n_runs; r++)
            sizes[d][r] = trek_onnx_seen(x, r, out)->sizes[d];
    return trek_onnx_shape(x, ndim, sizes);
}

static void resample(trek_onnx *x, const char **outs)
{
    int64_t dim = trek_onnx_i(x, 0), kind = trek_onnx_i(x, 2), align = trek_onnx_i(x, 3);
    double scale = trek_onnx_f(x, 0);
    int ndim = trek_onnx_in_seen(x, 0)->ndim;
    if (kind != TREK_RESAMPLE_LINEAR && kind != TREK_RESAMPLE_CUBIC) {
        if (dim >= ndim - 2)
            resample_by_table(x, outs);
        else
            trek_onnx_refuse(x, "antialias of a dimension before the last two");
        return;
    }
    bool by_scale = scale > 0 && !align;
    outs[0] = trek_onnx_node(x, "Resize", 4, (const char *[]){ trek_onnx_in(x, 0), NULL,
                                                               by_scale ? scales_of(x, dim, ndim, scale) : NULL,
                                                               by_scale ? NULL : output_shape(x) });
    trek_onnx_attr_string(x, "mode", kind == TREK_RESAMPLE_CUBIC ? "cubic" : "linear");
    trek_onnx_attr_string(x, "coordinate_transformation_mode", align ? "align_corners" : "half_pixel");
    if (kind == TREK_RESAMPLE_CUBIC)
        trek_onnx_attr_float(x, "cubic_coeff_a", -0.75);
}

static void grid_sample(trek_onnx *x, const char **outs)
{
    static const char *const early[] = { "bilinear", "nearest", "bicubic" }, *const late[] = { "linear", "nearest", "cubic" };
    static const char *const paddings[] = { "zeros", "border", "reflection" };
    if (x->opset < 20 && trek_onnx_in_seen(x, 0)->ndim > 4)
        trek_onnx_refuse(x, "in three dimensions it exists from opset 20 on");
    outs[0] = trek_onnx_2(x, "GridSample", trek_onnx_in(x, 0), trek_onnx_in(x, 1));
    trek_onnx_attr_string(x, "mode", (x->opset < 20 ? early : late)[trek_onnx_i(x, 0)]);
    trek_onnx_attr_string(x, "padding_mode", paddings[trek_onnx_i(x, 1)]);
    trek_onnx_attr_int(x, "align_corners", trek_onnx_i(x, 2) != 0);
}

/* --- normalisation ----------------------------------------------------------------------------------- */

/* Returns weight k, or ones in the shape of the last n sizes. */
static const char *weight_or_ones(trek_onnx *x, int k, int64_t n)
{
    int64_t sizes[TREK_MAX_DIMS];
    int ndim = trek_onnx_in_seen(x, 0)->ndim;
    if (trek_onnx_has(x, k))
        return trek_onnx_in(x, k);
    for (int d = 0; d < n; d++)
        sizes[d] = trek_onnx_fixed(x, 0, ndim - (int)n + d);
    return trek_onnx_full(x, in_dtype(x), 1, (int)n, sizes);
}

static const char *layer_normed(trek_onnx *x, const char *a, int weight)
{
    int64_t n = trek_onnx_i(x, 0);
    const char *y = trek_onnx_3(x, "LayerNormalization", a, weight_or_ones(x, weight, n), trek_onnx_in(x, weight + 1));
    trek_onnx_attr_int(x, "axis", -n);
    trek_onnx_attr_float(x, "epsilon", trek_onnx_f(x, 0));
    return y;
}

static bool only_results(trek_onnx *x, int first)
{
    for (int k = first; k < TREK_MAX_OUTPUTS; k++)
        if (trek_onnx_wanted(x, k)) {
            trek_onnx_refuse(x, "its result %d has no counterpart", k);
            return false;
        }
    return true;
}

static void layer_norm(trek_onnx *x, const char **outs)
{
    if (only_results(x, 1))
        outs[0] = layer_normed(x, trek_onnx_in(x, 0), 1);
}

static void add_layer_norm(trek_onnx *x, const char **outs)
{
    if (!only_results(x, 2))
        return;
    outs[1] = trek_onnx_2(x, "Add", trek_onnx_in(x, 0), trek_onnx_in(x, 1));
    outs[0] = layer_normed(x, outs[1], 2);
}

static void rms_norm(trek_onnx *x, const char **outs)
{
    trek_dtype dtype = in_dtype(x), as = trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype;
    int ndim = trek_onnx_in_seen(x, 0)->ndim;
    int64_t n = trek_onnx_i(x, 0), mask = 0;
    if (!only_results(x, 1))
        return;
    for (int d = ndim - (int)n; d < ndim; d++)
        mask |= (int64_t)1 << d;
    const char *a = trek_onnx_cast(x, trek_onnx_in(x, 0), dtype, as);
    const char *mean = trek_onnx_reduced(x, "ReduceMean", trek_onnx_2(x, "Mul", a, a), mask, true);
    mean = trek_onnx_2(x, "Add", mean, trek_onnx_scalar(x, as, trek_onnx_f(x, 0)));
    const char *y = trek_onnx_2(x, "Mul", a, trek_onnx_1(x, "Reciprocal", trek_onnx_1(x, "Sqrt", mean)));
    if (trek_onnx_has(x, 1))
        y = trek_onnx_2(x, "Mul", y, trek_onnx_cast(x, trek_onnx_in(x, 1), trek_onnx_in_seen(x, 1)->dtype, as));
    outs[0] = trek_onnx_cast(x, y, as, dtype);
}

/* Reshapes [C] to [C, 1, ...] for use with [N, C, ...]. */
static const char *channels(trek_onnx *x, int k)
{
    int64_t shape[TREK_MAX_DIMS] = { -1, 1, 1, 1, 1, 1, 1, 1 };
    return trek_onnx_2(x, "Reshape", trek_onnx_in(x, k), trek_onnx_ints(x, trek_onnx_in_seen(x, 0)->ndim - 1, shape));
}

static const char *scaled(trek_onnx *x, const char *a, int weight)
{
    if (trek_onnx_has(x, weight))
        a = trek_onnx_2(x, "Mul", a, channels(x, weight));
    return trek_onnx_has(x, weight + 1) ? trek_onnx_2(x, "Add", a, channels(x, weight + 1)) : a;
}

/* Uses the batch's own statistics if none were kept. */
static void batch_norm(trek_onnx *x, const char **outs)
{
    trek_dtype dtype = in_dtype(x);
    double eps = trek_onnx_f(x, 1);
    if (!only_results(x, 1))
        return;
    if (trek_onnx_has(x, 3) && !trek_onnx_i(x, 0)) {
        int64_t c = trek_onnx_fixed(x, 0, 1);
        trek_dtype stats = trek_onnx_in_seen(x, 3)->dtype, weights = trek_onnx_has(x, 1) ? trek_onnx_in_seen(x, 1)->dtype : stats;
        const char *weight = trek_onnx_has(x, 1) ? trek_onnx_in(x, 1) : trek_onnx_full(x, weights, 1, 1, &c);
        const char *bias = trek_onnx_has(x, 2) ? trek_onnx_in(x, 2) : trek_onnx_full(x, weights, 0, 1, &c);
        outs[0] = trek_onnx_node(x, "BatchNormalization", 5,
                                 (const char *[]){ trek_onnx_in(x, 0), weight, bias, trek_onnx_in(x, 3),
                                                                               trek_onnx_in(x, 4) });
        trek_onnx_attr_float(x, "epsilon", eps);
        return;
    }
    int64_t mask = ((int64_t)1 << trek_onnx_in_seen(x, 0)->ndim) - 1 - 2;
    const char *a = trek_onnx_in(x, 0), *away = trek_onnx_2(x, "Sub", a, trek_onnx_reduced(x, "ReduceMean", a, mask, true));
    const char *variance = trek_onnx_reduced(x, "ReduceMean", trek_onnx_2(x, "Mul", away, away), mask, true);
    variance = trek_onnx_2(x, "Add", variance, trek_onnx_scalar(x, dtype, eps));
    outs[0] = scaled(x, trek_onnx_2(x, "Div", away, trek_onnx_1(x, "Sqrt", variance)), 1);
}

/* Writes groups as the channels of an instance norm. */
static void group_norm(trek_onnx *x, const char **outs)
{
    int64_t groups = trek_onnx_i(x, 0);
    trek_dtype dtype = in_dtype(x);
    if (!only_results(x, 1))
        return;
    const char *a = trek_onnx_2(x, "Reshape", trek_onnx_in(x, 0), trek_onnx_ints(x, 3, (const int64_t[]){ 0, groups, -1 }));
    a = trek_onnx_3(x, "InstanceNormalization", a, trek_onnx_full(x, dtype, 1, 1, &groups),
                    trek_onnx_full(x, dtype, 0, 1, &groups));
    trek_onnx_attr_float(x, "epsilon", trek_onnx_f(x, 0));
    outs[0] = scaled(x, trek_onnx_2(x, "Reshape", a, trek_onnx_1(x, "Shape", trek_onnx_in(x, 0))), 1);
}

/* --- rotary positions -------------------------------------------------------------------------------- */

static void rotary(trek_onnx *x, const char **outs)
{
    const trek_onnx_value *in = trek_onnx_in_seen(x, 0), *table = trek_onnx_in_seen(x, 1);
    int last = in->ndim - 1, at = table->ndim - 1;
    int64_t turned = trek_onnx_fixed(x, 1, at), half = turned / 2, width = trek_onnx_fixed(x, 0, last);
    bool neighbours = trek_onnx_i(x, 0) != 0, back = trek_onnx_i(x, 1) != 0;
    const char *a = trek_onnx_cast(x, trek_onnx_in(x, 0), in->dtype, table->dtype), *t = trek_onnx_in(x, 1);
    const char *cosine = trek_onnx_sliced(x, t, 0, half, at, 1), *sine = trek_onnx_sliced(x, t, half, turned, at, 1);
    sine = back ? trek_onnx_1(x, "Neg", sine) : sine;
    const char *first = neighbours ? trek_onnx_sliced(x, a, 0, turned, last, 2) : trek_onnx_sliced(x, a, 0, half, last, 1);
    const char *second = neighbours ? trek_onnx_sliced(x, a, 1, turned, last, 2) : trek_onnx_sliced(x, a, half, turned, last, 1);
    const char *parts[3] = {
        trek_onnx_2(x, "Sub", trek_onnx_2(x, "Mul", first, cosine), trek_onnx_2(x, "Mul", second, sine)),
        trek_onnx_2(x, "Add", trek_onnx_2(x, "Mul", second, cosine), trek_onnx_2(x, "Mul", first, sine)),
    };
    int n = 2;
    if (neighbours) { /* pairs are neighbours */
        int64_t shape[TREK_MAX_DIMS] = { 0 };
        for (int k = 0; k < 2; k++)
            parts[k] = trek_onnx_2(x, "Unsqueeze", parts[k], trek_onnx_int(x, -1));
        parts[0] = trek_onnx_node(x, "Concat", 2, parts);
        trek_onnx_attr_int(x, "axis", -1);
        shape[last] = turned;
        parts[0] = trek_onnx_2(x, "Reshape", parts[0], trek_onnx_ints(x, in->ndim, shape));
        n = 1;
    }
    if (turned < width)
        parts[n++] = trek_onnx_sliced(x, a, turned, width, last, 1);
    if (n > 1) {
        parts[0] = trek_onnx_node(x, "Concat", n, parts);
        trek_onnx_attr_int(x, "axis", -1);
    }
    outs[0] = trek_onnx_cast(x, parts[0], table->dtype, in->dtype);
}

const trek_onnx_row trek_onnx_rows_nn[] = {
    { TREK_OP_max_pool2d, max_pool, NULL }, { TREK_OP_avg_pool2d, avg_pool, NULL },
    { TREK_OP_adaptive_avg_pool2d, adaptive_avg_pool, NULL }, { TREK_OP_adaptive_max_pool2d, adaptive_max_pool, NULL },
    { TREK_OP_resample, resample, NULL }, { TREK_OP_grid_sample, grid_sample, NULL }, { TREK_OP_layer_norm, layer_norm, NULL },
    { TREK_OP_add_layer_norm, add_layer_norm, NULL }, { TREK_OP_rms_norm, rms_norm, NULL },
    { TREK_OP_batch_norm, batch_norm, NULL }, { TREK_OP_group_norm, group_norm, NULL }, { TREK_OP_rotary, rotary, NULL },
    { 0, NULL, NULL },
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that reduce, that work along a dimension, and that sort. */
#include "onnx/onnx_internal.h"

static trek_dtype in_dtype(const trek_onnx *x) { return trek_onnx_in_seen(x, 0)->dtype; }

/* Axes are an input from opset 18 on, and for sums from 13 on. */
const char *trek_onnx_reduced(trek_onnx *x, const char *type, const char *a, int64_t mask, bool keepdim)
{
    int64_t axes[TREK_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < TREK_MAX_DIMS; d++)
        if (mask >> d & 1)
            axes[n++] = d;
    if (n == 0)
        return trek_onnx_1(x, "Identity", a);
    bool by_input = x->opset >= 18 || (type[6] == 'S' && type[9] == '\0'); /* ReduceSum */
    const char *y = trek_onnx_2(x, type, a, by_input ? trek_onnx_ints(x, n, axes) : NULL);
    if (!by_input)
        trek_onnx_attr_ints(x, "axes", n, axes);
    trek_onnx_attr_int(x, "keepdims", keepdim);
    return y;
}

static const char *reduction(trek_onnx *x, const char *type, const char *a)
{
    trek_dtype to = trek_onnx_out_seen(x, 0)->dtype, as = to == TREK_BOOL ? TREK_I32 : to; /* extremes of bools */
    a = trek_onnx_cast(x, a, in_dtype(x), as);
    return trek_onnx_cast(x, trek_onnx_reduced(x, type, a, trek_onnx_i(x, 0), trek_onnx_i(x, 9) != 0), as, to);
}

static void reduce(trek_onnx *x, const char **outs) { outs[0] = reduction(x, x->type, trek_onnx_in(x, 0)); }

static void nansum(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    a = trek_onnx_3(x, "Where", trek_onnx_1(x, "IsNaN", a), trek_onnx_scalar(x, in_dtype(x), 0), a);
    outs[0] = reduction(x, "ReduceSum", a);
}

static void any_all(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_cast(x, trek_onnx_cast(x, trek_onnx_in(x, 0), in_dtype(x), TREK_BOOL), TREK_BOOL, TREK_I32);
    outs[0] = trek_onnx_cast(x, trek_onnx_reduced(x, x->type, a, trek_onnx_i(x, 0), trek_onnx_i(x, 9) != 0), TREK_I32, TREK_BOOL);
}

static void place_of_extreme(trek_onnx *x, const char **outs)
{
    const trek_onnx_value *in = trek_onnx_in_seen(x, 0), *out = trek_onnx_out_seen(x, 0);
    const char *a = trek_onnx_in(x, 0);
    int64_t mask = trek_onnx_i(x, 0), dim = 0;
    bool keepdim = trek_onnx_i(x, 9) != 0, whole = in->ndim != 1 && mask == ((int64_t)1 << in->ndim) - 1;
    if (whole)
        a = trek_onnx_2(x, "Reshape", a, trek_onnx_int(x, -1));
    while (!whole && !(mask >> dim & 1))
        dim++;
    outs[0] = trek_onnx_1(x, x->type, a);
    trek_onnx_attr_int(x, "axis", dim);
    trek_onnx_attr_int(x, "keepdims", whole ? 0 : keepdim);
    int64_t ones[TREK_MAX_DIMS] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    if (whole && keepdim)
        outs[0] = trek_onnx_2(x, "Reshape", outs[0], trek_onnx_ints(x, out->ndim, ones));
}

/* Returns the number of elements reduced to one, as a number of the dtype. */
static const char *count_of(trek_onnx *x, int64_t mask, trek_dtype dtype, double minus)
{
    const char *open = NULL;
    double fixed = 1;
    for (int d = 0; d < trek_onnx_in_seen(x, 0)->ndim; d++) {
        int64_t sizes[TREK_ONNX_RUNS];
        if (!(mask >> d & 1))
            continue;
        if (trek_onnx_sizes(x, 0, d, sizes)) {
            fixed *= (double)sizes[0];
            continue;
        }
        const char *size = trek_onnx_dim_of(x, trek_onnx_in(x, 0), d);
        open = open ? trek_onnx_2(x, "Mul", open, size) : size;
    }
    if (!open)
        return trek_onnx_scalar(x, dtype, fixed - minus > 0 ? fixed - minus : 0);
    open = trek_onnx_2(x, "Mul", trek_onnx_cast(x, open, TREK_I64, dtype), trek_onnx_scalar(x, dtype, fixed));
    open = trek_onnx_2(x, "Max", trek_onnx_2(x, "Sub", open, trek_onnx_scalar(x, dtype, minus)), trek_onnx_scalar(x, dtype, 0));
    return trek_onnx_2(x, "Squeeze", open, trek_onnx_int(x, 0));
}

/* Returns the variance, or the standard deviation, which is its root. */
static const char *spread(trek_onnx *x, bool root)
{
    trek_dtype dtype = in_dtype(x), as = trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype;
    int64_t mask = trek_onnx_i(x, 0);
    const char *a = trek_onnx_cast(x, trek_onnx_in(x, 0), dtype, as), *mean = trek_onnx_reduced(x, "ReduceMean", a, mask, true);
    const char *away = trek_onnx_2(x, "Sub", a, mean);
    const char *sum = trek_onnx_reduced(x, "ReduceSum", trek_onnx_2(x, "Mul", away, away), mask, trek_onnx_i(x, 9) != 0);
    const char *y = trek_onnx_2(x, "Div", sum, count_of(x, mask, as, trek_onnx_f(x, 0)));
    return trek_onnx_cast(x, root ? trek_onnx_1(x, "Sqrt", y) : y, as, dtype);
}

static void variance(trek_onnx *x, const char **outs) { outs[0] = spread(x, false); }
static void standard_deviation(trek_onnx *x, const char **outs) { outs[0] = spread(x, true); }

/* --- along a dimension ---------------------------------------------------------------------------- */

static void cumsum(trek_onnx *x, const char **outs)
{
    double dim = (double)trek_onnx_i(x, 0);
    const char *a = trek_onnx_cast(x, trek_onnx_in(x, 0), in_dtype(x), trek_onnx_out_seen(x, 0)->dtype);
    outs[0] = trek_onnx_in_seen(x, 0)->ndim ? trek_onnx_2(x, "CumSum", a, trek_onnx_scalar(x, TREK_I64, dim)) : a;
}

static void softmax(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0);
    int64_t dim = trek_onnx_i(x, 0);
    if (trek_onnx_in_seen(x, 0)->ndim == 0) { /* a sum of one element */
        outs[0] = trek_onnx_2(x, "Sub", a, a);
        outs[0] = trek_onnx_is(x, "Softmax") ? trek_onnx_1(x, "Exp", outs[0]) : outs[0];
        return;
    }
    outs[0] = trek_onnx_1(x, x->type, a);
    trek_onnx_attr_int(x, "axis", dim);
}

/* --- order ------------------------------------------------------------------------------------------ */

/* Returns values and indices of `count` (a value [1]) elements along dim. */
static void top(trek_onnx *x, const char *count, int64_t dim, bool largest, const char **outs)
{
    outs[0] = trek_onnx_2(x, "TopK", trek_onnx_in(x, 0), count);
    trek_onnx_attr_int(x, "axis", dim);
    trek_onnx_attr_int(x, "largest", largest);
    trek_onnx_attr_int(x, "sorted", 1);
    outs[1] = trek_onnx_more(x);
}

static bool no_scalar(trek_onnx *x)
{
    if (trek_onnx_in_seen(x, 0)->ndim == 0)
        trek_onnx_refuse(x, "of a scalar");
    return trek_onnx_in_seen(x, 0)->ndim > 0;
}

static void sort(trek_onnx *x, const char **outs)
{
    int64_t dim = trek_onnx_i(x, 0);
    if (no_scalar(x))
        top(x, trek_onnx_dim_of(x, trek_onnx_in(x, 0), (int)dim), dim, trek_onnx_i(x, 1) != 0, outs);
}

static void topk(trek_onnx *x, const char **outs)
{
    int64_t counts[TREK_ONNX_RUNS];
    for (int r = 0; r < x->n_runs; r++)
        counts[r] = trek_onnx_at(x, r)->attrs.i[1];
    if (no_scalar(x))
        top(x, trek_onnx_need_size(x, counts, "the count"), trek_onnx_i(x, 0), trek_onnx_i(x, 2) != 0, outs);
}

/* Takes the last of the smallest; for the median, the lower one of two. */
static void kth(trek_onnx *x, const char **outs)
{
    int64_t dim = trek_onnx_i(x, 0), which = trek_onnx_i(x, 2);
    if (!no_scalar(x))
        return;
    if (which != TREK_ORDER_KTH && which != TREK_ORDER_MEDIAN) {
        trek_onnx_refuse(x, "a median that ignores NaN");
        return;
    }
    int64_t count = which == TREK_ORDER_KTH ? trek_onnx_i(x, 1) : (trek_onnx_fixed(x, 0, (int)dim) + 1) / 2;
    const char *both[2];
    top(x, trek_onnx_int(x, count), dim, false, both);
    for (int k = 0; k < 2; k++)
        outs[k] = trek_onnx_wanted(x, k) ? trek_onnx_sliced(x, both[k], count - 1, count, (int)dim, 1) : both[k];
}

/* Counts how many of the line are below, or are not above. */
static void searchsorted(trek_onnx *x, const char **outs)
{
    const char *line = trek_onnx_in(x, 0), *values = trek_onnx_2(x, "Unsqueeze", trek_onnx_in(x, 1), trek_onnx_int(x, -1));
    if (trek_onnx_in_seen(x, 0)->ndim > 1)
        line = trek_onnx_2(x, "Unsqueeze", line, trek_onnx_int(x, -2));
    const char *before = trek_onnx_2(x, trek_onnx_i(x, 0) ? "LessOrEqual" : "Less", line, values);
    before = trek_onnx_cast(x, before, TREK_BOOL, TREK_I64);
    outs[0] = trek_onnx_reduced(x, "ReduceSum", before, (int64_t)1 << trek_onnx_in_seen(x, 1)->ndim, false);
}

const trek_onnx_row trek_onnx_rows_reduce[] = {
    { TREK_OP_sum, reduce, "ReduceSum" }, { TREK_OP_mean, reduce, "ReduceMean" },
    { TREK_OP_sum_squares, reduce, "ReduceSumSquare" }, { TREK_OP_prod, reduce, "ReduceProd" },
    { TREK_OP_max, reduce, "ReduceMax" }, { TREK_OP_min, reduce, "ReduceMin" },
    { TREK_OP_logsumexp, reduce, "ReduceLogSumExp" }, { TREK_OP_nansum, nansum, NULL }, { TREK_OP_any, any_all, "ReduceMax" },
    { TREK_OP_all, any_all, "ReduceMin" }, { TREK_OP_argmax, place_of_extreme, "ArgMax" },
    { TREK_OP_argmin, place_of_extreme, "ArgMin" }, { TREK_OP_variance, variance, NULL },
    { TREK_OP_std, standard_deviation, NULL }, { TREK_OP_cumsum, cumsum, NULL }, { TREK_OP_softmax, softmax, "Softmax" },
    { TREK_OP_log_softmax, softmax, "LogSoftmax" }, { TREK_OP_searchsorted, searchsorted, NULL }, { TREK_OP_sort, sort, NULL },
    { TREK_OP_topk, topk, NULL }, { TREK_OP_kthvalue, kth, NULL },
    { 0, NULL, NULL },
};

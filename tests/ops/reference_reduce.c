/* SPDX-License-Identifier: Apache-2.0 */
/* References of reductions and of what runs along one dimension. */
#include <math.h>
#include <string.h>

#include "tests/ops/suite.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

/* Which dimensions go, from the attributes as given; none listed: all. */
static unsigned reduced_dims(const op_array *x, const trek_attrs *a)
{
    unsigned mask = 0;
    for (int k = 0; k < a->i[0]; k++) {
        int64_t d = a->i[1 + k];
        mask |= 1u << (d < 0 ? d + x->ndim : d);
    }
    return a->i[0] ? mask : (1u << x->ndim) - 1;
}

static void reduced_make(op_array *out, const op_array *x, const trek_attrs *a, trek_dtype dtype)
{
    unsigned mask = reduced_dims(x, a);
    int ndim = 0;
    int64_t sizes[TREK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1))
            sizes[ndim++] = x->sizes[d];
        else if (a->i[9])
            sizes[ndim++] = 1;
    }
    array_make(out, dtype, ndim, sizes);
}

/* Where the element of x at index goes. */
static int64_t reduced_place(const op_array *x, const trek_attrs *a, const int64_t *index)
{
    unsigned mask = reduced_dims(x, a);
    int64_t at = 0;
    for (int d = 0; d < x->ndim; d++)
        if (!(mask >> d & 1))
            at = at * x->sizes[d] + index[d];
    return at;
}

typedef void (*fold_fn)(op_array *out, int64_t at, double x, bool first);

static void reduce_into(op_array *out, const op_array *x, const trek_attrs *a, double start, fold_fn fold)
{
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < out->numel; i++)
        out->v[i] = start;
    op_array touched;
    array_like(&touched, out, TREK_F64);
    for (int64_t i = 0; i < x->numel; i++) {
        int64_t at = reduced_place(x, a, index);
        fold(out, at, x->v[i], touched.v[at] == 0);
        touched.v[at] = 1;
        array_next(index, x->ndim, x->sizes);
    }
    array_free(&touched);
}

static void fold_sum(op_array *out, int64_t at, double x, bool first)
{
    out->v[at] += x;
    out->scale[at] += fabs(x);
}

static void fold_product(op_array *out, int64_t at, double x, bool first)
{
    out->v[at] *= x;
}

static void fold_max(op_array *out, int64_t at, double x, bool first)
{
    if (first || x > out->v[at] || isnan(x))
        out->v[at] = isnan(out->v[at]) && !first ? out->v[at] : x;
}

static void fold_min(op_array *out, int64_t at, double x, bool first)
{
    if (first || x < out->v[at] || isnan(x))
        out->v[at] = isnan(out->v[at]) && !first ? out->v[at] : x;
}

static void fold_any(op_array *out, int64_t at, double x, bool first)
{
    out->v[at] = out->v[at] != 0 || x != 0;
}

static void fold_all(op_array *out, int64_t at, double x, bool first)
{
    out->v[at] = out->v[at] != 0 && x != 0;
}

static trek_dtype summed_dtype(trek_dtype dtype)
{
    return dtype_floats(dtype) ? dtype : TREK_I64;
}

REFERENCE(sum)
{
    reduced_make(&out[0], in[0], a, summed_dtype(in[0]->dtype));
    array_scaled(&out[0]);
    reduce_into(&out[0], in[0], a, 0, fold_sum);
    return 1;
}

REFERENCE(nansum)
{
    op_array numbers;
    array_like(&numbers, in[0], in[0]->dtype);
    for (int64_t i = 0; i < in[0]->numel; i++)
        numbers.v[i] = isnan(in[0]->v[i]) ? 0 : in[0]->v[i];
    int count = reference_sum(&(const op_array *){ &numbers }, 1, a, out);
    array_free(&numbers);
    return count;
}

static void fold_squares(op_array *out, int64_t at, double x, bool first)
{
    fold_sum(out, at, x * x, first);
}

REFERENCE(sum_squares)
{
    bool narrow = in[0]->dtype == TREK_BF16 || in[0]->dtype == TREK_F16;
    reduced_make(&out[0], in[0], a, narrow ? TREK_F32 : in[0]->dtype);
    array_scaled(&out[0]);
    reduce_into(&out[0], in[0], a, 0, fold_squares);
    return 1;
}

static int64_t reduced_count(const op_array *x, const trek_attrs *a)
{
    unsigned mask = reduced_dims(x, a);
    int64_t count = 1;
    for (int d = 0; d < x->ndim; d++)
        if (mask >> d & 1)
            count *= x->sizes[d];
    return count;
}

REFERENCE(mean)
{
    reduced_make(&out[0], in[0], a, in[0]->dtype);
    array_scaled(&out[0]);
    reduce_into(&out[0], in[0], a, 0, fold_sum);
    double count = (double)reduced_count(in[0], a);
    for (int64_t i = 0; i < out[0].numel; i++) {
        out[0].v[i] /= count;
        out[0].scale[i] /= count;
    }
    return 1;
}

REFERENCE(prod)
{
    reduced_make(&out[0], in[0], a, summed_dtype(in[0]->dtype));
    reduce_into(&out[0], in[0], a, 1, fold_product);
    return 1;
}

REFERENCE(max)
{
    reduced_make(&out[0], in[0], a, in[0]->dtype);
    reduce_into(&out[0], in[0], a, 0, fold_max);
    return 1;
}

REFERENCE(min)
{
    reduced_make(&out[0], in[0], a, in[0]->dtype);
    reduce_into(&out[0], in[0], a, 0, fold_min);
    return 1;
}

REFERENCE(any)
{
    reduced_make(&out[0], in[0], a, TREK_BOOL);
    reduce_into(&out[0], in[0], a, 0, fold_any);
    return 1;
}

REFERENCE(all)
{
    reduced_make(&out[0], in[0], a, TREK_BOOL);
    reduce_into(&out[0], in[0], a, 1, fold_all);
    return 1;
}

/* The first extreme element; NaN is more extreme than any number. */
static int arg_extreme(const op_array *x, const trek_attrs *a, op_array *out, double direction)
{
    reduced_make(&out[0], x, a, TREK_I64);
    op_array best;
    array_like(&best, &out[0], TREK_F64);
    for (int64_t i = 0; i < out[0].numel; i++)
        out[0].v[i] = -1;
    int64_t index[TREK_MAX_DIMS] = { 0 };
    int64_t dim = a->i[0] ? (a->i[1] < 0 ? a->i[1] + x->ndim : a->i[1]) : 0;
    for (int64_t i = 0; i < x->numel; i++) {
        int64_t at = reduced_place(x, a, index);
        double value = isnan(x->v[i]) ? INFINITY : direction * x->v[i];
        bool nan_wins = isnan(x->v[i]) && out[0].v[at] >= 0 && !isnan(best.v[at]);
        bool wins = out[0].v[at] < 0 || nan_wins || (!isnan(best.v[at]) && value > best.v[at]);
        if (wins) {
            best.v[at] = isnan(x->v[i]) ? NAN : value;
            out[0].v[at] = (double)(a->i[0] ? index[dim] : i);
        }
        array_next(index, x->ndim, x->sizes);
    }
    array_free(&best);
    return 1;
}

REFERENCE(argmax)
{
    return arg_extreme(in[0], a, out, 1);
}

REFERENCE(argmin)
{
    return arg_extreme(in[0], a, out, -1);
}

REFERENCE(variance)
{
    op_array mean[SUITE_OUTPUTS];
    trek_attrs plain = *a;
    reference_mean(in, n, &plain, mean);
    reduced_make(&out[0], in[0], a, in[0]->dtype);
    array_scaled(&out[0]);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    double count = (double)reduced_count(in[0], a), divisor = count - a->f[0];
    for (int64_t i = 0; i < in[0]->numel; i++) {
        int64_t at = reduced_place(in[0], a, index);
        double d = in[0]->v[i] - mean[0].v[at];
        out[0].v[at] += d * d;
        out[0].scale[at] += d * d / (divisor > 0 ? divisor : 1);
        array_next(index, in[0]->ndim, in[0]->sizes);
    }
    for (int64_t i = 0; i < out[0].numel; i++)
        out[0].v[i] /= divisor > 0 ? divisor : 0;
    array_free(&mean[0]);
    return 1;
}

REFERENCE(std)
{
    reference_variance(in, n, a, out);
    for (int64_t i = 0; i < out[0].numel; i++)
        out[0].scale[i] = out[0].v[i] = sqrt(out[0].v[i]);
    return 1;
}

REFERENCE(logsumexp)
{
    op_array largest;
    reduced_make(&largest, in[0], a, TREK_F64);
    reduce_into(&largest, in[0], a, -INFINITY, fold_max);
    reduced_make(&out[0], in[0], a, dtype_floats(in[0]->dtype) ? in[0]->dtype : TREK_F32);
    array_scaled(&out[0]);
    int64_t index[TREK_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < in[0]->numel; i++) {
        int64_t at = reduced_place(in[0], a, index);
        double shift = isfinite(largest.v[at]) ? largest.v[at] : 0;
        out[0].v[at] += exp(in[0]->v[i] - shift);
        array_next(index, in[0]->ndim, in[0]->sizes);
    }
    for (int64_t i = 0; i < out[0].numel; i++) {
        double shift = isfinite(largest.v[i]) ? largest.v[i] : 0;
        out[0].scale[i] = 1;
        out[0].v[i] = log(out[0].v[i]) + shift;
    }
    array_free(&largest);
    return 1;
}

/* --- along one dimension --------------------------------------------------------- */

static int64_t dim_of(const op_array *x, const trek_attrs *a)
{
    return a->i[0] < 0 ? a->i[0] + x->ndim : a->i[0];
}

/* Element k of the line that index lies in, along d. */
static double *line(const op_array *x, const int64_t *index, int64_t d, int64_t k)
{
    int64_t at[TREK_MAX_DIMS];
    memcpy(at, index, sizeof at);
    if (x->ndim > 0)
        at[d] = k;
    return &x->v[array_index(x, at)];
}

static int64_t line_length(const op_array *x, int64_t d)
{
    return x->ndim ? x->sizes[d] : 1;
}

REFERENCE(cumsum)
{
    int64_t d = dim_of(in[0], a), index[TREK_MAX_DIMS] = { 0 };
    array_like(&out[0], in[0], summed_dtype(in[0]->dtype));
    array_scaled(&out[0]);
    for (int64_t i = 0; i < in[0]->numel; i++) {
        int64_t last = in[0]->ndim ? index[d] : 0;
        for (int64_t k = 0; k <= last; k++) {
            double x = *line(in[0], index, d, k);
            out[0].v[i] += x;
            out[0].scale[i] += fabs(x);
        }
        array_next(index, in[0]->ndim, in[0]->sizes);
    }
    return 1;
}

REFERENCE(logcumsumexp)
{
    int64_t d = dim_of(in[0], a), index[TREK_MAX_DIMS] = { 0 };
    array_like(&out[0], in[0], in[0]->dtype);
    array_scaled(&out[0]);
    for (int64_t i = 0; i < in[0]->numel; i++) {
        int64_t last = in[0]->ndim ? index[d] : 0;
        double largest = -INFINITY, sum = 0;
        for (int64_t k = 0; k <= last; k++)
            largest = fmax(largest, *line(in[0], index, d, k));
        for (int64_t k = 0; k <= last; k++)
            sum += exp(*line(in[0], index, d, k) - largest);
        out[0].v[i] = log(sum) + largest;
        out[0].scale[i] = fabs(largest) + 1;
        array_next(index, in[0]->ndim, in[0]->sizes);
    }
    return 1;
}

static int softmax_like(const op_array *x, const trek_attrs *a, op_array *out, bool logarithm)
{
    int64_t d = dim_of(x, a), index[TREK_MAX_DIMS] = { 0 };
    array_like(&out[0], x, x->dtype);
    array_scaled(&out[0]);
    for (int64_t i = 0; i < x->numel; i++) {
        double largest = -INFINITY, sum = 0;
        for (int64_t k = 0; k < line_length(x, d); k++)
            largest = fmax(largest, *line(x, index, d, k));
        for (int64_t k = 0; k < line_length(x, d); k++)
            sum += exp(*line(x, index, d, k) - largest);
        out[0].v[i] = logarithm ? x->v[i] - largest - log(sum) : exp(x->v[i] - largest) / sum;
        out[0].scale[i] = logarithm ? 1 + fabs(largest) : fabs(out[0].v[i]);
        array_next(index, x->ndim, x->sizes);
    }
    return 1;
}

REFERENCE(softmax)
{
    return softmax_like(in[0], a, out, false);
}

REFERENCE(log_softmax)
{
    return softmax_like(in[0], a, out, true);
}

/* grad, y: the rows of the Jacobian, summed. */
static int softmax_gradient(const op_array *const *in, const trek_attrs *a, op_array *out, bool logarithm)
{
    const op_array *g = in[0], *y = in[1];
    int64_t d = dim_of(g, a), index[TREK_MAX_DIMS] = { 0 };
    array_like(&out[0], g, dtype_promote(g->dtype, y->dtype));
    array_scaled(&out[0]);
    for (int64_t i = 0; i < g->numel; i++) {
        int64_t own = g->ndim ? index[d] : 0;
        for (int64_t k = 0; k < line_length(g, d); k++) {
            double gk = *line(g, index, d, k), yk = *line(y, index, d, k), yi = y->v[i];
            double entry = logarithm ? (k == own) - exp(yi) : yk * ((k == own) - yi);
            out[0].v[i] += gk * entry;
            out[0].scale[i] += fabs(gk) * (logarithm ? (k == own) + exp(yi) : yk * ((k == own) + yi));
        }
        array_next(index, g->ndim, g->sizes);
    }
    return 1;
}

REFERENCE(softmax_backward)
{
    return softmax_gradient(in, a, out, false);
}

REFERENCE(log_softmax_backward)
{
    return softmax_gradient(in, a, out, true);
}

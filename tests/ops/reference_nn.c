/* SPDX-License-Identifier: Apache-2.0 */
/* References of norms, dropout, cross entropy and random numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/suite.h"
#include "tests/support/philox.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

static trek_dtype statistics_dtype(trek_dtype dtype)
{
    return dtype == TREK_BF16 || dtype == TREK_F16 ? TREK_F32 : dtype;
}

static void add_term(op_array *out, int64_t at, double term)
{
    out->v[at] += term;
    out->scale[at] += fabs(term);
}

/* --- norms: elements with one group number share mean and deviation ------------- */

typedef struct norm_layout {
    int64_t groups, count;  /* statistics, elements of each */
    int64_t inner, channels; /* batch, group: elements behind the channel, channels; layer: 0, columns */
    bool batch;
} norm_layout;

static norm_layout layer_layout(const op_array *x, int64_t dims)
{
    norm_layout l = { .groups = 1, .count = 1 };
    for (int d = 0; d < x->ndim; d++)
        *(d < x->ndim - dims ? &l.groups : &l.count) *= x->sizes[d];
    l.channels = l.count;
    return l;
}

static norm_layout batch_layout(const op_array *x)
{
    norm_layout l = { .groups = x->sizes[1], .inner = 1, .channels = x->sizes[1], .batch = true };
    for (int d = 2; d < x->ndim; d++)
        l.inner *= x->sizes[d];
    l.count = x->sizes[0] * l.inner;
    return l;
}

static norm_layout group_layout(const op_array *x, int64_t groups)
{
    norm_layout l = batch_layout(x);
    l.batch = false;
    l.groups = l.channels > 0 ? x->sizes[0] * groups : 0;
    l.count = l.channels / groups * l.inner;
    return l;
}

static int64_t group_of(const norm_layout *l, int64_t i)
{
    return l->batch ? i / l->inner % l->groups : i / l->count;
}

/* Which element of weight and bias. */
static int64_t channel_of(const norm_layout *l, int64_t i)
{
    return l->inner > 0 ? i / l->inner % l->channels : i % l->count;
}

static void group_statistics(const op_array *x, const norm_layout *l, double *mean, double *variance)
{
    for (int64_t i = 0; i < x->numel; i++)
        mean[group_of(l, i)] += x->v[i] / (double)l->count;
    for (int64_t i = 0; i < x->numel; i++) {
        double d = x->v[i] - mean[group_of(l, i)];
        variance[group_of(l, i)] += d * d / (double)l->count;
    }
}

static void normalize(const op_array *x, const norm_layout *l, const double *mean, const double *rstd, const op_array *w,
                      const op_array *b, op_array *y)
{
    array_scaled(y);
    for (int64_t i = 0; i < x->numel; i++) {
        int64_t g = group_of(l, i), c = channel_of(l, i);
        double weight = w ? w->v[c] : 1, bias = b ? b->v[c] : 0;
        y->v[i] = (x->v[i] - mean[g]) * rstd[g] * weight + bias;
        y->scale[i] = (fabs(x->v[i]) + fabs(mean[g])) * rstd[g] * fabs(weight) + fabs(bias);
    }
}

static void norm_outputs(const op_array *x, const norm_layout *l, op_array *out)
{
    array_like(&out[0], x, x->dtype);
    for (int k = 1; k < 3; k++) {
        array_make(&out[k], statistics_dtype(x->dtype), 1, &l->groups);
        array_scaled(&out[k]);
    }
}

static int norm_of_groups(const op_array *const *in, norm_layout l, double eps, op_array *out)
{
    norm_outputs(in[0], &l, out);
    group_statistics(in[0], &l, out[1].v, out[2].v);
    for (int64_t g = 0; g < l.groups; g++) {
        out[2].v[g] = 1 / sqrt(out[2].v[g] + eps);
        out[1].scale[g] = 2;
        out[2].scale[g] = out[2].v[g];
    }
    normalize(in[0], &l, out[1].v, out[2].v, in[1], in[2], &out[0]);
    return 3;
}

REFERENCE(layer_norm) { return (void)n, norm_of_groups(in, layer_layout(in[0], a->i[0]), a->f[0], out); }
REFERENCE(group_norm) { return (void)n, norm_of_groups(in, group_layout(in[0], a->i[0]), a->f[0], out); }

/* Outputs 3 and 4 are what the running statistics (inputs 3, 4) become. */
REFERENCE(batch_norm)
{
    norm_layout l = batch_layout(in[0]);
    bool running = n > 3 && in[3];
    norm_outputs(in[0], &l, out);
    for (int k = 3; k < 5 && running; k++) {
        array_like(&out[k], in[k], in[k]->dtype);
        array_scaled(&out[k]);
        memcpy(out[k].v, in[k]->v, sizeof(double) * (size_t)l.groups);
    }
    if (a->i[0])
        group_statistics(in[0], &l, out[1].v, out[2].v);
    for (int64_t g = 0; g < l.groups; g++) {
        if (a->i[0] && running) {
            double unbiased = out[2].v[g] * (double)l.count / (double)(l.count - 1);
            out[3].v[g] = (1 - a->f[0]) * in[3]->v[g] + a->f[0] * out[1].v[g];
            out[4].v[g] = (1 - a->f[0]) * in[4]->v[g] + a->f[0] * unbiased;
            out[3].scale[g] = out[4].scale[g] = 3;
        } else if (!a->i[0]) {
            out[1].v[g] = in[3]->v[g];
            out[2].v[g] = in[4]->v[g];
        }
        out[2].v[g] = 1 / sqrt(out[2].v[g] + a->f[1]);
        out[1].scale[g] = 2;
        out[2].scale[g] = out[2].v[g];
    }
    normalize(in[0], &l, out[1].v, out[2].v, in[1], in[2], &out[0]);
    return running ? 5 : 3;
}

typedef struct group_sums {
    double g, gx; /* of gradients, and of gradients times normalized elements */
    double wide_g, wide_gx; /* of their sizes */
} group_sums;

/* Zeros where statistics do not depend on x. Freed by the caller. */
static group_sums *sums_of_groups(const op_array *g, const op_array *x, const op_array *w, const double *mean, const double *rstd,
                                  const norm_layout *l, bool training)
{
    group_sums *sums = calloc((size_t)l->groups, sizeof *sums);
    for (int64_t j = 0; j < x->numel && sums && training; j++) {
        int64_t s = group_of(l, j);
        double gj = g->v[j] * (w ? w->v[channel_of(l, j)] : 1), xj = (x->v[j] - mean[s]) * rstd[s];
        sums[s].g += gj;
        sums[s].gx += gj * xj;
        sums[s].wide_g += fabs(gj);
        sums[s].wide_gx += fabs(gj * xj);
    }
    return sums;
}

/* grad, x, mean, rstd, weight -> dx, dweight (with a weight only), dbias. In training the
 * statistics depend on x, and d x_i is the sum over the group of the Jacobian's entries. */
static int norm_gradient(const op_array *const *in, int n, const norm_layout *l, bool training, op_array *out, int ndim,
                         const int64_t *sizes)
{
    const op_array *g = in[0], *x = in[1], *w = n > 4 ? in[4] : NULL;
    const double *mean = in[2]->v, *rstd = in[3]->v;
    array_like(&out[0], x, x->dtype);
    array_scaled(&out[0]);
    memset(&out[1], 0, sizeof out[1]);
    for (int k = w ? 1 : 2; k < 3; k++) {
        array_make(&out[k], w ? w->dtype : statistics_dtype(x->dtype), ndim, sizes);
        array_scaled(&out[k]);
    }
    for (int64_t j = 0; j < x->numel; j++) {
        int64_t s = group_of(l, j), c = channel_of(l, j);
        double xhat = (x->v[j] - mean[s]) * rstd[s], wide = (fabs(x->v[j]) + fabs(mean[s])) * rstd[s];
        if (w) {
            out[1].v[c] += g->v[j] * xhat;
            out[1].scale[c] += fabs(g->v[j]) * wide;
        }
        add_term(&out[2], c, g->v[j]);
    }
    group_sums *sums = sums_of_groups(g, x, w, mean, rstd, l, training);
    for (int64_t i = 0; i < x->numel && sums; i++) {
        int64_t s = group_of(l, i);
        const group_sums *of = &sums[s];
        double xhat = (x->v[i] - mean[s]) * rstd[s], share = rstd[s] / (double)l->count;
        add_term(&out[0], i, g->v[i] * (w ? w->v[channel_of(l, i)] : 1) * rstd[s]);
        out[0].v[i] -= (of->g + of->gx * xhat) * share;
        out[0].scale[i] += (of->wide_g + of->wide_gx * fabs(xhat)) * fabs(share);
    }
    free(sums);
    return 3;
}

REFERENCE(layer_norm_backward)
{
    norm_layout l = layer_layout(in[1], a->i[0]);
    int dims = (int)a->i[0];
    return norm_gradient(in, n, &l, true, out, dims, in[1]->sizes + in[1]->ndim - dims);
}

REFERENCE(group_norm_backward)
{
    norm_layout l = group_layout(in[1], a->i[0]);
    return norm_gradient(in, n, &l, true, out, 1, &in[1]->sizes[1]);
}

REFERENCE(batch_norm_backward)
{
    norm_layout l = batch_layout(in[1]);
    return norm_gradient(in, n, &l, a->i[0], out, 1, &in[1]->sizes[1]);
}

/* --- cross entropy ------------------------------------------------------------------ */

typedef struct row_terms {
    bool counted;
    double weight;   /* of the label's class */
    int64_t label;
} row_terms;

static row_terms row_of(const op_array *labels, const op_array *w, const trek_attrs *a, int64_t row)
{
    row_terms t = { .label = (int64_t)labels->v[row] };
    t.counted = t.label != a->i[0];
    t.weight = !t.counted ? 0 : w ? w->v[t.label] : 1;
    return t;
}

REFERENCE(cross_entropy)
{
    const op_array *x = in[0], *w = n > 2 ? in[2] : NULL;
    int64_t rows = x->sizes[0], classes = x->sizes[1];
    double smoothing = a->f[0], coarser = x->dtype == TREK_F64 ? 1 : 0x1p29; /* out[1] is f64, of sums in f32 */
    array_make(&out[0], x->dtype, a->i[1] == TREK_REDUCTION_NONE ? 1 : 0, &rows);
    array_make(&out[1], TREK_F64, 1, &rows);
    array_make(&out[2], statistics_dtype(x->dtype), 0, NULL);
    for (int k = 0; k < 3; k++)
        array_scaled(&out[k]);
    for (int64_t r = 0; r < rows; r++) {
        const double *z = &x->v[r * classes];
        double largest = -INFINITY, sum = 0;
        for (int64_t c = 0; c < classes; c++)
            largest = fmax(largest, z[c]);
        for (int64_t c = 0; c < classes; c++)
            sum += exp(z[c] - largest);
        double lse = largest + log(sum);
        out[1].v[r] = lse;
        out[1].scale[r] = (1 + fabs(largest)) * coarser;
        row_terms t = row_of(in[1], w, a, r);
        int64_t at = a->i[1] == TREK_REDUCTION_NONE ? r : 0;
        if (!t.counted)
            continue;
        out[0].v[at] += (1 - smoothing) * t.weight * (lse - z[t.label]);
        for (int64_t c = 0; c < classes; c++)
            out[0].v[at] += smoothing / (double)classes * (w ? w->v[c] : 1) * (lse - z[c]);
        out[0].scale[at] += t.weight * (fabs(lse) + 3);
        add_term(&out[2], 0, t.weight);
    }
    if (a->i[1] == TREK_REDUCTION_MEAN) {
        double total = out[2].v[0];
        out[0].v[0] = total > 0 ? out[0].v[0] / total : 0;
        out[0].scale[0] = total > 0 ? out[0].scale[0] / total : 0;
    }
    return 3;
}

/* grad, logits, labels, weight, logsumexp, total weight -> d logits */
REFERENCE(cross_entropy_backward)
{
    const op_array *g = in[0], *x = in[1], *w = in[3];
    int64_t classes = x->sizes[1];
    double smoothing = a->f[0], total = in[5]->v[0];
    array_like(&out[0], x, x->dtype);
    array_scaled(&out[0]);
    for (int64_t i = 0; i < x->numel; i++) {
        int64_t r = i / classes, c = i % classes;
        row_terms t = row_of(in[2], w, a, r);
        double grad = a->i[1] == TREK_REDUCTION_NONE ? g->v[r] : g->v[0], weights = 0;
        if (a->i[1] == TREK_REDUCTION_MEAN)
            grad = total > 0 ? grad / total : 0;
        if (!t.counted)
            continue;
        for (int64_t k = 0; k < classes; k++)
            weights += w ? w->v[k] : 1;
        double p = exp(x->v[i] - in[4]->v[r]), spread = smoothing / (double)classes;
        add_term(&out[0], i, grad * (1 - smoothing) * t.weight * (p - (c == t.label)));
        add_term(&out[0], i, grad * spread * (weights * p - (w ? w->v[c] : 1)));
        out[0].scale[i] = fabs(grad) * (t.weight + spread * weights);
    }
    return 1;
}

/* --- random numbers ------------------------------------------------------------------- */

REFERENCE(dropout)
{
    array_like(&out[0], in[0], in[0]->dtype);
    for (int64_t i = 0; i < in[0]->numel; i++) {
        uint64_t place = (uint64_t)(a->i[3] + i);
        uint32_t word = test_philox_word((uint64_t)a->i[0], place / 4, (uint32_t)a->i[2], (uint32_t)a->i[1], (int)(place % 4));
        bool kept = (double)(word >> 8) * 0x1p-24 >= a->f[0];
        out[0].v[i] = kept ? in[0]->v[i] / (1 - a->f[0]) : 0;
    }
    return 1;
}

/* Of these only dtype and shape are compared here; check_random looks at the numbers. */
REFERENCE(uniform)
{
    return 1;
}

REFERENCE(normal)
{
    return 1;
}

REFERENCE(random_integers)
{
    return 1;
}

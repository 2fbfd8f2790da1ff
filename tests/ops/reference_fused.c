/* SPDX-License-Identifier: Apache-2.0 */
/* References of the fused ops of transformers, with everything written out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/suite.h"
#include "tests/support/philox.h"
#include "tests/support/support.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

static trek_dtype statistics_dtype(trek_dtype dtype)
{
    return dtype == TREK_BF16 || dtype == TREK_F16 ? TREK_F32 : dtype;
}

static void add_scaled(op_array *out, int64_t at, double term, double size)
{
    out->v[at] += term;
    out->scale[at] += fabs(term) * size;
}

/* --- rms_norm ---------------------------------------------------------------------------- */

static int64_t row_length(const op_array *x, int64_t dims)
{
    int64_t n = 1;
    for (int d = x->ndim - (int)dims; d < x->ndim; d++)
        n *= x->sizes[d];
    return n;
}

static int64_t row_count(const op_array *x, int64_t dims)
{
    int64_t n = 1;
    for (int d = 0; d < x->ndim - (int)dims; d++)
        n *= x->sizes[d];
    return n;
}

REFERENCE(rms_norm)
{
    const op_array *x = in[0], *w = n > 1 ? in[1] : NULL;
    int64_t columns = row_length(x, a->i[0]), rows = row_count(x, a->i[0]);
    array_like(&out[0], x, x->dtype);
    array_make(&out[1], statistics_dtype(x->dtype), 1, &rows);
    for (int64_t r = 0; r < rows; r++) {
        double square = 0;
        for (int64_t c = 0; c < columns; c++)
            square += x->v[r * columns + c] * x->v[r * columns + c] / (double)columns;
        out[1].v[r] = 1 / sqrt(square + a->f[0]);
        for (int64_t c = 0; c < columns; c++)
            out[0].v[r * columns + c] = x->v[r * columns + c] * out[1].v[r] * (w ? w->v[c] : 1);
    }
    return 2;
}

/* grad, x, rstd, weight -> dx, dweight (with a weight only): the Jacobian's entries summed */
REFERENCE(rms_norm_backward)
{
    const op_array *g = in[0], *x = in[1], *w = n > 3 ? in[3] : NULL;
    int64_t columns = row_length(x, a->i[0]), rows = row_count(x, a->i[0]);
    array_like(&out[0], x, x->dtype);
    array_scaled(&out[0]);
    memset(&out[1], 0, sizeof out[1]);
    if (w) {
        array_like(&out[1], w, w->dtype);
        array_scaled(&out[1]);
    }
    for (int64_t r = 0; r < rows; r++) {
        double rstd = in[2]->v[r];
        const double *gr = &g->v[r * columns], *xr = &x->v[r * columns];
        for (int64_t i = 0; i < columns; i++) {
            if (w)
                add_scaled(&out[1], i, gr[i] * xr[i] * rstd, 1);
            for (int64_t j = 0; j < columns; j++) { /* d y_j / d x_i */
                double slope = (i == j) * rstd - xr[i] * xr[j] * rstd * rstd * rstd / (double)columns;
                add_scaled(&out[0], r * columns + i, gr[j] * (w ? w->v[j] : 1) * slope, 1);
            }
        }
    }
    return 2;
}

/* --- add_layer_norm: in terms of the layer norm's reference ---------------------------------- */

REFERENCE(add_layer_norm)
{
    op_array norm[3];
    array_like(&out[1], in[0], in[0]->dtype);
    array_scaled(&out[1]);
    for (int64_t i = 0; i < out[1].numel; i++) {
        out[1].v[i] = dtype_round(out[1].dtype, in[0]->v[i] + in[1]->v[i]);
        out[1].scale[i] = fabs(in[0]->v[i]) + fabs(in[1]->v[i]);
    }
    reference_layer_norm((const op_array *const[3]){ &out[1], in[2], in[3] }, 3, a, norm);
    for (int64_t i = 0; i < norm[0].numel; i++)
        norm[0].scale[i] *= 2;
    out[0] = norm[0];
    out[2] = norm[1];
    out[3] = norm[2];
    return 4;
}

/* grad, grad of the residual, residual, mean, rstd, weight */
REFERENCE(add_layer_norm_backward)
{
    reference_layer_norm_backward((const op_array *const[5]){ in[0], in[2], in[3], in[4], n > 5 ? in[5] : NULL }, 5, a, out);
    for (int64_t i = 0; in[1] && i < out[0].numel; i++) {
        out[0].v[i] += in[1]->v[i];
        out[0].scale[i] += fabs(in[1]->v[i]);
    }
    return 3;
}

/* --- linear_cross_entropy: in terms of the cross entropy's reference --------------------------- */

/* x weight^T + bias, with the sizes of the terms in scale. */
static void make_logits(op_array *z, const op_array *x, const op_array *w, const op_array *bias)
{
    int64_t sizes[2] = { x->sizes[0], w->sizes[0] }, columns = x->sizes[1];
    array_make(z, x->dtype, 2, sizes);
    array_scaled(z);
    for (int64_t i = 0; i < z->numel; i++) {
        int64_t r = i / sizes[1], c = i % sizes[1];
        for (int64_t d = 0; d < columns; d++)
            add_scaled(z, i, x->v[r * columns + d] * w->v[c * columns + d], 1);
        if (bias)
            add_scaled(z, i, bias->v[c], 1);
    }
}

/* What logits of 16-bit operands are rounded to on a GPU, against f32: a loss is as far away as they are. */
static double rounded_logits(trek_dtype dtype)
{
    return test_on_cpu() ? 1 : dtype == TREK_BF16 ? 0x1p16 : dtype == TREK_F16 ? 0x1p13 : 1;
}

static double largest_scale(const op_array *z)
{
    double size = 0;
    for (int64_t i = 0; i < z->numel; i++)
        size = fmax(size, z->scale[i]);
    return size;
}

/* dx, dweight, dbias of all rows; without `grad` of the losses' sum, for which `lse` is what forward has found. */
static int all_gradients(const op_array *const *in, const trek_attrs *a, op_array *out)
{
    op_array z, dz;
    const op_array *x = in[1], *w = in[2];
    int64_t columns = x->sizes[1], classes = w->sizes[0];
    make_logits(&z, x, w, in[3]);
    reference_cross_entropy_backward((const op_array *const[6]){ in[0], &z, in[4], NULL, in[5], in[6] }, 6, a, &dz);
    memset(&out[2], 0, sizeof out[2]);
    for (int k = 0; k < (in[3] ? 3 : 2); k++) {
        array_like(&out[k], in[1 + k], x->dtype);
        array_scaled(&out[k]);
    }
    for (int64_t i = 0; i < dz.numel; i++) {
        int64_t r = i / classes, c = i % classes;
        double wide = dz.scale[i] * (3 + z.scale[i]) + fabs(dz.v[i]) * (3 + z.scale[i]);
        for (int64_t d = 0; d < columns; d++) {
            out[0].v[r * columns + d] += dz.v[i] * w->v[c * columns + d];
            out[0].scale[r * columns + d] += wide * fabs(w->v[c * columns + d]);
            out[1].v[c * columns + d] += dz.v[i] * x->v[r * columns + d];
            out[1].scale[c * columns + d] += wide * fabs(x->v[r * columns + d]);
        }
        if (in[3]) {
            out[2].v[c] += dz.v[i];
            out[2].scale[c] += wide;
        }
    }
    array_free(&z);
    array_free(&dz);
    return 3;
}

static double unit_of(const op_array *x) { return TREK_HEAD_UNIT(x->dtype); }

/* Of the sum of losses, those that are asked for. */
static void keep_gradients(const op_array *const *in, const trek_attrs *a, op_array *out)
{
    op_array one, parts[3];
    trek_attrs sum = *a;
    int64_t numbers = 0, at = 0;
    sum.i[1] = TREK_REDUCTION_SUM;
    array_make(&one, TREK_F64, 0, NULL);
    one.v[0] = unit_of(in[0]);
    all_gradients((const op_array *const[7]){ &one, in[0], in[1], in[2], in[3], &out[1], &out[2] }, &sum, parts);
    for (int k = 0; k < 3; k++)
        numbers += a->i[2] >> k & 1 ? parts[k].numel : 0;
    array_make(&out[3], statistics_dtype(in[0]->dtype), 1, &numbers);
    array_scaled(&out[3]);
    for (int k = 0; k < (in[2] ? 3 : 2); k++) {
        for (int64_t i = 0; i < parts[k].numel && (a->i[2] >> k & 1); i++) {
            out[3].v[at] = parts[k].v[i];
            out[3].scale[at++] = parts[k].scale[i] * (in[0]->dtype == TREK_BF16 ? 0x1p16 : in[0]->dtype == TREK_F16 ? 0x1p13 : 1);
        }
        array_free(&parts[k]);
    }
    array_free(&one);
}

/* What was kept, times the gradient of the loss. */
static int scale_kept(const op_array *const *in, const trek_attrs *a, op_array *out)
{
    double slope = in[0]->v[0] / unit_of(in[1]);
    int64_t at = 0;
    if (a->i[1] == TREK_REDUCTION_MEAN)
        slope = in[6]->v[0] != 0 ? slope / in[6]->v[0] : 0;
    for (int k = 0; k < 3; k++) {
        bool kept = a->i[2] >> k & 1;
        memset(&out[k], 0, sizeof out[k]);
        if (kept)
            array_like(&out[k], in[1 + k], in[1]->dtype);
        else if (k == 0)
            array_make(&out[k], in[1]->dtype, 2, (int64_t[]){ 0, in[1]->sizes[1] });
        for (int64_t i = 0; kept && i < out[k].numel; i++)
            out[k].v[i] = slope * in[7]->v[at++];
    }
    return 3;
}

REFERENCE(linear_cross_entropy)
{
    op_array z;
    make_logits(&z, in[0], in[1], in[2]);
    int outputs = reference_cross_entropy((const op_array *const[3]){ &z, in[3], NULL }, 3, a, out);
    out[0].dtype = statistics_dtype(z.dtype);
    double size = largest_scale(&z) * rounded_logits(z.dtype);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < out[k].numel; i++)
            out[k].scale[i] += size * (k == 1 && z.dtype != TREK_F64 ? 0x1p29 : k == 0 &&
                                       a->i[1] == TREK_REDUCTION_SUM ? (double)z.sizes[0] : 1);
    array_free(&z);
    if (a->i[2])
        keep_gradients(in, a, out);
    return a->i[2] ? 4 : outputs;
}

/* grad, x, weight, bias, labels, logsumexp, total weight, kept or NULL -> dx, dweight, dbias */
REFERENCE(linear_cross_entropy_backward)
{
    if (n > 7 && in[7])
        return scale_kept(in, a, out);
    return all_gradients(in, a, out);
}

/* --- attention ---------------------------------------------------------------------------- */

/* One attention problem: scores of all pairs, their sizes, and what dropout multiplies by; all [B, H, T, S]. */
typedef struct attention_scores {
    int64_t batch, heads, group, queries, keys, depth;
    double *s, *size, *keep;
    double scale;
} attention_scores;

static double kept(const trek_attrs *a, int64_t i)
{
    uint64_t place = (uint64_t)(a->i[3] + i);
    uint32_t word = test_philox_word((uint64_t)a->i[0], place / 4, (uint32_t)a->i[2], (uint32_t)a->i[1], (int)(place % 4));
    return (double)(word >> 8) * 0x1p-24 >= a->f[0] ? 1 / (1 - a->f[0]) : 0;
}

static void make_scores(attention_scores *t, const op_array *q, const op_array *k, const op_array *mask, const trek_attrs *a)
{
    t->batch = q->sizes[0], t->heads = q->sizes[1], t->queries = q->sizes[2], t->depth = q->sizes[3];
    t->keys = k->sizes[2];
    t->group = k->sizes[1] ? t->heads / k->sizes[1] : 1;
    t->scale = a->f[1] != 0 ? a->f[1] : 1 / sqrt((double)t->depth);
    int64_t count = t->batch * t->heads * t->queries * t->keys;
    t->s = calloc((size_t)count * 3 + 1, sizeof(double));
    if (!t->s)
        exit(99);
    t->size = t->s + count;
    t->keep = t->size + count;
    int64_t index[4] = { 0 }, sizes[4] = { t->batch, t->heads, t->queries, t->keys };
    for (int64_t i = 0; i < count; i++, array_next(index, 4, sizes)) {
        int64_t row = (index[0] * t->heads + index[1]) * t->queries + index[2];
        int64_t key = (index[0] * k->sizes[1] + index[1] / t->group) * t->keys + index[3];
        for (int64_t d = 0; d < t->depth; d++) {
            double term = q->v[row * t->depth + d] * k->v[key * t->depth + d] * t->scale;
            t->s[i] += term;
            t->size[i] += fabs(term);
        }
        double m = mask ? mask->v[array_broadcast_index(mask, index, 4)] : 0;
        if (mask && mask->dtype == TREK_BOOL)
            m = m != 0 ? 0 : -INFINITY;
        t->s[i] += m;
        t->size[i] += isfinite(m) ? fabs(m) : 0;
        if (a->i[4] && index[3] > index[2])
            t->s[i] = -INFINITY;
        t->keep[i] = a->f[0] > 0 ? kept(a, i) : 1;
    }
}

REFERENCE(attention)
{
    const op_array *v = in[2];
    attention_scores t;
    make_scores(&t, in[0], in[1], n > 3 ? in[3] : NULL, a);
    array_like(&out[0], in[0], in[0]->dtype);
    array_make(&out[1], statistics_dtype(in[0]->dtype), 3, in[0]->sizes);
    array_scaled(&out[0]);
    array_scaled(&out[1]);
    for (int64_t row = 0; row < t.batch * t.heads * t.queries; row++) {
        const double *s = t.s + row * t.keys, *size = t.size + row * t.keys;
        int64_t b = row / t.queries / t.heads, head = row / t.queries % t.heads / t.group;
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < t.keys; j++)
            top = fmax(top, s[j]);
        for (int64_t j = 0; j < t.keys && top > -INFINITY; j++)
            sum += exp(s[j] - top);
        out[1].v[row] = sum > 0 ? top + log(sum) : -INFINITY;
        out[1].scale[row] = sum > 0 ? 4 : 0;
        for (int64_t j = 0; j < t.keys && sum > 0; j++) {
            double p = exp(s[j] - top) / sum * t.keep[row * t.keys + j];
            for (int64_t d = 0; d < t.depth; d++) {
                int64_t at = ((b * v->sizes[1] + head) * t.keys + j) * t.depth + d;
                add_scaled(&out[0], row * t.depth + d, p * v->v[at], 3 + size[j]);
            }
        }
    }
    free(t.s);
    return 2;
}

/* grad, q, k, v, y, logsumexp, mask -> dq, dk, dv */
REFERENCE(attention_backward)
{
    const op_array *g = in[0], *q = in[1], *k = in[2], *v = in[3], *y = in[4];
    attention_scores t;
    make_scores(&t, q, k, n > 6 ? in[6] : NULL, a);
    for (int which = 0; which < 3; which++) {
        array_like(&out[which], in[1 + which], in[1 + which]->dtype);
        array_scaled(&out[which]);
    }
    for (int64_t row = 0; row < t.batch * t.heads * t.queries; row++) {
        int64_t b = row / t.queries / t.heads, head = row / t.queries % t.heads / t.group;
        const double *gr = &g->v[row * t.depth];
        double delta = 0, wide = 0;
        for (int64_t d = 0; d < t.depth; d++) {
            delta += gr[d] * y->v[row * t.depth + d];
            wide += fabs(gr[d] * y->v[row * t.depth + d]);
        }
        for (int64_t j = 0; j < t.keys; j++) {
            double keep = t.keep[row * t.keys + j], p = exp(t.s[row * t.keys + j] - in[5]->v[row]), dp = 0, dp_wide = 0;
            double size = 3 + t.size[row * t.keys + j] + fabs(in[5]->v[row]);
            int64_t key = ((b * k->sizes[1] + head) * t.keys + j) * t.depth;
            for (int64_t d = 0; d < t.depth; d++) {
                dp += gr[d] * v->v[key + d] * keep;
                dp_wide += fabs(gr[d] * v->v[key + d] * keep);
            }
            double ds = p * (dp - delta) * t.scale, ds_wide = p * (dp_wide + wide) * fabs(t.scale);
            for (int64_t d = 0; d < t.depth; d++) {
                out[0].v[row * t.depth + d] += ds * k->v[key + d];
                out[0].scale[row * t.depth + d] += ds_wide * fabs(k->v[key + d]) * size;
                out[1].v[key + d] += ds * q->v[row * t.depth + d];
                out[1].scale[key + d] += ds_wide * fabs(q->v[row * t.depth + d]) * size;
                add_scaled(&out[2], key + d, p * keep * gr[d], size);
            }
        }
    }
    free(t.s);
    return 3;
}

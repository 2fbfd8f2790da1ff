/* SPDX-License-Identifier: Apache-2.0 */
/* References of sorting, choosing, running extremes and products, searching, scattering and diagonals. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/suite.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

/* A line of x along dim: where its elements are. */
typedef struct line {
    int64_t n, step, before, behind; /* before, behind: sizes of the dimensions on either side */
} line;

static line line_of(const op_array *x, int64_t dim)
{
    line l = { .n = 1, .step = 1, .before = 1, .behind = 1 };
    dim = dim < 0 ? dim + x->ndim : dim;
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? &l.before : d == dim ? &l.n : &l.behind) *= x->sizes[d];
    l.step = l.behind;
    return l;
}

/* NaN behind all numbers. */
static bool comes_before(double x, double y) { return isnan(y) ? !isnan(x) : x < y; }

/* The places of a line in a stable order. */
static void order_line(const double *x, const line *l, bool descending, int64_t *places)
{
    for (int64_t i = 0; i < l->n; i++) {
        double moved = x[i * l->step];
        int64_t at = i;
        for (; at > 0; at--) {
            double other = x[places[at - 1] * l->step];
            if (!(descending ? comes_before(other, moved) : comes_before(moved, other)))
                break;
            places[at] = places[at - 1];
        }
        places[at] = i;
    }
}

/* Elements `first`.. of each line in order, `count` of them. */
static int ordered(const op_array *x, int64_t dim, bool descending, int64_t count,
                   int64_t (*first)(const double *, const line *, const trek_attrs *),
                   const trek_attrs *a, op_array *out)
{
    line l = line_of(x, dim);
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    if (x->ndim > 0)
        sizes[dim < 0 ? dim + x->ndim : dim] = count;
    array_make(&out[0], x->dtype, x->ndim, sizes);
    array_make(&out[1], TREK_I64, x->ndim, sizes);
    int64_t *places = malloc(sizeof *places * (size_t)(l.n + 1));
    for (int64_t i = 0; places && i < l.before * l.behind; i++) {
        const double *from = x->v + i / l.behind * l.n * l.behind + i % l.behind;
        order_line(from, &l, descending, places);
        int64_t start = first ? first(from, &l, a) : 0;
        for (int64_t j = 0; j < count; j++) {
            int64_t to = (i / l.behind * count + j) * l.behind + i % l.behind;
            out[0].v[to] = from[places[start + j] * l.step];
            out[1].v[to] = (double)places[start + j];
        }
    }
    free(places);
    return 2;
}

REFERENCE(sort)
{
    return ordered(in[0], a->i[0], a->i[1] != 0, line_of(in[0], a->i[0]).n, NULL, a, out);
}

REFERENCE(topk)
{
    return ordered(in[0], a->i[0], a->i[2] != 0, in[0]->ndim > 0 ? a->i[1] : 1, NULL, a, out);
}

static int64_t chosen(const double *x, const line *l, const trek_attrs *a)
{
    int64_t numbers = 0;
    for (int64_t i = 0; i < l->n; i++)
        numbers += !isnan(x[i * l->step]);
    if (a->i[2] == TREK_ORDER_KTH)
        return a->i[1] - 1;
    if (a->i[2] == TREK_ORDER_MEDIAN && numbers < l->n)
        return numbers;
    return numbers ? (numbers - 1) / 2 : 0;
}

REFERENCE(kthvalue)
{
    return ordered(in[0], a->i[0], false, 1, chosen, a, out);
}

static int running(const op_array *x, int64_t dim, bool smallest, op_array *out)
{
    line l = line_of(x, dim);
    array_like(&out[0], x, x->dtype);
    array_like(&out[1], x, TREK_I64);
    for (int64_t i = 0; i < l.before * l.behind; i++) {
        int64_t base = i / l.behind * l.n * l.behind + i % l.behind, best = 0;
        for (int64_t j = 0; j < l.n; j++) {
            double here = x->v[base + j * l.step], held = x->v[base + best * l.step];
            if (isnan(here) || (!isnan(held) && (smallest ? here <= held : here >= held)))
                best = j;
            out[0].v[base + j * l.step] = x->v[base + best * l.step];
            out[1].v[base + j * l.step] = (double)best;
        }
    }
    return 2;
}

REFERENCE(cummax)
{
    return running(in[0], a->i[0], false, out);
}

REFERENCE(cummin)
{
    return running(in[0], a->i[0], true, out);
}

REFERENCE(cumprod)
{
    line l = line_of(in[0], a->i[0]);
    array_like(&out[0], in[0], dtype_floats(in[0]->dtype) ? in[0]->dtype : TREK_I64);
    for (int64_t i = 0; i < l.before * l.behind; i++) {
        int64_t base = i / l.behind * l.n * l.behind + i % l.behind;
        double product = 1;
        for (int64_t j = 0; j < l.n; j++)
            out[0].v[base + j * l.step] = product *= in[0]->v[base + j * l.step];
    }
    return 1;
}

REFERENCE(searchsorted)
{
    const op_array *lines = in[0], *x = in[1];
    int64_t width = lines->sizes[lines->ndim - 1], each = x->ndim > 0 ? x->sizes[x->ndim - 1] : 1;
    array_like(&out[0], x, TREK_I64);
    for (int64_t i = 0; i < x->numel; i++) {
        const double *line = lines->v + (lines->ndim > 1 ? i / each * width : 0);
        int64_t low = 0, high = width;
        while (low < high) { /* halves, as every search does: lines need not be sorted for it to end */
            int64_t middle = low + (high - low) / 2;
            if (a->i[0] ? line[middle] > x->v[i] : line[middle] >= x->v[i])
                high = middle;
            else
                low = middle + 1;
        }
        out[0].v[i] = (double)low;
    }
    return 1;
}

REFERENCE(nonzero)
{
    int64_t sizes[2] = { 0, in[0]->ndim }, index[TREK_MAX_DIMS] = { 0 }, at = 0;
    for (int64_t i = 0; i < in[0]->numel; i++)
        sizes[0] += in[0]->v[i] != 0;
    array_make(&out[0], TREK_I64, 2, sizes);
    for (int64_t i = 0; i < in[0]->numel; i++) {
        for (int d = 0; d < in[0]->ndim && in[0]->v[i] != 0; d++)
            out[0].v[at++] = (double)index[d];
        array_next(index, in[0]->ndim, in[0]->sizes);
    }
    return 1;
}

static double combined(double held, double value, int64_t kind)
{
    if (kind == TREK_SCATTER_PROD)
        return held * value;
    if (isnan(held) || isnan(value))
        return NAN;
    return kind == TREK_SCATTER_AMAX ? fmax(held, value) : fmin(held, value);
}

static int scattered(const op_array *const *in, const trek_attrs *a, op_array *out, bool reduce)
{
    int64_t index[TREK_MAX_DIMS] = { 0 }, dim = a->i[0] < 0 ? a->i[0] + in[0]->ndim : a->i[0];
    array_like(&out[0], in[0], in[0]->dtype);
    array_scaled(&out[0]);
    for (int64_t i = 0; i < in[0]->numel; i++) {
        out[0].v[i] = in[0]->v[i];
        out[0].scale[i] = fabs(in[0]->v[i]);
    }
    for (int64_t i = 0; i < in[1]->numel; i++) {
        int64_t to[TREK_MAX_DIMS];
        memcpy(to, index, sizeof to);
        to[dim] = (int64_t)in[1]->v[i];
        int64_t at = array_index(in[0], to);
        double value = in[2]->v[i];
        array_set(&out[0], at, reduce ? combined(out[0].v[at], value, a->i[1]) : value);
        out[0].scale[at] = fmax(out[0].scale[at], fabs(out[0].v[at]));
        array_next(index, in[1]->ndim, in[1]->sizes);
    }
    return 1;
}

REFERENCE(scatter)
{
    return scattered(in, a, out, false);
}

REFERENCE(scatter_reduce)
{
    return scattered(in, a, out, true);
}

REFERENCE(diagonal)
{
    const op_array *x = in[0];
    int first = (int)(a->i[1] < 0 ? a->i[1] + x->ndim : a->i[1]), second = (int)(a->i[2] < 0 ? a->i[2] + x->ndim : a->i[2]),
        rest = 0;
    int64_t sizes[TREK_MAX_DIMS], length = 0, index[TREK_MAX_DIMS] = { 0 };
    for (int d = 0; d < x->ndim; d++)
        if (d != first && d != second)
            sizes[rest++] = x->sizes[d];
    for (int64_t r = 0; r < x->sizes[first]; r++)
        length += r + a->i[0] >= 0 && r + a->i[0] < x->sizes[second];
    sizes[rest] = length;
    array_make(&out[0], x->dtype, rest + 1, sizes);
    for (int64_t i = 0; i < out[0].numel; i++) {
        int64_t from[TREK_MAX_DIMS];
        for (int d = 0, k = 0; d < x->ndim; d++)
            if (d != first && d != second)
                from[d] = index[k++];
        from[first] = index[rest] + (a->i[0] < 0 ? -a->i[0] : 0);
        from[second] = index[rest] + (a->i[0] > 0 ? a->i[0] : 0);
        out[0].v[i] = x->v[array_index(x, from)];
        array_next(index, rest + 1, sizes);
    }
    return 1;
}

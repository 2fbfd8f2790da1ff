/* SPDX-License-Identifier: Apache-2.0 */
/* References of resampling and of sampling at places of a grid: what each element of the result is made of, written out in f64.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/ops/suite.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

enum { LINEAR, CUBIC, LINEAR_ANTIALIAS, CUBIC_ANTIALIAS };

/* Keys (1981). */
static double keys(double x, double a)
{
    x = fabs(x);
    if (x < 1)
        return (a + 2) * pow(x, 3) - (a + 3) * pow(x, 2) + 1;
    return x < 2 ? a * pow(x, 3) - 5 * a * pow(x, 2) + 8 * a * x - 4 * a : 0;
}

static double keys_slope(double x, double a)
{
    double size = fabs(x), slope = size < 1 ? 3 * (a + 2) * pow(size, 2) - 2 * (a + 3) * size
                                            : size < 2 ? 3 * a * pow(size, 2) - 10 * a * size + 8 * a : 0;
    return x < 0 ? -slope : slope;
}

/* The weight of element i of `in` in element o of `out`, before it is divided by the sum of all; edges are repeated. */
static double line_weight(int64_t i, int64_t o, int64_t in, int64_t out, const trek_attrs *a)
{
    double step = a->f[0] > 0 ? 1 / a->f[0] : (double)in / (double)out, weight = 0;
    if (a->i[3])
        step = out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
    if (a->i[2] >= LINEAR_ANTIALIAS) {
        double wide = step > 1 ? step : 1, distance = ((double)i + 0.5 - step * ((double)o + 0.5)) / wide;
        return a->i[2] == CUBIC_ANTIALIAS ? keys(distance, -0.5) : fabs(distance) < 1 ? 1 - fabs(distance) : 0;
    }
    double centre = a->i[3] ? step * (double)o : step * ((double)o + 0.5) - 0.5;
    if (a->i[2] == LINEAR && centre < 0)
        centre = 0;
    for (int64_t j = (int64_t)floor(centre) - 2; j <= (int64_t)floor(centre) + 3; j++) {
        int64_t at = j < 0 ? 0 : j >= in ? in - 1 : j;
        double distance = fabs(centre - (double)j);
        if (at == i)
            weight += a->i[2] == CUBIC ? keys(distance, -0.75) : distance < 1 ? 1 - distance : 0;
    }
    return weight;
}

/* How far rounding a place in f32, as torch does, or in f64 may shift a term of that size, as a scale of the result's dtype. */
static double shift_of(const op_array *to, double size, int64_t places)
{
    double rounds = to->dtype == TREK_BF16 ? 0x1p-11 : to->dtype == TREK_F16 ? 0x1p-8 : 1; /* more, at the end */
    return fabs(size) * (double)places / 4 * rounds;
}

/* Adds what x [outer, in, inner] gives to y [outer, out, inner], or the other way. */
static void resample_walk(const op_array *from, op_array *to, const trek_attrs *a, bool backward)
{
    const op_array *x = backward ? to : from, *y = backward ? from : to;
    int dim = (int)a->i[0] < 0 ? (int)a->i[0] + x->ndim : (int)a->i[0];
    int64_t in = x->sizes[dim], out = y->sizes[dim], inner = 1;
    for (int d = dim + 1; d < x->ndim; d++)
        inner *= x->sizes[d];
    for (int64_t at = 0; at < y->numel; at++) {
        int64_t o = at / inner % out, line = at / inner / out;
        double total = 0;
        for (int64_t i = 0; i < in; i++)
            total += line_weight(i, o, in, out, a);
        for (int64_t i = 0; i < in; i++) {
            double weight = line_weight(i, o, in, out, a) / (a->i[2] >= LINEAR_ANTIALIAS && total != 0 ? total : 1);
            int64_t place = (line * in + i) * inner + at % inner;
            double element = from->v[backward ? at : place];
            to->v[backward ? place : at] += weight * element;
            bool near = weight != 0 || line_weight(i - 1, o, in, out, a) != 0 || line_weight(i + 1, o, in, out, a) != 0;
            to->scale[backward ? place : at] += fabs(weight * element) + (near ? shift_of(to, element, in) : 0);
        }
    }
}

static int resampled(const op_array *x, const trek_attrs *a, op_array *out, bool backward)
{
    int64_t sizes[TREK_MAX_DIMS];
    int dim = (int)a->i[0] < 0 ? (int)a->i[0] + x->ndim : (int)a->i[0];
    for (int d = 0; d < x->ndim; d++)
        sizes[d] = d == dim ? a->i[1] : x->sizes[d];
    array_make(out, x->dtype, x->ndim, sizes);
    array_scaled(out);
    resample_walk(x, out, a, backward);
    for (int64_t i = 0; i < out->numel; i++)
        array_set(out, i, out->v[i]);
    return 1;
}

REFERENCE(resample)
{
    return resampled(in[0], a, out, false);
}

REFERENCE(resample_backward)
{
    return resampled(in[0], a, out, true);
}

/* --- places of a grid ---------------------------------------------------------------------- */

enum { BILINEAR, NEAREST, BICUBIC };
enum { ZEROS, BORDER, REFLECTION };

/* Brought between the edges by turning back at each; *slope changes its sign with every turn. */
static double reflected(double at, double low, double high, double *slope)
{
    if (high <= low)
        return *slope = 0;
    while (at < low || at > high) {
        at = at < low ? 2 * low - at : 2 * high - at;
        *slope = -*slope;
    }
    return at;
}

static double padded(double at, int64_t size, const trek_attrs *a, double *slope)
{
    double last = (double)(size - 1);
    if (a->i[1] == REFLECTION)
        at = reflected(at, a->i[2] ? 0 : -0.5, a->i[2] ? last : last + 0.5, slope);
    if (a->i[1] != ZEROS) {
        *slope = at <= 0 || at >= last ? 0 : *slope;
        at = at < 0 ? 0 : at > last ? last : at;
    }
    return at;
}

/* What element i of a line weighs at the grid's number, and the derivative of that. */
static double place_weight(double number, int64_t i, int64_t size, const trek_attrs *a, double *derivative)
{
    double at = a->i[2] ? (number + 1) / 2 * (double)(size - 1) : ((number + 1) * (double)size - 1) / 2;
    double slope = (double)(a->i[2] ? size - 1 : size) / 2, weight = 0, none = 0;
    *derivative = 0;
    if (a->i[0] == BICUBIC) {
        for (int64_t j = (int64_t)floor(at) - 1; j <= (int64_t)floor(at) + 2; j++)
            if (nearbyint(padded((double)j, size, a, &none)) == (double)i) {
                weight += keys(at - (double)j, -0.75);
                *derivative += slope * keys_slope(at - (double)j, -0.75);
            }
        return weight;
    }
    at = padded(at, size, a, &slope);
    if (a->i[0] == NEAREST)
        return nearbyint(at) == (double)i;
    double distance = at - (double)i;
    if (floor(at) == (double)i || floor(at) + 1 == (double)i) {
        *derivative = floor(at) == (double)i ? -slope : slope;
        weight = 1 - fabs(distance);
    }
    return weight;
}

typedef struct grid_walk {
    const op_array *x, *grid, *dy;
    op_array *y, *dx, *dgrid;
    const trek_attrs *a;
} grid_walk;

/* shift: what a place's rounding may do to the term, for each element of a line */
static void add_to(op_array *to, int64_t at, double term, double shift, int64_t size)
{
    if (!to || to->numel == 0)
        return;
    to->v[at] += term;
    to->scale[at] += fabs(term) + shift_of(to, shift, size);
}

typedef struct line_weights {
    double weight, slope;
} line_weights;

/* What each element of each line weighs at a place: lines of the last dimension first, as the grid's numbers. */
static line_weights *lines_of(const grid_walk *w, int64_t place, int dims)
{
    const op_array *x = w->x;
    int64_t n = 0;
    for (int d = 0; d < dims; d++)
        n += x->sizes[x->ndim - 1 - d];
    line_weights *lines = malloc(sizeof *lines * (size_t)n), *at = lines;
    for (int d = 0; d < dims && lines; d++) {
        int64_t size = x->sizes[x->ndim - 1 - d];
        for (int64_t i = 0; i < size; i++, at++)
            at->weight = place_weight(w->grid->v[place * dims + d], i, size, w->a, &at->slope);
    }
    return lines;
}

/* Element i of the result, and all of a channel. */
static void walk_place(const grid_walk *w, int64_t i)
{
    const op_array *x = w->x;
    int dims = x->ndim - 2;
    int64_t points = 1, plane = 1;
    for (int d = 0; d < dims; d++) {
        points *= w->grid->sizes[1 + d];
        plane *= x->sizes[2 + d];
    }
    int64_t channel = i / points, place = i / points / x->sizes[1] * points + i % points;
    line_weights *lines = lines_of(w, place, dims), of[3];
    for (int64_t e = 0; e < plane && lines; e++) {
        double weight = 1, grad = w->dy ? w->dy->v[i] : 0, element = x->v[channel * plane + e];
        int64_t rest = e, first = 0;
        bool touched = true;
        for (int d = 0; d < dims && touched; d++) {
            int64_t size = x->sizes[x->ndim - 1 - d];
            of[d] = lines[first + rest % size];
            weight *= of[d].weight;
            touched = of[d].weight != 0 || of[d].slope != 0; /* else no term of this element is one */
            rest /= size;
            first += size;
        }
        if (!touched)
            continue;
        add_to(w->y, i, weight * element, element, plane);
        add_to(w->dx, channel * plane + e, weight * grad, grad, plane);
        for (int d = 0; d < dims; d++) {
            double slope = of[d].slope;
            for (int o = 0; o < dims; o++)
                slope *= o == d ? 1 : of[o].weight;
            add_to(w->dgrid, place * dims + d, slope * element * grad, element * grad, plane);
        }
    }
    free(lines);
}

REFERENCE(grid_sample)
{
    int64_t sizes[5] = { in[0]->sizes[0], in[0]->sizes[1], in[1]->sizes[1], in[1]->sizes[2], in[1]->sizes[3] };
    array_make(&out[0], in[0]->dtype, in[0]->ndim, sizes);
    array_scaled(&out[0]);
    for (int64_t i = 0; i < out[0].numel; i++)
        walk_place(&(grid_walk){ .x = in[0], .grid = in[1], .y = &out[0], .a = a }, i);
    for (int64_t i = 0; i < out[0].numel; i++)
        array_set(&out[0], i, out[0].v[i]);
    return 1;
}

/* A gradient that is not wanted has no elements. */
REFERENCE(grid_sample_backward)
{
    for (int k = 0; k < 2; k++) {
        if (a->i[3] >> k & 1)
            array_make(&out[k], in[0]->dtype, 1, (const int64_t[]){ 0 });
        else
            array_like(&out[k], in[1 + k], in[0]->dtype);
        array_scaled(&out[k]);
    }
    for (int64_t i = 0; i < in[0]->numel; i++)
        walk_place(&(grid_walk){ .dy = in[0], .x = in[1], .grid = in[2], .dx = &out[0], .dgrid = &out[1], .a = a }, i);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < out[k].numel; i++)
            array_set(&out[k], i, out[k].v[i]);
    return 2;
}

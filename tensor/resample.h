/* SPDX-License-Identifier: Apache-2.0 */
/* Of which elements an element of a resampled line is made, and with what weights; all backends use this text. */
#ifndef TREK_TENSOR_RESAMPLE_H
#define TREK_TENSOR_RESAMPLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "tensor/op_opts.h"

#ifdef __CUDACC__
#define TREK_EVERYWHERE static __host__ __device__ inline
#else
#define TREK_EVERYWHERE static inline
#endif

/* The first two use 2 and 4 elements; the others use all elements that a wider kernel covers if the result is smaller. */
enum trek_resample_kind {
    TREK_RESAMPLE_LINEAR,
    TREK_RESAMPLE_CUBIC,
    TREK_RESAMPLE_LINEAR_ANTIALIAS,
    TREK_RESAMPLE_CUBIC_ANTIALIAS,
    TREK_RESAMPLE_KINDS
};

/* A line of `in` elements that becomes one of `out`. */
typedef struct trek_resample_plan {
    int64_t in, out;
    int kind;
    bool align, wide; /* wide: x is f64; otherwise positions are f32, as in torch */
    double step;      /* elements of x for one of the result */
    double reach;     /* antialiasing: the distance from its centre that an element covers */
} trek_resample_plan;

/* The elements of x of which one of the result is made: `count` of them from `first` on. Elements before and after
 * the line are its first and its last one. */
typedef struct trek_resample_window {
    int64_t first;
    int count;
    double centre; /* its position, in elements of x */
    double total;  /* weights are divided by it */
} trek_resample_window;

TREK_EVERYWHERE double trek_resample_rounded(const trek_resample_plan *p, double v) { return p->wide ? v : (double)(float)v; }

/* Keys' kernel (1981), at a distance of up to 1, and from 1 to 2. */
TREK_EVERYWHERE double trek_cubic_near(double x, double a) { return ((a + 2) * x - (a + 3)) * x * x + 1; }
TREK_EVERYWHERE double trek_cubic_far(double x, double a) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; }

/* The antialiasing kernels: triangle; Keys' with a = -0.5, as in image libraries. */
TREK_EVERYWHERE double trek_resample_filter(const trek_resample_plan *p, double x)
{
    x = fabs(x);
    if (p->kind == TREK_RESAMPLE_LINEAR_ANTIALIAS)
        return x < 1 ? 1 - x : 0;
    return x < 1 ? trek_cubic_near(x, -0.5) : x < 2 ? trek_cubic_far(x, -0.5) : 0;
}

/* scale: the op's f[0]. */
TREK_EVERYWHERE trek_resample_plan trek_resample_planned(int64_t in, int64_t out, int kind, bool align, bool wide, double scale)
{
    trek_resample_plan p = { in, out, kind, align, wide, 0, 0 };
    if (align)
        p.step = out > 1 ? trek_resample_rounded(&p, trek_resample_rounded(&p, (double)(in - 1)) / (double)(out - 1)) : 0;
    else
        p.step = trek_resample_rounded(&p, scale > 0 ? 1 / scale : (double)in / (double)out);
    double half = kind == TREK_RESAMPLE_LINEAR_ANTIALIAS ? 1 : 2;
    p.reach = p.step >= 1 ? trek_resample_rounded(&p, half * p.step) : half;
    return p;
}

/* Returns the length of the longest window. */
TREK_EVERYWHERE int64_t trek_resample_most(const trek_resample_plan *p)
{
    if (p->kind <= TREK_RESAMPLE_CUBIC)
        return p->kind == TREK_RESAMPLE_LINEAR ? 2 : 4;
    double most = 2 * ceil(p->reach) + 1;
    return most < (double)p->in ? (int64_t)most : p->in;
}

/* Returns the argument of the kernel for an element of x. */
TREK_EVERYWHERE double trek_resample_argument(const trek_resample_plan *p, const trek_resample_window *w, int k)
{
    return ((double)(w->first + k) - w->centre + 0.5) * (p->step >= 1 ? 1 / p->step : 1);
}

TREK_EVERYWHERE trek_resample_window trek_resample_window_of(const trek_resample_plan *p, int64_t o)
{
    trek_resample_window w = { 0, 0, 0, 1 };
    if (p->kind > TREK_RESAMPLE_CUBIC) {
        w.centre = trek_resample_rounded(p, p->step * ((double)o + 0.5));
        double begin = trek_resample_rounded(p, trek_resample_rounded(p, w.centre - p->reach) + 0.5);
        double end = trek_resample_rounded(p, trek_resample_rounded(p, w.centre + p->reach) + 0.5);
        int64_t most = trek_resample_most(p), last = end < (double)p->in ? (int64_t)end : p->in;
        w.first = begin > 0 ? (int64_t)begin : 0;
        w.first = w.first < p->in ? w.first : p->in;
        w.count = (int)(last < w.first ? 0 : last - w.first < most ? last - w.first : most);
        w.total = 0;
        for (int k = 0; k < w.count; k++)
            w.total += trek_resample_filter(p, trek_resample_argument(p, &w, k));
        w.total = w.total != 0 ? w.total : 1;
        return w;
    }
    w.centre = p->align ? trek_resample_rounded(p, p->step * (double)o)
                        : trek_resample_rounded(p, trek_resample_rounded(p, p->step * ((double)o + 0.5)) - 0.5);
    bool linear = p->kind == TREK_RESAMPLE_LINEAR;
    w.centre = linear && w.centre < 0 ? 0 : w.centre;
    double below = floor(w.centre), last = (double)(p->in - 1);
    w.first = (int64_t)(below < last ? below : last) - !linear;
    w.count = linear ? 2 : 4;
    return w;
}

/* Returns the index of the k-th element of a window, and its weight. */
TREK_EVERYWHERE int64_t trek_resample_place(const trek_resample_plan *p, const trek_resample_window *w, int k)
{
    int64_t at = w->first + k;
    return at < 0 ? 0 : at < p->in ? at : p->in - 1;
}
TREK_EVERYWHERE double trek_resample_weight(const trek_resample_plan *p, const trek_resample_window *w, int k)
{
    if (p->kind > TREK_RESAMPLE_CUBIC)
        return trek_resample_filter(p, trek_resample_argument(p, w, k)) / w->total;
    bool linear = p->kind == TREK_RESAMPLE_LINEAR;
    double past = w->centre - (double)(w->first + !linear);
    past = past > 0 ? past < 1 ? past : 1 : 0;
    if (linear)
        return k == 0 ? 1 - past : past;
    const double a = -0.75;
    return k == 0 ? trek_cubic_far(past + 1, a) : k == 1 ? trek_cubic_near(past, a)
        : k == 2 ? trek_cubic_near(1 - past, a) : trek_cubic_far(2 - past, a);
}

#endif

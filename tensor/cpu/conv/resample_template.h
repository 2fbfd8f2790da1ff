/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of other sizes, for one real type. Included by resample.c. */
#include "tensor/cpu/conv/taps_template.h"

/* Computes rows y[n] += (or =) weighted rows of x, four at a time. */
static void TREK_R(weigh_rows)(T *y, int64_t n, const T *const *rows, const T *weight, int count, bool first)
{
    const T *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    V wa = TREK_R(spread)(weight[0]), wb = TREK_R(spread)(weight[1]), wc = TREK_R(spread)(weight[2]),
      wd = TREK_R(spread)(weight[3]);
    for (int64_t i = 0; i < n; i += W) {
        trek_lanes lanes = TREK_R(lanes)(n - i < W ? (int)(n - i) : W);
        V sum = TREK_R(load_part)(a + i, lanes) * wa;
        if (count > 1)
            sum = TREK_R(fma)(TREK_R(load_part)(b + i, lanes), wb, sum);
        if (count > 2)
            sum = TREK_R(fma)(TREK_R(load_part)(c + i, lanes), wc, sum);
        if (count > 3)
            sum = TREK_R(fma)(TREK_R(load_part)(d + i, lanes), wd, sum);
        if (!first)
            sum += TREK_R(load_part)(y + i, lanes);
        TREK_R(store_part)(y + i, lanes, sum);
    }
}

/* Computes position o of the result: a row of `inner` elements. */
static void TREK_R(resample_row)(const resample_job *job, const T *x, T *y, int64_t o)
{
    const T *weights = job->weight, *rows[4] = { x, x, x, x };
    T some[4] = { 0 };
    int count = 0;
    bool first = true;
    for (int64_t t = 0; t < job->taps; t++) {
        if (job->index[t * job->step + o] < 0)
            continue;
        rows[count] = x + job->index[t * job->step + o] * job->inner;
        some[count++] = weights[t * job->step + o];
        if (count == 4) {
            TREK_R(weigh_rows)(y, job->inner, rows, some, count, first);
            first = false;
            count = 0;
        }
    }
    if (count > 0)
        TREK_R(weigh_rows)(y, job->inner, rows, some, count, first);
    else if (first)
        memset(y, 0, (size_t)job->inner * sizeof *y);
}

/* Units are lines, or rows if a position of a line is a row. */
static void TREK_R(resample_units)(void *arg, int64_t begin, int64_t end)
{
    const resample_job *job = arg;
    const T *x = job->from;
    T *y = job->to;
    if (job->inner == 1) {
        for (int64_t line = begin; line < end; line++)
            TREK_R(weigh)(y + line * job->out, job->out, x + line * job->in, job->index, job->weight, job->taps, job->step);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++)
        TREK_R(resample_row)(job, x + unit / job->out * job->in * job->inner, y + unit * job->inner, unit % job->out);
}

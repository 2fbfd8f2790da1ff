/* SPDX-License-Identifier: Apache-2.0 */
/* References of recurrent layers, one number at a time. */
#include <math.h>
#include <string.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

static trek_dtype statistics_dtype(trek_dtype dtype)
{
    return dtype == TREK_BF16 || dtype == TREK_F16 ? TREK_F32 : dtype;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Errors add up over steps and products; 16-bit results are rounded once. */
static void make(op_array *out, trek_dtype dtype, int ndim, const int64_t *sizes, double size)
{
    array_make(out, dtype, ndim, sizes);
    array_scaled(out);
    for (int64_t i = 0; i < out->numel; i++)
        out->scale[i] = dtype == TREK_BF16 || dtype == TREK_F16 ? 1 : size;
}

/* What is kept for backward, in f32 of 16-bit rows: a GPU's products read states that were rounded to 16 bits. */
static void make_kept(op_array *out, const op_array *gates, bool keep, int64_t parts, int64_t size)
{
    bool half = gates->dtype == TREK_BF16 || gates->dtype == TREK_F16;
    make(out, statistics_dtype(gates->dtype), 3, (const int64_t[3]){ keep ? gates->sizes[0] : 0, gates->sizes[1], parts * size },
         !half || test_on_cpu() ? 32 : gates->dtype == TREK_BF16 ? 4096 : 512);
}

/* The steps of one row, in the order in which they are taken: times[s] for s < the result. */
static int64_t times_of(const op_array *lengths, int64_t row, int64_t steps, bool reverse, int64_t *times)
{
    int64_t count = lengths ? (int64_t)lengths->v[row] : steps;
    for (int64_t s = 0; s < count; s++)
        times[s] = reverse ? count - 1 - s : s;
    return count;
}

static double at_state(const op_array *state, int64_t place) { return state ? state->v[place] : 0; }

/* sum_k weight[g H + j][k] h[k] */
static double product(const op_array *weight, int64_t line, const double *h)
{
    double sum = 0;
    for (int64_t k = 0; k < weight->sizes[1]; k++)
        sum += weight->v[line * weight->sizes[1] + k] * h[k];
    return sum;
}

enum { MOST_STEPS = 16, MOST_HIDDEN = 640 };

REFERENCE(lstm)
{
    const op_array *gates = in[0], *weight = in[1];
    int64_t steps = gates->sizes[0], rows = gates->sizes[1], size = weight->sizes[1], times[MOST_STEPS];
    make(&out[0], gates->dtype, 3, (const int64_t[3]){ steps, rows, size }, 32);
    make(&out[1], gates->dtype, 3, (const int64_t[3]){ 2, rows, size }, 32);
    make_kept(&out[2], gates, a->i[1], 5, size);
    for (int64_t row = 0; row < rows; row++) {
        double h[MOST_HIDDEN], c[MOST_HIDDEN], next[MOST_HIDDEN], part[4];
        for (int64_t j = 0; j < size; j++) {
            h[j] = at_state(in[2], row * size + j);
            c[j] = at_state(in[3], row * size + j);
        }
        int64_t count = times_of(in[4], row, steps, a->i[0], times);
        for (int64_t s = 0; s < count; s++) {
            int64_t at = times[s] * rows + row;
            for (int64_t j = 0; j < size; j++) {
                for (int g = 0; g < 4; g++) {
                    double x = gates->v[(at * 4 + g) * size + j] + product(weight, g * size + j, h);
                    part[g] = g == 2 ? tanh(x) : sigmoid(x);
                }
                c[j] = part[1] * c[j] + part[0] * part[2];
                next[j] = part[3] * tanh(c[j]);
                for (int g = 0; g < 5 && a->i[1]; g++)
                    out[2].v[(at * 5 + g) * size + j] = g < 4 ? part[g] : c[j];
                out[0].v[at * size + j] = next[j];
            }
            memcpy(h, next, sizeof h);
        }
        for (int64_t j = 0; j < size; j++) {
            out[1].v[row * size + j] = h[j];
            out[1].v[(rows + row) * size + j] = c[j];
        }
    }
    return 3;
}

/* to[k] += sum over the lines of weight of d[line] weight[line][k] */
static void add_back(const op_array *weight, const double *d, double *to)
{
    int64_t size = weight->sizes[1];
    for (int64_t line = 0; line < weight->sizes[0]; line++)
        for (int64_t k = 0; k < size; k++)
            to[k] += d[line] * weight->v[line * size + k];
}

/* weight, kept, grad, grad of the state, c0, lengths */
REFERENCE(lstm_backward)
{
    const op_array *weight = in[0], *kept = in[1];
    int64_t steps = kept->sizes[0], rows = kept->sizes[1], size = weight->sizes[1], times[MOST_STEPS];
    make(&out[0], weight->dtype, 3, (const int64_t[3]){ steps, rows, 4 * size }, 64 + (double)size);
    make(&out[1], weight->dtype, 3, (const int64_t[3]){ 2, rows, size }, 64 + (double)size);
    for (int64_t row = 0; row < rows; row++) {
        double dh[MOST_HIDDEN] = { 0 }, dc[MOST_HIDDEN] = { 0 }, d[4 * MOST_HIDDEN];
        for (int64_t j = 0; j < size; j++) {
            dh[j] = at_state(in[3], row * size + j);
            dc[j] = at_state(in[3], (rows + row) * size + j);
        }
        for (int64_t s = times_of(in[5], row, steps, a->i[0], times) - 1; s >= 0; s--) {
            int64_t at = times[s] * rows + row, before = s > 0 ? times[s - 1] * rows + row : 0;
            for (int64_t j = 0; j < size; j++) {
                const double *k = &kept->v[at * 5 * size + j];
                double i = k[0], f = k[size], g = k[2 * size], o = k[3 * size], cell = tanh(k[4 * size]);
                double past = s > 0 ? kept->v[(before * 5 + 4) * size + j] : at_state(in[4], row * size + j);
                double dy = dh[j] + at_state(in[2], at * size + j), dcell = dc[j] + dy * o * (1 - cell * cell);
                d[j] = dcell * g * i * (1 - i);
                d[size + j] = dcell * past * f * (1 - f);
                d[2 * size + j] = dcell * i * (1 - g * g);
                d[3 * size + j] = dy * cell * o * (1 - o);
                dc[j] = dcell * f;
            }
            memset(dh, 0, sizeof dh);
            add_back(weight, d, dh);
            for (int64_t j = 0; j < 4 * size; j++)
                out[0].v[at * 4 * size + j] = d[j];
        }
        for (int64_t j = 0; j < size; j++) {
            out[1].v[row * size + j] = dh[j];
            out[1].v[(rows + row) * size + j] = dc[j];
        }
    }
    return 2;
}

REFERENCE(gru)
{
    const op_array *gates = in[0], *weight = in[1];
    int64_t steps = gates->sizes[0], rows = gates->sizes[1], size = weight->sizes[1], times[MOST_STEPS];
    make(&out[0], gates->dtype, 3, (const int64_t[3]){ steps, rows, size }, 32);
    make(&out[1], gates->dtype, 2, (const int64_t[2]){ rows, size }, 32);
    make_kept(&out[2], gates, a->i[1], 4, size);
    for (int64_t row = 0; row < rows; row++) {
        double h[MOST_HIDDEN], next[MOST_HIDDEN], part[4], x[3];
        for (int64_t j = 0; j < size; j++)
            h[j] = at_state(in[3], row * size + j);
        int64_t count = times_of(in[4], row, steps, a->i[0], times);
        for (int64_t s = 0; s < count; s++) {
            int64_t at = times[s] * rows + row;
            for (int64_t j = 0; j < size; j++) {
                for (int g = 0; g < 3; g++)
                    x[g] = product(weight, g * size + j, h) + at_state(in[2], g * size + j);
                part[0] = sigmoid(gates->v[at * 3 * size + j] + x[0]);
                part[1] = sigmoid(gates->v[(at * 3 + 1) * size + j] + x[1]);
                part[2] = tanh(gates->v[(at * 3 + 2) * size + j] + part[0] * x[2]);
                part[3] = x[2];
                next[j] = (1 - part[1]) * part[2] + part[1] * h[j];
                for (int g = 0; g < 4 && a->i[1]; g++)
                    out[2].v[(at * 4 + g) * size + j] = part[g];
                out[0].v[at * size + j] = next[j];
            }
            memcpy(h, next, sizeof h);
        }
        for (int64_t j = 0; j < size; j++)
            out[1].v[row * size + j] = h[j];
    }
    return 3;
}

/* weight, kept, y, grad, grad of the state, h0, lengths */
REFERENCE(gru_backward)
{
    const op_array *weight = in[0], *kept = in[1], *y = in[2];
    int64_t steps = kept->sizes[0], rows = kept->sizes[1], size = weight->sizes[1], times[MOST_STEPS];
    for (int k = 0; k < 2; k++)
        make(&out[k], weight->dtype, 3, (const int64_t[3]){ steps, rows, 3 * size }, 64 + (double)size);
    make(&out[2], weight->dtype, 2, (const int64_t[2]){ rows, size }, 64 + (double)size);
    for (int64_t row = 0; row < rows; row++) {
        double dh[MOST_HIDDEN] = { 0 }, d[3 * MOST_HIDDEN];
        for (int64_t j = 0; j < size; j++)
            dh[j] = at_state(in[4], row * size + j);
        for (int64_t s = times_of(in[6], row, steps, a->i[0], times) - 1; s >= 0; s--) {
            int64_t at = times[s] * rows + row, before = s > 0 ? times[s - 1] * rows + row : 0;
            for (int64_t j = 0; j < size; j++) {
                const double *k = &kept->v[at * 4 * size + j];
                double r = k[0], z = k[size], new = k[2 * size], product_part = k[3 * size];
                double h = s > 0 ? y->v[before * size + j] : at_state(in[5], row * size + j);
                double dy = dh[j] + at_state(in[3], at * size + j), dn = dy * (1 - z) * (1 - new * new);
                d[j] = dn * product_part * r * (1 - r);
                d[size + j] = dy * (h - new) * z * (1 - z);
                d[2 * size + j] = dn * r;
                out[0].v[(at * 3 + 2) * size + j] = dn;
                dh[j] = dy * z;
            }
            add_back(weight, d, dh);
            for (int64_t j = 0; j < 3 * size; j++) {
                out[1].v[at * 3 * size + j] = d[j];
                if (j < 2 * size)
                    out[0].v[at * 3 * size + j] = d[j];
            }
        }
        for (int64_t j = 0; j < size; j++)
            out[2].v[row * size + j] = dh[j];
    }
    return 3;
}

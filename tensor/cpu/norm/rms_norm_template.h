/* SPDX-License-Identifier: Apache-2.0 */
/* Root mean square norm over rows of n elements for one real type. Included by rms_norm.c. */
#include "tensor/cpu/vector.h"

/* Sums the squares of a row in four parallel vectors. */
static T TREK_R(row_squares)(const T *x, int64_t n)
{
    V sum[4] = { { 0 } };
    int64_t j = 0;
    for (; j + 4 * W <= n; j += 4 * W)
        for (int v = 0; v < 4; v++) {
            V part = TREK_R(load)(x + j + v * W);
            sum[v] = TREK_R(fma)(part, part, sum[v]);
        }
    for (; j < n; j += W) {
        V part = TREK_R(load_part)(x + j, TREK_R(lanes)(n - j < W ? (int)(n - j) : W));
        sum[0] = TREK_R(fma)(part, part, sum[0]);
    }
    return TREK_R(sum)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static void TREK_R(forward_rows)(void *arg, int64_t begin, int64_t end)
{
    const rms_job *job = arg;
    const int64_t n = job->columns;
    const T *weight = job->weight;
    for (int64_t row = begin; row < end; row++) {
        const T *x = (const T *)job->x + row * n;
        T *y = (T *)job->y + row * n;
        T square = n ? TREK_R(row_squares)(x, n) / (T)n : 0;
        T rstd = (T)(1 / sqrt((double)square + job->eps));
        ((T *)job->rstd)[row] = rstd;
        V scale = TREK_R(spread)(rstd);
        for (int64_t j = 0; j < n; j += W) {
            trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
            V value = TREK_R(load_part)(x + j, lanes) * scale;
            if (weight)
                value *= TREK_R(load_part)(weight + j, lanes);
            TREK_R(store_part)(y + j, lanes, value);
        }
    }
}

/* Computes dx = rstd (g - xhat mean(g xhat)) with g = dy weight, for one row, and adds its part of dweight (NULL:
 * none). */
static void TREK_R(backward_row)(const rms_job *job, int64_t row, T *dweight)
{
    const int64_t n = job->columns;
    const T *x = (const T *)job->x + row * n, *dy = (const T *)job->dy + row * n, *weight = job->weight;
    T *dx = (T *)job->y + row * n;
    V rstd = TREK_R(spread)(((const T *)job->rstd)[row]), sum[2] = { { 0 } };
    for (int64_t j = 0, v = 0; j < n; j += W, v ^= 1) {
        trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
        V product = TREK_R(load_part)(dy + j, lanes) * (TREK_R(load_part)(x + j, lanes) * rstd);
        if (dweight)
            TREK_R(store_part)(dweight + j, lanes, TREK_R(load_part)(dweight + j, lanes) + product);
        if (weight)
            product *= TREK_R(load_part)(weight + j, lanes);
        sum[v] += product;
    }
    V slope = TREK_R(spread)(TREK_R(sum)(sum[0] + sum[1]) / (T)n);
    for (int64_t j = 0; j < n; j += W) {
        trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
        V grad = TREK_R(load_part)(dy + j, lanes), normal = TREK_R(load_part)(x + j, lanes) * rstd;
        if (weight)
            grad *= TREK_R(load_part)(weight + j, lanes);
        TREK_R(store_part)(dx + j, lanes, (grad - normal * slope) * rstd);
    }
}

static void TREK_R(backward_blocks)(void *arg, int64_t begin, int64_t end)
{
    const rms_job *job = arg;
    const int64_t n = job->columns;
    for (int64_t block = begin; block < end; block++) {
        T *dweight = job->dweight ? (T *)job->partials + block * n : NULL;
        if (dweight)
            memset(dweight, 0, (size_t)n * sizeof(T));
        int64_t last = (block + 1) * job->block < job->rows ? (block + 1) * job->block : job->rows;
        for (int64_t row = block * job->block; row < last; row++)
            TREK_R(backward_row)(job, row, dweight);
    }
}

/* Adds the blocks' partial sums in order, for columns [begin, end). */
static void TREK_R(combine)(void *arg, int64_t begin, int64_t end)
{
    const rms_job *job = arg;
    const int64_t n = job->columns;
    T *to = job->dweight;
    for (int64_t j = begin; j < end; j++)
        to[j] = 0;
    for (int64_t block = 0; block < job->blocks; block++) {
        const T *from = (const T *)job->partials + block * n;
        for (int64_t j = begin; j < end; j++)
            to[j] += from[j];
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm over rows of n elements for one real type. Included by layer_norm.c. */
#include "tensor/cpu/vector.h"

/* Sums a row in four parallel vectors. */
static T TREK_R(row_sum)(const T *x, int64_t n)
{
    V sum[4] = { { 0 } };
    int64_t j = 0;
    for (; j + 4 * W <= n; j += 4 * W)
        for (int v = 0; v < 4; v++)
            sum[v] += TREK_R(load)(x + j + v * W);
    for (; j < n; j += W)
        sum[0] += TREK_R(load_part)(x + j, TREK_R(lanes)(n - j < W ? (int)(n - j) : W));
    return TREK_R(sum)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* Computes the variance. The rounding error of the mean is corrected by the mean of the deviations from it (Chan,
 * Golub and LeVeque 1983): divided by the deviation of a row of equal numbers it would not be small. */
static T TREK_R(row_variance)(const T *x, int64_t n, T *mean)
{
    V squares[4] = { { 0 } }, sum[4] = { { 0 } }, centre = TREK_R(spread)(*mean);
    int64_t j = 0;
    for (; j + 4 * W <= n; j += 4 * W)
        for (int v = 0; v < 4; v++) {
            V d = TREK_R(load)(x + j + v * W) - centre;
            squares[v] = TREK_R(fma)(d, d, squares[v]);
            sum[v] += d;
        }
    T total = TREK_R(sum)((squares[0] + squares[1]) + (squares[2] + squares[3]));
    T rest = TREK_R(sum)((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; j < n; j++) {
        T d = x[j] - *mean;
        total += d * d;
        rest += d;
    }
    rest /= (T)n;
    *mean += rest;
    T variance = total / (T)n - rest * rest;
    return variance < 0 ? 0 : variance;
}

static void TREK_R(add_row)(T *to, const T *x, const T *y, int64_t n)
{
    for (int64_t j = 0; j < n; j += W) {
        trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
        TREK_R(store_part)(to + j, lanes, TREK_R(load_part)(x + j, lanes) + TREK_R(load_part)(y + j, lanes));
    }
}

static void TREK_R(forward_rows)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t n = job->columns;
    const T *weight = job->weight, *bias = job->bias;
    for (int64_t row = begin; row < end; row++) {
        const T *x = (const T *)job->x + row * n;
        T *y = (T *)job->y + row * n;
        if (job->branch) {
            T *residual = (T *)job->residual + row * n;
            TREK_R(add_row)(residual, x, (const T *)job->branch + row * n, n);
            x = residual;
        }
        T mean = n ? TREK_R(row_sum)(x, n) / (T)n : 0;
        T variance = n ? TREK_R(row_variance)(x, n, &mean) : 0;
        T rstd = (T)(1 / sqrt((double)variance + job->eps));
        ((T *)job->mean)[row] = mean;
        ((T *)job->rstd)[row] = rstd;
        V centre = TREK_R(spread)(mean), scale = TREK_R(spread)(rstd);
        for (int64_t j = 0; j < n; j += W) {
            trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
            V value = (TREK_R(load_part)(x + j, lanes) - centre) * scale;
            if (weight)
                value = TREK_R(fma)(value, TREK_R(load_part)(weight + j, lanes),
                                    bias ? TREK_R(load_part)(bias + j, lanes) : (V){ 0 });
            else if (bias)
                value += TREK_R(load_part)(bias + j, lanes);
            TREK_R(store_part)(y + j, lanes, value);
        }
    }
}

/* Computes dx of one row, and its part of dweight and dbias. */
static void TREK_R(backward_row)(const norm_job *job, int64_t row, T *dweight, T *dbias)
{
    const int64_t n = job->columns;
    const T *x = (const T *)job->x + row * n, *dy = (const T *)job->dy + row * n, *weight = job->weight;
    const T *stream = job->stream ? (const T *)job->stream + row * n : NULL;
    T *dx = (T *)job->y + row * n;
    V mean = TREK_R(spread)(((const T *)job->mean)[row]), rstd = TREK_R(spread)(((const T *)job->rstd)[row]);
    V sum[2] = { { 0 } }, sum_x[2] = { { 0 } };
    T means[W];
    TREK_R(store_part)(means, TREK_R(lanes)(W), mean);
    const V last = TREK_R(load_part)(means, TREK_R(lanes)((int)(n % W))); /* unused lanes: 0, not minus a mean that overflows */
    for (int64_t j = 0, v = 0; j < n; j += W, v ^= 1) {
        trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
        V grad = TREK_R(load_part)(dy + j, lanes), normal = (TREK_R(load_part)(x + j, lanes) - (n - j < W ? last : mean)) * rstd;
        TREK_R(store_part)(dbias + j, lanes, TREK_R(load_part)(dbias + j, lanes) + grad);
        if (weight) {
            TREK_R(store_part)(dweight + j, lanes, TREK_R(fma)(grad, normal, TREK_R(load_part)(dweight + j, lanes)));
            grad *= TREK_R(load_part)(weight + j, lanes);
        }
        sum[v] += grad;
        sum_x[v] = TREK_R(fma)(grad, normal, sum_x[v]); /* unused lanes are 0 in grad */
    }
    V shift = TREK_R(spread)(TREK_R(sum)(sum[0] + sum[1]) / (T)n);
    V slope = TREK_R(spread)(TREK_R(sum)(sum_x[0] + sum_x[1]) / (T)n);
    for (int64_t j = 0; j < n; j += W) {
        trek_lanes lanes = TREK_R(lanes)(n - j < W ? (int)(n - j) : W);
        V grad = TREK_R(load_part)(dy + j, lanes), normal = (TREK_R(load_part)(x + j, lanes) - mean) * rstd;
        if (weight)
            grad *= TREK_R(load_part)(weight + j, lanes);
        V result = (grad - shift - normal * slope) * rstd;
        TREK_R(store_part)(dx + j, lanes, stream ? result + TREK_R(load_part)(stream + j, lanes) : result);
    }
}

static void TREK_R(backward_blocks)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t n = job->columns;
    for (int64_t block = begin; block < end; block++) {
        T *dbias = (T *)job->partials + block * 2 * n, *dweight = dbias + n;
        memset(dbias, 0, (size_t)(2 * n) * sizeof(T));
        int64_t last = (block + 1) * job->block < job->rows ? (block + 1) * job->block : job->rows;
        for (int64_t row = block * job->block; row < last; row++)
            TREK_R(backward_row)(job, row, dweight, dbias);
    }
}

/* Adds the blocks' partial sums in order, for columns [begin, end). */
static void TREK_R(combine)(void *arg, int64_t begin, int64_t end)
{
    const norm_job *job = arg;
    const int64_t n = job->columns;
    for (int which = 0; which < 2; which++) {
        T *to = which ? job->dweight : job->dbias;
        if (!to)
            continue;
        for (int64_t j = begin; j < end; j++)
            to[j] = 0;
        for (int64_t block = 0; block < job->blocks; block++) {
            const T *from = (const T *)job->partials + (block * 2 + which) * n;
            for (int64_t j = begin; j < end; j++)
                to[j] += from[j];
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of rows: in registers, or in three passes over rows that are too long for that. */
#include "tensor/cuda/norm/norm.cuh"
#include "tensor/cuda/rows.cuh"

#define THREADS 512

template <typename T> struct norm_rows {
    typedef typename trek_wide<T>::type W;
    const T *x, *residual, *weight, *bias;
    const W *wide_weight, *wide_bias;
    T *y, *sum;
    W *mean, *rstd;
    int64_t rows;
    int64_t n;
    W eps;
};

/* Rounds a sum to T: the residual stream is normalised as it is stored. */
template <typename T> static __device__ __forceinline__ typename trek_wide<T>::type rounded(typename trek_wide<T>::type x)
{
    return trek_get(trek_store<T>::of(x));
}

/* Computes the variance from sums of squares and of deviations over a row; the deviations correct the rounding error
 * of the mean. */
template <typename W> static __device__ __forceinline__ W corrected(W squares, W rest, W n, W *mean)
{
    rest = rest / n;
    *mean += rest;
    W variance = squares / n - rest * rest;
    return variance < 0 ? 0 : variance;
}

/* Turns v (elements from `at` on) into the result. */
template <typename T, int V>
static __device__ __forceinline__ void finish_vector(const norm_rows<T> &a, typename trek_wide<T>::type *v, int at,
                                                     typename trek_wide<T>::type mean, typename trek_wide<T>::type rstd)
{
    typedef typename trek_wide<T>::type W;
    typedef trek_vector<T, V> piece;
    W w[V], b[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        w[i] = 1;
        b[i] = 0;
    }
    if (a.weight) {
        piece x = *reinterpret_cast<const piece *>(a.weight + at);
#pragma unroll
        for (int i = 0; i < V; i++)
            w[i] = trek_get(x.x[i]);
    } else if (a.wide_weight) {
#pragma unroll
        for (int i = 0; i < V; i++)
            w[i] = a.wide_weight[at + i];
    }
    if (a.bias) {
        piece x = *reinterpret_cast<const piece *>(a.bias + at);
#pragma unroll
        for (int i = 0; i < V; i++)
            b[i] = trek_get(x.x[i]);
    } else if (a.wide_bias) {
#pragma unroll
        for (int i = 0; i < V; i++)
            b[i] = a.wide_bias[at + i];
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = trek_fma((v[i] - mean) * rstd, w[i], b[i]);
}

template <typename T, int V> static __global__ void __launch_bounds__(THREADS) norm_rows_kernel(norm_rows<T> a, int log_width)
{
    typedef typename trek_wide<T>::type W;
    const int values = trek_row_sizes<T>::values, n = (int)a.n;
    TREK_SHARED(W, shared, 32);
    trek_team team = trek_team_here(log_width, a.rows);
    const int64_t start = team.row * n;
    trek_row<T, V, values> x;
    x.load(a.x + start, n, team.thread, team.width, (W)0);
    if (a.residual) {
        trek_row<T, V, values> r;
        r.load(a.residual + start, n, team.thread, team.width, (W)0);
#pragma unroll
        for (int i = 0; i < values; i++)
            x.v[i] = rounded<T>(x.v[i] + r.v[i]);
        if (a.sum && team.inside)
            x.store(a.sum + start, n, team.thread, team.width);
    }
    W mean = 0, squares = 0, rest = 0;
    if (a.mean) {
#pragma unroll
        for (int i = 0; i < values; i++)
            mean += x.v[i];
        mean = n > 0 ? trek_team_sum(mean, team.width, shared) / (W)n : 0;
    }
#pragma unroll
    for (int k = 0; k < values / V; k++)
        if ((k * team.width + team.thread) * V < n)
#pragma unroll
            for (int i = 0; i < V; i++) {
                W d = x.v[k * V + i] - mean;
                squares = trek_fma(d, d, squares);
                rest += d;
            }
    squares = trek_team_sum(squares, team.width, shared);
    rest = a.mean ? trek_team_sum(rest, team.width, shared) : 0;
    const W rstd = 1 / trek_root((n > 0 ? corrected(squares, rest, (W)n, &mean) : 0) + a.eps);
#pragma unroll
    for (int k = 0; k < values / V; k++)
        if ((k * team.width + team.thread) * V < n)
            finish_vector<T, V>(a, x.v + k * V, (k * team.width + team.thread) * V, mean, rstd);
    if (!team.inside)
        return;
    x.store(a.y + start, n, team.thread, team.width);
    if (team.thread == 0) {
        a.rstd[team.row] = rstd;
        if (a.mean)
            a.mean[team.row] = mean;
    }
}

/* Returns element j of a row, plus the residual (NULL: none). */
template <typename T> static __device__ __forceinline__ typename trek_wide<T>::type element(const T *x, const T *r, int64_t j)
{
    return r ? rounded<T>(trek_get(x[j]) + trek_get(r[j])) : trek_get(x[j]);
}

/* A block for each row, of any length. */
template <typename T> static __global__ void __launch_bounds__(THREADS) norm_long_kernel(norm_rows<T> a)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(W, shared, 32);
    const int64_t start = (int64_t)blockIdx.x * a.n, n = a.n;
    const T *x = a.x + start, *r = a.residual ? a.residual + start : NULL;
    W mean = 0, squares = 0, rest = 0;
    for (int64_t j = threadIdx.x; j < n; j += THREADS)
        mean += element(x, r, j);
    mean = a.mean ? trek_team_sum(mean, THREADS, shared) / (W)n : 0;
    for (int64_t j = threadIdx.x; j < n; j += THREADS) {
        W d = element(x, r, j) - mean;
        squares = trek_fma(d, d, squares);
        rest += d;
    }
    squares = trek_team_sum(squares, THREADS, shared);
    rest = a.mean ? trek_team_sum(rest, THREADS, shared) : 0;
    const W rstd = 1 / trek_root(corrected(squares, rest, (W)n, &mean) + a.eps);
    for (int64_t j = threadIdx.x; j < n; j += THREADS) {
        W s = element(x, r, j), v = (s - mean) * rstd;
        v *= a.weight ? trek_get(a.weight[j]) : a.wide_weight ? a.wide_weight[j] : 1;
        v += a.bias ? trek_get(a.bias[j]) : a.wide_bias ? a.wide_bias[j] : 0;
        a.y[start + j] = trek_store<T>::of(v);
        if (r)
            a.sum[start + j] = trek_store<T>::of(s);
    }
    if (threadIdx.x == 0) {
        a.rstd[blockIdx.x] = rstd;
        if (a.mean)
            a.mean[blockIdx.x] = mean;
    }
}

template <typename T> static trek_status forward(const trek_op_call *call, trek_cuda_queue *queue, const trek_norm *norm)
{
    typedef typename trek_wide<T>::type W;
    norm_rows<T> a = { (const T *)norm->x, (const T *)norm->residual, (const T *)norm->weight, (const T *)norm->bias,
                       (const W *)norm->wide_weight, (const W *)norm->wide_bias, (T *)norm->y, (T *)norm->sum, (W *)norm->mean,
                       (W *)norm->rstd, norm->rows, norm->n, (W)norm->eps };
    uintptr_t places = (uintptr_t)a.x | (uintptr_t)a.residual | (uintptr_t)a.weight | (uintptr_t)a.bias |
                       (uintptr_t)a.y | (uintptr_t)a.sum;
    trek_row_plan p = trek_plan_rows(a.rows, a.n, sizeof(T), trek_row_sizes<T>::values, THREADS, places % 16 == 0);
    if (!p.fits)
        return trek_launch(call, queue, trek_blocks(dim3((unsigned)a.rows), dim3(THREADS)), norm_long_kernel<T>, a);
    return trek_launch(call, queue, trek_blocks(dim3(p.blocks), dim3(p.threads)),
                       p.vector ? norm_rows_kernel<T, trek_row_sizes<T>::vector> : norm_rows_kernel<T, 1>, a, p.log_width);
}

trek_status trek_norm_forward(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, const trek_norm *norm)
{
    if (norm->rows == 0)
        return TREK_OK;
    switch (dtype) {
    case TREK_F32: return forward<float>(call, queue, norm);
    case TREK_F64: return forward<double>(call, queue, norm);
    case TREK_BF16: return forward<trek_bf16>(call, queue, norm);
    default: return forward<trek_f16>(call, queue, norm);
    }
}

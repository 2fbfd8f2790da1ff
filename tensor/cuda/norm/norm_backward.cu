/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of norms. A team processes many rows and keeps its columns' parts of dweight and dbias in registers.
 * Blocks write theirs, and a second kernel adds them in order. */
#include "tensor/cuda/norm/norm.cuh"
#include "tensor/cuda/rows.cuh"

#define THREADS 256
#define BLOCKS 528 /* four of 128 threads for each multiprocessor of an H200; the same on all devices, so that sums are the
                    * same */

template <typename T> struct grad_rows {
    typedef typename trek_wide<T>::type W;
    const T *dy, *x, *weight, *added;
    const W *mean, *rstd, *wide_weight;
    T *dx;
    W *partials; /* [blocks][dbias, dweight][n]; NULL: not wanted */
    int64_t rows;
    int64_t n;
};

/* Adds the sums of a block's teams, in order, to the block's partials. dw, db: of columns (k width + thread) V + i. */
template <typename T, int V, int values>
static __device__ __forceinline__ void write_partials(const grad_rows<T> &a, const trek_team &team,
                                                      typename trek_wide<T>::type *db,
                                                      typename trek_wide<T>::type *dw)
{
    typedef typename trek_wide<T>::type W;
    const int n = (int)a.n, warps = team.width > 32 ? 1 : (int)blockDim.x / 32;
    W *to = a.partials + (int64_t)blockIdx.x * 2 * n, *shared = team.width > 32 ? NULL : (W *)trek_dynamic_shared();
    for (int lanes = team.width; lanes < 32; lanes *= 2) /* teams within a warp: a row is one vector for each thread */
#pragma unroll
        for (int i = 0; i < V; i++) {
            db[i] += trek_shuffle_xor(db[i], lanes);
            dw[i] += trek_shuffle_xor(dw[i], lanes);
        }
    for (int warp = 0; warp < warps; warp++) {
        bool mine = warps == 1 || ((int)threadIdx.x >> 5 == warp && ((int)threadIdx.x & 31) < team.width);
#pragma unroll
        for (int k = 0; k < values / V; k++)
#pragma unroll
            for (int i = 0; i < V; i++) {
                int at = (k * team.width + team.thread) * V + i;
                if (!mine || at >= n)
                    continue;
                W b = db[k * V + i], w = dw[k * V + i];
                if (warp > 0) {
                    b += shared[at];
                    w += shared[n + at];
                }
                (warp == warps - 1 ? to : shared)[at] = b;
                (warp == warps - 1 ? to : shared)[n + at] = w;
            }
        if (warps > 1)
            __syncthreads();
    }
}

/* Computes (x - mean) / standard deviation. For 16 bits by one fused multiply-add with offset = -mean rstd: if the
 * mean is so large that this matters, x was rounded by more. */
template <typename T, typename W> static __device__ __forceinline__ W standard(W x, W mean, W rstd, W offset)
{
    return sizeof(T) == 2 ? trek_fma(x, rstd, offset) : (x - mean) * rstd;
}

/* Computes (g - shift - h slope) rstd, with steep = -slope rstd. For 16 bits by two fused multiply-adds, with less =
 * -shift rstd; wider ones subtract first, so that equal values give exactly 0, as in a row of one number. */
template <typename T, typename W>
static __device__ __forceinline__ W centred(W g, W x, W mean, W rstd, W offset, W shift, W less, W steep)
{
    return sizeof(T) == 2 ? trek_fma(g, rstd, trek_fma(standard<T, W>(x, mean, rstd, offset), steep, less))
                          : trek_fma(x - mean, steep, g - shift) * rstd;
}

/* A thread's part of a row as it is stored: unpacking twice is cheaper than registers. */
template <typename T, int V, int values> struct packed_row {
    trek_vector<T, V> x[values / V];
    __device__ __forceinline__ void load(const T *row, int n, int thread, int width)
    {
#pragma unroll
        for (int k = 0; k < values / V; k++)
            if ((k * width + thread) * V < n)
                x[k] = *reinterpret_cast<const trek_vector<T, V> *>(row + (k * width + thread) * V);
    }
};

/* Multiplies dy by the weight, for V neighbours. */
template <typename T, int V>
static __device__ __forceinline__ void weigh(const grad_rows<T> &a, int at, typename trek_wide<T>::type *g)
{
    if (a.weight) {
        trek_vector<T, V> w = *reinterpret_cast<const trek_vector<T, V> *>(a.weight + at);
#pragma unroll
        for (int i = 0; i < V; i++)
            g[i] *= trek_get(w.x[i]);
    } else if (a.wide_weight) {
#pragma unroll
        for (int i = 0; i < V; i++)
            g[i] *= a.wide_weight[at + i];
    }
}

template <typename T, int V, int values>
static __global__ void __launch_bounds__(THREADS, V > 1 && values <= 24 && sizeof(typename trek_wide<T>::type) == 4 ? 2 : 1)
    grad_rows_kernel(grad_rows<T> a, int log_width)
{
    typedef typename trek_wide<T>::type W;
    const int n = (int)a.n, teams = (int)blockDim.x >> log_width;
    TREK_SHARED(W, shared, 32);
    const trek_team team = trek_team_here(log_width, a.rows);
    W db[values], dw[values];
#pragma unroll
    for (int i = 0; i < values; i++)
        db[i] = dw[i] = 0;
    for (int64_t first = (int64_t)blockIdx.x * teams; first < a.rows; first += (int64_t)gridDim.x * teams) {
        const int64_t wanted = first + (threadIdx.x >> log_width), row = wanted < a.rows ? wanted : a.rows - 1;
        const bool inside = wanted < a.rows;
        const W mean = a.mean ? a.mean[row] : 0, rstd = a.rstd[row], offset = -mean * rstd;
        packed_row<T, V, values> dy, x;
        dy.load(a.dy + row * n, n, team.thread, team.width);
        x.load(a.x + row * n, n, team.thread, team.width);
        W sum = 0, product = 0;
#pragma unroll
        for (int k = 0; k < values / V; k++) {
            const int at = (k * team.width + team.thread) * V;
            W g[V], h[V];
            if (at >= n)
                continue;
#pragma unroll
            for (int i = 0; i < V; i++) {
                g[i] = inside ? trek_get(dy.x[k].x[i]) : 0;
                h[i] = standard<T, W>(trek_get(x.x[k].x[i]), mean, rstd, offset);
                db[k * V + i] += g[i];
                dw[k * V + i] = inside ? trek_fma(g[i], h[i], dw[k * V + i]) : dw[k * V + i];
            }
            weigh<T, V>(a, at, g);
#pragma unroll
            for (int i = 0; i < V; i++) {
                sum += g[i];
                product = trek_fma(g[i], h[i], product);
            }
        }
        const W shift = a.mean ? trek_team_sum(sum, team.width, shared) / (W)n : 0;
        const W slope = trek_team_sum(product, team.width, shared) / (W)n;
        const W less = -shift * rstd, steep = -slope * rstd;
#pragma unroll
        for (int k = 0; k < values / V; k++) {
            const int at = (k * team.width + team.thread) * V;
            W g[V];
            if (at >= n || !inside)
                continue;
#pragma unroll
            for (int i = 0; i < V; i++)
                g[i] = trek_get(dy.x[k].x[i]);
            weigh<T, V>(a, at, g);
            trek_vector<T, V> more = {}, result;
            if (a.added)
                more = *reinterpret_cast<const trek_vector<T, V> *>(a.added + row * n + at);
#pragma unroll
            for (int i = 0; i < V; i++) {
                g[i] = centred<T, W>(g[i], trek_get(x.x[k].x[i]), mean, rstd, offset, shift, less, steep);
                result.x[i] = trek_store<T>::of(a.added ? g[i] + trek_get(more.x[i]) : g[i]);
            }
            *reinterpret_cast<trek_vector<T, V> *>(a.dx + row * n + at) = result;
        }
    }
    if (a.partials)
        write_partials<T, V, values>(a, team, db, dw);
}

/* --- rows too long for registers ------------------------------------------------------------ */

template <typename T> static __device__ __forceinline__ typename trek_wide<T>::type weight_at(const grad_rows<T> &a, int64_t j)
{
    return a.weight ? trek_get(a.weight[j]) : a.wide_weight ? a.wide_weight[j] : 1;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) grad_long_kernel(grad_rows<T> a)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(W, shared, 32);
    const int64_t row = blockIdx.x, start = row * a.n;
    const W mean = a.mean ? a.mean[row] : 0, rstd = a.rstd[row];
    W sum = 0, product = 0;
    for (int64_t j = threadIdx.x; j < a.n; j += THREADS) {
        W g = trek_get(a.dy[start + j]) * weight_at(a, j);
        sum += g;
        product = trek_fma(g, (trek_get(a.x[start + j]) - mean) * rstd, product);
    }
    const W shift = a.mean ? trek_team_sum(sum, THREADS, shared) / (W)a.n : 0;
    const W slope = trek_team_sum(product, THREADS, shared) / (W)a.n;
    for (int64_t j = threadIdx.x; j < a.n; j += THREADS) {
        W g = trek_get(a.dy[start + j]) * weight_at(a, j), h = (trek_get(a.x[start + j]) - mean) * rstd;
        g = (g - shift - h * slope) * rstd;
        a.dx[start + j] = trek_store<T>::of(a.added ? g + trek_get(a.added[start + j]) : g);
    }
}

/* A thread for each column and each part of the rows. */
template <typename T> static __global__ void grad_columns_kernel(grad_rows<T> a, int64_t each)
{
    typedef typename trek_wide<T>::type W;
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t begin = (int64_t)blockIdx.y * each, end = begin + each < a.rows ? begin + each : a.rows;
    if (j >= a.n)
        return;
    W db = 0, dw = 0;
    for (int64_t row = begin; row < end; row++) {
        W g = trek_get(a.dy[row * a.n + j]), h = (trek_get(a.x[row * a.n + j]) - (a.mean ? a.mean[row] : 0)) * a.rstd[row];
        db += g;
        dw = trek_fma(g, h, dw);
    }
    a.partials[(int64_t)blockIdx.y * 2 * a.n + j] = db;
    a.partials[((int64_t)blockIdx.y * 2 + 1) * a.n + j] = dw;
}

/* --- the sum of the blocks' parts ---------------------------------------------------------------- */

/* 32 columns and 32 parts of the blocks; y of the grid: dbias, dweight. */
template <typename W>
static __global__ void __launch_bounds__(1024) combine_kernel(const W *partials, int blocks, int64_t n, void *dbias,
                                                              void *dweight, int dtype)
{
    TREK_SHARED(W, shared, 32 * 33);
    void *to = blockIdx.y == 0 ? dbias : dweight;
    const int column = (int)threadIdx.x & 31, share = (int)threadIdx.x >> 5;
    const int64_t j = (int64_t)blockIdx.x * 32 + column;
    W sum = 0;
    if (to && j < n)
        for (int block = share; block < blocks; block += 32)
            sum += partials[((int64_t)block * 2 + blockIdx.y) * n + j];
    shared[share * 33 + column] = sum;
    __syncthreads();
    sum = shared[column * 33 + share]; /* a warp has the parts of one column */
    for (int lanes = 16; lanes > 0; lanes /= 2)
        sum += trek_shuffle_xor(sum, lanes);
    if (to && column == 0 && (int64_t)blockIdx.x * 32 + share < n)
        trek_store_float(to, dtype, (int64_t)blockIdx.x * 32 + share, (double)sum);
}

/* How many values of a row a thread has: few if that does not make the team larger, so that more teams run at once. */
template <typename T> struct grad_values {
    static const int few = 96 / (int)sizeof(typename trek_wide<T>::type), many = 128 / (int)sizeof(typename trek_wide<T>::type);
    static const int single = many / 2; /* without vectors */
};

template <typename T> static trek_row_plan plan_rows(const grad_rows<T> &a, bool *few)
{
    typedef grad_values<T> values;
    uintptr_t places = (uintptr_t)a.dy | (uintptr_t)a.x | (uintptr_t)a.weight | (uintptr_t)a.added | (uintptr_t)a.dx;
    bool aligned = places % 16 == 0 && a.n % (16 / (int)sizeof(T)) == 0;
    trek_row_plan wide = trek_plan_rows(a.rows, a.n, sizeof(T), aligned ? values::many : values::single, THREADS, aligned);
    trek_row_plan narrow = trek_plan_rows(a.rows, a.n, sizeof(T), values::few, THREADS, aligned);
    *few = aligned && narrow.fits && narrow.log_width == wide.log_width;
    return wide;
}

template <typename T>
static trek_status grad_registers(const trek_op_call *call, trek_cuda_queue *queue, grad_rows<T> *a, const trek_row_plan &p,
                                  bool few,
                                  bool sums, int *blocks, trek_held *held)
{
    typedef typename trek_wide<T>::type W;
    typedef grad_values<T> values;
    const int V = trek_row_sizes<T>::vector;
    int64_t needed = (a->rows + p.teams - 1) / p.teams;
    *blocks = (int)(needed < BLOCKS ? needed : BLOCKS);
    if (sums) {
        trek_status status = held->take(queue, (size_t)*blocks * 2 * (size_t)a->n * sizeof(W));
        if (status != TREK_OK)
            return status;
        a->partials = held->as<W>();
    }
    trek_grid grid = trek_blocks(dim3((unsigned)*blocks), dim3(p.threads), p.log_width <= 5 ? (size_t)a->n * 2 * sizeof(W) : 0);
    return trek_launch(call, queue, grid,
                       !p.vector ? grad_rows_kernel<T, 1, values::single>
                       : few     ? grad_rows_kernel<T, V, values::few>
                                 : grad_rows_kernel<T, V, values::many>,
                       *a, p.log_width);
}

template <typename T>
static trek_status grad_long(const trek_op_call *call, trek_cuda_queue *queue, grad_rows<T> *a, bool sums, int *blocks,
                             trek_held *held)
{
    typedef typename trek_wide<T>::type W;
    trek_status status = trek_launch(call, queue, trek_blocks(dim3((unsigned)a->rows), dim3(THREADS)), grad_long_kernel<T>, *a);
    if (status != TREK_OK || !sums)
        return status;
    int64_t shares = a->rows < 64 ? a->rows : 64, each = (a->rows - 1) / shares + 1;
    *blocks = (int)((a->rows - 1) / each + 1);
    status = held->take(queue, (size_t)*blocks * 2 * (size_t)a->n * sizeof(W));
    a->partials = held->as<W>();
    if (status != TREK_OK)
        return status;
    trek_grid grid = trek_loop(a->n);
    grid.grid.y = (unsigned)*blocks;
    return trek_launch(call, queue, grid, grad_columns_kernel<T>, *a, each);
}

template <typename T> static trek_status backward(const trek_op_call *call, trek_cuda_queue *queue, const trek_norm_grad *grad)
{
    typedef typename trek_wide<T>::type W;
    bool sums = grad->dweight || grad->dbias;
    grad_rows<T> a = { (const T *)grad->dy, (const T *)grad->x, (const T *)grad->weight, (const T *)grad->added,
                       (const W *)grad->mean,
                       (const W *)grad->rstd, (const W *)grad->wide_weight, (T *)grad->dx, NULL, grad->rows, grad->n };
    bool few;
    trek_row_plan p = plan_rows(a, &few);
    trek_held held;
    int blocks = 0;
    trek_status status = TREK_OK;
    if (a.rows > 0)
        status = p.fits ? grad_registers(call, queue, &a, p, few, sums, &blocks, &held)
                        : grad_long(call, queue, &a, sums, &blocks, &held);
    if (status != TREK_OK || !sums)
        return status;
    return trek_launch(call, queue, trek_blocks(dim3((unsigned)((a.n - 1) / 32 + 1), 2), dim3(1024)), combine_kernel<W>,
                       (const W *)held.as<W>(), blocks, a.n, grad->dbias, grad->dweight, grad->sums_dtype);
}

trek_status trek_norm_backward(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, const trek_norm_grad *grad)
{
    if (grad->n == 0)
        return TREK_OK;
    switch (dtype) {
    case TREK_F32: return backward<float>(call, queue, grad);
    case TREK_F64: return backward<double>(call, queue, grad);
    case TREK_BF16: return backward<trek_bf16>(call, queue, grad);
    default: return backward<trek_f16>(call, queue, grad);
    }
}

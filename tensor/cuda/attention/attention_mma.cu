/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of 16-bit operands on tensor cores (Dao 2023: FlashAttention-2). A warp has MT times 16 rows of the side
 * that its block owns; the other side goes through shared memory in two stages. Scores and probabilities stay in
 * registers: the result of one product is an operand of the next. */
#include "tensor/cuda/attention/attention.cuh"
#include "tensor/cuda/products/mma.cuh"

#ifdef __CUDACC__
#define APART __noinline__
#else
#define APART __attribute__((noinline))
#endif

#ifdef TREK_MMA

/* --- pieces ------------------------------------------------------------------------------- */

/* Loads rows [first, first + ROWS) of an operand, with zeros after `rows` and the depth. Rows in shared memory are 16
 * bytes longer than D, so that 16 bytes of eight rows are in different banks. */
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void load_rows(uint16_t *to, const uint16_t *from, int64_t stride, int64_t first, int64_t rows,
                                          int depth)
{
    for (int c = (int)threadIdx.x; c < ROWS * (D / 8); c += THREADS) {
        int row = c / (D / 8), k = c % (D / 8) * 8;
        bool there = first + row < rows && k < depth;
        trek_copy_async(to + row * (D + 8) + k, there ? from + (first + row) * stride + k : from, there);
    }
}

/* Loads a[m] = rows 16 m .. 16 m + 15, columns k .. k + 15 of a tile at `rows`, as a left operand. */
template <int D> __device__ __forceinline__ void left_of(uint32_t a[4], const uint16_t *rows, int k)
{
    int lane = (int)threadIdx.x % 32;
    trek_load_matrices(a, rows + lane % 16 * (D + 8) + k + lane / 16 * 8);
}

/* Computes s[m][n] += x rows (16 MT of them, at x) times y rows (N of them), over the depth. */
template <typename T, int D, int MT, int N>
__device__ __forceinline__ void rows_times_rows(float s[MT][N / 8][4], const uint16_t *x, const uint16_t *y)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            left_of<D>(a[m], x + m * 16 * (D + 8), k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t b[4];
            trek_load_matrices(b, y + (n * 16 + lane % 8 + lane / 16 * 8) * (D + 8) + k + lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                trek_mma<T>(s[m][2 * n], a[m], b[0], b[1]);
                trek_mma<T>(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Computes acc[m][d] += p (in registers, as the product before left it) times y rows. */
template <typename T, int D, int MT, int N>
__device__ __forceinline__ void weights_times_rows(float acc[MT][D / 8][4], const float p[MT][N / 8][4], const uint16_t *y)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a[m][0] = trek_pack2<T>(p[m][2 * k][0], p[m][2 * k][1]);
            a[m][1] = trek_pack2<T>(p[m][2 * k][2], p[m][2 * k][3]);
            a[m][2] = trek_pack2<T>(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
            a[m][3] = trek_pack2<T>(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            trek_load_turned(b, y + (k * 16 + lane % 8 + lane / 8 % 2 * 8) * (D + 8) + n * 16 + lane / 16 * 8);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                trek_mma<T>(acc[m][2 * n], a[m], b[0], b[1]);
                trek_mma<T>(acc[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <int MT, int N> __device__ __forceinline__ void clear(float s[MT][N][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = 0;
}

/* Writes a warp's rows, beginning with `row`, below `rows`. */
template <typename T, int D, int MT>
__device__ __forceinline__ void store_rows(const attention_operand &o, int64_t b, int64_t h, int64_t row, int64_t rows, int depth,
                                           const float acc[MT][D / 8][4])
{
    int lane = (int)threadIdx.x % 32;
    uint16_t *to = attention_rows<uint16_t>(o, b, h);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t i = row + m * 16 + half * 8 + lane / 4;
            if (i >= rows)
                continue;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                int column = n * 8 + lane % 4 * 2;
                if (column < depth)
                    *(uint32_t *)(to + i * o.strides[2] + column) = trek_pack2<T>(acc[m][n][2 * half], acc[m][n][2 * half + 1]);
            }
        }
}

/* --- masks and dropout, separate because most calls have neither ------------------------------------ */

/* A call with a mask scales its scores in natural units and rounds them before anything else is computed from them,
 * so that masks that are large but finite (-1e9, -1e30) cancel against the largest score and the logarithm of sums.
 * Without a mask scores stay as the product left them, and one multiply-add converts them to powers of two. */
__device__ APART float masked_score(const attention_job &job, int64_t b, int64_t h, int i, int j, float score)
{
    return attention_masked(job, b, h, (int64_t)i, (int64_t)j, score * (float)job.scale);
}
__device__ APART float kept_factor(const attention_job &job, int64_t b, int64_t h, int i, int j)
{
    return i < job.queries && j < job.keys ? (float)attention_kept(job, b, h, i, j) : 0;
}

/* --- forward ----------------------------------------------------------------------------------- */

/* Sets scores that are not seen to -infinity. With a mask scores are scaled. */
template <int MT, int BK>
__device__ __forceinline__ void mask_scores(const attention_job &job, int64_t b, int64_t h, int i0, int j0,
                                            float s[MT][BK / 8][4])
{
    int lane = (int)threadIdx.x % 32, queries = (int)job.queries, keys = (int)job.keys;
    if (job.mask == nullptr && j0 + BK <= keys && !(job.causal && j0 + BK > i0 + 1))
        return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BK / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = i0 + m * 16 + lane / 4 + e / 2 * 8, j = j0 + n * 8 + lane % 4 * 2 + e % 2;
                if (j >= keys || (job.causal && j > i))
                    s[m][n][e] = -INFINITY;
                else if (job.mask && i < queries)
                    s[m][n][e] = masked_score(job, b, h, i, j, s[m][n][e]);
            }
}

/* Converts a row of masked scores to powers of two, minus `shift`. */
template <int BK> __device__ __forceinline__ void subtract(float s[BK / 8][4], int half, float shift)
{
#pragma unroll
    for (int n = 0; n < BK / 8; n++)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; e++)
            s[n][e] = (s[n][e] - shift) * LOG2E;
}

template <typename T, int D, int BK, int MT, int W>
__device__ __forceinline__ void forward_block(const attention_job &job, int64_t b, int64_t h, int64_t i0, uint16_t *shared)
{
    const int BQ = 16 * MT * W, TILE = BK * (D + 8);
    uint16_t *q = shared, *k = q + BQ * (D + 8), *v = k + 2 * TILE;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, depth = (int)job.depth;
    const uint16_t *from_k = attention_rows<uint16_t>(job.k, b, h / job.group),
                   *from_v = attention_rows<uint16_t>(job.v, b, h / job.group);
    const float scale = job.mask ? 1 : (float)job.scale * LOG2E; /* in the units of `top` */
    const float unit = job.mask ? LOG2E : 1;                      /* from these to powers of two */
    int64_t end = job.causal && i0 + BQ < job.keys ? i0 + BQ : job.keys, row0 = i0 + warp * MT * 16;
    float acc[MT][D / 8][4], top[MT][2], sum[MT][2];
    clear<MT, D / 8>(acc);
    for (int m = 0; m < MT; m++)
        for (int half = 0; half < 2; half++) {
            top[m][half] = -INFINITY;
            sum[m][half] = 0;
        }
    load_rows<D, BQ, 32 * W>(q, attention_rows<uint16_t>(job.q, b, h), job.q.strides[2], i0, job.queries, depth);
    load_rows<D, BK, 32 * W>(k, from_k, job.k.strides[2], 0, job.keys, depth);
    load_rows<D, BK, 32 * W>(v, from_v, job.v.strides[2], 0, job.keys, depth);
    trek_copy_commit();
    int stage = 0;
    for (int64_t j0 = 0; j0 < end; j0 += BK, stage ^= 1) {
        if (j0 + BK < end) {
            load_rows<D, BK, 32 * W>(k + (stage ^ 1) * TILE, from_k, job.k.strides[2], j0 + BK, job.keys, depth);
            load_rows<D, BK, 32 * W>(v + (stage ^ 1) * TILE, from_v, job.v.strides[2], j0 + BK, job.keys, depth);
        }
        trek_copy_commit();
        trek_copy_wait<1>();
        __syncthreads();
        float s[MT][BK / 8][4];
        clear<MT, BK / 8>(s);
        rows_times_rows<T, D, MT, BK>(s, q + warp * MT * 16 * (D + 8), k + stage * TILE);
        mask_scores<MT, BK>(job, b, h, (int)row0, (int)j0, s);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float before = top[m][half], now = -INFINITY;
#pragma unroll
                for (int n = 0; n < BK / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        now = fmaxf(now, s[m][n][e]);        /* which ignores NaN; the sum has it */
                now = fmaxf(before, trek_quad_largest(now) * scale); /* the scale is positive */
                float shift = now > -INFINITY ? now : 0, factor = trek_exp2((before - shift) * unit), added = 0;
                top[m][half] = now;
                if (job.mask)
                    subtract<BK>(s[m], half, shift);
#pragma unroll
                for (int n = 0; n < BK / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        float p = trek_exp2(job.mask ? s[m][n][e] : trek_fused(s[m][n][e], scale, -shift));
                        added += p;
                        if (job.drops)
                            p *= kept_factor(job, b, h, (int)row0 + m * 16 + lane / 4 + half * 8,
                                             (int)j0 + n * 8 + lane % 4 * 2 + e % 2);
                        s[m][n][e] = p;
                    }
                sum[m][half] = sum[m][half] * factor + added;
#pragma unroll
                for (int n = 0; n < D / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        acc[m][n][e] *= factor;
            }
        __syncwarp(); /* masks and dropout may have diverged lanes */
        weights_times_rows<T, D, MT, BK>(acc, s, v + stage * TILE);
        __syncthreads();
    }
    float *lse = (float *)job.lse + (b * job.heads + h) * job.queries;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = trek_quad_sum(sum[m][half]), inverse = total > 0 ? 1 / total : total == 0 ? 0 : total;
            int64_t i = row0 + m * 16 + lane / 4 + half * 8;
            if (lane % 4 == 0 && i < job.queries)
                lse[i] = total == 0 ? -INFINITY : (top[m][half] > -INFINITY ? top[m][half] : 0) * (LN2 * unit) + logf(total);
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    acc[m][n][e] *= inverse;
        }
    store_rows<T, D, MT>(job.y, b, h, row0, job.queries, depth, acc);
}

/* --- backward ------------------------------------------------------------------------------------- */

/* Computes, from scores s and dp, the probabilities that made y and the gradients of unscaled scores. */
template <int MT, int BO, bool of_keys>
__device__ __forceinline__ void gradients_of(const attention_job &job, int64_t b, int64_t h, int own0, int other0,
                                             const float *numbers, const float lse[MT][2], const float delta[MT][2],
                                             float s[MT][BO / 8][4], float dp[MT][BO / 8][4])
{
    const float scale = (float)job.scale, scale2 = scale * LOG2E;
    int lane = (int)threadIdx.x % 32;
    int own_end = (int)(of_keys ? job.keys : job.queries), other_end = (int)(of_keys ? job.queries : job.keys);
    bool edge = job.mask || job.drops || own0 + 16 * MT > own_end || other0 + BO > other_end ||
                (job.causal && (of_keys ? other0 < own0 + 16 * MT : other0 + BO > own0 + 1));
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BO / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int column = n * 8 + lane % 4 * 2 + e % 2;
                float l = of_keys ? numbers[column] : lse[m][e / 2], d = of_keys ? numbers[BO + column] : delta[m][e / 2];
                float score = s[m][n][e], kept = 1;
                bool seen = true;
                float power = trek_fused(score, scale2, -l);
                if (edge) {
                    int own = own0 + m * 16 + lane / 4 + e / 2 * 8, other = other0 + column;
                    int i = of_keys ? other : own, j = of_keys ? own : other;
                    seen = own < own_end && other < other_end && !(job.causal && j > i);
                    if (seen && job.mask)
                        power = (masked_score(job, b, h, i, j, score) - l) * LOG2E;
                    if (seen && job.drops)
                        kept = kept_factor(job, b, h, i, j);
                }
                float p = seen ? trek_exp2(power) : 0;
                s[m][n][e] = p * kept;
                dp[m][n][e] = p * (dp[m][n][e] * kept - d) * scale;
            }
    __syncwarp(); /* masks and dropout may have diverged lanes */
}

template <typename T, int D, int BO, int MT, int W, bool of_keys>
__device__ __forceinline__ void backward_block(const attention_job &job, int64_t b, int64_t own_head, int64_t own0,
                                               uint16_t *shared)
{
    const int BR = 16 * MT * W, TILE = BO * (D + 8);
    uint16_t *x1 = shared, *x2 = x1 + BR * (D + 8), *y1 = x2 + BR * (D + 8), *y2 = y1 + 2 * TILE;
    float *numbers = (float *)(y2 + 2 * TILE); /* of queries: two stages of lse and delta */
    const attention_operand &own_1 = of_keys ? job.k : job.q, &own_2 = of_keys ? job.v : job.dy;
    const attention_operand &other_1 = of_keys ? job.q : job.k, &other_2 = of_keys ? job.dy : job.v;
    int64_t own_end = of_keys ? job.keys : job.queries, other_end = of_keys ? job.queries : job.keys;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, depth = (int)job.depth;
    int64_t row0 = own0 + warp * MT * 16, begin = of_keys && job.causal ? own0 / BO * BO : 0;
    int64_t end = !of_keys && job.causal && own0 + BR < other_end ? own0 + BR : other_end;
    float acc[MT][D / 8][4], acc_v[MT][of_keys ? D / 8 : 1][4], lse[MT][2], delta[MT][2];
    clear<MT, D / 8>(acc);
    clear<MT, of_keys ? D / 8 : 1>(acc_v);
    for (int m = 0; m < MT && !of_keys; m++)
        for (int half = 0; half < 2; half++)
            attention_row_numbers(job, b, own_head, row0 + m * 16 + lane / 4 + half * 8, &lse[m][half], &delta[m][half]);
    load_rows<D, BR, 32 * W>(x1, attention_rows<uint16_t>(own_1, b, own_head), own_1.strides[2], own0, own_end, depth);
    load_rows<D, BR, 32 * W>(x2, attention_rows<uint16_t>(own_2, b, own_head), own_2.strides[2], own0, own_end, depth);
    int64_t tiles = begin < end ? (end - begin + BO - 1) / BO : 0, steps = tiles * (of_keys ? job.group : 1);
    for (int64_t step = -1; step < steps; step++) {
        int64_t next = step + 1;
        if (next < steps) {
            int64_t h = of_keys ? own_head * job.group + next / tiles : own_head, head = of_keys ? h : h / job.group;
            int64_t other0 = begin + next % tiles * BO;
            int at = (int)(next & 1);
            load_rows<D, BO, 32 * W>(y1 + at * TILE, attention_rows<uint16_t>(other_1, b, head), other_1.strides[2], other0,
                                     other_end, depth);
            load_rows<D, BO, 32 * W>(y2 + at * TILE, attention_rows<uint16_t>(other_2, b, head), other_2.strides[2], other0,
                                     other_end, depth);
            if (of_keys)
                for (int c = (int)threadIdx.x; c < BO; c += 32 * W)
                    attention_row_numbers(job, b, h, other0 + c, &numbers[at * 2 * BO + c], &numbers[at * 2 * BO + BO + c]);
        }
        trek_copy_commit();
        if (step < 0)
            continue;
        trek_copy_wait<1>();
        __syncthreads();
        int64_t h = of_keys ? own_head * job.group + step / tiles : own_head, other0 = begin + step % tiles * BO;
        int at = (int)(step & 1);
        float s[MT][BO / 8][4], dp[MT][BO / 8][4];
        clear<MT, BO / 8>(s);
        clear<MT, BO / 8>(dp);
        rows_times_rows<T, D, MT, BO>(s, x1 + warp * MT * 16 * (D + 8), y1 + at * TILE);
        rows_times_rows<T, D, MT, BO>(dp, x2 + warp * MT * 16 * (D + 8), y2 + at * TILE);
        gradients_of<MT, BO, of_keys>(job, b, h, (int)row0, (int)other0, numbers + at * 2 * BO, lse, delta, s, dp);
        weights_times_rows<T, D, MT, BO>(acc, dp, y1 + at * TILE);
        if constexpr (of_keys)
            weights_times_rows<T, D, MT, BO>(acc_v, s, y2 + at * TILE);
        __syncthreads();
    }
    store_rows<T, D, MT>(of_keys ? job.dk : job.dq, b, own_head, row0, own_end, depth, acc);
    if constexpr (of_keys)
        store_rows<T, D, MT>(job.dv, b, own_head, row0, own_end, depth, acc_v);
    __syncthreads();
}

#endif /* TREK_MMA */

/* --- kernels ---------------------------------------------------------------------------------------- */

template <typename T, int D, int BK, int MT, int W>
static __global__ void __launch_bounds__(32 * W)
    attention_mma_kernel(const __grid_constant__ attention_job job, trek_launch_order order)
{
#ifdef TREK_MMA
    const trek_launch_place place = trek_launch_place_of(order, (int)blockIdx.x);
    /* 64 bits: after divisions of 32 bits ptxas spills 80 bytes of registers instead of 12. */
    const int64_t pair = place.pair, tile = order.tiles - 1 - place.turn;
    forward_block<T, D, BK, MT, W>(job, pair / job.heads, pair % job.heads, tile * (16 * MT * W),
                                   (uint16_t *)trek_dynamic_shared());
#endif
}

template <typename T, int D, int BO, int MT, int W, bool of_keys>
static __global__ void __launch_bounds__(32 * W)
    gradient_mma_kernel(const __grid_constant__ attention_job job, trek_launch_order order)
{
#ifdef TREK_MMA
    const trek_launch_place place = trek_launch_place_of(order, (int)blockIdx.x);
    const int heads = (int)(of_keys ? job.kv_heads : job.heads), tile = of_keys ? place.turn : order.tiles - 1 - place.turn;
    backward_block<T, D, BO, MT, W, of_keys>(job, place.pair / heads, place.pair % heads, tile * (16 * MT * W),
                                             (uint16_t *)trek_dynamic_shared());
#endif
}

/* --- calls ---------------------------------------------------------------------------------------------- */

enum { GRADIENT_WARPS = 4, GRADIENT_ROWS = 16 * GRADIENT_WARPS };

template <typename T, int D, int BK, int MT, int W>
static trek_status forward(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    int64_t tiles = (job.queries + 16 * MT * W - 1) / (16 * MT * W), pairs = job.batch * job.heads;
    size_t shared = (size_t)(16 * MT * W + 4 * BK) * (D + 8) * 2;
    if (tiles * pairs == 0)
        return TREK_OK;
    if (tiles * pairs > 0x7fffffff || (int64_t)shared > queue->device->max_shared)
        return trek_cuda_refuse(trek_attention_too_large);
    return trek_launch(call, queue, trek_blocks(dim3((unsigned)(tiles * pairs)), dim3(32 * W), shared),
                       attention_mma_kernel<T, D, BK, MT, W>, job, attention_order(queue, job, false, tiles));
}

/* Return the bytes of shared memory of a block of gradients, and how many blocks one side needs. */
template <int D, int BO> constexpr size_t gradient_shared()
{
    return (size_t)(2 * GRADIENT_ROWS + 4 * BO) * (D + 8) * 2 + (size_t)(4 * BO) * sizeof(float);
}
template <bool of_keys> static int64_t gradient_pairs(const attention_job &job)
{
    return job.batch * (of_keys ? job.kv_heads : job.heads);
}
template <bool of_keys> static int64_t gradient_tiles(const attention_job &job)
{
    return ((of_keys ? job.keys : job.queries) + GRADIENT_ROWS - 1) / GRADIENT_ROWS;
}

template <int D, int BO, bool of_keys> static bool gradient_fits(const trek_cuda_queue *queue, const attention_job &job)
{
    return gradient_tiles<of_keys>(job) * gradient_pairs<of_keys>(job) <= 0x7fffffff &&
           (int64_t)gradient_shared<D, BO>() <= queue->device->max_shared;
}

template <typename T, int D, int BO, bool of_keys>
static trek_status gradient(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    int64_t tiles = gradient_tiles<of_keys>(job), pairs = gradient_pairs<of_keys>(job);
    if (tiles * pairs == 0)
        return TREK_OK;
    return trek_launch(call, queue,
                       trek_blocks(dim3((unsigned)(tiles * pairs)), dim3(32 * GRADIENT_WARPS), gradient_shared<D, BO>()),
                       gradient_mma_kernel<T, D, BO, 1, GRADIENT_WARPS, of_keys>, job,
                       attention_order(queue, job, of_keys, tiles));
}

template <typename T> static trek_status forward_of(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    if (job.depth <= 64)
        return forward<T, 64, 64, 2, 4>(call, queue, job);
    return forward<T, 128, 32, 2, 4>(call, queue, job);
}

/* Launches both or neither: what the second cannot launch is known before the first has run. */
template <typename T, int D, int KEYS_BO, int QUERIES_BO>
static trek_status both_gradients(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    if (!gradient_fits<D, KEYS_BO, true>(queue, job) || !gradient_fits<D, QUERIES_BO, false>(queue, job))
        return trek_cuda_refuse(trek_attention_too_large);
    trek_status status = gradient<T, D, KEYS_BO, true>(call, queue, job);
    return status == TREK_OK ? gradient<T, D, QUERIES_BO, false>(call, queue, job) : status;
}

/* Uses the most keys at a time that the device's shared memory holds: 64 of depth 128 need 103 KiB, and some devices
 * have 99. */
template <typename T>
static trek_status gradients_of_call(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    if (job.depth <= 64)
        return both_gradients<T, 64, 64, 64>(call, queue, job);
    if (gradient_fits<128, 64, false>(queue, job))
        return both_gradients<T, 128, 32, 64>(call, queue, job);
    return both_gradients<T, 128, 32, 32>(call, queue, job);
}

/* Returns whether rows can be copied 16 bytes at a time. */
bool trek_attention_in_pieces(const attention_operand &o)
{
    return o.strides[3] == 1 && ((uintptr_t)o.data & 15) == 0 && o.strides[0] % 8 == 0 && o.strides[1] % 8 == 0 &&
           o.strides[2] % 8 == 0;
}

bool trek_attention_gradients_in_pieces(const attention_job &job)
{
    return trek_attention_in_pieces(job.dy) && trek_attention_in_pieces(job.dq) && trek_attention_in_pieces(job.dk) &&
           trek_attention_in_pieces(job.dv);
}

bool trek_attention_suits_tensor_cores(const trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype)
{
    if (!trek_dtype_is_16bit(dtype))
        return trek_cuda_refuse_it("a dtype other than bf16 and f16");
    if (queue->device->info.major < 8)
        return trek_cuda_refuse_it("a compute capability below 8.0");
    if (job.depth <= 0 || job.depth % 8 != 0 || job.depth > 128)
        return trek_cuda_refuse_it("a depth that is not a multiple of 8 up to 128");
    if (!(job.scale > 0))
        return trek_cuda_refuse_it("a scale that is not positive");
    if (job.queries >= 0x7fff0000 || job.keys >= 0x7fff0000)
        return trek_cuda_refuse_it("more than 2^31 - 65537 queries or keys");
    return (trek_attention_in_pieces(job.q) && trek_attention_in_pieces(job.k) && trek_attention_in_pieces(job.v)) ||
           trek_cuda_refuse_it(trek_attention_askew);
}

trek_status trek_cuda_attention_mma(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype)
{
    if (!trek_attention_suits_tensor_cores(queue, job, dtype))
        return TREK_ERR_UNSUPPORTED;
    if (!trek_attention_in_pieces(job.y))
        return trek_cuda_refuse(trek_attention_askew);
    if (dtype == TREK_BF16)
        return forward_of<trek_bf16>(call, queue, job);
    return forward_of<trek_f16>(call, queue, job);
}

trek_status trek_cuda_attention_mma_backward(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                             trek_dtype dtype)
{
    if (!trek_attention_suits_tensor_cores(queue, job, dtype))
        return TREK_ERR_UNSUPPORTED;
    if (!trek_attention_gradients_in_pieces(job))
        return trek_cuda_refuse(trek_attention_askew);
    if (dtype == TREK_BF16)
        return gradients_of_call<trek_bf16>(call, queue, job);
    return gradients_of_call<trek_f16>(call, queue, job);
}

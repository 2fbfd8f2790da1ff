/* SPDX-License-Identifier: Apache-2.0 */
/* Attention without the matrix of scores. It processes blocks of queries against blocks of keys and updates the
 * softmax with each block (Milakov and Gimelshein 2018; Dao and others 2022). The kernels in this file accept any
 * dtype, depth and strides; those for tensor cores are in attention_mma.cu. Gradients of keys and of queries are
 * computed separately, each by the block that owns them, so that sums always have the same order. */
#include "tensor/cuda/attention/attention.cuh"
#include "tensor/cuda/attention/attention_check.cuh"
#include "tensor/cuda/attention/choice.h"
#include "tensor/cuda/attention/dnn.h"

#include "tensor/cuda/block.cuh"
#include "tensor/cuda/products/linear.h"
#include "tensor/cuda/products/tile.cuh"

#define OTHER 32       /* rows of the other side, one for each lane */
#define CHUNK 32       /* of the depth, for scores */
#define THREADS 128
#define WARPS (THREADS / 32)

template <typename W> __device__ __forceinline__ W warp_largest(W x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        W other = __shfl_xor_sync(0xffffffffu, x, lanes);
        x = other > x ? other : x;
    }
    return x;
}

template <typename W> __device__ __forceinline__ W warp_sum(W x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

/* The rows that a warp has of its block's OWN rows: they are WARPS apart. */
template <int OWN> struct own_rows {
    static const int count = (OWN + WARPS - 1) / WARPS;
};

/* Computes dots[r] = x row (warp + WARPS r) . y row (lane), over the depth, through shared memory. All threads of the
 * block call it. */
template <typename T, typename W, int OWN>
__device__ __forceinline__ void dot_rows(const T *x, int64_t x_row, int64_t x_step, int64_t x_rows, const T *y, int64_t y_row,
                                         int64_t y_step, int64_t y_rows, int64_t depth, W *x_tile, W *y_tile,
                                         W dots[own_rows<OWN>::count])
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int r = 0; r < own_rows<OWN>::count; r++)
        dots[r] = 0;
    for (int64_t d0 = 0; d0 < depth; d0 += CHUNK) {
        for (int i = warp; i < OWN; i += WARPS)
            x_tile[i * (CHUNK + 1) + lane] =
                i < x_rows && d0 + lane < depth ? (W)trek_get(x[i * x_row + (d0 + lane) * x_step]) : (W)0;
        for (int i = warp; i < OTHER; i += WARPS)
            y_tile[i * (CHUNK + 1) + lane] =
                i < y_rows && d0 + lane < depth ? (W)trek_get(y[i * y_row + (d0 + lane) * y_step]) : (W)0;
        __syncthreads();
#pragma unroll 8
        for (int d = 0; d < CHUNK; d++) {
            W other = y_tile[lane * (CHUNK + 1) + d];
#pragma unroll
            for (int r = 0; r < own_rows<OWN>::count; r++)
                if (warp + WARPS * r < OWN)
                    dots[r] = trek_multiply_add(x_tile[(warp + WARPS * r) * (CHUNK + 1) + d], other, dots[r]);
        }
        __syncthreads();
    }
}

/* Computes acc [OWN][depth] += p [OWN][OTHER] rows of y, for a warp's own rows. p must be complete (after a barrier). */
template <typename T, typename W, int OWN>
__device__ __forceinline__ void add_rows(const W *p, const T *y, int64_t y_row, int64_t y_step, int64_t y_rows, int64_t depth,
                                         W *acc)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int64_t d = lane; d < depth; d += 32) {
        W sum[own_rows<OWN>::count];
#pragma unroll
        for (int r = 0; r < own_rows<OWN>::count; r++)
            sum[r] = warp + WARPS * r < OWN ? acc[(warp + WARPS * r) * depth + d] : (W)0;
        for (int j = 0; j < y_rows; j++) {
            W value = (W)trek_get(y[j * y_row + d * y_step]);
#pragma unroll
            for (int r = 0; r < own_rows<OWN>::count; r++)
                if (warp + WARPS * r < OWN)
                    sum[r] = trek_multiply_add(p[(warp + WARPS * r) * OTHER + j], value, sum[r]);
        }
#pragma unroll
        for (int r = 0; r < own_rows<OWN>::count; r++)
            if (warp + WARPS * r < OWN)
                acc[(warp + WARPS * r) * depth + d] = sum[r];
    }
}

__device__ __forceinline__ int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* --- forward ------------------------------------------------------------------------------- */

template <typename T, int OWN> static __global__ void __launch_bounds__(THREADS) attention_kernel(attention_job job,
                                                                                                  int64_t blocks)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(W, x_tile, OWN * (CHUNK + 1));
    TREK_SHARED(W, y_tile, OTHER * (CHUNK + 1));
    TREK_SHARED(W, p, OWN * OTHER);
    W *acc = (W *)trek_dynamic_shared();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t tiles = (job.queries + OWN - 1) / OWN;
    for (int64_t unit = blockIdx.x; unit < blocks; unit += gridDim.x) {
        int64_t i0 = unit % tiles * OWN, h = unit / tiles % job.heads, b = unit / tiles / job.heads;
        int64_t rows = lesser(OWN, job.queries - i0), last = job.causal ? lesser(job.keys, i0 + rows) : job.keys;
        const T *q = attention_rows<T>(job.q, b, h) + i0 * job.q.strides[2];
        const T *k = attention_rows<T>(job.k, b, h / job.group), *v = attention_rows<T>(job.v, b, h / job.group);
        W top[own_rows<OWN>::count], sum[own_rows<OWN>::count];
        for (int r = 0; r < own_rows<OWN>::count; r++) {
            top[r] = -(W)INFINITY;
            sum[r] = 0;
        }
        for (int64_t i = threadIdx.x; i < OWN * job.depth; i += THREADS)
            acc[i] = 0;
        for (int64_t j0 = 0; j0 < last; j0 += OTHER) {
            int64_t columns = lesser(OTHER, last - j0);
            W s[own_rows<OWN>::count];
            dot_rows<T, W, OWN>(q, job.q.strides[2], job.q.strides[3], rows, k + j0 * job.k.strides[2], job.k.strides[2],
                                job.k.strides[3], columns, job.depth, x_tile, y_tile, s);
            for (int r = 0; r < own_rows<OWN>::count; r++) {
                int row = warp + WARPS * r;
                if (row >= OWN)
                    continue;
                bool real = row < rows && lane < columns;
                W score = real ? attention_masked(job, b, h, i0 + row, j0 + lane, (W)(s[r] * (W)job.scale)) : -(W)INFINITY;
                W before = top[r], now = warp_largest(score);
                now = now > before ? now : before;
                W shift = now > -(W)INFINITY ? now : (W)0;
                W e = trek_exp(score - shift);
                if (before > -(W)INFINITY && before != now) {
                    W factor = trek_exp(before - now);
                    sum[r] *= factor;
                    for (int64_t d = lane; d < job.depth; d += 32)
                        acc[row * job.depth + d] *= factor;
                }
                top[r] = now;
                sum[r] += warp_sum(e);
                p[row * OTHER + lane] = real && job.drops ? (W)(e * (W)attention_kept(job, b, h, i0 + row, j0 + lane)) : e;
            }
            __syncthreads();
            add_rows<T, W, OWN>(p, v + j0 * job.v.strides[2], job.v.strides[2], job.v.strides[3], columns, job.depth, acc);
            __syncthreads();
        }
        __syncthreads();
        T *y = attention_rows<T>(job.y, b, h) + i0 * job.y.strides[2];
        W *lse = (W *)job.lse + (b * job.heads + h) * job.queries + i0;
        for (int r = 0; r < own_rows<OWN>::count; r++) {
            int row = warp + WARPS * r;
            if (row >= rows)
                continue;
            for (int64_t d = lane; d < job.depth; d += 32)
                y[row * job.y.strides[2] + d * job.y.strides[3]] =
                    trek_store<T>::of(sum[r] == 0 ? (W)0 : (W)(acc[row * job.depth + d] / sum[r]));
            if (lane == 0)
                lse[row] = sum[r] == 0 ? -(W)INFINITY : (W)((top[r] > -(W)INFINITY ? top[r] : (W)0) + trek_log(sum[r]));
        }
        __syncthreads();
    }
}

/* --- backward -------------------------------------------------------------------------------- */

/* Computes delta, the sum over the depth of dy y, with a warp for each row. */
template <typename T> static __global__ void __launch_bounds__(THREADS) delta_kernel(attention_job job, int64_t rows)
{
    typedef typename trek_wide<T>::type W;
    int64_t first = (int64_t)blockIdx.x * WARPS + (int)threadIdx.x / 32, step = (int64_t)gridDim.x * WARPS;
    int lane = (int)threadIdx.x % 32;
    for (int64_t row = first; row < rows; row += step) {
        int64_t i = row % job.queries, h = row / job.queries % job.heads, b = row / job.queries / job.heads;
        const T *y = attention_rows<T>(job.y, b, h) + i * job.y.strides[2],
                *dy = attention_rows<T>(job.dy, b, h) + i * job.dy.strides[2];
        W sum = 0;
        for (int64_t d = lane; d < job.depth; d += 32)
            sum += (W)trek_get(y[d * job.y.strides[3]]) * (W)trek_get(dy[d * job.dy.strides[3]]);
        sum = warp_sum(sum);
        if (lane == 0)
            ((W *)job.delta)[row] = sum;
    }
}

/* Computes, from a score and dy . v, the probability that made y and the gradient of the unscaled score. */
template <typename W>
__device__ __forceinline__ void gradient_of(const attention_job &job, int64_t b, int64_t h, int64_t i, int64_t j, W score, W dp,
                                            W *p, W *ds)
{
    int64_t row = (b * job.heads + h) * job.queries + i;
    W lse = ((const W *)job.lse)[row], delta = ((const W *)job.delta)[row];
    W probability = lse == -(W)INFINITY ? (W)0 : trek_exp(attention_masked(job, b, h, i, j, (W)(score * (W)job.scale)) - lse);
    W kept = job.drops ? (W)attention_kept(job, b, h, i, j) : (W)1;
    *p = probability * kept;
    *ds = probability * (dp * kept - delta) * (W)job.scale;
}

/* A block owns rows of keys (of_keys) or of queries, and processes the others in order. */
template <typename T, int OWN, bool of_keys>
static __global__ void __launch_bounds__(THREADS) gradient_kernel(attention_job job, int64_t blocks)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(W, x_tile, OWN * (CHUNK + 1));
    TREK_SHARED(W, y_tile, OTHER * (CHUNK + 1));
    TREK_SHARED(W, p, OWN * OTHER);
    TREK_SHARED(W, ds, OWN * OTHER);
    W *acc = (W *)trek_dynamic_shared(), *acc_v = acc + OWN * job.depth;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t own_size = of_keys ? job.keys : job.queries, other_size = of_keys ? job.queries : job.keys;
    int64_t own_heads = of_keys ? job.kv_heads : job.heads, tiles = (own_size + OWN - 1) / OWN;
    const attention_operand &own_1 = of_keys ? job.k : job.q, &own_2 = of_keys ? job.v : job.dy;
    const attention_operand &other_1 = of_keys ? job.q : job.k, &other_2 = of_keys ? job.dy : job.v;
    for (int64_t unit = blockIdx.x; unit < blocks; unit += gridDim.x) {
        int64_t r0 = unit % tiles * OWN, own_head = unit / tiles % own_heads, b = unit / tiles / own_heads;
        int64_t rows = lesser(OWN, own_size - r0);
        const T *x1 = attention_rows<T>(own_1, b, own_head) + r0 * own_1.strides[2];
        const T *x2 = attention_rows<T>(own_2, b, own_head) + r0 * own_2.strides[2];
        for (int64_t i = threadIdx.x; i < (of_keys ? 2 : 1) * OWN * job.depth; i += THREADS)
            acc[i] = 0;
        for (int64_t g = 0; g < (of_keys ? job.group : 1); g++) {
            int64_t h = of_keys ? own_head * job.group + g : own_head, other_head = of_keys ? h : h / job.group;
            int64_t begin = of_keys && job.causal ? r0 / OTHER * OTHER : 0;
            int64_t end = !of_keys && job.causal ? lesser(other_size, r0 + rows) : other_size;
            for (int64_t c0 = begin; c0 < end; c0 += OTHER) {
                int64_t columns = lesser(OTHER, end - c0);
                const T *y1 = attention_rows<T>(other_1, b, other_head) + c0 * other_1.strides[2];
                const T *y2 = attention_rows<T>(other_2, b, other_head) + c0 * other_2.strides[2];
                W s[own_rows<OWN>::count], d[own_rows<OWN>::count];
                dot_rows<T, W, OWN>(x1, own_1.strides[2], own_1.strides[3], rows, y1, other_1.strides[2], other_1.strides[3],
                                    columns, job.depth, x_tile, y_tile, s);
                dot_rows<T, W, OWN>(x2, own_2.strides[2], own_2.strides[3], rows, y2, other_2.strides[2], other_2.strides[3],
                                    columns, job.depth, x_tile, y_tile, d);
                for (int r = 0; r < own_rows<OWN>::count; r++) {
                    int row = warp + WARPS * r;
                    W probability = 0, gradient = 0;
                    if (row < rows && lane < columns)
                        gradient_of(job, b, h, of_keys ? c0 + lane : r0 + row, of_keys ? r0 + row : c0 + lane, s[r], d[r],
                                    &probability, &gradient);
                    if (row < OWN) {
                        p[row * OTHER + lane] = probability;
                        ds[row * OTHER + lane] = gradient;
                    }
                }
                __syncthreads();
                add_rows<T, W, OWN>(ds, y1, other_1.strides[2], other_1.strides[3], columns, job.depth, acc);
                if (of_keys)
                    add_rows<T, W, OWN>(p, y2, other_2.strides[2], other_2.strides[3], columns, job.depth, acc_v);
                __syncthreads();
            }
        }
        __syncthreads();
        const attention_operand &out = of_keys ? job.dk : job.dq;
        T *to = attention_rows<T>(out, b, own_head) + r0 * out.strides[2];
        T *to_v = of_keys ? attention_rows<T>(job.dv, b, own_head) + r0 * job.dv.strides[2] : nullptr;
        for (int row = warp; row < rows; row += WARPS)
            for (int64_t d = lane; d < job.depth; d += 32) {
                to[row * out.strides[2] + d * out.strides[3]] = trek_store<T>::of(acc[row * job.depth + d]);
                if (of_keys)
                    to_v[row * job.dv.strides[2] + d * job.dv.strides[3]] = trek_store<T>::of(acc_v[row * job.depth + d]);
            }
        __syncthreads();
    }
}

/* --- calls --------------------------------------------------------------------------------------- */

static void take_operand(attention_operand *o, const trek_tensor *t)
{
    o->data = t->data;
    for (int d = 0; d < 4; d++)
        o->strides[d] = t->strides[d];
}

static attention_job job_of(const trek_op_call *call, const trek_cuda_queue *queue, const trek_tensor *q, const trek_tensor *k,
                            const trek_tensor *v, const trek_tensor *mask)
{
    attention_job job = {};
    take_operand(&job.q, q);
    take_operand(&job.k, k);
    take_operand(&job.v, v);
    job.batch = q->sizes[0], job.heads = q->sizes[1], job.queries = q->sizes[2], job.depth = q->sizes[3];
    job.kv_heads = k->sizes[1], job.keys = k->sizes[2];
    job.group = job.kv_heads ? job.heads / job.kv_heads : 1;
    job.scale = call->attrs.f[1];
    job.causal = call->attrs.i[4] != 0;
    job.drops = call->attrs.f[0] > 0;
    job.dropout = trek_dropout_of(call->attrs.f[0]);
    if (job.drops)
        job.draw = trek_draw_of(call, queue);
    if (mask) {
        job.mask = mask->data;
        job.mask_dtype = mask->dtype;
        for (int d = 0; d < mask->ndim; d++)
            job.mask_strides[4 - mask->ndim + d] = mask->sizes[d] != 1 ? mask->strides[d] : 0;
    }
    return job;
}

/* Own rows of a block. f64, which is rare, has no code for many rows. */
template <typename W> static constexpr int most_own_rows = sizeof(W) == sizeof(double) ? 4 : 32;

/* Returns the larger of 4 and most_own_rows whose sums (`sums` of them) fit into shared memory next to what is always
 * there; 0: neither fits. */
template <typename W> static int own_rows_that_fit(const trek_cuda_queue *queue, int64_t depth, int sums)
{
    for (int own : { most_own_rows<W>, 4 }) {
        int64_t fixed = (int64_t)sizeof(W) * ((own + OTHER) * (CHUNK + 1) + 2 * own * OTHER) + 1024;
        if (fixed + own * depth * sums * (int64_t)sizeof(W) <= queue->device->max_shared)
            return own;
    }
    return 0;
}

static trek_status too_deep(const trek_op_call *call, int64_t depth)
{
    return trek_op_fail(call, TREK_ERR_UNSUPPORTED, "a depth of %lld does not fit into this device's shared memory",
                        (long long)depth);
}

static trek_grid own_grid(int64_t blocks, size_t shared)
{
    return trek_blocks(dim3((unsigned)(blocks < 0x7fffffff ? blocks : 0x7fffffff)), dim3(THREADS), shared);
}

template <typename T, int OWN>
static trek_status run_forward(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    int64_t blocks = job.batch * job.heads * ((job.queries + OWN - 1) / OWN);
    size_t shared = (size_t)(OWN * job.depth) * sizeof(typename trek_wide<T>::type);
    return trek_launch(call, queue, own_grid(blocks, shared), attention_kernel<T, OWN>, job, blocks);
}

template <typename T> static trek_status forward_of(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    typedef typename trek_wide<T>::type W;
    const int own = own_rows_that_fit<W>(queue, job.depth, 1);
    if (own == 0)
        return too_deep(call, job.depth);
    return own == 4 ? run_forward<T, 4>(call, queue, job) : run_forward<T, most_own_rows<W>>(call, queue, job);
}

/* --- the choice of a way: each is asked in turn, those of TREK_CUDA_ATTENTION first ----------------------- */

/* Returns whether the kernels for sm_90a are asked: with `auto`, if the device could have them. */
static bool is_wgmma_asked(const trek_cuda_queue *queue)
{
    const trek_cuda_attention_kind choice = trek_cuda_attention_choice();
    return choice == TREK_CUDA_ATTENTION_WGMMA ||
           (choice != TREK_CUDA_ATTENTION_OWN && queue->device->info.major == 9 && queue->device->info.minor == 0);
}

/* Returns false by trek_cuda_refuse. With `auto` they must first agree with the other kernels. */
static bool may_be_wgmma(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype)
{
    return trek_attention_suits_wgmma(queue, job, dtype) && (trek_cuda_attention_choice() == TREK_CUDA_ATTENTION_WGMMA ||
                                                             trek_cuda_attention_agrees(call, queue, dtype, job.depth));
}

/* Counts what a way has answered. Returns true if the next one must be asked. */
static bool goes_on(const trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype, trek_cuda_path path,
                    trek_status status)
{
    if (status == TREK_ERR_UNSUPPORTED && path != TREK_CUDA_PATH_ATTENTION_SIMPLE &&
        path != TREK_CUDA_PATH_ATTENTION_BACKWARD_SIMPLE)
        return trek_cuda_path_refused(queue, path), true;
    const trek_cuda_path_shape shape = { "batch heads kv_heads queries keys depth causal mask dropout", dtype,
                                         { job.batch, job.heads, job.kv_heads, job.queries, job.keys, job.depth, job.causal,
                                           job.mask != nullptr, job.drops } };
    if (status == TREK_OK)
        trek_cuda_path_served(queue, path, &shape);
    return false;
}

template <typename T>
static trek_status forward_by_choice(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype)
{
    trek_status status;
    trek_cuda_path_begin();
    if (trek_cuda_attention_choice() == TREK_CUDA_ATTENTION_CUDNN) {
        status = trek_cuda_dnn_attention(call, queue, job.lse);
        if (!goes_on(queue, job, dtype, TREK_CUDA_PATH_ATTENTION_CUDNN, status))
            return status;
    }
    if (is_wgmma_asked(queue)) {
        status = may_be_wgmma(call, queue, job, dtype) ? trek_cuda_attention_wgmma(call, queue, job, dtype)
            : TREK_ERR_UNSUPPORTED;
        if (!goes_on(queue, job, dtype, TREK_CUDA_PATH_ATTENTION_WGMMA, status))
            return status;
    }
    status = trek_cuda_attention_mma(call, queue, job, dtype);
    if (!goes_on(queue, job, dtype, TREK_CUDA_PATH_ATTENTION_MMA, status))
        return status;
    status = forward_of<T>(call, queue, job);
    goes_on(queue, job, dtype, TREK_CUDA_PATH_ATTENTION_SIMPLE, status);
    return status;
}

template <typename T> static trek_status attention(const trek_op_call *call)
{
    trek_tensor *y = call->outputs[0], *lse = call->outputs[1];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (y->numel == 0 && lse->numel == 0)
        return TREK_OK;
    attention_job job =
        job_of(call, queue, call->inputs[0], call->inputs[1], call->inputs[2], call->n_inputs > 3 ? call->inputs[3] : nullptr);
    take_operand(&job.y, y);
    trek_cuda_scratch own_lse = { nullptr, nullptr };
    trek_status status = TREK_OK;
    size_t size = sizeof(typename trek_wide<T>::type);
    job.lse = lse->data;
    if (!lse->contiguous) {
        status = trek_cuda_scratch_take(queue, (size_t)lse->numel * size, &own_lse);
        job.lse = own_lse.data;
    }
    if (status == TREK_OK)
        status = forward_by_choice<T>(call, queue, job, (trek_dtype)y->dtype);
    if (status == TREK_OK && !lse->contiguous)
        status = trek_cuda_unpack(call, queue, lse->data, own_lse.data, size, lse->ndim, lse->sizes, lse->strides);
    trek_cuda_scratch_give(queue, &own_lse);
    return status;
}

template <typename T, int OWN, bool of_keys>
static trek_status run_gradient(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    int64_t rows = of_keys ? job.keys : job.queries,
            blocks = job.batch * (of_keys ? job.kv_heads : job.heads) * ((rows + OWN - 1) / OWN);
    size_t shared = (size_t)((of_keys ? 2 : 1) * OWN * job.depth) * sizeof(typename trek_wide<T>::type);
    return blocks ? trek_launch(call, queue, own_grid(blocks, shared), gradient_kernel<T, OWN, of_keys>, job, blocks) : TREK_OK;
}

template <typename T, bool of_keys>
static trek_status gradient_of_side(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    typedef typename trek_wide<T>::type W;
    const int own = own_rows_that_fit<W>(queue, job.depth, of_keys ? 2 : 1);
    if (own == 0)
        return too_deep(call, job.depth);
    return own == 4 ? run_gradient<T, 4, of_keys>(call, queue, job)
                    : run_gradient<T, most_own_rows<W>, of_keys>(call, queue, job);
}

template <typename T> static trek_status both_sides(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    trek_status status = gradient_of_side<T, true>(call, queue, job);
    return status == TREK_OK ? gradient_of_side<T, false>(call, queue, job) : status;
}

/* Computes what all own kernels read. */
template <typename T> static trek_status make_delta(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    const int64_t rows = job.batch * job.heads * job.queries, blocks = (rows + WARPS - 1) / WARPS;
    if (rows == 0)
        return TREK_OK;
    return trek_launch(call, queue, trek_blocks(dim3((unsigned)(blocks < 1 << 20 ? blocks : 1 << 20)), dim3(THREADS)),
                       delta_kernel<T>, job, rows);
}

trek_status trek_cuda_attention_delta(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                      trek_dtype dtype)
{
    return dtype == TREK_BF16 ? make_delta<trek_bf16>(call, queue, job) : make_delta<trek_f16>(call, queue, job);
}

template <typename T> static trek_status gradients(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    const trek_dtype dtype = (trek_dtype)call->inputs[1]->dtype;
    trek_status status;
    trek_cuda_path_begin();
    if (trek_cuda_attention_choice() == TREK_CUDA_ATTENTION_CUDNN) {
        status = trek_cuda_dnn_attention_backward(call, queue, job.lse, job.delta);
        if (!goes_on(queue, job, dtype, TREK_CUDA_PATH_ATTENTION_BACKWARD_CUDNN, status))
            return status;
    }
    status = make_delta<T>(call, queue, job);
    if (status != TREK_OK)
        return status;
    if (is_wgmma_asked(queue)) {
        status = may_be_wgmma(call, queue, job, dtype) ? trek_cuda_attention_wgmma_backward(call, queue, job, dtype)
                                                       : TREK_ERR_UNSUPPORTED;
        if (!goes_on(queue, job, dtype, TREK_CUDA_PATH_ATTENTION_BACKWARD_WGMMA, status))
            return status;
    }
    status = trek_cuda_attention_mma_backward(call, queue, job, dtype);
    if (!goes_on(queue, job, dtype, TREK_CUDA_PATH_ATTENTION_BACKWARD_MMA, status))
        return status;
    status = both_sides<T>(call, queue, job);
    goes_on(queue, job, dtype, TREK_CUDA_PATH_ATTENTION_BACKWARD_SIMPLE, status);
    return status;
}

template <typename T> static trek_status attention_backward(const trek_op_call *call)
{
    typedef typename trek_wide<T>::type W;
    const trek_tensor *lse = call->inputs[5];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    attention_job job =
        job_of(call, queue, call->inputs[1], call->inputs[2], call->inputs[3], call->n_inputs > 6 ? call->inputs[6] : nullptr);
    take_operand(&job.dy, call->inputs[0]);
    take_operand(&job.y, call->inputs[4]);
    take_operand(&job.dq, call->outputs[0]);
    take_operand(&job.dk, call->outputs[1]);
    take_operand(&job.dv, call->outputs[2]);
    trek_cuda_scratch numbers = { nullptr, nullptr };
    size_t bytes = ((size_t)lse->numel * sizeof(W) + 255) / 256 * 256;
    trek_status status = trek_cuda_scratch_take(queue, lse->contiguous ? bytes : 2 * bytes, &numbers);
    if (status != TREK_OK)
        return status;
    job.delta = numbers.data;
    job.lse = lse->data;
    if (!lse->contiguous) {
        job.lse = (char *)numbers.data + bytes;
        status = trek_cuda_pack(call, queue, job.lse, lse->data, sizeof(W), lse->ndim, lse->sizes, lse->strides);
    }
    if (status == TREK_OK)
        status = gradients<T>(call, queue, job);
    trek_cuda_scratch_give(queue, &numbers);
    return status;
}

template <trek_dtype D> static void enter(trek_backend *backend)
{
    typedef typename trek_element<D>::type T;
    backend->kernels[TREK_OP_attention][D] = attention<T>;
    backend->kernels[TREK_OP_attention_backward][D] = attention_backward<T>;
}

extern "C" void trek_cuda_register_attention(trek_backend *backend)
{
    enter<TREK_F32>(backend);
    enter<TREK_F64>(backend);
    enter<TREK_BF16>(backend);
    enter<TREK_F16>(backend);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Attention forward of 16-bit operands on sm_90a (the plan is that of Shah and others 2024, FlashAttention-3: one
 * warp only loads, warpgroups only compute). A block has 128 queries, 64 for each of two warpgroups. A ninth warp
 * requests keys and values, 128 at a time in two stages, by tensor copies; mbarriers report when they have arrived
 * and when they have been read. It does not support masks and dropout, which attention_mma.cu does. The gradients are
 * in attention_wgmma_backward.cu.
 *
 * It is compiled for compute_90a in addition to the library's architectures, for which these kernels are empty
 * (tensor/cuda/meson.build). */
#include "tensor/cuda/attention/attention_wgmma.cuh"

enum { KEYS = 128 };

/* Offsets in the shared memory of a block: tiles of 128 rows, then mbarriers. */
template <int D> struct room {
    static constexpr int tile = tile_bytes<D, 128>, k = tile, v = k + STAGES * tile, meetings = v + STAGES * tile;
    static constexpr int most = meetings + meeting_bytes<2> + 1024; /* so that it can begin at a multiple of 1024 */
};

#ifdef TREK_WGMMA

struct head_place {
    int b, h, kv; /* kv: of keys and values */
};
typedef meeting_places<2> meetings; /* of keys and of values */

/* One thread requests queries, and each step's keys and values when the earlier ones in their stage have been read. */
template <int D>
__device__ __forceinline__ void fetch(uint32_t base, const meetings &at, const trek_tensor_map &q, const trek_tensor_map &k,
                                      const trek_tensor_map &v, const head_place &place, int i0, int steps)
{
    typedef room<D> R;
    trek_meeting_expect(at.own(), R::tile);
    send_tile<D, OWN_ROWS>(base, q, i0, place.h, place.b, at.own());
    for (int step = 0; step < steps; step++)
        for (int values = 0; values < 2; values++) {
            const int stage = step % STAGES;
            trek_meeting_wait(at.read(values, stage), (step / STAGES + 1) & 1); /* does not wait in the first round */
            trek_meeting_expect(at.there(values, stage), R::tile);
            send_tile<D, KEYS>(base + (values ? R::v : R::k) + stage * R::tile, values ? v : k, step * KEYS, place.kv, place.b,
                               at.there(values, stage));
        }
}

/* Converts scores to powers of two, relative to the largest so far of their rows; scales acc and sum to it. */
template <int A>
__device__ __forceinline__ void soften(float (&s)[KEYS / 2], float (&acc)[A], float (&top)[2], float (&sum)[2], float scale)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float now = -INFINITY;
#pragma unroll
        for (int k = 0; k < KEYS / 2; k++)
            if (k / 2 % 2 == half)
                now = fmaxf(now, s[k]); /* which ignores NaN; the sum has it */
        now = fmaxf(top[half], trek_quad_largest(now) * scale); /* the scale is positive */
        const float shift = now > -INFINITY ? now : 0, factor = trek_exp2(top[half] - shift);
        float added = 0;
        top[half] = now;
#pragma unroll
        for (int k = 0; k < KEYS / 2; k++)
            if (k / 2 % 2 == half) {
                s[k] = trek_exp2(trek_fused(s[k], scale, -shift));
                added += s[k];
            }
        sum[half] = sum[half] * factor + added;
#pragma unroll
        for (int k = 0; k < A; k++)
            if (k / 2 % 2 == half)
                acc[k] *= factor;
    }
}

/* Divides by the sums and writes a warp's 16 rows, and their log-sum-exp. */
template <typename T, int A>
__device__ __forceinline__ void finish(const attention_job &job, const head_place &place, int row, const float (&acc)[A],
                                       const float (&top)[2],
                                       const float (&sum)[2])
{
    const int lane = (int)threadIdx.x % 32;
    float *lse = (float *)job.lse + ((int64_t)place.b * job.heads + place.h) * job.queries;
    uint16_t *to = attention_rows<uint16_t>(job.y, place.b, place.h);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float total = trek_quad_sum(sum[half]), inverse = total > 0 ? 1 / total : total == 0 ? 0 : total;
        const int64_t i = row + half * 8;
        if (i >= job.queries)
            continue;
        if (lane % 4 == 0)
            lse[i] = total == 0 ? -INFINITY : (top[half] > -INFINITY ? top[half] : 0) * LN2 + logf(total);
        write_row<T>(to + i * job.y.strides[2], acc, half, inverse, (int)job.depth);
    }
}

/* Computes a warpgroup's 64 queries, the first being i0. Registers are arranged as in "Register Fragments": the
 * result of a product of scores, in pairs of 16 bits, is the left operand of the next product. */
template <typename T, int D>
__device__ __forceinline__ void compute(const attention_job &job, uint32_t base, const meetings &at, const head_place &place,
                                        int i0, int steps)
{
    typedef room<D> R;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, half_block = warp / 4;
    const int row = i0 + warp * 16 + lane / 4, column = lane % 4 * 2, keys = (int)job.keys;
    const float scale = (float)job.scale * LOG2E;
    const uint32_t q = base + half_block * HALF;
    float acc[D / 2], top[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
#pragma unroll
    for (int k = 0; k < D / 2; k++)
        acc[k] = 0;
    trek_meeting_wait(at.own(), 0);
    for (int step = 0; step < steps; step++) {
        const int stage = step % STAGES, round = step / STAGES & 1;
        const uint32_t k = base + R::k + stage * R::tile, v = base + R::v + stage * R::tile;
        float s[KEYS / 2];
        trek_meeting_wait(at.there(false, stage), round);
        trek_wgmma_fence();
        scores<T, D>(s, q, k);
        trek_wgmma_commit();
        trek_wgmma_wait<0>(s);
        give_back(at.read(false, stage));
        const int j0 = step * KEYS;
        if (j0 + KEYS > keys || (job.causal && j0 + KEYS > i0 + half_block * 64 + 1))
            hide<false>(s, job.causal, row, j0 + column, keys);
        soften(s, acc, top, sum, scale);
        uint32_t p[KEYS / 4];
#pragma unroll
        for (int n = 0; n < KEYS / 4; n++)
            p[n] = trek_pack2<T>(s[2 * n], s[2 * n + 1]);
        trek_meeting_wait(at.there(true, stage), round);
        trek_wgmma_fence();
        weigh<T>(acc, p, v);
        trek_wgmma_commit();
        trek_wgmma_wait<0>(acc);
        give_back(at.read(true, stage));
    }
    finish<T>(job, place, row, acc, top, sum);
}

#endif /* TREK_WGMMA */

template <typename T, int D>
static __global__ void __launch_bounds__(THREADS)
    attention_wgmma_kernel(const __grid_constant__ attention_job job, const __grid_constant__ trek_tensor_map q,
                           const __grid_constant__ trek_tensor_map k, const __grid_constant__ trek_tensor_map v,
                           trek_launch_order order)
{
#ifdef TREK_WGMMA
    const uint32_t base = ((uint32_t)__cvta_generic_to_shared(trek_dynamic_shared()) + 1023) / 1024 * 1024;
    const meetings at = { base + room<D>::meetings };
    const trek_launch_place at_unit = trek_launch_place_of(order, (int)blockIdx.x);
    const int i0 = (order.tiles - 1 - at_unit.turn) * OWN_ROWS, heads = (int)job.heads, head = at_unit.pair % heads;
    const head_place place = { at_unit.pair / heads, head, head / (int)job.group };
    const int64_t end = job.causal && i0 + OWN_ROWS < job.keys ? i0 + OWN_ROWS : job.keys;
    const int steps = (int)((end + KEYS - 1) / KEYS);
    if (threadIdx.x == 0)
        at.make(1);
    __syncthreads();
    if (threadIdx.x < 32 * COMPUTING)
        compute<T, D>(job, base, at, place, i0, steps);
    else if (threadIdx.x == 32 * COMPUTING)
        fetch<D>(base, at, q, k, v, place, i0, steps);
#else
    (void)job, (void)q, (void)k, (void)v, (void)order;
#endif
}

/* --- calls ---------------------------------------------------------------------------------------------- */

template <typename T, int D>
static trek_status forward(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype)
{
    static int known;
    const int64_t tiles = (job.queries + OWN_ROWS - 1) / OWN_ROWS, pairs = job.batch * job.heads;
    trek_tensor_map q, k, v;
    if (tiles * pairs > 0x7fffffff || room<D>::most > queue->device->max_shared)
        return trek_cuda_refuse(trek_attention_too_large);
    if (!is_there(queue, (const void *)attention_wgmma_kernel<T, D>, &known) || !map_of(&q, job.q, job, false, OWN_ROWS, dtype) ||
        !map_of(&k, job.k, job, true, KEYS, dtype) || !map_of(&v, job.v, job, true, KEYS, dtype))
        return TREK_ERR_UNSUPPORTED;
    return trek_launch(call, queue, trek_blocks(dim3((unsigned)(tiles * pairs)), dim3(THREADS), room<D>::most),
                       attention_wgmma_kernel<T, D>, job, q, k, v, attention_order(queue, job, false, tiles));
}

bool trek_attention_suits_wgmma(const trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype)
{
#if !defined(TREK_HAVE_SM_90A) && !defined(TREK_FAKE_CUDA)
    return trek_cuda_refuse_it("libtrek-cuda was built by a compiler that does not know sm_90a");
#endif
    if (queue->device->info.major != 9 || queue->device->info.minor != 0)
        return trek_cuda_refuse_it("a compute capability other than 9.0");
    if (job.mask)
        return trek_cuda_refuse_it("a mask");
    if (job.drops)
        return trek_cuda_refuse_it("dropout");
    if (job.batch <= 0 || job.heads <= 0 || job.queries <= 0 || job.keys <= 0 || job.heads > 0x7fffffff)
        return trek_cuda_refuse_it("no queries or no keys, or more than 2^31 - 1 heads");
    return trek_attention_suits_tensor_cores(queue, job, dtype);
}

trek_status trek_cuda_attention_wgmma(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                      trek_dtype dtype)
{
    if (!trek_attention_suits_wgmma(queue, job, dtype))
        return TREK_ERR_UNSUPPORTED;
    if (!trek_attention_in_pieces(job.y))
        return trek_cuda_refuse(trek_attention_askew);
    if (dtype == TREK_BF16)
        return job.depth <= 64 ? forward<trek_bf16, 64>(call, queue, job, dtype) : forward<trek_bf16,
            128>(call, queue, job, dtype);
    return job.depth <= 64 ? forward<trek_f16, 64>(call, queue, job, dtype) : forward<trek_f16, 128>(call, queue, job, dtype);
}

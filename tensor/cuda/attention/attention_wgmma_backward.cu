/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of attention of 16-bit operands on sm_90a, for calls without masks and dropout, from the same log-sum-exp
 * and delta as in attention_mma.cu. There are two kernels. Each owns what it writes, so that nothing is added by
 * atomics and the bits are always the same: one owns keys and processes the queries that see them, of all heads of
 * their group; the other owns queries and processes the keys that they see.
 *
 * A block's own rows are the left operands of both products of scores, own times other. For keys the scores are
 * therefore transposed, so that probabilities and gradients of scores, in pairs of 16 bits in the registers where
 * they were computed, are left operands of the products that sum dv and dk, as those of queries are for dq. */
#include "tensor/cuda/attention/attention_wgmma.cuh"

/* The loading warp is in a warpgroup of its own, which leaves its registers to those that compute: a third of a
 * multiprocessor's registers are 168 for each thread, and sums of scores and results alone need 192. */
enum { ALL_THREADS = 32 * (COMPUTING + 4), FETCHING_REGISTERS = 40, COMPUTING_REGISTERS = 232 };

/* How many rows of the other side are processed at a time: as many as the registers have sums for. */
template <int D, bool of_keys> static constexpr int other_rows = of_keys &&D > 64 ? 64 : 128;

/* Offsets in the shared memory of a block: its own two tiles, and in each stage those of the other side; for queries
 * their log-sum-exp and delta in each stage; then mbarriers. */
template <int D, int N> struct room {
    static constexpr int own = tile_bytes<D, OWN_ROWS>, other = tile_bytes<D, N>, others = 2 * own;
    static constexpr int numbers = others + STAGES * 2 * other, meetings = numbers + STAGES * 2 * N * (int)sizeof(float);
    static constexpr int most = meetings + meeting_bytes<1> + 1024; /* so that it can begin at a multiple of 1024 */
};

#ifdef TREK_WGMMA

/* A block's own rows, and what it processes: tiles from `begin` on, one head after the other. */
struct block_plan {
    int b, own_head, own0, other_head, begin, tiles, steps;
};
struct block_maps {
    const trek_tensor_map &own_1, &own_2, &other_1, &other_2; /* of keys: k, v, q, dy; of queries: q, dy, k, v */
};
typedef meeting_places<1> meetings; /* of both tiles, and for keys the numbers of their queries */

/* Called by all lanes of a warp, one of which may have diverged before: after it, all lanes have waited. */
__device__ __forceinline__ void wait_together(uint32_t meeting, int parity)
{
    trek_meeting_wait(meeting, parity);
    __syncwarp();
}

/* Called by a warp, which for keys also reads the numbers of their queries; otherwise by one thread. */
template <int D, int N, bool of_keys>
__device__ __forceinline__ void fetch(const attention_job &job, char *shared, const meetings &at, const block_maps &maps,
                                      const block_plan &plan)
{
    typedef room<D, N> R;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    const int lane = (int)threadIdx.x % 32;
    if (lane == 0 && plan.steps > 0) {
        trek_meeting_expect(at.own(), 2 * R::own);
        send_tile<D, OWN_ROWS>(base, maps.own_1, plan.own0, plan.own_head, plan.b, at.own());
        send_tile<D, OWN_ROWS>(base + R::own, maps.own_2, plan.own0, plan.own_head, plan.b, at.own());
    }
    int head = plan.other_head, tile = 0;
    for (int step = 0; step < plan.steps; step++) {
        const int stage = step % STAGES, row = plan.begin + tile * N;
        const uint32_t to = base + R::others + stage * 2 * R::other;
        if constexpr (of_keys)
            wait_together(at.read(0, stage), (step / STAGES + 1) & 1); /* does not wait in the first round */
        else
            trek_meeting_wait(at.read(0, stage), (step / STAGES + 1) & 1);
        if (lane == 0) {
            trek_meeting_expect(at.there(0, stage), 2 * R::other);
            send_tile<D, N>(to, maps.other_1, row, head, plan.b, at.there(0, stage));
            send_tile<D, N>(to + R::other, maps.other_2, row, head, plan.b, at.there(0, stage));
        }
        if constexpr (of_keys) {
            float *numbers = (float *)(shared + R::numbers) + stage * 2 * N;
            for (int c = lane; c < N; c += 32) {
                float lse, delta;
                attention_row_numbers(job, plan.b, head, row + c, &lse, &delta);
                numbers[c] = -lse;
                numbers[N + c] = -delta * (float)job.scale;
            }
            __syncwarp();
            if (lane == 0)
                trek_meeting_arrive(at.there(0, stage));
        }
        if (++tile == plan.tiles) {
            tile = 0;
            head++;
        }
    }
}

/* What is subtracted from scores and from gradients of probabilities: for the queries of a thread's two rows, or
 * (of_keys) of its columns, two of each eight. They are negated, because both are added. */
template <bool of_keys> struct of_queries {
    float own[2];
    const float2 *others;
    __device__ __forceinline__ float2 operator()(int k) const /* of a thread's scores k and k + 1 */
    {
        return of_keys ? others[k / 4 * 4] : float2{ own[k / 2 % 2], own[k / 2 % 2] };
    }
};

/* Converts scores to probabilities. */
template <bool of_keys, int A>
__device__ __forceinline__ void powers(float (&s)[A], const of_queries<of_keys> &lse, float scale)
{
#pragma unroll
    for (int k = 0; k < A; k += 2) {
        const float2 less = lse(k);
        s[k] = trek_exp2(trek_fused(s[k], scale, less.x));
        s[k + 1] = trek_exp2(trek_fused(s[k + 1], scale, less.y));
    }
}

/* Packs probabilities, and the gradients of unscaled scores, in pairs. */
template <typename T, bool of_keys, int A, int W>
__device__ __forceinline__ void pack(uint32_t (&p)[W], uint32_t (&ds)[W], const float (&s)[A], const float (&dp)[A],
                                     const of_queries<of_keys> &delta, float scale)
{
#pragma unroll
    for (int k = 0; k < A; k += 2) {
        const float2 less = delta(k);
        p[k / 2] = trek_pack2<T>(s[k], s[k + 1]);
        ds[k / 2] = trek_pack2<T>(s[k] * trek_fused(dp[k], scale, less.x), s[k + 1] * trek_fused(dp[k + 1], scale, less.y));
    }
}

/* Writes a warp's 16 rows below `rows`. */
template <typename T, int A>
__device__ __forceinline__ void write_rows(const attention_operand &o, const block_plan &plan, int row, int64_t rows, int depth,
                                           const float (&acc)[A])
{
    uint16_t *to = attention_rows<uint16_t>(o, plan.b, plan.own_head);
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (row + half * 8 < rows)
            write_row<T>(to + (int64_t)(row + half * 8) * o.strides[2], acc, half, 1, depth);
}

/* Computes a warpgroup's 64 rows. Products of a step are in flight in pairs: probabilities are computed while dp is. */
template <typename T, int D, int N, bool of_keys>
__device__ __forceinline__ void compute(const attention_job &job, const char *shared, const meetings &at, const block_plan &plan)
{
    typedef room<D, N> R;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, first = plan.own0 + warp / 4 * 64;
    const int row = plan.own0 + warp * 16 + lane / 4, column = lane % 4 * 2, keys = (int)job.keys;
    const uint32_t x1 = base + warp / 4 * HALF, x2 = x1 + R::own;
    const float scale = (float)job.scale, scale2 = scale * LOG2E;
    float acc[D / 2], acc_v[D / 2];
    of_queries<of_keys> lse, delta;
#pragma unroll
    for (int k = 0; k < D / 2; k++)
        acc[k] = acc_v[k] = 0;
#pragma unroll
    for (int half = 0; half < 2 && !of_keys; half++) {
        attention_row_numbers(job, plan.b, plan.own_head, row + half * 8, &lse.own[half], &delta.own[half]);
        lse.own[half] = -lse.own[half];
        delta.own[half] *= -scale;
    }
    if (plan.steps > 0)
        trek_meeting_wait(at.own(), 0);
    for (int step = 0, tile = 0; step < plan.steps; step++) {
        const int stage = step % STAGES, other0 = plan.begin + tile * N;
        const uint32_t y1 = base + R::others + stage * 2 * R::other, y2 = y1 + R::other;
        tile = tile + 1 == plan.tiles ? 0 : tile + 1;
        wait_together(at.there(0, stage), step / STAGES & 1);
        if (!(of_keys && job.causal && other0 + N <= first)) { /* otherwise no query of the tile sees these keys */
            float s[N / 2], dp[N / 2];
            uint32_t p[N / 4], ds[N / 4];
            lse.others = (const float2 *)(shared + R::numbers) + stage * N + column / 2;
            delta.others = lse.others + N / 2;
            trek_wgmma_fence();
            scores<T, D>(s, x1, y1);
            trek_wgmma_commit();
            scores<T, D>(dp, x2, y2);
            trek_wgmma_commit();
            trek_wgmma_wait<1>(s);
            if (of_keys ? job.causal && other0 < first + 63 : other0 + N > keys || (job.causal && other0 + N > first + 1))
                hide<of_keys>(s, job.causal, row, other0 + column, keys);
            powers<of_keys>(s, lse, scale2);
            trek_wgmma_wait<0>(dp);
            pack<T, of_keys>(p, ds, s, dp, delta, scale);
            trek_wgmma_fence();
            if constexpr (of_keys)
                weigh<T>(acc_v, p, y2);
            weigh<T>(acc, ds, y1);
            trek_wgmma_commit();
            trek_wgmma_wait<0>(acc);
            if constexpr (of_keys)
                trek_wgmma_over(acc_v);
        }
        give_back(at.read(0, stage));
    }
    write_rows<T>(of_keys ? job.dk : job.dq, plan, row, of_keys ? job.keys : job.queries, (int)job.depth, acc);
    if constexpr (of_keys)
        write_rows<T>(job.dv, plan, row, job.keys, (int)job.depth, acc_v);
}

/* Determines what the block does. */
template <int N, bool of_keys>
__device__ __forceinline__ block_plan plan_of(const attention_job &job, const trek_launch_order &order)
{
    const trek_launch_place place = trek_launch_place_of(order, (int)blockIdx.x);
    const int pair = place.pair, heads = (int)(of_keys ? job.kv_heads : job.heads), group = (int)job.group;
    const int own0 = (of_keys ? place.turn : order.tiles - 1 - place.turn) * OWN_ROWS;
    const int head = pair % heads, begin = of_keys && job.causal ? own0 : 0;
    int end = (int)(of_keys ? job.queries : job.keys);
    if (!of_keys && job.causal && own0 + OWN_ROWS < end)
        end = own0 + OWN_ROWS;
    const int others = begin < end ? (end - begin + N - 1) / N : 0;
    return { pair / heads, head, own0, of_keys ? head * group : head / group, begin, others, others * (of_keys ? group : 1) };
}

#endif /* TREK_WGMMA */

template <typename T, int D, bool of_keys>
static __global__ void __launch_bounds__(ALL_THREADS, 1)
    gradient_wgmma_kernel(const __grid_constant__ attention_job job, const __grid_constant__ trek_tensor_map own_1,
                          const __grid_constant__ trek_tensor_map own_2, const __grid_constant__ trek_tensor_map other_1,
                          const __grid_constant__ trek_tensor_map other_2, trek_launch_order order)
{
#ifdef TREK_WGMMA
    constexpr int N = other_rows<D, of_keys>;
    char *shared = shared_begin();
    const meetings at = { (uint32_t)__cvta_generic_to_shared(shared) + room<D, N>::meetings };
    const block_plan plan = plan_of<N, of_keys>(job, order);
    if (threadIdx.x == 0)
        at.make(of_keys ? 2 : 1);
    __syncthreads();
    if (threadIdx.x < 32 * COMPUTING) {
        trek_registers_more<COMPUTING_REGISTERS>();
        compute<T, D, N, of_keys>(job, shared, at, plan);
    } else {
        trek_registers_fewer<FETCHING_REGISTERS>();
        if (threadIdx.x < 32 * (COMPUTING + (of_keys ? 1 : 0)) || threadIdx.x == 32 * COMPUTING)
            fetch<D, N, of_keys>(job, shared, at, { own_1, own_2, other_1, other_2 }, plan);
    }
#else
    (void)job, (void)own_1, (void)own_2, (void)other_1, (void)other_2, (void)order;
#endif
}

/* --- calls ---------------------------------------------------------------------------------------------- */

/* A launch that is known to be possible. */
struct prepared {
    trek_tensor_map maps[4];
    int64_t tiles, pairs;
};

template <typename T, int D, bool of_keys>
static bool prepare(prepared *to, const trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype)
{
    static int known;
    constexpr int N = other_rows<D, of_keys>;
    const attention_operand *const keys[2] = { &job.k, &job.v }, *const queries[2] = { &job.q, &job.dy };
    const int64_t others = (of_keys ? job.queries : job.keys) / N + 1;
    to->tiles = ((of_keys ? job.keys : job.queries) + OWN_ROWS - 1) / OWN_ROWS;
    to->pairs = job.batch * (of_keys ? job.kv_heads : job.heads);
    if (to->tiles * to->pairs > 0x7fffffff || others * (of_keys ? job.group : 1) > 0x7fffffff ||
        room<D, N>::most > queue->device->max_shared)
        return trek_cuda_refuse_it(trek_attention_too_large);
    if (!is_there(queue, (const void *)gradient_wgmma_kernel<T, D, of_keys>, &known))
        return false;
    for (int m = 0; m < 2; m++)
        if (!map_of(&to->maps[of_keys ? m : 2 + m], *keys[m], job, true, of_keys ? OWN_ROWS : N, dtype) ||
            !map_of(&to->maps[of_keys ? 2 + m : m], *queries[m], job, false, of_keys ? N : OWN_ROWS, dtype))
            return false;
    return true;
}

template <typename T, int D, bool of_keys>
static trek_status run(const prepared &with, const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job)
{
    return trek_launch(
        call, queue,
        trek_blocks(dim3((unsigned)(with.tiles * with.pairs)), dim3(ALL_THREADS), room<D, other_rows<D, of_keys>>::most),
        gradient_wgmma_kernel<T, D, of_keys>, job, with.maps[0], with.maps[1], with.maps[2], with.maps[3],
        attention_order(queue, job, of_keys, with.tiles));
}

/* Launches both or neither. */
template <typename T, int D>
static trek_status both(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype)
{
    prepared keys, queries;
    if (!prepare<T, D, true>(&keys, queue, job, dtype) || !prepare<T, D, false>(&queries, queue, job, dtype))
        return TREK_ERR_UNSUPPORTED;
    const trek_status status = run<T, D, true>(keys, call, queue, job);
    return status == TREK_OK ? run<T, D, false>(queries, call, queue, job) : status;
}

trek_status trek_cuda_attention_wgmma_backward(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                               trek_dtype dtype)
{
    if (!trek_attention_suits_wgmma(queue, job, dtype))
        return TREK_ERR_UNSUPPORTED;
    if (!trek_attention_gradients_in_pieces(job))
        return trek_cuda_refuse(trek_attention_askew);
    if (dtype == TREK_BF16)
        return job.depth <= 64 ? both<trek_bf16, 64>(call, queue, job, dtype) : both<trek_bf16, 128>(call, queue, job, dtype);
    return job.depth <= 64 ? both<trek_f16, 64>(call, queue, job, dtype) : both<trek_f16, 128>(call, queue, job, dtype);
}

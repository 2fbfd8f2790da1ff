/* SPDX-License-Identifier: Apache-2.0 */
/* Radix sort: each block counts its digits, one block finds where each block's digits begin, and the blocks write
 * their pairs there in order. */
#include "tensor/cuda/moves/radix_sort.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ITEMS 8 /* of a thread */
#define TILE (THREADS * ITEMS)
#define DIGITS 256

/* Returns the digit of the current item of this lane; DIGITS: there is none. Items of a warp are adjacent. */
static __device__ __forceinline__ uint32_t item_place(int item)
{
    return blockIdx.x * (uint32_t)TILE + (threadIdx.x >> 5) * (32 * ITEMS) + (uint32_t)item * 32 + (threadIdx.x & 31);
}

/* counts[digit][block] */
static __global__ void __launch_bounds__(THREADS) sort_count(const uint32_t *keys, uint32_t n, int shift, uint32_t *counts)
{
    TREK_SHARED(unsigned, found, DIGITS);
    found[threadIdx.x] = 0;
    __syncthreads();
    for (int item = 0; item < ITEMS; item++) {
        uint32_t at = item_place(item);
        if (at < n)
            atomicAdd(&found[keys[at] >> shift & (DIGITS - 1)], 1u);
    }
    __syncthreads();
    counts[threadIdx.x * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

/* Replaces each number by the sum of those before it. One block. */
static __global__ void __launch_bounds__(1024) sort_scan(uint32_t *counts, uint32_t n)
{
    TREK_SHARED(uint32_t, sums, 32);
    const uint32_t each = (n + 1023) / 1024, begin = threadIdx.x * each, end = begin + each < n ? begin + each : n;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    uint32_t mine = 0;
    for (uint32_t i = begin; i < end; i++)
        mine += counts[i];
    uint32_t sum = mine;
    for (int delta = 1; delta < 32; delta *= 2) {
        uint32_t below = __shfl_up_sync(0xffffffffu, sum, (unsigned)delta);
        sum += lane >= delta ? below : 0;
    }
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    uint32_t before = sum - mine;
    for (int w = 0; w < warp; w++)
        before += sums[w];
    for (uint32_t i = begin; i < end; i++) {
        uint32_t here = counts[i];
        counts[i] = before;
        before += here;
    }
}

static __global__ void __launch_bounds__(THREADS) sort_move(const uint32_t *keys, const uint32_t *values, uint32_t *to_keys,
                                                            uint32_t *to_values, uint32_t n, int shift, const uint32_t *starts)
{
    TREK_SHARED(uint32_t, place, WARPS *(DIGITS + 1));
    uint32_t *mine = place + (threadIdx.x >> 5) * (DIGITS + 1); /* of this warp */
    const unsigned lane = threadIdx.x & 31;
    uint32_t key[ITEMS];
    for (uint32_t i = threadIdx.x; i < WARPS * (DIGITS + 1); i += THREADS)
        place[i] = 0;
    __syncthreads();
    for (int item = 0; item < ITEMS; item++) {
        uint32_t at = item_place(item);
        key[item] = at < n ? keys[at] : 0;
        uint32_t digit = at < n ? key[item] >> shift & (DIGITS - 1) : DIGITS;
        unsigned same = __match_any_sync(0xffffffffu, digit);
        if (lane == (unsigned)__ffs((int)same) - 1)
            mine[digit] += (uint32_t)__popc(same);
        __syncwarp();
    }
    __syncthreads();
    uint32_t start = starts[threadIdx.x * gridDim.x + blockIdx.x]; /* of digit threadIdx.x, one warp after the other */
    for (int w = 0; w < WARPS; w++) {
        uint32_t count = place[w * (DIGITS + 1) + threadIdx.x];
        place[w * (DIGITS + 1) + threadIdx.x] = start;
        start += count;
    }
    __syncthreads();
    for (int item = 0; item < ITEMS; item++) {
        uint32_t at = item_place(item), digit = at < n ? key[item] >> shift & (DIGITS - 1) : DIGITS;
        unsigned same = __match_any_sync(0xffffffffu, digit);
        uint32_t to = mine[digit] + (uint32_t)__popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (lane == (unsigned)__ffs((int)same) - 1)
            mine[digit] += (uint32_t)__popc(same);
        __syncwarp();
        if (at < n) {
            to_keys[to] = key[item];
            to_values[to] = values[at];
        }
    }
}

trek_status trek_sort_pairs(const trek_op_call *call, trek_cuda_queue *queue, trek_sort *s, uint64_t limit)
{
    const unsigned blocks = (s->n - 1) / TILE + 1;
    trek_held counts;
    trek_status status = counts.take(queue, (size_t)blocks * DIGITS * sizeof(uint32_t));
    for (int shift = 0; status == TREK_OK && (limit - 1) >> shift > 0; shift += 8) {
        trek_grid grid = trek_blocks(dim3(blocks), dim3(THREADS));
        status = trek_launch(call, queue, grid, sort_count, (const uint32_t *)s->keys, s->n, shift, counts.as<uint32_t>());
        if (status == TREK_OK)
            status = trek_launch(call, queue, trek_blocks(dim3(1), dim3(1024)), sort_scan, counts.as<uint32_t>(),
                                 blocks * DIGITS);
        if (status == TREK_OK)
            status = trek_launch(call, queue, grid, sort_move, (const uint32_t *)s->keys, (const uint32_t *)s->values,
                                 s->other_keys,
                                 s->other_values, s->n, shift, (const uint32_t *)counts.as<uint32_t>());
        uint32_t *keys = s->keys, *values = s->values;
        s->keys = s->other_keys, s->values = s->other_values;
        s->other_keys = keys, s->other_values = values;
    }
    return status;
}

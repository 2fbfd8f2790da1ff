/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10 on the device: the numbers of tensor/random_internal.h. */
#ifndef TREK_TENSOR_CUDA_MOVES_RANDOM_CUH
#define TREK_TENSOR_CUDA_MOVES_RANDOM_CUH

#include "tensor/cuda/device.cuh"

/* A random op's position in the stream. */
struct trek_cuda_draw {
    uint64_t seed;
    trek_cuda_step step;
    uint32_t number;
    int64_t place; /* of element 0, where the call was captured */
    /* Behind the step in device memory is what places are multiplied by (capture.c). */
    __device__ __forceinline__ int64_t at() const { return step.base ? place * (int64_t)step.base[1] : place; }
};

/* From the attributes of dropout and similar ops: i[0] seed, i[1] step, i[2] draw, i[3] position of element 0. */
inline trek_cuda_draw trek_draw_of(const trek_op_call *call, const trek_cuda_queue *queue)
{
    const int64_t *i = call->attrs.i;
    return { (uint64_t)i[0], trek_step_of(queue, i[1]), (uint32_t)i[2], i[3] };
}

/* Computes numbers 0..3 of a block, which belong to positions 4 block to 4 block + 3. */
__device__ __forceinline__ void trek_cuda_philox(uint64_t seed, uint64_t block, uint32_t draw, uint32_t step, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = draw, c3 = step;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Dropout's numbers: a position is kept if the upper 24 bits of its number are at least `limit`; it is then
 * multiplied. */
struct trek_cuda_dropout {
    int32_t limit;
    double scale;
};
inline trek_cuda_dropout trek_dropout_of(double p)
{
    return { (int32_t)ceil((double)(float)p * 0x1p24), p < 1 ? 1 / (1 - p) : 0 };
}

#endif

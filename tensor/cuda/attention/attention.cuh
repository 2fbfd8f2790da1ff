/* SPDX-License-Identifier: Apache-2.0 */
/* What the attention kernels share: operands, masks and dropout. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_ATTENTION_CUH
#define TREK_TENSOR_CUDA_ATTENTION_ATTENTION_CUH

#include "tensor/cuda/attention/launch_order.h"
#include "tensor/cuda/moves/random.cuh"
#include "tensor/cuda/paths.h"

#define LOG2E 1.44269504088896340736f
#define LN2 0.69314718055994530942f

/* An operand [B, heads, rows, D]. The strides are in elements. */
struct attention_operand {
    void *data;
    int64_t strides[4];
};

/* Passed to kernels by value. lse and delta are [B, H, T] and contiguous, in f32, or in f64 for f64. */
struct attention_job {
    attention_operand q, k, v, y, dy, dq, dk, dv;
    void *lse, *delta;
    const void *mask;            /* may be NULL */
    int64_t mask_strides[4];     /* 0 where it repeats */
    int mask_dtype;
    int64_t batch, heads, kv_heads, group, queries, keys, depth;
    double scale;
    bool causal, drops;
    trek_cuda_draw draw;
    trek_cuda_dropout dropout;
};

template <typename T> __device__ __forceinline__ T *attention_rows(const attention_operand &o, int64_t b, int64_t h)
{
    return (T *)o.data + b * o.strides[0] + h * o.strides[1];
}

/* Returns the scaled score of query i and key j with its mask, or -infinity if the key is not seen. */
template <typename W>
__device__ __forceinline__ W attention_masked(const attention_job &job, int64_t b, int64_t h, int64_t i, int64_t j, W score)
{
    if (job.causal && j > i)
        return -(W)INFINITY;
    if (!job.mask)
        return score;
    int64_t at = b * job.mask_strides[0] + h * job.mask_strides[1] + i * job.mask_strides[2] + j * job.mask_strides[3];
    switch (job.mask_dtype) {
    case TREK_BOOL: return ((const bool *)job.mask)[at] ? score : -(W)INFINITY;
    case TREK_F32: return score + (W)((const float *)job.mask)[at];
    case TREK_F64: return score + (W)((const double *)job.mask)[at];
    case TREK_BF16: return score + (W)trek_get(((const trek_bf16 *)job.mask)[at]);
    default: return score + (W)trek_get(((const trek_f16 *)job.mask)[at]);
    }
}

/* Returns the factor of the probability of query i and key j: 1 / (1 - p), or 0 if it is dropped. */
__device__ __forceinline__ double attention_kept(const attention_job &job, int64_t b, int64_t h, int64_t i, int64_t j)
{
    int64_t place = job.draw.at() + ((b * job.heads + h) * job.queries + i) * job.keys + j;
    uint32_t words[4];
    trek_cuda_philox(job.draw.seed, (uint64_t)place / 4, job.draw.number, job.draw.step.now(), words);
    return (int32_t)(words[place & 3] >> 8) >= job.dropout.limit ? job.dropout.scale : 0;
}

/* For gradients of 16-bit operands: the log-sum-exp of a query (in units of log 2, or natural with a mask; infinity
 * if it sees nothing) and its delta. */
__device__ __forceinline__ void attention_row_numbers(const attention_job &job, int64_t b, int64_t h, int64_t i, float *lse,
                                                      float *delta)
{
    int64_t row = (b * job.heads + h) * job.queries + i;
    bool there = i < job.queries;
    float x = there ? ((const float *)job.lse)[row] : INFINITY;
    *lse = x == -INFINITY ? INFINITY : x * (job.mask ? 1 : LOG2E);
    *delta = there ? ((const float *)job.delta)[row] : 0;
}

/* Returns the order of the blocks of a tensor-core kernel, whose own rows are those of keys or of queries, `tiles`
 * tiles for each head. What is read repeatedly are the queries and output gradients of a head of keys, with two
 * numbers for each row, or the keys and values of a group of heads. */
static inline trek_launch_order attention_order(const trek_cuda_queue *queue, const attention_job &job, bool of_keys,
                                                int64_t tiles)
{
    const int64_t row = 2 * job.depth * (int64_t)sizeof(uint16_t), numbers = 2 * (int64_t)sizeof(float);
    const int64_t bytes = of_keys ? job.group * job.queries * (row + numbers) : job.keys * row;
    return trek_launch_order_of((int64_t)queue->device->l2, bytes, of_keys ? 1 : job.group, tiles,
                                job.batch * (of_keys ? job.kv_heads : job.heads));
}

/* Runs on tensor cores. Returns OK, or UNSUPPORTED through trek_cuda_refuse, with nothing done, if they do not accept
 * the call (attention_mma.cu). */
trek_status trek_cuda_attention_mma(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype);
trek_status trek_cuda_attention_mma_backward(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                             trek_dtype dtype);
/* The same on sm_90a, for calls accepted by trek_attention_suits_wgmma (attention_wgmma.cu,
 * attention_wgmma_backward.cu). */
trek_status trek_cuda_attention_wgmma(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                      trek_dtype dtype);
trek_status trek_cuda_attention_wgmma_backward(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                               trek_dtype dtype);
/* Return whether tensor cores can take the call: a 16-bit dtype, a depth that is a multiple of 8 up to 128, and rows
 * that can be read 16 bytes at a time. Those of sm_90a also need the device, a compiler that knew it, and neither a
 * mask nor dropout. If not, the reason goes to trek_cuda_refuse. */
bool trek_attention_suits_tensor_cores(const trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype);
bool trek_attention_suits_wgmma(const trek_cuda_queue *queue, const attention_job &job, trek_dtype dtype);
/* Return whether rows can be copied 16 bytes at a time; the second for dy, dq, dk and dv. */
bool trek_attention_in_pieces(const attention_operand &o);
bool trek_attention_gradients_in_pieces(const attention_job &job);

static const char trek_attention_askew[] = "rows that are not dense or do not begin at multiples of 16 bytes";
static const char trek_attention_too_large[] = "more blocks than a launch has, or more shared memory than the device has";

#endif

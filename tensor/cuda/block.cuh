/* SPDX-License-Identifier: Apache-2.0 */
/* Cooperation between threads: exchange of values of any size, reductions over a team (part of a warp, a warp or a
 * block) in a fixed order, and division by numbers that are known when a kernel is launched. */
#ifndef TREK_TENSOR_CUDA_BLOCK_CUH
#define TREK_TENSOR_CUDA_BLOCK_CUH

#include "tensor/cuda/device.cuh"

/* --- functions of both precisions ------------------------------------------------- */

__device__ __forceinline__ float trek_exp(float x) { return expf(x); }
TREK_CALLED double trek_exp(double x) { return exp(x); }
__device__ __forceinline__ float trek_log(float x) { return logf(x); }
TREK_CALLED double trek_log(double x) { return log(x); }
__device__ __forceinline__ float trek_fma(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double trek_fma(double a, double b, double c) { return fma(a, b, c); }
__device__ __forceinline__ float trek_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double trek_root(double x) { return sqrt(x); }

/* --- shuffles of values whose size is a multiple of 4 bytes ------------------------ */

template <typename A> __device__ __forceinline__ A trek_shuffle_down(A a, int delta)
{
    static_assert(sizeof(A) % 4 == 0, "shuffled by words");
    uint32_t words[sizeof(A) / 4];
    memcpy(words, &a, sizeof a);
#pragma unroll
    for (int k = 0; k < (int)(sizeof(A) / 4); k++)
        words[k] = __shfl_down_sync(0xffffffffu, words[k], (unsigned)delta);
    memcpy(&a, words, sizeof a);
    return a;
}
template <typename A> __device__ __forceinline__ A trek_shuffle_xor(A a, int lanes)
{
    static_assert(sizeof(A) % 4 == 0, "shuffled by words");
    uint32_t words[sizeof(A) / 4];
    memcpy(words, &a, sizeof a);
#pragma unroll
    for (int k = 0; k < (int)(sizeof(A) / 4); k++)
        words[k] = __shfl_xor_sync(0xffffffffu, words[k], lanes);
    memcpy(&a, words, sizeof a);
    return a;
}

/* --- reductions whose result every thread of the team has --------------------------- */

struct trek_adds {
    template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
/* Returns the larger one. NaN is ignored if the first is a number. */
struct trek_maxes {
    template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return b > a ? b : a; }
};

/* Reduces over `width` threads with consecutive numbers: a power of two up to 32, or the whole block (up to 1024).
 * `join` must be commutative to the last bit, and `none` is its neutral element. `shared` has 32 of T and is used if
 * width > 32. All threads of the block call this. */
template <typename T, typename F> __device__ __forceinline__ T trek_team_reduce(T v, int width, T *shared, T none, F join)
{
    for (int lanes = (width < 32 ? width : 32) / 2; lanes > 0; lanes /= 2)
        v = join(v, trek_shuffle_xor(v, lanes));
    if (width <= 32)
        return v;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    __syncthreads(); /* an earlier reduction has been read */
    if (lane == 0)
        shared[warp] = v;
    __syncthreads();
    v = lane < width / 32 ? shared[lane] : none;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        v = join(v, trek_shuffle_xor(v, lanes));
    return v;
}
template <typename T> __device__ __forceinline__ T trek_team_sum(T v, int width, T *shared)
{
    return trek_team_reduce(v, width, shared, (T)0, trek_adds());
}
template <typename T> __device__ __forceinline__ T trek_team_max(T v, int width, T *shared)
{
    return trek_team_reduce(v, width, shared, (T)-INFINITY, trek_maxes());
}

/* --- blocks laid over outputs (columns) and over what is gathered for each (rows) ------ */

/* 2^log_r threads work for each of a block's 2^log_c outputs. With `along`, threads with consecutive numbers gather
 * for the same output; otherwise they have neighbouring outputs. */
struct trek_block_layout {
    int log_r, log_c;
    bool along;
};
#define TREK_BLOCK_THREADS 256

__device__ __forceinline__ int trek_block_r(trek_block_layout l)
{
    return (int)(l.along ? threadIdx.x & ((1u << l.log_r) - 1) : threadIdx.x >> l.log_c);
}
__device__ __forceinline__ int trek_block_c(trek_block_layout l)
{
    return (int)(l.along ? threadIdx.x >> l.log_r : threadIdx.x & ((1u << l.log_c) - 1));
}

/* Joins the values of all r in a fixed tree; the thread with r = 0 has the result. join(a, b) adds b to a. `shared`
 * has TREK_BLOCK_THREADS of A. All threads of the block call this. */
template <typename A, typename F> __device__ __forceinline__ void trek_block_reduce(A &a, trek_block_layout l, A *shared, F join)
{
    int r = trek_block_r(l), t = (int)threadIdx.x, log_r = l.log_r;
    if (l.along) {
        for (int lanes = log_r >= 5 ? 16 : (1 << log_r) / 2; lanes > 0; lanes /= 2)
            join(a, trek_shuffle_down(a, lanes));
        if (log_r <= 5)
            return;
        __syncthreads();
        if ((t & 31) == 0)
            shared[t >> 5] = a;
        __syncthreads();
        if (r == 0)
            for (int k = 1; k < 1 << (log_r - 5); k++)
                join(a, shared[(t >> 5) + k]);
        return;
    }
    if (log_r == 0)
        return;
    __syncthreads();
    shared[t] = a;
    for (int half = (1 << log_r) / 2; half > 0; half /= 2) {
        __syncthreads();
        if (r < half) {
            join(a, shared[t + (half << l.log_c)]);
            shared[t] = a;
        }
    }
}

/* Gives all r the value of the thread with r = 0. `shared` is as above. */
template <typename A> __device__ __forceinline__ A trek_block_spread(A a, trek_block_layout l, A *shared)
{
    if (l.log_r == 0)
        return a;
    __syncthreads();
    if (trek_block_r(l) == 0)
        shared[trek_block_c(l)] = a;
    __syncthreads();
    return shared[trek_block_c(l)];
}

inline int trek_log2_up(int64_t n)
{
    int log = 0;
    while (((int64_t)1 << log) < n)
        log++;
    return log;
}

/* --- division of numbers below 2^31 ------------------------------------------------------ */

/* By multiplication (Granlund and Montgomery 1994). */
struct trek_quotient {
    uint32_t by, magic, shift;
    __device__ __forceinline__ uint32_t operator()(uint32_t n) const
    {
        return ((uint32_t)(((uint64_t)n * magic) >> 32) + n) >> shift;
    }
};
inline trek_quotient trek_quotient_of(int64_t by)
{
    trek_quotient d = { (uint32_t)by, 1, 0 };
    if (by <= 0 || by > 0x7fffffff)
        return d; /* must not be used */
    d.shift = (uint32_t)trek_log2_up(by);
    d.magic = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by)) / (uint64_t)by + 1);
    return d;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What device code sees, in host C++: qualifiers, built-in variables, barriers,
 * shuffles, atomics, bit casts and roundings, and how a kernel is launched.
 * Included by cuda_runtime.h; C++ only. */
#ifndef TREK_SHIM_DEVICE_H
#define TREK_SHIM_DEVICE_H

#include <limits.h>
#include <math.h>
#include <string.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define TREK_SHIM_TLS extern __thread __attribute__((tls_model("initial-exec")))
TREK_SHIM_TLS uint3 threadIdx;
TREK_SHIM_TLS uint3 blockIdx;
TREK_SHIM_TLS uint3 blockDim;
TREK_SHIM_TLS uint3 gridDim;
#undef TREK_SHIM_TLS
static const int warpSize = 32;

/* Enqueues one kernel on the stream: `body` runs the kernel's function once, for
 * the thread that the built-in variables name. barriers: the kernel waits for
 * other threads (__syncthreads, shuffles, votes), and its threads run as fibers;
 * without, as a plain loop, in which such a wait is reported as an error.
 * `function`, if given, is what cudaFuncSetAttribute was called with: more than
 * 48 KiB of dynamic shared memory needs that call. Returns what a launch does:
 * cudaErrorInvalidConfiguration for sizes outside the limits. */
cudaError_t trek_shim_launch(const char *name, bool barriers, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                             std::function<void()> body, const void *function = nullptr,
                             std::vector<unsigned char> arguments = {});

/* Whether launches are to bring the bytes of their arguments, for kernels that run as PTX (tests/ptx). */
bool trek_shim_wants_arguments(void);
void trek_shim_add_argument(std::vector<unsigned char> *bytes, const void *argument, size_t size);

/* A launch of the function itself: its body, or its PTX with these arguments, side by side without padding. */
template <typename... P>
static inline cudaError_t trek_shim_call(const char *name, bool barriers, dim3 grid, dim3 block, size_t shared_bytes,
                                         cudaStream_t stream, void (*kernel)(P...), P... arguments)
{
    std::vector<unsigned char> bytes;
    if (trek_shim_wants_arguments())
        (trek_shim_add_argument(&bytes, &arguments, sizeof arguments), ...);
    return trek_shim_launch(name, barriers, grid, block, shared_bytes, stream, [=] { kernel(arguments...); },
                            reinterpret_cast<const void *>(kernel), std::move(bytes));
}

/* Any other work in order on a stream (or into its capture), with the rights to
 * touch device memory: for fake libraries. */
cudaError_t trek_shim_enqueue(cudaStream_t stream, const char *name, std::function<void()> work);

/* The dynamic shared memory of the running block, filled with 0xff before each block. */
void *trek_shim_dynamic_shared(void);
/* The static shared memory of the running block that `tag` names, likewise filled. */
void *trek_shim_static_shared(const void *tag, size_t bytes, size_t alignment);

/* Static shared memory in a kernel: a reference to an array, one per block. */
#ifndef TREK_SHARED
#define TREK_SHARED(type, name, ...)                                                                                             \
    static char name##_tag;                                                                                                      \
    type(&name)[__VA_ARGS__] =                                                                                                   \
        *reinterpret_cast<type(*)[__VA_ARGS__]>(trek_shim_static_shared(&name##_tag, sizeof(type[__VA_ARGS__]), alignof(type)))
#endif

/* -- waiting for others -- */
enum trek_shim_barrier { TREK_SHIM_PLAIN, TREK_SHIM_OR, TREK_SHIM_AND, TREK_SHIM_COUNT };
int trek_shim_block_barrier(int kind, int predicate);
enum trek_shim_exchange {
    TREK_SHIM_SYNC,   /* nothing is exchanged */
    TREK_SHIM_SHUFFLE,
    TREK_SHIM_BALLOT,
    TREK_SHIM_ADD_S, TREK_SHIM_MIN_S, TREK_SHIM_MAX_S,
    TREK_SHIM_ADD_U, TREK_SHIM_MIN_U, TREK_SHIM_MAX_U,
    TREK_SHIM_BIT_AND, TREK_SHIM_BIT_OR, TREK_SHIM_BIT_XOR,
    TREK_SHIM_MATCH_ANY
};
/* All lanes of `mask` meet; the answer is what `kind` makes of their values. */
unsigned long long trek_shim_warp_exchange(unsigned mask, int kind, unsigned long long value, int source);
unsigned trek_shim_active_lanes(void);
int trek_shim_lane(void);
void trek_shim_trap(const char *why);

static inline void __syncthreads(void) { trek_shim_block_barrier(TREK_SHIM_PLAIN, 0); }
static inline int __syncthreads_or(int p) { return trek_shim_block_barrier(TREK_SHIM_OR, p); }
static inline int __syncthreads_and(int p) { return trek_shim_block_barrier(TREK_SHIM_AND, p); }
static inline int __syncthreads_count(int p) { return trek_shim_block_barrier(TREK_SHIM_COUNT, p); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { trek_shim_warp_exchange(mask, TREK_SHIM_SYNC, 0, 0); }
static inline void __trap(void) { trek_shim_trap("__trap"); }

template <typename T> static inline T trek_shim_shuffle(unsigned mask, T value, int source)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = trek_shim_warp_exchange(mask, TREK_SHIM_SHUFFLE, bits, source);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

/* The source lane of each form; outside the segment of `width` lanes it is the lane itself. */
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    int lane = trek_shim_lane();
    return trek_shim_shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}

template <typename T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    int lane = trek_shim_lane(), source = lane - (int)delta;
    return trek_shim_shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}

template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    int lane = trek_shim_lane(), source = lane + (int)delta;
    return trek_shim_shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    int lane = trek_shim_lane(), source = lane ^ lanes;
    return trek_shim_shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}

static inline unsigned __activemask(void) { return trek_shim_active_lanes(); }
static inline unsigned __ballot_sync(unsigned mask, int p)
{
    return (unsigned)trek_shim_warp_exchange(mask, TREK_SHIM_BALLOT, p != 0, 0);
}
static inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
static inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T value)
{
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return (unsigned)trek_shim_warp_exchange(mask, TREK_SHIM_MATCH_ANY, bits, 0);
}

#define TREK_SHIM_REDUCE(name, type, kind)                                                                                       \
    static inline type name(unsigned mask, type value)                                                                           \
    {                                                                                                                            \
        return (type)trek_shim_warp_exchange(mask, kind, (unsigned long long)(long long)value, 0);                               \
    }
TREK_SHIM_REDUCE(__reduce_add_sync, int, TREK_SHIM_ADD_S)
TREK_SHIM_REDUCE(__reduce_min_sync, int, TREK_SHIM_MIN_S)
TREK_SHIM_REDUCE(__reduce_max_sync, int, TREK_SHIM_MAX_S)
TREK_SHIM_REDUCE(__reduce_add_sync, unsigned, TREK_SHIM_ADD_U)
TREK_SHIM_REDUCE(__reduce_min_sync, unsigned, TREK_SHIM_MIN_U)
TREK_SHIM_REDUCE(__reduce_max_sync, unsigned, TREK_SHIM_MAX_U)
TREK_SHIM_REDUCE(__reduce_and_sync, unsigned, TREK_SHIM_BIT_AND)
TREK_SHIM_REDUCE(__reduce_or_sync, unsigned, TREK_SHIM_BIT_OR)
TREK_SHIM_REDUCE(__reduce_xor_sync, unsigned, TREK_SHIM_BIT_XOR)
#undef TREK_SHIM_REDUCE

/* The thread sanitizer knows no fences, but orders what it sees by an exchange on one variable. */
static inline void __threadfence(void)
{
#if defined(__SANITIZE_THREAD__)
    static int fence;
    __atomic_fetch_add(&fence, 1, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
static inline void __threadfence_block(void) { __threadfence(); }
static inline void __threadfence_system(void) { __threadfence(); }
static inline void __nanosleep(unsigned) {}
long long trek_shim_clock(void);
static inline long long clock64(void) { return trek_shim_clock(); }

#include "fake_cuda_atomics.h"
#include "fake_cuda_math.h"

/* The C++ forms of calls that take a kernel. */
template <typename... Args> static inline cudaError_t cudaFuncSetAttribute(void (*function)(Args...), cudaFuncAttribute attribute,
                                                                           int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(function), attribute, value);
}
template <typename... Args>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*function)(Args...), int block_size,
                                                                       size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void *>(function), block_size,
                                                         shared_bytes);
}
template <typename T> static inline cudaError_t cudaMalloc(T **pointer, size_t bytes)
{
    return cudaMalloc(reinterpret_cast<void **>(pointer), bytes);
}
template <typename T> static inline cudaError_t cudaHostAlloc(T **pointer, size_t bytes, unsigned flags)
{
    return cudaHostAlloc(reinterpret_cast<void **>(pointer), bytes, flags);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What every file of kernels starts from: launches, shared memory, element types and faults. The same text compiles
 * with nvcc and, as plain C++, with the shim of the tests (TREK_FAKE_CUDA), where a grid becomes loops and a block
 * becomes fibers. */
#ifndef TREK_TENSOR_CUDA_DEVICE_CUH
#define TREK_TENSOR_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tensor/cuda/cuda.h"
#include "tensor/try_internal.h"

#define TREK_INLINED __device__ __forceinline__
/* A real call, for long functions: a kernel is limited by memory long before, and code stays small. */
#ifdef TREK_FAKE_CUDA
#define TREK_CALLED inline
#else
#define TREK_CALLED inline __device__ __noinline__
#endif

extern "C" const uint8_t trek_item_size[TREK_DTYPE_COUNT];

/* --- launches --------------------------------------------------------------------- */

/* `barriers` tells whether threads of a block wait for each other or exchange values (the shim runs blocks without
 * that as a loop). */
struct trek_grid {
    dim3 grid, block;
    size_t shared; /* bytes of dynamic shared memory */
    bool barriers;
};

/* Independent threads: enough blocks of 256 for n of them, at most `most` blocks. */
inline trek_grid trek_loop(int64_t n, int64_t most = 0x7fffffff)
{
    int64_t blocks = (n + 255) / 256, threads = n >= 256 ? 256 : n > 32 ? (n + 31) / 32 * 32 : 32;
    return { dim3((unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks)), dim3((unsigned)threads), 0, false };
}

/* Blocks whose threads cooperate. */
inline trek_grid trek_blocks(dim3 grid, dim3 block, size_t shared = 0) { return { grid, block, shared, true }; }

#ifdef TREK_FAKE_CUDA
/* the shim defines TREK_SHARED(type, name, count): one array for each block, with red zones and a recognisable fill */
inline void *trek_dynamic_shared() { return trek_shim_dynamic_shared(); }
#else
#define TREK_SHARED(type, name, count) __shared__ type name[count]
__device__ __forceinline__ void *trek_dynamic_shared()
{
    extern __shared__ __align__(128) unsigned char trek_shared_bytes[];
    return trek_shared_bytes;
}
#endif

template <typename... P, typename... A>
inline cudaError_t trek_cuda_enqueue([[maybe_unused]] const char *name, trek_grid g, cudaStream_t stream, void (*kernel)(P...),
                                     A... arguments)
{
    if (g.shared > 8 * 1024) { /* without it, 48 KiB are for this and the kernel's static arrays (below 40 KiB) together */
        cudaError_t error = trek_cuda_allow_shared((const void *)kernel);
        if (error != cudaSuccess)
            return error;
    }
#ifdef TREK_FAKE_CUDA
    return trek_shim_call(name, g.barriers, g.grid, g.block, g.shared, stream, kernel, static_cast<P>(arguments)...);
#else
    kernel<<<g.grid, g.block, g.shared, stream>>>(static_cast<P>(arguments)...);
    return cudaPeekAtLastError();
#endif
}

/* Adds a kernel of an op to the queue. An error names the op. */
template <typename... P, typename... A>
inline trek_status trek_launch(const trek_op_call *call, trek_cuda_queue *queue, trek_grid g, void (*kernel)(P...),
                               A... arguments)
{
    cudaError_t error = trek_cuda_enqueue(call->op->name, g, queue->stream, kernel, arguments...);
    if (error == cudaSuccess && !trek_cuda_sync_each)
        return TREK_OK;
    return trek_cuda_launched(call, queue, error);
}

/* Returns the calling thread's queue on the device of a call, or NULL with an error. */
inline trek_cuda_queue *trek_queue_of(const trek_op_call *call) { return trek_cuda_queue_here(call->outputs[0]->device.index); }

/* --- element types -------------------------------------------------------------------- */

/* 16-bit formats as bits. Computations use f32 and results are rounded when stored, as on the CPU. Conversions are
 * single instructions written here, because the toolkit's headers for these types would make a third of what every
 * file has to parse. */
struct trek_bf16 {
    uint16_t bits;
};
struct trek_f16 {
    uint16_t bits;
};

template <trek_dtype D> struct trek_element;
template <> struct trek_element<TREK_F32> { typedef float type; };
template <> struct trek_element<TREK_F64> { typedef double type; };
template <> struct trek_element<TREK_BF16> { typedef trek_bf16 type; };
template <> struct trek_element<TREK_F16> { typedef trek_f16 type; };
template <> struct trek_element<TREK_I64> { typedef int64_t type; };
template <> struct trek_element<TREK_I32> { typedef int32_t type; };
template <> struct trek_element<TREK_U8> { typedef uint8_t type; };
template <> struct trek_element<TREK_BOOL> { typedef bool type; };

/* The type in which values of T are computed. */
template <typename T> struct trek_wide { typedef T type; };
template <> struct trek_wide<trek_bf16> { typedef float type; };
template <> struct trek_wide<trek_f16> { typedef float type; };

/* Convert to the number and back, rounded to nearest with ties to even; NaN stays NaN. */
template <typename T> __device__ __host__ __forceinline__ T trek_get(T x) { return x; }
template <typename T> __device__ __host__ __forceinline__ T trek_put(T x) { return x; }
__device__ __host__ __forceinline__ float trek_f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
__device__ __host__ __forceinline__ uint32_t trek_bits_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
__device__ __host__ __forceinline__ float trek_get(trek_bf16 x) { return trek_f32_of_bits((uint32_t)x.bits << 16); }
__device__ __host__ __forceinline__ float trek_get(trek_f16 x)
{
#ifdef __CUDA_ARCH__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
#else
    uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, magnitude = (uint32_t)(x.bits & 0x7fffu) << 13;
    uint32_t finite = trek_bits_of_f32(trek_f32_of_bits(magnitude) * 0x1p112f);
    return trek_f32_of_bits(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
#endif
}
__device__ __host__ __forceinline__ trek_bf16 trek_to_bf16(float x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    return trek_bf16{ narrow };
#else
    uint32_t bits = trek_bits_of_f32(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return trek_bf16{ (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded) };
#endif
}
__device__ __host__ __forceinline__ trek_f16 trek_to_f16(float x)
{
#ifdef __CUDA_ARCH__
    uint16_t narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    return trek_f16{ narrow };
#else
    uint32_t bits = trek_bits_of_f32(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    uint32_t denormal = trek_bits_of_f32(trek_f32_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? denormal : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result;
    result = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : result;
    return trek_f16{ (uint16_t)(sign | result) };
#endif
}

/* Returns the element of type T that holds a computed value. Conversion between kinds is the caller's task. */
template <typename T> struct trek_store {
    template <typename W> __device__ __host__ __forceinline__ static T of(W x) { return (T)x; }
};
template <> struct trek_store<trek_bf16> {
    template <typename W> __device__ __host__ __forceinline__ static trek_bf16 of(W x) { return trek_to_bf16((float)x); }
};
template <> struct trek_store<trek_f16> {
    template <typename W> __device__ __host__ __forceinline__ static trek_f16 of(W x) { return trek_to_f16((float)x); }
};

/* n elements that are loaded and stored at once: at most 16 bytes, aligned to their size. */
template <typename T, int n> struct alignas(sizeof(T) * n) trek_vector {
    T x[n];
};

/* --- faults in the data ------------------------------------------------------------------ */

/* Records the first fault since the last synchronisation. The kernel goes on with a harmless value. */
__device__ __forceinline__ void trek_note_fault(trek_cuda_fault_record *r, int op, int fault, long long value, long long place,
                                                long long limit)
{
    if (atomicCAS_system(&r->taken, 0, 1) != 0)
        return;
    r->op = op;
    r->fault = fault;
    r->value = value;
    r->place = place;
    r->limit = limit;
    __threadfence_system();
    atomicExch_system(&r->written, 1);
}

/* --- random numbers ------------------------------------------------------------------------ */

/* The step of a draw: a number, or, in a capture, the value in device memory when the graph runs. */
struct trek_cuda_step {
    const unsigned long long *base; /* may be NULL */
    unsigned long long value;       /* is added */
    __device__ __forceinline__ uint32_t now() const { return (uint32_t)(base ? *base + value : value); }
};

inline trek_cuda_step trek_step_of(const trek_cuda_queue *queue, int64_t step)
{
    if (!queue->capture_step)
        return { nullptr, (unsigned long long)step };
    return { queue->capture_step, (unsigned long long)(uint32_t)((uint64_t)step - queue->capture_first_step) };
}

#endif

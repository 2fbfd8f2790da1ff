/* SPDX-License-Identifier: Apache-2.0 */
/* For kernels that need contiguous operands: others are copied to scratch memory before or from it afterwards, which
 * is released when the holder ends. Also numbers of a dtype that is known only when a kernel runs. */
#ifndef TREK_TENSOR_CUDA_DENSE_CUH
#define TREK_TENSOR_CUDA_DENSE_CUH

#include "tensor/cuda/block.cuh"

/* Scratch memory of one call. */
struct trek_held {
    trek_cuda_queue *queue = NULL;
    trek_cuda_scratch scratch = { NULL, NULL };
    trek_held() = default;
    trek_held(const trek_held &) = delete;
    trek_held &operator=(const trek_held &) = delete;
    ~trek_held()
    {
        if (scratch.handle)
            trek_cuda_scratch_give(queue, &scratch);
    }
    trek_status take(trek_cuda_queue *of, size_t bytes)
    {
        queue = of;
        return trek_cuda_scratch_take(of, bytes, &scratch);
    }
    template <typename T> T *as() const { return (T *)scratch.data; }
};

/* A tensor's elements in row-major order: the original memory, or a copy. */
struct trek_dense {
    trek_held held;
    void *data = NULL;
    trek_status read(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t);  /* data is NULL if t is NULL */
    trek_status write(trek_cuda_queue *queue, trek_tensor *t);                                 /* room for results */
    trek_status finish(const trek_op_call *call, trek_tensor *t);                              /* copies them to t */
    template <typename T> T *as() const { return (T *)data; }
};

/* The vector as `dtype` (F32 or F64), contiguous. For small ones, such as the weights of a norm. */
struct trek_converted {
    trek_held held;
    const void *data = NULL;
    trek_status read(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t, trek_dtype dtype);
};

/* --- elements of any dtype -------------------------------------------------------------- */

inline bool trek_is_float(int dtype) { return dtype == TREK_F32 || dtype == TREK_F64 || trek_dtype_is_16bit((trek_dtype)dtype); }

/* W is the type of the computation, at least as wide as the dtype. */
template <typename W = double> __device__ __forceinline__ W trek_load_float(const void *x, int dtype, int64_t at)
{
    switch (dtype) {
    case TREK_F32: return (W)((const float *)x)[at];
    case TREK_F64: return (W)((const double *)x)[at];
    case TREK_BF16: return (W)trek_get(((const trek_bf16 *)x)[at]);
    default: return (W)trek_get(((const trek_f16 *)x)[at]);
    }
}
template <typename W> __device__ __forceinline__ void trek_store_float(void *to, int dtype, int64_t at, W x)
{
    switch (dtype) {
    case TREK_F32: ((float *)to)[at] = (float)x; break;
    case TREK_F64: ((double *)to)[at] = (double)x; break;
    case TREK_BF16: ((trek_bf16 *)to)[at] = trek_to_bf16((float)x); break;
    default: ((trek_f16 *)to)[at] = trek_to_f16((float)x); break;
    }
}
__device__ __forceinline__ int64_t trek_load_integer(const void *x, int dtype, int64_t at)
{
    switch (dtype) {
    case TREK_I64: return ((const int64_t *)x)[at];
    case TREK_I32: return ((const int32_t *)x)[at];
    default: return ((const uint8_t *)x)[at];
    }
}
__device__ __forceinline__ void trek_store_integer(void *to, int dtype, int64_t at, int64_t x)
{
    switch (dtype) {
    case TREK_I64: ((int64_t *)to)[at] = x; break;
    case TREK_I32: ((int32_t *)to)[at] = (int32_t)x; break;
    default: ((uint8_t *)to)[at] = (uint8_t)x; break;
    }
}

/* A vector (or scalar) of any floating dtype and stride. x is NULL for none. */
struct trek_numbers {
    void *x;
    int64_t step;
    int dtype;
    __device__ __forceinline__ double get(int64_t i) const { return trek_load_float(x, dtype, i * step); }
    __device__ __forceinline__ void put(int64_t i, double value) const { trek_store_float(x, dtype, i * step, value); }
};
inline trek_numbers trek_numbers_of(const trek_tensor *t)
{
    if (!t)
        return { NULL, 0, TREK_F32 };
    return { t->data, t->ndim > 0 ? t->strides[t->ndim - 1] : 0, t->dtype };
}

/* The same for integers. */
struct trek_indices {
    const void *x;
    int64_t step;
    int dtype;
    __device__ __forceinline__ int64_t operator[](int64_t i) const { return trek_load_integer(x, dtype, i * step); }
};

inline bool trek_is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }
inline const trek_tensor *trek_input_of(const trek_op_call *call, int k) { return k < call->n_inputs ? call->inputs[k] : NULL; }

#endif

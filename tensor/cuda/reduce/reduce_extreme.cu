/* SPDX-License-Identifier: Apache-2.0 */
/* Maxima and minima. NaN stays once it is there. */
#include "tensor/cuda/reduce/reduce.cuh"

template <typename T> __device__ __forceinline__ T lowest(T) { return (T)-INFINITY; }
template <> __device__ __forceinline__ int64_t lowest(int64_t) { return INT64_MIN; }
template <> __device__ __forceinline__ int32_t lowest(int32_t) { return INT32_MIN; }
template <typename T> __device__ __forceinline__ T highest(T) { return (T)INFINITY; }
template <> __device__ __forceinline__ int64_t highest(int64_t) { return INT64_MAX; }
template <> __device__ __forceinline__ int32_t highest(int32_t) { return INT32_MAX; }

/* What is compared: bytes as words, which can be shuffled. */
template <typename T> struct compared { typedef typename trek_wide<T>::type type; };
template <> struct compared<uint8_t> { typedef int32_t type; };

template <typename T> struct extreme_op : trek_reduce_input<T> {
    typedef typename compared<T>::type partial;
    T *out;
    bool largest; /* else the smallest: one kernel for both */
    __device__ __forceinline__ partial start(int64_t, bool) const { return largest ? lowest(partial()) : highest(partial()); }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { join(a, (partial)trek_get(x)); }
    __device__ __forceinline__ void join(partial &a, partial b) const { a = (largest ? b > a : b < a) || b != b ? b : a; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { out[at] = trek_store<T>::of(a); }
};

template <typename T, bool largest> static trek_status run(const trek_op_call *call)
{
    extreme_op<T> op;
    op.x = (const T *)(const void *)call->inputs[0]->data;
    op.out = (T *)(void *)call->outputs[0]->data;
    op.largest = largest;
    return trek_reduce_call(call, op, false);
}

template <typename T> static void enter(trek_backend *b, trek_dtype dtype)
{
    b->kernels[TREK_OP_max][dtype] = run<T, true>;
    b->kernels[TREK_OP_min][dtype] = run<T, false>;
}

extern "C" void trek_cuda_register_reduce_extreme(trek_backend *b)
{
    enter<float>(b, TREK_F32);
    enter<double>(b, TREK_F64);
    enter<trek_bf16>(b, TREK_BF16);
    enter<trek_f16>(b, TREK_F16);
    enter<int64_t>(b, TREK_I64);
    enter<int32_t>(b, TREK_I32);
    enter<uint8_t>(b, TREK_U8);
    enter<uint8_t>(b, TREK_BOOL);
}

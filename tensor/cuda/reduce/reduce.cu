/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, means, products, any and all. Floats gather in f64 (16-bit sums in f32), so
 * that the result of f32 is exact to a rounding; integers in i64. */
#include "tensor/cuda/products/linear.h"
#include "tensor/cuda/reduce/reduce.cuh"

template <typename T> struct gathered { typedef int64_t sum, product; };
template <> struct gathered<float> { typedef double sum, product; };
template <> struct gathered<double> { typedef double sum, product; };
template <> struct gathered<trek_bf16> { typedef float sum; typedef double product; };
template <> struct gathered<trek_f16> { typedef float sum; typedef double product; };

/* Floats keep their dtype, integers become i64. */
template <typename T> struct total { typedef int64_t type; };
template <> struct total<float> { typedef float type; };
template <> struct total<double> { typedef double type; };
template <> struct total<trek_bf16> { typedef trek_bf16 type; };
template <> struct total<trek_f16> { typedef trek_f16 type; };

template <typename T> struct sum_op : trek_reduce_input<T> {
    typedef typename gathered<T>::sum partial;
    typename total<T>::type *out;
    double divisor; /* 1 for sums */
    __device__ __forceinline__ partial start(int64_t, bool) const { return 0; }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { a += (partial)trek_get(x); }
    __device__ __forceinline__ void join(partial &a, partial b) const { a += b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const
    {
        out[at] = trek_store<typename total<T>::type>::of(divisor == 1 ? a : (partial)((double)a / divisor));
    }
};

/* What is no number counts as 0. */
template <typename T> struct nansum_op : sum_op<T> {
    typedef typename gathered<T>::sum partial;
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const
    {
        const partial here = (partial)trek_get(x);
        a += here == here ? here : (partial)0;
    }
};

/* Of 16 bits into f32. */
template <typename T> struct squares_op : trek_reduce_input<T> {
    typedef typename gathered<T>::sum partial;
    typename trek_wide<T>::type *out;
    __device__ __forceinline__ partial start(int64_t, bool) const { return 0; }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { a += (partial)trek_get(x) * (partial)trek_get(x); }
    __device__ __forceinline__ void join(partial &a, partial b) const { a += b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { out[at] = (typename trek_wide<T>::type)a; }
};

template <typename T> struct product_op : trek_reduce_input<T> {
    typedef typename gathered<T>::product partial;
    typename total<T>::type *out;
    __device__ __forceinline__ partial start(int64_t, bool) const { return 1; }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { join(a, (partial)trek_get(x)); }
    __device__ __forceinline__ void join(int64_t &a, int64_t b) const { a = (int64_t)((uint64_t)a * (uint64_t)b); }
    __device__ __forceinline__ void join(double &a, double b) const { a *= b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { out[at] = trek_store<typename total<T>::type>::of(a); }
};

/* Whether some element is zero (all), or is not (any). */
template <typename T> struct logic_op : trek_reduce_input<T> {
    typedef int partial;
    bool *out;
    bool zeros; /* all: looks for a zero, and gives the opposite */
    __device__ __forceinline__ partial start(int64_t, bool) const { return 0; }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { a |= (trek_get(x) != 0) != zeros; }
    __device__ __forceinline__ void join(partial &a, partial b) const { a |= b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { out[at] = (a != 0) != zeros; }
};

template <typename Op> static Op op_of(const trek_op_call *call)
{
    Op op;
    op.x = (decltype(op.x))(const void *)call->inputs[0]->data;
    op.out = (decltype(op.out))(void *)call->outputs[0]->data;
    return op;
}

template <typename T> static trek_status run_sum(const trek_op_call *call)
{
    sum_op<T> op = op_of<sum_op<T>>(call);
    op.divisor = 1;
    return trek_reduce_call(call, op, false);
}
template <typename T> static trek_status run_nansum(const trek_op_call *call)
{
    nansum_op<T> op = op_of<nansum_op<T>>(call);
    op.divisor = 1;
    return trek_reduce_call<nansum_op<T>, 1>(call, op, false);
}
template <typename T> static trek_status run_mean(const trek_op_call *call)
{
    sum_op<T> op = op_of<sum_op<T>>(call);
    int64_t outputs = call->outputs[0]->numel;
    op.divisor = outputs > 0 ? (double)call->inputs[0]->numel / (double)outputs : 1;
    return trek_reduce_call(call, op, false);
}
template <typename T> static trek_status run_sum_squares(const trek_op_call *call)
{
    return trek_reduce_call(call, op_of<squares_op<T>>(call), false);
}
template <typename T> static trek_status run_prod(const trek_op_call *call)
{
    return trek_reduce_call<product_op<T>, 1>(call, op_of<product_op<T>>(call), false);
}
template <typename T, bool zeros> static trek_status run_logic(const trek_op_call *call)
{
    logic_op<T> op = op_of<logic_op<T>>(call);
    op.zeros = zeros;
    return trek_reduce_call(call, op, false);
}

template <typename T> static void enter(trek_backend *b, trek_dtype dtype)
{
    b->kernels[TREK_OP_sum][dtype] = run_sum<T>;
    b->kernels[TREK_OP_prod][dtype] = run_prod<T>;
    b->kernels[TREK_OP_any][dtype] = run_logic<T, false>;
    b->kernels[TREK_OP_all][dtype] = run_logic<T, true>;
}
template <typename T> static void enter_float(trek_backend *b, trek_dtype dtype)
{
    enter<T>(b, dtype);
    b->kernels[TREK_OP_mean][dtype] = run_mean<T>;
    b->kernels[TREK_OP_nansum][dtype] = run_nansum<T>;
    b->kernels[TREK_OP_sum_squares][dtype] = run_sum_squares<T>;
}

extern "C" trek_status trek_cuda_sum(const trek_op_call *call)
{
    switch (call->inputs[0]->dtype) {
    case TREK_F64: return run_sum<double>(call);
    case TREK_BF16: return run_sum<trek_bf16>(call);
    case TREK_F16: return run_sum<trek_f16>(call);
    default: return run_sum<float>(call);
    }
}

extern "C" void trek_cuda_register_reduce(trek_backend *b)
{
    enter_float<float>(b, TREK_F32);
    enter_float<double>(b, TREK_F64);
    enter_float<trek_bf16>(b, TREK_BF16);
    enter_float<trek_f16>(b, TREK_F16);
    enter<int64_t>(b, TREK_I64);
    enter<int32_t>(b, TREK_I32);
    enter<uint8_t>(b, TREK_U8);
    enter<uint8_t>(b, TREK_BOOL); /* 0 or 1 */
}

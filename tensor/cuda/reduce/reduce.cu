/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, means, products, any and all. Floats are computed in f64 (16-bit sums in f32), so that an f32 result has only
 * one rounding error; integers in i64. */
#include "tensor/cuda/products/linear.h"
#include "tensor/cuda/reduce/reduce.cuh"

/* Floats are reduced in a wider type; see trek_reduce_any for integers. */
template <typename T> struct gathered { typedef double type; };
template <> struct gathered<trek_bf16> { typedef float type; };
template <> struct gathered<trek_f16> { typedef float type; };

/* Sums of floats, which training uses. */
template <typename T> struct sum_op : trek_reduce_input<T> {
    typedef typename gathered<T>::type partial;
    T *out;
    bool wide;      /* out is f32 although T has 16 bits */
    double divisor; /* 1 for sums */
    __device__ __forceinline__ partial start(int64_t, bool) const { return 0; }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { a += (partial)trek_get(x); }
    __device__ __forceinline__ void join(partial &a, partial b) const { a += b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const
    {
        a = divisor == 1 ? a : (partial)((double)a / divisor);
        if (sizeof(T) == 2 && wide)
            ((float *)(void *)out)[at] = (float)a;
        else
            out[at] = trek_store<T>::of(a);
    }
};

/* From 16 bits to f32. */
template <typename T> struct squares_op : trek_reduce_input<T> {
    typedef typename gathered<T>::type partial;
    typename trek_wide<T>::type *out;
    __device__ __forceinline__ partial start(int64_t, bool) const { return 0; }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { a += (partial)trek_get(x) * (partial)trek_get(x); }
    __device__ __forceinline__ void join(partial &a, partial b) const { a += b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { out[at] = (typename trek_wide<T>::type)a; }
};

/* Sums of integers wrap around; NaN counts as 0. */
template <typename W> struct number_sum_op : trek_reduce_any<W> {
    typedef W partial;
    __device__ __forceinline__ partial start(int64_t, bool) const { return 0; }
    __device__ __forceinline__ void step(partial &a, W x, int64_t) const { join(a, x == x ? x : (W)0); }
    __device__ __forceinline__ void join(int64_t &a, int64_t b) const { a = (int64_t)((uint64_t)a + (uint64_t)b); }
    template <typename R> __device__ __forceinline__ void join(R &a, R b) const { a += b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { this->put(at, a); }
};

template <typename W> struct product_op : trek_reduce_any<W> {
    typedef W partial;
    __device__ __forceinline__ partial start(int64_t, bool) const { return 1; }
    __device__ __forceinline__ void step(partial &a, W x, int64_t) const { join(a, x); }
    __device__ __forceinline__ void join(int64_t &a, int64_t b) const { a = (int64_t)((uint64_t)a * (uint64_t)b); }
    __device__ __forceinline__ void join(double &a, double b) const { a *= b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { this->put(at, a); }
};

/* Finds an element that is zero (all), or is not (any): by its bits without the sign of a float. */
struct logic_op : trek_reduce_any<uint64_t> {
    typedef int partial;
    uint64_t bits;
    int size;
    bool zeros; /* all: looks for a zero and returns the opposite */
    template <int> __device__ __forceinline__ trek_vector<uint64_t, 1> load(int64_t offset) const
    {
        switch (size) {
        case 8: return { { ((const uint64_t *)x)[offset] } };
        case 4: return { { ((const uint32_t *)x)[offset] } };
        case 2: return { { ((const uint16_t *)x)[offset] } };
        default: return { { ((const uint8_t *)x)[offset] } };
        }
    }
    __device__ __forceinline__ partial start(int64_t, bool) const { return 0; }
    __device__ __forceinline__ void step(partial &a, uint64_t x, int64_t) const { a |= ((x & bits) != 0) != zeros; }
    __device__ __forceinline__ void join(partial &a, partial b) const { a |= b; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { ((bool *)out)[at] = (a != 0) != zeros; }
};

template <typename Op> static Op op_of(const trek_op_call *call)
{
    Op op;
    op.x = (decltype(op.x))(const void *)call->inputs[0]->data;
    op.out = (decltype(op.out))(void *)call->outputs[0]->data;
    return op;
}

template <typename T> static sum_op<T> sum_of(const trek_op_call *call)
{
    sum_op<T> op = op_of<sum_op<T>>(call);
    op.wide = call->outputs[0]->dtype != call->inputs[0]->dtype;
    op.divisor = 1;
    return op;
}

template <typename T> static trek_status run_sum(const trek_op_call *call)
{
    sum_op<T> op = sum_of<T>(call);
    return trek_reduce_call(call, op, false);
}
template <typename T> static trek_status run_mean(const trek_op_call *call)
{
    sum_op<T> op = sum_of<T>(call);
    int64_t outputs = call->outputs[0]->numel;
    op.divisor = outputs > 0 ? (double)call->inputs[0]->numel / (double)outputs : 1;
    return trek_reduce_call(call, op, false);
}
template <typename T> static trek_status run_sum_squares(const trek_op_call *call)
{
    return trek_reduce_call(call, op_of<squares_op<T>>(call), false);
}
template <typename Op> static trek_status run_any(const trek_op_call *call)
{
    return trek_reduce_call(call, trek_reduce_any_of<Op>(call), false);
}
static trek_status run_logic(const trek_op_call *call)
{
    logic_op op = trek_reduce_any_of<logic_op>(call);
    op.size = trek_item_size[op.dtype];
    op.bits = trek_is_float(op.dtype) ? ((uint64_t)1 << (8 * op.size - 1)) - 1 : ~(uint64_t)0;
    op.zeros = call->op->id == TREK_OP_all;
    return trek_reduce_call(call, op, false);
}

template <typename T> static void enter_float(trek_backend *b, trek_dtype dtype)
{
    b->kernels[TREK_OP_sum][dtype] = run_sum<T>;
    b->kernels[TREK_OP_mean][dtype] = run_mean<T>;
    b->kernels[TREK_OP_sum_squares][dtype] = run_sum_squares<T>;
    b->kernels[TREK_OP_nansum][dtype] = run_any<number_sum_op<typename gathered<T>::type>>;
    b->kernels[TREK_OP_prod][dtype] = run_any<product_op<double>>;
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
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_any][d] = b->kernels[TREK_OP_all][d] = run_logic;
        b->kernels[TREK_OP_sum][d] = run_any<number_sum_op<int64_t>>;
        b->kernels[TREK_OP_prod][d] = run_any<product_op<int64_t>>;
    }
    enter_float<float>(b, TREK_F32);
    enter_float<double>(b, TREK_F64);
    enter_float<trek_bf16>(b, TREK_BF16);
    enter_float<trek_f16>(b, TREK_F16);
}

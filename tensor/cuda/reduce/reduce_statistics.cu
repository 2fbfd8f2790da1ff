/* SPDX-License-Identifier: Apache-2.0 */
/* Variance and its root, and the logarithm of sums of exponentials, in one pass over the elements. */
#include "tensor/cuda/reduce/reduce.cuh"

template <typename T> struct variance_op : trek_reduce_input<T> {
    typedef trek_moments partial;
    T *out;
    double divisor; /* 0 with too few elements: 0/0 or x/0 */
    bool root;
    __device__ __forceinline__ partial start(int64_t, bool) const { return trek_moments{ 0, 0, 0, 0 }; }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { a.add((double)trek_get(x)); }
    __device__ __forceinline__ void join(partial &a, const partial &b) const { a.join(b); }
    __device__ __forceinline__ void store(int64_t at, partial a) const
    {
        a.centre();
        double variance = (a.squares < 0 ? 0 : a.squares) / divisor;
        out[at] = trek_store<T>::of(root ? sqrt(variance) : variance);
    }
};

/* sum is that of e^(x - top), where top is the largest number so far; NaN is in the sum. */
template <typename W> struct exponentials {
    W top, sum;
};

template <typename T> struct logsumexp_op : trek_reduce_input<T> {
    typedef typename trek_wide<T>::type W;
    typedef exponentials<W> partial;
    T *out;
    __device__ __forceinline__ partial start(int64_t, bool) const
    {
        partial none;
        none.top = -INFINITY;
        none.sum = 0;
        return none;
    }
    __device__ __forceinline__ void step(partial &a, T element, int64_t) const
    {
        partial b;
        W x = trek_get(element);
        b.top = x == x ? x : (W)-INFINITY;
        b.sum = x == (W)-INFINITY ? (W)0 : x == x ? (W)1 : x;
        join(a, b);
    }
    __device__ __forceinline__ void join(partial &a, partial b) const
    {
        if (b.top > a.top) {
            a.sum = a.sum * trek_exp(a.top - b.top) + b.sum;
            a.top = b.top;
        } else {
            a.sum += b.top == a.top ? b.sum : b.sum * trek_exp(b.top - a.top);
        }
    }
    __device__ __forceinline__ void store(int64_t at, partial a) const { out[at] = trek_store<T>::of(trek_log(a.sum) + a.top); }
};

template <typename T, bool root> static trek_status run_variance(const trek_op_call *call)
{
    variance_op<T> op;
    int64_t outputs = call->outputs[0]->numel;
    double count = outputs > 0 ? (double)call->inputs[0]->numel / (double)outputs : 0, divisor = count - call->attrs.f[0];
    op.x = (const T *)(const void *)call->inputs[0]->data;
    op.out = (T *)(void *)call->outputs[0]->data;
    op.divisor = divisor > 0 ? divisor : 0;
    op.root = root;
    return trek_reduce_call(call, op, false);
}
template <typename T> static trek_status run_logsumexp(const trek_op_call *call)
{
    logsumexp_op<T> op;
    op.x = (const T *)(const void *)call->inputs[0]->data;
    op.out = (T *)(void *)call->outputs[0]->data;
    return trek_reduce_call(call, op, false);
}

template <typename T> static void enter(trek_backend *b, trek_dtype dtype)
{
    b->kernels[TREK_OP_variance][dtype] = run_variance<T, false>;
    b->kernels[TREK_OP_std][dtype] = run_variance<T, true>;
    b->kernels[TREK_OP_logsumexp][dtype] = run_logsumexp<T>;
}

extern "C" void trek_cuda_register_reduce_statistics(trek_backend *b)
{
    enter<float>(b, TREK_F32);
    enter<double>(b, TREK_F64);
    enter<trek_bf16>(b, TREK_BF16);
    enter<trek_f16>(b, TREK_F16);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* argmax, argmin: the first place of the extreme along one dimension, or in the
 * row-major order of all; the first NaN, if there is one. */
#include "tensor/cuda/reduce/reduce.cuh"

template <typename W> struct candidate {
    W value;
    int64_t place; /* -1: none yet */
};

template <typename T> struct search_op : trek_reduce_input<T> {
    typedef candidate<typename trek_wide<T>::type> partial;
    int64_t *out;
    bool largest; /* else the smallest is looked for: one kernel for both */
    __device__ __forceinline__ partial start(int64_t, bool) const
    {
        partial none;
        none.value = 0;
        none.place = -1;
        return none;
    }
    __device__ __forceinline__ void join(partial &a, partial b) const
    {
        bool b_nan = b.value != b.value, a_nan = a.value != a.value;
        bool better = (largest ? b.value > a.value : b.value < a.value) || (b_nan && !a_nan);
        bool equal = b.value == a.value || (b_nan && a_nan);
        bool take = b.place >= 0 && (a.place < 0 || better || (equal && b.place < a.place));
        a.value = take ? b.value : a.value;
        a.place = take ? b.place : a.place;
    }
    __device__ __forceinline__ void step(partial &a, T x, int64_t place) const
    {
        partial b;
        b.value = trek_get(x);
        b.place = place;
        join(a, b);
    }
    __device__ __forceinline__ void store(int64_t at, partial a) const { out[at] = a.place; }
};

template <typename T, bool largest> static trek_status run(const trek_op_call *call)
{
    search_op<T> op;
    op.x = (const T *)(const void *)call->inputs[0]->data;
    op.out = (int64_t *)(void *)call->outputs[0]->data;
    op.largest = largest;
    return trek_reduce_call(call, op, true);
}

template <typename T> static void enter(trek_backend *b, trek_dtype dtype)
{
    b->kernels[TREK_OP_argmax][dtype] = run<T, true>;
    b->kernels[TREK_OP_argmin][dtype] = run<T, false>;
}

extern "C" void trek_cuda_register_reduce_argument(trek_backend *b)
{
    enter<float>(b, TREK_F32);
    enter<double>(b, TREK_F64);
    enter<trek_bf16>(b, TREK_BF16);
    enter<trek_f16>(b, TREK_F16);
    enter<int64_t>(b, TREK_I64);
    enter<int32_t>(b, TREK_I32);
    enter<uint8_t>(b, TREK_U8);
}

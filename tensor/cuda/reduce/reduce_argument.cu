/* SPDX-License-Identifier: Apache-2.0 */
/* argmax, argmin: the first index of the extreme along one dimension, or in the row-major order of all; the index of
 * the first NaN, if there is one. */
#include "tensor/cuda/reduce/reduce.cuh"

template <typename W> struct candidate {
    W value;
    int64_t place; /* -1: none yet */
};

template <typename W> struct search_op : trek_reduce_any<W> {
    typedef candidate<W> partial;
    bool largest; /* otherwise the smallest: one kernel for both */
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
    __device__ __forceinline__ void step(partial &a, W x, int64_t place) const
    {
        partial b;
        b.value = x;
        b.place = place;
        join(a, b);
    }
    __device__ __forceinline__ void store(int64_t at, partial a) const { ((int64_t *)this->out)[at] = a.place; }
};

template <typename W> static trek_status run(const trek_op_call *call)
{
    search_op<W> op = trek_reduce_any_of<search_op<W>>(call);
    op.largest = call->op->id == TREK_OP_argmax;
    return trek_reduce_call(call, op, true);
}

extern "C" void trek_cuda_register_reduce_argument(trek_backend *b)
{
    for (int d = 0; d < TREK_BOOL; d++) {
        const trek_kernel kernel = !trek_is_float(d) ? run<int64_t> : d == TREK_F64 ? run<double> : run<float>;
        b->kernels[TREK_OP_argmax][d] = b->kernels[TREK_OP_argmin][d] = kernel;
    }
}

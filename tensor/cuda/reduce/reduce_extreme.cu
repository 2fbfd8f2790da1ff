/* SPDX-License-Identifier: Apache-2.0 */
/* Maxima and minima. NaN remains. */
#include "tensor/cuda/reduce/reduce.cuh"

template <typename W> struct extreme_op : trek_reduce_any<W> {
    typedef W partial;
    bool largest; /* otherwise the smallest: one kernel for both */
    __device__ __forceinline__ partial start(int64_t, bool) const
    {
        if constexpr (std::is_integral<W>::value)
            return largest ? INT64_MIN : INT64_MAX;
        else
            return largest ? (W)-INFINITY : (W)INFINITY;
    }
    __device__ __forceinline__ void step(partial &a, W x, int64_t) const { join(a, x); }
    __device__ __forceinline__ void join(partial &a, partial b) const { a = (largest ? b > a : b < a) || b != b ? b : a; }
    __device__ __forceinline__ void store(int64_t at, partial a) const { this->put(at, a); }
};

template <typename W> static trek_status run(const trek_op_call *call)
{
    extreme_op<W> op = trek_reduce_any_of<extreme_op<W>>(call);
    op.largest = call->op->id == TREK_OP_max;
    return trek_reduce_call(call, op, false);
}

extern "C" void trek_cuda_register_reduce_extreme(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        const trek_kernel kernel = !trek_is_float(d) ? run<int64_t> : d == TREK_F64 ? run<double> : run<float>;
        b->kernels[TREK_OP_max][d] = b->kernels[TREK_OP_min][d] = kernel;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Remainders and rounded quotients. */
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/cuda/elementwise/functions.cuh"

namespace {

enum division { REMAINDER, FMOD, FLOOR, TRUNC };

/* Returns the remainder with the divisor's sign. */
template <typename W> TREK_INLINED W mended(W r, W y) { return r != 0 && (r < 0) != (y < 0) ? (W)(r + y) : r; }

/* Returns the quotient rounded down, computed from the remainder; a zero has the sign of x / y. */
template <typename W> TREK_INLINED W floored(W x, W y)
{
    if (y == 0)
        return x / y;
    W r = of_fmod(x, y), q = (x - r) / y;
    q = of_rint(r != 0 && (r < 0) != (y < 0) ? q - 1 : q);
    return q == 0 ? of_copysign((W)0, x / y) : q;
}

template <typename W, division kind> struct real_functor {
    static constexpr int weight = TREK_RARE;
    __device__ __forceinline__ W operator()(W x, W y) const
    {
        if constexpr (kind == REMAINDER)
            return mended(of_fmod(x, y), y);
        else if constexpr (kind == FMOD)
            return of_fmod(x, y);
        else if constexpr (kind == FLOOR)
            return floored(x, y);
        else
            return of_trunc(x / y);
    }
};

/* For integers: a divisor of 0 is a fault in the data; -1 is separate because the smallest integer divided by it
 * overflows. */
template <typename W, division kind> struct whole_functor {
    static constexpr int weight = TREK_RARE;
    trek_cuda_fault_record *faults;
    int op;
    __device__ __forceinline__ W operator()(W x, W y) const
    {
        if (y == 0) {
            trek_note_fault(faults, op, TREK_CUDA_FAULT_DIVISION, 0, 0, 0);
            return 0;
        }
        W r = y == -1 ? (W)0 : (W)(x % y), q = y == -1 ? trek_wrap_sub((W)0, x) : (W)(x / y);
        if constexpr (kind == REMAINDER)
            return mended(r, y);
        else if constexpr (kind == FMOD)
            return r;
        else if constexpr (kind == FLOOR)
            return r != 0 && (r < 0) != (y < 0) ? (W)(q - 1) : q;
        else
            return q;
    }
};

template <typename T, division kind> trek_status run_division(const trek_op_call *call)
{
    typedef typename trek_work<T>::type W;
    if constexpr (std::is_floating_point<W>::value) {
        return trek_map2<T, T>(call, real_functor<W, kind>());
    } else {
        if (call->outputs[0]->numel == 0)
            return TREK_OK;
        trek_cuda_queue *queue = trek_queue_of(call);
        if (!queue)
            return trek_error_status();
        whole_functor<W, kind> f = { queue->device->faults_device, call->op->id };
        return trek_map2<T, T>(call, f);
    }
}
template <typename T> trek_status run_remainder(const trek_op_call *call) { return run_division<T, REMAINDER>(call); }
template <typename T> trek_status run_fmod(const trek_op_call *call) { return run_division<T, FMOD>(call); }
template <typename T> trek_status run_rounded(const trek_op_call *call)
{
    return call->attrs.i[0] ? run_division<T, FLOOR>(call) : run_division<T, TRUNC>(call);
}

} // namespace

extern "C" void trek_cuda_register_division(trek_backend *b)
{
#define NUMBERS(op, kernel) TREK_ENTER_FLOATS(b, TREK_OP_##op, kernel) TREK_ENTER_INTEGERS(b, TREK_OP_##op, kernel)
    NUMBERS(remainder, run_remainder)
    NUMBERS(fmod, run_fmod)
    NUMBERS(div_rounded, run_rounded)
#undef NUMBERS
}

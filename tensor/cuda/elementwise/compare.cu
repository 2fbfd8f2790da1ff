/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels whose result is bool: comparisons, logic, tests. The request is a set of outcomes, so that one
 * kernel serves all of a kind. */
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/integer_range.h"

namespace {

/* Outcomes of a comparison; NEITHER: a NaN. */
enum { LESS = 1, EQUAL = 2, GREATER = 4, NEITHER = 8 };

template <typename W> struct compare_functor {
    static constexpr int weight = TREK_LIGHT;
    int wanted;
    __device__ __forceinline__ bool operator()(W x, W y) const
    {
        return (wanted & (x < y ? LESS : x == y ? EQUAL : x > y ? GREATER : NEITHER)) != 0;
    }
};

/* N: the type in which the number is compared. */
template <typename W, typename N> struct compare_number_functor {
    static constexpr int weight = TREK_LIGHT;
    compare_functor<N> compare;
    N number;
    __device__ __forceinline__ bool operator()(W x) const { return compare((N)x, number); }
};

struct range_functor {
    static constexpr int weight = TREK_LIGHT;
    trek_integer_range range;
    __device__ __forceinline__ bool operator()(int64_t x) const { return (x >= range.low && x <= range.high) != range.outside; }
};

/* Bits by (y != 0, x != 0): the row of the truth table. */
template <typename W> struct logic_functor {
    static constexpr int weight = TREK_LIGHT;
    int table;
    __device__ __forceinline__ bool operator()(W x, W y) const { return (table >> ((x != 0) + 2 * (y != 0)) & 1) != 0; }
};

/* Kinds of a number. */
enum { NOT_A_NUMBER = 1, INFINITE = 2, ZERO = 4, FINITE = 8 };

template <typename W> struct test_functor {
    static constexpr int weight = TREK_LIGHT;
    int wanted;
    __device__ __forceinline__ bool operator()(W x) const
    {
        int kind = x == 0 ? ZERO : FINITE;
        if constexpr (std::is_floating_point<W>::value)
            kind = x != x ? NOT_A_NUMBER : x - x != 0 ? INFINITE : kind;
        return (wanted & kind) != 0;
    }
};

/* For eq to ge and eq_scalar to ge_scalar. */
int wanted_outcomes(const trek_op_call *call)
{
    switch (call->op->id) {
    case TREK_OP_eq: case TREK_OP_eq_scalar: return EQUAL;
    case TREK_OP_ne: case TREK_OP_ne_scalar: return LESS | GREATER | NEITHER;
    case TREK_OP_lt: case TREK_OP_lt_scalar: return LESS;
    case TREK_OP_le: case TREK_OP_le_scalar: return LESS | EQUAL;
    case TREK_OP_gt: case TREK_OP_gt_scalar: return GREATER;
    default: return GREATER | EQUAL;
    }
}

template <typename T> trek_status run_compare(const trek_op_call *call)
{
    compare_functor<typename trek_work<T>::type> f = { wanted_outcomes(call) };
    return trek_map2<uint8_t, T>(call, f);
}

template <typename T> trek_status run_logic(const trek_op_call *call)
{
    int id = call->op->id;
    logic_functor<typename trek_work<T>::type> f = { id == TREK_OP_logical_and ? 8 : id == TREK_OP_logical_or ? 14 : 6 };
    return trek_map2<uint8_t, T>(call, f);
}

/* Floats compare in their own precision, to which the number is rounded; integers compare with the unrounded number. */
template <typename T> trek_status run_compare_number(const trek_op_call *call)
{
    typedef typename trek_work<T>::type W;
    compare_functor<W> outcome = { wanted_outcomes(call) };
    if constexpr (std::is_same<T, int64_t>::value) {
        range_functor f = { trek_integer_range_of(call->op->id, call->attrs.f[0]) };
        return trek_map1<uint8_t, T>(call, f);
    } else if constexpr (std::is_integral<T>::value) {
        compare_number_functor<W, double> f = { { outcome.wanted }, call->attrs.f[0] };
        return trek_map1<uint8_t, T>(call, f);
    } else {
        W rounded = trek_get(trek_store<T>::of((W)call->attrs.f[0]));
        compare_number_functor<W, W> f = { outcome, rounded };
        return trek_map1<uint8_t, T>(call, f);
    }
}

template <typename T> trek_status run_test(const trek_op_call *call)
{
    test_functor<typename trek_work<T>::type> f = { 0 };
    switch (call->op->id) {
    case TREK_OP_isnan: f.wanted = NOT_A_NUMBER; break;
    case TREK_OP_isinf: f.wanted = INFINITE; break;
    case TREK_OP_isfinite: f.wanted = ZERO | FINITE; break;
    default: f.wanted = ZERO; break;
    }
    return trek_map1<uint8_t, T>(call, f);
}

} // namespace

extern "C" void trek_cuda_register_compare(trek_backend *b)
{
#define ALL(op, kernel)                                                                                \
    TREK_ENTER_FLOATS(b, TREK_OP_##op, kernel)                                                         \
    TREK_ENTER_INTEGERS(b, TREK_OP_##op, kernel)                                                       \
    TREK_ENTER_BOOL(b, TREK_OP_##op, kernel)
    ALL(eq, run_compare) ALL(ne, run_compare) ALL(lt, run_compare) ALL(le, run_compare) ALL(gt, run_compare) ALL(ge, run_compare)
    ALL(logical_and, run_logic) ALL(logical_or, run_logic) ALL(logical_xor, run_logic)
    ALL(isnan, run_test) ALL(isinf, run_test) ALL(isfinite, run_test) ALL(logical_not, run_test)
    ALL(eq_scalar, run_compare_number) ALL(ne_scalar, run_compare_number) ALL(lt_scalar, run_compare_number)
    ALL(le_scalar, run_compare_number) ALL(gt_scalar, run_compare_number) ALL(ge_scalar, run_compare_number)
#undef ALL
}

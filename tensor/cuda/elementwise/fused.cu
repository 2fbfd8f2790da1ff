/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise functions that are several steps in one pass. */
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/cuda/elementwise/functions.cuh"

namespace {

/* From the nearer end, as in PyTorch, so that both ends are exact. */
template <typename W> TREK_INLINED W lerp_of(W x, W y, W weight)
{
    return weight > (W)-0.5 && weight < (W)0.5 ? x + weight * (y - x) : y + (weight - 1) * (y - x);
}

/* Between y and z, which wins if they cross. NaN in any of them gives NaN. */
template <typename W> TREK_INLINED W clamp_of(W x, W y, W z)
{
    W raised = x > y || x != x ? x : y;
    return raised < z || raised != raised ? raised : z;
}

/* The larger one plus log(1 + e^(-s |x - y|)) / s. Two equal infinities have no distance. */
template <typename W> TREK_INLINED W logaddexp_of(W x, W y, W s)
{
    W apart = x == y ? (W)0 : of_abs(x - y);
    return (y < x ? x : y) + of_log1p(of_exp(-apart * s)) / s;
}

#define FUNCTOR(op, cost, parameters, expression)                                                      \
    template <typename W> struct op##_functor {                                                        \
        static constexpr int weight = cost;                                                            \
        W s;                                                                                           \
        __device__ __forceinline__ W operator() parameters const { return expression; }                \
    };
#define PAIR(op, cost, expression)                                                                     \
    FUNCTOR(op, cost, (W x, W y), expression)                                                          \
    template <typename T> trek_status run_##op(const trek_op_call *call)                               \
    {                                                                                                  \
        return trek_map2<T, T>(call, op##_functor<typename trek_work<T>::type>{ trek_number<T>(call->attrs.f[0]) }); \
    }
#define TRIPLE(op, cost, expression)                                                                   \
    FUNCTOR(op, cost, (W x, W y, W z), expression)                                                     \
    template <typename T> trek_status run_##op(const trek_op_call *call)                               \
    {                                                                                                  \
        return trek_map3<T>(call, op##_functor<typename trek_work<T>::type>{ trek_number<T>(call->attrs.f[0]) }); \
    }
PAIR(lerp, TREK_LIGHT, lerp_of(x, y, s))
TRIPLE(lerp_var, TREK_RARE, lerp_of(x, y, z))
TRIPLE(clamp_var, TREK_RARE, clamp_of(x, y, z))
TRIPLE(addcmul, TREK_LIGHT, x + s * y * z)
TRIPLE(addcdiv, TREK_LIGHT, x + s * y / z)
PAIR(logaddexp, TREK_RARE, logaddexp_of(x, y, s))
/* A half of gated linear units, and the gradient of their gate. */
PAIR(sigmoid_mul, TREK_LIGHT, x *of_sigmoid(y))
PAIR(silu_mul, TREK_LIGHT, x *(y * of_sigmoid(y)))
TRIPLE(sigmoid_mul_backward, TREK_LIGHT, x *y *(of_sigmoid(z) * (1 - of_sigmoid(z))))
TRIPLE(silu_mul_backward, TREK_LIGHT, x *y *of_silu_slope(z))

/* Of one input, with numbers s, t and u. */
#define SINGLE(op, cost, expression)                                                                   \
    template <typename W> struct op##_functor {                                                        \
        static constexpr int weight = cost;                                                            \
        W s, t, u;                                                                                     \
        __device__ __forceinline__ W operator()(W x) const { return expression; }                      \
    };                                                                                                 \
    template <typename T> trek_status run_##op(const trek_op_call *call)                               \
    {                                                                                                  \
        const double *f = call->attrs.f;                                                               \
        return trek_map1<T, T>(call, op##_functor<typename trek_work<T>::type>{ trek_number<T>(f[0]), trek_number<T>(f[1]), \
                                                                                trek_number<T>(f[2]) }); \
    }
SINGLE(div_scalar, TREK_LIGHT, x / s)
SINGLE(frac, TREK_RARE, x - of_trunc(x))
SINGLE(nan_to_num, TREK_RARE, x != x ? s : x - x == 0 ? x : x > 0 ? t : u)
SINGLE(ndtr, TREK_RARE, of_normcdf(x))

} // namespace

extern "C" void trek_cuda_register_fused(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, TREK_OP_lerp, run_lerp)
    TREK_ENTER_FLOATS(b, TREK_OP_lerp_var, run_lerp_var)
    TREK_ENTER_FLOATS(b, TREK_OP_clamp_var, run_clamp_var)
    TREK_ENTER_FLOATS(b, TREK_OP_addcmul, run_addcmul)
    TREK_ENTER_FLOATS(b, TREK_OP_addcdiv, run_addcdiv)
    TREK_ENTER_FLOATS(b, TREK_OP_logaddexp, run_logaddexp)
    TREK_ENTER_FLOATS(b, TREK_OP_sigmoid_mul, run_sigmoid_mul)
    TREK_ENTER_FLOATS(b, TREK_OP_silu_mul, run_silu_mul)
    TREK_ENTER_FLOATS(b, TREK_OP_sigmoid_mul_backward, run_sigmoid_mul_backward)
    TREK_ENTER_FLOATS(b, TREK_OP_silu_mul_backward, run_silu_mul_backward)
    TREK_ENTER_FLOATS(b, TREK_OP_div_scalar, run_div_scalar)
    TREK_ENTER_FLOATS(b, TREK_OP_frac, run_frac)
    TREK_ENTER_FLOATS(b, TREK_OP_nan_to_num, run_nan_to_num)
    TREK_ENTER_FLOATS(b, TREK_OP_ndtr, run_ndtr)
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Activations and their fused gradients; arguments are the gradient, then what was saved. */
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/cuda/elementwise/gelu.cuh"

namespace {

/* What a function depends on: the precision in which it is computed, or (sized) the size of the elements, so that
 * 16-bit ones can use a cheaper form. */
template <typename T> using wide = typename trek_work<T>::type;
template <typename T> using sized = typename std::conditional<sizeof(T) == 2, trek_bf16, T>::type;

/* T: `of` is wide or sized; s and t are the call's first two numbers. */
#define FUNCTOR(op, cost, of, expression)                                                              \
    template <typename T> struct op##_functor {                                                        \
        typedef typename trek_work<T>::type W;                                                         \
        static constexpr int weight = cost;                                                            \
        W s, t;                                                                                        \
        __device__ __forceinline__ W operator()(W x) const { return expression; }                      \
    };                                                                                                 \
    template <typename T> trek_status run_##op(const trek_op_call *call)                        \
    {                                                                                                  \
        op##_functor<of<T>> f = { trek_number<T>(call->attrs.f[0]), trek_number<T>(call->attrs.f[1]) }; \
        return trek_map1<T, T>(call, f);                                                               \
    }
#define GRADIENT(op, cost, of, expression)                                                             \
    template <typename T> struct op##_functor {                                                        \
        typedef typename trek_work<T>::type W;                                                         \
        static constexpr int weight = cost;                                                            \
        __device__ __forceinline__ W operator()(W x, W y) const { return expression; }                 \
    };                                                                                                 \
    template <typename T> trek_status run_##op(const trek_op_call *call)                        \
    {                                                                                                  \
        return trek_map2<T, T>(call, op##_functor<of<T>>());                                           \
    }

template <typename W> TREK_INLINED W softplus_of(W x, W s, W t)
{
    W scaled = x * s;
    return scaled > t ? x : of_log1p(of_exp(scaled)) / s;
}

template <typename W> TREK_INLINED W between(W x, W low, W high) { return x < low ? low : x > high ? high : x; }

/* 0.5 x (1 + tanh(k (x + 0.044715 x^3))) = x sigmoid(2 k (...)), k = sqrt(2 / pi) */
template <typename W> TREK_INLINED W gelu_tanh_of(W x)
{
    W inner = x * ((W)(2 * 0.79788456080286535588 * 0.044715) * x * x + (W)(2 * 0.79788456080286535588));
    return (x < (W)-60 ? (W)-60 : x) * of_sigmoid(inner);
}
template <typename W> TREK_INLINED W gelu_tanh_slope(W x)
{
    W inside = between<W>(x, -60, 60), square = inside * inside;
    W s = of_sigmoid(inside * ((W)(2 * 0.79788456080286535588 * 0.044715) * square + (W)(2 * 0.79788456080286535588)));
    W slope = (W)(2 * 0.79788456080286535588 * 3 * 0.044715) * square + (W)(2 * 0.79788456080286535588);
    return s + inside * slope * (s * (1 - s));
}

FUNCTOR(tanh, TREK_LIGHT, wide, of_tanh(x))
FUNCTOR(sigmoid, TREK_LIGHT, wide, of_sigmoid(x))
FUNCTOR(silu, TREK_LIGHT, wide, x *of_sigmoid(x))
FUNCTOR(softplus, TREK_HEAVY, wide, softplus_of(x, s, t))
FUNCTOR(gelu_erf, TREK_LIGHT, sized, trek_gelu<sizeof(T) == 2>(x))
FUNCTOR(gelu_tanh, TREK_LIGHT, wide, gelu_tanh_of(x))
template <typename T> trek_status run_gelu(const trek_op_call *call)
{
    return call->attrs.i[0] ? run_gelu_tanh<T>(call) : run_gelu_erf<T>(call);
}

/* A NaN that passed relu passes its gradient. */
GRADIENT(relu_backward, TREK_LIGHT, wide, y <= 0 ? (W)0 : x)
GRADIENT(tanh_backward, TREK_LIGHT, wide, x *(1 - y * y))
GRADIENT(sigmoid_backward, TREK_LIGHT, wide, x *(1 - y) * y)
GRADIENT(silu_backward, TREK_LIGHT, wide, x *of_silu_slope(y))
GRADIENT(gelu_erf_backward, TREK_LIGHT, sized, x *trek_gelu_slope<sizeof(T) == 2>(y))
GRADIENT(gelu_tanh_backward, TREK_LIGHT, wide, x *gelu_tanh_slope(y))
template <typename T> trek_status run_gelu_backward(const trek_op_call *call)
{
    return call->attrs.i[0] ? run_gelu_tanh_backward<T>(call) : run_gelu_erf_backward<T>(call);
}

} // namespace

extern "C" void trek_cuda_register_activation(trek_backend *b)
{
#define FLOATS(op) TREK_ENTER_FLOATS(b, TREK_OP_##op, run_##op)
    FLOATS(tanh) FLOATS(sigmoid) FLOATS(silu) FLOATS(softplus) FLOATS(gelu)
    FLOATS(relu_backward) FLOATS(tanh_backward) FLOATS(sigmoid_backward) FLOATS(silu_backward) FLOATS(gelu_backward)
    TREK_ENTER_INTEGERS(b, TREK_OP_relu_backward, run_relu_backward)
#undef FLOATS
}

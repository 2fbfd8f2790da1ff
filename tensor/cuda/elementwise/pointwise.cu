/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one number, with numbers s and t, and their derivatives. */
#include "tensor/pointwise.h"
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/cuda/elementwise/functions.cuh"
#define TREK_SPECIAL TREK_CALLED
#include "tensor/special.h"

namespace {

/* An op's value at x, and its derivative; NaN passes, and passes its gradient. */
template <int op, typename W> struct activation;
#define ACTIVATION(op, cost, at, derivative)                                                         \
    template <typename W> struct activation<TREK_OP_##op, W> {                                 \
        static constexpr int weight = cost;                                                            \
        static TREK_INLINED W of(W x, W s, W t) { return (void)s, (void)t, at; }                       \
        static TREK_INLINED W slope(W x, W s, W t) { return (void)s, (void)t, derivative; }            \
    };

template <typename W> TREK_INLINED W of_size(W x) { return x < 0 ? -x : x; }

/* tanh(log(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2); 1 from 40 on */
template <typename W> TREK_INLINED W mish_factor(W x, W &e, W &n)
{
    e = of_exp(x > 40 ? (W)40 : x);
    n = e * (e + 2);
    return x > 40 ? (W)1 : n / (n + 2);
}
template <typename W> TREK_INLINED W mish_of(W x)
{
    W e, n;
    return x * mish_factor(x, e, n);
}
template <typename W> TREK_INLINED W mish_slope(W x)
{
    W e, n, w = mish_factor(x, e, n);
    return x > 40 ? (W)1 : w + x * (e / (1 + e)) * ((2 / (n + 2)) * (1 + w));
}

#define SCALE ((W)TREK_SELU_SCALE)
#define BELOW ((W)(TREK_SELU_SCALE * TREK_SELU_ALPHA))
ACTIVATION(hardshrink, TREK_RARE, x >= -s && x <= s ? (W)0 : x, x >= -s && x <= s ? (W)0 : (W)1)
ACTIVATION(hardsigmoid, TREK_HEAVY, x <= -3 ? (W)0 : x >= 3 ? (W)1 : (x + 3) / 6, x > -3 && x < 3 ? (W)1 / 6 : (W)0)
ACTIVATION(hardtanh, TREK_HEAVY, x < s ? s : x > t ? t : x, x <= s || x >= t ? (W)0 : (W)1)
ACTIVATION(hardswish, TREK_HEAVY, x <= -3 ? (W)0 : x >= 3 ? x : x * (x + 3) / 6, x <= -3 ? (W)0 : x < 3 ? (2 * x + 3) / 6 : (W)1)
ACTIVATION(logsigmoid, TREK_RARE, (x > 0 ? (W)0 : x) - of_log1p(of_exp(-of_size(x))), of_sigmoid(-x))
ACTIVATION(selu, TREK_RARE, x > 0 ? SCALE * x : BELOW * of_expm1(x), x <= 0 ? BELOW * of_exp(x) : SCALE)
ACTIVATION(celu, TREK_RARE, x > 0 ? x : s * of_expm1(x / s), x <= 0 ? of_exp(x / s) : (W)1)
ACTIVATION(elu, TREK_HEAVY, x > 0 ? x : s * of_expm1(x), x <= 0 ? s * of_exp(x) : (W)1)
ACTIVATION(leaky_relu, TREK_HEAVY, x > 0 ? x : x *s, x > 0 ? (W)1 : s)
ACTIVATION(mish, TREK_HEAVY, mish_of(x), mish_slope(x))
ACTIVATION(softshrink, TREK_RARE, x > s ? x - s : x < -s ? x + s : x * 0, x >= -s && x <= s ? (W)0 : (W)1)
ACTIVATION(softsign, TREK_RARE, x / (1 + of_size(x)), 1 / ((1 + of_size(x)) * (1 + of_size(x))))
ACTIVATION(threshold, TREK_RARE, x <= s ? t : x, x <= s ? (W)0 : (W)1)

/* Rare functions: in f64, not inlined, with one kernel for all layouts, because compiling copies for each took most
 * of this file's time. */
#define SPECIAL(op, at, derivative)                                                                  \
    template <typename W> struct activation<TREK_OP_##op, W> {                                \
        static constexpr int weight = TREK_RARE;                                                       \
        static TREK_CALLED W of(W given, W number, W)                                                  \
        {                                                                                              \
            const double x = (double)given, s = (double)number;                                        \
            return (void)s, (W)(at);                                                                   \
        }                                                                                              \
        static TREK_CALLED W slope(W given, W number, W)                                               \
        {                                                                                              \
            const double x = (double)given, s = (double)number;                                        \
            return (void)s, (W)(derivative);                                                           \
        }                                                                                              \
    };
SPECIAL(tanhshrink, x - tanh(x), tanh(x) * tanh(x))
SPECIAL(asinh, asinh(x), 1 / sqrt(x * x + 1))
SPECIAL(acosh, acosh(x), 1 / sqrt(x * x - 1))
SPECIAL(atanh, atanh(x), 1 / (1 - x * x))
SPECIAL(erfc, erfc(x), -1.1283791670955125739 * exp(-x * x))
SPECIAL(erfinv, trek_erfinv(x), 0.88622692545275801365 * exp(trek_erfinv(x) * trek_erfinv(x)))
SPECIAL(exp2, exp2(x), 0.69314718055994530942 * exp2(x))
SPECIAL(lgamma, lgamma(x), trek_digamma(x))
SPECIAL(polygamma, trek_polygamma(s, x), trek_polygamma(s + 1, x))
SPECIAL(i0, trek_bessel(0, x), trek_bessel(1, x))
SPECIAL(i0e, trek_bessel_scaled(0, x), trek_i0e_slope(x))
SPECIAL(i1, trek_bessel(1, x), trek_i1_slope(x))
SPECIAL(i1e, trek_bessel_scaled(1, x), trek_i1e_slope(x))
SPECIAL(log_ndtr, trek_log_ndtr(x), trek_log_ndtr_slope(x))

template <typename W, int op> struct pointwise_functor {
    static constexpr int weight = activation<op, W>::weight;
    W s, t;
    __device__ __forceinline__ W operator()(W x) const { return activation<op, W>::of(x, s, t); }
};
template <typename W, int op> struct pointwise_backward_functor {
    static constexpr int weight = activation<op, W>::weight;
    W s, t;
    __device__ __forceinline__ W operator()(W x, W y) const { return x * activation<op, W>::slope(y, s, t); }
};

template <int op, typename T> trek_status run_sloped(const trek_op_call *call)
{
    typedef pointwise_functor<typename trek_work<T>::type, op> functor;
    return trek_map1<T, T>(call, functor{ trek_number<T>(call->attrs.f[0]), trek_number<T>(call->attrs.f[1]) });
}
template <int op, typename T> trek_status run_sloped_backward(const trek_op_call *call)
{
    typedef pointwise_backward_functor<typename trek_work<T>::type, op> functor;
    return trek_map2<T, T>(call, functor{ trek_number<T>(call->attrs.f[0]), trek_number<T>(call->attrs.f[1]) });
}

/* Incomplete gamma functions, of two inputs. */
template <typename W> struct igamma_functor {
    static constexpr int weight = TREK_RARE;
    int upper;
    TREK_CALLED W operator()(W a, W x) const { return (W)trek_igamma((double)a, (double)x, upper); }
};
template <typename T> trek_status run_igamma(const trek_op_call *call)
{
    return trek_map2<T, T>(call, igamma_functor<typename trek_work<T>::type>{ call->attrs.i[0] != 0 });
}

} // namespace

extern "C" void trek_cuda_register_pointwise(trek_backend *b)
{
#define ENTER(id, run, op, DTYPE, T) TREK_ENTER(b, id, DTYPE, (run<TREK_OP_##op, T>))
#define ENTER_FLOATS(id, run, op)                                                                      \
    ENTER(id, run, op, F32, float)                                                                     \
    ENTER(id, run, op, F64, double)                                                                    \
    ENTER(id, run, op, BF16, trek_bf16)                                                                \
    ENTER(id, run, op, F16, trek_f16)
#define SLOPED(op)                                                                                     \
    ENTER_FLOATS(TREK_OP_##op, run_sloped, op)                                                         \
    ENTER_FLOATS(TREK_OP_##op##_backward, run_sloped_backward, op)
    SLOPED(hardshrink) SLOPED(hardsigmoid) SLOPED(hardtanh) SLOPED(hardswish) SLOPED(logsigmoid) SLOPED(selu)
    SLOPED(celu) SLOPED(elu) SLOPED(leaky_relu) SLOPED(mish) SLOPED(softshrink) SLOPED(softsign)
    SLOPED(tanhshrink) SLOPED(threshold) SLOPED(asinh) SLOPED(acosh) SLOPED(atanh) SLOPED(erfc) SLOPED(erfinv)
    SLOPED(lgamma) SLOPED(exp2) SLOPED(polygamma) SLOPED(i0) SLOPED(i0e) SLOPED(i1) SLOPED(i1e)
    SLOPED(log_ndtr)
#undef SLOPED
#undef ENTER_FLOATS
#undef ENTER
    TREK_ENTER_FLOATS(b, TREK_OP_igamma, run_igamma)
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels of one input, with and without numbers; activations are in activation.cu. */
#include "tensor/cuda/elementwise/elementwise.cuh"
#include "tensor/cuda/elementwise/functions.cuh"

namespace {

/* s and t: the call's first two numbers. */
template <typename W> struct numbers {
    W s, t;
};

#define FUNCTOR(op, cost, expression)                                                                  \
    template <typename W> struct op##_functor : numbers<W> {                                           \
        static constexpr int weight = cost;                                                            \
        __device__ __forceinline__ W operator()(W x) const                                             \
        {                                                                                              \
            const W s = this->s, t = this->t;                                                          \
            (void)s, (void)t;                                                                          \
            return expression;                                                                         \
        }                                                                                              \
    };                                                                                                 \
    template <typename T> trek_status run_##op(const trek_op_call *call)                        \
    {                                                                                                  \
        op##_functor<typename trek_work<T>::type> f;                                                   \
        f.s = trek_number<T>(call->attrs.f[0]), f.t = trek_number<T>(call->attrs.f[1]);                \
        return trek_map1<T, T>(call, f);                                                               \
    }

/* Functions that no other file needs. */
#define FUNCTION(op)                                                                                   \
    TREK_FUNCTION(op)                                                                                  \
    FUNCTOR(op, TREK_RARE, of_##op(x))
#define LONG_FUNCTION(op)                                                                              \
    TREK_LONG_FUNCTION(op)                                                                             \
    FUNCTOR(op, TREK_RARE, of_##op(x))

/* Floats keep the sign of 0 and NaN; integers wrap around. */
template <typename W> TREK_INLINED W negative(W x)
{
    if constexpr (std::is_integral<W>::value)
        return trek_wrap_sub((W)0, x);
    else
        return -x;
}
template <typename W> TREK_INLINED W magnitude(W x)
{
    if constexpr (std::is_integral<W>::value)
        return x < 0 ? trek_wrap_sub((W)0, x) : x;
    else
        return of_abs(x);
}

/* Numbers of any kind. */
FUNCTOR(neg, TREK_LIGHT, negative(x))
FUNCTOR(abs, TREK_LIGHT, magnitude(x))
FUNCTOR(sign, TREK_RARE, (W)((0 < x) - (x < 0))) /* NaN gives 0 */
FUNCTOR(square, TREK_LIGHT, trek_wrap_mul(x, x))
FUNCTOR(relu, TREK_LIGHT, x < 0 ? (W)0 : x)
FUNCTOR(add_scalar, TREK_LIGHT, trek_wrap_add(x, s))
FUNCTOR(mul_scalar, TREK_LIGHT, trek_wrap_mul(x, s))
/* max(s, x) first: if the bounds cross, the upper one wins; NaN passes. */
FUNCTOR(clamp_to, TREK_LIGHT, (x < s ? s : x) > t ? t : (x < s ? s : x))

/* Floats. */
FUNCTOR(floor, TREK_RARE, of_floor(x))
FUNCTOR(ceil, TREK_RARE, of_ceil(x))
FUNCTOR(round, TREK_RARE, of_rint(x))
FUNCTOR(trunc, TREK_RARE, of_trunc(x))
FUNCTOR(sqrt, TREK_LIGHT, of_sqrt(x))
FUNCTOR(rsqrt, TREK_LIGHT, of_rsqrt(x))
FUNCTOR(reciprocal, TREK_LIGHT, 1 / x)
FUNCTOR(exp, TREK_LIGHT, of_exp(x))
FUNCTOR(expm1, TREK_RARE, of_expm1(x))
FUNCTOR(log, TREK_HEAVY, of_log(x))
FUNCTOR(log1p, TREK_RARE, of_log1p(x))
FUNCTION(log2)
FUNCTION(log10)
LONG_FUNCTION(sin)
LONG_FUNCTION(cos)
LONG_FUNCTION(tan)
LONG_FUNCTION(asin)
LONG_FUNCTION(acos)
LONG_FUNCTION(atan)
LONG_FUNCTION(sinh)
LONG_FUNCTION(cosh)
FUNCTION(erf)
FUNCTOR(cube, TREK_RARE, x *x *x)
FUNCTOR(inverse_square, TREK_RARE, 1 / (x * x))
FUNCTOR(power, TREK_RARE, of_pow(x, s))

/* Integers are already rounded. */
template <typename W> struct itself_functor {
    static constexpr int weight = TREK_LIGHT;
    __device__ __forceinline__ W operator()(W x) const { return x; }
};
template <typename T> trek_status run_itself(const trek_op_call *call)
{
    return trek_map1<T, T>(call, itself_functor<typename trek_work<T>::type>());
}

/* Integers between real bounds: the integers within them. */
template <typename T> T nearest(double v)
{
    const int64_t lowest = (int64_t)std::numeric_limits<T>::min(), highest = (int64_t)std::numeric_limits<T>::max();
    int64_t x = trek_i64_from_f64(v);
    return (T)(x < lowest ? lowest : x > highest ? highest : x);
}
template <typename T> trek_status run_clamp(const trek_op_call *call)
{
    if constexpr (!std::is_integral<T>::value) {
        return run_clamp_to<T>(call);
    } else {
        clamp_to_functor<typename trek_work<T>::type> f;
        f.s = nearest<T>(ceil(call->attrs.f[0])), f.t = nearest<T>(floor(call->attrs.f[1]));
        return trek_map1<T, T>(call, f);
    }
}

/* Powers: common exponents without a call. */
template <typename W> bool exponent_is(double exponent, double value) { return (W)exponent == (W)value; }
template <typename T> trek_status run_power_of_float(const trek_op_call *call)
{
    typedef typename trek_work<T>::type W;
    double exponent = call->attrs.f[0];
    return exponent_is<W>(exponent, 2)      ? run_square<T>(call)
         : exponent_is<W>(exponent, 3)      ? run_cube<T>(call)
         : exponent_is<W>(exponent, 0.5)    ? run_sqrt<T>(call)
         : exponent_is<W>(exponent, -0.5)   ? run_rsqrt<T>(call)
         : exponent_is<W>(exponent, -1)     ? run_reciprocal<T>(call)
         : exponent_is<W>(exponent, -2)     ? run_inverse_square<T>(call)
                                            : run_power<T>(call);
}

/* For integers: trek_power_integer, with the whole exponent. */
template <typename W> struct whole_power_functor {
    static constexpr int weight = TREK_RARE;
    int64_t exponent;
    __device__ __forceinline__ W operator()(W x) const { return (W)trek_power_integer((int64_t)x, exponent); }
};
template <typename T> trek_status run_power_of_integer(const trek_op_call *call)
{
    whole_power_functor<typename trek_work<T>::type> f = { trek_i64_from_f64(call->attrs.f[0]) };
    return trek_map1<T, T>(call, f);
}

} // namespace

extern "C" void trek_cuda_register_unary(trek_backend *b)
{
#define NUMBERS(op) TREK_ENTER_FLOATS(b, TREK_OP_##op, run_##op) TREK_ENTER_INTEGERS(b, TREK_OP_##op, run_##op)
#define ROUNDINGS(op) TREK_ENTER_FLOATS(b, TREK_OP_##op, run_##op) TREK_ENTER_INTEGERS(b, TREK_OP_##op, run_itself)
#define FLOATS(op) TREK_ENTER_FLOATS(b, TREK_OP_##op, run_##op)
    NUMBERS(neg) NUMBERS(abs) NUMBERS(sign) NUMBERS(square) NUMBERS(relu) NUMBERS(add_scalar) NUMBERS(mul_scalar) NUMBERS(clamp)
    ROUNDINGS(floor) ROUNDINGS(ceil) ROUNDINGS(round) ROUNDINGS(trunc)
    TREK_ENTER_FLOATS(b, TREK_OP_pow_scalar, run_power_of_float) TREK_ENTER_INTEGERS(b, TREK_OP_pow_scalar, run_power_of_integer)
    FLOATS(exp) FLOATS(expm1) FLOATS(log) FLOATS(log1p) FLOATS(log2) FLOATS(log10) FLOATS(sqrt) FLOATS(rsqrt)
    FLOATS(reciprocal) FLOATS(sin) FLOATS(cos) FLOATS(tan) FLOATS(asin) FLOATS(acos) FLOATS(atan) FLOATS(sinh) FLOATS(cosh)
    FLOATS(erf)
#undef NUMBERS
#undef ROUNDINGS
#undef FLOATS
}

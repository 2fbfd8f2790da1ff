/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise kernels of bits. */
#include "tensor/cuda/elementwise/elementwise.cuh"

namespace {

#define FUNCTOR(op, expression)                                                                        \
    template <typename T> struct op##_functor {                                                        \
        typedef typename trek_work<T>::type W;                                                         \
        static constexpr int weight = TREK_RARE;                                                      \
        __device__ __forceinline__ W operator()(W x, W y) const { return expression; }                 \
    };                                                                                                 \
    template <typename T> trek_status run_##op(const trek_op_call *call) { return trek_map2<T, T>(call, op##_functor<T>()); }

/* A shift by less than 0 or by all bits: a left shift gives 0, a right shift gives the sign. Bytes are shifted as 32
 * bits. */
template <typename T> constexpr int bits_of = 8 * (int)sizeof(T);
template <typename T, typename W> __device__ __forceinline__ W to_the_left(W x, W y)
{
    typedef typename std::make_unsigned<W>::type U;
    return (W)(y < 0 || y >= bits_of<T> ? (U)0 : (U)x << y);
}
template <typename T, typename W> __device__ __forceinline__ W to_the_right(W x, W y)
{
    const int most = std::is_signed<T>::value ? bits_of<T> - 1 : bits_of<T>;
    return x >> (y < 0 || y > most ? most : (int)y);
}

FUNCTOR(bits_and, x &y)
FUNCTOR(bits_or, x | y)
FUNCTOR(bits_xor, x ^ y)
FUNCTOR(left, (to_the_left<T, W>(x, y)))
FUNCTOR(right, (to_the_right<T, W>(x, y)))

template <typename W> struct not_functor {
    static constexpr int weight = TREK_RARE;
    W flipped;
    __device__ __forceinline__ W operator()(W x) const { return x ^ flipped; }
};
template <typename T> trek_status run_bits_not(const trek_op_call *call)
{
    typedef typename trek_work<T>::type W;
    not_functor<W> f = { call->inputs[0]->dtype == TREK_BOOL ? (W)1 : (W)-1 };
    return trek_map1<T, T>(call, f);
}

template <typename W> struct gcd_functor {
    static constexpr int weight = TREK_RARE;
    static __device__ __forceinline__ uint64_t size(W x) { return x < 0 ? 0 - (uint64_t)x : (uint64_t)x; }
    __device__ __forceinline__ W operator()(W x, W y) const
    {
        uint64_t a = size(x), b = size(y);
        while (b != 0) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        return (W)a;
    }
};
template <typename T> trek_status run_gcd(const trek_op_call *call)
{
    return trek_map2<T, T>(call, gcd_functor<typename trek_work<T>::type>());
}

/* Elements by their bits, which are neighbours in the order of size. */
template <typename T, typename U> struct next_functor {
    static constexpr int weight = TREK_RARE;
    __device__ __forceinline__ U operator()(U x, U y) const
    {
        T first, second;
        memcpy(&first, &x, sizeof x);
        memcpy(&second, &y, sizeof y);
        const auto a = trek_get(first), b = trek_get(second);
        const U sign = (U)((U)1 << (8 * sizeof(U) - 1));
        if (a != a)
            return x;
        if (b != b || a == b)
            return y;
        if (a == 0)
            return (U)((y & sign) | 1);
        return (a < b) == (a > 0) ? (U)(x + 1) : (U)(x - 1);
    }
};
template <typename T, typename U> trek_status run_next(const trek_op_call *call)
{
    return trek_map2<U, U>(call, next_functor<T, U>());
}

} // namespace

extern "C" void trek_cuda_register_bitwise(trek_backend *b)
{
#define INTEGERS(op, kernel) TREK_ENTER_INTEGERS(b, TREK_OP_##op, kernel)
#define BOTH(op, kernel) INTEGERS(op, kernel) TREK_ENTER_BOOL(b, TREK_OP_##op, kernel)
    BOTH(bitwise_and, run_bits_and) BOTH(bitwise_or, run_bits_or) BOTH(bitwise_xor, run_bits_xor) BOTH(bitwise_not, run_bits_not)
    INTEGERS(gcd, run_gcd)
    b->kernels[TREK_OP_nextafter][TREK_F32] = run_next<float, uint32_t>;
    b->kernels[TREK_OP_nextafter][TREK_F64] = run_next<double, uint64_t>;
    b->kernels[TREK_OP_nextafter][TREK_BF16] = run_next<trek_bf16, uint16_t>;
    b->kernels[TREK_OP_nextafter][TREK_F16] = run_next<trek_f16, uint16_t>;
    INTEGERS(bitwise_left_shift, run_left) INTEGERS(bitwise_right_shift, run_right)
#undef BOTH
#undef INTEGERS
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic that CUDA has beyond <cmath>: bit casts, bit counts, high halves,
 * single operations of a fixed rounding, and functions of single precision.
 * The plain operations must not be contracted: compile with -ffp-contract=off. */
#ifndef TREK_SHIM_MATH_H
#define TREK_SHIM_MATH_H

template <typename To, typename From> static inline To trek_shim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline int __float_as_int(float v) { return trek_shim_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return trek_shim_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return trek_shim_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return trek_shim_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return trek_shim_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return trek_shim_bits<double>(v); }
static inline int __double2hiint(double v) { return (int)((unsigned long long)__double_as_longlong(v) >> 32); }
static inline int __double2loint(double v) { return (int)(unsigned)(unsigned long long)__double_as_longlong(v); }
static inline double __hiloint2double(int high, int low)
{
    return __longlong_as_double((long long)(((unsigned long long)(unsigned)high << 32) | (unsigned)low));
}

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline unsigned __brev(unsigned v)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++)
        r |= ((v >> i) & 1u) << (31 - i);
    return r;
}
static inline unsigned long long __brevll(unsigned long long v)
{
    return ((unsigned long long)__brev((unsigned)v) << 32) | __brev((unsigned)(v >> 32));
}
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    unsigned long long bytes = ((unsigned long long)high << 32) | low;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)((bytes >> (8 * ((selector >> (4 * i)) & 7u))) & 0xffu) << (8 * i);
    return r;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    shift &= 31u;
    return shift ? (high << shift) | (low >> (32 - shift)) : high;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    shift &= 31u;
    return shift ? (low >> shift) | (high << (32 - shift)) : low;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
__extension__ typedef __int128 trek_shim_int128;
__extension__ typedef unsigned __int128 trek_shim_uint128;
static inline long long __mul64hi(long long a, long long b) { return (long long)(((trek_shim_int128)a * b) >> 64); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((trek_shim_uint128)a * b) >> 64);
}

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline float __frsqrt_rn(float a) { return (float)(1.0 / std::sqrt((double)a)); }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __drcp_rn(double a) { return 1.0 / a; }
static inline double __dsqrt_rn(double a) { return std::sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

/* the fast forms, as accurate as the plain ones here */
static inline float trek_shim_expf(float a) { return expf(a); }
static inline float trek_shim_exp10f(float a) { return powf(10.0f, a); }
static inline float trek_shim_logf(float a) { return logf(a); }
static inline float trek_shim_log2f(float a) { return log2f(a); }
static inline float trek_shim_log10f(float a) { return log10f(a); }
static inline float trek_shim_powf(float a, float b) { return powf(a, b); }
static inline float trek_shim_sinf(float a) { return sinf(a); }
static inline float trek_shim_cosf(float a) { return cosf(a); }
static inline float trek_shim_tanf(float a) { return tanf(a); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
static inline float trek_shim_rsqrtf(float a) { return (float)(1.0 / std::sqrt((double)a)); }
static inline double trek_shim_rsqrt(double a) { return 1.0 / std::sqrt(a); }
static inline float normcdff(float a) { return 0.5f * erfcf(-a * 0.70710678118654752f); }
static inline double normcdf(double a) { return 0.5 * erfc(-a * 0.70710678118654752440); }
static inline void trek_shim_sincospif(float a, float *s, float *c)
{
    *s = (float)sin(3.14159265358979323846 * a);
    *c = (float)cos(3.14159265358979323846 * a);
}
static inline float trek_shim_sinpif(float a) { return (float)sin(3.14159265358979323846 * a); }
static inline float trek_shim_cospif(float a) { return (float)cos(3.14159265358979323846 * a); }
static inline double trek_shim_sinpi(double a) { return sin(3.14159265358979323846 * a); }
static inline double trek_shim_cospi(double a) { return cos(3.14159265358979323846 * a); }

/* The C library has, or will have, some of these names to itself. */
#define __expf trek_shim_expf
#define __exp10f trek_shim_exp10f
#define __logf trek_shim_logf
#define __log2f trek_shim_log2f
#define __log10f trek_shim_log10f
#define __powf trek_shim_powf
#define __sinf trek_shim_sinf
#define __cosf trek_shim_cosf
#define __tanf trek_shim_tanf
#define sincospif trek_shim_sincospif
#define sinpif trek_shim_sinpif
#define cospif trek_shim_cospif
#define sinpi trek_shim_sinpi
#define cospi trek_shim_cospi
#define rsqrtf trek_shim_rsqrtf
#define rsqrt trek_shim_rsqrt

/* Conversions to integers: NaN is 0 and what does not fit is the nearest end, as on the device. */
template <typename To, typename From> static inline To trek_shim_convert(From v)
{
    const From low = (From)std::numeric_limits<To>::min(), high = (From)std::numeric_limits<To>::max();
    if (v != v)
        return 0;
    return v <= low ? std::numeric_limits<To>::min() : v >= high ? std::numeric_limits<To>::max() : (To)v;
}
static inline int __float2int_rn(float v) { return trek_shim_convert<int>(rintf(v)); }
static inline int __float2int_rz(float v) { return trek_shim_convert<int>(truncf(v)); }
static inline int __float2int_rd(float v) { return trek_shim_convert<int>(floorf(v)); }
static inline int __float2int_ru(float v) { return trek_shim_convert<int>(ceilf(v)); }
static inline unsigned __float2uint_rn(float v) { return trek_shim_convert<unsigned>(rintf(v)); }
static inline unsigned __float2uint_rz(float v) { return trek_shim_convert<unsigned>(truncf(v)); }
static inline long long __float2ll_rn(float v) { return trek_shim_convert<long long>(rintf(v)); }
static inline long long __float2ll_rz(float v) { return trek_shim_convert<long long>(truncf(v)); }
static inline int __double2int_rn(double v) { return trek_shim_convert<int>(rint(v)); }
static inline int __double2int_rz(double v) { return trek_shim_convert<int>(trunc(v)); }
static inline unsigned __double2uint_rz(double v) { return trek_shim_convert<unsigned>(trunc(v)); }
static inline long long __double2ll_rn(double v) { return trek_shim_convert<long long>(rint(v)); }
static inline long long __double2ll_rz(double v) { return trek_shim_convert<long long>(trunc(v)); }
static inline float __double2float_rn(double v) { return (float)v; }
static inline float __int2float_rn(int v) { return (float)v; }
static inline float __uint2float_rn(unsigned v) { return (float)v; }
static inline float __ll2float_rn(long long v) { return (float)v; }
static inline float __ull2float_rn(unsigned long long v) { return (float)v; }
static inline double __int2double_rn(int v) { return (double)v; }
static inline double __uint2double_rn(unsigned v) { return (double)v; }
static inline double __ll2double_rn(long long v) { return (double)v; }
static inline double __ull2double_rn(unsigned long long v) { return (double)v; }

/* min and max of any two numbers, NaN losing in floating point */
template <typename A, typename B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    T x = (T)a, y = (T)b;
    if (x != x)
        return y;
    return y < x ? y : x;
}
template <typename A, typename B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    T x = (T)a, y = (T)b;
    if (x != x)
        return y;
    return x < y ? y : x;
}

#endif

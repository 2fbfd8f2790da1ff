/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic, logic, comparisons. Results are those of the ISA to the bit; approximations are the exact result, rounded. */
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ptx_machine.h"

namespace ptx {

template <typename T> struct Bits;
template <> struct Bits<float> {
    typedef uint32_t type;
};
template <> struct Bits<double> {
    typedef uint64_t type;
};
template <typename T> static inline typename Bits<T>::type to_bits(T x)
{
    typename Bits<T>::type b;
    memcpy(&b, &x, sizeof b);
    return b;
}
template <typename T> static inline T of_bits(typename Bits<T>::type b)
{
    T x;
    memcpy(&x, &b, sizeof x);
    return x;
}
/* NaN that arithmetic of f32 gives has always the same bits. */
static inline float canonical(float x) { return x != x ? of_bits<float>(0x7fffffffu) : x; }
static inline double canonical(double x) { return x; }
template <typename T> static inline T flushed(T x)
{
    return std::fabs(x) < std::numeric_limits<T>::min() ? std::copysign((T)0, x) : x;
}

/* --- functions of one, two and three values --- */

#define LOOP1(name, T, R, ...)                                                 \
    static void name(Warp &w, const Instruction &i, uint32_t mask)             \
    {                                                                          \
        const T *pa = input<T>(w, i, 0);                                       \
        R *pd = output<R>(w, i);                                               \
        each_lane(mask, [&](unsigned l) {                                      \
            T a = pa[l];                                                       \
            pd[l] = (R)(__VA_ARGS__);                                          \
        });                                                                    \
    }

struct Add { template <typename T> static T of(T a, T b) { return (T)(a + b); } };
struct Subtract { template <typename T> static T of(T a, T b) { return (T)(a - b); } };
struct Multiply { template <typename T> static T of(T a, T b) { return (T)(a * b); } };
struct Divide { template <typename T> static T of(T a, T b) { return a / b; } };
struct And { template <typename T> static T of(T a, T b) { return (T)(a & b); } };
struct Or { template <typename T> static T of(T a, T b) { return (T)(a | b); } };
struct Xor { template <typename T> static T of(T a, T b) { return (T)(a ^ b); } };
struct Quotient {
    template <typename T> static T of(T a, T b)
    {
        if (!b)
            return (T)-1;
        if (std::is_signed<T>::value && b == (T)-1)
            return (T)(0 - (typename std::make_unsigned<T>::type)a);
        return (T)(a / b);
    }
};
struct Remainder {
    template <typename T> static T of(T a, T b)
    {
        if (!b)
            return a;
        return std::is_signed<T>::value && b == (T)-1 ? (T)0 : (T)(a % b);
    }
};
/* NaN gives way to a number, -0 is less than +0. */
struct Least {
    template <typename T> static typename std::enable_if<std::is_floating_point<T>::value, T>::type of(T a, T b)
    {
        return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
    }
    template <typename T> static typename std::enable_if<!std::is_floating_point<T>::value,
        T>::type of(T a, T b) { return a < b ? a : b; }
};
struct Greatest {
    template <typename T> static typename std::enable_if<std::is_floating_point<T>::value, T>::type of(T a, T b)
    {
        return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
    }
    template <typename T> static typename std::enable_if<!std::is_floating_point<T>::value,
        T>::type of(T a, T b) { return a > b ? a : b; }
};
template <typename Op> struct OrNaN { /* min.NaN, max.NaN */
    template <typename T> static T of(T a, T b) { return a != a || b != b ? (T)NAN : Op::of(a, b); }
};
struct CopySign { template <typename T> static T of(T a, T b) { return std::copysign(b, a); } };

template <typename T, typename Op> static void integer2(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0), *b = input<T>(w, i, 1);
    T *d = output<T>(w, i);
    each_lane(mask, [&](unsigned l) { d[l] = Op::of(a[l], b[l]); });
}

/* Integers add, subtract and multiply modulo 2^n. */
enum { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };
struct Rounding { /* of what is computed while it lives */
    int before = -1;
    explicit Rounding(unsigned kind)
    {
        if (kind == ROUND_NEAREST)
            return;
        before = fegetround();
        fesetround(kind == ROUND_ZERO ? FE_TOWARDZERO : kind == ROUND_DOWN ? FE_DOWNWARD : FE_UPWARD);
    }
    ~Rounding()
    {
        if (before >= 0)
            fesetround(before);
    }
};
enum : uint8_t { ROUND_MASK = 3, FLUSH = 4, SATURATE = 8 };

template <typename T> static inline T finished(T x, uint8_t kind)
{
    x = canonical(x);
    if (kind & FLUSH)
        x = flushed(x);
    if (kind & SATURATE)
        x = x > 0 ? std::min(x, (T)1) : (T)0;
    return x;
}

template <typename T, typename Op> static void float2(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0), *b = input<T>(w, i, 1);
    T *d = output<T>(w, i);
    if (!i.kind) {
        each_lane(mask, [&](unsigned l) { d[l] = canonical(Op::of(a[l], b[l])); });
        return;
    }
    Rounding rounding(i.kind & ROUND_MASK);
    each_lane(mask, [&](unsigned l) {
        T x = a[l], y = b[l];
        if (i.kind & FLUSH)
            x = flushed(x), y = flushed(y);
        d[l] = finished(Op::of(x, y), i.kind);
    });
}

template <typename T> static void fused(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0), *b = input<T>(w, i, 1), *c = input<T>(w, i, 2);
    T *d = output<T>(w, i);
    Rounding rounding(i.kind & ROUND_MASK);
    each_lane(mask, [&](unsigned l) {
        T x = a[l], y = b[l], z = c[l];
        if (i.kind & FLUSH)
            x = flushed(x), y = flushed(y), z = flushed(z);
        d[l] = finished(std::fma(x, y, z), i.kind);
    });
}

enum Function : uint8_t { EX2, LG2, RCP, RSQRT, SQRT, SIN, COS, TANH };
template <typename T> static T function_of(unsigned which, T x)
{
    double v = (double)x;
    switch (which) {
    case EX2: return (T)std::exp2(v);
    case LG2: return (T)std::log2(v);
    case RCP: return (T)1 / x;
    case RSQRT: return (T)(1 / std::sqrt(v));
    case SQRT: return std::sqrt(x);
    case SIN: return (T)std::sin(v);
    case COS: return (T)std::cos(v);
    default: return (T)std::tanh(v);
    }
}
template <typename T, unsigned which> static void function1(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0);
    T *d = output<T>(w, i);
    Rounding rounding(i.kind & ROUND_MASK);
    each_lane(mask, [&](unsigned l) { d[l] = finished(function_of<T>(which, i.kind & FLUSH ? flushed(a[l]) : a[l]), i.kind); });
}
/* rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: of the upper half of the bits, and only that of the result. */
template <unsigned which> static void rough(Warp &w, const Instruction &i, uint32_t mask)
{
    const double *a = input<double>(w, i, 0);
    double *d = output<double>(w, i);
    each_lane(mask, [&](unsigned l) {
        double x = flushed(of_bits<double>(to_bits(a[l]) & 0xffffffff00000000ull));
        d[l] = of_bits<double>(to_bits(flushed(function_of<double>(which, x))) & 0xffffffff00000000ull);
    });
}

LOOP1(negate_f32, uint32_t, uint32_t, a ^ 0x80000000u)
LOOP1(negate_f64, uint64_t, uint64_t, a ^ 1ull << 63)
LOOP1(absolute_f32, uint32_t, uint32_t, a & 0x7fffffffu)
LOOP1(absolute_f64, uint64_t, uint64_t, a & ~(1ull << 63))
template <typename T> LOOP1(negate, T, T, T(0) - a)
template <typename T> LOOP1(absolute, T, T, (std::make_signed_t<T>)a < 0 ? T(0) - a : a)
template <typename T> LOOP1(inverted, T, T, ~a)
LOOP1(popc32, uint32_t, uint32_t, __builtin_popcount(a))
LOOP1(popc64, uint64_t, uint32_t, __builtin_popcountll(a))
LOOP1(clz32, uint32_t, uint32_t, a ? __builtin_clz(a) : 32)
LOOP1(clz64, uint64_t, uint32_t, a ? __builtin_clzll(a) : 64)
static inline uint64_t reversed(uint64_t a)
{
    a = (a >> 1 & 0x5555555555555555ull) | (a & 0x5555555555555555ull) << 1;
    a = (a >> 2 & 0x3333333333333333ull) | (a & 0x3333333333333333ull) << 2;
    a = (a >> 4 & 0x0f0f0f0f0f0f0f0full) | (a & 0x0f0f0f0f0f0f0f0full) << 4;
    return __builtin_bswap64(a);
}
LOOP1(brev32, uint32_t, uint32_t, reversed(a) >> 32)
LOOP1(brev64, uint64_t, uint64_t, reversed(a))
/* The highest bit that is one (of a negative number: that is zero), from below, or the shift that brings it to the top. */
template <typename T> static void bfind(Warp &w, const Instruction &i, uint32_t mask)
{
    typedef std::make_unsigned_t<T> U;
    const T *a = input<T>(w, i, 0);
    uint32_t *d = output<uint32_t>(w, i);
    const unsigned top = sizeof(T) * 8 - 1;
    each_lane(mask, [&](unsigned l) {
        U x = a[l] < 0 ? (U)~a[l] : (U)a[l];
        uint32_t at = x ? 63u - (uint32_t)__builtin_clzll((unsigned long long)x) : ~0u;
        d[l] = x && i.kind ? top - at : at;
    });
}

/* --- integers --- */

typedef unsigned __int128 wide_unsigned;
typedef __int128 wide_signed;
template <typename T> struct Twice;
template <> struct Twice<int16_t> { typedef int32_t type; };
template <> struct Twice<uint16_t> { typedef uint32_t type; };
template <> struct Twice<int32_t> { typedef int64_t type; };
template <> struct Twice<uint32_t> { typedef uint64_t type; };
template <> struct Twice<int64_t> { typedef wide_signed type; };
template <> struct Twice<uint64_t> { typedef wide_unsigned type; };

enum Part : uint8_t { LOW, HIGH, WIDE };
/* a * b, or a * b + c with the carry in and out */
enum : uint8_t { CARRY_IN = 1, CARRY_OUT = 2, ADDS = 4 };
template <typename T, Part part> static void product(Warp &w, const Instruction &i, uint32_t mask)
{
    typedef typename Twice<T>::type W;
    typedef std::conditional_t<part == WIDE, W, T> R;
    typedef std::conditional_t<(sizeof(R) > 8), T, R> Stored;
    const T *a = input<T>(w, i, 0), *b = input<T>(w, i, 1);
    const Stored *c = i.kind & ADDS ? input<Stored>(w, i, 2) : nullptr;
    Stored *d = output<Stored>(w, i);
    uint32_t carry = w.carry;
    if (!(i.kind & (CARRY_IN | CARRY_OUT))) {
        typedef std::make_unsigned_t<Stored> U; /* sums wrap */
        each_lane(mask, [&](unsigned l) {
            W full = (W)a[l] * (W)b[l];
            U r = part == HIGH ? (U)(full >> (sizeof(T) * 8)) : (U)full;
            d[l] = (Stored)(U)(c ? r + (U)c[l] : r);
        });
        return;
    }
    each_lane(mask, [&](unsigned l) {
        W full = (W)a[l] * (W)b[l];
        wide_unsigned r = part == HIGH ? (std::conditional_t<(sizeof(T) < 8), uint64_t, wide_unsigned>)(full >> (sizeof(T) * 8))
            : (wide_unsigned)full;
        r &= ~(wide_unsigned)0 >> (128 - 8 * sizeof(Stored));
        if (c) {
            r += ((wide_unsigned)c[l] & (~(wide_unsigned)0 >> (128 - 8 * sizeof(Stored)))) +
                 (i.kind & CARRY_IN ? w.carry >> l & 1u : 0u);
            if (i.kind & CARRY_OUT)
                carry = (carry & ~(1u << l)) | (uint32_t)(r >> (8 * sizeof(Stored)) & 1u) << l;
        }
        d[l] = (Stored)r;
    });
    w.carry = carry;
}
template <typename T, bool subtracts> static void carried(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0), *b = input<T>(w, i, 1);
    T *d = output<T>(w, i);
    uint32_t carry = w.carry;
    each_lane(mask, [&](unsigned l) {
        wide_unsigned in = i.kind & CARRY_IN ? w.carry >> l & 1u : 0u;
        wide_unsigned r = subtracts ? (wide_unsigned)a[l] - b[l] - in : (wide_unsigned)a[l] + b[l] + in;
        d[l] = (T)r;
        if (i.kind & CARRY_OUT)
            carry = (carry & ~(1u << l)) | (uint32_t)(r >> (8 * sizeof(T)) & 1u) << l;
    });
    w.carry = carry;
}

template <typename T> static void shift_left(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0);
    const uint32_t *b = input<uint32_t>(w, i, 1);
    T *d = output<T>(w, i);
    each_lane(mask, [&](unsigned l) { d[l] = b[l] >= sizeof(T) * 8 ? (T)0 : (T)(a[l] << b[l]); });
}
template <typename T> static void shift_right(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0);
    const uint32_t *b = input<uint32_t>(w, i, 1);
    T *d = output<T>(w, i);
    const uint32_t top = sizeof(T) * 8 - 1;
    each_lane(mask, [&](unsigned l) { d[l] = b[l] > top ? (T)(std::is_signed<T>::value ? a[l] >> top : 0) : (T)(a[l] >> b[l]); });
}
/* shf: of the 64 bits b:a; kind 1 left, 2 wraps */
static void funnel(Warp &w, const Instruction &i, uint32_t mask)
{
    const uint32_t *a = input<uint32_t>(w, i, 0), *b = input<uint32_t>(w, i, 1), *c = input<uint32_t>(w, i, 2);
    uint32_t *d = output<uint32_t>(w, i);
    each_lane(mask, [&](unsigned l) {
        uint64_t both = (uint64_t)b[l] << 32 | a[l];
        uint32_t n = i.kind & 2 ? c[l] & 31u : std::min(c[l], 32u);
        d[l] = i.kind & 1 ? (uint32_t)(both << n >> 32) : (uint32_t)(both >> n);
    });
}
template <typename T> static void extract(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0);
    const uint32_t *b = input<uint32_t>(w, i, 1), *c = input<uint32_t>(w, i, 2);
    T *d = output<T>(w, i);
    const unsigned width = sizeof(T) * 8;
    each_lane(mask, [&](unsigned l) {
        unsigned at = b[l] & 255u, n = c[l] & 255u, last = std::min(at + n - 1, width - 1);
        bool sign = std::is_signed<T>::value && n && (uint64_t)a[l] >> last & 1u;
        uint64_t r = sign ? ~0ull : 0;
        for (unsigned k = 0; k < n && k < width && at + k < width; k++)
            r = (r & ~(1ull << k)) | ((uint64_t)a[l] >> (at + k) & 1u) << k;
        d[l] = (T)r;
    });
}
template <typename T> static void insert(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0), *b = input<T>(w, i, 1);
    const uint32_t *c = input<uint32_t>(w, i, 2), *n = input<uint32_t>(w, i, 3);
    T *d = output<T>(w, i);
    const unsigned width = sizeof(T) * 8;
    each_lane(mask, [&](unsigned l) {
        unsigned at = c[l] & 255u, bits = n[l] & 255u;
        T field = at >= width || !bits ? (T)0 : (T)((bits >= width ? ~(T)0 : (T)(((T)1 << bits) - 1)) << at);
        d[l] = (T)((b[l] & ~field) | (at < width ? (T)(a[l] << at) & field : 0));
    });
}
static void permute(Warp &w, const Instruction &i, uint32_t mask)
{
    const uint32_t *a = input<uint32_t>(w, i, 0), *b = input<uint32_t>(w, i, 1), *c = input<uint32_t>(w, i, 2);
    uint32_t *d = output<uint32_t>(w, i);
    each_lane(mask, [&](unsigned l) {
        uint64_t both = (uint64_t)b[l] << 32 | a[l];
        uint32_t r = 0;
        for (unsigned k = 0; k < 4; k++) {
            uint32_t choice = c[l] >> 4 * k & 15u, byte = (uint32_t)(both >> 8 * (choice & 7u)) & 255u;
            r |= (choice & 8u ? (byte & 128u ? 255u : 0u) : byte) << 8 * k;
        }
        d[l] = r;
    });
}
static void logic3(Warp &w, const Instruction &i, uint32_t mask)
{
    const uint32_t *a = input<uint32_t>(w, i, 0), *b = input<uint32_t>(w, i, 1), *c = input<uint32_t>(w, i, 2),
        *table = input<uint32_t>(w, i, 3);
    uint32_t *d = output<uint32_t>(w, i);
    each_lane(mask, [&](unsigned l) {
        uint32_t r = 0;
        for (unsigned k = 0; k < 8; k++)
            if (table[l] >> k & 1u)
                r |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
        d[l] = r;
    });
}

/* --- predicates --- */

template <typename Op> static void predicates(Warp &w, const Instruction &i, uint32_t mask)
{
    uint32_t r = Op::of(*input<uint32_t>(w, i, 0), *input<uint32_t>(w, i, 1)), *d = output<uint32_t>(w, i);
    *d = (*d & ~mask) | (r & mask);
}
static void not_predicate(Warp &w, const Instruction &i, uint32_t mask)
{
    uint32_t r = ~*input<uint32_t>(w, i, 0), *d = output<uint32_t>(w, i);
    *d = (*d & ~mask) | (r & mask);
}
static void move_predicate(Warp &w, const Instruction &i, uint32_t mask)
{
    uint32_t r = *input<uint32_t>(w, i, 0), *d = output<uint32_t>(w, i);
    *d = (*d & ~mask) | (r & mask);
}

enum Compare { EQ, NE, LT, LE, GT, GE, NUM, NAN_ };
enum : uint8_t { UNORDERED = 1, WITH_AND = 2, WITH_OR = 4, WITH_XOR = 6, WITH = 6 };
template <typename T, int compare> static void set_predicate(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0), *b = input<T>(w, i, 1);
    uint32_t r = 0;
    for (unsigned l = 0; l < LANES; l++) {
        T x = a[l], y = b[l];
        bool is = compare == EQ ? x == y : compare == NE ? x < y || x > y : compare == LT ? x < y : compare == LE ? x <= y :
            compare == GT ? x > y : compare == GE ? x >= y : compare == NUM ? x == x && y == y : x != x || y != y;
        if (std::is_floating_point<T>::value && (i.kind & UNORDERED))
            is |= x != x || y != y;
        r |= (uint32_t)is << l;
    }
    uint32_t both[2] = { r, ~r };
    for (unsigned k = 0; k < i.outputs; k++) {
        uint32_t *d = output<uint32_t>(w, i, k);
        uint32_t v = both[k], with = i.kind & WITH ? *input<uint32_t>(w, i, 2) : 0;
        unsigned how = i.kind & WITH;
        v = how == WITH_AND ? v & with : how == WITH_OR ? v | with : how == WITH_XOR ? v ^ with : v;
        *d = (*d & ~mask) | (v & mask);
    }
}
template <typename T> static void select(Warp &w, const Instruction &i, uint32_t mask)
{
    const T *a = input<T>(w, i, 0), *b = input<T>(w, i, 1);
    uint32_t p = *input<uint32_t>(w, i, 2);
    T *d = output<T>(w, i);
    each_lane(mask, [&](unsigned l) { d[l] = p >> l & 1u ? a[l] : b[l]; });
}

/* --- moves --- */

template <typename T> LOOP1(move, T, T, a)
/* mov.b64 {a, b}, c and back; and more parts */
static void move_parts(Warp &w, const Instruction &i, uint32_t mask)
{
    each_lane(mask, [&](unsigned l) {
        if (i.outputs > 1) {
            uint64_t bits = bits_of(w, operand(w, i, i.outputs), l);
            for (unsigned k = 0; k < i.outputs; k++) {
                const Operand &o = operand(w, i, k);
                unsigned part = 8u * operand(w, i, i.outputs).width / i.outputs;
                put_bits(w, o, l, bits >> part * k);
            }
            return;
        }
        uint64_t bits = 0;
        unsigned part = 8u * operand(w, i, 0).width / i.inputs;
        for (unsigned k = 0; k < i.inputs; k++)
            bits |= bits_of(w, operand(w, i, 1 + k), l) << part * k;
        put_bits(w, operand(w, i, 0), l, bits);
    });
}
static void move_any(Warp &w, const Instruction &i, uint32_t mask)
{
    if (i.outputs != 1 || i.inputs != 1)
        return move_parts(w, i, mask);
    unsigned width = operand(w, i, 0).width;
    return width == 2 ? move<uint16_t>(w, i, mask) : width == 4 ? move<uint32_t>(w, i, mask) : move<uint64_t>(w, i, mask);
}

/* --- from opcodes --- */

/* The handler for the width and kind of a type: f of an object of it */
#define BY_INTEGER(type, f)                                                                                                      \
    ((type) == "s16"                      ? f<int16_t>                                                                           \
     : (type) == "u16" || (type) == "b16" ? f<uint16_t>                                                                          \
     : (type) == "s32"                    ? f<int32_t>                                                                           \
     : (type) == "u32" || (type) == "b32" ? f<uint32_t>                                                                          \
     : (type) == "s64"                    ? f<int64_t>                                                                           \
     : (type) == "u64" || (type) == "b64" ? f<uint64_t>                                                                          \
                                          : nullptr)
#define BY_UNSIGNED(type, f)                                                                                                     \
    ((type).substr(1) == "16"   ? f<uint16_t>                                                                                    \
     : (type).substr(1) == "32" ? f<uint32_t>                                                                                    \
     : (type).substr(1) == "64" ? f<uint64_t>                                                                                    \
                                : nullptr)

template <typename Op> struct Two {
    template <typename T> static void of(Warp &w, const Instruction &i, uint32_t mask) { integer2<T, Op>(w, i, mask); }
    static Handler any(const std::string &t) { return BY_INTEGER(t, of); }
    static Handler wrapping(const std::string &t) { return BY_UNSIGNED(t, of); }
    static Handler floating(const std::string &t) { return t == "f32" ? float2<float, Op> : t == "f64" ? float2<double,
                                                    Op> : nullptr; }
};
template <Part part> struct Product {
    template <typename T> static void of(Warp &w, const Instruction &i, uint32_t mask) { product<T, part>(w, i, mask); }
    static Handler any(const std::string &t) { return BY_INTEGER(t, of); }
};
template <bool subtracts> struct Carried {
    template <typename T> static void of(Warp &w, const Instruction &i, uint32_t mask) { carried<T, subtracts>(w, i, mask); }
    static Handler any(const std::string &t) { return BY_UNSIGNED(t, of); }
};
template <int compare> struct Comparison {
    template <typename T> static void of(Warp &w, const Instruction &i, uint32_t mask) { set_predicate<T, compare>(w, i, mask); }
    static Handler any(const std::string &t)
    {
        return t == "f32" ? set_predicate<float, compare> : t == "f64" ? set_predicate<double, compare> : BY_INTEGER(t, of);
    }
};

static uint8_t float_kind(const Opcode &o)
{
    uint8_t kind = o.has("rz") ? ROUND_ZERO : o.has("rm") ? ROUND_DOWN : o.has("rp") ? ROUND_UP : ROUND_NEAREST;
    return (uint8_t)(kind | (o.has("ftz") ? FLUSH : 0) | (o.has("sat") ? SATURATE : 0));
}

static bool is_float(const std::string &t) { return t == "f32" || t == "f64"; }

static Handler float_handler(const Opcode &o)
{
    const std::string &b = o.base, &t = o.type();
    bool nan = o.has("NaN");
    if (b == "add") return Two<Add>::floating(t);
    if (b == "sub") return Two<Subtract>::floating(t);
    if (b == "mul") return Two<Multiply>::floating(t);
    if (b == "div") return Two<Divide>::floating(t);
    if (b == "min") return nan ? Two<OrNaN<Least>>::floating(t) : Two<Least>::floating(t);
    if (b == "max") return nan ? Two<OrNaN<Greatest>>::floating(t) : Two<Greatest>::floating(t);
    if (b == "copysign") return Two<CopySign>::floating(t);
    if (b == "fma" || b == "mad") return t == "f32" ? fused<float> : fused<double>;
    if (b == "neg") return t == "f32" ? negate_f32 : negate_f64;
    if (b == "abs") return t == "f32" ? absolute_f32 : absolute_f64;
    if (t == "f64" && o.has("approx")) return b == "rcp" ? rough<RCP> : b == "rsqrt" ? rough<RSQRT> : nullptr;
    if (b == "rcp") return t == "f32" ? function1<float, RCP> : function1<double, RCP>;
    if (b == "sqrt") return t == "f32" ? function1<float, SQRT> : function1<double, SQRT>;
    if (t == "f64") return nullptr;
    return b == "ex2" ? function1<float, EX2> : b == "lg2" ? function1<float, LG2> : b == "rsqrt" ? function1<float, RSQRT> :
        b == "sin" ? function1<float, SIN> : b == "cos" ? function1<float, COS> : b == "tanh" ? function1<float, TANH> : nullptr;
}

static Handler integer_handler(const Opcode &o, Instruction *i)
{
    const std::string &b = o.base, &t = o.type();
    bool adds = b == "mad" || b == "madc";
    if (b == "mul" || adds) {
        i->kind = (uint8_t)((adds ? ADDS : 0) | (b == "madc" ? CARRY_IN : 0) | (o.has("cc") ? CARRY_OUT : 0));
        return o.has("wide") ? Product<WIDE>::any(t) : o.has("hi") ? Product<HIGH>::any(t) : o.has("lo") ? Product<LOW>::any(t)
            : nullptr;
    }
    if (b == "addc" || b == "subc" || ((b == "add" || b == "sub") && o.has("cc"))) {
        i->kind = (uint8_t)((b.size() == 4 ? CARRY_IN : 0) | (o.has("cc") ? CARRY_OUT : 0));
        return b[0] == 'a' ? Carried<false>::any(t) : Carried<true>::any(t);
    }
    if (o.has("sat")) return nullptr;
    if (b == "add") return Two<Add>::wrapping(t);
    if (b == "sub") return Two<Subtract>::wrapping(t);
    if (b == "div") return Two<Quotient>::any(t);
    if (b == "rem") return Two<Remainder>::any(t);
    if (b == "min") return Two<Least>::any(t);
    if (b == "max") return Two<Greatest>::any(t);
    if (b == "neg") return BY_UNSIGNED(t, negate);
    if (b == "abs") return BY_UNSIGNED(t, absolute);
    if (b == "shl") return BY_UNSIGNED(t, shift_left);
    if (b == "shr") return BY_INTEGER(t, shift_right);
    if (b == "bfe") return BY_INTEGER(t, extract);
    if (b == "bfi") return t == "b32" ? insert<uint32_t> : insert<uint64_t>;
    return nullptr;
}

static Handler bits_handler(const Opcode &o, Instruction *i)
{
    const std::string &b = o.base, &t = o.type();
    bool wide = t.substr(1) == "64";
    if (b == "and") return t == "pred" ? predicates<And> : Two<And>::wrapping(t);
    if (b == "or") return t == "pred" ? predicates<Or> : Two<Or>::wrapping(t);
    if (b == "xor") return t == "pred" ? predicates<Xor> : Two<Xor>::wrapping(t);
    if (b == "not") return t == "pred" ? not_predicate : BY_UNSIGNED(t, inverted);
    if (b == "popc") return wide ? popc64 : popc32;
    if (b == "clz") return wide ? clz64 : clz32;
    if (b == "brev") return wide ? brev64 : brev32;
    if (b == "prmt") return o.suffixes.size() == 1 ? permute : nullptr;
    if (b == "lop3") return logic3;
    if (b == "shf") {
        i->kind = (uint8_t)((o.has("l") ? 1 : 0) | (o.has("wrap") ? 2 : 0));
        return funnel;
    }
    if (b == "bfind") {
        i->kind = o.has("shiftamt");
        return t == "u32" ? bfind<uint32_t> : t == "s32" ? bfind<int32_t> : t == "u64" ? bfind<uint64_t> : bfind<int64_t>;
    }
    if (b == "selp") return t[0] == 'f' ? (wide ? select<uint64_t> : select<uint32_t>) : BY_UNSIGNED(t, select);
    return nullptr;
}

static Handler comparison(const Opcode &o, Instruction *i)
{
    const std::string &t = o.type();
    std::string c = o.suffixes[0];
    static const std::map<std::string, std::string> unsigned_names = { { "lo", "lt" }, { "ls", "le" }, { "hi", "gt" },
                                                                       { "hs", "ge" } };
    auto other = unsigned_names.find(c);
    c = other == unsigned_names.end() ? c : other->second;
    if (o.has("ftz"))
        return nullptr;
    i->kind = (uint8_t)((c.size() == 3 && c[2] == 'u' ? UNORDERED : 0) | (o.has("and") ? WITH_AND : o.has("or") ? WITH_OR
                                                                          : o.has("xor") ? WITH_XOR : 0));
    if (c == "nan") return Comparison<NAN_>::any(t);
    if (c == "num") return Comparison<NUM>::any(t);
    c = c.substr(0, 2);
    return c == "eq" ? Comparison<EQ>::any(t) : c == "ne" ? Comparison<NE>::any(t) : c == "lt" ? Comparison<LT>::any(t) :
        c == "le" ? Comparison<LE>::any(t) : c == "gt" ? Comparison<GT>::any(t) : c == "ge" ? Comparison<GE>::any(t) : nullptr;
}

/* What the bits of a result are made of, where some have no value: a result that is not named here then has none. */
static void how_bits_pass(const Opcode &o, Instruction *i)
{
    static const std::map<std::string, uint8_t> shifts = { { "shl", 1 }, { "shr", 1 }, { "bfe", 1 }, { "brev", 1 }, { "shf", 2 },
                                                           { "bfi", 2 }, { "prmt", 2 }, { "selp", 2 } };
    static const std::map<std::string, uint8_t> tables = { { "and", 0xc0 }, { "or", 0xfc }, { "xor", 0x3c }, { "not", 0x0f },
                                                           { "lop3", 1 } }; /* it has its own */
    auto shift = shifts.find(o.base);
    auto table = tables.find(o.base);
    i->shifts = shift == shifts.end() ? 0 : shift->second;
    i->table = table == tables.end() || o.type() == "pred" ? 0 : table->second;
}

bool decode_number(const Opcode &o, Instruction *i)
{
    if (o.suffixes.empty())
        return false;
    const std::string &t = o.type();
    i->moves = true;
    if (o.base == "mov") {
        i->shifts = 255;
        i->handler = t == "pred" ? move_predicate : move_any;
        return true;
    }
    if (o.base == "setp") {
        i->handler = comparison(o, i);
        i->wide_in = (uint8_t)bytes_of(t);
        return i->handler != nullptr;
    }
    i->handler = bits_handler(o, i);
    how_bits_pass(o, i);
    if (!i->handler && is_float(t)) {
        i->handler = float_handler(o);
        i->kind = float_kind(o);
        i->flops = o.base == "fma" ? 2 : o.base == "neg" || o.base == "abs" || o.base == "copysign" ? 0 : 1;
    } else if (!i->handler && strchr("bsu", t[0]) && isdigit((unsigned char)t[1])) {
        i->handler = integer_handler(o, i);
    }
    if (!i->handler)
        return false;
    bool counts = o.base == "popc" || o.base == "clz" || o.base == "bfind";
    i->wide_in = (uint8_t)bytes_of(t);
    i->wide_out = (uint8_t)(counts ? 4 : o.has("wide") ? 2 * bytes_of(t) : bytes_of(t));
    return true;
}

} // namespace ptx

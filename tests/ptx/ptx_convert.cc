/* SPDX-License-Identifier: Apache-2.0 */
/* cvt: between all types of numbers, with the roundings and limits of the ISA. */
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "ptx_machine.h"

namespace ptx {

enum Format : uint8_t { INT_S, INT_U, F16, BF16, F32, F64 };
struct Shape {
    Format format;
    uint8_t bytes;
};
enum Way : uint8_t { RN, RZ, RM, RP, RNI, RZI, RMI, RPI };

static Shape shape_of(const std::string &type)
{
    uint8_t bytes = (uint8_t)bytes_of(type);
    if (type[0] == 's' || type[0] == 'u' || type[1] == '8' || (type[0] == 'b' && type != "bf16"))
        return { type[0] == 's' ? INT_S : INT_U, bytes };
    return { type == "f16" ? F16 : type == "bf16" ? BF16 : type == "f32" ? F32 : F64, bytes };
}

/* x in a format of `digits` binary digits whose least exponent is `least`, its bits: 0 sign, exponent, fraction. */
static uint16_t narrow(double x, int digits, int least, int most, Way way)
{
    uint16_t sign = std::signbit(x) ? 0x8000u : 0, infinite = (uint16_t)((most - least + 2) << (digits - 1));
    if (x != x)
        return 0x7fff;
    double size = std::fabs(x);
    if (std::isinf(size))
        return sign | infinite;
    int exponent = size == 0 ? least : std::max(std::ilogb(size), least);
    double steps = std::ldexp(size, digits - 1 - exponent);                /* exact */
    bool up = way == RP || way == RM ? (way == RP) != (sign != 0) : false; /* away from zero */
    double whole = way == RN ? std::nearbyint(steps) : up ? std::ceil(steps) : std::floor(steps);
    uint32_t fraction = (uint32_t)whole; /* a full one carries into the exponent */
    uint32_t bits = ((uint32_t)(exponent - least) << (digits - 1)) + fraction;
    if (bits >= infinite)
        bits = way == RN || up ? infinite : infinite - 1u;
    return (uint16_t)(sign | bits);
}
static uint16_t to_f16(double x, Way way) { return narrow(x, 11, -14, 15, way); }
static uint16_t to_bf16(double x, Way way) { return narrow(x, 8, -126, 127, way); }
static double f16_value(uint16_t b)
{
    int exponent = b >> 10 & 31;
    double fraction = b & 1023;
    double size = exponent == 31 ? (fraction != 0 ? NAN : INFINITY) : exponent ? std::ldexp(fraction + 1024, exponent - 25)
        : std::ldexp(fraction, -24);
    return b >> 15 ? -size : size;
}
float f32_of_f16(uint16_t bits)
{
    static const std::vector<float> *const all = [] {
        auto *values = new std::vector<float>(65536);
        for (unsigned b = 0; b < 65536; b++)
            (*values)[b] = (float)f16_value((uint16_t)b);
        return values;
    }();
    return (*all)[bits];
}
static float of_bf16(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static double number_of(uint64_t bits, Format format)
{
    float f;
    double d;
    uint32_t half = (uint32_t)bits;
    switch (format) {
    case F16: return f32_of_f16((uint16_t)bits);
    case BF16: return of_bf16((uint16_t)bits);
    case F32: memcpy(&f, &half, 4); return f;
    default: memcpy(&d, &bits, 8); return d;
    }
}
static uint64_t bits_of_f32(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    return x != x ? 0x7fffffffu : b;
}
static uint64_t float_bits(double x, Format format, Way way)
{
    uint64_t bits;
    switch (format) {
    case F16: return to_f16(x, way);
    case BF16: return to_bf16(x, way);
    case F32: return bits_of_f32((float)x);
    default: memcpy(&bits, &x, 8); return bits;
    }
}
static double whole(double x, Way way)
{
    return way == RZI ? std::trunc(x) : way == RMI ? std::floor(x) : way == RPI ? std::ceil(x) : std::nearbyint(x);
}

/* Values outside what the integer holds become its ends; NaN zero, or between 64 bits the highest bit. */
static uint64_t integer_bits(double x, Shape to, bool wide)
{
    unsigned bits = to.bytes * 8u;
    if (x != x)
        return wide ? 1ull << (bits - 1) : 0;
    double top = std::ldexp(1.0, (int)bits - (to.format == INT_S ? 1 : 0)), bottom = to.format == INT_S ? -top : 0;
    uint64_t most = to.format == INT_S ? (1ull << (bits - 1)) - 1 : ~0ull >> (64 - bits);
    if (x >= top)
        return most;
    if (x <= bottom)
        return to.format == INT_S ? 1ull << (bits - 1) : 0;
    return x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x;
}

static uint64_t extended(uint64_t bits, Shape s)
{
    unsigned shift = 64u - s.bytes * 8u;
    return s.format == INT_S ? (uint64_t)((int64_t)(bits << shift) >> shift) : bits << shift >> shift;
}
static uint64_t limited(uint64_t x, Shape from, Shape to)
{
    unsigned bits = to.bytes * 8u;
    bool negative = from.format == INT_S && (int64_t)x < 0;
    uint64_t most = to.format == INT_S ? (1ull << (bits - 1)) - 1 : ~0ull >> (64 - bits);
    if (!negative)
        return std::min(x, most);
    int64_t least = to.format == INT_S ? -(int64_t)most - 1 : 0;
    return (uint64_t)std::max((int64_t)x, least);
}

/* kind: an index into what the program's conversions are */
struct Conversion {
    Shape from, to;
    Way way;
    bool flush, saturate, rounds_whole;
};
static Conversion unpacked(const Instruction &i)
{
    Conversion c = {};
    uint32_t k = i.call;
    c.from = { (Format)(k & 7), (uint8_t)(k >> 3 & 15) };
    c.to = { (Format)(k >> 7 & 7), (uint8_t)(k >> 10 & 15) };
    c.way = (Way)(k >> 14 & 7);
    c.flush = k >> 17 & 1;
    c.saturate = k >> 18 & 1;
    return c;
}

static uint64_t converted(uint64_t bits, const Conversion &c)
{
    bool from_integer = c.from.format <= INT_U, to_integer = c.to.format <= INT_U;
    if (from_integer) {
        uint64_t x = extended(bits, c.from);
        if (to_integer)
            return c.saturate ? limited(x, c.from, c.to) : x;
        if (c.to.format == F32)
            return bits_of_f32(c.from.format == INT_S ? (float)(int64_t)x : (float)x);
        return float_bits(c.from.format == INT_S ? (double)(int64_t)x : (double)x, c.to.format, c.way);
    }
    double x = number_of(bits, c.from.format);
    if (c.flush && c.from.format == F32 && std::fabs(x) < std::numeric_limits<float>::min())
        x = std::copysign(0.0, x);
    if (c.way >= RNI)
        x = whole(x, c.way);
    if (to_integer)
        return integer_bits(x, c.to, c.from.bytes == 8 || c.to.bytes == 8);
    if (c.saturate)
        x = x > 0 ? std::min(x, 1.0) : 0;
    uint64_t r = float_bits(x, c.to.format, c.way);
    if (c.flush && c.to.format == F32 && !(r & 0x7f800000u))
        r &= 0x80000000u;
    return r;
}

template <typename D, typename S> static bool plainly(Warp &w, const Instruction &i, uint32_t mask)
{
    if (operand(w, i, 0).width != sizeof(D) || operand(w, i, 1).width != sizeof(S))
        return false;
    const S *a = input<S>(w, i, 0);
    D *d = output<D>(w, i);
    each_lane(mask, [&](unsigned l) { d[l] = (D)a[l]; });
    return true;
}

struct With { /* the rounding of f32 and f64 while it lives */
    int before = fegetround();
    explicit With(Way way)
    {
        if (way == RZ || way == RM || way == RP)
            fesetround(way == RZ ? FE_TOWARDZERO : way == RM ? FE_DOWNWARD : FE_UPWARD);
    }
    ~With() { fesetround(before); }
};

static void convert(Warp &w, const Instruction &i, uint32_t mask)
{
    Conversion c = unpacked(i);
    const Operand &to = operand(w, i, 0), &from = operand(w, i, 1);
    With rounding(c.to.format >= F32 ? c.way : RN);
    each_lane(mask, [&](unsigned l) { put_bits(w, to, l, converted(bits_of(w, from, l), c)); });
}
/* What is converted most */
template <typename D, typename S> static void quick(Warp &w, const Instruction &i, uint32_t mask)
{
    if (!plainly<D, S>(w, i, mask))
        convert(w, i, mask);
}
/* d = { a, b }: a above */
static void convert_pair(Warp &w, const Instruction &i, uint32_t mask)
{
    const float *a = input<float>(w, i, 0), *b = input<float>(w, i, 1);
    uint32_t *d = output<uint32_t>(w, i);
    Conversion c = unpacked(i);
    bool relu = i.kind;
    each_lane(mask, [&](unsigned l) {
        float x = relu && a[l] < 0 ? 0 : a[l], y = relu && b[l] < 0 ? 0 : b[l];
        d[l] = (uint32_t)(float_bits(x, c.to.format, c.way) << 16 | float_bits(y, c.to.format, c.way));
    });
}

static uint64_t window_of(Space space)
{
    switch (space) {
    case SHARED: return SHARED_WINDOW;
    case LOCAL: return LOCAL_WINDOW;
    case PARAM: return PARAM_WINDOW;
    default: return 0;
    }
}
/* cvta: to a generic address, and back */
static void to_space(Warp &w, const Instruction &i, uint32_t mask)
{
    const uint64_t window = window_of(i.space);
    const uint64_t *a = input<uint64_t>(w, i, 0);
    uint64_t *d = output<uint64_t>(w, i);
    each_lane(mask, [&](unsigned l) {
        bool is = (a[l] & WINDOW_MASK) == window;
        if (i.kind && !is) {
            w.machine->lane = l;
            w.machine->fail("a generic address of another space");
        }
        d[l] = i.kind ? a[l] & ~window : a[l] | window;
    });
}
static void is_space(Warp &w, const Instruction &i, uint32_t mask)
{
    const uint64_t window = window_of(i.space);
    const uint64_t *a = input<uint64_t>(w, i, 0);
    each_lane(mask, [&](unsigned l) { put_bits(w, operand(w, i, 0), l, (a[l] & WINDOW_MASK) == window); });
}

static Space space_of(const Opcode &o)
{
    return o.has("shared") || o.has("shared::cta") ? SHARED : o.has("local") ? LOCAL : o.has("param") ? PARAM : GLOBAL;
}

bool decode_convert(const Opcode &o, Instruction *i)
{
    i->moves = true;
    if (o.base == "cvta" || o.base == "isspacep") {
        i->handler = o.base == "cvta" ? to_space : is_space;
        i->space = space_of(o);
        i->kind = o.has("to");
        i->wide_in = 8;
        i->wide_out = o.base == "cvta" ? 8 : 0;
        return true;
    }
    if (o.base != "cvt" || o.suffixes.size() < 2 || o.has("pack"))
        return false;
    std::string to = o.type2(), from = o.type();
    bool pair = to == "f16x2" || to == "bf16x2";
    static const char *ways[] = { "rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi" };
    unsigned way = RN;
    for (unsigned k = 0; k < 8; k++)
        way = o.has(ways[k]) ? k : way;
    Shape s = shape_of(from), d = shape_of(pair ? to.substr(0, to.size() - 2) : to);
    i->call = s.format | (uint32_t)s.bytes << 3 | (uint32_t)d.format << 7 | (uint32_t)d.bytes << 10 | way << 14 |
              (uint32_t)o.has("ftz") << 17 | (uint32_t)o.has("sat") << 18;
    i->kind = pair && o.has("relu");
    i->pairs = pair;
    i->reads = pair ? 0 : s.bytes;
    i->shifts = s.format <= INT_U && d.format <= INT_U && !o.has("sat");
    i->handler = pair ? convert_pair : convert;
    if (pair && from != "f32")
        return false;
    if (o.suffixes.size() == 2) {
        std::string key = to + "." + from;
        i->handler = key == "u32.u64" ? quick<uint32_t, uint64_t> : key == "u64.u32" ? quick<uint64_t,
            uint32_t> : key == "s64.s32" ? quick<int64_t, int32_t> :
            key == "u32.u16" ? quick<uint32_t, uint16_t> : key == "u16.u32" ? quick<uint16_t, uint32_t> : convert;
    }
    return true;
}

} // namespace ptx

/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of the types that the fake libraries compute with, by way of double. */
#ifndef TREK_FAKE_NUMBER_H
#define TREK_FAKE_NUMBER_H

#include <cmath>
#include <cstdint>
#include <cstring>

namespace fake {

inline float bits_to_float(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

inline uint32_t float_to_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

inline float bf16_to_float(uint16_t h) { return bits_to_float((uint32_t)h << 16); }

inline uint16_t float_to_bf16(float v)
{
    uint32_t bits = float_to_bits(v);
    if (v != v)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float f16_to_float(uint16_t h)
{
    float sign = h & 0x8000u ? -1.0f : 1.0f, fraction = (float)(h & 0x3ffu);
    int exponent = h >> 10 & 31;
    if (exponent == 31)
        return fraction != 0 ? NAN : sign * INFINITY;
    return sign * (exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

/* To the nearest, ties to even: scale so that one unit is the last place, round, scale back. */
inline uint16_t float_to_f16(float v)
{
    uint16_t sign = std::signbit(v) ? 0x8000u : 0;
    float magnitude = std::fabs(v);
    if (v != v)
        return 0x7e00u;
    if (magnitude >= 65520.0f)
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 6.103515625e-05f) /* subnormal: units of 2^-24; 1024 of them are the least normal number */
        return (uint16_t)(sign | (uint16_t)std::nearbyint(std::ldexp(magnitude, 24)));
    int exponent;
    std::frexp(magnitude, &exponent); /* magnitude = f * 2^exponent, f in [0.5, 1) */
    unsigned units = (unsigned)std::nearbyint(std::ldexp(magnitude, 11 - exponent)); /* 1024 .. 2048 */
    return (uint16_t)(sign | ((unsigned)(exponent + 14 - 1) * 1024u + units));
}

/* The 10 bits of fraction that TF32 keeps. */
inline float round_tf32(float v)
{
    uint32_t bits = float_to_bits(v);
    if (std::isnan(v) || std::isinf(v))
        return v;
    return bits_to_float((bits + 0x1000u) & ~0x1fffu);
}

} // namespace fake

#endif

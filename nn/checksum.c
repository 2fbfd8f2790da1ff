/* SPDX-License-Identifier: Apache-2.0 */
/* XXH64. Words are read as little-endian on every machine. */
#include "nn/checksum.h"

#include <string.h>

#define PRIME1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME3 UINT64_C(0x165667B19E3779F9)
#define PRIME4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME5 UINT64_C(0x27D4EB2F165667C5)
#define STRIPE 32

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

/* Compilers turn this into a single load. */
static uint64_t word64(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 |
           (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

static uint64_t word32(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static uint64_t mix(uint64_t lane, uint64_t word) { return rotate(lane + word * PRIME2, 31) * PRIME1; }

void trek_checksum_begin(trek_checksum *sum)
{
    *sum = (trek_checksum){ .lanes = { PRIME1 + PRIME2, PRIME2, 0, 0 - PRIME1 } };
}

static void add_stripes(trek_checksum *sum, const unsigned char *p, size_t stripes)
{
    uint64_t a = sum->lanes[0], b = sum->lanes[1], c = sum->lanes[2], d = sum->lanes[3];
    for (; stripes > 0; stripes--, p += STRIPE) {
        a = mix(a, word64(p));
        b = mix(b, word64(p + 8));
        c = mix(c, word64(p + 16));
        d = mix(d, word64(p + 24));
    }
    sum->lanes[0] = a;
    sum->lanes[1] = b;
    sum->lanes[2] = c;
    sum->lanes[3] = d;
}

void trek_checksum_add(trek_checksum *sum, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    size_t held = sum->length % STRIPE;
    if (bytes == 0)
        return;
    sum->length += bytes;
    if (held > 0) {
        size_t part = bytes < STRIPE - held ? bytes : STRIPE - held;
        memcpy(sum->rest + held, p, part);
        if (held + part < STRIPE)
            return;
        add_stripes(sum, sum->rest, 1);
        p += part;
        bytes -= part;
    }
    add_stripes(sum, p, bytes / STRIPE);
    memcpy(sum->rest, p + bytes / STRIPE * STRIPE, bytes % STRIPE);
}

static uint64_t join_lanes(const uint64_t *lanes)
{
    uint64_t hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
    for (int k = 0; k < 4; k++)
        hash = (hash ^ mix(0, lanes[k])) * PRIME1 + PRIME4;
    return hash;
}

uint64_t trek_checksum_end(const trek_checksum *sum)
{
    const unsigned char *p = sum->rest;
    size_t left = sum->length % STRIPE;
    uint64_t hash = (sum->length >= STRIPE ? join_lanes(sum->lanes) : PRIME5) + sum->length;
    for (; left >= 8; left -= 8, p += 8)
        hash = rotate(hash ^ mix(0, word64(p)), 27) * PRIME1 + PRIME4;
    for (; left >= 4; left -= 4, p += 4)
        hash = rotate(hash ^ word32(p) * PRIME1, 23) * PRIME2 + PRIME3;
    for (; left > 0; left--, p++)
        hash = rotate(hash ^ *p * PRIME5, 11) * PRIME1;
    hash = (hash ^ hash >> 33) * PRIME2;
    hash = (hash ^ hash >> 29) * PRIME3;
    return hash ^ hash >> 32;
}

uint64_t trek_checksum_of(const void *data, size_t bytes)
{
    trek_checksum sum;
    trek_checksum_begin(&sum);
    trek_checksum_add(&sum, data, bytes);
    return trek_checksum_end(&sum);
}

void trek_checksum_write(uint64_t value, char *digits)
{
    for (int k = 0; k < TREK_CHECKSUM_DIGITS; k++)
        digits[k] = "0123456789abcdef"[value >> (60 - 4 * k) & 15];
}

bool trek_checksum_read(const char *digits, uint64_t *value)
{
    *value = 0;
    for (int k = 0; k < TREK_CHECKSUM_DIGITS; k++) {
        char c = digits[k];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        *value = *value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return true;
}

bool trek_checksum_holds(uint64_t found, uint64_t noted)
{
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    (void)found;
    (void)noted;
    return true;
#else
    return found == noted;
#endif
}

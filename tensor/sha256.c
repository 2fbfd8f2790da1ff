/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 of FIPS 180-4, and HMAC of RFC 2104. */
#include "tensor/sha256.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int by) { return x >> by | x << (32 - by); }

/* The eight words stay in place, and their names rotate. */
#define ROUND(a, b, c, d, e, f, g, h, t)                                                                                         \
    do {                                                                                                                         \
        uint32_t first = (h) + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (((e) & (f)) ^ (~(e) & (g))) +                   \
            round_constants[t] + w[t];                                                                                           \
        (d) += first;                                                                                                            \
        (h) = first + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + (((a) & (b)) ^ ((a) & (c)) ^ ((b) & (c)));                \
    } while (0)

static void hash_block_portable(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++, block += 4)
        w[t] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
    for (int t = 16; t < 64; t++) {
        uint32_t low = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t high = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + low + w[t - 7] + high;
    }
    memcpy(v, state, sizeof v);
    for (int t = 0; t < 64; t += 8) {
        ROUND(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], t);
        ROUND(v[7], v[0], v[1], v[2], v[3], v[4], v[5], v[6], t + 1);
        ROUND(v[6], v[7], v[0], v[1], v[2], v[3], v[4], v[5], t + 2);
        ROUND(v[5], v[6], v[7], v[0], v[1], v[2], v[3], v[4], t + 3);
        ROUND(v[4], v[5], v[6], v[7], v[0], v[1], v[2], v[3], t + 4);
        ROUND(v[3], v[4], v[5], v[6], v[7], v[0], v[1], v[2], t + 5);
        ROUND(v[2], v[3], v[4], v[5], v[6], v[7], v[0], v[1], t + 6);
        ROUND(v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[0], t + 7);
    }
    for (int k = 0; k < 8; k++)
        state[k] += v[k];
}

#if defined(__x86_64__)
/* Uses the processor's instructions for it, four words of the message at a time; the state is stored as a, b, e, f
 * and c, d, g, h. */
__attribute__((target("sha,sse4.1"))) static void hash_block_x86(uint32_t state[8], const unsigned char *block)
{
    const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    __m128i w[4], low = _mm_loadu_si128((const __m128i *)(const void *)state);
    __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(state + 4));
    low = _mm_shuffle_epi32(low, 0xb1);
    high = _mm_shuffle_epi32(high, 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    const __m128i abef_before = abef, cdgh_before = cdgh;
    for (int t = 0; t < 16; t++) {
        __m128i *now = &w[t % 4];
        if (t < 4)
            *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(block + 16 * t)), swap);
        else
            *now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(t + 1) % 4]),
                                                      _mm_alignr_epi8(w[(t + 3) % 4], w[(t + 2) % 4], 4)),
                                        w[(t + 3) % 4]);
        __m128i sum = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)(const void *)(round_constants + 4 * t)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    low = _mm_shuffle_epi32(_mm_add_epi32(abef, abef_before), 0x1b);
    high = _mm_shuffle_epi32(_mm_add_epi32(cdgh, cdgh_before), 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(high, low, 8));
}

static bool has_instructions(void)
{
    unsigned a, b = 0, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}
#else
static void hash_block_x86(uint32_t state[8], const unsigned char *block) { hash_block_portable(state, block); }
static bool has_instructions(void) { return false; }
#endif

enum { UNKNOWN, PORTABLE, INSTRUCTIONS };
static atomic_int way; /* querying the processor takes longer than a block does */

void trek_sha256_set_portable(bool portable) { atomic_store(&way, portable ? PORTABLE : UNKNOWN); }

static void hash_block(uint32_t state[8], const unsigned char *block)
{
    int known = atomic_load_explicit(&way, memory_order_relaxed);
    if (known == UNKNOWN)
        atomic_store(&way, known = has_instructions() ? INSTRUCTIONS : PORTABLE);
    if (known == INSTRUCTIONS)
        hash_block_x86(state, block);
    else
        hash_block_portable(state, block);
}

void trek_sha256_begin(trek_sha256_state *state)
{
    /* First 32 bits of the fractional parts of the square roots of the first 8 primes. */
    static const uint32_t first[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memcpy(state->words, first, sizeof first);
    state->bytes = 0;
}

void trek_sha256_add(trek_sha256_state *state, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    size_t used = state->bytes % 64;
    state->bytes += bytes;
    if (used) {
        size_t some = bytes < 64 - used ? bytes : 64 - used;
        if (some)
            memcpy(state->block + used, at, some);
        if (used + some < 64)
            return;
        hash_block(state->words, state->block);
        at += some;
        bytes -= some;
    }
    for (; bytes >= 64; bytes -= 64, at += 64)
        hash_block(state->words, at);
    if (bytes)
        memcpy(state->block, at, bytes);
}

void trek_sha256_end(trek_sha256_state *state, unsigned char digest[32])
{
    unsigned char last[72] = { 0x80 };
    uint64_t bits = state->bytes * 8;
    size_t zeros = (119 - state->bytes % 64) % 64 + 1; /* the mark and zeros, up to 56 bytes in a block */
    for (int k = 0; k < 8; k++)
        last[zeros + 7 - (size_t)k] = (unsigned char)(bits >> (8 * k));
    trek_sha256_add(state, last, zeros + 8);
    for (int k = 0; k < 32; k++)
        digest[k] = (unsigned char)(state->words[k / 4] >> (24 - 8 * (k % 4)));
}

void trek_sha256(const void *data, size_t bytes, unsigned char digest[32])
{
    trek_sha256_state state;
    trek_sha256_begin(&state);
    trek_sha256_add(&state, data, bytes);
    trek_sha256_end(&state, digest);
}

/* --- HMAC --------------------------------------------------------------------------------------------------------- */

static void begin_by(trek_sha256_state *state, const unsigned char block[64], unsigned char with)
{
    unsigned char mixed[64];
    for (int k = 0; k < 64; k++)
        mixed[k] = block[k] ^ with;
    trek_sha256_begin(state);
    trek_sha256_add(state, mixed, sizeof mixed);
}

void trek_hmac_key_of(const void *secret, size_t bytes, trek_hmac_key *key)
{
    unsigned char block[64] = { 0 };
    trek_sha256_state state;
    if (bytes > sizeof block)
        trek_sha256(secret, bytes, block);
    else if (bytes)
        memcpy(block, secret, bytes);
    begin_by(&state, block, 0x36);
    memcpy(key->inner, state.words, sizeof key->inner);
    begin_by(&state, block, 0x5c);
    memcpy(key->outer, state.words, sizeof key->outer);
}

void trek_hmac_begin(trek_sha256_state *state, const trek_hmac_key *key)
{
    memcpy(state->words, key->inner, sizeof key->inner);
    state->bytes = 64;
}

void trek_hmac_end(trek_sha256_state *state, const trek_hmac_key *key, unsigned char digest[32])
{
    unsigned char inner[32];
    trek_sha256_end(state, inner);
    memcpy(state->words, key->outer, sizeof key->outer);
    state->bytes = 64;
    trek_sha256_add(state, inner, sizeof inner);
    trek_sha256_end(state, digest);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Converts an optimizer's state in bf16 and in u8 to f32 and back (tensor/state_round.h, state_code.h). Nothing here
 * allocates or fails. */
#include "tensor/cpu/moves/philox.h"
#include "tensor/cpu/row_math.h"
#include "tensor/state_code.h"
#include "tensor/state_round.h"

/* --- u8 ------------------------------------------------------------------------------ */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Decodes one block of `n` elements; wide is a constant in every use. Vectors have 32 bits: codes are widened before,
 * and narrowed to bytes after. */
ALWAYS_INLINE void decode(float *restrict to, const uint8_t *restrict from, float scale, int n, int wide)
{
    int32_t codes[TREK_CODE_BLOCK];
    for (int i = 0; i < n; i++)
        codes[i] = from[i];
    for (int i = 0; i < n; i++)
        to[i] = trek_code_number(codes[i], wide) * scale;
}

ALWAYS_INLINE void encode(uint8_t *restrict to, float *restrict scale, const float *restrict from, int n, int wide)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        uint32_t key = trek_code_key(wide && from[i] < 0 ? 0 : from[i]);
        most = key > most ? key : most;
    }
    *scale = trek_code_scale(most);
    float inverse = trek_code_inverse(*scale);
    int32_t codes[TREK_CODE_BLOCK];
    for (int i = 0; i < n; i++)
        codes[i] = trek_code_of(from[i] * inverse, wide);
    for (int i = 0; i < n; i++)
        to[i] = (uint8_t)codes[i];
}

static void decode_signed(float *to, const uint8_t *from, float scale, int n) { decode(to, from, scale, n, TREK_CODE_SIGNED); }
static void decode_positive(float *to, const uint8_t *from, float scale, int n)
{
    decode(to, from, scale, n, TREK_CODE_POSITIVE);
}
static void encode_signed(uint8_t *to, float *scale, const float *from, int n) { encode(to, scale, from, n, TREK_CODE_SIGNED); }
static void encode_positive(uint8_t *to, float *scale, const float *from, int n)
{
    encode(to, scale, from, n, TREK_CODE_POSITIVE);
}

static int block_at(int64_t at, int64_t n) { return n - at < TREK_CODE_BLOCK ? (int)(n - at) : TREK_CODE_BLOCK; }

static void read_codes(const trek_update_slice *s, int k, int64_t begin, int64_t n, float *row)
{
    const uint8_t *codes = (const uint8_t *)s->state[k] + begin;
    const float *scales = s->scale[k] + begin / TREK_CODE_BLOCK;
    for (int64_t at = 0; at < n; at += TREK_CODE_BLOCK)
        (s->positive >> k & 1 ? decode_positive : decode_signed)(row + at, codes + at, *scales++, block_at(at, n));
}

static void write_codes(const trek_update_slice *s, int k, int64_t begin, int64_t n, const float *row)
{
    uint8_t *codes = (uint8_t *)s->state[k] + begin;
    float *scales = s->scale[k] + begin / TREK_CODE_BLOCK;
    for (int64_t at = 0; at < n; at += TREK_CODE_BLOCK)
        (s->positive >> k & 1 ? encode_positive : encode_signed)(codes + at, scales++, row + at, block_at(at, n));
}

/* --- bf16 ---------------------------------------------------------------------------- */

static void read_states(const trek_update_slice *s, int64_t begin, int64_t n, float *rows)
{
    for (int k = 0; k < TREK_UPDATE_STATES; k++)
        if (s->state[k] && s->state_dtype == TREK_U8)
            read_codes(s, k, begin, n, rows + k * TREK_STATE_BLOCK);
        else if (s->state[k])
            trek_f32_from_bf16_row(rows + k * TREK_STATE_BLOCK, (const uint16_t *)s->state[k] + begin, n);
}

static void round_row(uint16_t *restrict to, const float *restrict from, const uint32_t *restrict words, int shift, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = trek_state_round(trek_bits_f32(from[i]), words[i] >> shift);
}

static void round_states(const trek_update_slice *s, int64_t begin, int64_t n, const float *rows)
{
    uint32_t words[TREK_STATE_BLOCK + 8 + 4 * TREK_PHILOX_LANES];
    int64_t place = s->first + begin, first = place / 4;
    int blocks = (int)((place + n - 1) / 4 - first) + 1, drawn = -1;
    for (int k = 0; k < TREK_UPDATE_STATES; k++) {
        if (!s->state[k])
            continue;
        trek_draw draw = { TREK_STATE_SEED, (uint32_t)s->step, (uint32_t)k / 2, 0 };
        if (drawn != k / 2)
            trek_philox_blocks(&draw, (uint64_t)first, blocks, words);
        drawn = k / 2;
        round_row((uint16_t *)s->state[k] + begin, rows + k * TREK_STATE_BLOCK, words + place % 4, k % 2 * 16, n);
    }
}

static void write_states(const trek_update_slice *s, int64_t begin, int64_t n, const float *rows)
{
    if (s->state_dtype != TREK_U8)
        round_states(s, begin, n, rows);
    for (int k = 0; k < TREK_UPDATE_STATES && s->state_dtype == TREK_U8; k++)
        if (s->state[k])
            write_codes(s, k, begin, n, rows + k * TREK_STATE_BLOCK);
}

void TREK_ISA_NAME(trek_cpu_register_state)(trek_backend *b)
{
    b->read_states = read_states;
    b->write_states = write_states;
}

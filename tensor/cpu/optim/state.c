/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's bf16 state in f32, and back (tensor/state_round.h). Nothing here allocates or fails. */
#include "tensor/cpu/moves/philox.h"
#include "tensor/cpu/row_math.h"
#include "tensor/state_round.h"

static void read_states(const trek_update_slice *s, int64_t begin, int64_t n, float *rows)
{
    for (int k = 0; k < TREK_UPDATE_STATES; k++)
        if (s->state[k])
            trek_f32_from_bf16_row(rows + k * TREK_STATE_BLOCK, (const uint16_t *)s->state[k] + begin, n);
}

static void round_row(uint16_t *restrict to, const float *restrict from, const uint32_t *restrict words, int shift, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = trek_state_round(trek_bits_f32(from[i]), words[i] >> shift);
}

static void write_states(const trek_update_slice *s, int64_t begin, int64_t n, const float *rows)
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

void TREK_ISA_NAME(trek_cpu_register_state)(trek_backend *b)
{
    b->read_states = read_states;
    b->write_states = write_states;
}

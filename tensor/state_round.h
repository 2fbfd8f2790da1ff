/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state in bf16. Updates are computed in f32, and the state is rounded up or down at random, with
 * probabilities that follow from the distances to both neighbours. A moving average changes by a thousandth of itself
 * in a step, which is less than half of bf16's spacing: rounded to the nearest it would never change.
 *
 * The random numbers are Philox's (tensor/random_internal.h) and depend only on how many updates the element has had
 * and on its position in the arena. So slices, threads, ranks, devices and a resumed run give the same bits. The key
 * is fixed, so that a resumed run continues in the same way whatever the program's seed is. Position p has word p % 4
 * of block p / 4: of draw 0, whose low half is for state 0 and whose high half is for state 1, and of draw 1 for
 * state 2. It is plain C that C++ and nvcc accept. */
#ifndef TREK_TENSOR_STATE_ROUND_H
#define TREK_TENSOR_STATE_ROUND_H

#include "tensor/update.h"

#define TREK_STATE_SEED 0x6f7074696d737461u
#define TREK_STATE_BLOCK 512 /* elements that are in f32 at a time on CPUs; whole blocks of states in u8 */

/* Returns the upper half of x's bits, or the next one; the fraction that is lost is the probability of the next one.
 * `chance` has 16 bits, in the low half. Numbers of bf16, inf and NaN do not change. */
TREK_ON_BOTH uint16_t trek_state_round(uint32_t bits, uint32_t chance)
{
    uint32_t rounded = (bits + (chance & 0xffffu)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

#endif

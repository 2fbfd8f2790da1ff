/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state in bf16: updates are made in f32, and what is kept is rounded up or down by chance, each as likely as
 * the other's neighbour is near. A moving average moves by a thousandth of itself in a step, less than half of bf16's
 * distances: rounded to the nearest it would stand still for ever.
 *
 * The chance is Philox's (tensor/random_internal.h), a function of how many updates the element has had and of its place in
 * the arena alone: slices, threads, ranks, devices and a resumed run give the same bits. The key is fixed, so that a run goes
 * on as it was whatever the program's seed then is. Place p has word p % 4 of block p / 4: of draw 0, whose low half is for
 * state 0 and the high one for state 1, and of draw 1 for state 2. Plain C that C++ and nvcc understand. Internal. */
#ifndef TREK_TENSOR_STATE_ROUND_H
#define TREK_TENSOR_STATE_ROUND_H

#include "tensor/update.h"

#define TREK_STATE_SEED 0x6f7074696d737461u
#define TREK_STATE_BLOCK 512 /* elements that are in f32 at a time on CPUs; whole blocks of states in u8 */

/* The upper half of x's bits, or the next one: the fraction that is lost is the chance. `chance` has 16 bits, in the low half.
 * Numbers of bf16, inf and NaN stay. */
TREK_ON_BOTH uint16_t trek_state_round(uint32_t bits, uint32_t chance)
{
    uint32_t rounded = (bits + (chance & 0xffffu)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

#endif

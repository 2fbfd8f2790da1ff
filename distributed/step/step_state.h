/* SPDX-License-Identifier: Apache-2.0 */
/* Where a process stands in its step: which gradients there are, and who has them. Internal.
 *
 *     idle -> accumulating            a pass has given gradients
 *     idle, accumulating -> sending   the step's last pass begins: buckets go as they are complete
 *     sending -> sent                 it has ended; all gradients of the step are on their way
 *     any -> folded                   the sum over all ranks and processes is rank 0's, on every process
 *     folded -> accumulating          more gradients come: process 0 keeps the sum, the others zero theirs
 *     any -> idle                     the step is done, or gradients were dropped: the one reset */
#ifndef TREK_DISTRIBUTED_STEP_STEP_STATE_H
#define TREK_DISTRIBUTED_STEP_STEP_STATE_H

#include <stdbool.h>

typedef enum trek_step_phase {
    TREK_STEP_IDLE,
    TREK_STEP_ACCUMULATING,
    TREK_STEP_SENDING,
    TREK_STEP_SENT,
    TREK_STEP_FOLDED,
} trek_step_phase;

typedef struct trek_step_state {
    trek_step_phase phase;
    int passes;              /* that gave gradients */
    double factor;           /* what the gradients are to be multiplied by; 1 but for losses that are means of something else,
                                and in a step whose passes are weighed */
} trek_step_state;

static inline void trek_step_reset(trek_step_state *state) { *state = (trek_step_state){ .phase = TREK_STEP_IDLE, .factor = 1 }; }
static inline void trek_step_sends(trek_step_state *state) { state->phase = TREK_STEP_SENDING; }
static inline void trek_step_sent(trek_step_state *state) { state->phase = TREK_STEP_SENT; }
static inline void trek_step_folded(trek_step_state *state) { state->phase = TREK_STEP_FOLDED; }
static inline void trek_step_accumulates(trek_step_state *state) { state->phase = TREK_STEP_ACCUMULATING; }
/* A pass has ended, if it was one; after its gradients were sent, where they are. */
static inline void trek_step_passed(trek_step_state *state, bool gave)
{
    state->passes += gave;
    if (gave && state->phase == TREK_STEP_IDLE)
        trek_step_accumulates(state);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The position of a process in its step: which gradients exist, and who has them.
 *
 *     idle -> accumulating            a pass has given gradients
 *     idle, accumulating -> sending   the step's last pass begins: buckets are sent when they are complete
 *     sending -> sent                 it has ended, and all gradients of the step are being sent
 *     any -> folded                   rank 0 has the sum over all ranks and processes, in every process
 *     folded -> accumulating          more gradients come: process 0 keeps the sum, the others set theirs to zero
 *     any -> idle                     the step is done, or gradients were dropped: the only reset */
#ifndef TREK_DISTRIBUTED_TEAM_STEP_STATE_H
#define TREK_DISTRIBUTED_TEAM_STEP_STATE_H

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
    double factor;           /* the gradients must be multiplied by it; 1 except for losses that are means of something else,
                              * and in a step whose passes are weighed */
    bool joins_grads;        /* gradients with a history were added up over the processes: backward may do that, too */
} trek_step_state;

static inline void trek_step_reset(trek_step_state *state) { *state = (trek_step_state){ .phase = TREK_STEP_IDLE, .factor = 1 }; }
static inline void trek_step_sends(trek_step_state *state) { state->phase = TREK_STEP_SENDING; }
static inline void trek_step_sent(trek_step_state *state) { state->phase = TREK_STEP_SENT; }
static inline void trek_step_folded(trek_step_state *state) { state->phase = TREK_STEP_FOLDED; }
static inline void trek_step_accumulates(trek_step_state *state) { state->phase = TREK_STEP_ACCUMULATING; }
/* Returns whether gradients of the step were reduced already: before more come, trek_overlap_keep puts them together. */
static inline bool trek_step_is_reduced(const trek_step_state *state)
{
    return state->phase == TREK_STEP_SENT || state->phase == TREK_STEP_FOLDED;
}
/* Notes that a pass has ended, if it gave gradients. If they were sent, they remain so. */
static inline void trek_step_passed(trek_step_state *state, bool gave)
{
    state->passes += gave;
    if (gave && state->phase == TREK_STEP_IDLE)
        trek_step_accumulates(state);
}

#endif

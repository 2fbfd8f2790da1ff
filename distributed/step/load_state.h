/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state from elsewhere, taken over by the optimizers of all ranks of a process or by none: each its own part of
 * it, on its own thread. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_LOAD_STATE_H
#define TREK_DISTRIBUTED_STEP_LOAD_STATE_H

#include "distributed/step/stepper_ranks.h"

typedef struct trek_ranks_loading {
    ranks_stepper *s;            /* NULL: there is one rank, */
    trek_optimizer *optimizer;   /* and this is its optimizer */
    trek_optimizer_loaded state; /* n_rates: as many as it has groups */
    trek_optimizer_import_plan **plans; /* [ranks] NULL before `begin` */
} trek_ranks_loading;

/* All that can fail; nothing has changed after it but groups, which further ranks take over from rank 0. */
trek_status trek_ranks_load_begin(trek_ranks_loading *loading);
/* Nothing that `begin` has prepared can fail. */
trek_status trek_ranks_load_commit(trek_ranks_loading *loading);
/* In any case. */
void trek_ranks_load_end(trek_ranks_loading *loading);

/* trek_optimizer_load of rank 0's optimizer, for all ranks of the job: a ranks_stepper's trek_optimizer.load. A collective of its
 * processes, who are to have the same state (ARGUMENT). */
trek_status trek_ranks_load_state(void *stepper, trek_status own, const trek_optimizer_loaded *state);

#endif

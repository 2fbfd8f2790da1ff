/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state from elsewhere, taken over by the optimizers of all ranks of a process or by none: each its own part of
 * it, on its own thread. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_LOAD_STATE_H
#define TREK_DISTRIBUTED_STEP_LOAD_STATE_H

#include "distributed/step/stepper_ranks.h"

/* Groups and rates that the program has given rank 0's optimizer since the last step are the further ranks', too. MEMORY. */
trek_status trek_ranks_follow_groups(ranks_stepper *s);

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

/* All of that, as a collective: of ranks who are to have the same state (ARGUMENT). own: how the caller is; comm NULL: he is
 * alone. */
trek_status trek_ranks_load_together(trek_ranks_loading *loading, trek_comm *comm, trek_status own);

/* What stands behind rank 0's optimizer of a ranks_stepper: trek_optimizer_load is for all ranks of the job. */
extern const trek_optimizer_behind trek_ranks_behind;

#endif

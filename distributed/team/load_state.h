/* SPDX-License-Identifier: Apache-2.0 */
/* Loads an optimizer's state into the optimizers of all ranks of a process, or into none: each takes its own part, on
 * its own thread. */
#ifndef TREK_DISTRIBUTED_TEAM_LOAD_STATE_H
#define TREK_DISTRIBUTED_TEAM_LOAD_STATE_H

#include "distributed/team/team.h"

typedef struct trek_ranks_loading {
    trek_team *team;         /* NULL: there is one rank, */
    trek_optimizer *optimizer;   /* and this is its optimizer */
    trek_optimizer_loaded state; /* n_rates: as many as the optimizer has groups */
    trek_optimizer_import_plan **plans; /* [ranks] NULL before `begin` */
} trek_ranks_loading;

/* Does everything that can fail. Nothing has changed after it except groups, which further ranks take over from rank
 * 0. */
trek_status trek_ranks_load_begin(trek_ranks_loading *loading);
/* Applies what `begin` has prepared, which cannot fail. */
trek_status trek_ranks_load_commit(trek_ranks_loading *loading);
/* Must be called in any case. */
void trek_ranks_load_end(trek_ranks_loading *loading);

/* Does all of that as a collective of ranks that must have the same state (ARGUMENT otherwise). own: the caller's
 * status; comm NULL: it is alone. */
trek_status trek_ranks_load_together(trek_ranks_loading *loading, trek_comm *comm, trek_status own);

#endif

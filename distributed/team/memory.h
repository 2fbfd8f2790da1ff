/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks keep in memory, and what they may: rows of a table (trek_trainer_plan_text). A row is for ranks that keep things
 * together: one rank, or all of a process if they share their parameters. */
#ifndef TREK_DISTRIBUTED_TEAM_MEMORY_H
#define TREK_DISTRIBUTED_TEAM_MEMORY_H

#include "distributed/balance/rooms.h"
#include "distributed/job/job.h"
#include "distributed/team/team.h"
#include "nn/text.h"
#include "tensor/memory_account.h"

/* In bytes. The processes tell each other their rows. */
typedef struct trek_memory_row {
    int32_t first_rank, ranks;   /* of the job */
    int32_t device_type, device_index; /* of the first one */
    int64_t budget;              /* 0: none */
    int64_t params;
    int64_t grads;               /* of the parameters; in grains also their sums (grains/) */
    int64_t state;               /* of the optimizer, with the f32 copies of parameters */
    int64_t other;               /* what a CPU rank's threads have in use besides: workspaces, packed weights */
    int64_t activations;         /* the most that a forward and backward needs; -1: not measured */
    int64_t samples;             /* of that pass */
    trek_room room;              /* what recomputation may make of the activations, estimated; zeros: not known */
    int64_t recomputed;          /* how many segments of the forwards backward runs again */
    int64_t saved;               /* by which, and by what is moved, activations are smaller */
    int64_t moved;               /* how many segments' values wait in host memory for backward, */
    int64_t host, host_budget;   /* which takes so much of it, and may take so much */
    int64_t recompute_ns, pass_ns; /* what both take, and a forward and backward without them; of the rank with the most */
    double part;                 /* of the state, 0 to 1 */
    int64_t gathers;             /* divided parameters: 1: once a step; 2: in each of its passes; 0: a step has one pass */
    int64_t kept;                /* 1: by which activations are larger; it is given back where it would be too much */
} trek_memory_row;

typedef struct trek_team_memory {
    int64_t *budgets;            /* [local_ranks] that the program has set; NULL: none */
    int n_rows;                  /* of the job if a plan was made, otherwise of this process */
    trek_memory_row *rows;
    int n_own, first_own;        /* the rows of this process */
    trek_memory_account **accounts; /* [n_own] of ranks on CPUs; NULL: they are not counted */
    bool recomputes;             /* what to recompute or move is chosen (.activations); */
    int64_t host_budget;         /* the program's, for what is moved; 0: half of what is free; TREK_OFF: nothing is */
    trek_text *recomputed, *moved; /* [n_own] the names of what has been chosen, of the row's first rank that does it */
} trek_team_memory;

/* Makes the record. budgets: [local_ranks] or NULL. Fails with MEMORY. */
trek_status trek_team_memory_new(trek_team *team, const int64_t *budgets);
void trek_team_memory_free(trek_team *team);
/* Returns how many rows the process has, and the row of a local rank among them. */
static inline int trek_memory_n_own(const trek_team *team) { return team->shared ? 1 : team->local_ranks; }
static inline int trek_memory_row_of(const trek_team *team, int rank) { return team->shared ? 0 : rank; }

/* Adds what an arena and its optimizer (NULL: none) keep to a row. Of an arena that belongs to another only gradients count. */
void trek_memory_add(const trek_arena *arena, const trek_optimizer *optimizer, trek_memory_row *row);
/* Writes what the ranks of this process keep now to rows[0, n_own). sums: [local_ranks] what else holds gradients of each rank.
 * Budgets, activations and samples are left alone. */
void trek_memory_measure(const trek_team *team, const trek_job *job, const int64_t *sums, trek_memory_row *rows);
static inline int64_t trek_memory_fixed(const trek_memory_row *row) { return row->params + row->grads + row->state + row->other; }
static inline int64_t trek_memory_total(const trek_memory_row *row)
{
    return trek_memory_fixed(row) + (row->activations > 0 ? row->activations : 0);
}
/* Writes a table of the rows, in lines. team NULL: a single rank that has none. */
void trek_memory_describe(const trek_team_memory *memory, const trek_team *team, trek_text *text);
/* Returns TREK_OK if each row fits its budget. Otherwise fails with MEMORY and the numbers. `function` begins the message. */
trek_status trek_memory_check(const trek_team_memory *memory, const char *function);

#endif

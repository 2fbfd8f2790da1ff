/* SPDX-License-Identifier: Apache-2.0 */
/* What a pass and a step mean: a row of functions for each policy. All other code asks the row of its step
 * (trek_step.policy), so that a new policy is a file with its functions and its row. */
#ifndef TREK_DISTRIBUTED_TEAM_STEP_POLICY_H
#define TREK_DISTRIBUTED_TEAM_STEP_POLICY_H

#include "distributed/balance/workload.h"
#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* How a graph is trained over ranks. */
typedef struct trek_ranks_opts {
    bool shared;
    bool shards;                  /* divides the optimizer's state if ranks or processes would otherwise have it more than once */
    bool shards_grads;            /* and gradients, too */
    bool shards_params;           /* and parameters */
    bool twice;                   /* each part of the state is kept by two processes, one of which may die */
    bool joins;                   /* this process has no others yet, and joins a job that is at work later */
    bool redoes;                  /* without grains its passes are made again when processes die (pass/redo.h) */
    bool outlives;                /* its run goes on when processes die (job/job.h) */
    bool averages;                /* averages parameters; they are not shared then */
    bool sites;                   /* of a job's processes: the ranks of each make their steps together, and may share
                                   * parameters */
    double divergence_threshold;  /* < 0: no guard */
    int64_t grain;                /* samples of a grain; 0: batches are not cut into grains */
    const char *digests;          /* then, the file of digests; NULL: none */
    double audit;                 /* and the share of grains that are computed twice */
    bool audit_removes;           /* a process with a rank that was wrong leaves the job */
    int64_t bucket_bytes;
    bool reduces_bf16;            /* f32 gradients travel between processes as bf16 */
    const int64_t *budgets;       /* [ranks] bytes of memory that each may use; NULL: none */
    bool recomputes;              /* chooses what to recompute or to move, so that it is enough */
    int64_t host_budget;          /* bytes of host memory for what is moved; 0: half of what is free */
    int overlap;                  /* 0: if the engine progresses by itself; 1: always between processes; TREK_OFF: never */
    trek_comm *comm;              /* among processes; the stepper takes a handle. NULL: one process */
    const trek_workload_opts *workload;
} trek_ranks_opts;

/* How parts of a policy's steps are captured (trek_stepper_capture.parts). */
typedef struct trek_step_parts {
    const char *(*obstacle)(const trek_step *s); /* why they cannot be, as far as this can be known in advance; NULL: they can */
    const char *(*outcome)(trek_step *s, bool *replayed);
    void (*forget)(trek_step *s);
} trek_step_parts;

typedef struct trek_step_policy {
    const char *name;
    /* Returns whether a training with these options follows it. */
    bool (*wanted)(const trek_ranks_opts *opts);
    /* Make what it keeps with the step, when the processes have met, and free it, also after a failure. */
    trek_status (*make)(trek_step *s, const trek_ranks_opts *opts);
    void (*end)(trek_step *s);

    bool sums;               /* the gradients of all ranks are summed to those of the step; otherwise each rank's are its own */
    const char *obstacle;    /* why its steps cannot be recorded as captured work; NULL: they can */
    const trek_step_parts *parts; /* NULL: steps are recorded as a whole */

    /* Trains on a batch or a window, or computes its loss. Returns the mean loss. */
    trek_var *(*train_batch)(trek_step *s, const struct trek_batch *batch);
    /* Returns how many batches the ranks read themselves in the next pass; 0: none. */
    int64_t (*window)(trek_step *s);
    /* Of a pass that trains by per_rank_step.c: before it; after a rank has run a batch backward, on the rank's thread (NULL:
     * nothing); and after it, with the number of its batches (NULL: nothing). */
    trek_status (*begin_pass)(trek_step *s);
    trek_status (*after_batch)(trek_step *s, int rank);
    void (*end_pass)(trek_step *s, int64_t batches);

    trek_status (*backward)(trek_step *s, trek_var *loss, double weight);
    trek_status (*reduce)(trek_step *s);
    trek_status (*step)(trek_step *s);
} trek_step_policy;

#endif

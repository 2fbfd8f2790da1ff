/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of a step, as far as they have to be known for making any part of them again, in any process. */
#ifndef TREK_DISTRIBUTED_TEAM_PASSES_H
#define TREK_DISTRIBUTED_TEAM_PASSES_H

#include "autograd/var_internal.h"
#include "data/loader_internal.h"

typedef struct trek_step_pass {
    trek_loader *loader;     /* of the batch; NULL: it has ended, or the step has gone on with another one */
    int64_t epoch, batch;    /* of the loader */
    int64_t rows;            /* of that batch, in all processes */
    bool backward, training;
    bool joint;              /* all processes train on parts of this batch; otherwise each has a batch of its own */
    int no_grad_depth;       /* of the caller, as the next field */
    trek_offload_opts offload;
    double denominator;      /* in grains */
    uint64_t rng_step, rng_draw;
    uint64_t digest;         /* without grains: of what its loader gives (data/batch_here.h) */
} trek_step_pass;

/* It must not move. Its loader is watched. */
typedef struct trek_step_passes {
    trek_step_pass *of;      /* [n] */
    int64_t n, room;
    trek_loader_follower follower; /* of `loader`, from which the last pass came; NULL: none, or it has ended */
    trek_loader *loader;
} trek_step_passes;

/* What a rank has when a step begins, as far as passes change it besides gradients. */
typedef struct trek_rank_start {
    trek_tensor **buffers;   /* [buffers] copies */
    int64_t samples, measured_rows; /* as in rank_replica */
} trek_rank_start;

/* A step all of whose passes are made again, by those that are left, when processes of its job have died (pass/redo.h). */
typedef struct trek_redo {
    trek_step_passes passes;
    int64_t groups;          /* as many of the job (trek_survival.groups) had met when they were made */
    trek_rank_start *starts; /* [ranks of the process] */
} trek_redo;

/* Adds a pass. Fails with MEMORY. */
trek_status trek_step_passes_add(trek_step_passes *passes, const trek_step_pass *pass);
/* Frees what they have, and watches no loader any more. */
void trek_step_passes_clear(trek_step_passes *passes);
/* Returns how the caller trains on the batch now. */
trek_step_pass trek_step_pass_of(const trek_batch *batch);

#endif

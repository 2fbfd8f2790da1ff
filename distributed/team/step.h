/* SPDX-License-Identifier: Apache-2.0 */
/* A step: the team that makes it, the job with which it is made, and how far it has come.
 *
 * A process whose ranks train together while the processes are averaged has two steps over one team: that of the job,
 * and that of a site, which is made in a job of one (site.c). */
#ifndef TREK_DISTRIBUTED_TEAM_STEP_H
#define TREK_DISTRIBUTED_TEAM_STEP_H

#include "distributed/balance/speed.h"
#include "distributed/balance/workload.h"
#include "distributed/job/job.h"
#include "distributed/team/step_state.h"
#include "distributed/team/team.h"

struct trek_averaging;
struct trek_batch;
struct trek_giving;
struct trek_grains;
struct trek_step_policy;
struct trek_twice;

/* How long ranks take, and how much each of them gets. */
typedef struct trek_pace {
    trek_workload *workload; /* shares or counts of all ranks of the job, or of its processes */
    bool sites;              /* the workload is for processes, whose ranks train together between two averages; */
    double *rank_shares;     /* [world_size] then: shares of batches that all ranks of the job divide; otherwise NULL */
    double *ms;              /* [world_size] of the current step: the time that every rank of the job needed, */
    double *starved_ms;      /* [world_size] how much of it the rank waited for its data, */
    int64_t *units;          /* [world_size] and for how many samples, or batches of a window */
    trek_starvation starvation;
    int64_t loader_ns;       /* how much of the caller's waiting for data (trek_batch_here) has been accounted for */
    trek_stopwatch reduce_watch; /* rank 0's, of the reduction */
    double own_communication_ms, communication_ms; /* of the last reduction; as process 0 measured it in the step before */
} trek_pace;

/* Reduction during backward (overlap.c). */
typedef struct trek_overlapping {
    int asked;               /* as in the options */
    bool possible;           /* if the step's last pass may send */
    trek_var *tape_leaf;     /* the tape leaf of all split forwards, if the ranks of one process overlap; otherwise NULL */
    int on_tape;             /* parameters of rank 0 that the rest of the caller's own tape does not reach, in a backward that
                              * sends */
} trek_overlapping;

typedef struct trek_step {
    trek_team *team;         /* borrowed */
    trek_job job;
    trek_comm **carriers;    /* [local_ranks] of all ranks of the job, if each of them divides what it has with all others, and
                              * processes have several (comm/nested.h); otherwise NULL */
    const struct trek_step_policy *policy;
    trek_pace pace;
    trek_overlapping overlap;
    int64_t grain;           /* samples of a grain; 0: batches are not cut into grains */
    bool grain_chosen;       /* it was measured, so that a checkpoint may set another one */
    struct trek_grains *grains; /* then (distributed/grains/); otherwise NULL */
    trek_workload_opts workload; /* in a job that outlives some of its processes: for the workload of those that are left */
    struct trek_redo *redo; /* of a step without grains that is made again when processes have died (pass/redo.h); else NULL */
    struct trek_twice *twice; /* if each part of the optimizer's state is kept by two processes (reduce/twice.h); else NULL */
    struct trek_giving *giving; /* the state, during a pass, to processes that have come (pass/giving.h); otherwise NULL */
    struct trek_averaging *averaging; /* of parameters instead of gradients (average.h); NULL: gradients are summed */

    trek_step_state state;
    const trek_update_scaler *loss_scale; /* in a step with on_host: what multiplied the loss; NULL: nothing */
    double grad_norm;
    bool windowed;           /* some pass since buffers were merged was a window */
    bool records;            /* the step is being recorded (recording.c): its events have no time yet */

    /* job_sync.c: what the processes of the job tell each other; NULL in a job of one */
    char *own_message, *messages;
    trek_capture_vote *votes; /* [processes] votes about a captured step */
    double window_rows;      /* of the step that ends: samples of all ranks of the job */
    double own_drift, drift; /* if parameters are averaged: the largest of this process, and of the job */
    bool stops;              /* it takes note of requests to stop: a site does not, between whose steps nothing stops */
    bool divides;            /* loaders may divide batches by its shares */
    struct trek_step *next_divider;
    uint64_t failure;        /* the number (trek_error_number) of an error of the caller's thread that all processes know; 0:
                              * none yet */
} trek_step;

/* Returns the communicator that carries a rank's gradients: that of the processes, that of the ranks of a single one, or that of
 * all ranks of all processes. */
static inline trek_comm *trek_step_carrier(const trek_step *s, int rank)
{
    return s->carriers ? s->carriers[rank] : s->job.comm ? s->job.comm : trek_ranks_comm(s->team->ranks, rank);
}

/* Returns each rank's share of a batch that all ranks of the job divide. */
static inline const double *trek_ranks_shares(const trek_step *s)
{
    return s->pace.rank_shares ? s->pace.rank_shares : trek_workload_shares(s->pace.workload);
}

/* Notes that buffers were merged: counting of forwards begins again. */
static inline void trek_step_merged(trek_step *s)
{
    for (int r = 0; r < s->team->local_ranks; r++)
        s->team->replicas[r].samples = 0;
    s->windowed = false;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "data/batch_here.h"
#include "distributed/capture/recording.h"
#include "distributed/pass/shares.h"
#include "distributed/policy/exact.h"

#include <stdio.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/pass/job_sync.h"
#include "distributed/team/step_policy.h"
#include "distributed/reduce/reduce.h"
#include "graph/graph_internal.h"
#include "tensor/device_comm.h"
#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"

/* The state of the host before a step that is recorded. It belongs to the stepper. */
struct ranks_before {
    int64_t steps;
    trek_step_state step;
    trek_accumulation accumulation;
    bool *had;               /* [ranks][parameters] whether there was a gradient */
    int64_t *samples;        /* [ranks] */
};

typedef struct ranks_recording {
    trek_captured_step base;
    trek_step *s;
    const trek_backend *backend;
    trek_ranks_recorder recorder;
    trek_device device;      /* of the caller, which is rank 0 */
    uint64_t rng_step;       /* of the recorded step */
    bool good;               /* it can be replayed */
    bool replayed;           /* set once: the recorded step, which the function itself has ended */
    int runs;                /* of all ranks */
    bool *begun;             /* [ranks] */
    trek_capture **captures; /* [ranks] when recording is over */
    int64_t *samples;        /* [ranks] which the step counts */
} ranks_recording;

static void drop(ranks_recording *r)
{
    trek_free(r->begun);
    trek_free(r->captures);
    trek_free(r->samples);
    trek_free(r);
}

/* --- whether steps can be recorded, and for how long ------------------------------------------- */

static const char *obstacle(const trek_stepper *stepper)
{
    const trek_step *s = &((const ranks_stepper *)stepper)->step;
    if (s->policy->obstacle || s->policy->parts)
        return s->policy->obstacle ? s->policy->obstacle : s->policy->parts->obstacle(s);
    if (trek_job_has_others(&s->job) && s->job.ranks_most > 1)
        return "several processes with several ranks each train the graph";
    if ((s->job.outlives || s->job.survival) && trek_job_has_others(&s->job))
        return "its training goes on when a process dies (.min_processes), so its steps wait for what others send";
    if (s->team->sharers > 1)
        return "the ranks keep the optimizer's state in parts";
    if (s->team->on_host || (s->team->kinds & 1u << TREK_CPU))
        return "some ranks are on a CPU";
    if (!trek_step_carrier(s, 0)->nccl)
        return "the ranks exchange gradients through host memory";
    if (trek_team_meets(s->team))
        return "the graph has layers that make sums over the ranks, by the host";
    return NULL;
}

static uint64_t signature(const trek_stepper *stepper)
{
    const trek_step *s = &((const ranks_stepper *)stepper)->step;
    uint64_t key = trek_mix(1, (uint64_t)s->state.phase << 32 | (uint64_t)s->state.passes);
    for (int r = 0; r < s->job.world_size; r++)
        key = trek_mix_double(key, trek_ranks_shares(s)[r]);
    key = trek_mix_double(key, s->state.factor);
    key = trek_mix(key, s->team->graph->settings.max_norm > 0);
    key = trek_mix(key, (uint64_t)(uintptr_t)s->team->graph->scaler);
    if (trek_job_has_others(&s->job)) { /* random numbers are drawn by the position of its rows among all rows */
        key = trek_mix(key, (uint64_t)trek_batch_here()->rows);
        key = trek_mix(key, (uint64_t)trek_batch_here()->first);
        key = trek_mix(key, (uint64_t)trek_batch_here()->global);
    }
    for (int r = 0; r < s->team->local_ranks; r++) {
        const rank_replica *own = &s->team->replicas[r];
        key = trek_mix(key, trek_step_signature(own->graph, own->model->params, own->model->n_params, own->optimizer));
        key = trek_mix(key, (uint64_t)(uintptr_t)own->scaler);
    }
    return key;
}

static bool uses(const trek_stepper *stepper, trek_device device)
{
    const trek_step *s = &((const ranks_stepper *)stepper)->step;
    for (int r = 0; r < s->team->local_ranks; r++)
        if (trek_device_equal(trek_ranks_device(s->team->ranks, r), device))
            return true;
    return false;
}

/* --- recording ------------------------------------------------------------------------------------ */

static trek_status pause_caller(void *arg)
{
    const ranks_recording *r = arg;
    return r->backend->comm->capture_pause(r->device);
}

static trek_status resume_caller(void *arg)
{
    ranks_recording *r = arg;
    r->runs++;
    return r->backend->comm->capture_resume(r->device);
}

static trek_status begin_rank(ranks_recording *r, int rank)
{
    trek_device device = trek_ranks_device(r->s->team->ranks, rank);
    if (rank == 0 || r->begun[rank])
        return r->backend->comm->capture_resume(device);
    trek_rank_here.rng_step = r->rng_step;
    trek_status status = r->backend->capture_begin(device);
    r->begun[rank] = status == TREK_OK;
    return status;
}

/* All ranks begin, or none: others would wait for one that failed in the first collective. */
static trek_status begin_part(int rank, void *arg)
{
    ranks_recording *r = arg;
    trek_status own = begin_rank(r, rank);
    trek_status status = trek_replica_agree(trek_ranks_comm(r->s->team->ranks, rank), own, "recording a step");
    if (status != TREK_OK && own == TREK_OK)
        r->backend->comm->capture_pause(trek_ranks_device(r->s->team->ranks, rank));
    return status;
}

/* Work that was given to the communication stream comes back to the rank's stream. */
static trek_status end_part(int rank, void *arg)
{
    const ranks_recording *r = arg;
    trek_comm *comm = trek_ranks_comm(r->s->team->ranks, rank);
    trek_status status = comm->devices ? comm->devices->wait(comm) : TREK_OK;
    trek_status ended = r->backend->comm->capture_pause(trek_ranks_device(r->s->team->ranks, rank));
    return status == TREK_OK ? ended : status;
}

static ranks_recording *new_recording(trek_step *s, trek_device device)
{
    ranks_recording *r = trek_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    size_t ranks = (size_t)s->team->local_ranks;
    *r = (ranks_recording){ .s = s, .backend = trek_backends[device.type], .device = device, .rng_step = trek_rank_here.rng_step,
                            .recorder = { pause_caller, resume_caller, begin_part, end_part, r },
                            .begun = trek_calloc(ranks, sizeof *r->begun),
                            .captures = trek_calloc(ranks, sizeof(trek_capture *)),
                            .samples = trek_calloc(ranks, sizeof *r->samples) };
    if (r->begun && r->captures && r->samples)
        return r;
    drop(r);
    return NULL;
}

void trek_ranks_forget_before(ranks_stepper *own)
{
    if (!own->before)
        return;
    trek_free(own->before->had);
    trek_free(own->before->samples);
    trek_free(own->before);
    own->before = NULL;
}

static trek_status note_before(ranks_stepper *own)
{
    const trek_step *s = &own->step;
    size_t ranks = (size_t)s->team->local_ranks, params = (size_t)s->team->replicas[0].model->n_params;
    trek_ranks_forget_before(own);
    struct ranks_before *b = own->before = trek_calloc(1, sizeof *b);
    if (!b)
        return trek_error_status();
    *b = (struct ranks_before){ .steps = s->team->graph->settings.steps, .step = s->state,
                                .accumulation = s->team->graph->accumulation,
                                .had = trek_calloc(ranks * params + 1, sizeof *b->had),
                                .samples = trek_calloc(ranks, sizeof *b->samples) };
    if (!b->had || !b->samples)
        return trek_error_status();
    for (size_t q = 0; q < ranks; q++) {
        b->samples[q] = s->team->replicas[q].samples;
        for (size_t k = 0; k < params; k++) {
            const trek_leaf *leaf = s->team->replicas[q].model->params[k]->leaf;
            b->had[q * params + k] = leaf && leaf->has_grad;
        }
    }
    return TREK_OK;
}

static trek_status begin(trek_stepper *stepper, trek_device device)
{
    ranks_stepper *own = (ranks_stepper *)stepper;
    trek_step *s = &own->step;
    trek_status status = note_before(own);
    if (status == TREK_OK) /* which may have to read the device's counter */
        status = trek_ranks_prepare_scaler(s);
    ranks_recording *r = status == TREK_OK ? new_recording(s, device) : NULL;
    status = r ? r->backend->capture_begin(device) : trek_error_status();
    if (status != TREK_OK) {
        if (r)
            drop(r);
        return status;
    }
    own->recording = r;
    s->records = true;
    if (trek_job_is_alone(&s->job)) /* the only rank of a process is the caller */
        trek_ranks_set_recorder(s->team->ranks, &r->recorder);
    return TREK_OK;
}

/* The only rank of a process is the caller. Its error remains, because the others know of it. */
static trek_status on_ranks(const trek_step *s, trek_rank_fn fn, void *arg)
{
    return s->team->local_ranks > 1 ? trek_ranks_call(s->team->ranks, fn, arg) : fn(0, arg);
}

static trek_status end_rank(int rank, void *arg)
{
    ranks_recording *r = arg;
    if (rank == 0 || !r->begun[rank])
        return TREK_OK;
    return r->backend->capture_end(trek_ranks_device(r->s->team->ranks, rank), r->good ? &r->captures[rank] : NULL);
}

static trek_status free_rank(int rank, void *arg)
{
    ranks_recording *r = arg;
    r->backend->capture_free(r->captures[rank]);
    return TREK_OK;
}

/* A replay may be under way, to which other processes may never come. */
static void free_recording(trek_captured_step *recording)
{
    ranks_recording *r = (ranks_recording *)recording;
    if (trek_job_has_others(&r->s->job) && r->captures[0])
        trek_comm_nccl_drain(r->s->job.comm);
    on_ranks(r->s, free_rank, r);
    drop(r);
}

static trek_status replay(trek_captured_step *recording, uint64_t rng_step);

static trek_status end(trek_stepper *stepper, trek_device device, trek_captured_step **result)
{
    ranks_stepper *own = (ranks_stepper *)stepper;
    trek_step *s = &own->step;
    ranks_recording *r = own->recording;
    trek_ranks_set_recorder(s->team->ranks, NULL);
    own->recording = NULL;
    s->records = false;
    r->base = (trek_captured_step){ replay, free_recording };
    trek_status status = TREK_OK;
    if (result && s->team->graph->settings.steps == own->before->steps)
        status = trek_fail(TREK_ERR_UNSUPPORTED,
                           "graph_capture: fn: it does not step the graph; with several ranks it must");
    r->good = result && status == TREK_OK;
    for (int q = 0; q < s->team->local_ranks; q++) {
        r->samples[q] = s->team->replicas[q].samples - own->before->samples[q];
        s->team->replicas[q].samples = own->before->samples[q];
    }
    trek_status joined = trek_job_has_others(&s->job) ? s->job.comm->devices->wait(s->job.comm) : TREK_OK;
    trek_status first = r->backend->capture_end(device, r->good && joined == TREK_OK ? &r->captures[0] : NULL);
    first = joined == TREK_OK ? first : joined;
    trek_status others = on_ranks(s, end_rank, r);
    status = status != TREK_OK ? status : first != TREK_OK ? first : others;
    if (status == TREK_OK && result)
        *result = &r->base;
    else
        free_recording(&r->base);
    return status;
}

static void put_back(trek_stepper *stepper)
{
    trek_step *s = &((ranks_stepper *)stepper)->step;
    const struct ranks_before *b = ((ranks_stepper *)stepper)->before;
    if (!b || !b->had || !b->samples)
        return; /* it did not begin */
    s->state = b->step;
    s->team->graph->accumulation = b->accumulation;
    for (int q = 0; q < s->team->local_ranks; q++) {
        const trek_replica *model = s->team->replicas[q].model;
        s->team->replicas[q].samples = b->samples[q];
        for (int k = 0; k < model->n_params; k++)
            if (model->params[k]->leaf)
                model->params[k]->leaf->has_grad = b->had[q * model->n_params + k];
    }
}

/* --- replays ---------------------------------------------------------------------------------------- */

/* Ends the group: the others' devices would wait for this rank's in vain, and a rank that has updated cannot go back. */
static trek_status end_group(const trek_step *s, int rank, trek_status status)
{
    char reason[256];
    snprintf(reason, sizeof reason, "%s", trek_error());
    trek_comm_abort(trek_step_carrier(s, rank), reason);
    return status;
}

/* Writes what the devices of all ranks read, on the caller's own streams, before the ranks' work. Other processes are
 * already on their way to the replay. */
static trek_status before_replay(trek_stepper *stepper, bool rate_is_set)
{
    trek_step *s = &((ranks_stepper *)stepper)->step;
    if (trek_comm_ended(trek_step_carrier(s, 0)))
        return trek_comm_barrier(trek_step_carrier(s, 0)); /* which says why */
    trek_status status = trek_ranks_set_rates(s, !rate_is_set);
    if (status == TREK_OK)
        status = trek_ranks_prepare_scaler(s);
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK; r++) {
        const rank_replica *own = &s->team->replicas[r];
        trek_step_opts opts = trek_ranks_step_opts(s, r);
        status = trek_arena_refresh_masters(own->arena);
        if (status == TREK_OK)
            status = trek_device_update_before_replay(own->optimizer, &opts);
    }
    if (trek_job_has_others(&s->job)) /* they have agreed on a request to stop */
        return status == TREK_OK ? TREK_OK : end_group(s, 0, status);
    if (status == TREK_OK)
        trek_job_sync_stop(s);
    return status;
}

typedef struct launching {
    ranks_recording *r;
    int run;
    uint64_t rng_step;
} launching;

static trek_status launch_rank(int rank, void *arg)
{
    const launching *l = arg;
    const ranks_recording *r = l->r;
    trek_status status = r->backend->comm->capture_replay(r->captures[rank], rank ? l->run : 2 * l->run + 1, l->rng_step);
    return status == TREK_OK ? TREK_OK : end_group(r->s, rank, status);
}

/* In a single process nothing has been done before the first piece. */
static trek_status launch_caller(const ranks_recording *r, int piece, uint64_t rng_step, bool *done)
{
    if (!r->backend->comm->capture_has(r->captures[0], piece))
        return TREK_OK;
    trek_status status = r->backend->comm->capture_replay(r->captures[0], piece, rng_step);
    if (status != TREK_OK && (*done || trek_job_has_others(&r->s->job)))
        return end_group(r->s, 0, status);
    *done = true;
    return status;
}

static bool has_run(const ranks_recording *r, int run)
{
    bool has = r->backend->comm->capture_has(r->captures[0], 2 * run + 1);
    for (int q = 1; q < r->s->team->local_ranks; q++)
        has |= r->backend->comm->capture_has(r->captures[q], run);
    return has;
}

static trek_status merge_rank(int rank, void *arg) { return trek_ranks_merge_buffers(arg, rank); }

static trek_status merge(ranks_recording *r)
{
    trek_step *s = r->s;
    for (int q = 0; q < s->team->local_ranks; q++)
        s->team->replicas[q].samples += r->samples[q];
    trek_status status = s->team->replicas[0].model->n_buffers ? trek_ranks_call(s->team->ranks, merge_rank, s) : TREK_OK;
    if (status == TREK_OK)
        trek_step_merged(s);
    return status;
}

/* A plan goes on from step to step; a workload that measures gets nothing new. */
static trek_status follow_plan(ranks_recording *r)
{
    trek_step *s = r->s;
    bool first = !r->replayed;
    r->replayed = true;
    if (first || !trek_workload_replays(s->pace.workload))
        return TREK_OK;
    memset(s->pace.ms, 0, (size_t)s->job.world_size * sizeof *s->pace.ms);
    memset(s->pace.units, 0, (size_t)s->job.world_size * sizeof *s->pace.units);
    return trek_ranks_update_workload(s, TREK_DRIFT_STABLE);
}

static trek_status replay(trek_captured_step *recording, uint64_t rng_step)
{
    ranks_recording *r = (ranks_recording *)recording;
    trek_status status = TREK_OK;
    bool done = false;
    for (int run = 0; run < r->runs && status == TREK_OK; run++) {
        status = launch_caller(r, 2 * run, rng_step, &done);
        if (status != TREK_OK || !has_run(r, run))
            continue;
        status = trek_ranks_call(r->s->team->ranks, launch_rank, &(launching){ r, run, rng_step });
        done = true;
    }
    if (status == TREK_OK)
        status = launch_caller(r, 2 * r->runs, rng_step, &done);
    if (status == TREK_OK)
        status = merge(r);
    return status == TREK_OK ? follow_plan(r) : status;
}

static void after_replay(trek_stepper *stepper)
{
    trek_step *s = &((ranks_stepper *)stepper)->step;
    for (int r = 0; r < s->team->local_ranks; r++)
        trek_device_update_after_replay(s->team->replicas[r].optimizer);
    trek_ranks_reset(s);
    trek_ranks_count_step(s);
}

/* --- several processes --------------------------------------------------------------------------------- */

static trek_status agree(trek_stepper *stepper, const trek_capture_vote *own, trek_capture_verdict *verdict)
{
    trek_step *s = &((ranks_stepper *)stepper)->step;
    trek_job_say(&s->job, "step", true);
    if (trek_job_has_others(&s->job))
        return trek_job_sync_vote(s, own, verdict);
    *verdict = trek_capture_decide(own, 1);
    return TREK_OK;
}

static trek_status settle(trek_stepper *stepper, trek_status own, int64_t *number)
{
    trek_step *s = &((ranks_stepper *)stepper)->step;
    trek_status status = trek_job_has_others(&s->job) ? trek_job_sync_recorded(s, own) : own;
    if (status == TREK_OK)
        *number = ++((ranks_stepper *)stepper)->recorded;
    return status;
}

static void abandon(trek_stepper *stepper, trek_status status, bool replays)
{
    trek_step *s = &((ranks_stepper *)stepper)->step;
    if (replays && trek_job_has_others(&s->job))
        end_group(s, 0, status);
    else
        trek_job_sync_failed(s, status);
}

/* --- policies that record parts of a step ---------------------------------------------------------------- */

static bool has_parts(const trek_stepper *stepper) { return ((const ranks_stepper *)stepper)->step.policy->parts != NULL; }

static const char *parts(trek_stepper *stepper, bool *replayed)
{
    trek_step *s = &((ranks_stepper *)stepper)->step;
    return s->policy->parts->outcome(s, replayed);
}

static void forget_parts(trek_stepper *stepper)
{
    trek_step *s = &((ranks_stepper *)stepper)->step;
    if (s->policy->parts)
        s->policy->parts->forget(s);
}

const struct trek_stepper_capture trek_ranks_capture = {
    .obstacle = obstacle, .signature = signature, .uses = uses, .begin = begin, .end = end, .put_back = put_back,
    .before_replay = before_replay, .after_replay = after_replay, .agree = agree, .settle = settle, .abandon = abandon,
    .has_parts = has_parts, .parts = parts, .forget_parts = forget_parts,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a job tell each other, and what they reduce together. */
#include "data/batch_here.h"
#include "distributed/pass/division.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/shares.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/control/control.h"
#include "distributed/grains/grains.h"
#include "distributed/job/agreement.h"
#include "distributed/job/survival.h"
#include "distributed/reduce/overlap.h"
#include "distributed/stop_internal.h"
#include "distributed/system/system.h"
#include "distributed/team/memory.h"
#include "distributed/team/rank_sums.h"
#include "distributed/team/settings.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- requests to stop: two flags ---------------------------------------------------- */

typedef struct stop_flags {
    atomic_int wanted, agreed; /* lock-free: a signal handler may set them */
} stop_flags;

TREK_PER_PROCESS(stop_flags, flags, { 0 });

void trek_request_stop(void) { atomic_store(&flags()->wanted, 1); }
bool trek_stop_wanted(void) { return atomic_load(&flags()->wanted) != 0; }
void trek_stop_agree(void) { atomic_store(&flags()->agreed, 1); }

bool trek_stop_requested(void)
{
    return atomic_load(&flags()->agreed) != 0 || (trek_job_here.processes <= 1 && atomic_load(&flags()->wanted) != 0);
}

void trek_stop_clear(void)
{
    atomic_store(&flags()->wanted, 0);
    atomic_store(&flags()->agreed, 0);
}

/* --- messages ------------------------------------------------------------------------ */

/* In the order of a step. A process that sends one of the first kinds joins a round of the later ones, or makes it
 * void. */
typedef enum sync_message_kind {
    SYNC_VOTE, SYNC_BEGIN, SYNC_PASS, SYNC_STEP, SYNC_REDUCE, SYNC_RECORDED, SYNC_FAILED
} sync_message_kind;

enum { STOP_ALL = 1, STOP_THIS = 2 }; /* stop the job, or the training of this graph */

/* Followed by `ranks_most` reports. */
typedef struct sync_message {
    int32_t kind, status;
    int32_t stop, ranks;     /* stop: the bits STOP_ALL and STOP_THIS */
    int32_t sends, unsent;   /* of a pass: its gradients may be sent; of a step: some were not sent */
    int32_t joiners, unused; /* joiners, of a step: processes wait to be let in */
    double weight, communication_ms;
    double rows, drift;      /* of a step when parameters are averaged: its samples, and the drift before the last average */
    int64_t step;
    uint64_t digest;         /* of the workload's decisions */
    uint64_t settings, data; /* digests of the settings, and of the loader whose batch the pass uses (0: no loader) */
    uint64_t rng_draw;       /* after the pass: a process without samples has drawn nothing */
    union {
        char message[160];   /* of FAILED */
        trek_capture_vote vote; /* of VOTE */
    };
} sync_message;

typedef struct rank_report {
    double ms, starved_ms;
    int64_t units;
} rank_report;

static size_t message_bytes(const trek_step *s) { return sizeof(sync_message) + (size_t)s->job.ranks_most * sizeof(rank_report); }
static sync_message *message_at(const trek_step *s, int process)
{
    return (sync_message *)(s->messages + (size_t)process * message_bytes(s));
}
static rank_report *pairs_of(sync_message *w) { return (rank_report *)(w + 1); }

/* A step's failure is announced in one round, in which all processes take part. Until its error is cleared there is
 * nothing more to announce; then all go on with the same round. */
static trek_status all_know(trek_step *s, trek_status status)
{
    s->failure = trek_error_number();
    return status;
}

static bool is_known(const trek_step *s) { return trek_error_status() != TREK_OK && s->failure == trek_error_number(); }

/* Returns the first process that has failed by itself, or -1. Processes that have failed because of another report
 * PEER. */
static int failed_process(const trek_step *s)
{
    int found = -1;
    for (int p = 0; p < s->job.processes; p++) {
        const sync_message *w = message_at(s, p);
        if (w->kind == SYNC_FAILED && (found < 0 ||
                                       (message_at(s, found)->status == TREK_ERR_PEER && w->status != TREK_ERR_PEER)))
            found = p;
    }
    return found;
}

static trek_status fail_of_message(trek_step *s, int process)
{
    const sync_message *w = message_at(s, process);
    return all_know(s, trek_fail(TREK_ERR_PEER, "job: process %d failed: %.*s", process, (int)sizeof w->message - 1, w->message));
}

/* Compares what the loaders of a pass give. All processes have the same messages. */
static trek_status compare_data(trek_step *s)
{
    uint64_t first = 0;
    bool differ = false;
    for (int p = 0; p < s->job.processes; p++) {
        uint64_t data = message_at(s, p)->data;
        differ |= first && data && data != first;
        first = first ? first : data;
    }
    if (!differ)
        return TREK_OK;
    trek_text text = { 0 };
    bool has = message_at(s, s->job.process)->data != 0;
    trek_status own = has ? trek_loader_describe(trek_batch_here()->loader, &text) : TREK_OK;
    trek_status status = trek_agree(s->job.comm, own, "graph_train_batch: the data of the processes differ", has ? &text : NULL);
    trek_text_clear(&text);
    return all_know(s, status != TREK_OK
                           ? status
                           : trek_fail(TREK_ERR_ARGUMENT,
                                       "graph_train_batch: the processes' loaders give different data; they must give the same"));
}

/* Compares the settings when all have come to a step. */
static trek_status compare_settings(trek_step *s)
{
    bool differ = false;
    for (int p = 1; p < s->job.processes; p++)
        differ |= message_at(s, p)->settings != message_at(s, 0)->settings;
    if (!differ)
        return TREK_OK;
    trek_text text = { 0 };
    trek_settings_describe(s->team, &text);
    trek_status status = trek_agree(s->job.comm, TREK_OK, "graph_step: the settings of the processes differ", &text);
    trek_text_clear(&text);
    return all_know(s, status != TREK_OK ? status
                                         : trek_fail(TREK_ERR_ARGUMENT,
                                                     "graph_step: the settings of the processes differ; they must be equal"));
}

static int32_t stop_wanted(const trek_step *s)
{
    return (trek_stop_wanted() ? STOP_ALL : 0) | (s->team->graph->settings.stop_wanted ? STOP_THIS : 0);
}

/* Makes one round with this message. Fails if any process says that it has failed. */
static trek_status exchange(trek_step *s, sync_message *own)
{
    own->step = s->team->graph->settings.steps;
    own->digest = trek_workload_digest(s->pace.workload);
    own->ranks = s->team->local_ranks;
    own->stop = stop_wanted(s);
    trek_status status = trek_comm_gather_bytes(s->job.comm, own, message_bytes(s), s->messages);
    int failed = status == TREK_OK ? failed_process(s) : -1;
    if (failed >= 0 && own->kind != SYNC_FAILED)
        return fail_of_message(s, failed);
    for (int p = 0; p < s->job.processes && status == TREK_OK && failed < 0; p++) {
        sync_message *w = message_at(s, p);
        if (w->digest != own->digest && w->step == own->step)
            status =
                trek_fail(TREK_ERR_COMM, "graph_step: process %d has decided on other shares than process %d", p, s->job.process);
    }
    if (status == TREK_OK && failed < 0)
        status = compare_data(s);
    return status;
}

/* Returns zeroed memory for this process's message. */
static sync_message *new_message(trek_step *s, sync_message_kind kind)
{
    sync_message *own = (sync_message *)s->own_message;
    memset(own, 0, message_bytes(s));
    own->kind = kind;
    return own;
}

static bool all_say(const trek_step *s, sync_message_kind kind)
{
    for (int p = 0; p < s->job.processes; p++)
        if (message_at(s, p)->kind != (int32_t)kind)
            return false;
    return true;
}

static bool some_say(const trek_step *s, sync_message_kind kind)
{
    for (int p = 0; p < s->job.processes; p++)
        if (message_at(s, p)->kind == (int32_t)kind)
            return true;
    return false;
}

/* Makes a round of this kind. Processes that are already in their step take no part in the pass. Processes that ask
 * how all make the step learn that this one makes it by a call, and come to the next round. */
static trek_status exchange_pass(trek_step *s, sync_message *own, bool *sends)
{
    own->sends = trek_overlap_wants(s);
    trek_status status;
    do
        status = exchange(s, own);
    while (status == TREK_OK && some_say(s, SYNC_VOTE));
    if (status == TREK_OK && some_say(s, SYNC_RECORDED))
        status =
            trek_fail(TREK_ERR_COMM,
                      "graph_backward: a process has recorded its step, and process %d makes one more pass; all must do the same",
                      s->job.process);
    bool all = status == TREK_OK && all_say(s, (sync_message_kind)own->kind);
    for (int p = 0; p < s->job.processes && status == TREK_OK; p++) {
        const sync_message *w = message_at(s, p);
        all &= w->sends != 0;
        if (w->kind != own->kind && (w->kind == SYNC_BEGIN || w->kind == SYNC_PASS))
            status = trek_fail(TREK_ERR_COMM,
                               "graph_backward: process %d calls trek_graph_%s, process %d trek_graph_%s; all must call the same",
                               s->job.process, own->kind == SYNC_BEGIN ? "train_batch" : "backward", p,
                               w->kind == SYNC_BEGIN ? "train_batch" : "backward");
    }
    if (sends)
        *sends = all;
    return status;
}

bool trek_job_sync_all_made(const trek_step *s) { return trek_job_is_alone(&s->job) || all_say(s, SYNC_PASS); }

trek_status trek_job_sync_begin_pass(trek_step *s, bool *sends)
{
    *sends = false;
    bool asks = s->overlap.possible || (s->grains && s->grains->lent);
    return asks && trek_job_has_others(&s->job) ? exchange_pass(s, new_message(s, SYNC_BEGIN), sends) : TREK_OK;
}

/* Returns the sum of the weights of a round's pass. All processes know it, including those without a pass. */
static double weigh_pass(trek_step *s)
{
    double sum = 0;
    for (int p = 0; p < s->job.processes; p++)
        if (message_at(s, p)->kind == SYNC_PASS)
            sum += message_at(s, p)->weight;
    if (!isnan(sum))
        s->team->graph->accumulation.weight += sum;
    return sum;
}

trek_status trek_job_sync_pass(trek_step *s, double weight, double *total, bool *sends)
{
    *total = weight;
    if (trek_job_is_alone(&s->job)) {
        s->team->graph->accumulation.weight += weight;
        if (sends)
            *sends = trek_overlap_wants(s);
        return TREK_OK;
    }
    sync_message *own = new_message(s, SYNC_PASS);
    own->weight = weight;
    own->data = trek_batch_here()->digest;
    own->rng_draw = trek_rank_here.rng_draw;
    trek_status status = exchange_pass(s, own, sends);
    if (status == TREK_OK)
        *total = weigh_pass(s);
    for (int p = 0; p < s->job.processes && status == TREK_OK; p++) {
        const sync_message *w = message_at(s, p);
        if (w->kind == SYNC_PASS && w->rng_draw > trek_rank_here.rng_draw)
            trek_rank_here.rng_draw = w->rng_draw;
    }
    return status;
}

/* A process that has left the job says nothing more, although its group may not have noticed yet that it has ended. */
void trek_job_sync_failed(trek_step *s, trek_status status)
{
    bool left = s->job.survival && s->job.survival->over;
    if (trek_job_is_alone(&s->job) || left || trek_comm_ended(s->job.comm) || is_known(s))
        return;
    char message[TREK_ERROR_SIZE];
    trek_status set;
    trek_error_take(&set, message);
    sync_message *own = new_message(s, SYNC_FAILED);
    own->status = (int32_t)status;
    snprintf(own->message, sizeof own->message, "%.159s", set != TREK_OK ? message : trek_status_description(status));
    exchange(s, own);
    trek_error_clear();
    all_know(s, trek_fail(status, "%s", set != TREK_OK ? message : trek_status_description(status)));
}

static void agree_to_stop(trek_step *s, int32_t stop)
{
    if (stop & STOP_ALL)
        trek_stop_agree();
    if (stop & STOP_THIS)
        s->team->graph->settings.stop_agreed = true;
}

/* Reads what the messages of a step say about all ranks. */
static void read_messages(trek_step *s)
{
    int32_t stop = 0;
    int at = 0;
    s->window_rows = s->drift = 0;
    for (int p = 0; p < s->job.processes; p++) {
        sync_message *w = message_at(s, p);
        stop |= w->stop;
        s->window_rows += w->rows;
        s->drift = w->drift > s->drift || w->drift != w->drift ? w->drift : s->drift;
        for (int r = 0; r < s->job.process_ranks[p]; r++, at++) {
            s->pace.ms[at] = pairs_of(w)[r].ms;
            s->pace.starved_ms[at] = pairs_of(w)[r].starved_ms;
            s->pace.units[at] = pairs_of(w)[r].units;
        }
    }
    s->pace.communication_ms = message_at(s, 0)->communication_ms;
    agree_to_stop(s, stop);
}

/* Returns whether processes that the job could let in wait in this one. Where several graphs are trained, nobody could say to
 * which of them a process comes. */
static bool has_joiners(const trek_step *s)
{
    const trek_survival *survival = s->job.survival;
    return trek_division_is_alone(s) && survival && survival->state && !survival->over &&
        trek_regroup_joiners(survival->regroup, s->job.comm) > 0;
}

static void note_joiners(trek_step *s)
{
    bool joiners = false;
    for (int p = 0; p < s->job.processes; p++)
        joiners |= message_at(s, p)->joiners != 0;
    if (s->job.survival)
        s->job.survival->joiners = joiners;
}

static trek_status read_watches(trek_step *s)
{
    trek_status status = TREK_OK;
    for (int r = 0, k = s->job.first_rank; r < s->team->local_ranks && status == TREK_OK; r++, k++)
        status = trek_stopwatch_read(&s->team->watches->of[r], &s->pace.ms[k], &s->pace.starved_ms[k], &s->pace.units[k]);
    return status;
}

void trek_job_sync_stop(trek_step *s)
{
    if (s->stops)
        agree_to_stop(s, stop_wanted(s));
}

trek_status trek_job_sync_step(trek_step *s, trek_status own, bool update, bool *pending)
{
    bool unsent = *pending;
    *pending = false;
    if (own != TREK_OK) {
        trek_job_sync_failed(s, own);
        return own;
    }
    s->window_rows = 0;
    for (int r = 0; r < s->team->local_ranks; r++)
        s->window_rows += (double)s->team->replicas[r].samples;
    if (update && !s->records) /* its events have no time */
        own = read_watches(s);
    if (trek_job_is_alone(&s->job)) {
        if (update)
            trek_job_sync_stop(s);
        return own;
    }
    sync_message *mine = new_message(s, update ? SYNC_STEP : SYNC_REDUCE);
    mine->communication_ms = s->pace.own_communication_ms;
    mine->rows = s->window_rows;
    mine->drift = s->own_drift;
    mine->unsent = unsent;
    mine->settings = trek_settings_digest(s->team);
    mine->joiners = update && has_joiners(s);
    for (int r = 0, k = s->job.first_rank; r < s->team->local_ranks; r++, k++)
        pairs_of(mine)[r] = (rank_report){ s->pace.ms[k], s->pace.starved_ms[k], s->pace.units[k] };
    for (;;) { /* passes of others only count by their weight here */
        trek_status status = exchange(s, mine);
        if (status != TREK_OK)
            return status;
        weigh_pass(s);
        if (all_say(s, (sync_message_kind)mine->kind))
            status = compare_settings(s);
        if (status != TREK_OK)
            return status;
        if (all_say(s, (sync_message_kind)mine->kind))
            break;
        for (int p = 0; p < s->job.processes; p++)
            if (message_at(s, p)->kind > SYNC_PASS && message_at(s, p)->kind != mine->kind)
                return trek_fail(
                    TREK_ERR_COMM,
                    "graph_step: process %d is in trek_graph_%s, process %d in trek_graph_%s; all must call the same",
                    s->job.process,
                    update ? "step" : "reduce", p, update ? "reduce" : "step");
    }
    for (int p = 0; p < s->job.processes; p++)
        *pending |= message_at(s, p)->unsent != 0;
    if (update) {
        read_messages(s);
        note_joiners(s);
    }
    return TREK_OK;
}

/* --- captured steps (recording.c) ----------------------------------------------------------- */

/* Reads the messages of processes that do not vote: one that has come to its step makes no pass this time; others
 * never vote. */
static void read_no_votes(const trek_step *s, trek_capture_verdict *verdict)
{
    *verdict = (trek_capture_verdict){ .way = TREK_CAPTURE_CALL };
    for (int p = 0; p < s->job.processes && !verdict->why[0]; p++)
        if (message_at(s, p)->kind == SYNC_PASS || message_at(s, p)->kind == SYNC_BEGIN)
            snprintf(verdict->why, sizeof verdict->why, "process %d does not record its steps", p);
}

trek_status trek_job_sync_vote(trek_step *s, const trek_capture_vote *vote, trek_capture_verdict *verdict)
{
    sync_message *own = new_message(s, SYNC_VOTE);
    own->vote = *vote;
    own->data = trek_batch_here()->digest;
    own->settings = trek_settings_digest(s->team);
    trek_status status = exchange(s, own);
    if (status != TREK_OK)
        return status;
    if (!all_say(s, SYNC_VOTE)) {
        read_no_votes(s, verdict);
        return TREK_OK;
    }
    int32_t stop = 0;
    for (int p = 0; p < s->job.processes; p++) {
        s->votes[p] = message_at(s, p)->vote;
        stop |= message_at(s, p)->stop;
    }
    *verdict = trek_capture_decide(s->votes, s->job.processes);
    if (verdict->way != TREK_CAPTURE_REPLAY) /* the step's own rounds will compare */
        return TREK_OK;
    status = compare_settings(s);
    if (status == TREK_OK)
        agree_to_stop(s, stop);
    return status;
}

trek_status trek_job_sync_recorded(trek_step *s, trek_status own)
{
    if (own != TREK_OK) {
        trek_job_sync_failed(s, own);
        return own;
    }
    trek_status status = exchange(s, new_message(s, SYNC_RECORDED));
    if (status == TREK_OK && !all_say(s, SYNC_RECORDED))
        status =
            trek_fail(TREK_ERR_COMM,
                      "graph_backward: process %d has recorded its step, and another makes one more pass; all must do the same",
                      s->job.process);
    return status;
}

/* --- reducing ------------------------------------------------------------------------ */

trek_status trek_job_sync_flags(trek_step *s)
{
    trek_reducer *reducer = s->team->replicas[0].reducer;
    double factor;
    if (trek_job_is_alone(&s->job))
        return TREK_OK;
    trek_status status = trek_reducer_meet(reducer, s->job.comm, "graph_step", 1, TREK_OK, &factor);
    for (int k = 0; k < reducer->n && status == TREK_OK; k++)
        for (int r = 0; r < s->team->local_ranks; r++)
            s->team->replicas[r].arena->segments[k].used = s->team->any[k] && trek_item_trains(&reducer->items[k]);
    return status == TREK_OK ? TREK_OK : all_know(s, status);
}

/* --- beginning ---------------------------------------------------------------------------- */

static void free_rooms(trek_step *s)
{
    trek_free(s->own_message);
    trek_free(s->messages);
    trek_free(s->votes);
    s->own_message = s->messages = NULL;
    s->votes = NULL;
}

trek_status trek_job_sync_copy_optimizer(trek_step *s, const trek_optimizer_snapshot *snapshot)
{
    trek_text text = { 0 };
    if (snapshot)
        trek_optimizer_snapshot_describe(snapshot, &text);
    trek_status status = trek_agree(s->job.comm, text.failed ? trek_error_status() : TREK_OK,
                                    "trainer_setup: the optimizers, or what they have been through, differ", &text);
    trek_text_clear(&text);
    trek_tensor *x;
    for (int k = 0; snapshot && status == TREK_OK && (x = trek_optimizer_snapshot_tensor(snapshot, k)); k++)
        status = trek_replica_take_tensor(s->job.comm, x);
    return status;
}

trek_status trek_job_sync_make_rooms(trek_step *s)
{
    free_rooms(s);
    s->own_message = trek_calloc(1, message_bytes(s));
    s->messages = trek_calloc((size_t)s->job.processes, message_bytes(s));
    s->votes = trek_calloc((size_t)s->job.processes, sizeof *s->votes);
    return s->own_message && s->messages && s->votes ? trek_reducer_make_room(s->team->replicas[0].reducer, s->job.processes)
        : trek_error_status();
}

trek_job_member trek_job_sync_member(const trek_step *s)
{
    return (trek_job_member){ .ranks = s->team->local_ranks, .device = (int32_t)s->team->replicas[0].arena->device.type,
                              .kinds = s->team->kinds, .sharers = s->team->twice ? 2 : s->team->sharers,
                              .budgets = (s->team->memory->budgets != NULL) + 2 * s->team->memory->recomputes };
}

trek_status trek_job_sync_begin(trek_step *s)
{
    const trek_job_member own = trek_job_sync_member(s);
    bool gpus;
    char *graph = trek_job_is_ready(&s->job) ? trek_team_describe_graph(s->team->graph) : NULL;
    trek_status status = trek_replica_compare(s->team->replicas[0].model, s->job.comm, graph,
                                              "trainer_setup: the processes' graphs differ",
                                              graph ? TREK_OK : trek_error_status());
    trek_free(graph);
    if (status == TREK_OK)
        status = trek_job_meet(&s->job, &own, &gpus);
    if (status == TREK_OK && gpus)
        status = trek_comm_nccl_join(s->job.comm, s->team->replicas[0].arena->device);
    return status == TREK_OK ? trek_job_sync_make_rooms(s) : status;
}

void trek_job_sync_end(trek_step *s)
{
    if (trek_job_has_others(&s->job))
        trek_rank_sums_set_comm(trek_ranks_sums(s->team->ranks), NULL);
    trek_division_withdraw(s);
    free_rooms(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A pass in grain mode. Ranks get grains of the batch (grain_source.c), and what all have given is put together. Who runs a
 * grain does not show in what it gives. */
#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/job/job_bytes.h"
#include "distributed/pass/arrivals.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/shares.h"
#include "distributed/pass/giving.h"
#include "distributed/pass/survivors.h"
#include "distributed/policy/exact.h"
#include "distributed/policy/grain_capture.h"
#include "distributed/policy/grain_source.h"
#include "distributed/policy/policies.h"
#include "distributed/reduce/reduce.h"
#include "distributed/reduce/twice.h"
#include "distributed/team/step.h"
#include "graph/batch_run.h"
#include "graph/capture_internal.h"
#include "graph/graph_loader_internal.h"
#include "tensor/rank_context.h"

typedef struct grain_pass {
    trek_step *s;
    trek_grains *grains;
    const trek_batch *batch;
    trek_step_pass pass;
    trek_grain_call call;
    int64_t n;               /* grains of this process's part */
    trek_grain_source *source;
} grain_pass;

/* Returns whether all processes train on parts of this batch, so that its grains have numbers in all of them. */
static bool is_joint(const grain_pass *c)
{
    return c->pass.backward && (trek_job_is_alone(&c->s->job) || !trek_loader_plan(c->batch->loader)->whole);
}

/* --- a pass ----------------------------------------------------------------------------------- */

static trek_status check(const grain_pass *c)
{
    const trek_batch *batch = c->batch;
    const trek_accumulation *passes = &c->s->team->graph->accumulation;
    int64_t size = c->grains->size;
    if (batch->dataset->n_fields > 64)
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_train_batch: dataset: more than 64 fields; at most 64 are possible");
    bool last = batch->first + batch->n == batch->global;
    if (batch->n > 0 && (batch->first % size != 0 || (batch->n % size != 0 && !last)))
        return trek_fail(TREK_ERR_STATE,
                         "graph_train_batch: batch: samples %lld to %lld of %lld were divided before .grain was set to %lld; "
                         "start the epoch after trek_trainer_setup",
                         (long long)batch->first, (long long)(batch->first + batch->n), (long long)batch->global,
                         (long long)size);
    if (c->pass.training && !c->pass.backward && c->s->team->replicas[0].model->n_buffers > 0)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "graph_train_batch: graph: in training mode without gradients, in grains (.grain); they change buffers "
                         "in a step, so use trek_graph_train(graph, false), or gradients");
    if (!c->pass.backward)
        return TREK_OK;
    if (c->s->job.survival && !c->pass.joint)
        return trek_fail(
            TREK_ERR_UNSUPPORTED,
            "graph_train_batch: batch: its loader gives each process batches of its own; with .min_processes it must "
            "divide each batch, so that the others can compute what dies with a process");
    if (trek_ranks_are_reduced(c->s) || c->grains->broken)
        return trek_fail(TREK_ERR_STATE, "graph_train_batch: graph: %s; call %s first",
                         c->grains->broken ? "some of its gradients could not be computed or summed"
                                           : "its gradients have been reduced",
                         c->grains->broken ? "trek_graph_zero_grad" : "trek_graph_step");
    if (c->grains->passes.n > 0 && !trek_accumulation_weighs(passes))
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_train_batch: graph: a second pass in a step in grains (.grain); set "
                                               ".accumulate, which makes the passes of a step one batch");
    return TREK_OK;
}

/* What the processes tell each other of their grains at the end of a pass; nothing of the call changes before all have it. */
typedef struct grain_join {
    int64_t n;               /* grains of the batch */
    double *losses;          /* [2n] of each grain, and its weight: every number is that of one process, and zero in the others */
    double *runs;            /* [n] how many processes have run it */
    double *draws;           /* [n] how many random draws were made after it, in all of these together */
    double *recorded;        /* [1] whether training functions have recorded anything */
    job_bytes texts;         /* of each process: what they have recorded */
} grain_join;

static uint64_t last_draw(const grain_pass *c)
{
    uint64_t last = trek_rank_here.rng_draw;
    for (int r = 0; r < c->s->team->local_ranks; r++)
        last = c->call.rng_draw[r] > last ? c->call.rng_draw[r] : last;
    return last;
}

static trek_status join_losses(grain_pass *c, grain_join *j)
{
    const trek_grains *g = c->grains;
    memset(j->losses, 0, (size_t)(4 * j->n + 1) * sizeof *j->losses);
    for (int64_t k = 0; k < g->n_records; k++) {
        const trek_grain_record *record = trek_grains_record(g, k);
        if (record->pass != c->call.pass_number)
            continue;
        j->runs[record->number]++;
        j->draws[record->number] += (double)last_draw(c);
    }
    for (int64_t k = 0; k < j->n; k++) {
        j->losses[2 * k] = c->call.sums[k].loss;
        j->losses[2 * k + 1] = c->call.sums[k].weight;
        *j->recorded += (double)c->call.recorded[k].length + c->call.recorded[k].failed;
    }
    return trek_job_reduce(&c->s->job, j->losses, 4 * j->n + 1, TREK_F64, TREK_REDUCTION_SUM);
}

/* The processes that are left divide the grains that died with others. *any: there were some. */
static trek_status run_lost(grain_pass *c, const grain_join *j, bool *any)
{
    int64_t lost = 0, n = 0, *own = c->s->job.survival ? trek_calloc((size_t)j->n, sizeof *own) : NULL;
    *any = false;
    if (!own)
        return c->s->job.survival ? TREK_ERR_MEMORY : TREK_OK;
    for (int64_t k = 0; k < j->n; k++)
        if (j->runs[k] == 0 && lost++ % c->s->job.processes == c->s->job.process)
            own[n++] = k;
    *any = lost > 0;
    if (lost > 0)
        trek_log_message(TREK_LOG_LEVEL_INFO, "job: %lld grains of step %lld are computed by those that are left",
                         (long long)lost,
                         (long long)c->s->team->graph->settings.steps);
    uint64_t rng_draw = trek_rank_here.rng_draw;
    trek_status status = n > 0 ? trek_grain_call_run_list(&c->call, own, n) : TREK_OK;
    trek_rank_here.rng_draw = rng_draw;
    trek_free(own);
    return status;
}

/* What training functions have recorded goes to process 0, which adds it up in the order of grains. */
static trek_status gather_recorded(const grain_pass *c, grain_join *j)
{
    trek_text text = { 0 };
    for (int64_t k = 0; k < j->n; k++) {
        int64_t head[2] = { k, (int64_t)c->call.recorded[k].length };
        text.failed |= c->call.recorded[k].failed;
        if (head[1] == 0)
            continue;
        trek_text_bytes(&text, (const char *)head, sizeof head);
        trek_text_bytes(&text, c->call.recorded[k].data, c->call.recorded[k].length);
    }
    trek_status status = trek_job_bytes_gather(c->s->job.comm, text.failed ? NULL : text.data, (int64_t)text.length,
                                               text.failed ? TREK_ERR_MEMORY : TREK_OK, "what it has recorded", &j->texts);
    trek_text_clear(&text);
    return status;
}

/* Puts what a process has recorded where its grains are. */
static trek_status sort_recorded(grain_pass *c, const char *bytes, int64_t length)
{
    int64_t n = trek_grains_count(c->grains, c->pass.rows), head[2];
    for (int64_t at = 0; at < length; at += (int64_t)sizeof head + head[1]) {
        if (length - at < (int64_t)sizeof head)
            return trek_fail(TREK_ERR_COMM, "graph_train_batch: values that another process recorded are damaged");
        memcpy(head, bytes + at, sizeof head);
        if (head[0] < 0 || head[0] >= n || head[1] < 0 || head[1] > length - at - (int64_t)sizeof head)
            return trek_fail(TREK_ERR_COMM, "graph_train_batch: values that another process recorded are damaged");
        trek_text_bytes(&c->call.recorded[head[0]], bytes + at + sizeof head, (size_t)head[1]);
    }
    return TREK_OK;
}

/* Called when all have everything. */
static trek_status take(grain_pass *c, const grain_join *j)
{
    trek_status status = TREK_OK;
    for (int64_t k = 0; k < j->n; k++) {
        c->call.sums[k].loss = j->losses[2 * k];
        c->call.sums[k].weight = j->losses[2 * k + 1];
        trek_text_clear(&c->call.recorded[k]);
        /* a process that has run no grain, and knows of none in time if all were lost, draws what follows as the others do */
        uint64_t draw = j->runs[k] > 0 ? (uint64_t)(j->draws[k] / j->runs[k]) : 0;
        if (draw > trek_rank_here.rng_draw)
            trek_rank_here.rng_draw = draw;
    }
    for (int p = 0; p < c->s->job.processes && j->texts.bytes && status == TREK_OK && c->s->job.process == 0; p++)
        status = sort_recorded(c, j->texts.bytes + (size_t)p * j->texts.room, j->texts.lengths[p]);
    return status;
}

static trek_status join_with(grain_pass *c, grain_join *j)
{
    trek_status status;
    bool lost = false;
    do {
        status = join_losses(c, j);
        if (status == TREK_OK)
            status = run_lost(c, j, &lost);
    } while (status == TREK_OK && lost);
    if (status == TREK_OK && *j->recorded > 0)
        status = gather_recorded(c, j);
    if (status == TREK_OK)
        status = trek_survival_commit(&c->s->job);
    return status == TREK_OK ? take(c, j) : status;
}

/* All processes get what the grains of all have given besides gradients. */
static trek_status join(grain_pass *c)
{
    grain_join j = { .n = trek_grains_count(c->grains, c->pass.rows) };
    if (!trek_job_sync_all_made(c->s))
        return trek_fail(TREK_ERR_STATE,
                         "graph_train_batch: graph: another process is in its step already; in grains (.grain) all "
                         "processes train on the same batches");
    j.losses = trek_calloc((size_t)(4 * j.n + 1), sizeof *j.losses);
    if (!j.losses) {
        trek_job_abort(&c->s->job, "a process has no memory for the losses of grains");
        return TREK_ERR_MEMORY;
    }
    j.runs = j.losses + 2 * j.n;
    j.draws = j.losses + 3 * j.n;
    j.recorded = j.losses + 4 * j.n;
    trek_status status = join_with(c, &j);
    trek_job_bytes_clear(&j.texts);
    trek_free(j.losses);
    return status;
}

/* Goes on without processes that have died. If they have taken a part of the sums with them, all grains of the pass are lost. */
static bool go_on(grain_pass *c, trek_status *status)
{
    if (!trek_survival_go_on(&c->s->job, status))
        return false;
    for (int64_t k = 0; k < trek_grains_count(c->grains, c->pass.rows) && c->s->team->divides_grads; k++) {
        trek_pass_sum_clear(&c->call.sums[k]);
        trek_text_clear(&c->call.recorded[k]);
    }
    atomic_store(&c->call.failed, false);
    return true;
}

/* Tells the other processes of the pass. If some of them die, those that are left do it again. */
static trek_status tell(grain_pass *c)
{
    trek_step *s = c->s;
    double weight = 0, total;
    trek_status status = TREK_OK;
    for (int64_t k = 0; k < trek_grains_count(c->grains, c->pass.rows); k++)
        weight += c->call.sums[k].weight;
    do {
        trek_giving_await(s);
        status = c->pass.backward ? trek_twice_may_train(s, "graph_train_batch") : TREK_OK;
        if (status == TREK_OK && c->pass.backward)
            status = trek_job_sync_pass(s, weight, &total, NULL);
        if (status == TREK_OK && c->pass.joint && trek_job_has_others(&s->job))
            status = join(c);
    } while (status != TREK_OK && go_on(c, &status));
    return status == TREK_OK && c->pass.joint ? trek_survivors_after_commit(s) : status;
}

/* Called after all ranks' grains: tells the other processes, and counts samples and draws. */
static trek_status count(grain_pass *c)
{
    trek_step *s = c->s;
    trek_rank_here.rng_draw = last_draw(c);
    trek_status status = tell(c);
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK; r++) {
        s->team->replicas[r].samples += c->pass.training ? c->call.rows[r] : 0;
        s->team->replicas[r].measured_rows += c->pass.backward ? c->call.rows[r] : 0;
    }
    if (status == TREK_OK)
        trek_rank_here.rng_draw = last_draw(c);
    return status == TREK_OK ? trek_grain_call_give_recorded(&c->call) : status;
}

/* Everything that can fail before a grain runs. */
static trek_status prepare(grain_pass *c)
{
    trek_step *s = c->s;
    trek_status status = trek_batch_fill(c->batch); /* one that was begun before .grain was set */
    if (status == TREK_OK)
        status = check(c);
    if (status == TREK_OK && c->pass.backward)
        status = trek_workload_check_batch(s->pace.workload);
    if (status == TREK_OK)
        status = trek_grain_source_plan(c->source, &c->call);
    if (status == TREK_OK)
        status = trek_ranks_prepare_scaler(s);
    if (status == TREK_OK)
        status = trek_grain_call_begin(&c->call);
    if (status == TREK_OK && c->pass.backward)
        status = trek_grains_reserve(c->grains, c->pass.joint ? trek_grains_count(c->grains, c->pass.rows) : c->n);
    if (status == TREK_OK && c->pass.backward)
        status = trek_step_passes_add(&c->grains->passes, &c->pass);
    trek_team_follow_flags(s->team);
    return status;
}

/* Where gradients are divided among processes, each adds to the sums of all: none may begin a step before all have emptied
 * theirs. */
static trek_status open_sums(const grain_pass *c, trek_status status)
{
    trek_survival *survival = c->s->job.survival;
    bool sends, died = false, again = true;
    if (status != TREK_OK || !c->pass.backward || c->call.pass_number > 0)
        return status;
    trek_grains_empty(c->s);
    while (again) {
        if (survival)
            survival->ahead = false;
        status = trek_job_sync_begin_pass(c->s, &sends);
        died = status != TREK_OK && trek_survival_go_on(&c->s->job, &status); /* those that are left have emptied theirs, */
        again = died && survival->ahead; /* but who was still in the last commit comes here only now */
    }
    c->grains->emptied = false;
    return died ? trek_twice_may_train(c->s, "graph_train_batch") : status;
}

static trek_status run_pass(grain_pass *c)
{
    trek_step *s = c->s;
    trek_grains *g = c->grains;
    c->call.pass_number = g->passes.n;
    trek_status status = open_sums(c, prepare(c));
    bool began = status == TREK_OK && c->pass.backward; /* from here on a failure leaves a part of the gradients */
    if (status == TREK_OK) {
        trek_grains_keep_buffers(g, s->team->replicas[0].model, g->first_buffers);
        status = trek_grain_call_run(&c->call);
        if (status != TREK_OK && c->pass.joint &&
            s->team->divides_grads) /* to the sums of one that has died nothing can be added */
            go_on(c, &status);
    }
    if (status != TREK_OK && c->pass.backward) /* an evaluation has no round in which others would learn it */
        trek_job_sync_failed(s, status);
    else if (status == TREK_OK)
        status = count(c);
    if (status != TREK_OK) {
        g->broken |= began;
        trek_rank_here.rng_draw = c->pass.rng_draw; /* when it is dropped and made again, it draws the same numbers */
        return status;
    }
    trek_ranks_passed(s, c->pass.backward);
    return TREK_OK;
}

static trek_var *train_batch(trek_step *s, const trek_batch *batch)
{
    trek_graph *graph = s->team->graph;
    trek_accumulation *passes = &graph->accumulation;
    grain_pass c = { .s = s, .grains = s->grains, .batch = batch,
                     .n = trek_grains_count(s->grains, batch->n),
                     .pass = { .loader = batch->loader, .epoch = batch->epoch, .batch = batch->first_batch,
                               .rows = batch->global, .backward = trek_graph_learns(graph),
                               .training = trek_team_is_training(s->team),
                               .no_grad_depth = trek_grad_mode_here.no_grad_depth, .offload = trek_grad_mode_here.offload,
                               .denominator = (double)batch->global, .rng_step = trek_rank_here.rng_step,
                               .rng_draw = trek_rank_here.rng_draw } };
    if (c.pass.backward && trek_accumulation_weighs(passes))
        c.pass.denominator = trek_accumulation_denominator(passes, c.pass.denominator);
    c.pass.joint = is_joint(&c);
    c.source = trek_calloc(1, sizeof *c.source);
    c.call = (trek_grain_call){ .s = s, .pass = &c.pass, .batch = batch, .source = c.source,
                                .captures = trek_graph_is_in_parts(graph) };
    trek_job_say(&s->job, c.pass.backward ? "forward and backward" : "forward", c.pass.backward);
    trek_ranks_note_wait(s, c.pass.backward);
    trek_status status = trek_error_status();
    if (status == TREK_OK && c.pass.backward)
        status = trek_twice_may_train(s, "graph_train_batch");
    if (status == TREK_OK && c.pass.backward && s->grains->passes.n == 0)
        status = trek_arrivals_look(s, batch);
    if (status == TREK_OK)
        status = run_pass(&c);
    if (status != TREK_OK) /* the program may change parameters after this */
        trek_giving_await(s);
    trek_giving_end(s);
    int64_t n = trek_grains_count(s->grains, c.pass.rows);
    trek_var *mean = status == TREK_OK ? trek_pass_mean(c.call.sums, (int)n, trek_ranks_device(s->team->ranks, 0)) : NULL;
    trek_grain_call_end(&c.call);
    trek_free(c.source);
    return mean;
}

/* The only backward is that of a pass. */
static trek_status backward(trek_step *s, trek_var *loss, double weight)
{
    (void)s, (void)loss, (void)weight;
    return trek_grains_refuse("graph_backward");
}

static bool wanted(const trek_ranks_opts *opts) { return opts->grain > 0; }

static trek_status make(trek_step *s, const trek_ranks_opts *opts)
{
    s->grain = opts->grain;
    trek_status status = trek_grains_make(s);
    if (status == TREK_OK)
        status = trek_digests_make(s, opts->digests);
    if (status != TREK_OK)
        return status;
    s->grains->audit = opts->audit;
    s->grains->audit_removes = opts->audit_removes;
    return TREK_OK;
}

static void end(trek_step *s)
{
    trek_grain_parts.forget(s);
    trek_grains_free(s);
}

const trek_step_policy trek_grains_policy = {
    .name = "grains", .wanted = wanted, .make = make, .end = end, .sums = true, .parts = &trek_grain_parts,
    .train_batch = train_batch,
    .window = trek_ranks_window, .backward = backward, .reduce = trek_ranks_reduce, .step = trek_ranks_step,
};

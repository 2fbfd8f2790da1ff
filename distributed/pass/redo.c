/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/pass/redo.h"

#include "autograd/var_internal.h"
#include "data/batch_here.h"
#include "data/loader_position.h"
#include "distributed/job/survival.h"
#include "distributed/pass/arrivals.h"
#include "distributed/pass/division.h"
#include "distributed/pass/giving.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/survivors.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/reduce.h"
#include "distributed/reduce/twice.h"
#include "distributed/team/observations.h"
#include "graph/batch_run.h"
#include "graph/graph_internal.h"
#include "graph/observe_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- making ------------------------------------------------------------------------------------------------- */

static trek_status refuse(const char *why)
{
    return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .min_processes: set without .grain, with %s", why);
}

static trek_status check(const trek_step *s)
{
    if (s->job.mixed)
        return refuse("ranks on CPUs and on GPUs, which round differently and take the first one's parameters after each step");
    if (trek_team_meets(s->team))
        return refuse(
            "layers that use the samples of other ranks (synchronised batch norm), which wait for those of a process that "
            "has died");
    if (trek_team_has_states(s->team))
        return refuse("a graph that carries states from batch to batch; those of a process die with it");
    return TREK_OK;
}

static trek_status make_start(int rank, void *step)
{
    trek_step *s = step;
    const trek_replica *model = s->team->replicas[rank].model;
    trek_rank_start *start = &s->redo->starts[rank];
    start->buffers = trek_calloc((size_t)model->n_buffers, sizeof *start->buffers);
    if (!start->buffers)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < model->n_buffers; k++)
        if (!(start->buffers[k] = trek_tensor_clone(model->buffers[k]->data)))
            return trek_error_status();
    return TREK_OK;
}

trek_status trek_redo_make(trek_step *s)
{
    trek_status status = check(s);
    if (status != TREK_OK)
        return status;
    s->redo = trek_calloc(1, sizeof *s->redo);
    if (!s->redo || !(s->redo->starts = trek_calloc((size_t)s->team->local_ranks, sizeof *s->redo->starts)))
        return TREK_ERR_MEMORY;
    return trek_ranks_call(s->team->ranks, make_start, s);
}

void trek_redo_free(trek_step *s)
{
    trek_redo *redo = s->redo;
    if (!redo)
        return;
    for (int r = 0; redo->starts && r < s->team->local_ranks; r++) {
        trek_rank_start *start = &redo->starts[r];
        for (int k = 0; start->buffers && k < s->team->replicas[r].model->n_buffers; k++)
            trek_tensor_release(start->buffers[k]);
        trek_free(start->buffers);
    }
    trek_free(redo->starts);
    trek_step_passes_clear(&redo->passes);
    trek_free(redo);
    s->redo = NULL;
}

trek_status trek_redo_refuse(const char *function)
{
    return trek_fail(
        TREK_ERR_UNSUPPORTED,
        "%s: graph: it is trained with .min_processes, and a forward and backward of the program's own cannot be made "
        "again without a process that has died; register a loader and a loss, and call trek_graph_train_batch",
        function);
}

/* --- the beginning of a step -------------------------------------------------------------------------------- */

/* Runs fn on the ranks' threads if there are buffers, which are on their devices. */
static trek_status call_ranks(trek_step *s, trek_rank_fn fn)
{
    if (s->team->replicas[0].model->n_buffers > 0)
        return trek_ranks_call(s->team->ranks, fn, s);
    for (int r = 0; r < s->team->local_ranks; r++)
        fn(r, s);
    return TREK_OK;
}

static trek_status keep_start(int rank, void *step)
{
    trek_step *s = step;
    const rank_replica *own = &s->team->replicas[rank];
    trek_rank_start *start = &s->redo->starts[rank];
    trek_status status = TREK_OK;
    for (int k = 0; k < own->model->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_copy_from(start->buffers[k], own->model->buffers[k]->data);
    start->samples = own->samples;
    start->measured_rows = own->measured_rows;
    return status;
}

static trek_status put_start(int rank, void *step)
{
    trek_step *s = step;
    rank_replica *own = &s->team->replicas[rank];
    const trek_rank_start *start = &s->redo->starts[rank];
    trek_status status = TREK_OK;
    for (int k = 0; k < own->model->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_copy_from(own->model->buffers[k]->data, start->buffers[k]);
    own->samples = start->samples;
    own->measured_rows = start->measured_rows;
    return status;
}

/* Drops what the passes of the step have given. */
static trek_status go_back(trek_step *s)
{
    trek_status status = trek_ranks_zero(s);
    trek_ranks_begin(s);
    trek_accumulation_clear(&s->team->graph->accumulation);
    return status == TREK_OK ? call_ranks(s, put_start) : status;
}

/* --- passes that are made again ----------------------------------------------------------------------------- */

/* Gives the process the part of a pass's batch that it has in the present group. Loaders may still divide as before. */
static void take_part(const trek_step *s, const trek_step_pass *pass, trek_batch *part)
{
    int64_t first[TREK_MAX_RANKS + 1];
    if (s->job.survival->held)
        trek_division_of_job(s, pass->rows, first);
    else
        trek_division_of(pass->rows, first);
    *part = (trek_batch){ .dataset = trek_loader_dataset(pass->loader), .given = true, .first = first[s->job.process],
                          .n = first[s->job.process + 1] - first[s->job.process], .global = pass->rows, .unread = true,
                          .loader = pass->loader, .epoch = pass->epoch, .first_batch = pass->batch, .batches = 1 };
}

typedef struct held_records {
    trek_step *s;
    trek_text *of;           /* [local_ranks] */
} held_records;

static trek_status take_records(int rank, void *arg)
{
    const held_records *held = arg;
    trek_graph *graph = held->s->team->replicas[rank].graph;
    trek_status status = trek_observations_read(graph);
    held->of[rank] = trek_observations_take(graph);
    return held->of[rank].failed ? TREK_ERR_MEMORY : status;
}

/* What was recorded in between is dropped: the pass has recorded it when it was made first. */
static trek_status put_records(int rank, void *arg)
{
    const held_records *held = arg;
    trek_graph *graph = held->s->team->replicas[rank].graph;
    trek_status status = trek_observations_read(graph);
    trek_text again = trek_observations_take(graph);
    trek_text_clear(&again);
    return status == TREK_OK ? trek_observations_unpack(graph, held->of[rank].data, (int64_t)held->of[rank].length) : status;
}

/* Trains on what `part` has of a pass, with the caller's modes and random numbers of then. */
static trek_var *run(trek_step *s, const trek_step_pass *pass, const trek_batch *part)
{
    trek_grad_mode mode = trek_grad_mode_here;
    uint64_t rng_step = trek_rank_here.rng_step, digest = trek_batch_here()->digest;
    trek_grad_mode_here.no_grad_depth = pass->no_grad_depth;
    trek_grad_mode_here.offload = pass->offload;
    trek_rank_here.rng_step = pass->rng_step;
    trek_rank_here.rng_draw = pass->rng_draw;
    trek_batch_here()->digest = pass->digest;
    trek_var *mean = trek_ranks_train_batch(s, part);
    trek_batch_here()->digest = digest;
    trek_rank_here.rng_step = rng_step;
    trek_grad_mode_here = mode;
    return mean;
}

/* Runs a pass that has been run before. */
static trek_var *run_unrecorded(trek_step *s, const trek_step_pass *pass, const trek_batch *part)
{
    held_records held = { s, trek_calloc((size_t)s->team->local_ranks, sizeof *held.of) };
    trek_kept_error own;
    trek_status status = held.of ? trek_ranks_call(s->team->ranks, take_records, &held) : TREK_ERR_MEMORY;
    trek_var *mean = status == TREK_OK ? run(s, pass, part) : NULL;
    trek_error_keep(&own); /* what was recorded is put back all the same */
    trek_error_clear();
    trek_status put = held.of ? trek_ranks_call(s->team->ranks, put_records, &held) : TREK_ERR_MEMORY;
    if (own.status != TREK_OK)
        trek_error_put_back(&own);
    for (int r = 0; held.of && r < s->team->local_ranks; r++)
        trek_text_clear(&held.of[r]);
    trek_free(held.of);
    return put == TREK_OK ? mean : NULL;
}

static trek_status run_again(trek_step *s, const trek_step_pass *pass)
{
    trek_batch part;
    if (!pass->loader)
        return trek_fail(TREK_ERR_STATE,
                         "graph_step: the loader has ended, or the step has gone on with another one, so the samples "
                         "of a pass cannot be read again");
    take_part(s, pass, &part);
    trek_scope scope = trek_scope_begin();
    trek_status status = scope.depth && run_unrecorded(s, pass, &part) ? TREK_OK : trek_error_status();
    trek_scope_end(scope);
    return status;
}

/* Makes the first n passes of the step again. If another group meets meanwhile, the caller begins again. */
static trek_status make_again(trek_step *s, int64_t n)
{
    trek_redo *redo = s->redo;
    uint64_t rng_draw = trek_rank_here.rng_draw;
    redo->groups = s->job.survival->groups;
    trek_log_message(TREK_LOG_LEVEL_INFO, "job: step %lld is made again by those that are left",
                     (long long)s->team->graph->settings.steps);
    trek_status status = go_back(s);
    for (int64_t k = 0; k < n && status == TREK_OK && redo->groups == s->job.survival->groups; k++) {
        status = run_again(s, &redo->passes.of[k]);
        if (status == TREK_OK)
            status = trek_survivors_after_commit(s);
    }
    trek_rank_here.rng_draw = rng_draw;
    return status;
}

static trek_status renew(trek_step *s, int64_t n)
{
    trek_status status = TREK_OK;
    while (status == TREK_OK && s->redo->groups != s->job.survival->groups)
        status = make_again(s, n);
    return status;
}

trek_status trek_redo_passes(trek_step *s) { return s->redo->passes.n > 0 ? renew(s, s->redo->passes.n) : TREK_OK; }

/* --- a pass ------------------------------------------------------------------------------------------------- */

static trek_status add(trek_step *s, const trek_batch *batch)
{
    trek_redo *redo = s->redo;
    trek_step_pass pass = trek_step_pass_of(batch);
    if (trek_loader_plan(batch->loader)->whole)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "graph_train_batch: batch: its loader gives each process batches of its own; with "
                         ".min_processes it must divide each batch, so that the others can compute what dies "
                         "with a process");
    pass.backward = pass.joint = true;
    pass.digest = trek_batch_here()->digest;
    trek_status status = redo->passes.n == 0 ? call_ranks(s, keep_start) : TREK_OK;
    if (redo->passes.n == 0)
        redo->groups = s->job.survival->groups;
    return status == TREK_OK ? trek_step_passes_add(&redo->passes, &pass) : status;
}

/* Returns the batch that the program has, or another part of it if that is not the process's in the present group. */
static const trek_batch *present(const trek_step *s, const trek_batch *batch, trek_batch *part)
{
    const trek_redo *redo = s->redo;
    take_part(s, &redo->passes.of[redo->passes.n - 1], part);
    return batch->first == part->first && batch->n == part->n ? batch : part;
}

static trek_var *train(trek_step *s, const trek_batch *batch)
{
    const trek_step_passes *passes = &s->redo->passes;
    const trek_step_pass *pass = &passes->of[passes->n - 1];
    bool ran = false;
    trek_batch part;
    trek_var *mean;
    trek_status status;
    do {
        mean = NULL;
        status = renew(s, passes->n - 1);
        if (status == TREK_OK) {
            const trek_batch *own = present(s, batch, &part);
            mean = ran ? run_unrecorded(s, pass, own) : run(s, pass, own);
            ran = true;
            status = mean ? TREK_OK : trek_error_status();
        }
    } while (status != TREK_OK && trek_survival_go_on(&s->job, &status));
    return status == TREK_OK && trek_survivors_after_commit(s) == TREK_OK ? mean : NULL;
}

trek_var *trek_redo_train_batch(trek_step *s, const trek_batch *batch)
{
    uint64_t rng_draw = trek_rank_here.rng_draw;
    if (!trek_graph_learns(s->team->graph))
        return trek_ranks_train_batch(s, batch);
    trek_status status = trek_error_status();
    int64_t before = s->redo->passes.n;
    if (status == TREK_OK)
        status = trek_twice_may_train(s, "graph_train_batch");
    if (status == TREK_OK && before == 0)
        status = trek_arrivals_look(s, batch);
    if (status == TREK_OK && (status = add(s, batch)) != TREK_OK)
        trek_job_sync_failed(s, status);
    trek_var *mean = status == TREK_OK ? train(s, batch) : NULL;
    if (!mean) /* the program may change parameters after this */
        trek_giving_await(s);
    trek_giving_end(s);
    if (mean)
        return mean;
    s->redo->passes.n = before;
    trek_rank_here.rng_draw = rng_draw;
    return NULL;
}

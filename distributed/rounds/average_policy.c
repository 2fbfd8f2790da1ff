/* SPDX-License-Identifier: Apache-2.0 */
/* Averaged parameters: every rank makes its own optimizer steps, one for each batch, and replicas become the mean of the
 * ranks', weighted by the samples that each has trained on (local SGD; Stich, arXiv:1805.09767): in trek_graph_step, for which
 * the ranks meet, or in rounds while they train, and then trek_graph_step averages the buffers. */
#include <math.h>
#include <string.h>

#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/policy/policies.h"
#include "distributed/reduce/reduce.h"
#include "distributed/rounds/averaging.h"
#include "distributed/rounds/in_place.h"
#include "distributed/rounds/rounds.h"
#include "distributed/rounds/rounds_pass.h"
#include "distributed/rounds/site.h"
#include "distributed/team/step.h"
#include "graph/batch_run.h"
#include "graph/graph_internal.h"
#include "optim/schedules.h"
#include "tensor/rank_context.h"

/* --- before averaging: what the job has trained ---------------------------------------------------------- */

static trek_status read_steps(int rank, void *arg)
{
    trek_step *s = arg;
    trek_optimizer *optimizer = s->team->replicas[rank].optimizer;
    trek_status status = trek_graph_detach(s->team->replicas[rank].graph);
    return status == TREK_OK && optimizer ? trek_device_update_read(optimizer) : status;
}

static trek_status agree_on_segments(trek_step *s)
{
    int n = s->team->replicas[0].arena->n_segments;
    for (int k = 0; k < n; k++) {
        s->team->any[k] = false;
        s->averaging->segment_steps[k] = 0;
        for (int r = 0; r < s->team->local_ranks; r++) {
            int64_t steps = s->team->replicas[r].arena->segments[k].steps;
            s->team->any[k] |= s->team->replicas[r].trained[k];
            s->averaging->segment_steps[k] = steps > s->averaging->segment_steps[k] ? steps : s->averaging->segment_steps[k];
        }
    }
    trek_status status = trek_job_sync_flags(s);
    return status == TREK_OK ? trek_job_reduce(&s->job, s->averaging->segment_steps, n, TREK_I64, TREK_REDUCTION_MAX) : status;
}

/* --- the step --------------------------------------------------------------------------------------------- */

/* Each rank has the rate of its own last step. This gives all ranks the rate of the job's last step. */
static trek_status settle_rates(trek_step *s)
{
    const trek_graph_settings *settings = &s->team->graph->settings;
    if (settings->schedule.kind == TREK_SCHEDULE_KIND_NONE || s->averaging->window_batches == 0 ||
        !s->team->replicas[0].optimizer)
        return TREK_OK;
    double lr = trek_schedule_lr(&settings->schedule, settings->steps + s->averaging->window_batches - 1);
    return isnan(lr) ? trek_error_status() : trek_optimizer_schedule_lr(s->team->replicas[0].optimizer, lr);
}

/* Called when the processes have met: averages what is not averaged yet. */
static trek_status average(trek_step *s)
{
    trek_status status = agree_on_segments(s);
    if (status != TREK_OK || !(s->window_rows > 0))
        return status;
    return s->averaging->rounds ? trek_average_buffers(s) : trek_round_make(s, &trek_round_in_place, s);
}

static trek_status step(trek_step *s)
{
    bool pending = false; /* no gradients are sent */
    trek_graph_settings *settings = &s->team->graph->settings;
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = settle_rates(s);
    if (status == TREK_OK)
        status = trek_average_begin_pass(s);
    trek_job_say(&s->job, "average", true);
    trek_team_follow_flags(s->team);
    if (status == TREK_OK)
        status = trek_ranks_call(s->team->ranks, read_steps, s);
    status = trek_job_sync_step(s, status, true, &pending);
    if (status == TREK_OK)
        status = average(s);
    if (status != TREK_OK)
        return status;
    settings->steps += s->averaging->window_batches;
    s->averaging->window_batches = 0;
    for (int r = 0; r < s->team->local_ranks; r++) {
        s->team->replicas[r].local_steps = s->team->replicas[r].steps_ahead = 0;
        memset(s->team->replicas[r].trained, 0,
               (size_t)s->team->replicas[r].arena->n_segments * sizeof *s->team->replicas[r].trained);
    }
    trek_step_merged(s);
    trek_ranks_reset(s);
    trek_rank_here.rng_step++;
    trek_rank_here.rng_draw = 0;
    return TREK_OK;
}

/* --- the policy ------------------------------------------------------------------------------------------- */

static trek_var *train_batch(trek_step *s, const trek_batch *batch)
{
    if (!s->averaging->rounds || !batch->window || !trek_graph_learns(s->team->graph))
        return trek_ranks_train_batch(s, batch);
    return s->averaging->site ? trek_site_train(s, batch) : trek_rounds_train(s, batch);
}

/* A window of rounds has all batches that are left. */
static int64_t window(trek_step *s)
{
    return s->averaging->rounds && trek_team_is_training(s->team) ? INT32_MAX : trek_ranks_window(s);
}

static trek_status backward(trek_step *s, trek_var *loss, double weight)
{
    (void)s, (void)loss, (void)weight;
    return trek_fail(TREK_ERR_STATE, "graph_backward: the parameters are averaged, which needs trek_graph_train_batch");
}

static trek_status reduce(trek_step *s)
{
    (void)s;
    return trek_fail(TREK_ERR_STATE, "graph_reduce: the parameters are averaged, and the gradients stay each rank's own");
}

static bool wanted(const trek_ranks_opts *opts) { return opts->averages; }

static trek_status make(trek_step *s, const trek_ranks_opts *opts) { return trek_averaging_begin(s, opts->divergence_threshold); }

static void end(trek_step *s)
{
    if (s->averaging)
        trek_rounds_free(&s->averaging->rounds);
    trek_site_end(s);
    trek_averaging_end(s);
}

const trek_step_policy trek_average_policy = {
    .name = "average", .wanted = wanted, .make = make, .end = end,
    .obstacle = "parameters are averaged, which needs trek_graph_train_batch", .train_batch = train_batch,
    .window = window, .begin_pass = trek_average_begin_pass, .after_batch = trek_average_local_step,
    .end_pass = trek_average_count, .backward = backward, .reduce = reduce, .step = step,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Averaged parameters: every rank makes its own optimizer steps, one for each batch, and trek_graph_step replaces all
 * replicas by the mean of the ranks', weighted by the samples that each has trained on (local SGD; Stich,
 * arXiv:1805.09767). Parameters and the optimizer's states are sent as gradients are otherwise: rank r puts weight_r
 * * value where its gradients lie, which are zero between steps, and the reducer sums. Parameters that no rank has
 * trained keep their bits. */
#include <math.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/step/gradients.h"
#include "distributed/policy/policy.h"
#include "distributed/step/average.h"
#include "distributed/step/job_sync.h"
#include "distributed/step/load_state.h"
#include "distributed/step/per_rank_step.h"
#include "distributed/step/reduce.h"
#include "graph/graph_internal.h"
#include "optim/schedules.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- steps of a rank's own ----------------------------------------------------------------------- */

trek_status trek_averaging_begin(trek_step *s, double divergence_threshold)
{
    size_t segments = (size_t)s->team->replicas[0].arena->n_segments + 1;
    trek_averaging *averaging = s->averaging = trek_calloc(1, sizeof *averaging);
    if (!averaging)
        return trek_error_status();
    averaging->divergence_threshold = divergence_threshold;
    for (int r = 0; r < s->team->local_ranks; r++)
        if (!(s->team->replicas[r].trained = trek_calloc(segments, sizeof *s->team->replicas[r].trained)))
            return trek_error_status();
    averaging->segment_steps = trek_calloc(segments, sizeof *averaging->segment_steps);
    averaging->job_segment_steps = trek_calloc(segments * (size_t)s->job.processes, sizeof *averaging->job_segment_steps);
    return averaging->segment_steps && averaging->job_segment_steps ? TREK_OK : trek_error_status();
}

void trek_averaging_end(trek_step *s)
{
    if (!s->averaging)
        return;
    trek_free(s->averaging->segment_steps);
    trek_free(s->averaging->job_segment_steps);
    trek_free(s->averaging);
    s->averaging = NULL;
}

trek_status trek_average_begin_pass(trek_step *s)
{
    trek_status status = TREK_OK;
    if (!s->team->replicas[0].optimizer)
        return trek_fail(TREK_ERR_STATE, "graph_train_batch: .average averages parameters, but the graph has no optimizer; call "
                                         "trek_graph_set_optimizer first");
    for (int k = 0; k < TREK_UPDATE_STATES; k++)
        if (s->team->replicas[0].optimizer->klass->states[k].extent != TREK_STATE_EXTENT_ELEMENTS)
            return trek_fail(TREK_ERR_UNSUPPORTED,
                             "graph_train_batch: .average of parameters together with %s, whose %s is not kept for each element; "
                             "choose another optimizer",
                             s->team->replicas[0].optimizer->klass->name, s->team->replicas[0].optimizer->klass->states[k].name);
    if (trek_optimizer_is_coded(s->team->replicas[0].optimizer) && !s->averaging->own_states)
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_train_batch: .average of parameters together with state in u8, which would "
                                               "be averaged, too; keep it in f32 or bf16");
    if (s->team->graph->scaler || trek_team_meets(s->team))
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_train_batch: .average of parameters together with %s is not possible",
                         s->team->graph->scaler ? "losses that are scaled" : "layers that meet other ranks");
    return status == TREK_OK ? trek_ranks_follow_groups(s) : status;
}

trek_status trek_average_local_step(trek_step *s, int rank)
{
    rank_replica *own = &s->team->replicas[rank];
    const trek_graph_settings *settings = &s->team->graph->settings;
    if (settings->schedule.kind != TREK_SCHEDULE_KIND_NONE) {
        double lr = trek_schedule_lr(&settings->schedule, settings->steps + own->steps_ahead + own->local_steps);
        trek_status status = isnan(lr) ? trek_error_status() : trek_optimizer_schedule_lr(own->optimizer, lr);
        if (status != TREK_OK)
            return status;
    }
    for (int k = 0; k < own->arena->n_segments; k++) {
        const trek_var *param = own->arena->segments[k].param;
        own->trained[k] |= param->leaf->has_grad && param->requires_grad;
    }
    own->local_steps++;
    trek_step_opts opts = { .max_norm = settings->max_norm, .max_value = settings->max_value, .zero_grad = true };
    return trek_optimizer_step_with(own->optimizer, &opts);
}

/* --- what is averaged ------------------------------------------------------------------------------ */

trek_tensor *trek_average_source(const rank_replica *own, int part, int state)
{
    return state < 0 ? own->arena->parts[part].master : own->optimizer->state[state][part];
}

/* A stretch of neighbouring segments of one part, each of which some rank has trained. */
typedef struct stretch {
    bool held;               /* for a state: only segments that have it on this rank */
    int next, part;          /* segments from `next` on have not been looked at */
    int64_t begin, count;
} stretch;

/* Returns false if no stretch is left. */
static bool next_stretch(const trek_step *s, const rank_replica *own, int state, stretch *at)
{
    const trek_arena *arena = own->arena;
    int64_t end = 0;
    bool open = false;
    for (; at->next < arena->n_segments; at->next++) {
        const trek_arena_segment *g = &arena->segments[at->next];
        bool in = s->team->any[at->next] && g->param->requires_grad && trek_average_source(own, g->part, state) &&
            (state < 0 || !at->held || own->optimizer->written[at->next] & 1u << state);
        if (open && (!in || g->part != at->part))
            break;
        if (in && !open) {
            at->part = g->part;
            at->begin = g->offset;
            open = true;
        }
        end = in ? g->offset + g->count : end;
    }
    at->count = end - at->begin;
    return open;
}

trek_var *trek_average_view(trek_tensor *flat, int64_t begin, int64_t count)
{
    trek_var *all = trek_var_from(trek_tensor_retain(flat));
    return all ? trek_narrow(all, 0, begin, count) : NULL;
}

static trek_var *view_of(trek_tensor *flat, const stretch *at) { return trek_average_view(flat, at->begin, at->count); }

trek_status trek_average_round(const rank_replica *own, int part_number, int64_t begin, int64_t count)
{
    const trek_arena_part *part = &own->arena->parts[part_number];
    trek_var *master = trek_average_view(part->master, begin, count), *low = trek_average_view(part->params, begin, count);
    trek_var *rounded = master && low ? trek_cast(master, part->dtype) : NULL;
    return rounded ? trek_tensor_copy_from(low->data, rounded->data) : trek_error_status();
}

/* Puts the values, multiplied by this rank's weight, where its gradients lie. */
static trek_status put(const trek_step *s, const rank_replica *own, int state, double weight)
{
    trek_status status = TREK_OK;
    for (stretch at = { .held = true }; status == TREK_OK && weight > 0 && next_stretch(s, own, state, &at);) {
        trek_var *from = view_of(trek_average_source(own, at.part, state), &at),
            *to = view_of(own->arena->parts[at.part].grads, &at);
        trek_var *wide = from && to ? trek_cast(from, trek_var_dtype(to)) : NULL; /* states may have 16 bits */
        trek_var *weighed = wide ? trek_mul_scalar(wide, weight) : NULL;
        status = weighed ? trek_tensor_copy_from(to->data, weighed->data) : trek_error_status();
    }
    return status;
}

/* Computes ||own - mean||^2 and ||mean||^2 of the values that differ. */
static trek_status measure(trek_var *own, trek_var *mean, double sums[2])
{
    trek_var *difference = trek_sum(trek_square(trek_sub(own, mean)), trek_dims_all(), false);
    trek_var *size = trek_sum(trek_square(mean), trek_dims_all(), false);
    if (!difference || !size)
        return trek_error_status();
    sums[0] += trek_var_item(difference);
    sums[1] += trek_var_item(size);
    return trek_error_status();
}

/* Takes the means from there, and sets the gradients to zero again. */
static trek_status take(const trek_step *s, rank_replica *own, int state)
{
    trek_status status = TREK_OK;
    double sums[2] = { 0, 0 };
    for (stretch at = { 0 }; status == TREK_OK && next_stretch(s, own, state, &at);) {
        const trek_arena_part *part = &own->arena->parts[at.part];
        trek_var *mean = view_of(part->grads, &at), *to = view_of(trek_average_source(own, at.part, state), &at);
        status = mean && to ? TREK_OK : trek_error_status();
        if (status == TREK_OK && state < 0)
            status = measure(to, mean, sums);
        if (status == TREK_OK)
            status = trek_tensor_copy_from(to->data, mean->data);
        if (status == TREK_OK && state < 0 && trek_arena_part_is_low(part))
            status = trek_average_round(own, at.part, at.begin, at.count);
    }
    if (state < 0)
        own->drift = sums[1] > 0 ? sqrt(sums[0] / sums[1]) : 0;
    trek_arena_zero_grads(own->arena);
    return status;
}

/* own: the status of this rank so far. All ranks come here and get the same result. */
static trek_status average_values(trek_step *s, int rank, int state, trek_status own_status)
{
    rank_replica *own = &s->team->replicas[rank];
    double weight = s->window_rows > 0 ? (double)own->samples / s->window_rows : 0;
    trek_status status = own_status == TREK_OK ? put(s, own, state, weight) : own_status;
    status = trek_replica_agree(trek_ranks_comm(s->team->ranks, rank), status, "average");
    if (status == TREK_OK)
        status = trek_ranks_sum_gradients(s, rank);
    return status == TREK_OK ? take(s, own, state) : status;
}

/* Sets the number of a parameter's updates to the most of all ranks, and gives all ranks the states that any rank
 * has. States that are not averaged keep their counts. */
static void take_steps(trek_step *s, int rank)
{
    rank_replica *own = &s->team->replicas[rank];
    trek_optimizer *optimizer = own->optimizer;
    if (s->averaging->own_states || !optimizer) /* otherwise the first rank's, which has these parameters */
        return;
    for (int k = 0; k < own->arena->n_segments; k++) {
        trek_arena_segment *g = &own->arena->segments[k];
        if (!s->team->any[k] || !g->param->requires_grad)
            continue;
        g->steps = s->averaging->segment_steps[k];
        optimizer->written[k] |= g->steps > 0 ? optimizer->groups[g->group].kept : 0;
        trek_tensor_bump(g->param->data);
    }
    trek_arena_note_masters(own->arena);
    optimizer->stale = true;
    trek_device_update_forget(optimizer);
}

/* States that this rank does not have yet begin as zeros. */
static trek_status average_on(trek_step *s, int rank, bool in_rounds)
{
    rank_replica *own = &s->team->replicas[rank];
    uint32_t kept = 0;
    for (int g = 0; own->optimizer && g < own->optimizer->n_groups; g++)
        kept |= own->optimizer->groups[g].kept;
    trek_status status = in_rounds ? TREK_OK : average_values(s, rank, -1, trek_arena_refresh_masters(own->arena));
    for (int state = 0; state < TREK_UPDATE_STATES && !in_rounds; state++)
        if (kept & 1u << state)
            status = average_values(s, rank, state, status);
    status = trek_replica_agree(trek_ranks_comm(s->team->ranks, rank), status, "average");
    if (status == TREK_OK)
        take_steps(s, rank);
    return status == TREK_OK ? trek_ranks_merge_buffers(s, rank) : status;
}

typedef struct average_call {
    trek_step *s;
    bool in_rounds;          /* the values have been averaged in rounds, which have also judged the drift */
} average_call;

static trek_status average_rank(int rank, void *arg)
{
    const average_call *call = arg;
    trek_step *s = call->s;
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    int64_t start = trek_trace_enter("average");
    trek_status status = rank == 0 ? trek_stopwatch_start(&s->pace.reduce_watch, s->team->replicas[0].arena->device) : TREK_OK;
    if (status == TREK_OK)
        status = scope.depth ? average_on(s, rank, call->in_rounds) : trek_error_status();
    if (status == TREK_OK && rank == 0)
        status = trek_stopwatch_stop(&s->pace.reduce_watch, 1);
    trek_trace_end("average", start, s->team->graph->settings.steps);
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

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
    if (status == TREK_OK)
        status = trek_job_gather(&s->job, s->averaging->segment_steps, (size_t)n * sizeof *s->averaging->segment_steps,
                                 s->averaging->job_segment_steps);
    for (int p = 0; p < s->job.processes && status == TREK_OK; p++)
        for (int k = 0; k < n; k++) {
            int64_t steps = s->averaging->job_segment_steps[(size_t)p * (size_t)n + (size_t)k];
            s->averaging->segment_steps[k] = steps > s->averaging->segment_steps[k] ? steps : s->averaging->segment_steps[k];
        }
    return status;
}

/* --- drift ---------------------------------------------------------------------------------------------- */

/* Notes the largest distance of a replica of the job from the mean; between processes, of the window before. */
static void note_drift(trek_step *s)
{
    double own = 0;
    for (int r = 0; r < s->team->local_ranks; r++)
        own = s->team->replicas[r].drift > own || isnan(s->team->replicas[r].drift) ? s->team->replicas[r].drift : own;
    s->own_drift = own;
    if (trek_job_is_alone(&s->job))
        s->drift = own;
}

trek_drift_verdict trek_average_judge(trek_step *s)
{
    memmove(s->averaging->drifts, s->averaging->drifts + 1, sizeof s->averaging->drifts - sizeof *s->averaging->drifts);
    double last = s->averaging->drifts[TREK_DRIFTS - 1] = s->drift;
    bool rising = s->averaging->drifts[0] > 0;
    for (int k = 1; k < TREK_DRIFTS; k++)
        rising = rising && (s->averaging->drifts[k] > s->averaging->drifts[k - 1] || isnan(s->averaging->drifts[k]));
    bool far = last > s->averaging->divergence_threshold || isnan(last);
    if (s->averaging->divergence_threshold < 0 || !(rising || far))
        return TREK_DRIFT_STABLE;
    return rising && far ? TREK_DRIFT_SHRINKS : TREK_DRIFT_STAYS;
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

trek_status trek_average_step(trek_step *s, bool in_rounds)
{
    bool pending;
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
        status = agree_on_segments(s);
    bool averages = status == TREK_OK && s->window_rows > 0;
    if (averages)
        status = trek_ranks_call(s->team->ranks, average_rank, &(average_call){ s, in_rounds });
    if (status != TREK_OK && averages)
        trek_job_abort(&s->job, "a process could not average its parameters"); /* the others may be about to enter a sum */
    if (status == TREK_OK && !in_rounds) {
        note_drift(s);
        status = trek_ranks_update_workload(s, trek_average_judge(s));
    }
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

void trek_average_count(trek_step *s, int64_t batches) { s->averaging->window_batches += batches; }

trek_status trek_average_no_backward(trek_step *s, trek_var *loss, double weight)
{
    (void)s, (void)loss, (void)weight;
    return trek_fail(TREK_ERR_STATE, "graph_backward: the parameters are averaged, which needs trek_graph_train_batch");
}

trek_status trek_average_no_reduce(trek_step *s)
{
    (void)s;
    return trek_fail(TREK_ERR_STATE, "graph_reduce: the parameters are averaged, and the gradients stay each rank's own");
}

static trek_status step(trek_step *s) { return trek_average_step(s, false); }

const trek_step_policy trek_average_policy = {
    .name = "average", .obstacle = TREK_AVERAGE_OBSTACLE, .train_batch = trek_ranks_train_batch, .window = trek_ranks_window,
    .begin_pass = trek_average_begin_pass, .after_batch = trek_average_local_step, .end_pass = trek_average_count,
    .backward = trek_average_no_backward, .reduce = trek_average_no_reduce, .step = step,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* A round in which all ranks meet. Parameters and the optimizer's states are sent as gradients are otherwise: rank r puts
 * weight_r * value where its gradients lie, which are zero between steps, and the reducer sums, on GPUs through NCCL. Parameters
 * that no rank has trained keep their bits. */
#include "distributed/rounds/in_place.h"

#include <math.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/reduce/reduce.h"
#include "distributed/rounds/averaging.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "tensor/trace.h"

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

static trek_var *view_of(trek_tensor *flat, const stretch *at) { return trek_average_view(flat, at->begin, at->count); }

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
static trek_status average_on(trek_step *s, int rank, bool values)
{
    rank_replica *own = &s->team->replicas[rank];
    uint32_t kept = 0;
    for (int g = 0; own->optimizer && g < own->optimizer->n_groups; g++)
        kept |= own->optimizer->groups[g].kept;
    trek_status status = values ? average_values(s, rank, -1, trek_arena_refresh_masters(own->arena)) : TREK_OK;
    for (int state = 0; state < TREK_UPDATE_STATES && values; state++)
        if (kept & 1u << state)
            status = average_values(s, rank, state, status);
    status = trek_replica_agree(trek_ranks_comm(s->team->ranks, rank), status, "average");
    if (status == TREK_OK)
        take_steps(s, rank);
    return status == TREK_OK ? trek_ranks_merge_buffers(s, rank) : status;
}

typedef struct average_call {
    trek_step *s;
    bool values;             /* the values are averaged; otherwise rounds have done it, and buffers are left */
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
        status = scope.depth ? average_on(s, rank, call->values) : trek_error_status();
    if (status == TREK_OK && rank == 0)
        status = trek_stopwatch_stop(&s->pace.reduce_watch, 1);
    trek_trace_end("average", start, s->team->graph->settings.steps);
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

static trek_status average_ranks(trek_step *s, bool values)
{
    trek_status status = trek_ranks_call(s->team->ranks, average_rank, &(average_call){ s, values });
    if (status != TREK_OK)
        trek_job_abort(&s->job, "a process could not average its parameters"); /* the others may be about to enter a sum */
    return status;
}

trek_status trek_average_buffers(trek_step *s) { return average_ranks(s, false); }

/* --- the round ---------------------------------------------------------------------------------------- */

/* The processes have reported when they met (job_sync.c). */
static trek_status gather(void *arg, trek_round_report *round)
{
    const trek_step *s = arg;
    round->samples = s->window_rows;
    round->drift = s->drift;
    return TREK_OK;
}

/* Notes the largest distance of a replica here from the mean. The other processes learn of it with the next round. */
static void note_drift(trek_step *s, trek_round_report *round)
{
    s->own_drift = 0;
    for (int r = 0; r < s->team->local_ranks; r++)
        s->own_drift = trek_drift_larger(s->own_drift, s->team->replicas[r].drift);
    if (trek_job_is_alone(&s->job))
        round->drift = s->own_drift;
}

static trek_status mean(void *arg, trek_round_report *round)
{
    trek_step *s = arg;
    trek_status status = average_ranks(s, true);
    note_drift(s, round);
    return status;
}

static trek_status divide(void *arg, const trek_round_report *round, trek_drift_verdict verdict)
{
    (void)round;
    return trek_ranks_update_workload(arg, verdict);
}

const trek_round_kind trek_round_in_place = { gather, mean, divide };

/* SPDX-License-Identifier: Apache-2.0 */
/* The step over ranks: gradients are summed in rank order, measured, and used.
 *
 * Shared parameters: the arena is cut into chunks. Each rank takes some chunks, sums all ranks' gradients of a chunk
 * into rank 0's, sets the others' to zero, and updates the chunk, after a meeting if the norm must be known first.
 * Nothing is sent. Separate arenas: gradients are all-reduced bucket by bucket, and every rank updates its whole
 * arena. In both cases rank 0 holds the sum and the others hold zeros when a reduction has ended without a step, so
 * that another one adds to it. */
#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/grains/grains.h"
#include "distributed/job/agreement.h"
#include "distributed/job/survival.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/overlap.h"
#include "distributed/team/passes.h"
#include "distributed/team/step.h"
#include "distributed/reduce/reduce.h"
#include "graph/graph_internal.h"
#include "optim/scaler_internal.h"
#include "tensor/pool.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- which gradients there are ---------------------------------------------------------- */

void trek_ranks_note_gradients(trek_step *s)
{
    trek_arena *first = s->team->replicas[0].arena;
    for (int k = 0; k < first->n_segments; k++) {
        s->team->any[k] = false;
        for (int r = 0; r < s->team->local_ranks; r++) {
            bool has = s->team->replicas[r].arena->segments[k].param->leaf->has_grad;
            s->team->has[(size_t)k * (size_t)s->team->local_ranks + (size_t)r] = has;
            s->team->any[k] |= has;
        }
    }
    for (int r = 0; r < s->team->local_ranks; r++)
        for (int k = 0; k < first->n_segments; k++)
            s->team->replicas[r].arena->segments[k].used = s->team->any[k] && first->segments[k].param->requires_grad;
}

/* --- the scaler of losses ------------------------------------------------------------------------------ */

/* On the host all ranks use the graph's scaler; otherwise each rank has a copy on its device. */
trek_grad_scaler *trek_ranks_scaler(const trek_step *s, int rank)
{
    trek_grad_scaler *first = s->team->graph->scaler;
    return first && rank > 0 && s->team->replicas[rank].scaler ? s->team->replicas[rank].scaler : first;
}

trek_status trek_ranks_prepare_scaler(trek_step *s)
{
    trek_grad_scaler *scaler = s->team->graph->scaler;
    s->loss_scale = NULL;
    if (scaler && s->team->on_host) {
        s->loss_scale = trek_scaler_record(scaler, s->team->replicas[0].arena->device);
        return s->loss_scale ? TREK_OK : trek_error_status();
    }
    trek_status status = TREK_OK;
    for (int r = 1; r < s->team->local_ranks && status == TREK_OK; r++) {
        rank_replica *replica = &s->team->replicas[r];
        if (!scaler)
            trek_grad_scaler_free(&replica->scaler);
        else if (!replica->scaler && !(replica->scaler = trek_grad_scaler_new(NULL)))
            status = trek_error_status();
        else
            status = trek_scaler_follow(replica->scaler, scaler);
    }
    return status;
}

/* --- what is done to a chunk --------------------------------------------------------------- */

static char *grads_at(const trek_step *s, int rank, int part, int64_t at)
{
    const trek_arena_part *p = &s->team->replicas[rank].arena->parts[part];
    return p->grads->data + (size_t)at * trek_dtype_size(p->wide);
}

/* Sums elements [begin, end) of the ranks that `row` marks into rank 0's, and sets the others' to zero. */
static void reduce_piece(trek_step *s, int part, const bool *row, int64_t begin, int64_t end)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    trek_dtype dtype = arena->parts[part].wide;
    const void *from[TREK_MAX_RANKS];
    int n = 0;
    for (int r = 0; r < s->team->local_ranks; r++)
        if (row[r])
            from[n++] = grads_at(s, r, part, begin);
    char *to = grads_at(s, 0, part, begin);
    if (n == 0 || (n == 1 && from[0] == to))
        return;
    arena->backend->sum_arrays(arena->device, dtype, to, from, n, end - begin);
    for (int k = 0; k < n; k++)
        if (from[k] != to)
            memset((void *)(uintptr_t)from[k], 0, (size_t)(end - begin) * trek_dtype_size(dtype));
}

/* Calls fn for the stretches of a chunk in which the same ranks have gradients. */
static void reduce_chunk(trek_step *s, const trek_reduce_chunk *chunk)
{
    const trek_arena *arena = s->team->replicas[0].arena;
    size_t local_ranks = (size_t)s->team->local_ranks;
    int k = chunk->first_segment;
    while (k < arena->n_segments && arena->segments[k].part == chunk->part && arena->segments[k].offset < chunk->end) {
        const bool *row = s->team->has + (size_t)k * local_ranks;
        int64_t begin = arena->segments[k].offset, end;
        do { /* padding between segments is zero on all ranks */
            end = arena->segments[k].offset + arena->segments[k].count;
            k++;
        } while (k < arena->n_segments && arena->segments[k].part == chunk->part && arena->segments[k].offset < chunk->end &&
                 memcmp(row, s->team->has + (size_t)k * local_ranks, local_ranks) == 0);
        begin = begin > chunk->begin ? begin : chunk->begin;
        end = end < chunk->end ? end : chunk->end;
        if (begin < end)
            reduce_piece(s, chunk->part, row, begin, end);
    }
}

/* Multiplies rank 0's sum in a chunk by the factor of the passes. */
static void scale_chunk(trek_step *s, const trek_reduce_chunk *chunk)
{
    trek_dtype dtype = s->team->replicas[0].arena->parts[chunk->part].wide;
    char *grads = grads_at(s, 0, chunk->part, chunk->begin);
    int64_t n = chunk->end - chunk->begin;
    if (dtype == TREK_F64)
        for (int64_t i = 0; i < n; i++)
            ((double *)grads)[i] *= s->state.factor;
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)grads)[i] *= (float)s->state.factor;
}

/* Gradients of segments that are not updated, because they were frozen since, are set to zero, too. */
static void zero_leftovers(trek_step *s, int rank, const trek_reduce_chunk *chunk)
{
    const trek_arena *arena = s->team->replicas[rank].arena;
    for (int k = chunk->first_segment; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        if (segment->part != chunk->part || segment->offset >= chunk->end)
            break;
        int64_t begin = segment->offset > chunk->begin ? segment->offset : chunk->begin;
        int64_t end = segment->offset + segment->count < chunk->end ? segment->offset + segment->count : chunk->end;
        if (s->team->any[k] && !segment->used && begin < end)
            memset(grads_at(s, rank, chunk->part, begin), 0,
                   (size_t)(end - begin) * trek_dtype_size(arena->parts[chunk->part].wide));
    }
}

/* --- runs over chunks on a rank's threads ----------------------------------------------------- */

typedef struct chunk_work {
    trek_step *s;
    int rank, first;    /* part 0 of the work is chunk `first` */
    bool sum, measure;
    const trek_update_state *update; /* NULL: not decided yet */
} chunk_work;

static void work_chunks(void *arg, int64_t begin, int64_t end)
{
    const chunk_work *w = arg;
    trek_step *s = w->s;
    const rank_replica *replica = &s->team->replicas[s->team->shared ? 0 : w->rank];
    const trek_backend *backend = replica->arena->backend;
    double *sums = s->team->sums + (s->team->shared ? 0 : (size_t)w->rank * (size_t)s->team->n_chunks);
    for (int64_t k = w->first + begin; k < w->first + end; k++) {
        const trek_reduce_chunk *chunk = &s->team->chunks[k];
        trek_dtype dtype = replica->arena->parts[chunk->part].wide;
        char *grads = grads_at(s, s->team->shared ? 0 : w->rank, chunk->part, chunk->begin);
        if (w->sum)
            reduce_chunk(s, chunk);
        if (w->sum && s->state.factor != 1)
            scale_chunk(s, chunk);
        if (w->measure) {
            bool finite; /* a sum of squares that is not finite shows it, too */
            backend->sum_squares(replica->arena->device, dtype, grads, chunk->end - chunk->begin, &sums[k], &finite);
            if (!finite)
                sums[k] = NAN;
        }
        if (!w->update)
            continue;
        if (w->update->skip) {
            memset(grads, 0, (size_t)(chunk->end - chunk->begin) * trek_dtype_size(dtype));
            continue;
        }
        trek_optimizer_apply_range(replica->optimizer, chunk->part, chunk->begin, chunk->end, w->update->grad_scale,
                                   w->update->value_limit, true);
        zero_leftovers(s, s->team->shared ? 0 : w->rank, chunk);
    }
}

static void work(trek_step *s, int rank, bool sum, bool measure, const trek_update_state *update)
{
    int64_t n = s->team->n_chunks, local_ranks = s->team->local_ranks;
    int first = s->team->shared ? (int)(n * rank / local_ranks) : 0,
        end = s->team->shared ? (int)(n * (rank + 1) / local_ranks) : (int)n;
    chunk_work w = { s, rank, first, sum, measure, update };
    int64_t each = (end - first + 4 * 16 - 1) / (4 * 16);
    if (update && trek_optimizer_is_whole(s->team->replicas[0].optimizer)) /* its update uses the threads for each parameter */
        work_chunks(&w, 0, end - first);
    else if (end > first)
        trek_parallel(end - first, each > 1 ? each : 1, work_chunks, &w);
}

trek_update_state trek_ranks_decide(const trek_step *s, double sum_squares, bool measured)
{
    trek_update_state state = s->team->replicas[0].optimizer->last;
    trek_update_scaler scaler;
    state.factor = 1; /* the sum has already been multiplied by it */
    state.max_norm = s->team->graph->settings.max_norm;
    state.max_value = s->team->graph->settings.max_value;
    state.sum_squares = measured ? sum_squares : 0;
    state.finite = isfinite(state.sum_squares);
    if (s->loss_scale)
        scaler = *s->loss_scale; /* a copy of each rank, because deciding writes to it */
    trek_update_decide_state(&state, s->loss_scale ? &scaler : NULL, measured);
    return state;
}

static trek_update_state decide(const trek_step *s, int rank, bool measured)
{
    const double *sums = s->team->sums + (s->team->shared ? 0 : (size_t)rank * (size_t)s->team->n_chunks);
    double sum = 0;
    for (int k = 0; k < s->team->n_chunks && measured; k++)
        sum += sums[k];
    return trek_ranks_decide(s, sum, measured);
}

/* --- what all kinds of arenas have in common ------------------------------------------------------------ */

static void keep_flags(trek_step *s, int rank)
{
    trek_arena *arena = s->team->replicas[rank].arena;
    if (rank > 0) {
        trek_arena_forget_grads(arena);
        return;
    }
    for (int k = 0; k < arena->n_segments; k++)
        if (s->team->any[k] && !arena->segments[k].param->leaf->has_grad) {
            arena->segments[k].param->leaf->has_grad = true;
            trek_tensor_bump(arena->segments[k].param->leaf->grad->data);
        }
}

/* Ranks in host memory merge each other's buffers in place, each rank some of them. That cannot fail. */
typedef struct local_room {
    trek_buffer_space base;
    const trek_step *s;
} local_room;

static char *local_copy(const trek_buffer_space *room, int rank, int k)
{
    return ((const local_room *)room)->s->team->replicas[rank].model->buffers[k]->data->data;
}

static void merge_in_place(trek_step *s, int rank)
{
    double counts[TREK_MAX_RANKS], total = 0;
    for (int r = 0; r < s->team->local_ranks; r++)
        total += counts[r] = (double)s->team->replicas[r].samples;
    trek_replica *own = s->team->replicas[rank].model;
    local_room room = { { .replica = own, .n_ranks = s->team->local_ranks, .counts = counts, .apart = s->windowed,
                          .copy = local_copy },
                        s };
    if (total == 0)
        return;
    trek_buffers_merge(&room.base, rank, s->team->local_ranks);
    for (int k = 0; k < own->n_buffers; k++)
        trek_tensor_bump(own->buffers[k]->data);
}

static trek_status merge_local(trek_step *s, int rank)
{
    rank_replica *own = &s->team->replicas[rank];
    if (!s->team->on_host)
        return trek_replica_merge(own->model, trek_ranks_comm(s->team->ranks, rank), (double)own->samples, s->windowed, NULL,
                                  TREK_OK);
    merge_in_place(s, rank);
    return TREK_OK;
}

/* All ranks of the process hold its merged buffers. Rank 0 merges them with those of other processes; the others take
 * the result. */
static trek_status merge_between(trek_step *s, int rank)
{
    trek_comm *local = trek_ranks_comm(s->team->ranks, rank);
    trek_status status = trek_comm_barrier(local);
    double samples = 0;
    for (int r = 0; r < s->team->local_ranks; r++)
        samples += (double)s->team->replicas[r].samples;
    if (rank == 0 && status == TREK_OK)
        status = trek_replica_merge(s->team->replicas[0].model, s->job.comm, samples, s->windowed, NULL, TREK_OK);
    return trek_replica_take_first(s->team->replicas[rank].model, local,
                                   (trek_replica_values){ .buffers = true, .on_host = s->team->on_host }, status);
}

trek_status trek_ranks_merge_buffers(trek_step *s, int rank)
{
    /* they follow the replays of a recorded step; grains have merged them */
    if (s->records || s->grains || s->team->replicas[0].model->n_buffers == 0)
        return TREK_OK;
    int64_t start = trek_trace_enter("buffers");
    trek_status status = merge_local(s, rank);
    if (status == TREK_OK && trek_job_has_others(&s->job))
        status = merge_between(s, rank);
    trek_trace_end("buffers", start, 0);
    return status;
}

static trek_status broadcast_params(trek_comm *comm, const trek_arena *arena)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
        status = trek_replica_take_tensor(comm, arena->parts[p].master);
        if (status == TREK_OK && trek_arena_part_is_low(&arena->parts[p]))
            status = trek_replica_take_tensor(comm, arena->parts[p].params);
    }
    return status;
}

/* Takes process 0's values of a tensor of this part in its gradients' memory, which the update has set to zero, so that a process
 * that dies meanwhile leaves no number of which only a part has been received. Memory of devices is written at the end anyway. */
static trek_status take_whole(trek_comm *comm, const trek_arena_part *part, trek_tensor *tensor)
{
    bool apart = comm->rank > 0 && tensor->device.type == TREK_CPU;
    trek_shape shape = trek_tensor_shape(tensor);
    trek_tensor *room = apart ? trek_tensor_make_part(part->grads, 0, shape, (trek_dtype)tensor->dtype) : NULL;
    trek_status status = apart && !room ? trek_error_status() : TREK_OK;
    if (status != TREK_OK) {
        trek_comm_abort(comm, "a process has no memory to take the first one's parameters");
        return status;
    }
    status = trek_replica_take_tensor(comm, room ? room : tensor);
    size_t bytes = room ? (size_t)room->numel * trek_dtype_size((trek_dtype)room->dtype) : 0;
    if (room && status == TREK_OK)
        memcpy(tensor->data, room->data, bytes);
    if (room)
        memset(room->data, 0, bytes);
    trek_tensor_release(room);
    return status;
}

static trek_status take_all_whole(trek_comm *comm, const trek_arena *arena)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
        status = take_whole(comm, &arena->parts[p], arena->parts[p].master);
        if (status == TREK_OK && trek_arena_part_is_low(&arena->parts[p]))
            status = take_whole(comm, &arena->parts[p], arena->parts[p].params);
    }
    return status;
}

/* The step has been made. If processes die now, the run goes on from it with the parameters of one of those that are left. */
static trek_status follow_process(trek_step *s, const trek_arena *arena)
{
    if (!s->job.outlives)
        return broadcast_params(s->job.comm, arena);
    trek_status status = take_all_whole(s->job.comm, arena);
    bool died = (status == TREK_ERR_PEER || status == TREK_ERR_TIMEOUT) && trek_regroup_may(s->job.comm);
    if (died)
        trek_error_clear();
    return died ? TREK_OK : status;
}

/* CPUs and GPUs round differently, so all ranks take rank 0's parameters, which would otherwise drift apart. They
 * were written in this step, so their versions have already changed. (With sharers one rank updates each.) */
static trek_status follow_first(trek_step *s, int rank)
{
    const trek_arena *arena = s->team->replicas[rank].arena;
    trek_comm *local = trek_ranks_comm(s->team->ranks, rank);
    trek_status status = TREK_OK;
    if (trek_job_has_others(&s->job)) {
        status = trek_comm_barrier(local); /* an arena may be shared */
        status = trek_replica_agree(local, status == TREK_OK && rank == 0 ? follow_process(s, arena) : status, "step");
    }
    return status == TREK_OK && !s->team->shared && s->team->local_ranks > 1 ? broadcast_params(local, arena) : status;
}

/* Between processes buffers have been merged before the update: if a process dies before that, parameters do not
 * change. */
static trek_status finish(trek_step *s, int rank, bool skipped)
{
    trek_arena_forget_grads(s->team->replicas[rank].arena);
    if (s->team->shared && rank > 0 && !skipped)
        trek_arena_bump(s->team->replicas[rank].arena, s->team->replicas[0].arena);
    trek_status status = s->job.mixed && s->team->sharers == 1 ? follow_first(s, rank) : TREK_OK;
    if (status != TREK_OK)
        return status;
    return trek_job_has_others(&s->job) ? TREK_OK : trek_ranks_merge_buffers(s, rank);
}

/* If processes die, a run goes on from the last step that was complete: nothing may be changed by what a device has not received.
 * The commit sees to that, too (job/survival.h): in grains it belongs to the reduction, otherwise all have what they need here.
 */
static trek_status settle(trek_step *s, int rank, trek_status own)
{
    bool commits = s->job.survival != NULL;
    if (s->grains || !(commits || (s->job.outlives && trek_job_has_others(&s->job) && s->job.comm->devices)))
        return own;
    if (own == TREK_OK && rank == 0)
        own = commits ? trek_survival_commit(&s->job) : trek_comm_settle(s->job.comm);
    return trek_replica_agree(trek_ranks_comm(s->team->ranks, rank), own, "step");
}

/* --- one rank's step ------------------------------------------------------------------------------ */

/* The gradients of grains are in sums of their own. */
static trek_status sum_grains(rank_step *x)
{
    trek_status status = trek_grain_sums_read(x->s, x->rank);
    if (status == TREK_OK && x->s->team->shared && x->measure)
        work(x->s, x->rank, false, true, NULL);
    return status;
}

static trek_status decide_shared(rank_step *x);
static trek_status decide_separate(rank_step *x);

static trek_status commit_divided(trek_step *s)
{
    trek_status status = trek_digests_share(s);
    return status == TREK_OK ? trek_survival_commit(&s->job) : status;
}

/* A GPU's update decides by itself, from the squares of all. */
static trek_status decide_divided(rank_step *x)
{
    double sum = 0;
    trek_status status = TREK_OK;
    if (!x->s->team->on_host)
        return trek_ranks_measures_on_device(x->s, x->rank) ? trek_grain_device_squares(x->s, x->rank) : TREK_OK;
    if (x->measure)
        status = trek_grain_sums_squares(x->s, x->rank, &sum);
    if (status == TREK_OK)
        x->state = trek_ranks_decide(x->s, sum, x->measure);
    return status;
}

/* Grains leave the whole gradient in every arena, also where the optimizer's state is divided, so that its norm has the same
 * bits. Where parts of that are kept twice, so do sums without grains. Where gradients are divided, too, it is measured by all
 * together, before the step is sure. */
static trek_status decide_all(rank_step *x)
{
    if (x->call->grains && x->s->team->divides_grads) {
        trek_status status = decide_divided(x);
        if (status == TREK_OK) /* all have what they need */
            status = trek_replica_agree(x->local, x->rank == 0 ? commit_divided(x->s) : TREK_OK, "step");
        return status;
    }
    if (x->call->whole && x->s->team->on_host)
        return x->s->team->shared ? decide_shared(x) : decide_separate(x);
    return x->call->kind->decide(x);
}

static const arena_kind *plain_kind(const trek_step *s);

/* Sums over the ranks of this process, and over the other processes. */
static trek_status sum_all(rank_step *x)
{
    trek_step_call *c = x->call;
    const arena_kind *kind = c->whole ? plain_kind(x->s) : c->kind;
    trek_status status = TREK_OK;
    if (c->grains)
        return sum_grains(x);
    if (!(c->sent && trek_job_has_others(&x->s->job))) /* otherwise it is being sent: a process that sends has one rank */
        status = kind->sum(x);
    return status == TREK_OK && trek_job_has_others(&x->s->job) ? kind->interprocess(x) : status;
}

static trek_status step_rank(int rank, void *arg)
{
    trek_step_call *c = arg;
    trek_step *s = c->s;
    const arena_kind *kind = c->kind;
    rank_step x = { .call = c, .s = s, .rank = rank, .replica = &s->team->replicas[rank],
                    .local = trek_ranks_comm(s->team->ranks, rank),
                    .measure = c->update && (s->team->graph->settings.max_norm > 0 || s->loss_scale) };
    trek_status status = kind->begin ? kind->begin(&x) : TREK_OK;
    if (status != TREK_OK)
        return status;
    int64_t start = trek_trace_enter("reduce");
    x.at_once = c->update && !x.measure && !start && trek_job_is_alone(&s->job) && !s->windowed && !c->grains &&
                s->team->sharers == 1 && !trek_optimizer_is_whole(s->team->replicas[0].optimizer);
    if (rank == 0)
        status = trek_stopwatch_start(&s->pace.reduce_watch, x.replica->arena->device);
    if (status == TREK_OK)
        status = sum_all(&x);
    trek_trace_end("reduce", start, s->team->graph->settings.steps);
    if (status == TREK_OK && rank == 0)
        status = trek_stopwatch_stop(&s->pace.reduce_watch, 1);
    if (status == TREK_OK && c->update)
        status = decide_all(&x);
    if (status == TREK_OK && c->update && trek_job_has_others(&s->job))
        status = trek_ranks_merge_buffers(s, rank);
    if (c->update)
        status = settle(s, rank, status);
    if (status != TREK_OK || !c->update) {
        kind->keep(&x);
        return status;
    }
    start = trek_trace_enter("optimizer");
    status = kind->update(&x);
    trek_trace_end("optimizer", start, s->team->graph->settings.steps);
    if (rank == 0)
        c->decided = x.state;
    return status == TREK_OK ? finish(s, rank, x.state.skip) : status;
}

/* Sums over all processes. Rank 0 calls it, for the arena that holds this process's sum. */
static trek_status reduce_processes(trek_step *s)
{
    int64_t start = trek_trace_enter("reduce processes");
    trek_status started = s->state.phase == TREK_STEP_SENT ? TREK_OK
        : trek_reducer_run(s->team->replicas[0].reducer, (trek_sending){ .comm = s->job.comm, .starts = true });
    trek_status ended = trek_comm_finish(s->job.comm);
    trek_trace_end("reduce processes", start, s->team->graph->settings.steps);
    if (started != TREK_OK || ended != TREK_OK)
        trek_step_accumulates(&s->state);
    else
        trek_step_folded(&s->state);
    return started != TREK_OK ? started : ended;
}

/* --- one arena of parameters for all ranks, on the host ------------------------------------------------ */

static trek_status sum_shared(rank_step *x)
{
    if (x->at_once)
        x->state = decide(x->s, x->rank, false);
    work(x->s, x->rank, true, x->measure && trek_job_is_alone(&x->s->job), x->at_once ? &x->state : NULL);
    return TREK_OK;
}

void trek_ranks_sum_shared(const rank_step *x) { work(x->s, x->rank, true, false, NULL); }

trek_status trek_ranks_meet_after(rank_step *x, trek_status own)
{
    const trek_step_call *c = x->call;
    if (own == TREK_OK)
        own = trek_comm_barrier(x->local);
    if (x->rank == 0 || own != TREK_OK)
        return x->rank == 0 ? c->interprocess : own;
    return c->interprocess == TREK_OK ? TREK_OK : trek_fail(TREK_ERR_PEER, "step: the exchange between processes failed");
}

/* Called when the ranks' sum is complete: rank 0 adds what the other processes have, then all measure it. */
static trek_status between_shared(rank_step *x)
{
    trek_step_call *c = x->call;
    trek_status status = trek_comm_barrier(x->local);
    if (x->rank == 0)
        c->interprocess = status == TREK_OK ? reduce_processes(x->s) : status;
    status = trek_ranks_meet_after(x, status);
    if (status == TREK_OK && c->sent && x->s->state.factor != 1)
        status = trek_ranks_apply_grad_factor_here(x->rank, x->s);
    if (status == TREK_OK && x->measure)
        work(x->s, x->rank, false, true, NULL);
    return status;
}

static trek_status decide_shared(rank_step *x)
{
    trek_status status = x->measure ? trek_comm_barrier(x->local) : TREK_OK;
    if (status == TREK_OK)
        x->state = decide(x->s, x->rank, x->measure);
    return status;
}

static trek_status update_shared(rank_step *x)
{
    if (!x->at_once)
        work(x->s, x->rank, false, false, &x->state);
    return TREK_OK;
}

static void keep_sum(rank_step *x) { keep_flags(x->s, x->rank); }

static const arena_kind shared_arena = { NULL, sum_shared, between_shared, decide_shared, update_shared, keep_sum };

/* --- arenas of their own ----------------------------------------------------------------------------------- */

trek_status trek_ranks_begin_separate(rank_step *x)
{
    return trek_replica_agree(x->local, x->call->update ? trek_optimizer_prepare(x->replica->optimizer) : TREK_OK, "step");
}

/* Replaces the gradients of all ranks by their sum, or starts that. */
static trek_status sum_separate(rank_step *x)
{
    if (!x->call->sent)
        return trek_reducer_run(x->replica->reducer, (trek_sending){ .comm = x->local });
    trek_status status = trek_comm_finish(x->local);
    return status == TREK_OK && x->s->state.factor != 1 ? trek_ranks_apply_grad_factor_here(x->rank, x->s) : status;
}

/* Rank 0 reduces with the other processes; its result is copied to all ranks of this one. */
static trek_status between_separate(rank_step *x)
{
    const trek_arena *arena = x->replica->arena;
    trek_status status = trek_replica_agree(x->local, x->rank == 0 ? reduce_processes(x->s) : TREK_OK, "step");
    if (status == TREK_OK && x->call->sent && x->s->state.factor != 1)
        status = trek_ranks_apply_grad_factor_here(x->rank, x->s);
    for (int p = 0; p < arena->n_parts && status == TREK_OK && x->s->team->local_ranks > 1; p++)
        status = trek_replica_take_tensor(x->local, arena->parts[p].grads);
    return status;
}

trek_status trek_ranks_sum_gradients(trek_step *s, int rank)
{
    trek_step_call call = { .s = s };
    rank_step x = { .call = &call, .s = s, .rank = rank, .replica = &s->team->replicas[rank],
                    .local = trek_ranks_comm(s->team->ranks, rank) };
    trek_status status = sum_separate(&x);
    return status == TREK_OK && trek_job_has_others(&s->job) ? between_separate(&x) : status;
}

static trek_status decide_separate(rank_step *x)
{
    if (x->measure)
        work(x->s, x->rank, false, true, NULL);
    x->state = decide(x->s, x->rank, x->measure);
    return TREK_OK;
}

static trek_status update_separate(rank_step *x)
{
    work(x->s, x->rank, false, false, &x->state);
    if (!x->state.skip)
        trek_optimizer_commit(x->replica->optimizer);
    return TREK_OK;
}

static void keep_first(rank_step *x)
{
    if (x->rank > 0)
        trek_arena_zero_grads(x->replica->arena);
    else
        keep_flags(x->s, x->rank);
}

static const arena_kind separate_arenas = { trek_ranks_begin_separate, sum_separate, between_separate, decide_separate,
                                            update_separate,
                                            keep_first };

/* --- the same if not all ranks are on the host ------------------------------------------------------------ */

static trek_status decide_on_device(rank_step *x)
{
    (void)x; /* it is decided during the update */
    return TREK_OK;
}

trek_step_opts trek_ranks_step_opts(const trek_step *s, int rank)
{
    const trek_graph_settings *settings = &s->team->graph->settings;
    return (trek_step_opts){ .max_norm = settings->max_norm, .max_value = settings->max_value, .adapt = true, .zero_grad = true,
                             .scaler = trek_ranks_scaler(s, rank) };
}

bool trek_ranks_measures_on_device(const trek_step *s, int rank)
{
    return s->team->graph->settings.max_norm > 0 || trek_ranks_scaler(s, rank);
}

void trek_ranks_claim_gradients(const rank_step *x)
{
    trek_arena *arena = x->replica->arena;
    for (int k = 0; k < arena->n_segments; k++)
        if (x->s->team->any[k])
            arena->segments[k].param->leaf->has_grad = true;
}

/* Every rank holds the sum now. Each decides and updates in its own device's order, as a single device does. */
static trek_status update_on_device(rank_step *x)
{
    trek_ranks_claim_gradients(x);
    trek_step_opts opts = trek_ranks_step_opts(x->s, x->rank);
    return trek_optimizer_step_with(x->replica->optimizer, &opts);
}

static const arena_kind device_arenas = { trek_ranks_begin_separate, sum_separate, between_separate, decide_on_device,
                                          update_on_device,
                                          keep_first };

static const arena_kind *plain_kind(const trek_step *s)
{
    return s->team->shared ? &shared_arena : s->team->on_host ? &separate_arenas : &device_arenas;
}

trek_status trek_ranks_run_step(trek_step_call *c)
{
    c->sent = c->s->state.phase == TREK_STEP_SENT;
    c->grains = c->s->grains && c->s->grains->pending;
    c->whole = c->grains || (c->s->redo && c->s->twice);
    if (!c->kind)
        c->kind = plain_kind(c->s);
    trek_status status = trek_ranks_call(c->s->team->ranks, step_rank, c);
    if (c->grains && !c->s->grains->pending)
        trek_step_folded(&c->s->state);
    return status;
}

/* --- where the step's gradients are ------------------------------------------------------------------------- */

void trek_ranks_begin(trek_step *s) { trek_step_reset(&s->state); }
void trek_ranks_passed(trek_step *s, bool gave) { trek_step_passed(&s->state, gave); }
void trek_ranks_owe_factor(trek_step *s, double factor) { s->state.factor = factor; }
bool trek_ranks_have_passed(const trek_step *s) { return s->state.passes > 0; }
bool trek_ranks_are_reduced(const trek_step *s) { return s->state.phase == TREK_STEP_FOLDED; }

void trek_ranks_reset(trek_step *s)
{
    trek_step_reset(&s->state);
    if (s->grains)
        trek_grains_reset(s);
    if (s->redo)
        s->redo->passes.n = 0;
    trek_accumulation_clear(&s->team->graph->accumulation);
}

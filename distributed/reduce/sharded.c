/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of sharers, which divide as DeepSpeed's ZeRO stage 1 (Rajbhandari et al. 2020) and Megatron's distributed
 * optimizer do. Every bucket of gradients is reduce-scattered, after backward or during it. Each sharer updates its
 * part of the bucket, whose state no other sharer has, and an all-gather distributes the updated parameters.
 *
 * If an optimizer's class updates whole parameters, each parameter has one owner instead: gradients are reduced to
 * the owner, which broadcasts what it has updated.
 *
 * Sharers have equal parts of each bucket, or stretches of the arena in proportion to their weights (memory_plan.c).
 * Then a bucket lies in the stretch of one sharer and is treated as if that sharer owned a parameter.
 *
 * The sharers are the processes, or all ranks, if these have parameters of their own. Ranks that share a process's parameters
 * also share its cuts: each updates some of their chunks, and rank 0 exchanges with the other processes. If the engine adds in
 * rank order, a step has the same bits as without sharing, except for the norm of gradients, whose squares are added
 * in another order. */
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/sharded.h"

#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/comm/nested.h"
#include "distributed/grains/grains.h"
#include "distributed/job/agreement.h"
#include "distributed/reduce/overlap.h"
#include "distributed/team/divided.h"
#include "distributed/team/sharer.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "tensor/memory_account.h"
#include "tensor/pool.h"
#include "tensor/trace.h"

/* Returns whether the rank exchanges with the other sharers, and updates for the ranks that share its arena. */
static bool is_sharer(const trek_step *s, int rank) { return rank == 0 || !s->team->shared; }

/* --- planning ------------------------------------------------------------------------------ */

static int64_t count_chunks(int64_t elements) { return (elements + TREK_CHUNK - 1) / TREK_CHUNK; }

/* The cuts of one rank. */
typedef struct rank_cuts {
    trek_sharer_cuts cuts;
    trek_reduce_chunk *chunks; /* pieces of the cuts, and their sums of squares */
    double *sums;
    int n_chunks;
} rank_cuts;

struct trek_ranks_cuts {
    trek_step *s;
    const trek_optimizer_spec *spec;
    bool bare;               /* values do not move: neither masters nor divided parameters */
    rank_cuts ranks[];       /* [local_ranks] */
};

static trek_status plan_chunks(rank_cuts *made)
{
    const trek_arena_division *division = &made->cuts.division;
    int64_t n = 0;
    for (int k = 0; k < division->n_cuts; k++)
        n += count_chunks(division->cuts[k].end - division->cuts[k].begin);
    made->chunks = trek_calloc((size_t)n + 1, sizeof *made->chunks);
    made->sums = trek_calloc((size_t)n + 1, sizeof *made->sums);
    if (!made->chunks || !made->sums)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < division->n_cuts; k++) {
        const trek_arena_cut *cut = &division->cuts[k];
        for (int64_t at = cut->begin; at < cut->end; at += TREK_CHUNK)
            made->chunks[made->n_chunks++] = (trek_reduce_chunk){
                .part = cut->part, .begin = at, .end = at + TREK_CHUNK < cut->end ? at + TREK_CHUNK : cut->end };
    }
    return TREK_OK;
}

trek_sharer trek_ranks_sharer(const trek_step *s, int rank)
{
    const rank_replica *own = &s->team->replicas[rank];
    return (trek_sharer){ .comm = trek_step_carrier(s, rank), .arena = own->arena, .reducer = own->reducer,
                          .optimizer = own->optimizer };
}

int trek_ranks_sharer_process(const trek_step *s, int sharer, int *local)
{
    *local = 0;
    if (s->carriers)
        return trek_comm_nested_place(s->carriers[0], sharer, local);
    if (trek_job_has_others(&s->job))
        return sharer;
    *local = sharer;
    return 0;
}

static bool has_masters(const trek_arena *arena)
{
    bool has = false;
    for (int p = 0; p < arena->n_parts; p++)
        has |= trek_arena_part_is_low(&arena->parts[p]);
    return has;
}

/* If an optimizer exists, its masters are divided together with the parameters. */
static trek_status make_cuts(int rank, void *arg)
{
    trek_ranks_cuts *made = arg;
    rank_cuts *own = &made->ranks[rank];
    trek_sharer sharer = trek_ranks_sharer(made->s, rank);
    trek_tensor *masters[TREK_DTYPE_COUNT] = { NULL };
    if (!is_sharer(made->s, rank))
        return TREK_OK;
    sharer.bare = made->bare && (sharer.optimizer || made->s->team->divides_params);
    bool moves = sharer.optimizer && has_masters(sharer.arena) && !made->bare;
    trek_status status = moves ? trek_sharer_gather_masters(&sharer) : TREK_OK;
    for (int p = 0; p < sharer.arena->n_parts && moves && status == TREK_OK; p++)
        masters[p] = trek_optimizer_gathered_of(sharer.optimizer, TREK_OWN_MASTERS, p);
    if (status == TREK_OK)
        status = trek_sharer_cut(&sharer, made->spec, made->s->team->bucket_bytes, masters, &own->cuts);
    if (moves)
        trek_optimizer_gather_end(sharer.optimizer);
    return status == TREK_OK ? plan_chunks(own) : status;
}

/* Takes parameters that belong to the rank by the cuts that were made. All ranks do so before any takes these cuts. */
static trek_status prepare_cuts(int rank, void *arg)
{
    trek_ranks_cuts *made = arg;
    return is_sharer(made->s, rank)
        ? trek_divided_prepare(&made->s->team->replicas[rank], &made->ranks[rank].cuts, !made->bare) : TREK_OK;
}

/* Exchanges the cuts that were made and those of the rank. */
static trek_status take_cuts(int rank, void *arg)
{
    trek_ranks_cuts *made = arg;
    rank_replica *replica = &made->s->team->replicas[rank];
    rank_cuts *own = &made->ranks[rank];
    trek_sharer sharer = trek_ranks_sharer(made->s, rank);
    if (!is_sharer(made->s, rank))
        return TREK_OK;
    trek_reduce_chunk *chunks = replica->own_chunks;
    double *sums = replica->own_sums;
    int n_chunks = replica->n_own_chunks;
    trek_status status = trek_sharer_take(&sharer, &own->cuts);
    if (!made->bare)
        trek_divided_settle(replica);
    if (made->s->grains)
        trek_grain_sums_hold(made->s, rank);
    replica->own_chunks = own->chunks;
    replica->own_sums = own->sums;
    replica->n_own_chunks = own->n_chunks;
    own->chunks = chunks;
    own->sums = sums;
    own->n_chunks = n_chunks;
    return status;
}

/* Gives back parameters that were the rank's by cuts that it does not have any more. */
static trek_status settle_cuts(int rank, void *arg)
{
    const trek_ranks_cuts *made = arg;
    if (is_sharer(made->s, rank))
        trek_divided_settle(&made->s->team->replicas[rank]);
    return TREK_OK;
}

static trek_status drop_cuts(int rank, void *arg)
{
    rank_cuts *own = &((trek_ranks_cuts *)arg)->ranks[rank];
    trek_sharer_cuts_clear(&own->cuts);
    trek_free(own->chunks);
    trek_free(own->sums);
    return TREK_OK;
}

static trek_status cut(trek_step *s, const trek_optimizer_spec *spec, bool bare, trek_ranks_cuts **before)
{
    trek_ranks_cuts *made = trek_calloc(1, sizeof *made + (size_t)s->team->local_ranks * sizeof *made->ranks);
    *before = NULL;
    if (!made)
        return TREK_ERR_MEMORY;
    made->s = s;
    made->spec = spec;
    made->bare = bare;
    trek_status status = trek_ranks_call(s->team->ranks, make_cuts, made);
    if (status == TREK_OK)
        status = trek_ranks_call(s->team->ranks, prepare_cuts, made);
    if (s->team->lent && !bare) /* nobody gives back what another process still reads */
        status = trek_replica_agree(s->job.comm, status, "graph_set_optimizer");
    *before = made;
    bool took = status == TREK_OK;
    if (took)
        status = trek_ranks_call(s->team->ranks, take_cuts, made);
    if (status != TREK_OK)
        trek_ranks_cut_end(before, !took);
    if (status != TREK_OK)
        trek_divided_forget(s->team);
    return status;
}

trek_status trek_ranks_cut(trek_step *s, const trek_optimizer_spec *spec, trek_ranks_cuts **before)
{
    return cut(s, spec, false, before);
}

trek_status trek_ranks_cut_bare(trek_step *s, const trek_optimizer_spec *spec, trek_ranks_cuts **before)
{
    return cut(s, spec, true, before);
}

void trek_ranks_cut_end(trek_ranks_cuts **address, bool keep)
{
    trek_ranks_cuts *before = *address;
    *address = NULL;
    if (!before)
        return;
    if (!keep) {
        trek_ranks_call(before->s->team->ranks, prepare_cuts, before); /* it has had room for them */
        if (before->s->team->lent && !before->bare)
            trek_comm_barrier(before->s->job.comm);
        trek_ranks_call(before->s->team->ranks, take_cuts, before);
    }
    if (before->bare)
        trek_ranks_call(before->s->team->ranks, settle_cuts, before);
    trek_ranks_call(before->s->team->ranks, drop_cuts, before);
    trek_free(before);
}

trek_status trek_ranks_plan_shards(trek_step *s)
{
    trek_ranks_cuts *before = NULL;
    trek_status status = s->team->sharers > 1 ? trek_ranks_cut(s, NULL, &before) : TREK_OK;
    trek_ranks_cut_end(&before, true);
    return status;
}

trek_status trek_ranks_weigh_shards(trek_step *s, const double *weights)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK; r++)
        if (is_sharer(s, r))
            status = trek_arena_weigh(s->team->replicas[r].arena, weights);
    if (s->team->lent)
        status = trek_replica_agree(s->job.comm, status, "trainer_setup");
    return status == TREK_OK ? trek_ranks_plan_shards(s) : status;
}

static bool has_owners(const trek_arena *arena, const int *owner)
{
    if (!owner || !arena->owner)
        return !owner && !arena->owner;
    return memcmp(owner, arena->owner, (size_t)arena->n_segments * (1 + arena->twice) * sizeof *owner) == 0;
}

trek_status trek_ranks_cut_for(trek_step *s, const trek_optimizer_spec *spec, trek_ranks_cuts **before)
{
    *before = NULL;
    if (s->team->sharers == 1)
        return TREK_OK;
    int *owner;
    trek_status status = trek_optimizer_owners(spec, s->team->replicas[0].arena, &owner);
    bool fits = status != TREK_OK || has_owners(s->team->replicas[0].arena, owner);
    trek_free(owner);
    if (!fits && s->grains && s->grains->pending && s->team->divides_grads)
        status = trek_fail(TREK_ERR_STATE,
                           "graph_set_optimizer: graph: gradients of grains are with those who keep them now; call "
                           "trek_graph_step or trek_graph_zero_grad before this optimizer, which divides them otherwise");
    if (status == TREK_OK && !fits)
        status = trek_overlap_keep(s); /* gradients that were sent lie in the parts of the old cuts */
    return status == TREK_OK && !fits ? trek_ranks_cut(s, spec, before) : status;
}

/* --- runs over a sharer's chunks on a rank's threads -------------------------------------------- */

typedef struct own_work {
    rank_replica *own;
    int64_t first;           /* part 0 of the work is chunk `first` */
    const trek_update_state *update; /* NULL: the chunks are measured */
} own_work;

static void work_chunks(void *arg, int64_t begin, int64_t end)
{
    const own_work *w = arg;
    const trek_arena *arena = w->own->arena;
    for (int64_t k = w->first + begin; k < w->first + end; k++) {
        const trek_reduce_chunk *chunk = &w->own->own_chunks[k];
        const trek_arena_part *part = &arena->parts[chunk->part];
        bool finite;
        if (w->update) {
            trek_optimizer_apply_range(w->own->optimizer, chunk->part, chunk->begin, chunk->end, w->update->grad_scale,
                                       w->update->value_limit, false);
            continue;
        }
        arena->backend->sum_squares(arena->device, part->wide,
                                    part->grads->data + (size_t)chunk->begin * trek_dtype_size(part->wide),
                                    chunk->end - chunk->begin, &w->own->own_sums[k], &finite);
        if (!finite)
            w->own->own_sums[k] = NAN;
    }
}

/* Ranks that share an arena take some chunks each. */
static void work(trek_step *s, int rank, const trek_update_state *update)
{
    rank_replica *own = &s->team->replicas[s->team->shared ? 0 : rank];
    int64_t n = own->n_own_chunks, parts = s->team->shared ? s->team->local_ranks : 1, part = s->team->shared ? rank : 0;
    int64_t first = n * part / parts, end = n * (part + 1) / parts, each = (end - first + 4 * 16 - 1) / (4 * 16);
    own_work w = { own, first, update };
    if (update && trek_optimizer_is_whole(own->optimizer)) /* its update uses the threads itself */
        work_chunks(&w, 0, end - first);
    else if (end > first)
        trek_parallel(end - first, each > 1 ? each : 1, work_chunks, &w);
}

/* --- gradients --------------------------------------------------------------------------------------- */

/* Replaces each sharer's cuts of the gradients by the sum. What was already sent arrives. */
static trek_status scatter(const rank_step *x)
{
    trek_comm *comm = trek_step_carrier(x->s, x->rank);
    trek_status started = x->call->sent ? TREK_OK
        : trek_reducer_run(x->replica->reducer,
                           trek_ranks_giving_back(x->s, comm, (trek_sending){ .comm = comm, .starts = true, .scatters = true }));
    trek_status ended = trek_comm_finish(comm);
    if (started != TREK_OK || ended != TREK_OK)
        return started != TREK_OK ? started : ended;
    return x->call->sent && x->s->state.factor != 1 ? trek_ranks_apply_grad_factor_here(x->rank, x->s) : TREK_OK;
}

static trek_status sum_shared(rank_step *x)
{
    trek_ranks_sum_shared(x);
    return TREK_OK;
}

static trek_status sum_separate(rank_step *x) { return trek_job_has_others(&x->s->job) ? TREK_OK : scatter(x); }

static trek_status between(rank_step *x)
{
    if (x->s->carriers) /* each rank is a sharer */
        return scatter(x);
    int64_t start = trek_trace_enter("reduce processes");
    trek_status status = trek_comm_barrier(x->local);
    if (x->rank == 0)
        x->call->interprocess = status == TREK_OK ? scatter(x) : status;
    trek_trace_end("reduce processes", start, x->s->team->graph->settings.steps);
    return trek_ranks_meet_after(x, status);
}

/* Without an update a sharer keeps its part of the sum, to which more may be added. */
static void keep(rank_step *x)
{
    trek_arena *arena = x->replica->arena;
    if (!is_sharer(x->s, x->rank)) {
        trek_arena_forget_grads(arena);
        return;
    }
    trek_arena_zero_others(arena);
    for (int k = 0; k < arena->n_segments; k++)
        if (x->s->team->any[k]) {
            arena->segments[k].param->leaf->has_grad = true;
            trek_tensor_bump(arena->segments[k].param->leaf->grad->data);
        }
    if (x->rank == 0)
        trek_step_accumulates(&x->s->state);
}

/* --- deciding ------------------------------------------------------------------------------------------- */

/* Adds in the order of the sharers, so that all have the same bits. */
static trek_status join_sums(const rank_step *x, double *sum)
{
    double sums[TREK_MAX_RANKS], own = 0;
    for (int k = 0; k < x->replica->n_own_chunks; k++)
        own += x->replica->own_sums[k];
    if (x->s->job.mixed) { /* as ranks on devices do */
        trek_update_state all = { .sum_squares = own, .finite = !isnan(own) };
        trek_status joined = trek_sharer_join_norm(&all, trek_step_carrier(x->s, x->rank));
        *sum = all.finite ? all.sum_squares : (double)NAN;
        return joined;
    }
    trek_status status = trek_comm_gather_bytes(trek_step_carrier(x->s, x->rank), &own, sizeof own, sums);
    *sum = 0;
    for (int k = 0; k < x->s->team->sharers && status == TREK_OK; k++)
        *sum += sums[k];
    return status;
}

static trek_status measure(rank_step *x, double *sum)
{
    work(x->s, x->rank, NULL);
    if (!x->s->team->shared)
        return join_sums(x, sum);
    trek_status status = trek_comm_barrier(x->local);
    if (x->rank == 0)
        x->call->interprocess = status == TREK_OK ? join_sums(x, &x->s->team->shared_squares) : status;
    status = trek_ranks_meet_after(x, status);
    *sum = x->s->team->shared_squares;
    return status;
}

static trek_status decide(rank_step *x)
{
    double sum = 0;
    trek_status status = x->measure ? measure(x, &sum) : TREK_OK;
    if (status == TREK_OK)
        x->state = trek_ranks_decide(x->s, sum, x->measure);
    return status;
}

/* --- updating ------------------------------------------------------------------------------------------- */

/* If parts are kept twice, this is an operation of its own, which goes on when a process dies (reduce/twice.h). */
static trek_status gather_params(const rank_step *x)
{
    if (x->s->twice)
        return TREK_OK;
    trek_sharer sharer = trek_ranks_sharer(x->s, x->rank);
    return trek_sharer_gather_params(&sharer);
}

/* Ranks on devices do not know on the host whether the step is skipped. */
static bool sends(const rank_step *x) { return !x->state.skip || x->s->job.mixed; }

static trek_status update_shared(rank_step *x)
{
    if (!x->state.skip)
        work(x->s, x->rank, &x->state);
    trek_status status = trek_comm_barrier(x->local);
    if (x->rank == 0) {
        trek_arena_zero_grads(x->replica->arena);
        x->call->interprocess = status == TREK_OK && sends(x) ? gather_params(x) : status;
    }
    return trek_ranks_meet_after(x, status);
}

/* Divided parameters are gathered when they are read, when all have updated theirs: if parts are kept twice, that is when all
 * have come to the next commit (trek_survivors_gather). */
static trek_status update_separate(rank_step *x)
{
    bool meets = x->s->team->lent && !x->s->twice;
    trek_divided_begin_update(x->replica); /* of a CPU, it does not fail */
    if (!x->state.skip)
        work(x->s, x->rank, &x->state);
    trek_divided_end_update(x->replica);
    trek_arena_zero_grads(x->replica->arena);
    trek_status status = !x->s->team->divides_params && sends(x) ? gather_params(x)
        : meets ? trek_comm_barrier(trek_step_carrier(x->s, x->rank)) : TREK_OK;
    if (status == TREK_OK && !x->state.skip)
        trek_optimizer_commit(x->replica->optimizer);
    return status;
}

static const arena_kind shared_arena = { NULL, sum_shared, between, decide, update_shared, keep };
static const arena_kind separate_arenas = { trek_ranks_begin_separate, sum_separate, between, decide, update_separate, keep };

/* --- the same on devices, which decide by themselves --------------------------------------------------------- */

static trek_status decide_on_device(rank_step *x)
{
    (void)x;
    return TREK_OK;
}

static trek_status update_on_device(rank_step *x)
{
    trek_comm *comm = trek_step_carrier(x->s, x->rank);
    trek_ranks_claim_gradients(x);
    trek_step_opts opts = trek_ranks_step_opts(x->s, x->rank);
    opts.zero_grad = false;
    bool divided = x->s->team->divides_grads;
    const trek_grain_stage *stage = x->call->grains && divided ? &x->s->grains->sums[x->rank].stage : NULL;
    opts.whole = x->call->whole && !divided; /* sums of grains are read whole */
    opts.join_norm = opts.whole ? NULL : trek_sharer_join_norm;
    opts.arg = comm;
    if (stage && trek_ranks_measures_on_device(x->s, x->rank)) {
        opts.norm_parts = (const double *)(const void *)stage->norm->data;
        opts.n_norm_parts = stage->n_norm;
    }
    trek_status status = trek_divided_begin_update(x->replica);
    if (status == TREK_OK)
        status = trek_optimizer_step_with(x->replica->optimizer, &opts);
    trek_status ended = trek_divided_end_update(x->replica);
    status = status == TREK_OK ? ended : status;
    if (status != TREK_OK) { /* the others are about to enter an exchange */
        trek_comm_abort(comm, "a rank cannot update its part");
        return status;
    }
    trek_arena_zero_grads(x->replica->arena);
    bool meets = x->s->team->lent && !x->s->twice;
    return meets ? trek_comm_barrier(comm) : x->s->team->divides_params ? TREK_OK : gather_params(x);
}

static const arena_kind device_arenas = { trek_ranks_begin_separate, sum_separate, between, decide_on_device, update_on_device,
                                          keep };

const arena_kind *trek_ranks_sharded_kind(const trek_step *s)
{
    return s->team->shared ? &shared_arena : s->team->on_host ? &separate_arenas : &device_arenas;
}

/* --- the whole state ------------------------------------------------------------------------------------ */

typedef struct gathering {
    trek_step *s;
    bool everywhere;
} gathering;

static trek_status gather_rank(int rank, void *arg)
{
    const gathering *g = arg;
    trek_step *s = g->s;
    if (!is_sharer(s, rank))
        return TREK_OK;
    trek_sharer sharer = trek_ranks_sharer(s, rank);
    bool works = trek_memory_account_work(false); /* the whole state is no part of a rank's budget */
    trek_status status = trek_sharer_gather_state(&sharer, rank == 0 && (g->everywhere || s->job.process == 0), TREK_OK);
    trek_memory_account_work(works);
    return status;
}

trek_status trek_ranks_gather_state(trek_step *s, trek_status own, bool everywhere)
{
    if (!s || s->team->sharers == 1 || !s->team->replicas[0].optimizer)
        return own;
    if (own == TREK_OK) /* a sharer that has made no step since has the same states to give */
        own = trek_team_follow_groups(s->team);
    own = trek_replica_agree(s->job.comm, own, "the optimizer's state");
    if (own == TREK_OK)
        own = trek_ranks_call(s->team->ranks, gather_rank, &(gathering){ s, everywhere });
    if (own != TREK_OK)
        trek_ranks_forget_state(s);
    return own;
}

void trek_ranks_forget_state(trek_step *s)
{
    if (s && s->team->replicas[0].optimizer)
        trek_optimizer_gather_end(s->team->replicas[0].optimizer);
}

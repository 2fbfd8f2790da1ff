/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/policy/grain_together.h"

#include "distributed/grains/digests.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/team/memory.h"
#include "distributed/team/observations.h"
#include "distributed/team/step.h"
#include "graph/batch_grains.h"
#include "graph/observe_internal.h"
#include "nn/watch.h"
#include "tensor/rank_context.h"
#include "tensor/status_internal.h"

/* What backward may need for several grains: what stays in a core's caches, and a part of what the
 * rank's sums take. A few grains may need more: adding to the sums what they have together saves more time than the cache. */
#define LEAST_BYTES ((int64_t)2 << 20)
#define MOST_BYTES ((int64_t)16 << 20)
#define PART_OF_SUMS 4
#define FEW 4

/* --- whether ------------------------------------------------------------------------------- */

static int64_t bytes_of_sums(const trek_grain_sums *sums)
{
    int64_t bytes = 0;
    for (int p = 0; p < TREK_DTYPE_COUNT; p++)
        bytes += sums->parts[p].count * trek_binned_digits(sums->parts[p].dtype) * (int64_t)sizeof(int64_t);
    return bytes;
}

/* Returns whether the rank's budget, if it has one, leaves room for n grains, the products of as many that wait, and the
 * gradients that they keep. Its plan has one grain. */
static bool has_room(const trek_team *team, int rank, const trek_grain_slots *slots)
{
    const trek_team_memory *memory = team->memory;
    if (!memory || !memory->accounts || !memory->rows)
        return true;
    const trek_memory_row *row = &memory->rows[memory->first_own + trek_memory_row_of(team, rank)];
    int64_t left = row->budget - trek_memory_total(row), one = 2 * row->activations + slots->shared_bytes;
    return row->budget == 0 || (row->activations >= 0 && left >= slots->n * one * row->ranks);
}

/* Returns whether all gradients have places. */
static bool has_places(const trek_grain_slots *slots, const trek_replica *model)
{
    for (int k = 0; k < model->n_params; k++)
        if (model->params[k]->requires_grad && (k >= slots->numbers || slots->segment_of[k] < 0))
            return false;
    return true;
}

/* Looks at the model, once. */
static bool may_run_together(const trek_grain_call *c, int rank)
{
    trek_grain_together *t = &c->s->grains->sums[rank].together;
    if (!t->known) {
        const char *obstacle = trek_graph_grains_obstacle(c->s->team->replicas[rank].graph);
        t->known = true;
        t->alone = obstacle != NULL;
        if (obstacle && c->s->job.first_rank + rank == 0)
            trek_log_message(TREK_LOG_LEVEL_DEBUG, "grains: each is a pass of its own (%s)", obstacle);
    }
    return !t->alone;
}

int64_t trek_grains_most_together(const trek_grain_call *c, int rank)
{
    const trek_team *team = c->s->team;
    const trek_grains *g = c->s->grains;
    const trek_grain_sums *sums = &g->sums[rank];
    if (!c->pass->backward || !team->on_host || team->divides_grads || c->audited || g->digests->replay || !c->batch ||
        team->replicas[rank].model->n_buffers > 0 || trek_module_watched() || !may_run_together(c, rank) ||
        !has_places(&sums->slots, team->replicas[rank].model) || !has_room(team, rank, &sums->slots))
        return 0;
    if (sums->together.bytes == 0)
        return 1; /* it tells how much memory a grain needs */
    int64_t part = bytes_of_sums(sums) / PART_OF_SUMS, most = (LEAST_BYTES + part) / sums->together.bytes;
    int64_t few = (MOST_BYTES + part) / sums->together.bytes;
    if (most < FEW)
        most = few < FEW ? few : FEW;
    return most < sums->slots.n ? most : sums->slots.n;
}

/* --- how ----------------------------------------------------------------------------------- */

typedef struct together {
    trek_grain_call *call;
    int rank;
    int64_t number;
    const trek_batch *all, *parts;
    int n;
    uint64_t rng_draw;       /* after forward */
} together;

static void set_all(const together *t)
{
    trek_grain_set_place(t->call, t->all, t->number);
    trek_rank_here.grains = t->n;
}

/* The loss is that of one grain. */
static trek_status begin_loss(int k, void *arg)
{
    together *t = arg;
    if (k < 0) {
        set_all(t);
        return TREK_OK;
    }
    if (k == 0)
        t->rng_draw = trek_rank_here.rng_draw;
    trek_grain_set_place(t->call, &t->parts[k], t->number + k);
    trek_rank_here.grains = 0;
    trek_rank_here.rng_draw = t->rng_draw;
    return TREK_OK;
}

static trek_status end_loss(int k, void *arg)
{
    const together *t = arg;
    trek_grain_call *c = t->call;
    trek_graph *graph = c->s->team->replicas[t->rank].graph;
    uint64_t draw = trek_rank_here.rng_draw;
    if (draw > c->rng_draw[t->rank])
        c->rng_draw[t->rank] = draw;
    trek_status status = trek_observations_read(graph);
    c->recorded[t->number + k] = trek_observations_take(graph);
    return status;
}

/* Nothing remains of what was computed of the grains. */
static void forget(const together *t)
{
    trek_observations_drop(t->call->s->team->replicas[t->rank].graph);
    for (int k = 0; k < t->n; k++) {
        trek_pass_sum_clear(&t->call->sums[t->number + k]);
        trek_text_clear(&t->call->recorded[t->number + k]);
    }
}

static trek_status run(together *t, trek_grain_sums *sums, bool *done, int64_t *bytes)
{
    const trek_grain_call *c = t->call;
    const rank_replica *own = &c->s->team->replicas[t->rank];
    trek_grain_taker taker = { .sums = sums, .arena = own->arena };
    trek_backward_groups groups = { .n = t->n, .begin = trek_grain_sums_begin_group, .end = trek_grain_sums_end_group,
                                    .arg = &taker };
    trek_pass_sum *of[TREK_BINNED_TERMS];
    for (int k = 0; k < t->n; k++)
        of[k] = &c->sums[t->number + k];
    trek_batch_grains grains = { .all = t->all, .grains = t->parts, .n = t->n, .sums = of, .groups = &groups,
                                 .begin = begin_loss, .end = end_loss, .arg = t };
    trek_batch_run how = trek_grain_batch_run(c, t->rank);
    how.product = trek_grain_sums_take;
    how.arg = &taker;
    set_all(t);
    trek_status status = trek_graph_run_grains(own->graph, &grains, &how, done, bytes);
    trek_rank_here.grains = 0;
    return status;
}

/* Runs each of them by itself. */
static trek_status run_apart(const together *t)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < t->n && status == TREK_OK; k++) {
        trek_grain_set_place(t->call, &t->parts[k], t->number + k);
        status = trek_grain_train(t->call, t->rank, t->number + k, &t->parts[k]);
    }
    return status;
}

trek_status trek_grains_train_together(trek_grain_call *c, int rank, int64_t number, const trek_batch *all,
                                       const trek_batch *parts, int n)
{
    trek_grain_sums *sums = &c->s->grains->sums[rank];
    const trek_arena *arena = c->s->team->replicas[rank].arena;
    together t = { .call = c, .rank = rank, .number = number, .all = all, .parts = parts, .n = n };
    bool done = false;
    int64_t bytes = 0;
    trek_grain_sums_begin_grains(sums, arena, n);
    trek_status status = run(&t, sums, &done, &bytes);
    trek_grain_sums_end_grains(sums, arena, status == TREK_OK && done ? n : 0);
    if (status != TREK_OK)
        return status;
    if (!done) {
        sums->together.alone = true;
        forget(&t);
        return run_apart(&t);
    }
    sums->together.bytes = bytes / n + 1;
    for (int k = 0; k < n; k++)
        trek_grain_note(c, rank, number + k, &parts[k]);
    return trek_error_status();
}

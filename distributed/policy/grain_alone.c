/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/policy/grain_alone.h"

#include "autograd/ops.h"
#include "distributed/grains/digests.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/reduce/reduce.h"
#include "distributed/replay/replay.h"
#include "distributed/team/observations.h"
#include "distributed/team/step.h"
#include "graph/observe_internal.h"
#include "tensor/rank_context.h"

void trek_grain_set_place(const trek_grain_call *c, const trek_batch *grain, int64_t number)
{
    trek_rank_here.first_sample = grain ? grain->first : 0;
    trek_rank_here.rows = grain ? grain->n : -1;
    trek_rank_here.global_rows = grain ? grain->global : -1;
    trek_rank_here.grain = grain ? number + 1 : 0;
    trek_rank_here.grain_run = grain ? 1 + atomic_fetch_add_explicit(&c->s->grains->begun, 1, memory_order_relaxed) : 0;
    if (grain)
        trek_rank_here.rng_draw = c->pass->rng_draw;
}

/* Keeps the buffers that a grain has left. On a GPU nothing waits for the host: all of a pass are fetched when the ranks have
 * run. */
static void keep_buffers(const trek_grain_call *c, const rank_replica *own, int64_t number, trek_grain_record *record)
{
    if (own->arena->backend->host_accessible)
        trek_grains_keep_buffers(c->s->grains, own->model, (char *)record);
    else if (own->model->n_buffers > 0)
        c->kept[number] = trek_grains_copy_buffers(c->s->grains, own->model);
}

bool trek_grain_shows(const trek_grain_call *c, int64_t number)
{
    const trek_grains *g = c->s->grains;
    return g->digests->of_grains || g->fault || c->audited || trek_grains_is_audited(c->s, c->pass_number, number);
}

trek_grain_record *trek_grain_note(const trek_grain_call *c, int rank, int64_t number, const trek_batch *grain)
{
    trek_grain_record *record = trek_grains_new_record(c->s->grains);
    *record = (trek_grain_record){ .pass = c->pass_number, .number = number, .rows = grain->n,
                                   .weight = c->sums[number].weight, .loss = c->sums[number].loss,
                                   .denominator = c->pass->denominator, .rank = rank,
                                   .samples = trek_digests_samples(grain) };
    return record;
}

void trek_grain_keep(const trek_grain_call *c, int rank, int64_t number, const trek_batch *grain, trek_digest gradients)
{
    trek_grain_record *record = trek_grain_note(c, rank, number, grain);
    record->gradients = gradients;
    if (c->pass->training)
        keep_buffers(c, &c->s->team->replicas[rank], number, record);
}

/* Puts what backward has given where grains are merged. */
static trek_status add_grain(const trek_grain_call *c, int rank, int64_t number, const trek_batch *grain)
{
    trek_step *s = c->s;
    trek_grains *g = s->grains;
    const rank_replica *own = &s->team->replicas[rank];
    int64_t step = s->team->graph->settings.steps + 1;
    trek_digest gradients = { { 0, 0 } };
    if (g->fault)
        g->fault(s->job.first_rank + rank, step, number, own->arena);
    if (trek_grain_shows(c, number))
        gradients = trek_digests_gradients(own->arena);
    if (c->audited) {
        *c->audited[rank] = gradients;
        trek_grain_sums_drop(own->arena);
        return trek_error_status();
    }
    trek_grain_sums_add(&g->sums[rank], own->arena);
    trek_grain_keep(c, rank, number, grain, gradients);
    return trek_error_status();
}

trek_batch_run trek_grain_batch_run(const trek_grain_call *c, int rank)
{
    trek_step *s = c->s;
    const rank_replica *own = &s->team->replicas[rank];
    return (trek_batch_run){ .graph_loader = s->team->graph->graph_loader, .scaler = trek_ranks_scaler(s, rank),
                             .leaves = own->model->params, .n_leaves = own->model->n_params,
                             .denominator = c->pass->denominator, .backward = c->pass->backward };
}

/* The gradients of a grain that is watched for what is not a number. */
typedef struct watched_taker {
    trek_grain_taker taker;
    trek_replay *replay;
} watched_taker;

static bool take_and_look(int k, trek_tensor *grad, trek_tensor *x, void *on)
{
    watched_taker *watched = on;
    if (!trek_grain_sums_take(k, grad, x, &watched->taker))
        return false;
    trek_tensor *product = trek_replay_watches(watched->replay) ? trek_grain_sums_product(&watched->taker, k) : NULL;
    if (product)
        trek_replay_see(watched->replay, product, "matmul");
    trek_tensor_release(product);
    return true;
}

trek_status trek_grain_train(trek_grain_call *c, int rank, int64_t number, const trek_batch *grain)
{
    trek_step *s = c->s;
    trek_grains *g = s->grains;
    const trek_step_pass *pass = c->pass;
    const rank_replica *own = &s->team->replicas[rank];
    trek_batch_run run = trek_grain_batch_run(c, rank);
    trek_grain_bucket on = { s, rank };
    watched_taker taker = { { .sums = &g->sums[rank], .arena = own->arena }, g->digests->replay };
    if (s->team->divides_grads && pass->backward) {
        trek_reducer_begin(own->reducer, (trek_sending){ .gives_back = true, .deliver = trek_grain_sums_add_bucket, .arg = &on,
                                                         .settle = s->team->on_host ? NULL : trek_grain_stage_settle,
                                                         .lags = !s->team->on_host });
        run.complete = trek_reducer_complete;
        run.arg = own->reducer;
    } else if (pass->backward && s->team->on_host) {
        run.product = taker.replay ? take_and_look : trek_grain_sums_take;
        run.arg = &taker;
    }
    if (pass->training)
        trek_grains_put_buffers(g, own->model, g->first_buffers);
    if (pass->backward)
        trek_grain_sums_begin(&g->sums[rank], own->arena, trek_grain_shows(c, number));
    if (g->digests->replay && pass->backward)
        trek_replay_enter(g->digests->replay, s->team->graph->settings.steps + 1, grain);
    trek_status status = trek_graph_run_batch(own->graph, grain, &run, &c->sums[number]);
    if (run.complete)
        trek_reducer_rest(own->reducer);
    if (status == TREK_OK && pass->backward && trek_grain_shows(c, number))
        status = trek_grain_sums_show(&g->sums[rank], own->arena);
    if (g->digests->replay)
        trek_replay_leave(g->digests->replay);
    if (status == TREK_OK)
        status = trek_observations_read(own->graph);
    c->recorded[number] = trek_observations_take(own->graph);
    return status == TREK_OK && pass->backward ? add_grain(c, rank, number, grain) : status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/pass/arrivals.h"

#include "autograd/var_internal.h"
#include "data/batch_here.h"
#include "data/loader_internal.h"
#include "distributed/grains/grains.h"
#include "distributed/pass/division.h"
#include "distributed/pass/giving.h"
#include "distributed/reduce/twice.h"
#include "distributed/team/constants.h"
#include "distributed/team/replica.h"
#include "distributed/team/settings.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "tensor/backend.h"
#include "tensor/memory_internal.h"
#include "tensor/products_way.h"
#include "tensor/random_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* What each process says when some have come. Those that have come learn from process 0's where the job is. */
typedef struct arrival_card {
    trek_giving_card giving;
    int64_t constants;       /* and teachers of the graph */
    trek_survival_place place;
    int32_t products[2];     /* how those of f32 and of BF16 are computed */
} arrival_card;

/* Returns a digest of what steps depend on besides the state. */
static uint64_t settings_of(const trek_step *s)
{
    const trek_replica *model = s->team->replicas[0].model;
    uint64_t digest = trek_mix(trek_settings_digest(s->team), trek_rank_here.rng_step);
    for (int k = 0; k < model->n_params; k++)
        digest = trek_mix(digest, model->params[k]->requires_grad);
    return digest;
}

/* --- giving ------------------------------------------------------------------------------------------------------------- */

/* A state of which a part is lost is given to nobody. */
static arrival_card make_card(trek_step *s, const trek_batch *batch)
{
    arrival_card card = { .giving = { .bytes = -1, .taker = -1 }, .constants = s->team->graph->constants.n,
                          .place = { .epoch = batch->epoch, .batch = batch->first_batch, .data = trek_batch_here()->digest,
                                     .settings = settings_of(s) },
                          .products = { trek_products_chosen(TREK_F32), trek_products_chosen(TREK_BF16) } };
    if (trek_twice_check(s, "trainer_setup") == TREK_OK)
        card.giving = trek_giving_begin(s);
    else
        trek_log_message(TREK_LOG_LEVEL_WARNING, "job: the state cannot be given to a process that has come: %s", trek_error());
    trek_error_clear();
    return card;
}

/* --- taking ------------------------------------------------------------------------------------------------------------- */

/* Computes products as the others do. */
static trek_status take_products(const arrival_card *card)
{
    bool faster, tiles = card->products[0] == TREK_PRODUCTS_WAY_TILES || card->products[1] == TREK_PRODUCTS_WAY_TILES;
    if (tiles && !trek_cpu_has_tiles(&faster))
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: the processes of the job compute products by tiles (AMX), which this "
                         "machine does not have");
    trek_products_choose(TREK_F32, (trek_products_way)card->products[0]);
    trek_products_choose(TREK_BF16, (trek_products_way)card->products[1]);
    return TREK_OK;
}

/* --- the operation ------------------------------------------------------------------------------------------------------ */

/* Gives those that have come what they need besides what they will fetch. */
static trek_status tell(trek_step *s, const arrival_card *all, trek_taking *taking)
{
    trek_giving_card *cards = trek_calloc((size_t)s->job.processes, sizeof *cards);
    trek_status status = cards ? TREK_OK : TREK_ERR_MEMORY;
    for (int p = 0; p < s->job.processes && cards; p++)
        cards[p] = all[p].giving;
    if (!cards && !taking)
        trek_comm_abort(s->job.comm, "a process has no memory for processes that have come");
    if (status == TREK_OK && taking) {
        s->job.survival->place = all[0].place;
        status = take_products(&all[0]);
    }
    if (status == TREK_OK && !taking)
        trek_giving_note(s, cards);
    if (status == TREK_OK)
        status = trek_giving_tell(s, cards, taking);
    trek_free(cards);
    return status == TREK_OK && all[0].constants > 0 ? trek_ranks_constants(s->team, &s->job) : status;
}

/* The first part, which can be repeated: those that have come learn where the job is, and where they can fetch its state.
 * batch NULL: this process is one of them. */
static trek_status exchange(trek_step *s, const trek_batch *batch, trek_taking *taking)
{
    trek_survival *survival = s->job.survival;
    arrival_card own = { .giving = { .bytes = -1, .taker = -1 } }, *all = trek_calloc((size_t)s->job.processes, sizeof *all);
    if (batch && all)
        own = make_card(s, batch);
    if (survival->joins)
        own.giving.taker = trek_regroup_number(survival->regroup, s->job.process);
    if (!all && !survival->joins)
        trek_comm_abort(s->job.comm, "a process has no memory for processes that have come");
    trek_status status = all ? trek_comm_gather_bytes(s->job.comm, &own, sizeof own, all) : TREK_ERR_MEMORY;
    if (status == TREK_OK && all[0].giving.bytes < 0) {
        survival->newcomers = 0;
        if (survival->joins)
            status = trek_fail(TREK_ERR_PEER, "trainer_setup: process 0 of the job cannot give its state");
    } else if (status == TREK_OK) {
        status = tell(s, all, taking);
    }
    trek_free(all);
    return status;
}

static trek_status exchange_and_commit(trek_step *s, const trek_batch *batch, trek_taking *taking)
{
    int64_t start = trek_trace_enter("arrival");
    trek_status status = exchange(s, batch, taking);
    if (status == TREK_OK && s->job.survival->newcomers > 0)
        status = trek_survival_commit(&s->job);
    trek_trace_end("arrival", start, s->job.processes);
    return status;
}

/* Called when those that have come have the state. */
static trek_status begin_with(trek_step *s)
{
    trek_status status = trek_survivors_after_commit(s);
    return status == TREK_OK ? trek_survivors_settle(s) : status;
}

/* Repeats the operation while processes die, and while those that have come are among the others. */
static trek_status let_in(trek_step *s, const trek_batch *batch)
{
    trek_survival *survival = s->job.survival;
    trek_status status = TREK_OK;
    bool complete = survival->newcomers == 0;
    while (!complete && status == TREK_OK) {
        status = exchange_and_commit(s, batch, NULL);
        complete = status == TREK_OK;
        if (!complete && trek_survival_go_on(&s->job, &status))
            complete = survival->newcomers == 0;
    }
    survival->newcomers = 0;
    if (s->twice) /* what comes next needs all processes */
        trek_giving_await(s);
    return status == TREK_OK ? begin_with(s) : status;
}

/* Invites those that wait, and meets them. If processes die meanwhile, the others meet without the joiners, or with them. *met:
 * all have met, also if nobody has come. */
static trek_status invite(trek_step *s, bool *met)
{
    trek_survival *survival = s->job.survival;
    int n = 0;
    trek_status status = trek_regroup_invite(survival->regroup, s->job.comm, &(trek_regroup_door){ .ranks = s->job.world_size },
                                             &n);
    *met = status != TREK_OK || n > 0;
    if (status == TREK_OK && n > 0)
        status = trek_survival_again(&s->job);
    else if (status != TREK_OK)
        trek_survival_go_on(&s->job, &status);
    return status;
}

/* A process that has left the last commit before the others invites once more, together with them, if one dies meanwhile: they
 * have not invited yet. */
static trek_status invite_and_let_in(trek_step *s, const trek_batch *batch)
{
    trek_survival *survival = s->job.survival;
    trek_status status;
    bool met;
    do {
        survival->ahead = false;
        status = invite(s, &met);
    } while (status == TREK_OK && met && survival->ahead);
    return status == TREK_OK && met ? let_in(s, batch) : status;
}

/* The loop of a process that has come must be where the others are. */
static trek_status check_place(trek_step *s, const trek_batch *batch)
{
    trek_survival *survival = s->job.survival;
    const trek_survival_place *place = &survival->place;
    uint64_t data = trek_batch_here()->digest;
    trek_status status = TREK_OK;
    survival->arrived = false;
    if (batch->epoch != place->epoch || batch->first_batch != place->batch)
        status = trek_fail(TREK_ERR_STATE, "graph_train_batch: batch: number %lld of epoch %lld; the job which this process has "
                                           "joined is at number %lld of epoch %lld, where trek_trainer_joined puts the loader",
                           (long long)batch->first_batch, (long long)batch->epoch, (long long)place->batch,
                           (long long)place->epoch);
    else if (place->data && data && data != place->data)
        status = trek_fail(TREK_ERR_STATE, "graph_train_batch: batch: its loader gives other data than those of the job which "
                                           "this process has joined; it must give the same");
    else if (settings_of(s) != place->settings)
        status = trek_fail(TREK_ERR_STATE,
                           "graph_train_batch: graph: its optimizer, schedule, clipping, precision, seed or frozen "
                           "parameters are not set as in the job which this process has joined at step %lld",
                           (long long)s->team->graph->settings.steps);
    if (status != TREK_OK)
        trek_survival_leave(&s->job, trek_error());
    return status;
}

trek_status trek_arrivals_look(trek_step *s, const trek_batch *batch)
{
    trek_survival *survival = s->job.survival;
    if (!survival || !(survival->arrived || survival->joiners))
        return TREK_OK;
    if (survival->arrived)
        return check_place(s, batch);
    survival->joiners = false;
    return invite_and_let_in(s, batch);
}

/* --- joining ------------------------------------------------------------------------------------------------------------ */

/* The second part. It fetches what the others have, whether they go on with the group or form another one. */
static trek_status take_state(trek_step *s, trek_taking *taking)
{
    trek_survival *survival = s->job.survival;
    trek_status status = trek_taking_fetch(s, taking);
    if (status == TREK_OK)
        status = survival->state->read(s->team->graph, taking->file.fd, survival->state->arg);
    if (status != TREK_OK) {
        trek_survival_leave(&s->job, trek_error());
        return status;
    }
    trek_job_file_begin_end(&survival->taken, &taking->file);
    survival->joins = false;
    survival->arrived = true;
    survival->newcomers = 0;
    return begin_with(s);
}

trek_status trek_arrivals_join(trek_step *s, const trek_survivors_opts *opts)
{
    trek_taking taking = { .file.fd = -1 };
    trek_taking_reserve(s, &taking);
    trek_status status = s->grains ? trek_grain_exchange_make(s) : TREK_OK; /* before others wait for it */
    if (status == TREK_OK)
        status = trek_survivors_join(s, opts);
    for (bool complete = false; !complete && status == TREK_OK;) {
        status = exchange_and_commit(s, NULL, &taking);
        complete = status == TREK_OK;
        if (!complete)
            trek_survival_go_on(&s->job, &status);
    }
    if (status == TREK_OK)
        status = take_state(s, &taking);
    trek_taking_clear(&taking);
    if (status == TREK_OK)
        trek_division_publish_nothing(s);
    return status;
}

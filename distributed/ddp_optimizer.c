/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer of a wrapper's ranks, which may divide its state as the optimizer of a stepper does (reduce/sharded.c),
 * by team/sharer.h. After they are reduced, gradients are complete on every rank, so that programs can clip and
 * inspect them as without it. */
#include "distributed/ddp_internal.h"
#include "distributed/job/agreement.h"
#include "distributed/team/load_state.h"
#include "distributed/team/sharer.h"
#include "optim/optimizer_move.h"

typedef struct divided {
    trek_sharer sharer;      /* its comm is a handle of its own; the reducer provides its buckets */
} divided;

/* --- what the ranks do together ------------------------------------------------------------------ */

static trek_status meet(void *arg, trek_status own)
{
    const divided *x = arg;
    return trek_replica_agree(x->sharer.comm, own, "optimizer_step");
}

static trek_status share(void *arg, trek_status own)
{
    const divided *x = arg;
    if (own == TREK_OK)
        return trek_sharer_gather_params(&x->sharer);
    trek_comm_abort(x->sharer.comm, "a rank cannot update its part"); /* the others are about to enter an exchange */
    return own;
}

static trek_status gather(void *arg, trek_status own)
{
    const divided *x = arg;
    trek_status status = trek_sharer_gather_state(&x->sharer, true, own);
    if (status != TREK_OK)
        trek_optimizer_gather_end(x->sharer.optimizer);
    return status;
}

static trek_status load(void *arg, trek_status own, const trek_optimizer_loaded *state)
{
    const divided *x = arg;
    trek_ranks_loading loading = { .optimizer = x->sharer.optimizer, .state = *state };
    return trek_ranks_load_together(&loading, x->sharer.comm, own);
}

static trek_status join_norm(trek_update_state *on_device, void *arg)
{
    return trek_sharer_join_norm(on_device, ((const divided *)arg)->sharer.comm);
}

static void end(void *arg)
{
    divided *x = arg;
    trek_reducer_free(&x->sharer.reducer);
    trek_comm_free(&x->sharer.comm);
    trek_free(x);
}

static const trek_optimizer_behind ranks_behind = { .load = load, .meet = meet, .share = share, .gather = gather,
                                                    .join_norm = join_norm, .end = end };

/* --- making ----------------------------------------------------------------------------------------- */

typedef struct making {
    trek_optimizer_spec spec;
    trek_optimizer *made;
} making;

static trek_status fill_in(divided *x, const trek_ddp *ddp, const trek_ddp_replica *r, trek_params *params,
                           const trek_optimizer_spec *spec)
{
    trek_sharer_cuts cuts;
    if (trek_comm_retain(r->comm))
        x->sharer.comm = r->comm;
    else
        return trek_fail(TREK_ERR_STATE, "ddp_optimizer: ddp: its communicator was freed already");
    x->sharer.arena = trek_arena_new_in(params, r->world_size, NULL, NULL);
    x->sharer.reducer = x->sharer.arena ? trek_reducer_of_arena(x->sharer.arena, ddp->opts.bucket_bytes) : NULL;
    if (!x->sharer.reducer)
        return trek_error_status();
    trek_status status = trek_sharer_cut(&x->sharer, spec, ddp->opts.bucket_bytes, NULL, &cuts);
    if (status != TREK_OK)
        return status;
    status = trek_sharer_take(&x->sharer, &cuts);
    trek_sharer_cuts_clear(&cuts);
    return status;
}

/* Owns x from here on. */
static trek_optimizer *make_divided(divided *x, const trek_ddp *ddp, const trek_ddp_replica *r, trek_params *params,
                                    const trek_optimizer_spec *spec)
{
    trek_status status = trek_optimizer_spec_check(spec);
    if (status == TREK_OK)
        status = fill_in(x, ddp, r, params, spec);
    x->sharer.optimizer = status == TREK_OK ? trek_optimizer_new_over(*spec, x->sharer.arena) : NULL;
    if (!x->sharer.optimizer) {
        trek_reducer_free(&x->sharer.reducer);
        trek_arena_free(&x->sharer.arena);
        end(x);
        return NULL;
    }
    x->sharer.optimizer->owns_arena = true;
    x->sharer.optimizer->behind = &ranks_behind;
    x->sharer.optimizer->behind_arg = x;
    return x->sharer.optimizer;
}

static void describe_option(const char *name, double value, void *text)
{
    char number[40];
    trek_text_format(text, "%s\t%s\n", name, trek_text_number(value, number));
}

/* Makes an optimizer on every rank, or on none. */
static trek_status make(trek_ddp *ddp, int k, void *arg)
{
    making *m = arg;
    trek_ddp_replica *r = &ddp->replicas[k];
    bool divides = ddp->opts.shard == TREK_SHARD_STATE && r->world_size > 1;
    trek_text text = { 0 };
    trek_status status = trek_ddp_ready(r);
    trek_params *params = status == TREK_OK ? trek_module_params(r->module) : NULL;
    divided *x = params && divides ? trek_calloc(1, sizeof *x) : NULL;
    if (params && !divides)
        m->made = trek_optimizer_new(m->spec, params);
    else if (x)
        m->made = make_divided(x, ddp, r, params, &m->spec);
    trek_params_free(&params);
    if (m->made) {
        trek_text_format(&text, "the optimizer\t%s\n", m->made->klass->name);
        trek_optimizer_group_options(&m->made->groups[0], describe_option, &text);
    }
    status = m->made ? TREK_OK : trek_error_status();
    if (r->world_size > 1)
        status = trek_agree(r->comm, status, "ddp_optimizer", m->made ? &text : NULL);
    if (status == TREK_OK)
        status = trek_ddp_commit(ddp);
    trek_text_clear(&text);
    if (status != TREK_OK)
        trek_optimizer_free(&m->made);
    return status;
}

trek_optimizer *trek_ddp_optimizer(trek_ddp *ddp, trek_optimizer_spec spec)
{
    if (!ddp)
        return trek_fail_missing("ddp_optimizer", "wrapper"), NULL;
    if (ddp->ranks && trek_ranks_rank_here(ddp->ranks) < 0)
        return trek_fail_null(
            TREK_ERR_STATE,
            "ddp_optimizer: called outside of trek_ranks_run with several replicas; each rank makes its own optimizer there");
    making m = { .spec = spec };
    return trek_ddp_call(ddp, make, &m, 0) == TREK_OK ? m.made : NULL;
}

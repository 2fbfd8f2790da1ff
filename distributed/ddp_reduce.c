/* SPDX-License-Identifier: Apache-2.0 */
/* Brings gradients together with each replica's reducer (team/reducer.h). A rank's gradients are multiplied by its
 * share of the weights, or set to zero if that is 0. With overlap buckets are sent during the backward pass; which
 * parameters had gradients is exchanged afterwards, in a second meeting. */
#include "autograd/ops.h"
#include "distributed/ddp_internal.h"
#include "nn/module_internal.h"
#include "tensor/trace.h"

/* A wrapper whose refresh failed has no lists. It only tells the others. */
static trek_status refuse(trek_ddp_replica *r)
{
    trek_status status = trek_ddp_ready(r);
    if (r->world_size > 1)
        trek_comm_run(r->comm, (trek_comm_call){ .kind = TREK_COMM_INVALID });
    return status;
}

/* --- after backward ------------------------------------------------------------------------------------ */

/* Returns whether the backward pass that has just ended went through layers that make sums with other ranks. */
static bool has_met(const trek_ddp_replica *r)
{
    bool met = false;
    for (int k = 0; r->model->meets && k < r->model->n_modules; k++)
        met |= r->model->modules[k]->own->klass->meets_ranks && r->model->modules[k]->own->training;
    return met;
}

/* seeded: gradients contain their share of the weights already, even those of a rank with share 0. */
static trek_status reduce_replica(const trek_ddp *ddp, trek_ddp_replica *r, double count, bool seeded, trek_status own)
{
    if (r->world_size == 1 && own == TREK_OK && count == 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "ddp_backward_weighted: count: the sum over all ranks is 0; at least one must be above 0");
    if (r->world_size == 1)
        return own == TREK_OK ? trek_ddp_commit(ddp) : own;
    if (own == TREK_OK)
        own = trek_reducer_prepare(r->reducer, false);
    int64_t start = trek_trace_enter("reduce");
    trek_sending reduction = { .comm = r->comm };
    r->reducer->mixed = !seeded && has_met(r);
    trek_status status = trek_reducer_meet(r->reducer, r->comm, "ddp", seeded ? 1 : count, own, &reduction.factor);
    r->reducer->mixed = false;
    if (seeded)
        reduction.factor = 1;
    if (status == TREK_OK)
        status = trek_reducer_run(r->reducer, reduction);
    if (status == TREK_OK)
        status = trek_ddp_commit(ddp);
    if (status == TREK_OK)
        status = trek_reducer_settle(r->reducer);
    trek_reducer_drop_spares(r->reducer);
    trek_trace_end("reduce", start, 0);
    return status;
}

/* --- the calls ---------------------------------------------------------------------------------------------- */

static trek_status reduce(trek_ddp *ddp, int k, void *arg)
{
    trek_ddp_replica *r = &ddp->replicas[k];
    double count;
    trek_status own = trek_ddp_count(*(const double *const *)arg, k, &count), before = trek_error_status();
    return r->reducer ? reduce_replica(ddp, r, count, false, before != TREK_OK ? before : own) : refuse(r);
}

trek_status trek_ddp_reduce_gradients(trek_ddp *ddp)
{
    if (!ddp)
        return trek_fail_missing("ddp_reduce_gradients", "wrapper");
    return trek_ddp_call(ddp, reduce, &(const double *){ NULL }, 0);
}

trek_status trek_ddp_reduce_gradients_weighted(trek_ddp *ddp, const double *counts)
{
    if (!ddp)
        return trek_fail_missing("ddp_reduce_gradients_weighted", "wrapper");
    if (!counts && trek_error_status() == TREK_OK)
        trek_fail_missing("ddp_reduce_gradients_weighted", "counts"); /* this rank still takes part */
    return trek_ddp_call(ddp, reduce, &counts, 0);
}

/* --- backward passes during which buckets are sent ---------------------------------------------------------------- */

/* Runs the backward pass of factor * loss over this replica's parameters only. With factor 0, parameters that the
 * pass uses have a gradient, which the reducer sets to zero; but not if layers meet, because it then contains
 * contributions of the others. sends: the reducer sends buckets when they are complete. */
static trek_status run_pass(const trek_ddp_replica *r, trek_var *loss, double factor, bool sends)
{
    if (!loss)
        return trek_fail_missing("ddp_backward", "loss");
    trek_backward_watch watch = {
        .leaves = r->model->params, .n_leaves = r->model->n_params, .only_these = true,
        .complete = sends ? trek_reducer_complete : NULL, .arg = r->reducer,
    };
    if (factor == 1)
        return trek_backward_watched(&loss, NULL, 1, NULL, &watch);
    trek_scope scope = trek_scope_begin();
    const trek_tensor *y = loss->data;
    trek_var *seed = scope.depth ? trek_var_from(trek_tensor_full(trek_tensor_shape(y), factor, (trek_dtype)y->dtype, y->device))
        : NULL;
    trek_status status = seed ? trek_backward_watched(&loss, &seed, 1, NULL, &watch) : trek_error_status();
    trek_scope_end(scope);
    return status;
}

/* Multiplies what earlier passes left by the factor. With factor 0 it sets zeros without multiplying. */
static trek_status scale_left(const trek_reducer *reducer, double factor)
{
    trek_status status = TREK_OK;
    trek_no_grad_begin();
    for (int k = 0; k < reducer->n && status == TREK_OK && factor != 1; k++) {
        trek_var *var = reducer->items[k].var;
        if (!trek_item_has_grad(&reducer->items[k]))
            continue;
        trek_scope scope = trek_scope_begin();
        trek_var *grad = var->leaf->grad, *scaled = !scope.depth ? NULL
            : factor > 0 ? trek_mul_scalar(grad, factor)
            : trek_var_from(trek_tensor_zeros(trek_var_shape(grad), trek_var_dtype(grad), trek_var_device(grad)));
        status = scaled ? trek_var_set_grad(var, scaled) : trek_error_status();
        trek_scope_end(scope);
    }
    trek_no_grad_end();
    return status;
}

/* Layers that meet mix the ranks' gradients in their backward pass. So each rank's loss is multiplied by its share of
 * the weights at the beginning, and the others wait for every rank's pass. */
static trek_status backward_meeting(const trek_ddp *ddp, trek_ddp_replica *r, trek_var *loss, double count, trek_status own)
{
    double factor = 0;
    trek_status status = trek_reducer_meet(r->reducer, r->comm, "ddp", count, own, &factor);
    if (status != TREK_OK)
        return status;
    own = scale_left(r->reducer, factor);
    if (own == TREK_OK && loss)
        own = run_pass(r, loss, factor, false);
    return reduce_replica(ddp, r, count, true, own);
}

static trek_status backward_overlapped(trek_ddp_replica *r, trek_var *loss, double count, trek_status own)
{
    trek_sending reduction = { .comm = r->comm, .ahead = true, .starts = true };
    if (own == TREK_OK)
        own = trek_reducer_prepare(r->reducer, true);
    trek_status status = trek_reducer_meet(r->reducer, r->comm, "ddp", count, own, &reduction.factor);
    if (status != TREK_OK)
        return status;
    trek_reducer_begin(r->reducer, reduction);
    own = count > 0 || loss ? run_pass(r, loss, count > 0, true) : TREK_OK;
    trek_status sent = trek_reducer_rest(r->reducer); /* also after a pass that failed or did not run */
    trek_status ended = trek_comm_finish(r->comm);
    if (own == TREK_OK)
        own = trek_reducer_make_spares(r->reducer);
    if (own == TREK_OK)
        own = sent != TREK_OK ? sent : ended;
    status = trek_reducer_meet(r->reducer, r->comm, "ddp", count, own, &reduction.factor);
    if (status == TREK_OK)
        status = trek_reducer_settle(r->reducer);
    trek_reducer_drop_spares(r->reducer);
    return status;
}

typedef struct backward_call {
    trek_var *loss;
    double count;
    bool passed; /* the pass has been run, by trek_ddp_forward or before processes died */
} backward_call;

static trek_status backward(trek_ddp *ddp, int k, void *arg)
{
    backward_call *c = arg;
    trek_ddp_replica *r = &ddp->replicas[k];
    double count;
    trek_status own = trek_ddp_count(&c->count, 0, &count);
    if (!r->reducer)
        return refuse(r);
    if (trek_error_status() != TREK_OK)
        own = trek_error_status();
    if (own == TREK_OK && count > 0 && !c->loss)
        own = trek_fail_missing("ddp_backward", "loss");
    if (ddp->overlap && !c->passed)
        return backward_overlapped(r, c->loss, count, own);
    if (r->world_size > 1 && r->model->meets && !c->passed)
        return backward_meeting(ddp, r, c->loss, count, own);
    if (own == TREK_OK && (count > 0 || c->loss) && !c->passed)
        own = run_pass(r, c->loss, count > 0, false);
    if (ddp->job && own == TREK_OK) /* the process has one replica: the call is not shared with other threads */
        c->passed = true;
    return reduce_replica(ddp, r, count, false, own);
}

trek_status trek_ddp_backward(trek_ddp *ddp, trek_var *loss)
{
    if (!ddp)
        return trek_fail_missing("ddp_backward", "wrapper");
    backward_call call = { loss, 1, false };
    if (!ddp->ranks || trek_ranks_rank_here(ddp->ranks) >= 0)
        return trek_ddp_call(ddp, backward, &call, 0);
    call.passed = true;
    trek_status status = trek_ddp_ready(&ddp->replicas[0]);
    if (status == TREK_OK)
        status = run_pass(&ddp->replicas[0], loss, 1, false);
    return status == TREK_OK ? trek_ddp_call(ddp, backward, &call, 0) : status;
}

trek_status trek_ddp_backward_weighted(trek_ddp *ddp, trek_var *loss, double count)
{
    if (!ddp)
        return trek_fail_missing("ddp_backward_weighted", "wrapper");
    if (ddp->ranks && trek_ranks_rank_here(ddp->ranks) < 0)
        return trek_fail(
            TREK_ERR_STATE,
            "ddp_backward_weighted: called outside of trek_ranks_run with several replicas; each rank calls it there");
    return trek_ddp_call(ddp, backward, &(backward_call){ loss, count, false }, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Forward passes of all replicas in parallel: rows are divided evenly, or each replica gets its own inputs. */
#include <stdio.h>

#include "distributed/balance/apportion.h"
#include "distributed/ddp_internal.h"
#include "distributed/pass/split_forward.h"

typedef struct run_arg {
    trek_ddp *ddp;
    int n_inputs;
} run_arg;

static trek_replica *replica_of(int rank, void *arg) { return ((run_arg *)arg)->ddp->replicas[rank].model; }

static trek_status run_model(int rank, trek_var *const *inputs, trek_var **outputs, void *arg)
{
    const run_arg *c = arg;
    outputs[0] = trek_forward_many(c->ddp->replicas[rank].module, inputs, c->n_inputs);
    return outputs[0] ? TREK_OK : trek_error_status();
}

static void describe_output(int k, char *text, size_t size, void *arg)
{
    (void)k, (void)arg;
    snprintf(text, size, "ddp_forward: the output");
}

/* parts: what each replica has. The result is multiplied by n times the replica's share of the gradient, because
 * reducing takes the mean. */
static trek_var *run(trek_ddp *ddp, trek_split_call *call)
{
    run_arg arg = { ddp, call->n_inputs };
    trek_var *y = NULL;
    int64_t total = 0;
    trek_ddp_follow_flags(ddp);
    for (int r = 0; r < ddp->n; r++)
        total += call->parts[r].rows;
    call->ranks = ddp->ranks;
    call->replica = replica_of;
    call->run = run_model;
    call->describe = describe_output;
    call->arg = &arg;
    call->n_outputs = 1;
    call->scale = ddp->n;
    call->global = total;
    return trek_split_forward(call, &y) == TREK_OK ? y : NULL;
}

/* Checks that there are several replicas, that this is outside their runs, and the lists of them. */
static trek_status check(const trek_ddp *ddp)
{
    trek_status status = trek_error_status();
    if (status == TREK_OK && trek_ranks_rank_here(ddp->ranks) >= 0)
        status = trek_fail(TREK_ERR_STATE,
                           "ddp_forward: called inside trek_ranks_run; a rank runs its own replica there, with trek_forward");
    return status == TREK_OK ? trek_ddp_ready(&ddp->replicas[0]) : status;
}

/* --- rows divided evenly --------------------------------------------------------------- */

/* Divides inputs by rows. Inputs without rows go to every replica as a whole. */
static trek_status divide(const trek_ddp *ddp, trek_var *const *inputs, int n_inputs, bool *split, trek_split_part *parts)
{
    int64_t total = -1, counts[TREK_MAX_RANKS];
    for (int k = 0; k < n_inputs; k++) {
        if (!inputs[k])
            return trek_fail_missing("ddp_forward", "input");
        split[k] = inputs[k]->data->ndim > 0;
        if (split[k] && total >= 0 && inputs[k]->data->sizes[0] != total)
            return trek_fail(TREK_ERR_SHAPE,
                             "ddp_forward: input %d: %lld rows; another input has %lld, and all must have the same number", k,
                             (long long)inputs[k]->data->sizes[0], (long long)total);
        total = split[k] ? inputs[k]->data->sizes[0] : total;
    }
    trek_status status = trek_apportion(total > 0 ? total : 0, NULL, ddp->n, counts);
    for (int r = 0; r < ddp->n && status == TREK_OK; r++)
        parts[r] = (trek_split_part){ .runs = counts[r] > 0 || (r == 0 && total <= 0), .rows = counts[r] };
    return status;
}

trek_var *trek_ddp_forward_divided(trek_ddp *ddp, trek_var *const *inputs, int n_inputs)
{
    if (check(ddp) != TREK_OK)
        return NULL;
    trek_split_part parts[TREK_MAX_RANKS];
    bool *split = trek_calloc((size_t)n_inputs, sizeof *split);
    trek_status status = split ? divide(ddp, inputs, n_inputs, split, parts) : trek_error_status();
    trek_split_call call = { .n_inputs = n_inputs, .inputs = inputs, .split = split, .parts = parts, .keeps_rows = true };
    trek_var *y = status == TREK_OK ? run(ddp, &call) : NULL;
    trek_free(split);
    return y;
}

/* --- inputs of each replica ------------------------------------------------------------- */

static trek_status find_parts(const trek_ddp *ddp, trek_var *const *inputs, int n_inputs, trek_split_part *parts)
{
    bool some = false;
    for (int r = 0; r < ddp->n; r++) {
        const trek_var *x = inputs[r * n_inputs];
        parts[r] = (trek_split_part){ .runs = x != NULL, .rows = x && x->data->ndim > 0 ? x->data->sizes[0] : x != NULL };
        some |= x != NULL;
    }
    return some ? TREK_OK : trek_fail(TREK_ERR_ARGUMENT, "ddp_forward: inputs: no replica has one; at least one must");
}

trek_var *trek_ddp_forward_many(trek_ddp *ddp, trek_var *const *inputs, int n_inputs)
{
    if (!ddp || !inputs)
        return trek_fail_missing("ddp_forward", ddp ? "inputs" : "wrapper"), NULL;
    if (n_inputs < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "ddp_forward: n_inputs: %d; must be at least 1", n_inputs);
    if (!ddp->ranks)
        return trek_forward_many(ddp->replicas[0].module, inputs, n_inputs);
    trek_split_part parts[TREK_MAX_RANKS];
    if (check(ddp) != TREK_OK || find_parts(ddp, inputs, n_inputs, parts) != TREK_OK)
        return NULL;
    return run(ddp, &(trek_split_call){ .n_inputs = n_inputs, .inputs = inputs, .own_inputs = true, .parts = parts });
}

trek_var *trek_ddp_forward(trek_ddp *ddp, trek_var *const *inputs) { return trek_ddp_forward_many(ddp, inputs, 1); }

/* SPDX-License-Identifier: Apache-2.0 */
/* The backward of a forward over ranks: seeds for the ranks' outputs, their segments of tape, and the gradients of the
 * caller's variables, joined. */
#include "distributed/pass/split_pass.h"

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/team/rank_sums.h"
#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- on the ranks ------------------------------------------------------------------------ */

typedef struct backward_call {
    trek_split_pass *pass;
    trek_var *const *grads; /* of the recorded outputs; NULL where none arrived */
    bool retain;
    bool zeros;             /* the loss has weight 0 */
    bool some_only;         /* the backward is for the leaves in pass->reached and for the rank's own */
    const trek_split_watch *watch; /* all parameters are reached; NULL: nobody watches */
} backward_call;

/* Returns the gradient that arrives at the rank's output k. */
static trek_var *rank_seed(const trek_split_pass *p, int rank, int k, trek_var *grad)
{
    const trek_split_span *span = &p->of[rank].of_output[k];
    trek_device device = trek_ranks_device(p->ranks, rank);
    trek_tensor *rows = p->output[k].total < 0 ? trek_tensor_to(grad->data, device)
        : trek_split_rows(grad->data, span->first, span->rows, device);
    trek_var *seed = rows ? trek_var_from(rows) : NULL;
    return seed && span->factor != 1 ? trek_mul_scalar(seed, span->factor) : seed;
}

int trek_split_seeds(const trek_split_pass *p, int rank, trek_var *const *grads)
{
    const trek_split_side *of = &p->of[rank];
    int n = 0, place = 0;
    for (int k = 0; k < p->n_outputs; k++) {
        trek_var *grad = p->recorded[k] ? grads[place++] : NULL;
        if (!grad || !of->outputs[k] || !of->outputs[k]->requires_grad)
            continue;
        of->roots[n] = of->outputs[k];
        of->seeds[n] = rank_seed(p, rank, k, grad);
        if (!of->seeds[n++])
            return -1;
    }
    return n;
}

/* Lists the leaves of this rank for which the caller's backward is. */
static int list_leaves(const trek_split_pass *p, trek_split_side *of)
{
    int n = 0;
    for (int k = 0; k < p->n_params; k++)
        if (p->reached[k])
            of->watched[n++] = of->replica->params[k];
    for (int k = 0; k < p->n_sources; k++)
        if (of->leaves[k])
            of->watched[n++] = of->leaves[k];
    return n;
}

static trek_status backward_segment(void *arg, int rank)
{
    const backward_call *c = arg;
    trek_split_side *of = &c->pass->of[rank];
    int n = trek_split_seeds(c->pass, rank, c->grads);
    if (n <= 0)
        return n < 0 ? trek_error_status() : TREK_OK;
    trek_backward_opts opts = { .retain_graph = c->retain };
    trek_backward_watch watch = { .leaves = of->watched, .only_these = c->some_only, .zeros = c->zeros };
    if (c->some_only)
        watch.n_leaves = list_leaves(c->pass, of);
    if (c->watch) {
        watch.complete = c->watch->complete;
        watch.arg = c->watch->arg_of_rank(rank, c->watch->arg);
    }
    return trek_backward_watched(of->roots, of->seeds, n, &opts, &watch);
}

static trek_status timed(const trek_split_pass *p, int rank, trek_status (*fn)(void *arg, int rank), void *arg)
{
    trek_stopwatch *watch = p->watches ? &p->watches->of[rank] : NULL;
    trek_status status = watch ? trek_stopwatch_start(watch, trek_ranks_device(p->ranks, rank)) : TREK_OK;
    if (status == TREK_OK)
        status = fn(arg, rank);
    return status == TREK_OK && watch ? trek_stopwatch_stop(watch, 0) : status;
}

trek_status trek_split_on_rank(const trek_split_pass *p, int rank, trek_status (*fn)(void *arg, int rank), void *arg)
{
    int64_t start = trek_trace_enter("backward");
    trek_scope scope = trek_scope_begin();
    int depth = trek_grad_mode_here.no_grad_depth;
    trek_grad_mode_here.no_grad_depth = 1; /* seeds are numbers without history */
    trek_rank_sums_enter(trek_ranks_sums(p->ranks), rank);
    trek_status status = scope.depth ? timed(p, rank, fn, arg) : trek_error_status();
    trek_rank_sums_leave(trek_ranks_sums(p->ranks), rank, status);
    trek_grad_mode_here.no_grad_depth = depth;
    trek_scope_end(scope);
    trek_trace_end("backward", start, p->of[rank].rows);
    return status;
}

static trek_status backward_rank(int rank, void *arg)
{
    backward_call *c = arg;
    trek_status status = c->pass->of[rank].runs ? trek_split_on_rank(c->pass, rank, backward_segment, c) : TREK_OK;
    if (c->watch)
        c->watch->end(rank, c->watch->arg);
    return status;
}

static trek_status run_backward(backward_call *c)
{
    trek_split_pass *p = c->pass;
    const trek_replica *first = p->of[0].replica;
    bool all = true;
    for (int k = 0; k < p->n_params; k++)
        all &= p->reached[k] = trek_backward_reaches(first->params[k]);
    /* Only a backward that is for certain leaves does not pass the tape's leaf. */
    c->some_only = !trek_backward_reaches(p->tape_leaf);
    const trek_split_watch *watch = *trek_ranks_split_watch(p->ranks);
    if (watch && watch->tape_leaf == p->tape_leaf && all && c->some_only && trek_backward_passes_last(p->tape_leaf) &&
        watch->begins(watch->arg))
        c->watch = watch;
    return trek_split_run(p, backward_rank, c, true);
}

/* --- gradients of the caller's variables ----------------------------------------------- */

/* Joins the gradients of rows that were divided, with zeros where a rank gave none. */
static trek_var *join_rows(const trek_split_pass *p, int k, trek_var *const *parts, const trek_tensor *like)
{
    trek_tensor *whole = trek_tensor_zeros(trek_tensor_shape(like), (trek_dtype)like->dtype, like->device);
    for (int r = 0; whole && r < p->local_ranks; r++)
        if (parts[r] && trek_split_put_rows(whole, p->of[r].of_leaf[k].first, parts[r]->data) != TREK_OK) {
            trek_tensor_release(whole);
            return NULL;
        }
    return whole ? trek_var_from(whole) : NULL;
}

trek_var *trek_split_sum(const trek_split_pass *p, trek_var *const *parts, trek_device device)
{
    trek_var *sum = NULL;
    for (int r = 0; r < p->local_ranks; r++) {
        if (!parts[r])
            continue;
        trek_var *here = trek_var_from(trek_tensor_to(parts[r]->data, device));
        sum = sum ? trek_add(sum, here) : trek_clone(here);
        if (!sum)
            return NULL;
    }
    return sum;
}

trek_var *trek_split_join(const trek_split_pass *p, int k, trek_var *const *parts)
{
    const trek_split_place *place = &p->leaf[k];
    trek_var *scaled[TREK_MAX_RANKS], *grad = NULL;
    const trek_tensor *part = NULL;
    for (int r = p->local_ranks - 1; r >= 0; r--) {
        double factor = p->of[r].of_leaf[k].factor;
        scaled[r] = parts[r];
        if (p->of[r].leaves[k])
            part = p->of[r].leaves[k]->data;
        if (parts[r] && factor != 1 && !(scaled[r] = trek_mul_scalar(trek_var_constant(parts[r]->data), factor)))
            return NULL;
    }
    if (!part)
        return NULL;
    if (place->total >= 0) {
        trek_tensor like = *part;
        like.sizes[0] = place->total;
        like.device = place->device;
        grad = join_rows(p, k, scaled, &like);
    } else {
        grad = trek_split_sum(p, scaled, place->device);
    }
    return grad && p->scale != 1 ? trek_mul_scalar(grad, 1 / p->scale) : grad;
}

/* Joins what the ranks' leaves have as gradients of source k, and clears them. */
static trek_status source_gradient(const trek_split_pass *p, int k, trek_var **grad)
{
    trek_var *parts[TREK_MAX_RANKS];
    for (int r = 0; r < p->local_ranks; r++)
        parts[r] = p->of[r].leaves[k] ? trek_var_grad(p->of[r].leaves[k]) : NULL;
    *grad = trek_split_join(p, k, parts);
    for (int r = 0; r < p->local_ranks; r++)
        trek_var_zero_grad(p->of[r].leaves[k]); /* a later pass over the same tape begins without gradients */
    return trek_error_status();
}

/* --- the node ------------------------------------------------------------------------------ */

trek_status trek_split_backward(trek_function_context *context, trek_var *const *grads, trek_var **input_grads)
{
    trek_split_pass *p = trek_function_data(context);
    if (trek_grad_enabled())
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "backward: create_graph: a forward that is split over %d ranks; the ranks have parts "
                         "of the parameters' gradients, which get no history: use trek_grad",
                         p->local_ranks);
    backward_call call = { .pass = p, .grads = grads, .retain = trek_backward_retains() || p->shares_tape,
                           .zeros = trek_backward_gives_zeros() };
    trek_status status = run_backward(&call);
    for (int k = 0, place = 0; k < p->n_sources && status == TREK_OK; k++) {
        if (!p->sources[k])
            continue;
        if (trek_needs_grad(context, place))
            status = source_gradient(p, k, &input_grads[place]);
        place++;
    }
    return status;
}

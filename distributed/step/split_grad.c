/* SPDX-License-Identifier: Apache-2.0 */
/* trek_grad through a forward over ranks. Every rank computes the gradients of its own leaves as results; they are joined
 * as outputs are. If the caller records, this is a pass of its own: its sources are the gradients that arrived and the
 * sources of the first pass, and its segments continue those of the first on the ranks' tapes. So its backward, and the
 * gradients of that, are what any other pass's are. */
#include "distributed/step/split_pass.h"

#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

TREK_PER_THREAD(bool, joins, false);
bool *trek_split_grad_joins(void) { return joins(); }

enum { MOST_RECORDED = 64 }; /* outputs of a node */

typedef struct grad_call {
    trek_split_pass *pass;  /* whose gradients they are */
    trek_split_pass *next;  /* outputs: the pass's sources, then its parameters */
    trek_var *const *grads; /* of the pass's recorded outputs */
    bool create_graph, retain;
} grad_call;

/* Says whether the gradient of output k of the next pass is asked for. */
static bool is_wanted(const grad_call *c, int k)
{
    const trek_split_pass *p = c->pass;
    return k < p->n_sources ? p->sources[k] != NULL : trek_backward_captures_leaf(p->of[0].replica->params[k - p->n_sources]);
}

/* --- set-up ------------------------------------------------------------------------------- */

/* Sources of the next pass are the recorded outputs' gradients, in the places of the outputs, then the pass's sources.
 * What was a seed is a leaf now, and the other way round. */
static trek_status place_sources(const grad_call *c)
{
    trek_split_pass *p = c->pass, *next = c->next;
    for (int k = 0, place = 0; k < p->n_outputs; k++) {
        trek_var *grad = p->recorded[k] ? c->grads[place++] : NULL;
        next->leaf[k] = (trek_split_place){ p->output[k].total, grad ? grad->data->device : trek_cpu(0) };
        for (int r = 0; r < p->local_ranks; r++)
            next->of[r].of_leaf[k] = p->of[r].of_output[k];
        if (grad && grad->requires_grad)
            next->sources[k] = trek_var_retain(grad);
    }
    for (int k = 0; k < p->n_sources; k++) {
        int to = p->n_outputs + k;
        next->leaf[to] = p->leaf[k];
        next->sources[to] = p->sources[k] ? trek_var_retain(p->sources[k]) : NULL;
        for (int r = 0; r < p->local_ranks; r++) {
            next->of[r].of_leaf[to] = p->of[r].of_leaf[k];
            next->of[r].leaves[to] = p->of[r].leaves[k] ? trek_var_retain(p->of[r].leaves[k]) : NULL;
        }
    }
    return trek_error_status();
}

static void place_outputs(const grad_call *c)
{
    const trek_split_pass *p = c->pass;
    trek_split_pass *next = c->next;
    for (int k = 0; k < next->n_outputs; k++) {
        next->output[k].total = k < p->n_sources ? p->leaf[k].total : -1;
        for (int r = 0; r < p->local_ranks; r++)
            next->of[r].of_output[k] = k < p->n_sources ? p->of[r].of_leaf[k] : (trek_split_span){ 0, 0, 1 };
    }
}

static trek_split_pass *next_pass(const trek_split_pass *p)
{
    trek_replica *replicas[TREK_MAX_RANKS];
    for (int r = 0; r < p->local_ranks; r++)
        replicas[r] = p->of[r].replica;
    trek_split_pass *next = trek_split_pass_new(p->ranks, p->n_outputs + p->n_sources, p->n_sources + p->n_params, replicas);
    if (!next)
        return NULL;
    for (int r = 0; r < p->local_ranks; r++) {
        next->of[r].runs = p->of[r].runs;
        next->of[r].first = p->of[r].first;
        next->of[r].rows = p->of[r].rows;
    }
    next->watches = p->watches ? trek_stopwatches_retain(p->watches) : NULL;
    next->function = p->function;
    next->tape_leaf = trek_var_retain(p->tape_leaf);
    next->interprocess = p->interprocess;
    next->shares_tape = true;
    next->total = p->total;
    next->scale = p->scale;
    return next;
}

/* --- on the ranks ------------------------------------------------------------------------- */

/* Seeds whose gradient may be asked for become leaves of the next pass. */
static trek_status make_leaves(const grad_call *c, int rank, int n)
{
    trek_split_side *of = &c->pass->of[rank];
    for (int k = 0, s = 0; k < c->pass->n_outputs && s < n; k++) {
        if (of->roots[s] != of->outputs[k])
            continue;
        if (c->next->sources[k]) {
            of->seeds[s] = trek_var_new(of->seeds[s]->data, true);
            if (!of->seeds[s])
                return trek_error_status();
            c->next->of[rank].leaves[k] = of->seeds[s];
        }
        s++;
    }
    return TREK_OK;
}

static trek_var *leaf_of(const grad_call *c, int rank, int k)
{
    const trek_split_side *of = &c->pass->of[rank];
    return k < c->pass->n_sources ? of->leaves[k] : of->replica->params[k - c->pass->n_sources];
}

static trek_status grad_segment(void *arg, int rank)
{
    const grad_call *c = arg;
    trek_split_side *of = &c->pass->of[rank], *to = &c->next->of[rank];
    int n = trek_split_seeds(c->pass, rank, c->grads), wanted = 0;
    if (n <= 0)
        return n < 0 ? trek_error_status() : TREK_OK;
    trek_status status = make_leaves(c, rank, n);
    for (int k = 0; k < c->next->n_outputs; k++)
        if (c->next->recorded[k] && leaf_of(c, rank, k))
            to->roots[wanted++] = leaf_of(c, rank, k);
    if (status == TREK_OK)
        status = trek_grad(of->roots, n, to->roots, wanted, of->seeds,
                           &(trek_backward_opts){ .retain_graph = c->retain, .create_graph = c->create_graph }, to->seeds);
    for (int k = 0, w = 0; k < c->next->n_outputs && status == TREK_OK; k++)
        if (c->next->recorded[k] && leaf_of(c, rank, k) && to->seeds[w++])
            to->outputs[k] = trek_var_retain(to->seeds[w - 1]);
    return status;
}

static trek_status grad_rank(int rank, void *arg)
{
    const grad_call *c = arg;
    return c->pass->of[rank].runs ? trek_split_on_rank(c->pass, rank, grad_segment, arg) : TREK_OK;
}

/* --- on the caller's thread --------------------------------------------------------------- */

/* Joins the ranks' parts of output k; what no gradient goes through is written to outputs[k]. */
static trek_status join_output(const grad_call *c, int k, trek_var **outputs)
{
    const trek_split_pass *p = c->pass;
    trek_split_pass *next = c->next;
    trek_var *parts[TREK_MAX_RANKS];
    bool recorded = false;
    for (int r = 0; r < p->local_ranks; r++) {
        parts[r] = next->of[r].outputs[k];
        recorded |= parts[r] && parts[r]->requires_grad;
    }
    next->recorded[k] = false;
    if (k < p->n_sources) {
        outputs[k] = trek_split_join(p, k, parts);
    } else {
        outputs[k] = trek_split_sum(p, parts, trek_ranks_device(p->ranks, 0));
        if (outputs[k] && p->scale != 1)
            outputs[k] = trek_mul_scalar(outputs[k], 1 / p->scale);
    }
    if (!outputs[k] || !recorded)
        return trek_error_status();
    next->joined[k] = trek_tensor_retain(outputs[k]->data);
    next->recorded[k] = true;
    return TREK_OK;
}

/* Joins all outputs and records them, which takes over the next pass. */
static trek_status give_gradients(const grad_call *c, trek_var **outputs)
{
    int recorded = 0, n = c->next->n_outputs;
    trek_status status = TREK_OK;
    memset(outputs, 0, (size_t)n * sizeof *outputs);
    for (int k = 0; k < n && status == TREK_OK; k++)
        if (c->next->recorded[k]) {
            status = join_output(c, k, outputs);
            recorded += c->next->recorded[k];
        }
    if (status == TREK_OK && recorded > MOST_RECORDED)
        status = trek_fail(TREK_ERR_UNSUPPORTED,
                           "grad: create_graph: gradients of %d inputs and parameters through a forward over ranks; at most %d",
                           recorded, MOST_RECORDED);
    if (status == TREK_OK && recorded > 0)
        return trek_split_record(c->next, outputs);
    trek_split_pass_release(c->next);
    return status;
}

static trek_status check(const grad_call *c)
{
    const trek_split_pass *p = c->pass;
    bool params = false;
    for (int k = p->n_sources; k < p->n_sources + p->n_params; k++)
        params |= is_wanted(c, k);
    if (params && p->interprocess && !*joins())
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "grad: inputs: a parameter of a graph that several processes train; each process has "
                         "a part of its gradient: use trek_graph_grad");
    return TREK_OK;
}

trek_status trek_split_grad(trek_function_context *context, trek_var *const *grads, trek_var **input_grads)
{
    trek_split_pass *p = trek_function_data(context);
    grad_call call = { .pass = p, .grads = grads, .create_graph = trek_grad_enabled(),
                       .retain = trek_backward_retains() || p->shares_tape };
    trek_status status = check(&call);
    if (status != TREK_OK)
        return status;
    int n = p->n_sources + p->n_params;
    trek_var **outputs = trek_calloc((size_t)n + 1, sizeof *outputs);
    if (!outputs || !(call.next = next_pass(p))) {
        trek_free(outputs);
        return trek_error_status();
    }
    for (int k = 0, place = 0; k < n; k++) {
        bool needs = k >= p->n_sources || (p->sources[k] && trek_needs_grad(context, place));
        place += k < p->n_sources && p->sources[k];
        call.next->recorded[k] = needs && is_wanted(&call, k); /* until they are joined: those that are asked for */
    }
    status = place_sources(&call);
    place_outputs(&call);
    if (status == TREK_OK)
        status = trek_split_run(p, grad_rank, &call, true);
    if (status == TREK_OK)
        status = give_gradients(&call, outputs);
    else
        trek_split_pass_release(call.next);
    for (int k = 0, place = 0; k < p->n_sources && status == TREK_OK; k++)
        if (p->sources[k])
            input_grads[place++] = outputs[k];
    for (int k = p->n_sources; k < n && status == TREK_OK; k++)
        if (outputs[k])
            status = trek_backward_capture_leaf(p->of[0].replica->params[k - p->n_sources], outputs[k]);
    trek_free(outputs);
    return status;
}

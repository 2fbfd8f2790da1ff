/* SPDX-License-Identifier: Apache-2.0 */
/* Splits a forward over the ranks and joins their outputs. */
#include "distributed/pass/split_pass.h"

#include <string.h>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/team/rank_sums.h"
#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* Up to this size the caller joins alone, because waking the ranks would take longer. */
#define JOIN_ALONE_BYTES (256 * 1024)

/* --- the joint node ------------------------------------------------------------------- */

static trek_status split_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                  int n_inputs)
{
    (void)n_grads, (void)n_inputs;
    return trek_backward_captures() ? trek_split_grad(context, grads, input_grads)
        : trek_split_backward(context, grads, input_grads);
}

static const trek_function split_function = { "split_forward", trek_split_outputs, split_backward, trek_split_pass_release };

/* --- life ----------------------------------------------------------------------- */

static void take_parts(trek_split_pass *p, const trek_split_call *call)
{
    for (int r = 0; r < p->local_ranks; r++) {
        trek_split_side *of = &p->of[r];
        of->runs = call->parts[r].runs;
        of->rows = call->parts[r].rows;
        of->first = p->total;
        p->total += of->rows;
        for (int k = 0; k < p->n_sources; k++)
            of->of_leaf[k] = (trek_split_span){ of->first, of->rows, 1 };
    }
    for (int k = 0; k < p->n_sources; k++)
        p->leaf[k] = (trek_split_place){ !call->own_inputs && call->split[k] ? p->total : -1,
                                         call->inputs[k] ? call->inputs[k]->data->device : trek_cpu(0) };
}

static trek_split_pass *new_forward(const trek_split_call *call)
{
    int local_ranks = trek_ranks_world_size(call->ranks);
    trek_replica *replicas[TREK_MAX_RANKS];
    for (int r = 0; r < local_ranks; r++)
        replicas[r] = call->replica(r, call->arg);
    trek_split_pass *p = trek_split_pass_new(call->ranks, call->own_inputs ? local_ranks * call->n_inputs : call->n_inputs,
                                             call->n_outputs, replicas);
    if (!p)
        return NULL;
    p->watches = call->watches ? trek_stopwatches_retain(call->watches) : NULL;
    p->function = &split_function;
    p->interprocess = call->comm != NULL;
    p->scale = call->scale;
    take_parts(p, call);
    return p;
}

/* --- forward ------------------------------------------------------------------------ */

typedef struct forward_call {
    const trek_split_call *call;
    trek_split_pass *forward;
    int no_grad_depth;
    trek_dtype autocast;    /* of the caller, as the following fields */
    trek_offload_opts offload;
    uint64_t rng_step, rng_draw;
} forward_call;

/* Returns the rank's variable over its part of input k. The current scope owns it, or the split forward if it needs a
 * gradient. */
static trek_var *rank_input(const forward_call *c, int rank, int k)
{
    const trek_split_pass *p = c->forward;
    trek_split_side *of = &p->of[rank];
    int source = c->call->own_inputs ? rank * c->call->n_inputs + k : k;
    trek_var *x = c->call->inputs[source];
    trek_device device = trek_ranks_device(p->ranks, rank);
    if (!x)
        return trek_fail_missing("a forward over ranks", "input"), NULL;
    trek_tensor *part = p->leaf[source].total >= 0 ? trek_split_rows(x->data, of->first, of->rows, device)
        : trek_tensor_to(x->data, device);
    if (!part)
        return NULL;
    if (!x->requires_grad || c->no_grad_depth > 0)
        return trek_var_from(part);
    of->leaves[source] = trek_var_new(part, true);
    trek_tensor_release(part);
    return of->leaves[source];
}

static trek_status run_replica(const forward_call *c, int rank)
{
    trek_split_side *of = &c->forward->of[rank];
    int n = c->call->n_inputs;
    trek_var *inputs[64], **list = n <= 64 ? inputs : trek_calloc((size_t)n, sizeof *list);
    trek_status status = list ? TREK_OK : trek_error_status();
    for (int k = 0; k < n && status == TREK_OK; k++)
        if (!(list[k] = rank_input(c, rank, k)))
            status = trek_error_status();
    if (status == TREK_OK)
        status = c->call->run(rank, list, of->roots, c->call->arg);
    for (int k = 0; k < c->forward->n_outputs && status == TREK_OK; k++)
        of->outputs[k] = trek_var_retain(of->roots[k]);
    if (list != inputs)
        trek_free(list);
    return status;
}

static trek_status run_timed(const forward_call *c, int rank)
{
    trek_stopwatch *watch = c->forward->watches ? &c->forward->watches->of[rank] : NULL;
    trek_status status = watch ? trek_stopwatch_start(watch, trek_ranks_device(c->forward->ranks, rank)) : TREK_OK;
    if (status == TREK_OK)
        status = run_replica(c, rank);
    return status == TREK_OK && watch ? trek_stopwatch_stop(watch, c->call->counts ? c->forward->of[rank].rows : 0) : status;
}

static trek_status forward_rank(int rank, void *arg)
{
    const forward_call *c = arg;
    trek_split_side *of = &c->forward->of[rank];
    if (c->call->begin)
        c->call->begin(rank, c->call->arg);
    if (!of->runs)
        return TREK_OK;
    int64_t start = trek_trace_enter("forward");
    trek_grad_mode mode = trek_grad_mode_here;
    trek_rank_context before = trek_rank_here;
    trek_grad_mode_here.no_grad_depth = c->no_grad_depth;
    trek_grad_mode_here.offload = c->offload;
    trek_rank_here.first_sample = c->call->first + of->first;
    trek_rank_here.rows = of->rows;
    trek_rank_here.global_rows = c->call->global;
    trek_rank_here.rng_step = c->rng_step;
    trek_rank_here.rng_draw = c->rng_draw;
    trek_scope scope = trek_scope_begin();
    trek_autocast_begin(c->autocast);
    trek_rank_sums_enter(trek_ranks_sums(c->forward->ranks), rank);
    trek_status status = scope.depth ? run_timed(c, rank) : trek_error_status();
    trek_rank_sums_leave(trek_ranks_sums(c->forward->ranks), rank, status);
    trek_autocast_end();
    trek_scope_end(scope);
    of->rng_draw = trek_rank_here.rng_draw;
    trek_rank_here.rows = before.rows;
    trek_rank_here.global_rows = before.global_rows;
    trek_rank_here.first_sample = before.first_sample;
    trek_grad_mode_here.no_grad_depth = mode.no_grad_depth;
    trek_grad_mode_here.offload = mode.offload;
    trek_trace_end("forward", start, of->rows);
    if (status == TREK_OK && trek_trace_counts())
        trek_trace_samples(of->rows);
    return status;
}

/* --- joining ------------------------------------------------------------------------- */

static trek_status fail_join(const trek_split_call *call, const trek_split_pass *p, int k, int rank, const char *why)
{
    char text[TREK_SHAPE_TEXT], name[256];
    const trek_tensor *y = p->of[rank].outputs[k]->data;
    call->describe(k, name, sizeof name, call->arg);
    return trek_fail(TREK_ERR_SHAPE, "graph_forward: %s %s %s of rank %d (%lld rows) cannot be joined: %s", name,
                     trek_dtype_name((trek_dtype)y->dtype), trek_tensor_shape_text(y, text), rank, (long long)p->of[rank].rows,
                     why);
}

static int first_running(const trek_split_pass *p)
{
    int rank = 0;
    while (!p->of[rank].runs)
        rank++;
    return rank;
}

static bool is_loose(const trek_split_call *call, int k) { return k >= call->n_outputs - call->n_loose; }

static double share_of(const trek_split_pass *p, int rank)
{
    return p->total > 0 ? (double)p->of[rank].rows / (double)p->total : 1;
}

/* Sets where the ranks' rows of output k go, as far as they fit together. Returns what is wrong, and with which
 * rank's output, or NULL. */
static const char *misfit(const trek_split_call *call, trek_split_pass *p, int k, int *rank)
{
    static const char not_rows[] = "its dimension 0 does not hold the rows (time-major data cannot be split)";
    int from = *rank = first_running(p);
    const trek_tensor *first = p->of[from].outputs[k]->data;
    int64_t rows = p->of[from].rows, unit = 0, total = 0;
    if (first->ndim == 0 && !trek_dtype_is_float((trek_dtype)first->dtype))
        return "it is a scalar, and no mean can be taken of its dtype";
    if (first->ndim > 0 && call->keeps_rows && rows > 0 && (first->sizes[0] % rows != 0 || first->sizes[0] == 0))
        return not_rows;
    unit = first->ndim > 0 && rows > 0 ? first->sizes[0] / rows : 1;
    for (int r = from; r < p->local_ranks; r++) {
        if (!p->of[r].runs)
            continue;
        const trek_tensor *y = p->of[r].outputs[k]->data;
        *rank = r;
        bool same = y->ndim == first->ndim && y->dtype == first->dtype;
        for (int d = 1; same && d < y->ndim; d++)
            same = y->sizes[d] == first->sizes[d];
        if (!same)
            return "its shape or dtype is not that of the first rank";
        int64_t here = y->ndim > 0 ? y->sizes[0] : 0;
        if (y->ndim > 0 && call->keeps_rows && p->total > 0 && y->sizes[0] != unit * p->of[r].rows)
            return not_rows;
        p->of[r].of_output[k] = (trek_split_span){ total, here, y->ndim > 0 ? p->scale : p->scale * share_of(p, r) };
        total += here;
    }
    p->output[k].total = first->ndim > 0 ? total : -1;
    return NULL;
}

static bool all_have(const trek_split_pass *p, int k)
{
    for (int r = 0; r < p->local_ranks; r++)
        if (p->of[r].runs && !p->of[r].outputs[k])
            return false;
    return true;
}

/* Checks that the ranks' outputs k fit together, and sets where the rows of each go. A loose output that does not fit
 * is dropped. */
static trek_status place_output(const trek_split_call *call, trek_split_pass *p, int k)
{
    int rank;
    if (!is_loose(call, k)) {
        const char *why = misfit(call, p, k, &rank);
        return why ? fail_join(call, p, k, rank, why) : TREK_OK;
    }
    if (all_have(p, k) && !misfit(call, p, k, &rank))
        return TREK_OK;
    p->output[k].total = -1;
    for (int r = 0; r < p->local_ranks; r++) {
        trek_var_release(p->of[r].outputs[k]);
        p->of[r].outputs[k] = NULL;
    }
    return TREK_OK;
}

static int ranks_running(const trek_split_pass *p)
{
    int n = 0;
    for (int r = 0; r < p->local_ranks; r++)
        n += p->of[r].runs;
    return n;
}

/* Returns the mean of the ranks' scalars, weighted by rows, in rank order. */
static trek_tensor *join_scalars(const trek_split_pass *p, int k)
{
    double sum = 0;
    for (int r = 0; r < p->local_ranks; r++)
        if (p->of[r].runs)
            sum += trek_tensor_item(p->of[r].outputs[k]->data) * share_of(p, r);
    const trek_tensor *first = p->of[first_running(p)].outputs[k]->data;
    return trek_tensor_full(trek_dims_none(), sum, (trek_dtype)first->dtype, trek_ranks_device(p->ranks, 0));
}

static trek_status make_joined(const trek_split_call *call, trek_split_pass *p, int k)
{
    trek_status status = place_output(call, p, k);
    if (status != TREK_OK || !p->of[first_running(p)].outputs[k])
        return status;
    trek_tensor *first = p->of[first_running(p)].outputs[k]->data;
    trek_device device = trek_ranks_device(p->ranks, 0);
    if (ranks_running(p) == 1) {
        p->joined[k] = trek_tensor_to(first, device);
    } else if (p->output[k].total < 0) {
        p->joined[k] = join_scalars(p, k);
    } else {
        int64_t sizes[TREK_MAX_DIMS];
        memcpy(sizes, first->sizes, sizeof sizes);
        sizes[0] = p->output[k].total;
        p->joined[k] = trek_tensor_make(first->ndim, sizes, (trek_dtype)first->dtype, device);
    }
    return p->joined[k] ? TREK_OK : trek_error_status();
}

static trek_status join_rank(int rank, void *arg)
{
    const trek_split_pass *p = arg;
    trek_status status = TREK_OK;
    for (int k = 0; k < p->n_outputs && p->of[rank].runs && status == TREK_OK; k++)
        if (p->joined[k] && p->output[k].total >= 0)
            status = trek_split_put_rows(p->joined[k], p->of[rank].of_output[k].first, p->of[rank].outputs[k]->data);
    return status;
}

static trek_status join(const trek_split_call *call, trek_split_pass *p)
{
    trek_status status = TREK_OK;
    size_t bytes = 0;
    for (int k = 0; k < p->n_outputs && status == TREK_OK; k++) {
        status = make_joined(call, p, k);
        if (status == TREK_OK && p->joined[k])
            bytes += (size_t)p->joined[k]->numel * trek_dtype_size((trek_dtype)p->joined[k]->dtype);
    }
    if (status != TREK_OK || ranks_running(p) == 1)
        return status;
    if (bytes > JOIN_ALONE_BYTES && p->joined[0]->device.type == TREK_CPU)
        return trek_ranks_call(p->ranks, join_rank, p);
    for (int r = 0; r < p->local_ranks && status == TREK_OK; r++)
        status = join_rank(r, p);
    return status;
}

/* --- the caller's side --------------------------------------------------------------------- */

/* Gives the outputs that no gradient goes through. Returns how many others there are, or -1. */
static int give_plain(trek_split_pass *p, trek_var **outputs)
{
    int recorded = 0;
    for (int k = 0; k < p->n_outputs; k++) {
        p->recorded[k] = false;
        for (int r = 0; r < p->local_ranks; r++)
            p->recorded[k] |= p->of[r].runs && p->joined[k] && p->of[r].outputs[k]->requires_grad;
        recorded += p->recorded[k];
        outputs[k] = NULL;
        if (p->recorded[k] || !p->joined[k])
            continue;
        trek_tensor *joined = p->joined[k];
        p->joined[k] = NULL;
        if (!(outputs[k] = trek_var_from(joined)))
            return -1;
    }
    return recorded;
}

/* Retains the caller's variables that a gradient can go to. */
static void retain_sources(const trek_split_call *call, trek_split_pass *p)
{
    for (int k = 0; k < p->n_sources; k++)
        if (call->inputs[k] && call->inputs[k]->requires_grad && (!call->own_inputs || p->of[k / call->n_inputs].runs))
            p->sources[k] = trek_var_retain(call->inputs[k]);
}

/* Gives the split forward to the tape, or frees it. */
static trek_status give_outputs(const trek_split_call *call, trek_split_pass *p, trek_var **outputs)
{
    int recorded = give_plain(p, outputs);
    trek_tensor *zero = recorded > 0 && !call->tape_leaf ? trek_tensor_zeros(trek_dims_none(), TREK_F32, trek_cpu(0)) : NULL;
    p->tape_leaf = zero ? trek_var_new(zero, true) : recorded > 0 ? trek_var_retain(call->tape_leaf) : NULL;
    trek_tensor_release(zero);
    if (!p->tape_leaf) {
        trek_split_pass_release(p);
        return recorded == 0 ? TREK_OK : trek_error_status();
    }
    retain_sources(call, p);
    return trek_split_record(p, outputs);
}

trek_status trek_split_forward(const trek_split_call *call, trek_var **outputs)
{
    trek_split_pass *p = new_forward(call);
    if (!p)
        return trek_error_status();
    if (call->comm)
        trek_rank_sums_set_comm(trek_ranks_sums(call->ranks), call->comm);
    forward_call c = { .call = call, .forward = p, .no_grad_depth = trek_grad_mode_here.no_grad_depth,
                       .autocast = trek_autocast_dtype(), .offload = trek_grad_mode_here.offload,
                       .rng_step = trek_rank_here.rng_step, .rng_draw = trek_rank_here.rng_draw };
    trek_status status = trek_split_run(p, forward_rank, &c, false);
    for (int r = 0; r < p->local_ranks && status == TREK_OK; r++)
        if (p->of[r].runs && p->of[r].rng_draw > trek_rank_here.rng_draw)
            trek_rank_here.rng_draw = p->of[r].rng_draw;
    if (status == TREK_OK)
        status = join(call, p);
    if (status == TREK_OK)
        return give_outputs(call, p, outputs);
    trek_rank_here.rng_draw = c.rng_draw; /* when it is made again, it draws the same numbers */
    trek_split_pass_release(p);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a forward over the ranks, joining what they give, and its backward. */
#include "distributed/step/split_forward.h"

#include <string.h>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/step/rank_sums.h"
#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* Joined by the caller alone up to here: waking the ranks would take longer. */
#define JOIN_ALONE_BYTES (256 * 1024)

typedef struct side {
    bool runs;
    int64_t first, rows;
    uint64_t rng_draw;      /* after the forward */
    trek_replica *replica;  /* retained */
    trek_var **inputs;      /* the rank's own leaves; only those that need a gradient */
    trek_var **leaves;      /* room for a backward that is for some leaves alone */
    trek_var **outputs;     /* retained: they hold the rank's segment of tape */
    trek_var **roots, **seeds;
    int64_t *out_first, *out_rows; /* [outputs] where its rows of an output are */
} side;

/* One forward, for as long as its backward may come. */
typedef struct split_forward {
    trek_ranks *ranks;
    trek_stopwatches *watches; /* NULL */
    trek_var *tape_leaf;    /* a leaf of no replica: makes the tape record a forward whose inputs need no gradient */
    int local_ranks, n_inputs, n_outputs, n_sources;
    bool own_inputs, interprocess; /* interprocess: there are other processes */
    int64_t total;          /* rows */
    double scale;
    side *of;
    bool *split;            /* [inputs] */
    trek_device *devices;   /* [sources] where the caller's are */
    bool *recorded;         /* [outputs] */
    bool *reached;          /* [params] the present backward gives them gradients */
    int64_t *out_total;     /* [outputs] rows; -1: a scalar */
    trek_tensor **joined;   /* [outputs] until they are variables */
} split_forward;

/* --- life ----------------------------------------------------------------------- */

static void *carve(char **at, size_t count, size_t size)
{
    void *memory = *at;
    *at += (count * size + 15) & ~(size_t)15;
    return memory;
}

static void carve_side(side *of, char **at, const trek_split_call *call, size_t params)
{
    size_t inputs = (size_t)call->n_inputs, outputs = (size_t)call->n_outputs;
    of->inputs = carve(at, inputs, sizeof(trek_var *));
    of->leaves = carve(at, inputs + params, sizeof(trek_var *));
    of->outputs = carve(at, outputs, sizeof(trek_var *));
    of->roots = carve(at, outputs, sizeof(trek_var *));
    of->seeds = carve(at, outputs, sizeof(trek_var *));
    of->out_first = carve(at, outputs, sizeof(int64_t));
    of->out_rows = carve(at, outputs, sizeof(int64_t));
}

static void take_parts(split_forward *p, const trek_split_call *call)
{
    for (int r = 0; r < p->local_ranks; r++) {
        p->of[r].replica = trek_replica_retain(call->replica(r, call->arg));
        p->of[r].runs = call->parts[r].runs;
        p->of[r].rows = call->parts[r].rows;
        p->of[r].first = p->total;
        p->total += call->parts[r].rows;
    }
    for (int k = 0; k < p->n_inputs && !p->own_inputs; k++)
        p->split[k] = call->split[k];
    for (int k = 0; k < p->n_sources; k++)
        p->devices[k] = call->inputs[k] ? call->inputs[k]->data->device : trek_cpu(0);
}

static split_forward *split_forward_new(const trek_split_call *call)
{
    size_t local_ranks = (size_t)trek_ranks_world_size(call->ranks), inputs = (size_t)call->n_inputs,
        outputs = (size_t)call->n_outputs;
    size_t sources = call->own_inputs ? local_ranks * inputs : inputs, params = (size_t)call->replica(0, call->arg)->n_params;
    size_t bytes = sizeof(split_forward) + local_ranks * sizeof(side) +
                   local_ranks * (2 * inputs + params + 3 * outputs) * sizeof(void *) +
                   2 * local_ranks * outputs * sizeof(int64_t) + inputs + outputs + params + sources * sizeof(trek_device) +
                   2 * outputs * sizeof(void *) + 16 * (9 + 8 * local_ranks);
    char *at = trek_calloc(1, bytes);
    if (!at)
        return NULL;
    split_forward *p = carve(&at, 1, sizeof *p);
    p->ranks = trek_ranks_retain(call->ranks);
    p->watches = call->watches ? trek_stopwatches_retain(call->watches) : NULL;
    p->local_ranks = (int)local_ranks;
    p->n_inputs = call->n_inputs;
    p->n_outputs = call->n_outputs;
    p->n_sources = (int)sources;
    p->own_inputs = call->own_inputs;
    p->interprocess = call->comm != NULL;
    p->scale = call->scale;
    p->of = carve(&at, local_ranks, sizeof *p->of);
    p->split = carve(&at, inputs, sizeof *p->split);
    p->devices = carve(&at, sources, sizeof *p->devices);
    p->recorded = carve(&at, outputs, sizeof *p->recorded);
    p->reached = carve(&at, params, sizeof *p->reached);
    p->out_total = carve(&at, outputs, sizeof *p->out_total);
    p->joined = carve(&at, outputs, sizeof *p->joined);
    for (size_t r = 0; r < local_ranks; r++)
        carve_side(&p->of[r], &at, call, params);
    take_parts(p, call);
    return p;
}

/* On the caller's thread; what the ranks recorded goes back to their tapes. */
static void pass_free(void *data)
{
    split_forward *p = data;
    for (int r = 0; r < p->local_ranks; r++) {
        for (int k = 0; k < p->n_inputs; k++)
            trek_var_release(p->of[r].inputs[k]);
        for (int k = 0; k < p->n_outputs; k++)
            trek_var_release(p->of[r].outputs[k]);
        trek_replica_release(p->of[r].replica);
    }
    for (int k = 0; k < p->n_outputs; k++)
        trek_tensor_release(p->joined[k]);
    trek_stopwatches_release(p->watches);
    trek_var_release(p->tape_leaf);
    trek_ranks *ranks = p->ranks;
    trek_free(p);
    trek_ranks_free(&ranks);
}

/* The place of rank's input k among the caller's. */
static int source_of(const split_forward *p, int rank, int k) { return p->own_inputs ? rank * p->n_inputs + k : k; }

/* Rows [first, first + rows) of x, where they are; a new reference. */
static trek_tensor *view_rows(trek_tensor *x, int64_t first, int64_t rows)
{
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    sizes[0] = rows;
    char *data = x->data + first * x->strides[0] * (int64_t)trek_dtype_size((trek_dtype)x->dtype);
    return trek_tensor_make_view(x, data, x->ndim, sizes, x->strides);
}

/* The same on `device`: CPUs share memory, GPUs get copies of what is elsewhere. */
static trek_tensor *rows_of(trek_tensor *x, int64_t first, int64_t rows, trek_device device)
{
    trek_tensor *view = view_rows(x, first, rows);
    trek_tensor *there = view ? trek_tensor_to(view, device) : NULL;
    trek_tensor_release(view);
    return there;
}

/* Runs fn on all ranks; those that run can make sums with one another. */
static trek_status run_ranks(const split_forward *p, trek_rank_fn fn, void *arg, bool goes_back)
{
    bool runs[TREK_MAX_RANKS];
    for (int r = 0; r < p->local_ranks; r++)
        runs[r] = p->of[r].runs;
    trek_rank_sums *sums = trek_ranks_sums(p->ranks);
    if (trek_ranks_rank_here(p->ranks) < 0) { /* else they are in use: the run is refused */
        trek_rank_sums_set_deadline(sums, trek_ranks_comm(p->ranks, 0)->deadline_ns);
        trek_rank_sums_begin(sums, runs, p->interprocess);
        if (goes_back)
            trek_rank_sums_goes_back(sums);
    }
    return trek_ranks_call(p->ranks, fn, arg);
}

/* --- forward ------------------------------------------------------------------------ */

typedef struct forward_call {
    const trek_split_call *call;
    split_forward *forward;
    int no_grad_depth;
    trek_dtype autocast;    /* of the caller, as what follows */
    trek_offload_opts offload;
    uint64_t rng_step, rng_draw;
} forward_call;

/* The rank's variable over its part of input k, owned by the present scope, or by the split forward if it needs a gradient. */
static trek_var *rank_input(const forward_call *c, int rank, int k)
{
    const split_forward *p = c->forward;
    side *of = &p->of[rank];
    trek_var *x = c->call->inputs[source_of(p, rank, k)];
    trek_device device = trek_ranks_device(p->ranks, rank);
    if (!x)
        return trek_fail_missing("a forward over ranks", "input"), NULL;
    trek_tensor *part = p->split[k] ? rows_of(x->data, of->first, of->rows, device) : trek_tensor_to(x->data, device);
    if (!part)
        return NULL;
    if (!x->requires_grad || c->no_grad_depth > 0)
        return trek_var_from(part);
    of->inputs[k] = trek_var_new(part, true);
    trek_tensor_release(part);
    return of->inputs[k];
}

static trek_status run_replica(const forward_call *c, int rank)
{
    side *of = &c->forward->of[rank];
    int n = c->forward->n_inputs;
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
    side *of = &c->forward->of[rank];
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

static trek_status fail_join(const trek_split_call *call, const split_forward *p, int k, int rank, const char *why)
{
    char text[TREK_SHAPE_TEXT], name[256];
    const trek_tensor *y = p->of[rank].outputs[k]->data;
    call->describe(k, name, sizeof name, call->arg);
    return trek_fail(TREK_ERR_SHAPE, "graph_forward: %s %s %s of rank %d (%lld rows) cannot be joined: %s", name,
                     trek_dtype_name((trek_dtype)y->dtype), trek_tensor_shape_text(y, text), rank, (long long)p->of[rank].rows,
                     why);
}

/* The first rank that has rows: not every share is one of a row. */
static int first_running(const split_forward *p)
{
    int rank = 0;
    while (!p->of[rank].runs)
        rank++;
    return rank;
}

static bool is_loose(const trek_split_call *call, int k) { return k >= call->n_outputs - call->n_loose; }

/* Places output k as far as the ranks' fit together: what is wrong with which rank's, or NULL. */
static const char *misfit(const trek_split_call *call, split_forward *p, int k, int *rank)
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
        p->of[r].out_rows[k] = y->ndim > 0 ? y->sizes[0] : 0;
        if (y->ndim > 0 && call->keeps_rows && p->total > 0 && y->sizes[0] != unit * p->of[r].rows)
            return not_rows;
        p->of[r].out_first[k] = total;
        total += p->of[r].out_rows[k];
    }
    p->out_total[k] = first->ndim > 0 ? total : -1;
    return NULL;
}

static bool all_have(const split_forward *p, int k)
{
    for (int r = 0; r < p->local_ranks; r++)
        if (p->of[r].runs && !p->of[r].outputs[k])
            return false;
    return true;
}

/* Whether the ranks' outputs k fit together, and where each has its rows. A loose one that does not is dropped. */
static trek_status place_output(const trek_split_call *call, split_forward *p, int k)
{
    int rank;
    if (!is_loose(call, k)) {
        const char *why = misfit(call, p, k, &rank);
        return why ? fail_join(call, p, k, rank, why) : TREK_OK;
    }
    if (all_have(p, k) && !misfit(call, p, k, &rank))
        return TREK_OK;
    p->out_total[k] = -1;
    for (int r = 0; r < p->local_ranks; r++) {
        trek_var_release(p->of[r].outputs[k]);
        p->of[r].outputs[k] = NULL;
    }
    return TREK_OK;
}

static int ranks_running(const split_forward *p)
{
    int n = 0;
    for (int r = 0; r < p->local_ranks; r++)
        n += p->of[r].runs;
    return n;
}

static double share_of(const split_forward *p, int rank)
{
    return p->total > 0 ? (double)p->of[rank].rows / (double)p->total : 1;
}

/* The mean of the ranks' scalars, weighted by rows, in rank order. */
static trek_tensor *join_scalars(const split_forward *p, int k)
{
    double sum = 0;
    for (int r = 0; r < p->local_ranks; r++)
        if (p->of[r].runs)
            sum += trek_tensor_item(p->of[r].outputs[k]->data) * share_of(p, r);
    const trek_tensor *first = p->of[first_running(p)].outputs[k]->data;
    return trek_tensor_full(sum, trek_dims_none(), (trek_dtype)first->dtype, trek_ranks_device(p->ranks, 0));
}

static trek_status make_joined(const trek_split_call *call, split_forward *p, int k)
{
    trek_status status = place_output(call, p, k);
    if (status != TREK_OK || !p->of[first_running(p)].outputs[k])
        return status;
    trek_tensor *first = p->of[first_running(p)].outputs[k]->data;
    trek_device device = trek_ranks_device(p->ranks, 0);
    if (ranks_running(p) == 1) {
        p->joined[k] = trek_tensor_to(first, device);
    } else if (p->out_total[k] < 0) {
        p->joined[k] = join_scalars(p, k);
    } else {
        int64_t sizes[TREK_MAX_DIMS];
        memcpy(sizes, first->sizes, sizeof sizes);
        sizes[0] = p->out_total[k];
        p->joined[k] = trek_tensor_make(first->ndim, sizes, (trek_dtype)first->dtype, device);
    }
    return p->joined[k] ? TREK_OK : trek_error_status();
}

/* Writes `part` to rows [first, ...) of `whole`. */
static trek_status put_rows(trek_tensor *whole, int64_t first, trek_tensor *part)
{
    size_t size = trek_dtype_size((trek_dtype)part->dtype);
    if (part->contiguous && whole->contiguous && part->dtype == whole->dtype && trek_tensor_data(part) &&
        trek_tensor_data(whole)) {
        memcpy(whole->data + first * whole->strides[0] * (int64_t)size, part->data, (size_t)part->numel * size);
        return TREK_OK;
    }
    trek_tensor *view = view_rows(whole, first, part->sizes[0]);
    trek_status status = view ? trek_tensor_copy_from(view, part) : trek_error_status();
    trek_tensor_release(view);
    return status;
}

static trek_status join_rank(int rank, void *arg)
{
    const split_forward *p = arg;
    trek_status status = TREK_OK;
    for (int k = 0; k < p->n_outputs && p->of[rank].runs && status == TREK_OK; k++)
        if (p->joined[k] && p->out_total[k] >= 0)
            status = put_rows(p->joined[k], p->of[rank].out_first[k], p->of[rank].outputs[k]->data);
    return status;
}

static trek_status join(const trek_split_call *call, split_forward *p)
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

/* --- backward of the joint node -------------------------------------------------------- */

typedef struct backward_call {
    split_forward *forward;
    trek_var *const *grads; /* of the recorded outputs; NULL where none arrived */
    bool retain;
    bool zeros;             /* what is gone back from weighs nothing */
    bool some_only;         /* the backward is for the leaves that forward.reached tells, and those behind the inputs */
    const trek_split_watch *watch; /* all parameters are reached; NULL: nobody asks */
} backward_call;

/* What arrives at the rank's output k. */
static trek_var *rank_seed(const split_forward *p, int rank, int k, trek_var *grad)
{
    const side *of = &p->of[rank];
    trek_device device = trek_ranks_device(p->ranks, rank);
    double scale = p->scale * (p->out_total[k] < 0 ? share_of(p, rank) : 1);
    trek_tensor *rows = p->out_total[k] < 0 ? trek_tensor_to(grad->data, device)
        : rows_of(grad->data, of->out_first[k], of->out_rows[k], device);
    trek_var *seed = rows ? trek_var_from(rows) : NULL;
    return seed && scale != 1 ? trek_mul_scalar(seed, scale) : seed;
}

/* The leaves of this rank that the caller's backward is for. */
static int list_leaves(const split_forward *p, side *of)
{
    int n = 0;
    for (int k = 0; k < of->replica->n_params; k++)
        if (p->reached[k])
            of->leaves[n++] = of->replica->params[k];
    for (int k = 0; k < p->n_inputs; k++)
        if (of->inputs[k])
            of->leaves[n++] = of->inputs[k];
    return n;
}

static trek_status backward_segment(const backward_call *c, int rank)
{
    split_forward *p = c->forward;
    side *of = &p->of[rank];
    int n = 0, place = 0;
    for (int k = 0; k < p->n_outputs; k++) {
        trek_var *grad = p->recorded[k] ? c->grads[place++] : NULL;
        if (!grad || !of->outputs[k]->requires_grad)
            continue;
        of->roots[n] = of->outputs[k];
        of->seeds[n] = rank_seed(p, rank, k, grad);
        if (!of->seeds[n++])
            return trek_error_status();
    }
    if (n == 0)
        return TREK_OK;
    trek_backward_opts opts = { .retain_graph = c->retain };
    trek_backward_watch watch = { .leaves = of->leaves, .only_these = c->some_only, .zeros = c->zeros };
    if (c->some_only)
        watch.n_leaves = list_leaves(p, of);
    if (c->watch) {
        watch.complete = c->watch->complete;
        watch.arg = c->watch->arg_of_rank(rank, c->watch->arg);
    }
    return trek_backward_watched(of->roots, of->seeds, n, &opts, &watch);
}

static trek_status backward_timed(const backward_call *c, int rank)
{
    trek_stopwatch *watch = c->forward->watches ? &c->forward->watches->of[rank] : NULL;
    trek_status status = watch ? trek_stopwatch_start(watch, trek_ranks_device(c->forward->ranks, rank)) : TREK_OK;
    if (status == TREK_OK)
        status = backward_segment(c, rank);
    return status == TREK_OK && watch ? trek_stopwatch_stop(watch, 0) : status;
}

static trek_status run_segment(const backward_call *c, int rank)
{
    int64_t start = trek_trace_enter("backward");
    trek_scope scope = trek_scope_begin();
    int depth = trek_grad_mode_here.no_grad_depth;
    trek_grad_mode_here.no_grad_depth = 1; /* seeds are numbers, not history */
    trek_rank_sums_enter(trek_ranks_sums(c->forward->ranks), rank);
    trek_status status = scope.depth ? backward_timed(c, rank) : trek_error_status();
    trek_rank_sums_leave(trek_ranks_sums(c->forward->ranks), rank, status);
    trek_grad_mode_here.no_grad_depth = depth;
    trek_scope_end(scope);
    trek_trace_end("backward", start, c->forward->of[rank].rows);
    return status;
}

static trek_status backward_rank(int rank, void *arg)
{
    const backward_call *c = arg;
    trek_status status = c->forward->of[rank].runs ? run_segment(c, rank) : TREK_OK;
    if (c->watch)
        c->watch->end(rank, c->watch->arg);
    return status;
}

/* --- gradients of the inputs ----------------------------------------------------------- */

/* The rank's leaf over source k of the caller's; NULL: it has none. */
static trek_var *leaf_of(const split_forward *p, int rank, int k)
{
    if (!p->own_inputs)
        return p->of[rank].inputs[k];
    return k / p->n_inputs == rank ? p->of[rank].inputs[k % p->n_inputs] : NULL;
}

/* Of an input that was split: the ranks' rows, zeros where none came. */
static trek_tensor *join_input_rows(const split_forward *p, int k, const trek_tensor *like)
{
    trek_tensor *whole = trek_tensor_zeros(trek_tensor_shape(like), (trek_dtype)like->dtype, like->device);
    for (int r = 0; whole && r < p->local_ranks; r++) {
        trek_var *grad = p->of[r].inputs[k] ? trek_var_grad(p->of[r].inputs[k]) : NULL;
        if (grad && put_rows(whole, p->of[r].first, grad->data) != TREK_OK) {
            trek_tensor_release(whole);
            return NULL;
        }
    }
    return whole;
}

/* Of an input that ranks had whole: the sum, in rank order. Owned by the scope; NULL without an error: none came. */
static trek_var *sum_input(const split_forward *p, int k)
{
    trek_var *sum = NULL;
    for (int r = 0; r < p->local_ranks; r++) {
        trek_var *leaf = leaf_of(p, r, k), *grad = leaf ? trek_var_grad(leaf) : NULL;
        if (!grad)
            continue;
        trek_var *here = trek_var_from(trek_tensor_to(grad->data, p->devices[k]));
        sum = sum ? trek_add(sum, here) : trek_clone(here);
        if (!sum)
            return NULL;
    }
    return sum;
}

static const trek_tensor *any_part(const split_forward *p, int k)
{
    for (int r = 0; r < p->local_ranks; r++)
        if (leaf_of(p, r, k))
            return leaf_of(p, r, k)->data;
    return NULL;
}

static trek_status input_gradient(const split_forward *p, int k, trek_var **grad)
{
    const trek_tensor *part = any_part(p, k);
    if (!part)
        return TREK_OK;
    if (!p->own_inputs && p->split[k]) {
        trek_tensor like = *part;
        like.sizes[0] = p->total;
        like.device = p->devices[k];
        trek_tensor *whole = join_input_rows(p, k, &like);
        *grad = whole ? trek_var_from(whole) : NULL;
    } else {
        *grad = sum_input(p, k);
    }
    if (*grad && p->scale != 1)
        *grad = trek_mul_scalar(*grad, 1 / p->scale);
    for (int r = 0; r < p->local_ranks; r++)
        trek_var_zero_grad(leaf_of(p, r, k)); /* a later pass over the same tape begins anew */
    return trek_error_status();
}

static trek_status split_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                  int n_inputs)
{
    (void)n_grads;
    split_forward *p = trek_function_data(context);
    if (trek_grad_enabled() || trek_backward_captures())
        return trek_fail(TREK_ERR_UNSUPPORTED, "backward: %s through a forward that is split over %d ranks is not supported",
                         trek_grad_enabled() ? "create_graph" : "grad", p->local_ranks);
    const trek_replica *first = p->of[0].replica;
    bool all = true;
    for (int k = 0; k < first->n_params; k++)
        all &= p->reached[k] = trek_backward_reaches(first->params[k]);
    /* Only a backward that is for certain leaves passes by the tape's leaf. */
    backward_call call = { .forward = p, .grads = grads, .retain = trek_backward_retains(), .zeros = trek_backward_gives_zeros(),
                           .some_only = !trek_backward_reaches(p->tape_leaf) };
    const trek_split_watch *watch = *trek_ranks_split_watch(p->ranks);
    if (watch && watch->tape_leaf == p->tape_leaf && all && call.some_only && trek_backward_passes_last(p->tape_leaf) &&
        watch->begins(watch->arg))
        call.watch = watch;
    trek_status status = run_ranks(p, backward_rank, &call, true);
    for (int k = 0, place = 0; k < p->n_sources && status == TREK_OK; k++) {
        if (p->own_inputs && !p->of[k / p->n_inputs].runs)
            continue;
        if (place < n_inputs - 1 && trek_needs_grad(context, place)) /* the last one is the tape's leaf */
            status = input_gradient(p, k, &input_grads[place]);
        place++;
    }
    return status;
}

/* The ranks have run already: their joined outputs become the node's. */
static trek_status split_outputs(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                 int n_outputs)
{
    (void)inputs, (void)n_inputs, (void)n_outputs;
    split_forward *p = trek_function_data(context);
    int place = 0;
    for (int k = 0; k < p->n_outputs; k++) {
        if (!p->recorded[k])
            continue;
        outputs[place] = trek_var_from(p->joined[k]);
        p->joined[k] = NULL;
        if (!outputs[place++])
            return trek_error_status();
    }
    return TREK_OK;
}

static const trek_function split_function = { "split_forward", split_outputs, split_backward, pass_free };

/* --- the caller's side --------------------------------------------------------------------- */

/* Outputs that no gradient goes through; how many others there are, or -1. */
static int give_plain(split_forward *p, trek_var **outputs)
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

/* The split forward belongs to the tape, or ends here. */
static trek_status give_outputs(const trek_split_call *call, split_forward *p, trek_var **outputs)
{
    int recorded = give_plain(p, outputs), n = 0, n_outputs = p->n_outputs;
    trek_tensor *zero = recorded > 0 && !call->tape_leaf ? trek_tensor_zeros(trek_dims_none(), TREK_F32, trek_cpu(0)) : NULL;
    p->tape_leaf = zero ? trek_var_new(zero, true) : recorded > 0 ? trek_var_retain(call->tape_leaf) : NULL;
    trek_tensor_release(zero);
    trek_var *results[TREK_SPLIT_MOST_OUTPUTS],
        **list = p->tape_leaf ? trek_calloc((size_t)p->n_sources + 1, sizeof *list) : NULL;
    bool is_recorded[TREK_SPLIT_MOST_OUTPUTS];
    if (!list) {
        pass_free(p);
        return recorded == 0 ? TREK_OK : trek_error_status();
    }
    for (int k = 0; k < p->n_sources; k++)
        if (!p->own_inputs || p->of[k / p->n_inputs].runs)
            list[n++] = call->inputs[k];
    list[n++] = p->tape_leaf;
    for (int k = 0; k < n_outputs; k++)
        is_recorded[k] = p->recorded[k];
    trek_status status = trek_function_apply(&split_function, p, list, n, results, recorded);
    for (int k = 0, place = 0; k < n_outputs && status == TREK_OK; k++)
        if (is_recorded[k])
            outputs[k] = results[place++];
    trek_free(list);
    return status;
}

trek_status trek_split_forward(const trek_split_call *call, trek_var **outputs)
{
    split_forward *p = split_forward_new(call);
    if (!p)
        return trek_error_status();
    if (call->comm)
        trek_rank_sums_set_comm(trek_ranks_sums(call->ranks), call->comm);
    forward_call c = { .call = call, .forward = p, .no_grad_depth = trek_grad_mode_here.no_grad_depth,
                       .autocast = trek_autocast_dtype(), .offload = trek_grad_mode_here.offload,
                       .rng_step = trek_rank_here.rng_step, .rng_draw = trek_rank_here.rng_draw };
    trek_status status = run_ranks(p, forward_rank, &c, false);
    for (int r = 0; r < p->local_ranks && status == TREK_OK; r++)
        if (p->of[r].runs && p->of[r].rng_draw > trek_rank_here.rng_draw)
            trek_rank_here.rng_draw = p->of[r].rng_draw;
    if (status == TREK_OK)
        status = join(call, p);
    if (status == TREK_OK)
        return give_outputs(call, p, outputs);
    pass_free(p);
    return status;
}

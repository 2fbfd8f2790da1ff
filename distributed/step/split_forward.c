/* SPDX-License-Identifier: Apache-2.0 */
/* The gathered way: a forward splits its inputs over the ranks and joins their
 * outputs; on the caller's tape that is one node, whose backward runs the
 * ranks' own segments side by side. */
#include <math.h>
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/balance/apportion.h"
#include "distributed/step/rank_sums.h"
#include "distributed/step/job_sync.h"
#include "distributed/step/stepper_ranks.h"
#include "graph/graph_internal.h"
#include "tensor/place.h"
#include "tensor/trace.h"

/* Joined by the caller alone up to here: waking the ranks would take longer. */
#define JOIN_ALONE_BYTES (256 * 1024)

typedef struct gather_rank {
    int64_t first, rows;
    bool runs;
    uint64_t rng_draw;      /* after the forward */
    trek_var **inputs;      /* the rank's own leaves; only those that need a gradient */
    trek_var **leaves;      /* the same without gaps: room for a backward that is for them alone */
    trek_var **outputs;     /* retained: they hold the rank's segment of tape */
    trek_var **roots, **seeds;
} gather_rank;

/* One forward, for as long as its backward may come. */
typedef struct gather_pass {
    trek_ranks *ranks;
    trek_stopwatches *watches;
    trek_var *param;        /* one of rank 0's, retained: whether a backward is for them; NULL: there are none */
    int world, n_inputs, n_outputs;
    int64_t total;          /* rows */
    bool between;           /* there are other processes */
    gather_rank *of;
    bool *split;            /* [inputs] */
    bool *recorded;         /* [outputs] */
    int64_t *unit;          /* [outputs] rows of output for each row of input; 0: a scalar */
    trek_tensor **joined;   /* [outputs] until they are variables */
} gather_pass;

/* --- life ----------------------------------------------------------------------- */

static void *carve(char **at, size_t count, size_t size)
{
    void *memory = *at;
    *at += (count * size + 15) & ~(size_t)15;
    return memory;
}

static gather_pass *pass_new(ranks_stepper *s)
{
    size_t world = (size_t)s->world, inputs = (size_t)s->n_inputs, outputs = (size_t)s->n_outputs;
    size_t bytes = sizeof(gather_pass) + world * sizeof(gather_rank) + (world * (2 * inputs + 3 * outputs) + 2 * outputs) * sizeof(void *) +
                   inputs + outputs + 16 * (8 + 5 * world);
    char *at = trek_calloc(1, bytes);
    if (!at)
        return NULL;
    gather_pass *pass = carve(&at, 1, sizeof *pass);
    pass->ranks = trek_ranks_retain(s->ranks);
    pass->watches = trek_stopwatches_retain(s->watches);
    pass->param = s->replicas[0].model.n_params > 0 ? trek_var_retain(s->replicas[0].model.params[0]) : NULL;
    pass->world = s->world;
    pass->between = s->comm != NULL;
    if (s->comm)
        trek_rank_sums_set_comm(trek_ranks_sums(s->ranks), s->comm);
    pass->n_inputs = s->n_inputs;
    pass->n_outputs = s->n_outputs;
    pass->of = carve(&at, world, sizeof *pass->of);
    pass->split = carve(&at, inputs, sizeof *pass->split);
    pass->recorded = carve(&at, outputs, sizeof *pass->recorded);
    pass->unit = carve(&at, outputs, sizeof *pass->unit);
    pass->joined = carve(&at, outputs, sizeof *pass->joined);
    for (int r = 0; r < s->world; r++) {
        pass->of[r].inputs = carve(&at, inputs, sizeof(trek_var *));
        pass->of[r].leaves = carve(&at, inputs, sizeof(trek_var *));
        pass->of[r].outputs = carve(&at, outputs, sizeof(trek_var *));
        pass->of[r].roots = carve(&at, outputs, sizeof(trek_var *));
        pass->of[r].seeds = carve(&at, outputs, sizeof(trek_var *));
    }
    return pass;
}

/* On the caller's thread; what the ranks recorded goes back to their tapes. */
static void pass_free(void *data)
{
    gather_pass *pass = data;
    for (int r = 0; r < pass->world; r++) {
        for (int k = 0; k < pass->n_inputs; k++)
            trek_var_release(pass->of[r].inputs[k]);
        for (int k = 0; k < pass->n_outputs; k++)
            trek_var_release(pass->of[r].outputs[k]);
    }
    for (int k = 0; k < pass->n_outputs; k++)
        trek_tensor_release(pass->joined[k]);
    trek_stopwatches_release(pass->watches);
    trek_var_release(pass->param);
    trek_ranks *ranks = pass->ranks;
    trek_free(pass);
    trek_ranks_free(&ranks);
}

/* --- splitting -------------------------------------------------------------------- */

static trek_status split_inputs(ranks_stepper *s, gather_pass *pass, trek_var *const *inputs)
{
    int first = -1;
    for (int k = 0; k < pass->n_inputs; k++) {
        const trek_tensor *x = inputs[k]->data;
        pass->split[k] = x->ndim > 0 && !trek_graph_input_is_whole(s->base.graph, k);
        if (!pass->split[k])
            continue;
        if (first < 0) {
            first = k;
            pass->total = x->sizes[0];
        } else if (x->sizes[0] != pass->total) {
            char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
            return trek_fail(TREK_ERR_SHAPE,
                             "graph: inputs \"%s\" %s and \"%s\" %s have different numbers of rows and cannot be split over %d ranks; "
                             "trek_graph_replicate_input gives an input whole to every rank",
                             trek_graph_input_name(s->base.graph, first), trek_tensor_shape_text(inputs[first]->data, a),
                             trek_graph_input_name(s->base.graph, k), trek_tensor_shape_text(x, b), s->world);
        }
    }
    int64_t counts[TREK_MAX_RANKS], at = 0;
    trek_status status = trek_ranks_split(s, pass->total, counts);
    for (int r = 0; r < pass->world && status == TREK_OK; r++) {
        pass->of[r].first = at;
        pass->of[r].rows = counts[r];
        pass->of[r].runs = counts[r] > 0 || (r == 0 && pass->total == 0);
        at += counts[r];
    }
    return status;
}

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

/* Runs fn on all ranks; those that have rows can make sums with one another. */
static trek_status run_ranks(gather_pass *pass, trek_rank_fn fn, void *arg)
{
    bool runs[TREK_MAX_RANKS];
    for (int r = 0; r < pass->world; r++)
        runs[r] = pass->of[r].runs;
    trek_rank_sums *sums = trek_ranks_sums(pass->ranks);
    if (trek_ranks_rank_here(pass->ranks) >= 0)
        return trek_ranks_run(pass->ranks, fn, arg); /* which refuses it: the sums are in use */
    trek_rank_sums_set_deadline(sums, trek_ranks_comm(pass->ranks, 0)->deadline_ns);
    trek_rank_sums_begin(sums, runs, pass->between);
    return trek_ranks_run(pass->ranks, fn, arg);
}

/* --- forward ------------------------------------------------------------------------ */

typedef struct forward_call {
    ranks_stepper *s;
    gather_pass *pass;
    trek_var *const *inputs;
    int no_grad_depth;
    trek_dtype autocast;    /* of the caller */
    bool reset;             /* rank 0's states were reset */
    bool counts;            /* a forward of training: its samples count for the ranks' pace */
    int64_t first, global;  /* place of the process's samples in the batch of all processes */
    uint64_t rng_step, rng_draw;
} forward_call;

/* The rank's variable over its part of input k, owned by the present scope, or by the pass if it needs a gradient. */
static trek_var *rank_input(const forward_call *c, int rank, int k)
{
    gather_rank *of = &c->pass->of[rank];
    trek_var *x = c->inputs[k];
    trek_device device = trek_ranks_device(c->s->ranks, rank);
    trek_tensor *part = c->pass->split[k] ? rows_of(x->data, of->first, of->rows, device) : trek_tensor_to(x->data, device);
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
    gather_rank *of = &c->pass->of[rank];
    trek_graph *graph = c->s->replicas[rank].graph;
    trek_var *inputs[64], **list = c->pass->n_inputs <= 64 ? inputs : trek_calloc((size_t)c->pass->n_inputs, sizeof *list);
    if (!list)
        return trek_status_get();
    trek_status status = TREK_OK;
    for (int k = 0; k < c->pass->n_inputs && status == TREK_OK; k++)
        if (!(list[k] = rank_input(c, rank, k)))
            status = trek_status_get();
    trek_var *y = status == TREK_OK ? trek_graph_run_route(graph, list, c->pass->n_inputs) : NULL;
    if (list != inputs)
        trek_free(list);
    if (!y)
        return trek_status_get();
    of->outputs[0] = trek_var_retain(y);
    for (int k = 1; k < c->pass->n_outputs; k++)
        of->outputs[k] = trek_var_retain(trek_graph_tag_value(graph, c->s->output_tag[k]));
    return TREK_OK;
}

static trek_status run_timed(const forward_call *c, int rank)
{
    trek_stopwatch *watch = &c->s->watches->of[rank];
    trek_status status = trek_stopwatch_start(watch, trek_ranks_device(c->s->ranks, rank));
    if (status == TREK_OK)
        status = run_replica(c, rank);
    return status == TREK_OK ? trek_stopwatch_stop(watch, c->counts ? c->pass->of[rank].rows : 0) : status;
}

static trek_status forward_rank(int rank, void *arg)
{
    const forward_call *c = arg;
    gather_rank *of = &c->pass->of[rank];
    if (c->reset && rank > 0)
        trek_graph_reset_state(c->s->replicas[rank].graph);
    if (!of->runs)
        return TREK_OK;
    int64_t start = trek_trace_enter("forward");
    int depth = trek_grad_mode_here.no_grad_depth;
    trek_grad_mode_here.no_grad_depth = c->no_grad_depth;
    trek_place_here.first_sample = c->first + of->first;
    trek_place_here.rows = of->rows;
    trek_place_here.global_rows = c->global;
    trek_place_here.rng_step = c->rng_step;
    trek_place_here.rng_draw = c->rng_draw;
    trek_scope scope = trek_scope_begin();
    trek_autocast_begin(c->autocast);
    trek_rank_sums_enter(trek_ranks_sums(c->pass->ranks), rank);
    trek_status status = scope.depth ? run_timed(c, rank) : trek_status_get();
    trek_rank_sums_leave(trek_ranks_sums(c->pass->ranks), rank, status);
    trek_autocast_end();
    trek_scope_end(scope);
    of->rng_draw = trek_place_here.rng_draw;
    trek_place_here.rows = trek_place_here.global_rows = -1;
    trek_place_here.first_sample = 0;
    trek_grad_mode_here.no_grad_depth = depth;
    trek_trace_end("forward", start, of->rows);
    return status;
}

/* --- joining ------------------------------------------------------------------------- */

static trek_status fail_join(const ranks_stepper *s, const gather_pass *pass, int k, int rank, const char *why)
{
    char text[TREK_SHAPE_TEXT];
    const char *tag = k > 0 ? trek_graph_tag_name(s->base.graph, s->output_tag[k]) : NULL;
    return trek_fail(TREK_ERR_SHAPE, "graph: %s%s%s %s of rank %d (%lld rows) cannot be joined: %s", tag ? "tag \"" : "the output",
                     tag ? tag : "", tag ? "\"" : "", trek_tensor_shape_text(pass->of[rank].outputs[k]->data, text), rank,
                     (long long)pass->of[rank].rows, why);
}

/* The first rank that has rows: not every share is one of a row. */
static int first_running(const gather_pass *pass)
{
    int rank = 0;
    while (!pass->of[rank].runs)
        rank++;
    return rank;
}

/* Whether the ranks' outputs k fit together, and how many rows each row of input gives. */
static trek_status check_output(const ranks_stepper *s, gather_pass *pass, int k)
{
    int from = first_running(pass);
    const trek_tensor *first = pass->of[from].outputs[k]->data;
    int64_t rows = pass->of[from].rows;
    if (first->ndim > 0 && rows > 0 && (first->sizes[0] % rows != 0 || first->sizes[0] == 0))
        return fail_join(s, pass, k, from, "its dimension 0 does not hold the rows (time-major data cannot be split)");
    pass->unit[k] = first->ndim == 0 ? 0 : rows > 0 ? first->sizes[0] / rows : 1;
    if (first->ndim == 0 && !trek_dtype_is_float((trek_dtype)first->dtype))
        return fail_join(s, pass, k, from, "it is a scalar, and no mean can be taken of its dtype");
    for (int r = from + 1; r < pass->world; r++) {
        if (!pass->of[r].runs)
            continue;
        const trek_tensor *y = pass->of[r].outputs[k]->data;
        bool same = y->ndim == first->ndim && y->dtype == first->dtype;
        for (int d = 1; same && d < y->ndim; d++)
            same = y->sizes[d] == first->sizes[d];
        if (!same)
            return fail_join(s, pass, k, r, "its shape or dtype is not that of the first rank");
        if (y->ndim > 0 && y->sizes[0] != pass->unit[k] * pass->of[r].rows)
            return fail_join(s, pass, k, r, "its dimension 0 does not hold the rows (time-major data cannot be split)");
    }
    return TREK_OK;
}

static int ranks_running(const gather_pass *pass)
{
    int n = 0;
    for (int r = 0; r < pass->world; r++)
        n += pass->of[r].runs;
    return n;
}

/* The mean of the ranks' scalars, weighted by rows, in rank order. */
static trek_tensor *join_scalars(const gather_pass *pass, int k)
{
    double sum = 0;
    for (int r = 0; r < pass->world; r++)
        if (pass->of[r].runs)
            sum += trek_tensor_item(pass->of[r].outputs[k]->data) * ((double)pass->of[r].rows / (double)pass->total);
    const trek_tensor *first = pass->of[first_running(pass)].outputs[k]->data;
    return trek_tensor_full(sum, trek_dims_none(), (trek_dtype)first->dtype, trek_ranks_device(pass->ranks, 0));
}

static trek_status make_joined(const ranks_stepper *s, gather_pass *pass, int k)
{
    trek_status status = check_output(s, pass, k);
    if (status != TREK_OK)
        return status;
    trek_tensor *first = pass->of[first_running(pass)].outputs[k]->data;
    trek_device device = trek_ranks_device(pass->ranks, 0);
    if (ranks_running(pass) == 1) {
        pass->joined[k] = trek_tensor_to(first, device);
    } else if (pass->unit[k] == 0) {
        pass->joined[k] = join_scalars(pass, k);
    } else {
        int64_t sizes[TREK_MAX_DIMS];
        memcpy(sizes, first->sizes, sizeof sizes);
        sizes[0] = pass->unit[k] * pass->total;
        pass->joined[k] = trek_tensor_make(first->ndim, sizes, (trek_dtype)first->dtype, device);
    }
    return pass->joined[k] ? TREK_OK : trek_status_get();
}

/* Writes `part` to rows [first, ...) of `whole`. */
static trek_status put_rows(trek_tensor *whole, int64_t first, trek_tensor *part)
{
    size_t size = trek_dtype_size((trek_dtype)part->dtype);
    if (part->contiguous && whole->contiguous && part->dtype == whole->dtype && trek_tensor_data(part) && trek_tensor_data(whole)) {
        memcpy(whole->data + first * whole->strides[0] * (int64_t)size, part->data, (size_t)part->numel * size);
        return TREK_OK;
    }
    trek_tensor *view = view_rows(whole, first, part->sizes[0]);
    trek_status status = view ? trek_tensor_copy_from(view, part) : trek_status_get();
    trek_tensor_release(view);
    return status;
}

static trek_status join_rank(int rank, void *arg)
{
    gather_pass *pass = arg;
    trek_status status = TREK_OK;
    for (int k = 0; k < pass->n_outputs && pass->of[rank].runs && status == TREK_OK; k++)
        if (pass->unit[k] > 0)
            status = put_rows(pass->joined[k], pass->of[rank].first * pass->unit[k], pass->of[rank].outputs[k]->data);
    return status;
}

static trek_status join(const ranks_stepper *s, gather_pass *pass)
{
    trek_status status = TREK_OK;
    size_t bytes = 0;
    for (int k = 0; k < pass->n_outputs && status == TREK_OK; k++) {
        status = make_joined(s, pass, k);
        if (status == TREK_OK)
            bytes += (size_t)pass->joined[k]->numel * trek_dtype_size((trek_dtype)pass->joined[k]->dtype);
    }
    if (status != TREK_OK || ranks_running(pass) == 1)
        return status;
    if (bytes > JOIN_ALONE_BYTES && pass->joined[0]->device.type == TREK_CPU)
        return trek_ranks_run(pass->ranks, join_rank, pass);
    for (int r = 0; r < pass->world && status == TREK_OK; r++)
        status = join_rank(r, pass);
    return status;
}

/* --- backward of the joint node -------------------------------------------------------- */

typedef struct backward_call {
    gather_pass *pass;
    trek_var *const *grads; /* of the recorded outputs; NULL where none arrived */
    bool retain;
    bool inputs_only;       /* the backward is for another graph's parameters: these get nothing */
} backward_call;

/* What arrives at the rank's output k. */
static trek_var *rank_seed(const gather_pass *pass, int rank, int k, trek_var *grad)
{
    const gather_rank *of = &pass->of[rank];
    trek_device device = trek_ranks_device(pass->ranks, rank);
    if (pass->unit[k] == 0) {
        double weight = pass->total > 0 ? (double)of->rows / (double)pass->total : 1;
        return trek_mul_scalar(trek_var_from(trek_tensor_to(grad->data, device)), weight);
    }
    trek_tensor *rows = rows_of(grad->data, of->first * pass->unit[k], of->rows * pass->unit[k], device);
    return rows ? trek_var_from(rows) : NULL;
}

static trek_status backward_segment(const backward_call *c, int rank)
{
    gather_pass *pass = c->pass;
    gather_rank *of = &pass->of[rank];
    int n = 0, place = 0;
    for (int k = 0; k < pass->n_outputs; k++) {
        trek_var *grad = pass->recorded[k] ? c->grads[place++] : NULL;
        if (!grad || !of->outputs[k]->requires_grad)
            continue;
        of->roots[n] = of->outputs[k];
        of->seeds[n] = rank_seed(pass, rank, k, grad);
        if (!of->seeds[n++])
            return trek_status_get();
    }
    if (n == 0)
        return TREK_OK;
    trek_backward_watch watch = { .leaves = of->leaves, .only_these = true };
    for (int k = 0; k < pass->n_inputs; k++)
        if (of->inputs[k])
            of->leaves[watch.n_leaves++] = of->inputs[k];
    trek_backward_opts opts = { .retain_graph = c->retain };
    return trek_backward_watched(of->roots, of->seeds, n, &opts, c->inputs_only ? &watch : NULL);
}

static trek_status backward_timed(const backward_call *c, int rank)
{
    trek_stopwatch *watch = &c->pass->watches->of[rank];
    trek_status status = trek_stopwatch_start(watch, trek_ranks_device(c->pass->ranks, rank));
    if (status == TREK_OK)
        status = backward_segment(c, rank);
    return status == TREK_OK ? trek_stopwatch_stop(watch, 0) : status;
}

static trek_status backward_rank(int rank, void *arg)
{
    const backward_call *c = arg;
    if (!c->pass->of[rank].runs)
        return TREK_OK;
    int64_t start = trek_trace_enter("backward");
    trek_scope scope = trek_scope_begin();
    int depth = trek_grad_mode_here.no_grad_depth;
    trek_grad_mode_here.no_grad_depth = 1; /* seeds are numbers, not history */
    trek_rank_sums_enter(trek_ranks_sums(c->pass->ranks), rank);
    trek_status status = scope.depth ? backward_timed(c, rank) : trek_status_get();
    trek_rank_sums_leave(trek_ranks_sums(c->pass->ranks), rank, status);
    trek_grad_mode_here.no_grad_depth = depth;
    trek_scope_end(scope);
    trek_trace_end("backward", start, c->pass->of[rank].rows);
    return status;
}

/* The gradient of an input that was split: the ranks' rows, zeros where none came. */
static trek_tensor *join_input_rows(const gather_pass *pass, int k, const trek_tensor *like)
{
    trek_tensor *whole = trek_tensor_zeros(trek_tensor_shape(like), (trek_dtype)like->dtype, like->device);
    for (int r = 0; whole && r < pass->world; r++) {
        trek_var *grad = pass->of[r].inputs[k] ? trek_var_grad(pass->of[r].inputs[k]) : NULL;
        if (grad && put_rows(whole, pass->of[r].first, grad->data) != TREK_OK) {
            trek_tensor_release(whole);
            return NULL;
        }
    }
    return whole;
}

/* The gradient of an input that every rank had whole: the sum, in rank order. Owned by the scope. */
static trek_var *sum_input(const gather_pass *pass, int k, trek_device device)
{
    trek_var *sum = NULL;
    for (int r = 0; r < pass->world; r++) {
        trek_var *grad = pass->of[r].inputs[k] ? trek_var_grad(pass->of[r].inputs[k]) : NULL;
        if (!grad)
            continue;
        trek_var *here = trek_var_from(trek_tensor_to(grad->data, device));
        sum = sum ? trek_add(sum, here) : trek_clone(here);
        if (!sum)
            return NULL;
    }
    return sum;
}

static const trek_tensor *any_input(const gather_pass *pass, int k)
{
    for (int r = 0; r < pass->world; r++)
        if (pass->of[r].inputs[k])
            return pass->of[r].inputs[k]->data;
    return NULL;
}

static trek_status input_gradient(const gather_pass *pass, int k, trek_var **grad)
{
    const trek_tensor *part = any_input(pass, k);
    if (!part)
        return TREK_OK;
    trek_device device = trek_ranks_device(pass->ranks, 0);
    if (pass->split[k]) {
        trek_tensor like = *part;
        like.sizes[0] = pass->total;
        like.device = device;
        trek_tensor *whole = join_input_rows(pass, k, &like);
        *grad = whole ? trek_var_from(whole) : NULL;
    } else {
        *grad = sum_input(pass, k, device);
    }
    for (int r = 0; r < pass->world; r++)
        trek_var_zero_grad(pass->of[r].inputs[k]); /* a later pass over the same tape begins anew */
    return trek_status_get();
}

static trek_status split_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                  int n_inputs)
{
    (void)n_grads;
    gather_pass *pass = trek_function_data(context);
    if (trek_grad_enabled() || trek_backward_captures())
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s through a forward that is split over %d ranks is not supported",
                         trek_grad_enabled() ? "create_graph" : "trek_grad", pass->world);
    backward_call call = { pass, grads, trek_backward_retains(), pass->param && !trek_backward_reaches(pass->param) };
    trek_status status = run_ranks(pass, backward_rank, &call);
    for (int k = 0; k < n_inputs - 1 && status == TREK_OK; k++) /* the last one is the anchor */
        if (trek_needs_grad(context, k))
            status = input_gradient(pass, k, &input_grads[k]);
    return status;
}

/* The ranks have run already: their joined outputs become the node's. */
static trek_status split_outputs(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                 int n_outputs)
{
    (void)inputs, (void)n_inputs, (void)n_outputs;
    gather_pass *pass = trek_function_data(context);
    int place = 0;
    for (int k = 0; k < pass->n_outputs; k++) {
        if (!pass->recorded[k])
            continue;
        outputs[place] = trek_var_from(pass->joined[k]);
        pass->joined[k] = NULL;
        if (!outputs[place++])
            return trek_status_get();
    }
    return TREK_OK;
}

static const trek_function split_function = { "split_forward", split_outputs, split_backward, pass_free };

/* --- the caller's side --------------------------------------------------------------------- */

/* Puts the joined values where rank 0 has its own part of tagged ones. */
static void put_tags(ranks_stepper *s, trek_var *const *inputs, trek_var *const *outputs)
{
    for (int k = 0; k < s->n_tags; k++)
        trek_graph_put_tag(s->base.graph, k, s->tag_output[k] >= 0 ? outputs[s->tag_output[k]] : inputs[~s->tag_output[k]]);
}

/* Makes variables of what was joined; the pass belongs to the tape, or ends here. */
static trek_status give_outputs(ranks_stepper *s, gather_pass *pass, trek_var *const *inputs, trek_var **outputs, trek_var **work)
{
    int recorded = 0, n_outputs = pass->n_outputs, place = 0;
    for (int k = 0; k < n_outputs; k++) {
        pass->recorded[k] = false;
        for (int r = 0; r < pass->world; r++)
            pass->recorded[k] |= pass->of[r].runs && pass->of[r].outputs[k]->requires_grad;
        recorded += pass->recorded[k];
    }
    for (int k = 0; k < n_outputs; k++) {
        outputs[k] = NULL;
        if (pass->recorded[k])
            continue;
        trek_tensor *joined = pass->joined[k];
        pass->joined[k] = NULL;
        if (!(outputs[k] = trek_var_from(joined))) {
            pass_free(pass);
            return trek_status_get();
        }
    }
    if (recorded == 0) {
        pass_free(pass);
        return TREK_OK;
    }
    bool is_recorded[64];
    for (int k = 0; k < n_outputs; k++)
        is_recorded[k] = pass->recorded[k];
    trek_var **list = work, **results = work + pass->n_inputs + 1;
    memcpy(list, inputs, (size_t)pass->n_inputs * sizeof *list);
    list[pass->n_inputs] = s->anchor;
    trek_status status = trek_function_apply(&split_function, pass, list, pass->n_inputs + 1, results, recorded);
    for (int k = 0; k < n_outputs && status == TREK_OK; k++)
        if (is_recorded[k])
            outputs[k] = results[place++];
    return status;
}

bool trek_graph_states_are_reset(const trek_graph *graph)
{
    for (int k = 0; k < graph->layout.n_states; k++)
        if (graph->route.states[k])
            return false;
    return graph->layout.n_states > 0;
}

static void place_of(const ranks_stepper *s, const gather_pass *pass, forward_call *call)
{
    call->counts = trek_ranks_training(s);
    trek_ranks_place_of(s, pass->total, &call->first, &call->global);
}

static trek_status run_forward(ranks_stepper *s, gather_pass *pass, trek_var *const *inputs)
{
    forward_call call = { .s = s, .pass = pass, .inputs = inputs, .no_grad_depth = trek_grad_mode_here.no_grad_depth,
                          .autocast = trek_autocast_dtype(), .reset = trek_graph_states_are_reset(s->base.graph), .rng_step = trek_place_here.rng_step,
                          .rng_draw = trek_place_here.rng_draw };
    place_of(s, pass, &call);
    s->base.graph->accumulation.rows = pass->total;
    trek_ranks_follow_flags(s);
    trek_status status = run_ranks(pass, forward_rank, &call);
    for (int r = 0; r < s->world && status == TREK_OK; r++)
        if (pass->of[r].runs && pass->of[r].rng_draw > trek_place_here.rng_draw)
            trek_place_here.rng_draw = pass->of[r].rng_draw;
    if (status == TREK_OK)
        status = join(s, pass);
    for (int r = 0; r < s->world && status == TREK_OK; r++)
        if (trek_ranks_training(s))
            s->replicas[r].samples += pass->of[r].rows;
    return status;
}

static bool nothing_to_split(const ranks_stepper *s, trek_var *const *inputs)
{
    for (int k = 0; k < s->n_inputs; k++)
        if (inputs[k]->data->ndim > 0 && !trek_graph_input_is_whole(s->base.graph, k))
            return false;
    return true;
}

trek_var *trek_ranks_forward(trek_stepper *stepper, trek_var *const *inputs, int n)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    if (n != s->n_inputs)
        return trek_fail_null(TREK_ERR_ARGUMENT, "graph: takes %d input%s, got %d", s->n_inputs, s->n_inputs == 1 ? "" : "s", n);
    for (int k = 0; k < n; k++)
        if (!inputs[k])
            return trek_fail_missing("trek_graph_forward", trek_graph_input_name(stepper->graph, k)), NULL;
    if (trek_scopes.depth == 0)
        return trek_fail_null(TREK_ERR_SCOPE, "trek_graph_forward: no scope is open; begin one with trek_scope_begin, or use a loader's loop");
    /* Inside a rank's run, as in the function of trek_graph_set_loss, it is that rank's own forward. */
    if (nothing_to_split(s, inputs) || trek_ranks_rank_here(s->ranks) >= 0)
        return trek_graph_run_route(stepper->graph, inputs, n);
    trek_rounds_say(s, "forward", false);
    if (s->world == 1)
        return trek_ranks_forward_alone(s, inputs, n);
    trek_var *outputs[64] = { NULL };
    trek_var **work = trek_calloc((size_t)(s->n_inputs + 1 + s->n_outputs), sizeof *work);
    gather_pass *pass = work ? pass_new(s) : NULL;
    trek_status status = pass ? split_inputs(s, pass, inputs) : trek_status_get();
    if (status == TREK_OK)
        status = run_forward(s, pass, inputs);
    if (status == TREK_OK)
        status = give_outputs(s, pass, inputs, outputs, work);
    else if (pass)
        pass_free(pass);
    trek_free(work);
    if (status != TREK_OK)
        return NULL;
    put_tags(s, inputs, outputs);
    return outputs[0];
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs of each replica side by side, outputs joined; on the caller's tape one
 * node, whose backward runs the ranks' own segments side by side. */
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "distributed/ddp_internal.h"
#include "tensor/place.h"

typedef struct side {
    bool runs;
    int64_t first, rows;      /* rows of input 0, and how many the ranks before have */
    int64_t out_first, out_rows;
    uint64_t rng_draw;        /* after the forward */
    trek_var **inputs;        /* [n_inputs] the rank's own leaves; only those that need a gradient */
    trek_device *devices;     /* [n_inputs] where the caller's are */
    trek_var *output;         /* retained: it holds the rank's segment of tape */
} side;

/* One forward, for as long as its backward may come. */
typedef struct pass {
    trek_ranks *ranks;
    int n, n_inputs;
    int64_t total;            /* rows */
    side *of;
    trek_tensor *joined;      /* until it is a variable */
} pass;

typedef struct forward_call {
    trek_ddp *ddp;
    pass *pass;
    trek_var *const *inputs;  /* [n][n_inputs] */
    int no_grad_depth;
    trek_dtype autocast;
    uint64_t rng_step, rng_draw;
} forward_call;

/* --- life ----------------------------------------------------------------------------- */

static void pass_free(void *data)
{
    pass *p = data;
    for (int r = 0; r < p->n && p->of; r++) {
        for (int k = 0; k < p->n_inputs && p->of[r].inputs; k++)
            trek_var_release(p->of[r].inputs[k]);
        trek_free(p->of[r].inputs);
        trek_free(p->of[r].devices);
        trek_var_release(p->of[r].output);
    }
    trek_tensor_release(p->joined);
    trek_free(p->of);
    trek_ranks *ranks = p->ranks;
    trek_free(p);
    trek_ranks_free(&ranks);
}

static pass *pass_new(trek_ddp *ddp, trek_var *const *inputs, int n_inputs)
{
    pass *p = trek_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->ranks = trek_ranks_retain(ddp->ranks);
    p->n = ddp->n;
    p->n_inputs = n_inputs;
    p->of = trek_calloc((size_t)ddp->n, sizeof *p->of);
    bool made = p->of != NULL;
    for (int r = 0; r < p->n && made; r++) {
        const trek_var *x = inputs[r * n_inputs];
        p->of[r].inputs = trek_calloc((size_t)n_inputs, sizeof *p->of[r].inputs);
        p->of[r].devices = trek_calloc((size_t)n_inputs, sizeof *p->of[r].devices);
        made = p->of[r].inputs && p->of[r].devices;
        p->of[r].runs = x != NULL;
        p->of[r].rows = x && x->data->ndim > 0 ? x->data->sizes[0] : x != NULL;
        p->of[r].first = p->total;
        p->total += p->of[r].rows;
    }
    if (made)
        return p;
    pass_free(p);
    return NULL;
}

/* --- forward ---------------------------------------------------------------------------- */

/* The rank's variable over its input k: owned by the present scope, or by the pass if it needs a gradient. */
static trek_var *rank_input(const forward_call *c, int rank, int k)
{
    trek_var *x = c->inputs[rank * c->pass->n_inputs + k];
    trek_tensor *there = x ? trek_tensor_to(x->data, c->ddp->replicas[rank].device) : NULL;
    if (!there)
        return x ? NULL : (trek_fail_missing("ddp_forward", "an input"), NULL);
    if (!x->requires_grad || c->no_grad_depth > 0)
        return trek_var_from(there);
    c->pass->of[rank].devices[k] = x->data->device;
    trek_var *leaf = trek_var_new(there, true);
    trek_tensor_release(there);
    return c->pass->of[rank].inputs[k] = leaf;
}

static trek_status run_replica(const forward_call *c, int rank)
{
    int n = c->pass->n_inputs;
    trek_var **list = trek_calloc((size_t)n, sizeof *list);
    if (!list)
        return trek_status_get();
    trek_status status = TREK_OK;
    for (int k = 0; k < n && status == TREK_OK; k++)
        if (!(list[k] = rank_input(c, rank, k)))
            status = trek_status_get();
    trek_var *y = status == TREK_OK ? trek_forward_many(c->ddp->replicas[rank].module, list, n) : NULL;
    trek_free(list);
    if (!y)
        return trek_status_get();
    c->pass->of[rank].output = trek_var_retain(y);
    return TREK_OK;
}

static trek_status forward_rank(int rank, void *arg)
{
    const forward_call *c = arg;
    side *of = &c->pass->of[rank];
    if (!of->runs)
        return TREK_OK;
    int depth = trek_grad_mode_here.no_grad_depth;
    trek_grad_mode_here.no_grad_depth = c->no_grad_depth;
    trek_place before = trek_place_here;
    trek_place_here.first_sample = of->first;
    trek_place_here.rows = of->rows;
    trek_place_here.global_rows = c->pass->total;
    trek_place_here.rng_step = c->rng_step;
    trek_place_here.rng_draw = c->rng_draw;
    trek_scope scope = trek_scope_begin();
    trek_autocast_begin(c->autocast);
    trek_status status = scope.depth ? run_replica(c, rank) : trek_status_get();
    trek_autocast_end();
    trek_scope_end(scope);
    of->rng_draw = trek_place_here.rng_draw;
    trek_place_here.rows = before.rows;
    trek_place_here.global_rows = before.global_rows;
    trek_place_here.first_sample = before.first_sample;
    trek_grad_mode_here.no_grad_depth = depth;
    return status;
}

/* --- joining ------------------------------------------------------------------------------ */

static trek_tensor *view_rows(trek_tensor *x, int64_t first, int64_t rows)
{
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    sizes[0] = rows;
    char *data = x->data + first * x->strides[0] * (int64_t)trek_dtype_size((trek_dtype)x->dtype);
    return trek_tensor_make_view(x, data, x->ndim, sizes, x->strides);
}

static const trek_tensor *first_output(const pass *p)
{
    for (int r = 0; r < p->n; r++)
        if (p->of[r].output)
            return p->of[r].output->data;
    return NULL;
}

/* Whether the outputs fit together, and where each has its rows. */
static trek_status place_outputs(pass *p, int64_t *total)
{
    const trek_tensor *like = first_output(p);
    *total = 0;
    for (int r = 0; r < p->n; r++) {
        if (!p->of[r].output)
            continue;
        const trek_tensor *y = p->of[r].output->data;
        bool same = y->ndim == like->ndim && y->dtype == like->dtype;
        for (int d = 1; same && d < y->ndim; d++)
            same = y->sizes[d] == like->sizes[d];
        if (!same) {
            char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
            return trek_fail(TREK_ERR_SHAPE, "ddp_forward: the output %s %s of replica %d cannot be joined to %s %s",
                             trek_dtype_name((trek_dtype)y->dtype), trek_tensor_shape_text(y, a), r,
                             trek_dtype_name((trek_dtype)like->dtype), trek_tensor_shape_text(like, b));
        }
        p->of[r].out_first = *total;
        p->of[r].out_rows = y->ndim > 0 ? y->sizes[0] : 0;
        *total += p->of[r].out_rows;
    }
    if (like->ndim == 0 && !trek_dtype_is_float((trek_dtype)like->dtype))
        return trek_fail(TREK_ERR_DTYPE, "ddp_forward: the output is a scalar, and no mean can be taken of %s",
                         trek_dtype_name((trek_dtype)like->dtype));
    return TREK_OK;
}

static double share_of(const pass *p, int rank) { return p->total > 0 ? (double)p->of[rank].rows / (double)p->total : 1; }

static trek_status join(trek_ddp *ddp, pass *p)
{
    const trek_tensor *like = first_output(p);
    if (!like)
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_forward: no replica has an input");
    int64_t total, sizes[TREK_MAX_DIMS];
    trek_status status = place_outputs(p, &total);
    if (status != TREK_OK)
        return status;
    trek_device device = ddp->replicas[0].device;
    if (like->ndim == 0) {
        double sum = 0;
        for (int r = 0; r < p->n; r++)
            sum += p->of[r].output ? trek_tensor_item(p->of[r].output->data) * share_of(p, r) : 0;
        p->joined = trek_tensor_full(sum, trek_dims_none(), (trek_dtype)like->dtype, device);
        return p->joined ? TREK_OK : trek_status_get();
    }
    memcpy(sizes, like->sizes, sizeof sizes);
    sizes[0] = total;
    p->joined = trek_tensor_make(like->ndim, sizes, (trek_dtype)like->dtype, device);
    status = p->joined ? TREK_OK : trek_status_get();
    for (int r = 0; r < p->n && status == TREK_OK; r++) {
        if (!p->of[r].output)
            continue;
        trek_tensor *place = view_rows(p->joined, p->of[r].out_first, p->of[r].out_rows);
        status = place ? trek_tensor_copy_from(place, p->of[r].output->data) : trek_status_get();
        trek_tensor_release(place);
    }
    return status;
}

/* --- backward of the joint node ----------------------------------------------------------------- */

typedef struct backward_call {
    pass *pass;
    trek_var *grad;
    bool retain;
} backward_call;

/* What arrives at the rank's output, n times: reducing takes the mean. */
static trek_var *rank_seed(const backward_call *c, int rank)
{
    const side *of = &c->pass->of[rank];
    trek_device device = trek_ranks_device(c->pass->ranks, rank);
    if (c->grad->data->ndim == 0)
        return trek_mul_scalar(trek_var_from(trek_tensor_to(c->grad->data, device)), c->pass->n * share_of(c->pass, rank));
    trek_tensor *rows = view_rows(c->grad->data, of->out_first, of->out_rows);
    trek_tensor *there = rows ? trek_tensor_to(rows, device) : NULL;
    trek_tensor_release(rows);
    return there ? trek_mul_scalar(trek_var_from(there), c->pass->n) : NULL;
}

static trek_status backward_segment(const backward_call *c, int rank)
{
    trek_var *root = c->pass->of[rank].output, *seed = rank_seed(c, rank);
    if (!seed)
        return trek_status_get();
    return trek_backward_with(root, seed, &(trek_backward_opts){ .retain_graph = c->retain });
}

static trek_status backward_rank(int rank, void *arg)
{
    const backward_call *c = arg;
    const trek_var *output = c->pass->of[rank].output;
    if (!output || !output->requires_grad)
        return TREK_OK;
    trek_scope scope = trek_scope_begin();
    int depth = trek_grad_mode_here.no_grad_depth;
    trek_grad_mode_here.no_grad_depth = 1; /* seeds are numbers, not history */
    trek_status status = scope.depth ? backward_segment(c, rank) : trek_status_get();
    trek_grad_mode_here.no_grad_depth = depth;
    trek_scope_end(scope);
    return status;
}

/* An input's gradient where the input is, no longer n times. */
static trek_status input_gradient(const pass *p, int rank, int k, trek_var **grad)
{
    trek_var *leaf = p->of[rank].inputs[k], *found = leaf ? trek_var_grad(leaf) : NULL;
    if (!found)
        return TREK_OK;
    *grad = trek_mul_scalar(trek_var_from(trek_tensor_to(found->data, p->of[rank].devices[k])), 1.0 / p->n);
    trek_var_zero_grad(leaf); /* a later pass over the same tape begins anew */
    return *grad ? TREK_OK : trek_status_get();
}

static trek_status join_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                 int n_inputs)
{
    (void)n_grads;
    pass *p = trek_function_data(context);
    if (trek_grad_enabled() || trek_backward_captures())
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s through a forward over %d replicas is not supported",
                         trek_grad_enabled() ? "create_graph" : "trek_grad", p->n);
    trek_status status = trek_ranks_run(p->ranks, backward_rank, &(backward_call){ p, grads[0], trek_backward_retains() });
    int place = 0;
    for (int r = 0; r < p->n; r++)
        for (int k = 0; k < p->n_inputs && p->of[r].runs && status == TREK_OK; k++, place++)
            if (place < n_inputs - 1 && trek_needs_grad(context, place)) /* the last one is the anchor */
                status = input_gradient(p, r, k, &input_grads[place]);
    return status;
}

/* The ranks have run already: what they gave becomes the node's. */
static trek_status join_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                int n_outputs)
{
    (void)inputs, (void)n_inputs, (void)n_outputs;
    pass *p = trek_function_data(context);
    trek_tensor *joined = p->joined;
    p->joined = NULL;
    outputs[0] = trek_var_from(joined);
    return outputs[0] ? TREK_OK : trek_status_get();
}

static const trek_function join_function = { "ddp_forward", join_forward, join_backward, pass_free };

/* --- the caller's side ----------------------------------------------------------------------------- */

/* The joined output as a variable; the pass belongs to the tape, or ends here. */
static trek_var *give_output(trek_ddp *ddp, pass *p, trek_var *const *inputs)
{
    bool recorded = false;
    for (int r = 0; r < p->n; r++)
        recorded |= p->of[r].output && p->of[r].output->requires_grad;
    if (!recorded) {
        trek_tensor *joined = p->joined;
        p->joined = NULL;
        pass_free(p);
        return trek_var_from(joined);
    }
    trek_var **list = trek_calloc((size_t)p->n * (size_t)p->n_inputs + 1, sizeof *list);
    if (!list) {
        pass_free(p);
        return NULL;
    }
    int n = 0;
    for (int r = 0; r < p->n; r++)
        for (int k = 0; k < p->n_inputs && p->of[r].runs; k++)
            list[n++] = inputs[r * p->n_inputs + k];
    list[n++] = ddp->anchor;
    trek_var *y = trek_function_apply_one(&join_function, p, list, n);
    trek_free(list);
    return y;
}

static trek_var *forward_all(trek_ddp *ddp, trek_var *const *inputs, int n_inputs)
{
    pass *p = pass_new(ddp, inputs, n_inputs);
    if (!p)
        return NULL;
    trek_ddp_follow_flags(ddp);
    forward_call call = { .ddp = ddp,
                          .pass = p,
                          .inputs = inputs,
                          .no_grad_depth = trek_grad_mode_here.no_grad_depth,
                          .autocast = trek_autocast_dtype(),
                          .rng_step = trek_place_here.rng_step,
                          .rng_draw = trek_place_here.rng_draw };
    trek_status status = trek_ranks_run(ddp->ranks, forward_rank, &call);
    for (int r = 0; r < p->n && status == TREK_OK; r++)
        if (p->of[r].runs && p->of[r].rng_draw > trek_place_here.rng_draw)
            trek_place_here.rng_draw = p->of[r].rng_draw;
    if (status == TREK_OK)
        status = join(ddp, p);
    if (status == TREK_OK)
        return give_output(ddp, p, inputs);
    pass_free(p);
    return NULL;
}

trek_var *trek_ddp_forward_many(trek_ddp *ddp, trek_var *const *inputs, int n_inputs)
{
    if (!ddp || !inputs)
        return trek_fail_missing("ddp_forward", ddp ? "inputs" : "wrapper"), NULL;
    if (n_inputs < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "ddp_forward: %d inputs", n_inputs);
    if (!ddp->ranks)
        return trek_forward_many(ddp->replicas[0].module, inputs, n_inputs);
    if (trek_status_get() != TREK_OK)
        return NULL;
    if (trek_ranks_rank_here(ddp->ranks) >= 0)
        return trek_fail_null(TREK_ERR_STATE, "ddp_forward: a rank inside trek_ranks_run runs its own replica, by trek_forward");
    return forward_all(ddp, inputs, n_inputs);
}

trek_var *trek_ddp_forward(trek_ddp *ddp, trek_var *const *inputs) { return trek_ddp_forward_many(ddp, inputs, 1); }

/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of the model are those of all grains at once; the loss and its gradient are computed for each grain, from
 * a leaf that stands for its rows of the output. */
#include "graph/batch_grains.h"

#include <math.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/observe_internal.h"
#include "nn/module_internal.h"
#include "nn/walk.h"
#include "tensor/trace.h"

/* --- models ----------------------------------------------------------------------------------- */

static bool is_rowwise(const trek_module *module)
{
    const struct trek_module_own *own = module->own;
    bool rowwise = own->klass->rowwise && own->n_buffers == 0 && !own->parametrizations && !own->merged && !own->fp8 &&
        !own->instead;
    for (int k = 0; k < own->n_children && rowwise; k++)
        rowwise = is_rowwise(own->children[k].module);
    return rowwise;
}

const char *trek_graph_grains_obstacle(const trek_graph *graph)
{
    const trek_graph_layout *l = &graph->layout;
    if (graph->graph_loader && graph->graph_loader->by_loss)
        return "the loss runs the forward itself";
    if (graph->fp8)
        return "products have 8 bits";
    if (trek_graph_keeps(graph) || l->n_inputs != 1 || trek_graph_input_is_whole(graph, 0))
        return "the graph has tags, states, loops or several inputs";
    for (int k = 0; k < l->n_nodes; k++)
        if (l->nodes[k].module ? !is_rowwise(l->nodes[k].module) || l->nodes[k].n_inputs != 1 || l->nodes[k].n_results > 0
                               : l->nodes[k].kind != TREK_GRAPH_ADD)
            return l->nodes[k].module ? l->nodes[k].module->own->klass->name : "a merge";
    return NULL;
}

/* --- a batch ---------------------------------------------------------------------------------- */

typedef struct grains_run {
    trek_graph *graph;
    const trek_batch_grains *of;
    const trek_batch_run *run;
    trek_var *y;             /* the output for all grains */
    trek_tensor *grad;       /* its gradient, owned */
    trek_var **outputs;      /* [n] leaves: the rows of each */
    trek_var **losses;       /* [n] */
    double *weights;         /* [n] */
} grains_run;

static trek_tensor *rows_of(trek_tensor *x, int k, int n)
{
    int64_t sizes[TREK_MAX_DIMS], rows = x->sizes[0] / n;
    for (int d = 0; d < x->ndim; d++)
        sizes[d] = d == 0 ? rows : x->sizes[d];
    return trek_tensor_make_view(x, x->data + k * rows * x->strides[0] * (int64_t)trek_dtype_size((trek_dtype)x->dtype), x->ndim,
                                 sizes, x->strides);
}

/* Makes the leaf that stands for a grain's rows of the output; its gradient is their place in the gradient of all. */
static trek_var *make_output(const grains_run *r, int k)
{
    trek_tensor *rows = rows_of(r->y->data, k, r->of->n), *grad = rows ? rows_of(r->grad, k, r->of->n) : NULL;
    trek_var *leaf = grad ? trek_var_from(trek_tensor_retain(rows)) : NULL;
    if (leaf && trek_var_place_grad(leaf, grad) == TREK_OK)
        leaf->requires_grad = true;
    trek_tensor_release(rows);
    trek_tensor_release(grad);
    return leaf;
}

static trek_status forward(grains_run *r, bool *done, int64_t *bytes)
{
    trek_recording before = trek_recording_begin((trek_recording){ .graph = r->graph, .rows = (double)r->of->all->n });
    int64_t start = trek_trace_enter("forward");
    trek_var *input = r->of->all->vars[r->run->graph_loader->fields[0]];
    r->y = trek_graph_forward_here(r->graph, &input, 1);
    trek_trace_end("forward", start, r->of->all->n);
    trek_recording_begin(before);
    if (!r->y)
        return trek_error_status();
    if (trek_trace_counts())
        trek_trace_samples(r->of->all->n);
    *done = r->y->requires_grad && r->y->data->contiguous && trek_backward_divides(r->y, r->of->n, bytes);
    return TREK_OK;
}

/* Computes the loss of a grain, which must depend on the model's output, and on no parameter. */
static trek_status one_loss(grains_run *r, int k, bool *done)
{
    const trek_batch *grain = &r->of->grains[k];
    const trek_graph_loader *loader = r->run->graph_loader;
    trek_status status = r->of->begin(k, r->of->arg);
    if (status != TREK_OK || !(r->outputs[k] = make_output(r, k)))
        return status == TREK_OK ? trek_error_status() : status;
    trek_recording before = trek_recording_begin((trek_recording){ .graph = r->graph, .rows = (double)grain->n });
    trek_var *loss = r->losses[k] = loader->loss(r->graph, r->outputs[k], grain, loader->arg);
    trek_recording_begin(before);
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    double weight = loss ? trek_loss_weight(loss) : 0;
    r->weights[k] = weight = isnan(weight) ? (double)grain->n : weight;
    *done = loss && trek_var_numel(loss) == 1 && weight != 0 && loss->requires_grad &&
        trek_backward_ends_at(loss, r->outputs[k]);
    if (!*done)
        return trek_error_status();
    r->of->sums[k]->weight += weight;
    r->of->sums[k]->loss += weight * trek_tensor_item(loss->data);
    r->of->sums[k]->rows += grain->n;
    if (loader->measures)
        status = trek_observation_add_scalar(r->graph, TREK_MEASURED "loss", loss, weight);
    return status == TREK_OK ? r->of->end(k, r->of->arg) : status;
}

/* Computes the gradient of the output. */
static trek_status differentiate_losses(const grains_run *r)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < r->of->n && status == TREK_OK; k++) {
        double factor = r->run->denominator > 0 ? r->weights[k] / r->run->denominator : 1;
        trek_backward_watch watch = { .leaves = &r->outputs[k], .n_leaves = 1, .only_these = true };
        trek_var *seed, *loss = r->losses[k];
        status = trek_graph_seed(r->run->scaler, factor, &loss, &seed);
        if (status == TREK_OK)
            status = trek_backward_watched(&loss, &seed, 1, NULL, &watch);
    }
    return status;
}

static trek_status backward(const grains_run *r)
{
    int64_t start = trek_trace_enter("backward");
    trek_backward_watch watch = { .leaves = r->run->leaves, .n_leaves = r->run->n_leaves, .only_these = true,
                                  .product = r->run->product, .arg = r->run->arg, .groups = r->of->groups };
    trek_var *y = r->y, *seed = NULL;
    trek_status status = differentiate_losses(r);
    if (status == TREK_OK)
        status = r->of->begin(-1, r->of->arg);
    if (status == TREK_OK)
        seed = trek_var_from(trek_tensor_retain(r->grad));
    if (seed)
        status = trek_backward_watched(&y, &seed, 1, NULL, &watch);
    trek_trace_end("backward", start, r->of->all->n);
    return seed || status != TREK_OK ? status : trek_error_status();
}

static trek_status run_grains(grains_run *r, bool *done, int64_t *bytes)
{
    trek_status status = forward(r, done, bytes);
    if (status == TREK_OK && *done)
        r->grad = trek_tensor_make(r->y->data->ndim, r->y->data->sizes, (trek_dtype)r->y->data->dtype, r->y->data->device);
    if (status == TREK_OK && *done && !r->grad)
        status = trek_error_status();
    for (int k = 0; k < r->of->n && *done && status == TREK_OK; k++)
        status = one_loss(r, k, done);
    return status == TREK_OK && *done ? backward(r) : status;
}

trek_status trek_graph_run_grains(trek_graph *graph, const trek_batch_grains *grains, const trek_batch_run *run, bool *done,
                                  int64_t *bytes)
{
    trek_scope scope = trek_scope_begin();
    if (!scope.depth)
        return trek_error_status();
    grains_run r = { .graph = graph, .of = grains, .run = run };
    size_t n = (size_t)grains->n;
    r.outputs = trek_calloc(n, 2 * sizeof *r.outputs + sizeof *r.weights);
    r.losses = r.outputs ? r.outputs + n : NULL;
    r.weights = r.outputs ? (double *)(void *)(r.losses + n) : NULL;
    trek_status status = r.outputs ? run_grains(&r, done, bytes) : TREK_ERR_MEMORY;
    trek_scope_end(scope);
    trek_tensor_release(r.grad);
    trek_free(r.outputs);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The backward walk visits nodes in reverse order of creation, from the newest root to the oldest node that has a
 * gradient. Each node's rule computes the gradients of its inputs, which are accumulated at older nodes or at leaves.
 *
 * If someone needs to know when a leaf is complete (hooks, a watch) or which nodes come next (offloading), a first
 * pass marks the reachable nodes and counts the uses of each leaf. */
#include <limits.h>
#include <string.h>

#include "autograd/offload_internal.h"
#include "autograd/ops.h"
#include "autograd/partial.h"
#include "autograd/slice_grad.h"
#include "tensor/backend.h"
#include "tensor/debug.h"
#include "tensor/trace.h"

enum { FEW_COMPOSITE = 8 };

typedef struct walk {
    uint32_t id;
    const struct walk *outer;   /* the walk in whose node it runs, or NULL */
    bool create_graph, retain;
    bool counting;              /* uses of leaves were counted */
    bool fresh;                 /* leaves got gradients that settle_leaves has to check */
    bool zeros;                 /* from trek_backward_watch, or from the walk in whose node this one runs */
    int64_t live;               /* nodes of the walk that are not done */
    trek_node *newest;
    const trek_backward_watch *watch;
    trek_var *const *inputs;    /* for trek_grad: gradients go to captured[] and nowhere else */
    trek_var **captured;        /* owned references */
    const trek_node *of; /* the walk serves this node's rule through its composite: it ends at older nodes, whose gradients
                          * belong to the outer walk; captured[] is passed on and need not be memory of its own */
    int n_inputs;
    int made;                   /* results made from here on in the scope belong to the current gradient's node, and nobody
                                 * else uses them; INT_MAX if others may */
} walk;

static _Atomic(uint32_t) last_walk; /* across all threads, since threads may share leaves */
static _Thread_local walk *walking;

/* --- adding up ------------------------------------------------------------------- */

static trek_status add_in_place(trek_tensor *to, trek_tensor *grad)
{
    trek_tensor *in[2] = { to, grad };
    trek_op_call call = { .op = &trek_ops[TREK_OP_add], .n_inputs = 2, .inputs = in, .n_outputs = 1, .outputs = { to } };
    return trek_op_run(&call);
}

/* Returns a reference to a gradient. If the current node's work has made it last, this is the scope's own reference. */
static inline trek_var *take_over(trek_var *grad)
{
    int last = trek_scopes.count - 1;
    if (last >= walking->made && trek_scopes.values[last] == grad && !trek_debug)
        trek_scopes.count = last;
    else
        trek_ref_take(&grad->refs);
    return grad;
}

/* Computes *slot += grad; slot owns its reference. */
static trek_status add_to(trek_var **slot, trek_var *grad, bool create_graph)
{
    if (!*slot) {
        *slot = take_over(grad);
        return TREK_OK;
    }
    if (!create_graph && trek_grad_is_alone(*slot) && (*slot)->data->dtype == grad->data->dtype)
        return add_in_place((*slot)->data, grad->data);
    trek_var *sum = trek_add(*slot, grad);
    if (!sum)
        return trek_error_status();
    trek_var_drop(*slot);
    *slot = take_over(sum);
    return TREK_OK;
}

/* Handles a leaf reached by a walk of zeros: it has a gradient, to which nothing is added. */
static trek_status give_zeros(trek_var *var, trek_leaf *leaf)
{
    if (leaf->has_grad)
        return TREK_OK;
    const trek_tensor *x = leaf->grad_in_arena ? leaf->grad->data : var->data;
    trek_tensor *zeros = trek_tensor_zeros(trek_tensor_shape(x), (trek_dtype)x->dtype, x->device);
    trek_var *grad = zeros && !leaf->grad_in_arena ? trek_var_new(zeros, false) : NULL;
    trek_status status = !zeros || (!grad && !leaf->grad_in_arena) ? trek_error_status()
        : leaf->grad_in_arena ? trek_tensor_copy_from(leaf->grad->data, zeros) : TREK_OK;
    trek_tensor_release(zeros);
    if (grad) {
        trek_var_release(leaf->grad);
        leaf->grad = grad;
    }
    leaf->has_grad = status == TREK_OK;
    return status;
}

static trek_status add_to_leaf(trek_var *var, trek_var *grad, bool create_graph)
{
    trek_leaf *leaf = trek_var_leaf(var);
    if (!leaf)
        return trek_error_status();
    if (walking->zeros)
        return give_zeros(var, leaf);
    trek_status status;
    if (leaf->grad_in_arena) {
        trek_tensor *place = leaf->grad->data;
        status = leaf->has_grad ? add_in_place(place, grad->data) : trek_tensor_copy_from(place, grad->data);
    } else {
        if (!leaf->has_grad) { /* a sink that nothing was written to */
            trek_var_release(leaf->grad);
            leaf->grad = NULL;
        }
        leaf->fresh |= !leaf->grad;
        walking->fresh |= leaf->fresh;
        status = add_to(&leaf->grad, grad, create_graph);
    }
    leaf->has_grad |= status == TREK_OK;
    return status;
}

/* Returns whether the whole memory belongs to this gradient alone, so that its owner may write to it. */
static bool is_own(const trek_var *grad)
{
    const trek_tensor *t = grad->data;
    const trek_storage *s = t->storage;
    bool spread = true; /* no two elements share a place */
    for (int d = 0; d < t->ndim; d++)
        spread = spread && (t->strides[d] != 0 || t->sizes[d] <= 1);
    return spread && atomic_load_explicit(&grad->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&s->refs, memory_order_acquire) == 1 && !s->parent && !s->release &&
           s->bytes == (size_t)t->numel * trek_item_size[t->dtype];
}

/* Gradients for the caller get memory of their own. Rules pass on what they received, also as views and to several
 * inputs. Nothing is copied if the walk, which has released it, was its only other holder. */
static trek_status make_own(trek_var **grad)
{
    if (!*grad || is_own(*grad))
        return TREK_OK;
    trek_var *copy = trek_apply_copy(*grad);
    if (!copy)
        return trek_error_status();
    trek_var_release(*grad);
    *grad = trek_var_retain(copy);
    return TREK_OK;
}

static trek_status settle_leaf(trek_var *var)
{
    trek_leaf *leaf = var ? var->leaf : NULL;
    if (!leaf || !leaf->fresh)
        return TREK_OK;
    leaf->fresh = false;
    return make_own(&leaf->grad);
}

/* Settles the gradients that a node gave to leaves, after its scope has ended and its own gradient is gone. */
static trek_status settle_leaves(const trek_node *node)
{
    trek_status status = TREK_OK;
    for (int k = 0; status == TREK_OK && k < node->n_inputs; k++)
        status = settle_leaf(node->edges[k].leaf);
    return status;
}

/* Adapts the gradient to the input as the caller gave it: sums broadcast dimensions and casts the dtype. */
static trek_var *fit(const trek_edge *edge, trek_var *grad)
{
    const trek_tensor *g = grad->data;
    bool same = g->ndim == edge->ndim;
    for (int d = 0; same && d < g->ndim; d++)
        same = g->sizes[d] == edge->sizes[d];
    if (!same) {
        trek_dims_list dims = { 0 };
        int added = g->ndim - edge->ndim;
        if (added < 0) {
            trek_fail(TREK_ERR_SHAPE, "backward: a gradient with %d dimensions for an input with %d; must be equal", g->ndim,
                      edge->ndim);
            return NULL;
        }
        for (int d = 0; d < g->ndim; d++)
            if (d < added || (edge->sizes[d - added] == 1 && g->sizes[d] != 1))
                dims.sizes[dims.ndim++] = d;
        if (dims.ndim > 0)
            grad = trek_sum(grad, dims, true);
        if (added > 0)
            grad = trek_reshape(grad, trek_shape_make(edge->sizes, edge->ndim));
    }
    bool widens = edge->leaf && edge->leaf->leaf && edge->leaf->leaf->grad_in_arena; /* accumulation there casts on its own */
    if (grad && grad->data->dtype != edge->dtype && !(widens && !walking->inputs))
        grad = trek_apply_convert(grad, (trek_dtype)edge->dtype);
    if (grad && edge->leaf && !trek_device_equal(grad->data->device, edge->leaf->data->device)) /* it is on another CPU device */
        grad = trek_to(grad, edge->leaf->data->device);
    return grad;
}

/* Adds the node to the walk. The walk holds it through the reference of the edge by which it came, which the edge
 * leaves to the walk (trek_node_free_saved), or from the start. */
static inline trek_status join(walk *w, trek_node *node)
{
    if (node->walk == w->id)
        return TREK_OK;
    if (node->walk) /* its gradients belong to that walk */
        return trek_fail(TREK_ERR_STATE, "backward: called within a pass, for a part of the tape that the pass itself needs");
    node->walk = w->id;
    w->live++;
    return TREK_OK;
}

static inline void leave(walk *w, trek_node *node)
{
    node->walk = 0;
    w->live--;
}

/* Called after leave: the node may be freed. */
static inline void let_pass(trek_node *node)
{
    if (!node->held)
        return;
    node->held = false;
    trek_node_release(node);
}

static trek_status capture(walk *w, trek_var *leaf, trek_node *node, int output, trek_var *grad)
{
    for (int k = 0; k < w->n_inputs; k++) {
        const trek_var *input = w->inputs[k];
        bool hit = leaf ? input == leaf : input->node == node && input->output == output;
        trek_status status = hit ? add_to(&w->captured[k], grad, w->create_graph) : TREK_OK;
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

static trek_status give_to_node(walk *w, trek_node *node, int output, trek_var *grad)
{
    if (w->of && node->serial <= w->of->serial)
        return capture(w, NULL, node, output, grad);
    if (join(w, node) != TREK_OK || (output == 0 && node->partial && trek_partial_complete(node) != TREK_OK))
        return trek_error_status();
    if (output == 0)
        return add_to(&node->grad, grad, w->create_graph);
    if (!node->more_grads && !(node->more_grads = trek_calloc((size_t)node->n_outputs, sizeof *node->more_grads)))
        return trek_error_status();
    return add_to(&node->more_grads[output], grad, w->create_graph);
}

static bool is_watched(const walk *w, const trek_var *leaf)
{
    return !w->watch || !w->watch->only_these || (leaf->leaf && leaf->leaf->watch == w->id);
}

static trek_status give(walk *w, trek_edge *edge, trek_var *grad)
{
    if (!edge->node && !edge->leaf)
        return TREK_OK;
    grad = fit(edge, grad);
    if (!grad)
        return trek_error_status();
    if (edge->node)
        return give_to_node(w, edge->node, edge->output, grad);
    if (w->inputs)
        return capture(w, edge->leaf, NULL, 0, grad);
    return is_watched(w, edge->leaf) ? add_to_leaf(edge->leaf, grad, w->create_graph) : TREK_OK;
}

/* --- complete leaves ------------------------------------------------------------------ */

/* Runs the hooks on output `output` of a node (0 for a leaf). */
static trek_status run_hooks(trek_hook *hooks, int output, trek_var *var, trek_var **grad)
{
    for (trek_hook *hook = hooks, *next; hook; hook = next) {
        next = hook->next;
        if (hook->output != output)
            continue;
        trek_var *replacement = hook->fn(var, *grad, hook->arg);
        if (trek_error_status() != TREK_OK)
            return trek_error_status();
        if (replacement && replacement != *grad) {
            trek_var_retain(replacement);
            trek_var_release(*grad);
            *grad = replacement;
        }
    }
    return TREK_OK;
}

static trek_status run_leaf_hooks(const walk *w, trek_var *var)
{
    trek_leaf *leaf = var->leaf;
    if (!leaf->hooks || !leaf->has_grad || w->inputs || !is_watched(w, var))
        return TREK_OK;
    trek_var *grad = trek_var_retain(leaf->grad), *given = grad;
    trek_status status = run_hooks(leaf->hooks, 0, var, &grad);
    if (status == TREK_OK && grad != given)
        status = trek_var_set_grad(var, grad);
    trek_var_release(grad);
    return status;
}

/* The watcher may send the gradient as the hooks leave it. */
static trek_status leaf_complete(walk *w, trek_var *var)
{
    trek_status status = run_leaf_hooks(w, var);
    if (status == TREK_OK && w->watch && var->leaf->watch == w->id && w->watch->complete)
        w->watch->complete(var->leaf->watch_index, w->watch->arg);
    return status;
}

static trek_status pass_leaves(walk *w, trek_node *node)
{
    trek_status status = TREK_OK;
    for (int k = 0; status == TREK_OK && k < node->n_inputs; k++) {
        trek_var *leaf = node->edges[k].leaf;
        if (leaf && leaf->leaf && leaf->leaf->walk == w->id && --leaf->leaf->pending == 0)
            status = leaf_complete(w, leaf);
    }
    return status;
}

/* Returns whether an outer walk still has uses of the leaf. It then reports the leaf as complete, with what this walk
 * adds. A watcher of this walk is notified by this walk nevertheless. */
static bool is_awaited(const walk *w, const trek_leaf *leaf)
{
    if (w->watch && w->watch->complete && leaf->watch == w->id)
        return false;
    for (const walk *outer = w->outer; outer; outer = outer->outer)
        if (leaf->walk == outer->id)
            return leaf->pending > 0 && leaf->due;
    return false;
}

static trek_status count_use(const walk *w, trek_var *var)
{
    trek_leaf *leaf = trek_var_leaf(var);
    if (!leaf)
        return trek_error_status();
    if (leaf->walk == w->id) {
        leaf->pending++;
    } else if (!is_awaited(w, leaf)) {
        leaf->walk = w->id;
        leaf->pending = 1;
        leaf->due = is_watched(w, var);
    }
    return TREK_OK;
}

/* The first pass: marks what can be reached and counts the uses of leaves. It does not count where leaves' gradients
 * are not accumulated: trek_grad, which also runs in nodes of a walk that counts them. */
static trek_status count_uses(walk *w)
{
    w->counting = !w->inputs;
    int64_t visited = 0;
    for (trek_node *node = w->newest; node && visited < w->live; node = node->prev) {
        if (node->walk != w->id)
            continue;
        visited++;
        for (int k = 0; k < node->n_inputs; k++) {
            trek_edge *edge = &node->edges[k];
            trek_status status = edge->node ? join(w, edge->node) : TREK_OK;
            if (status == TREK_OK && edge->leaf && w->counting)
                status = count_use(w, edge->leaf);
            if (status != TREK_OK)
                return status;
        }
    }
    const trek_backward_watch *watch = w->watch;
    for (int k = 0; watch && watch->complete && k < watch->n_leaves; k++)
        if (watch->leaves[k]->leaf->walk != w->id)
            watch->complete(k, watch->arg); /* unused */
    return TREK_OK;
}

/* --- one node ---------------------------------------------------------------------------- */

/* Clears the gradients and returns which inputs need one. */
static inline uint32_t begin_grads(const walk *w, const trek_node *node, trek_var **grads)
{
    const trek_edge *edge = node->edges;
    uint32_t needs = 0;
    for (int k = 0, n = node->n_inputs; k < n; k++, edge++) {
        grads[k] = NULL;
        if (edge->node || (edge->leaf && is_watched(w, edge->leaf)))
            needs |= 1u << (k < 31 ? k : 31);
    }
    return needs;
}

/* Returns input k for the composite: the saved value. If it was not saved, its value does not matter for the wanted
 * derivatives (a bias, a factor of a bilinear op), and zeros take its place on the tape. */
static trek_var *composite_input(trek_backward_call *b, int k)
{
    trek_node *node = b->node;
    trek_edge *edge = &node->edges[k];
    trek_var *saved = trek_rule_input(b, k);
    if (saved || trek_error_status() != TREK_OK)
        return saved;
    if (edge->leaf)
        return edge->leaf;
    if (edge->dtype == TREK_DTYPE_COUNT)
        return NULL;
    trek_tensor *zeros = trek_tensor_zeros(trek_rule_shape(b, k), (trek_dtype)edge->dtype, b->grad->data->device);
    trek_var *var = zeros ? trek_var_from(zeros) : NULL;
    if (!var || !edge->node)
        return var;
    trek_ref_take(&edge->node->refs);
    var->node = edge->node;
    var->output = edge->output;
    var->requires_grad = true;
    return var;
}

static trek_status captured_grads(trek_var *const *outputs, int n_outputs, trek_var *const *inputs, int n_inputs,
                                  trek_var *const *seeds, const trek_backward_opts *opts, const trek_node *of, trek_var **grads);

trek_status trek_rule_composite(trek_backward_call *b)
{
    trek_node *node = b->node;
    trek_var *inputs[FEW_COMPOSITE] = { NULL }, *wanted[FEW_COMPOSITE], *grads[FEW_COMPOSITE] = { NULL };
    int places[FEW_COMPOSITE], n_wanted = 0;
    for (int k = 0; k < node->n_inputs; k++) {
        inputs[k] = composite_input(b, k);
        if (!inputs[k] && trek_error_status() != TREK_OK)
            return trek_error_status();
        if (inputs[k] && trek_rule_needs(b, k)) {
            places[n_wanted] = k;
            wanted[n_wanted++] = inputs[k];
        }
    }
    trek_var *outputs[2], *seeds[2] = { b->grad, b->more_grads ? b->more_grads[1] : NULL };
    int n_outputs = 0;
    for (int k = 0; k < 2; k++) {
        trek_attrs attrs = { 0 };
        if (!seeds[k])
            continue;
        if (node->attrs)
            attrs = *node->attrs;
        if (k > 0)
            attrs.i[TREK_COMPOSITE_OUTPUT] = k;
        if (!(outputs[n_outputs] = trek_composite_rules[node->op->id](node->op, &attrs, inputs, node->n_inputs)))
            return trek_fail_missing(node->op->name, "input of its composite");
        if (outputs[n_outputs]->requires_grad) /* otherwise it is a constant, as with no steps */
            seeds[n_outputs++] = seeds[k];
    }
    trek_status status = n_outputs == 0 ? TREK_OK : captured_grads(outputs, n_outputs, wanted, n_wanted, seeds,
                                                                   &(trek_backward_opts){ .create_graph = true }, node, grads);
    for (int k = 0; status == TREK_OK && k < n_wanted; k++)
        b->grads[places[k]] = grads[k];
    return status;
}

/* Variables for saved tensors, which the node holds, are in saved[]. */
static inline trek_status run_rule(walk *w, trek_node *node, uint32_t needs, trek_var **grads)
{
    trek_var saved[TREK_SAVED_VARS];
    trek_backward_call b = { .node = node, .op = node->op, .attrs = node->attrs, .grad = node->grad, .n_inputs = node->n_inputs,
                             .more_grads = node->more_grads, .create_graph = w->create_graph, .needs = needs,
                             .grads = grads, .saved = saved };
    if (needs == 0)
        return TREK_OK;
    trek_status status = trek_backward_rules[node->op->id](&b);
    for (int k = 0, n = node->n_inputs; status == TREK_OK && k < n; k++) /* gradients passed on may outlive the frame */
        if ((uintptr_t)grads[k] - (uintptr_t)saved < sizeof saved && !(grads[k] = trek_var_constant(grads[k]->data)))
            status = trek_error_status();
    return status;
}

static const char *name_of(const trek_node *node) { return node->op ? node->op->name : node->context->function->name; }

TREK_SELDOM static int begin_frame(const trek_node *node) { return trek_trace_begin_node(name_of(node), node->path); }

static trek_status fail_node(const trek_node *node, trek_status status)
{
    return trek_fail_after(status, "backward: that of %s failed", name_of(node));
}

static trek_status node_hooks(trek_node *node)
{
    trek_status status = node->hooks && node->grad ? run_hooks(node->hooks, 0, NULL, &node->grad) : TREK_OK;
    for (int k = 1; status == TREK_OK && node->hooks && node->more_grads && k < node->n_outputs; k++)
        if (node->more_grads[k])
            status = run_hooks(node->hooks, k, NULL, &node->more_grads[k]);
    return status;
}

/* Returns whether the gradient of input k is also given to a later input. */
static inline bool given_again(trek_var *const *grads, int k, int n)
{
    for (int l = k + 1; l < n; l++)
        if (grads[l] == grads[k])
            return true;
    return false;
}

/* Runs the node's hooks on its gradients, and captures those that the caller requested. */
TREK_SELDOM static trek_status show_grads(walk *w, trek_node *node)
{
    trek_status status = node_hooks(node);
    if (status == TREK_OK && w->inputs && node->grad)
        status = capture(w, NULL, node, 0, node->grad);
    for (int k = 1; status == TREK_OK && w->inputs && node->more_grads && k < node->n_outputs; k++)
        status = node->more_grads[k] ? capture(w, NULL, node, k, node->more_grads[k]) : TREK_OK;
    return status;
}

/* Passes to the inputs what the rule has made since the scope had `made` results. */
static inline trek_status hand_on(walk *w, trek_node *node, trek_var *const *grads, int made)
{
    trek_edge *edge = node->edges;
    trek_status status = TREK_OK;
    for (int k = 0, n = node->n_inputs; status == TREK_OK && k < n; k++, edge++) {
        if (!grads[k])
            continue;
        w->made = given_again(grads, k, n) ? INT_MAX : made;
        status = give(w, edge, grads[k]);
    }
    w->made = INT_MAX;
    return status;
}

static trek_status run_node(walk *w, trek_node *node)
{
    trek_var *few[8], **grads = few;
    if (node->freed)
        return trek_fail(TREK_ERR_STATE, "backward: an earlier pass freed this part of the tape; use retain_graph in that pass");
    if (node->n_inputs > 8 && !(grads = trek_block_alloc((size_t)node->n_inputs * sizeof *grads)))
        return trek_error_status();
    uint32_t needs = begin_grads(w, node, grads);
    int frame = trek_trace_records() ? begin_frame(node) : 0;
    trek_scope_part scope = trek_scope_part_begin(); /* the walk's */
    trek_status status = node->partial ? trek_partial_complete(node) : TREK_OK;
    if (status == TREK_OK && (node->hooks || w->inputs))
        status = show_grads(w, node);
    if (status == TREK_OK)
        status = node->op ? run_rule(w, node, needs, grads) : trek_function_backward(node, w->create_graph, needs, grads);
    if (status == TREK_OK)
        status = hand_on(w, node, grads, scope.count);
    if (status != TREK_OK)
        fail_node(node, status);
    trek_scope_part_end(scope);
    if (grads != few)
        trek_block_free(grads);
    if (frame)
        trek_trace_end_frame(frame);
    return status;
}

static void drop_grads(trek_node *node)
{
    trek_var *grad = node->grad;
    node->grad = NULL;
    if (grad)
        trek_var_drop(grad);
    if (node->partial)
        trek_partial_free(node);
    if (!node->more_grads)
        return;
    for (int k = 1; k < node->n_outputs; k++)
        trek_var_release(node->more_grads[k]);
    trek_free(node->more_grads);
    node->more_grads = NULL;
}

/* --- the walk ------------------------------------------------------------------------------- */

/* Processes a node that takes part in the walk, and releases it. */
static trek_status visit(walk *w, trek_node *node, trek_status status)
{
    leave(w, node);
    bool runs = status == TREK_OK && (node->grad || node->more_grads), offloaded = runs && trek_offload_has(node->tape);
    if (offloaded)
        trek_offload_bring_ahead(node, w->id);
    if (runs)
        status = run_node(w, node);
    drop_grads(node);
    if (runs && w->fresh && status == TREK_OK) {
        w->fresh = false;
        status = settle_leaves(node);
    }
    if (w->counting && status == TREK_OK)
        status = pass_leaves(w, node);
    if (offloaded && w->retain)
        trek_offload_leave_again(node);
    bool done = runs && status == TREK_OK && !w->retain;
    if (done)
        trek_node_free_saved(node);
    return status;
}

static trek_status run_walk(walk *w)
{
    bool looks_ahead = trek_tape_here && trek_offload_has(trek_tape_here);
    bool counts = (w->watch && w->watch->complete) || looks_ahead ||
        atomic_load_explicit(&trek_hooks_alive, memory_order_relaxed) > 0;
    /* a composite's walk ends at its node: the outer walk counts what lies behind it, and the leaves */
    trek_status status = counts && !w->of ? count_uses(w) : TREK_OK;
    trek_node *node = w->newest;
    bool held = false; /* the walk holds a reference of its own to node */
    while (node && w->live > 0) {
        bool taken = node->walk == w->id;
        if (taken)
            status = visit(w, node, status);
        trek_node *prev = node->prev; /* read only now, because older nodes may have been freed */
        bool hold = prev && status != TREK_OK; /* a node that keeps its edges may free older nodes with it */
        if (hold)
            trek_ref_take(&prev->refs);
        if (taken)
            let_pass(node);
        if (held)
            trek_node_release(node);
        held = hold;
        node = prev;
    }
    if (held && node)
        trek_node_release(node);
    return status;
}

static trek_status check_root(trek_var *root, trek_var *seed)
{
    if (!root)
        return trek_fail_missing("backward", "variable");
    if (trek_gone(root, "backward", "the variable") || trek_gone(seed, "backward", "the seed"))
        return TREK_ERR_STATE;
    if (!root->requires_grad)
        return trek_fail(TREK_ERR_STATE, "backward: the variable depends on nothing that needs a gradient");
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!seed && root->data->numel != 1)
        return trek_fail(TREK_ERR_SHAPE,
                         "backward: variable: %s; must be a scalar: trek_mean or trek_sum makes one (trek_backward_with takes a "
                         "seed of its shape)",
                         trek_tensor_shape_text(root->data, a));
    if (seed && !trek_same_sizes(root->data, seed->data))
        return trek_fail(TREK_ERR_SHAPE, "backward: seed: %s; must have the variable's shape, %s",
                         trek_tensor_shape_text(seed->data, b), trek_tensor_shape_text(root->data, a));
    if (root->node && root->node->tape != trek_tape_here)
        return trek_fail(TREK_ERR_STATE, "backward: the variable was recorded on another thread's tape");
    if (root->node && root->node->freed)
        return trek_fail(TREK_ERR_STATE, "backward: an earlier pass freed this part of the tape; use retain_graph in that pass");
    return TREK_OK;
}

static trek_status seed_root(walk *w, trek_var *root, trek_var *seed)
{
    trek_status status = check_root(root, seed);
    if (status != TREK_OK)
        return status;
    if (!seed) {
        trek_tensor *one = trek_tensor_full(trek_tensor_shape(root->data), 1, (trek_dtype)root->data->dtype, root->data->device);
        seed = one ? trek_var_from(one) : NULL;
    } else if (seed->data->dtype != root->data->dtype) {
        seed = trek_apply_convert(seed, (trek_dtype)root->data->dtype);
    }
    if (!seed)
        return trek_error_status();
    if (!root->node) {
        if (w->inputs)
            return capture(w, root, NULL, 0, seed);
        return is_watched(w, root) ? add_to_leaf(root, seed, w->create_graph) : TREK_OK;
    }
    if (!w->newest || root->node->serial > w->newest->serial)
        w->newest = root->node;
    status = give_to_node(w, root->node, root->output, seed);
    if (root->node->walk == w->id && !root->node->held) {
        trek_ref_take(&root->node->refs);
        root->node->held = true;
    }
    return status;
}

/* Clears the gradients that a failed pass left on nodes. */
static void clear_walk(walk *w)
{
    for (trek_node *node = w->newest, *prev; node && w->live > 0; node = prev) {
        prev = node->prev;
        if (node->walk != w->id)
            continue;
        leave(w, node);
        drop_grads(node);
        prev = node->prev;
        let_pass(node);
    }
}

static trek_status mark_watched(walk *w)
{
    for (int k = 0; w->watch && k < w->watch->n_leaves; k++) {
        trek_leaf *leaf = trek_var_leaf(w->watch->leaves[k]);
        if (!leaf)
            return trek_error_status();
        leaf->watch = w->id;
        leaf->watch_index = k;
    }
    return TREK_OK;
}

static trek_status backward(walk *w, trek_var *const *roots, trek_var *const *seeds, int n, const trek_backward_opts *opts)
{
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    do {
        w->id = 1 + atomic_fetch_add_explicit(&last_walk, 1, memory_order_relaxed);
    } while (w->id == 0);
    w->outer = walking;
    w->zeros = (w->watch && w->watch->zeros) || (walking && walking->zeros);
    w->made = INT_MAX;
    w->create_graph = opts && opts->create_graph;
    w->retain = w->create_graph || (opts && opts->retain_graph);
    trek_scope scope = trek_scope_begin();
    if (!scope.depth)
        return trek_error_status();
    trek_grad_mode mode = trek_grad_mode_here;
    trek_grad_mode_here = (trek_grad_mode){ .no_grad_depth = w->create_graph ? 0 : 1, .autocast = TREK_F32 };
    walk *outer = walking;
    trek_tape *tape = trek_tape_here;
    walking = w;
    if (tape)
        tape->walks++;
    trek_status status = mark_watched(w);
    for (int k = 0; status == TREK_OK && k < n; k++)
        status = seed_root(w, roots[k], seeds ? seeds[k] : NULL);
    if (status == TREK_OK)
        status = run_walk(w);
    clear_walk(w);
    for (int k = 0; status == TREK_OK && k < n; k++)
        status = settle_leaf(roots[k]);
    for (int k = 0; status == TREK_OK && !w->of && k < w->n_inputs; k++)
        status = make_own(&w->captured[k]);
    walking = outer;
    if (tape)
        tape->walks--;
    if (outer && w->watch) /* leaves watched by both carry this walk's number */
        mark_watched(outer);
    trek_grad_mode_here = mode;
    trek_scope_end(scope);
    return status;
}

trek_status trek_backward(trek_var *var) { return trek_backward_with(var, NULL, NULL); }

trek_status trek_backward_with(trek_var *var, trek_var *seed, const trek_backward_opts *opts)
{
    walk w = { 0 };
    return backward(&w, &var, &seed, 1, opts);
}

trek_status trek_backward_watched(trek_var *const *roots, trek_var *const *seeds, int n, const trek_backward_opts *opts,
                                  const trek_backward_watch *watch)
{
    walk w = { .watch = watch };
    return backward(&w, roots, seeds, n, opts);
}

static trek_status captured_grads(trek_var *const *outputs, int n_outputs, trek_var *const *inputs, int n_inputs,
                                  trek_var *const *seeds, const trek_backward_opts *opts, const trek_node *of, trek_var **grads)
{
    if (n_inputs < 0 || n_outputs < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "grad: %d outputs and %d inputs; must be at least 1 of each", n_outputs, n_inputs);
    if ((n_outputs > 0 && !outputs) || (n_inputs > 0 && (!inputs || !grads)))
        return trek_fail_missing("grad", !grads ? "grads" : !inputs ? "inputs"
                                 : "list of outputs");
    for (int k = 0; k < n_inputs; k++) {
        if (!inputs[k])
            return trek_fail_missing("grad", "input");
        grads[k] = NULL;
    }
    trek_var **captured = trek_calloc((size_t)n_inputs + 1, sizeof *captured);
    if (!captured)
        return trek_error_status();
    walk w = { .inputs = inputs, .n_inputs = n_inputs, .captured = captured, .of = of };
    trek_status status = backward(&w, outputs, seeds, n_outputs, opts);
    for (int k = 0; k < n_inputs; k++) {
        if (status == TREK_OK && captured[k] && (status = trek_scope_push(captured[k], "grad")) == TREK_OK)
            grads[k] = captured[k];
        else
            trek_var_release(captured[k]);
    }
    trek_free(captured);
    return status;
}

trek_status trek_grad(trek_var *const *outputs, int n_outputs, trek_var *const *inputs, int n_inputs, trek_var *const *seeds,
                      const trek_backward_opts *opts, trek_var **grads)
{
    return captured_grads(outputs, n_outputs, inputs, n_inputs, seeds, opts, NULL, grads);
}

/* --- what rules see -------------------------------------------------------------------------- */

/* Makes a variable for a saved tensor, in the rule's scope. It is connected to the tape if the rule is recorded. */
static trek_var *saved_var(trek_backward_call *b, const trek_saved_tensor *s)
{
    trek_node *node = b->node;
    if (s->tensor->storage->version != s->version) {
        char text[TREK_SHAPE_TEXT];
        return trek_fail_null(TREK_ERR_STATE, "backward of %s: %s %d, %s, was overwritten after it was saved; write to a copy",
                              node->op->name, s->is_output ? "output" : "input", s->index,
                              trek_tensor_shape_text(s->tensor, text));
    }
    if (s->offloads && trek_offload_bring(node->tape, s->tensor) != TREK_OK)
        return NULL;
    if (!b->create_graph && b->n_saved < TREK_SAVED_VARS) {
        trek_var *var = &b->saved[b->n_saved++];
        *var = (trek_var){ .data = s->tensor };
        atomic_init(&var->refs, 1);
        return var;
    }
    if (b->create_graph && !s->is_output && node->edges[s->index].leaf)
        return node->edges[s->index].leaf;
    trek_var *var = trek_var_constant(s->tensor);
    trek_node *from = !b->create_graph ? NULL : !s->is_output ? node->edges[s->index].node : s->index < node->n_outputs ? node
        : NULL;
    if (!var || !from)
        return var;
    trek_ref_take(&from->refs);
    var->node = from;
    var->output = s->is_output ? s->index : node->edges[s->index].output;
    var->requires_grad = true;
    return var;
}

static trek_var *find_saved(trek_backward_call *b, int index, bool is_output)
{
    for (int k = 0; k < b->node->n_saved; k++) {
        const trek_saved_tensor *s = &b->node->saved[k];
        if (s->index == index && s->is_output == is_output)
            return saved_var(b, s);
    }
    return NULL;
}

trek_var *trek_rule_input(trek_backward_call *b, int k) { return find_saved(b, k, false); }
trek_var *trek_rule_output(trek_backward_call *b, int k) { return find_saved(b, k, true); }

trek_shape trek_rule_shape(const trek_backward_call *b, int k)
{
    return trek_shape_make(b->node->edges[k].sizes, b->node->edges[k].ndim);
}

/* Returns the tensor of a leaf's gradient that a rule may write into, or NULL. It has the given dtype: the leaf's, or
 * f32 if an arena keeps a 16-bit leaf's gradient. */
static trek_tensor *sink_of(trek_var *var, trek_dtype dtype, bool *overwrite)
{
    if (walking->inputs || walking->zeros || !is_watched(walking, var))
        return NULL;
    trek_leaf *leaf = trek_var_leaf(var);
    if (!leaf || (!leaf->grad && var->data->dtype != dtype))
        return NULL;
    if (!leaf->grad) {
        trek_tensor *made = trek_tensor_make(var->data->ndim, var->data->sizes, (trek_dtype)var->data->dtype, var->data->device);
        leaf->grad = made ? trek_var_new(made, false) : NULL;
        trek_tensor_release(made);
        leaf->has_grad = false;
    }
    if (!leaf->grad || !leaf->grad->data->contiguous || leaf->grad->data->dtype != dtype ||
        (!leaf->grad_in_arena && leaf->has_grad && !trek_grad_is_alone(leaf->grad)))
        return NULL;
    *overwrite = !leaf->has_grad;
    return leaf->grad->data;
}

trek_status trek_walk_give(trek_backward_call *b, int k, trek_var *grad)
{
    return give_to_node(walking, b->node->edges[k].node, 0, grad);
}

trek_tensor *trek_rule_sink(trek_backward_call *b, int k, bool *overwrite)
{
    trek_var *var = b->node->edges[k].leaf;
    trek_dtype dtype = (trek_dtype)b->grad->data->dtype;
    return var && var->data->dtype == dtype && !b->create_graph ? sink_of(var, dtype, overwrite) : NULL;
}

/* Returns the leaf whose cast is input k, if nobody watches the cast; otherwise NULL. */
static trek_var *leaf_of_cast(const trek_backward_call *b, int k)
{
    const trek_node *node = b->node->edges[k].node;
    return node && node->op && node->op->id == TREK_OP_convert && !node->hooks && !node->freed ? node->edges[0].leaf : NULL;
}

trek_tensor *trek_rule_sink_wide(trek_backward_call *b, int k, bool *overwrite)
{
    trek_var *leaf = b->node->edges[k].leaf, *var = leaf ? leaf : leaf_of_cast(b, k);
    bool fits = var && !b->create_graph &&
                trek_device_equal(var->data->device, b->grad->data->device);
    return fits ? sink_of(var, TREK_F32, overwrite) : NULL;
}

void trek_rule_sunk(trek_backward_call *b, int k)
{
    trek_var *var = b->node->edges[k].leaf;
    (var ? var : leaf_of_cast(b, k))->leaf->has_grad = true;
}

bool trek_backward_retains(void) { return walking && walking->retain; }
bool trek_backward_captures(void) { return walking && walking->inputs; }
bool trek_backward_captures_leaf(const trek_var *leaf)
{
    for (int k = 0; walking && k < walking->n_inputs; k++)
        if (walking->inputs[k] == leaf)
            return true;
    return false;
}
trek_status trek_backward_capture_leaf(trek_var *leaf, trek_var *grad) { return capture(walking, leaf, NULL, 0, grad); }
bool trek_backward_gives_zeros(void) { return walking && walking->zeros; }
bool trek_backward_passes_last(const trek_var *leaf)
{
    return walking && walking->counting && leaf->leaf && leaf->leaf->walk == walking->id && leaf->leaf->pending == 1;
}
bool trek_backward_reaches(const trek_var *leaf) { return !walking || is_watched(walking, leaf); }

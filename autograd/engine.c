/* SPDX-License-Identifier: Apache-2.0 */
/* The backward walk visits nodes in reverse order of creation, from the newest root to the oldest node that has a
 * gradient. Each node's rule computes the gradients of its inputs, which are accumulated at older nodes or at leaves.
 *
 * If someone needs to know when a leaf is complete (hooks, a watch) or which nodes come next (offloading), a first
 * pass marks the reachable nodes and counts the uses of each leaf. */
#include <limits.h>
#include <string.h>

#include "autograd/engine_internal.h"
#include "autograd/offload_internal.h"
#include "autograd/ops.h"
#include "autograd/partial.h"
#include "autograd/slice_grad.h"
#include "tensor/backend.h"
#include "tensor/debug.h"
#include "tensor/trace.h"

enum { FEW_COMPOSITE = 8 };

_Thread_local trek_walk *trek_walking;
static _Atomic(uint32_t) last_walk; /* across all threads, since threads may share leaves */

uint32_t trek_walk_new_id(void)
{
    uint32_t id;
    do {
        id = 1 + atomic_fetch_add_explicit(&last_walk, 1, memory_order_relaxed);
    } while (id == 0);
    return id;
}

/* Settles the gradients that a node gave to leaves, after its scope has ended and its own gradient is gone. */
static trek_status settle_leaves(const trek_node *node)
{
    trek_status status = TREK_OK;
    for (int k = 0; status == TREK_OK && k < node->n_inputs; k++)
        status = trek_walk_settle(node->edges[k].leaf);
    return status;
}

/* --- giving ---------------------------------------------------------------------- */

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
    if (grad && grad->data->dtype != edge->dtype && !(widens && !trek_walking->inputs))
        grad = trek_apply_convert(grad, (trek_dtype)edge->dtype);
    if (grad && edge->leaf && !trek_device_equal(grad->data->device, edge->leaf->data->device)) /* it is on another CPU device */
        grad = trek_to(grad, edge->leaf->data->device);
    return grad;
}

/* Adds the node to the walk. The walk holds it through the reference of the edge by which it came, which the edge
 * leaves to the walk (trek_node_free_saved), or from the start. */
static inline trek_status join(trek_walk *w, trek_node *node)
{
    if (node->walk == w->id)
        return TREK_OK;
    if (node->walk) /* its gradients belong to that trek_walk */
        return trek_fail(TREK_ERR_STATE, "backward: called within a pass, for a part of the tape that the pass itself needs");
    node->walk = w->id;
    w->live++;
    return TREK_OK;
}

static inline void leave(trek_walk *w, trek_node *node)
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

static trek_status capture(trek_walk *w, trek_var *leaf, trek_node *node, int output, trek_var *grad)
{
    for (int k = 0; k < w->n_inputs; k++) {
        const trek_var *input = w->inputs[k];
        bool hit = leaf ? input == leaf : input->node == node && input->output == output;
        trek_status status = hit ? trek_walk_add(&w->captured[k], grad, w->create_graph) : TREK_OK;
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

static trek_status give_to_node(trek_walk *w, trek_node *node, int output, trek_var *grad)
{
    if (w->of && node->serial <= w->of->serial)
        return capture(w, NULL, node, output, grad);
    if (join(w, node) != TREK_OK || (output == 0 && node->partial && trek_partial_complete(node) != TREK_OK))
        return trek_error_status();
    if (trek_group_is_whole(node))
        return trek_group_give(w, node, grad);
    if (output == 0)
        return trek_walk_add(&node->grad, grad, w->create_graph);
    if (!node->more_grads && !(node->more_grads = trek_calloc((size_t)node->n_outputs, sizeof *node->more_grads)))
        return trek_error_status();
    return trek_walk_add(&node->more_grads[output], grad, w->create_graph);
}

trek_status trek_walk_give_edge(trek_walk *w, trek_edge *edge, trek_var *grad)
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
    return trek_walk_reaches(w, edge->leaf) ? trek_walk_add_to_leaf(edge->leaf, grad, w->create_graph) : TREK_OK;
}

/* --- the first pass ------------------------------------------------------------------- */

/* The first pass: marks what can be reached and counts the uses of leaves. It does not count where leaves' gradients
 * are not accumulated: trek_grad, which also runs in nodes of a walk that counts them. */
static trek_status count_uses(trek_walk *w)
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
                status = trek_walk_count_use(w, edge->leaf);
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
static inline uint32_t begin_grads(const trek_walk *w, const trek_node *node, trek_var **grads)
{
    const trek_edge *edge = node->edges;
    uint32_t needs = 0;
    for (int k = 0, n = node->n_inputs; k < n; k++, edge++) {
        grads[k] = NULL;
        if (edge->node || (edge->leaf && trek_walk_reaches(w, edge->leaf)))
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
trek_status trek_walk_call_rule(trek_backward_call *b)
{
    trek_var saved[TREK_SAVED_VARS], **grads = b->grads;
    b->saved = saved;
    b->n_saved = 0;
    trek_status status = trek_backward_rules[b->op->id](b);
    for (int k = 0, n = b->n_inputs; status == TREK_OK && k < n; k++) /* gradients passed on may outlive the frame */
        if ((uintptr_t)grads[k] - (uintptr_t)saved < sizeof saved && !(grads[k] = trek_var_constant(grads[k]->data)))
            status = trek_error_status();
    return status;
}

static inline trek_status run_rule(trek_walk *w, trek_node *node, uint32_t needs, trek_var **grads)
{
    trek_backward_call b = { .node = node, .op = node->op, .attrs = node->attrs, .grad = node->grad, .n_inputs = node->n_inputs,
                             .more_grads = node->more_grads, .create_graph = w->create_graph, .needs = needs, .grads = grads };
    if (needs == 0)
        return TREK_OK;
    return w->watch && w->watch->groups ? trek_group_call_rule(w, &b) : trek_walk_call_rule(&b);
}

static const char *name_of(const trek_node *node) { return node->op ? node->op->name : node->context->function->name; }

TREK_SELDOM static int begin_frame(const trek_node *node) { return trek_trace_begin_node(name_of(node), node->path); }

static trek_status fail_node(const trek_node *node, trek_status status)
{
    return trek_fail_after(status, "backward: that of %s failed", name_of(node));
}

static trek_status node_hooks(trek_node *node)
{
    trek_status status = node->hooks && node->grad ? trek_walk_run_hooks(node->hooks, 0, NULL, &node->grad) : TREK_OK;
    for (int k = 1; status == TREK_OK && node->hooks && node->more_grads && k < node->n_outputs; k++)
        if (node->more_grads[k])
            status = trek_walk_run_hooks(node->hooks, k, NULL, &node->more_grads[k]);
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
TREK_SELDOM static trek_status show_grads(trek_walk *w, trek_node *node)
{
    trek_status status = node_hooks(node);
    if (status == TREK_OK && w->inputs && node->grad)
        status = capture(w, NULL, node, 0, node->grad);
    for (int k = 1; status == TREK_OK && w->inputs && node->more_grads && k < node->n_outputs; k++)
        status = node->more_grads[k] ? capture(w, NULL, node, k, node->more_grads[k]) : TREK_OK;
    return status;
}

/* Passes to the inputs what the rule has made since the scope had `made` results. */
static inline trek_status hand_on(trek_walk *w, trek_node *node, trek_var *const *grads, int made)
{
    trek_edge *edge = node->edges;
    trek_status status = TREK_OK;
    for (int k = 0, n = node->n_inputs; status == TREK_OK && k < n; k++, edge++) {
        if (!grads[k])
            continue;
        w->made = given_again(grads, k, n) ? INT_MAX : made;
        status = trek_walk_give_edge(w, edge, grads[k]);
    }
    w->made = INT_MAX;
    return status;
}

static trek_status run_node(trek_walk *w, trek_node *node)
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

static void drop_grads(const trek_walk *w, trek_node *node)
{
    trek_var *grad = node->grad;
    node->grad = NULL;
    if (node->group_grads)
        trek_group_drop(w, node);
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
static trek_status visit(trek_walk *w, trek_node *node, trek_status status)
{
    leave(w, node);
    bool runs = status == TREK_OK && (node->grad || node->more_grads || node->group_grads), offloaded = runs &&
        trek_offload_has(node->tape);
    if (offloaded)
        trek_offload_bring_ahead(node, w->id);
    if (runs)
        status = run_node(w, node);
    drop_grads(w, node);
    if (runs && w->fresh && status == TREK_OK) {
        w->fresh = false;
        status = settle_leaves(node);
    }
    if (w->counting && status == TREK_OK)
        status = trek_walk_pass_leaves(w, node);
    if (offloaded && w->retain)
        trek_offload_leave_again(node);
    bool done = runs && status == TREK_OK && !w->retain;
    if (done)
        trek_node_free_saved(node);
    return status;
}

static trek_status run_walk(trek_walk *w)
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

static trek_status seed_root(trek_walk *w, trek_var *root, trek_var *seed)
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
        return trek_walk_reaches(w, root) ? trek_walk_add_to_leaf(root, seed, w->create_graph) : TREK_OK;
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
static void clear_walk(trek_walk *w)
{
    for (trek_node *node = w->newest, *prev; node && w->live > 0; node = prev) {
        prev = node->prev;
        if (node->walk != w->id)
            continue;
        leave(w, node);
        drop_grads(w, node);
        prev = node->prev;
        let_pass(node);
    }
}

static trek_status mark_watched(trek_walk *w)
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

static trek_status backward(trek_walk *w, trek_var *const *roots, trek_var *const *seeds, int n, const trek_backward_opts *opts)
{
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    w->id = trek_walk_new_id();
    w->outer = trek_walking;
    w->zeros = (w->watch && w->watch->zeros) || (trek_walking && trek_walking->zeros);
    w->made = INT_MAX;
    w->create_graph = opts && opts->create_graph;
    w->retain = w->create_graph || (opts && opts->retain_graph);
    trek_scope scope = trek_scope_begin();
    if (!scope.depth)
        return trek_error_status();
    trek_grad_mode mode = trek_grad_mode_here;
    trek_grad_mode_here = (trek_grad_mode){ .no_grad_depth = w->create_graph ? 0 : 1, .autocast = TREK_F32 };
    trek_walk *outer = trek_walking;
    trek_tape *tape = trek_tape_here;
    trek_walking = w;
    if (tape)
        tape->walks++;
    trek_status status = mark_watched(w);
    for (int k = 0; status == TREK_OK && k < n; k++)
        status = seed_root(w, roots[k], seeds ? seeds[k] : NULL);
    if (status == TREK_OK)
        status = run_walk(w);
    clear_walk(w);
    for (int k = 0; status == TREK_OK && k < n; k++)
        status = trek_walk_settle(roots[k]);
    for (int k = 0; status == TREK_OK && !w->of && k < w->n_inputs; k++)
        status = trek_walk_make_own(&w->captured[k]);
    trek_walking = outer;
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
    trek_walk w = { 0 };
    return backward(&w, &var, &seed, 1, opts);
}

trek_status trek_backward_watched(trek_var *const *roots, trek_var *const *seeds, int n, const trek_backward_opts *opts,
                                  const trek_backward_watch *watch)
{
    trek_walk w = { .watch = watch };
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
    trek_walk w = { .inputs = inputs, .n_inputs = n_inputs, .captured = captured, .of = of };
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

/* --- what others give to the walk that runs ------------------------------------------------------ */

trek_status trek_walk_give(trek_backward_call *b, int k, trek_var *grad)
{
    return give_to_node(trek_walking, b->node->edges[k].node, 0, grad);
}

trek_status trek_backward_capture_leaf(trek_var *leaf, trek_var *grad) { return capture(trek_walking, leaf, NULL, 0, grad); }

/* SPDX-License-Identifier: Apache-2.0 */
/* What a backward walk does at leaves: adds up their gradients, gives them memory of their own, and knows when they are
 * complete. */
#include "autograd/engine_internal.h"
#include "autograd/ops.h"
#include "tensor/pages.h"

/* --- adding up ------------------------------------------------------------------- */

static trek_status add_in_place(trek_tensor *to, trek_tensor *grad)
{
    trek_tensor *in[2] = { to, grad };
    trek_op_call call = { .op = &trek_ops[TREK_OP_add], .n_inputs = 2, .inputs = in, .n_outputs = 1, .outputs = { to } };
    return trek_op_run(&call);
}

trek_status trek_walk_add_more(trek_var **slot, trek_var *grad, bool create_graph)
{
    if (!create_graph && trek_grad_is_alone(*slot) && (*slot)->data->dtype == grad->data->dtype)
        return add_in_place((*slot)->data, grad->data);
    trek_var *sum = trek_add(*slot, grad);
    if (!sum)
        return trek_error_status();
    trek_var_drop(*slot);
    *slot = trek_walk_take(sum);
    return TREK_OK;
}

/* Handles a leaf reached by a walk of zeros: it has a gradient, to which nothing is added. */
static trek_status give_zeros(trek_var *var, trek_leaf *leaf)
{
    if (leaf->has_grad)
        return TREK_OK;
    const trek_tensor *x = leaf->grad_in_arena ? leaf->grad->data : var->data;
    if (leaf->grad_in_arena && trek_tensor_take_pages(x) != TREK_OK)
        return trek_error_status();
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

trek_status trek_walk_add_to_leaf(trek_var *var, trek_var *grad, bool create_graph)
{
    trek_leaf *leaf = trek_var_leaf(var);
    if (!leaf)
        return trek_error_status();
    if (trek_walking->zeros)
        return give_zeros(var, leaf);
    trek_status status;
    if (leaf->grad_in_arena) {
        trek_tensor *place = leaf->grad->data;
        status = trek_tensor_take_pages(place);
        if (status == TREK_OK)
            status = leaf->has_grad ? add_in_place(place, grad->data) : trek_tensor_copy_from(place, grad->data);
    } else {
        if (!leaf->has_grad) { /* a sink that nothing was written to */
            trek_var_release(leaf->grad);
            leaf->grad = NULL;
        }
        leaf->fresh |= !leaf->grad;
        trek_walking->fresh |= leaf->fresh;
        status = trek_walk_add(&leaf->grad, grad, create_graph);
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

trek_status trek_walk_make_own(trek_var **grad)
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

trek_status trek_walk_settle(trek_var *var)
{
    trek_leaf *leaf = var ? var->leaf : NULL;
    if (!leaf || !leaf->fresh)
        return TREK_OK;
    leaf->fresh = false;
    return trek_walk_make_own(&leaf->grad);
}

/* --- complete leaves ------------------------------------------------------------------ */

trek_status trek_walk_run_hooks(trek_hook *hooks, int output, trek_var *var, trek_var **grad)
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

static trek_status run_leaf_hooks(const trek_walk *w, trek_var *var)
{
    trek_leaf *leaf = var->leaf;
    if (!leaf->hooks || !leaf->has_grad || w->inputs || !trek_walk_reaches(w, var))
        return TREK_OK;
    trek_var *grad = trek_var_retain(leaf->grad), *given = grad;
    trek_status status = trek_walk_run_hooks(leaf->hooks, 0, var, &grad);
    if (status == TREK_OK && grad != given)
        status = trek_var_set_grad(var, grad);
    trek_var_release(grad);
    return status;
}

/* The watcher may send the gradient as the hooks leave it. */
static trek_status leaf_complete(const trek_walk *w, trek_var *var)
{
    trek_status status = run_leaf_hooks(w, var);
    if (status == TREK_OK && w->watch && var->leaf->watch == w->id && w->watch->complete)
        w->watch->complete(var->leaf->watch_index, w->watch->arg);
    return status;
}

trek_status trek_walk_pass_leaves(const trek_walk *w, const trek_node *node)
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
static bool is_awaited(const trek_walk *w, const trek_leaf *leaf)
{
    if (w->watch && w->watch->complete && leaf->watch == w->id)
        return false;
    for (const trek_walk *outer = w->outer; outer; outer = outer->outer)
        if (leaf->walk == outer->id)
            return leaf->pending > 0 && leaf->due;
    return false;
}

trek_status trek_walk_count_use(const trek_walk *w, trek_var *var)
{
    trek_leaf *leaf = trek_var_leaf(var);
    if (!leaf)
        return trek_error_status();
    if (leaf->walk == w->id) {
        leaf->pending++;
    } else if (!is_awaited(w, leaf)) {
        leaf->walk = w->id;
        leaf->pending = 1;
        leaf->due = trek_walk_reaches(w, var);
    }
    return TREK_OK;
}

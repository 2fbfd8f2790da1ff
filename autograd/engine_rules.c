/* SPDX-License-Identifier: Apache-2.0 */
/* What rules see of a backward walk: what their node has saved, where gradients may be written, and what the walk is for. */
#include "autograd/engine_internal.h"
#include "autograd/offload_internal.h"
#include "autograd/ops.h"
#include "tensor/pages.h"

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
    if (b->groups > 0 && trek_group_divides(node, s))
        return trek_group_of(s->tensor, b->group, b->groups);
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
    if (trek_walking->inputs || trek_walking->zeros || !trek_walk_reaches(trek_walking, var))
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
    if (leaf->grad_in_arena && trek_tensor_take_pages(leaf->grad->data) != TREK_OK)
        return NULL;
    *overwrite = !leaf->has_grad;
    return leaf->grad->data;
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
    trek_device at = b->grad->data->device; /* all CPU devices have the same memory */
    bool fits = var && !b->create_graph && (at.type == TREK_CPU ? var->data->device.type == TREK_CPU
                                                                : trek_device_equal(var->data->device, at));
    return fits ? sink_of(var, TREK_F32, overwrite) : NULL;
}

void trek_rule_sunk(trek_backward_call *b, int k)
{
    trek_var *var = b->node->edges[k].leaf;
    (var ? var : leaf_of_cast(b, k))->leaf->has_grad = true;
}

bool trek_rule_takes_product(trek_backward_call *b, int k, trek_tensor *grad, trek_tensor *x)
{
    const trek_walk *w = trek_walking;
    const trek_var *var = b->node->edges[k].leaf;
    const trek_leaf *leaf = var ? var->leaf : NULL;
    return leaf && w->watch && w->watch->product && leaf->watch == w->id && leaf->grad_in_arena && !leaf->hooks &&
        !b->create_graph &&
           !w->inputs && !w->zeros && var->data->dtype == TREK_F32 && grad->dtype == TREK_F32 && x->dtype == TREK_F32 &&
           w->watch->product(leaf->watch_index, grad, x, w->watch->arg);
}

/* --- what the walk is for --------------------------------------------------------------------- */

bool trek_backward_retains(void) { return trek_walking && trek_walking->retain; }
bool trek_backward_captures(void) { return trek_walking && trek_walking->inputs; }
bool trek_backward_captures_leaf(const trek_var *leaf)
{
    for (int k = 0; trek_walking && k < trek_walking->n_inputs; k++)
        if (trek_walking->inputs[k] == leaf)
            return true;
    return false;
}
bool trek_backward_gives_zeros(void) { return trek_walking && trek_walking->zeros; }
bool trek_backward_passes_last(const trek_var *leaf)
{
    return trek_walking && trek_walking->counting && leaf->leaf && leaf->leaf->walk == trek_walking->id &&
        leaf->leaf->pending == 1;
}
bool trek_backward_reaches(const trek_var *leaf) { return !trek_walking || trek_walk_reaches(trek_walking, leaf); }

/* SPDX-License-Identifier: Apache-2.0 */
/* Backward of several groups of rows in one walk. Nodes compute gradients of all rows at once. Where a leaf gets its gradient,
 * the node's rule is called for each group, and sees nothing but the rows of that group: so it computes what it would in a walk
 * over this group alone. */
#include "autograd/engine_internal.h"
#include "autograd/ops.h"
#include "tensor/rank_context.h"

/* --- which nodes can do this --------------------------------------------------------------- */

/* Returns which inputs of an op have rows, as bits, if its other inputs are parameters and every row of its results follows from
 * the same row of those; 0: that is not known. */
static unsigned row_inputs(const trek_op *op)
{
    switch (op->id) {
    case TREK_OP_linear:
    case TREK_OP_conv2d:
    case TREK_OP_layer_norm:
    case TREK_OP_rms_norm:
        return 1;
    case TREK_OP_embedding: /* its indices */
        return 2;
    case TREK_OP_add_layer_norm:
        return 3;
    default:
        return 0;
    }
}

static bool has_rows(const trek_node *node, int input) { return row_inputs(node->op) >> input & 1; }

bool trek_group_divides(const trek_node *node, const trek_saved_tensor *saved)
{
    return saved->is_output || has_rows(node, saved->index);
}

static bool is_divisible(int ndim, const int64_t *sizes, int n) { return ndim > 0 && sizes[0] > 0 && sizes[0] % n == 0; }

/* Returns whether the node's rows can be divided. A node without leaves needs nothing but rows: its inputs have them, too. */
static bool node_divides(trek_node *node, int n, uint32_t id)
{
    bool leaves = false, fits = node->op && !node->hooks && !node->freed;
    for (int k = 0; k < node->n_inputs && fits; k++) {
        trek_edge *edge = &node->edges[k];
        if (edge->node)
            fits = is_divisible(edge->ndim, edge->sizes, n) && (row_inputs(node->op) == 0 || has_rows(node, k));
        if (!edge->leaf)
            continue;
        leaves = true;
        fits = fits && edge->leaf->leaf && edge->leaf->leaf->walk != id && !edge->leaf->leaf->hooks &&
            row_inputs(node->op) != 0 && !has_rows(node, k);
        if (edge->leaf->leaf)
            edge->leaf->leaf->walk = id;
    }
    for (int k = 0; k < node->n_saved && leaves && fits; k++) {
        const trek_saved_tensor *saved = &node->saved[k];
        fits = !saved->offloads && (!trek_group_divides(node, saved) ||
                                    is_divisible(saved->tensor->ndim, saved->tensor->sizes, n));
    }
    return fits;
}

/* --- looking at a tape --------------------------------------------------------------------- */

/* Calls `see` for all nodes that a walk from `root` would reach, the newest first, until it returns false. Nodes must not take
 * part in a walk. */
static bool look(const trek_var *root, bool (*see)(trek_node *node, void *arg), void *arg)
{
    uint32_t id = trek_walk_new_id();
    int64_t live = root->node ? 1 : 0;
    bool goes_on = true;
    if (root->node)
        root->node->walk = id;
    for (trek_node *node = root->node; node && live > 0; node = node->prev) {
        if (node->walk != id)
            continue;
        node->walk = 0;
        live--;
        goes_on = goes_on && see(node, arg);
        for (int k = 0; k < node->n_inputs && goes_on; k++) {
            trek_node *next = node->edges[k].node;
            if (!next || next->walk == id)
                continue;
            goes_on = next->walk == 0;
            live += goes_on;
            next->walk = goes_on ? id : next->walk;
        }
    }
    return goes_on;
}

typedef struct division {
    int n;
    uint32_t id;             /* of the leaves seen */
    int64_t bytes;
} division;

static bool see_division(trek_node *node, void *arg)
{
    division *d = arg;
    for (int k = 0; k < node->n_saved; k++) {
        const trek_saved_tensor *saved = &node->saved[k];
        if (saved->is_output || !node->edges[saved->index].leaf)
            d->bytes += saved->tensor->numel * (int64_t)trek_dtype_size((trek_dtype)saved->tensor->dtype);
    }
    return node_divides(node, d->n, d->id);
}

bool trek_backward_divides(const trek_var *root, int groups, int64_t *bytes)
{
    division d = { .n = groups, .id = trek_walk_new_id() };
    bool divides = root->node && is_divisible(root->data->ndim, root->data->sizes, groups) && look(root, see_division, &d);
    *bytes = d.bytes;
    return divides;
}

typedef struct wanted_leaf {
    const trek_var *leaf;
    bool seen;
} wanted_leaf;

static bool see_leaf(trek_node *node, void *arg)
{
    wanted_leaf *wanted = arg;
    for (int k = 0; k < node->n_inputs; k++) {
        if (node->edges[k].leaf && node->edges[k].leaf != wanted->leaf)
            return false;
        wanted->seen |= node->edges[k].leaf != NULL;
    }
    return true;
}

bool trek_backward_ends_at(const trek_var *root, const trek_var *leaf)
{
    wanted_leaf wanted = { .leaf = leaf };
    return look(root, see_leaf, &wanted) && wanted.seen;
}

/* --- the rules ------------------------------------------------------------------------------- */

trek_var *trek_group_of(trek_tensor *x, int group, int n)
{
    int64_t sizes[TREK_MAX_DIMS], rows = x->sizes[0] / n;
    for (int d = 0; d < x->ndim; d++)
        sizes[d] = d == 0 ? rows : x->sizes[d];
    char *data = x->data + group * rows * x->strides[0] * (int64_t)trek_dtype_size((trek_dtype)x->dtype);
    trek_tensor *view = trek_tensor_make_view(x, data, x->ndim, sizes, x->strides);
    trek_var *var = view ? trek_var_constant(view) : NULL;
    trek_tensor_release(view);
    return var;
}

/* Takes the activation's derivative out of the rule, so that it is computed once. */
static trek_status take_activation(trek_backward_call *b, trek_attrs *attrs)
{
    int place = b->op->id == TREK_OP_linear ? 0 : 7;
    if ((b->op->id != TREK_OP_linear && b->op->id != TREK_OP_conv2d) || b->attrs->i[place] == TREK_ACTIVATION_NONE)
        return TREK_OK;
    b->grad = b->attrs->i[place] == TREK_ACTIVATION_RELU ? trek_apply_relu_backward(b->grad, trek_rule_output(b, 0))
                                                         : trek_apply_gelu_backward(b->grad, trek_rule_output(b, 1), false);
    *attrs = *b->attrs;
    attrs->i[place] = TREK_ACTIVATION_NONE;
    b->attrs = attrs;
    return b->grad ? TREK_OK : trek_error_status();
}

/* Gives leaves what one group has for them. */
static trek_status give_leaves(trek_walk *w, trek_backward_call *b)
{
    const trek_backward_groups *groups = w->watch->groups;
    trek_edge *edges = b->node->edges;
    for (int k = 0; k < b->n_inputs; k++)
        if (trek_rule_needs(b, k))
            groups->begin(edges[k].leaf->leaf->watch_index, b->group, groups->arg);
    trek_status status = trek_walk_call_rule(b);
    for (int k = 0; k < b->n_inputs; k++) {
        if (status == TREK_OK && trek_rule_needs(b, k) && b->grads[k])
            status = trek_walk_give_edge(w, &edges[k], b->grads[k]);
        if (trek_rule_needs(b, k))
            groups->end(edges[k].leaf->leaf->watch_index, b->group, groups->arg);
    }
    return status;
}

/* Calls the rule for one group. */
static trek_status call_for_group(trek_walk *w, const trek_backward_call *whole, uint32_t leaves, int group)
{
    trek_var *grads[TREK_MAX_FIXED_INPUTS] = { NULL }, *more[TREK_MAX_OUTPUTS] = { NULL };
    trek_backward_call b = *whole;
    b.groups = w->watch->groups->n;
    b.group = group;
    b.needs = leaves;
    b.grads = grads;
    if (whole->grad && !(b.grad = trek_group_of(whole->grad->data, group, b.groups)))
        return trek_error_status();
    for (int k = 1; whole->more_grads && k < b.node->n_outputs; k++)
        if (whole->more_grads[k] && !(more[k] = trek_group_of(whole->more_grads[k]->data, group, b.groups)))
            return trek_error_status();
    b.more_grads = whole->more_grads ? more : NULL;
    return give_leaves(w, &b);
}

trek_status trek_group_call_rule(trek_walk *w, trek_backward_call *b)
{
    uint32_t leaves = 0;
    trek_attrs attrs;
    trek_var saved[TREK_SAVED_VARS];
    for (int k = 0; k < b->n_inputs && k < 31; k++)
        leaves |= b->needs >> k & 1 && b->node->edges[k].leaf ? 1u << k : 0;
    if (leaves == 0)
        return trek_walk_call_rule(b);
    b->saved = saved;
    trek_status status = take_activation(b, &attrs);
    int64_t grains = trek_rank_here.grains;
    trek_rank_here.grains = 1;
    for (int group = 0; group < w->watch->groups->n && status == TREK_OK; group++)
        status = call_for_group(w, b, leaves, group);
    trek_rank_here.grains = grains;
    b->needs &= ~leaves;
    return status == TREK_OK && b->needs ? trek_walk_call_rule(b) : status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Backward of several groups of rows in one walk. Nodes compute gradients of all rows at once. Where an input is the same for all
 * rows (a parameter, its cast, positions), the node's rule is called for each group, and sees nothing but the rows of that group:
 * so it computes what it would in a walk over this group alone. Nodes without rows, which such inputs come from, have a gradient
 * for each group, and are visited in their turn, so that a leaf with several uses adds up their gradients in the same order. */
#include "autograd/engine_internal.h"
#include "autograd/ops.h"
#include "tensor/rank_context.h"

/* --- which nodes can do this --------------------------------------------------------------- */

/* Returns whether input k of an op that broadcasts is repeated for all rows. */
static bool is_broadcast(const trek_node *node, int k)
{
    int ndim = 0;
    int64_t rows = 1;
    for (int i = 0; i < node->n_inputs; i++)
        if (node->edges[i].dtype != TREK_DTYPE_COUNT && node->edges[i].ndim > ndim)
            ndim = node->edges[i].ndim;
    for (int i = 0; i < node->n_inputs; i++)
        if (node->edges[i].ndim == ndim && ndim > 0 && node->edges[i].sizes[0] > rows)
            rows = node->edges[i].sizes[0];
    const trek_edge *edge = &node->edges[k];
    return edge->ndim < ndim || ndim == 0 || edge->sizes[0] != rows;
}

/* Returns the same for the input of an expansion. */
static bool is_repeated(const trek_node *node)
{
    const trek_edge *edge = &node->edges[0];
    const int64_t *shape = node->attrs->i; /* dimensions, sizes */
    return edge->ndim < shape[0] || edge->ndim == 0 || (shape[1] != -1 && shape[1] != edge->sizes[0]);
}

/* Returns whether input k of a node whose result has rows has them, too. The others are the same for all rows: parameters, and
 * what follows from them. */
static bool has_rows(const trek_node *node, int k)
{
    switch (node->op->id) {
    case TREK_OP_linear:
    case TREK_OP_conv2d:
    case TREK_OP_layer_norm:
    case TREK_OP_rms_norm:
        return k == 0;
    case TREK_OP_embedding: /* its indices */
        return k == 1;
    case TREK_OP_add_layer_norm:
        return k < 2;
    case TREK_OP_matmul:
        return k == 0 || node->edges[1].ndim > 2;
    case TREK_OP_add:
    case TREK_OP_sub:
    case TREK_OP_mul:
        return !is_broadcast(node, k);
    case TREK_OP_expand:
        return !is_repeated(node);
    default:
        return true;
    }
}

bool trek_group_divides(const trek_node *node, const trek_saved_tensor *saved)
{
    return !node->whole && (saved->is_output || has_rows(node, saved->index));
}

static bool is_divisible(int ndim, const int64_t *sizes, int n) { return ndim > 0 && sizes[0] > 0 && sizes[0] % n == 0; }

/* Returns the leaf into which the rule may write the gradient of input k of a node, past the cast that the input is; or NULL. */
static trek_var *leaf_behind_cast(const trek_node *node, int k)
{
    const trek_node *cast = node->edges[k].node;
    bool sinks = node->op->id == TREK_OP_linear && k == 1 && cast && cast->op && cast->op->id == TREK_OP_convert;
    return sinks && !cast->hooks && !cast->freed ? cast->edges[0].leaf : NULL;
}

typedef struct division {
    int n;
    uint32_t id;             /* of the leaves and nodes seen */
    int64_t bytes;
} division;

static int64_t bytes_of(const trek_tensor *x) { return x->numel * (int64_t)trek_dtype_size((trek_dtype)x->dtype); }

/* Counts a gradient that a leaf gets. If it gets several of each group, all of them are kept until the last. */
static bool use_leaf(division *d, trek_var *var)
{
    trek_leaf *leaf = var->leaf;
    if (!leaf || leaf->hooks)
        return false;
    leaf->shared = leaf->walk == d->id;
    leaf->walk = d->id;
    d->bytes += leaf->shared ? d->n * var->data->numel * (int64_t)sizeof(float) : 0;
    return true;
}

/* Marks the node behind an edge as one with rows, or as one that is the same for all of them. It cannot be both. */
static bool mark(const division *d, const trek_edge *edge, bool whole)
{
    trek_node *node = edge->node;
    bool fits = !whole || edge->output == 0;
    if (node->group_id == d->id)
        return fits && node->whole == whole;
    node->group_id = d->id;
    node->whole = whole;
    return fits;
}

/* Looks at an input. Returns false if gradients of groups cannot go that way. A single group has all rows of everything. */
static bool input_divides(division *d, const trek_node *node, int k, bool *apart)
{
    const trek_edge *edge = &node->edges[k];
    bool whole = node->whole || !has_rows(node, k);
    if (edge->leaf && !whole && d->n > 1)
        return false;
    *apart |= (whole && edge->node) || edge->leaf;
    if (edge->leaf)
        return use_leaf(d, edge->leaf);
    trek_var *leaf = edge->node && whole ? leaf_behind_cast(node, k) : NULL;
    if (leaf && !use_leaf(d, leaf))
        return false;
    return !edge->node || (mark(d, edge, whole) && (whole || is_divisible(edge->ndim, edge->sizes, d->n)));
}

/* Returns whether the node's rows can be divided. A node all of whose inputs have rows needs nothing but them. */
static bool node_divides(trek_node *node, division *d)
{
    bool apart = false, fits = node->op && !node->hooks && !node->freed &&
        (!node->whole || node->n_inputs <= TREK_MAX_FIXED_INPUTS);
    for (int k = 0; k < node->n_inputs && fits; k++)
        fits = input_divides(d, node, k, &apart);
    for (int k = 0; k < node->n_saved && apart && fits && d->n > 1; k++) {
        const trek_saved_tensor *saved = &node->saved[k];
        fits = !saved->offloads && (!trek_group_divides(node, saved) ||
                                    is_divisible(saved->tensor->ndim, saved->tensor->sizes, d->n));
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

static bool see_division(trek_node *node, void *arg)
{
    division *d = arg;
    for (int k = 0; k < node->n_saved; k++) {
        const trek_saved_tensor *saved = &node->saved[k];
        if (trek_group_divides(node, saved) && (saved->is_output || !node->edges[saved->index].leaf))
            d->bytes += bytes_of(saved->tensor);
    }
    return node_divides(node, d);
}

bool trek_backward_divides(const trek_var *root, int groups, int64_t *bytes)
{
    division d = { .n = groups, .id = trek_walk_new_id() };
    trek_edge edge = { .node = root->node, .output = root->output };
    bool divides = root->node && is_divisible(root->data->ndim, root->data->sizes, groups) && mark(&d, &edge, false) &&
        look(root, see_division, &d);
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
    if (n == 1)
        return trek_var_constant(x);
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

/* Returns the leaf that may get a gradient of input k from the rule, or NULL. */
static trek_var *leaf_of(const trek_node *node, int k)
{
    return node->edges[k].leaf ? node->edges[k].leaf : leaf_behind_cast(node, k);
}

/* Passes on what one group has for the inputs that are the same for all. */
static trek_status give_group(trek_walk *w, trek_backward_call *b)
{
    const trek_backward_groups *groups = w->watch->groups;
    trek_status status = TREK_OK;
    w->group = b->group;
    for (int k = 0; k < b->n_inputs && status == TREK_OK; k++) {
        trek_var *var = trek_rule_needs(b, k) ? leaf_of(b->node, k) : NULL;
        if (var && trek_walk_reaches(w, var))
            status = groups->begin(var->leaf->watch_index, b->group, var->leaf->shared, groups->arg);
    }
    status = status == TREK_OK ? trek_walk_call_rule(b) : status;
    for (int k = 0; k < b->n_inputs; k++) {
        trek_var *var = trek_rule_needs(b, k) ? leaf_of(b->node, k) : NULL;
        if (status == TREK_OK && trek_rule_needs(b, k) && b->grads[k])
            status = trek_walk_give_edge(w, &b->node->edges[k], b->grads[k]);
        if (var && trek_walk_reaches(w, var))
            groups->end(var->leaf->watch_index, b->group, var->leaf->shared, groups->arg);
    }
    return status;
}

/* Calls the rule for one group. */
static trek_status call_for_group(trek_walk *w, const trek_backward_call *all, uint32_t apart, int group)
{
    trek_var *grads[TREK_MAX_FIXED_INPUTS] = { NULL }, *more[TREK_MAX_OUTPUTS] = { NULL };
    trek_backward_call b = *all;
    b.groups = w->watch->groups->n;
    b.group = group;
    b.needs = apart;
    b.grads = grads;
    if (all->grad && !(b.grad = trek_group_of(all->grad->data, group, b.groups)))
        return trek_error_status();
    for (int k = 1; all->more_grads && k < b.node->n_outputs; k++)
        if (all->more_grads[k] && !(more[k] = trek_group_of(all->more_grads[k]->data, group, b.groups)))
            return trek_error_status();
    b.more_grads = all->more_grads ? more : NULL;
    return give_group(w, &b);
}

/* Calls the rule of a node that is the same for all rows, for each group that has a gradient for it. */
static trek_status call_whole(trek_walk *w, const trek_backward_call *all)
{
    trek_status status = TREK_OK;
    for (int group = 0; group < w->watch->groups->n && status == TREK_OK; group++) {
        trek_var *grads[TREK_MAX_FIXED_INPUTS] = { NULL };
        trek_backward_call b = *all;
        b.grad = b.node->group_grads[group];
        b.group = group;
        b.grads = grads;
        status = b.grad ? give_group(w, &b) : TREK_OK;
    }
    return status;
}

bool trek_group_is_whole(const trek_node *node)
{
    return node->whole && trek_walking && trek_walking->watch && trek_walking->watch->groups;
}

trek_status trek_group_give(trek_walk *w, trek_node *node, trek_var *grad)
{
    size_t n = (size_t)w->watch->groups->n;
    if (!node->group_grads && !(node->group_grads = trek_calloc(n, sizeof(trek_var *))))
        return trek_error_status();
    return trek_walk_add(&node->group_grads[w->group], grad, false);
}

void trek_group_drop(const trek_walk *w, trek_node *node)
{
    for (int group = 0; group < w->watch->groups->n; group++)
        trek_var_release(node->group_grads[group]);
    trek_free(node->group_grads);
    node->group_grads = NULL;
}

trek_status trek_group_call_rule(trek_walk *w, trek_backward_call *b)
{
    uint32_t apart = 0;
    trek_attrs attrs;
    trek_var saved[TREK_SAVED_VARS];
    for (int k = 0; k < b->n_inputs && k < 31 && !b->node->whole; k++)
        apart |= b->needs >> k & 1 && (b->node->edges[k].leaf || !has_rows(b->node, k)) ? 1u << k : 0;
    if (apart == 0 && !b->node->whole)
        return trek_walk_call_rule(b);
    b->saved = saved;
    trek_status status = b->node->whole ? TREK_OK : take_activation(b, &attrs);
    int64_t grains = trek_rank_here.grains;
    trek_rank_here.grains = 1;
    if (b->node->whole)
        status = call_whole(w, b);
    for (int group = 0; group < w->watch->groups->n && status == TREK_OK && apart != 0; group++)
        status = call_for_group(w, b, apart, group);
    trek_rank_here.grains = grains;
    b->needs &= ~apart;
    if (status == TREK_OK && b->needs && !b->node->whole)
        status = trek_walk_call_rule(b);
    for (int k = 0; k < b->n_inputs && k < 31; k++) /* rules may have computed more than what was needed */
        b->grads[k] = apart >> k & 1 ? NULL : b->grads[k];
    return status;
}

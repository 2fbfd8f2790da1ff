/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a slice goes directly to its place in the gradient of the tensor that was sliced, so that no tensor
 * of the whole size is made for each slice. Slices that follow one another along a dimension are copied, and only
 * what none of them fills is zeroed when it is needed. A gradient that is already at its place, because a kernel
 * wrote those of all slices into one piece of memory, is not even copied. */
#include "autograd/engine_internal.h"
#include "autograd/partial.h"
#include "autograd/rules_internal.h"
#include "autograd/slice_grad.h"

typedef struct slice {
    trek_tensor *grad;        /* with the whole's dimensions */
    int dim;
    int64_t start, end;
} slice;

static trek_status add_slice(trek_tensor *whole, const slice *s)
{
    trek_tensor *place = trek_tensor_narrow(whole, s->dim, s->start, s->end - s->start);
    if (!place)
        return trek_error_status();
    trek_tensor *in[2] = { place, s->grad };
    trek_op_call call = { .op = &trek_ops[TREK_OP_add], .n_inputs = 2, .inputs = in, .n_outputs = 1, .outputs = { place } };
    trek_status status = trek_op_run(&call);
    trek_tensor_release(place);
    return status;
}

static trek_status copy_slice(trek_tensor *whole, const slice *s) { return trek_slice_copy(whole, s->dim, s->start, s->grad); }

/* Returns whether the slice is already at its place in a contiguous tensor of that shape which fills the slice's
 * storage. */
static bool lies_in_place(const slice *s, const trek_shape *shape)
{
    const trek_tensor *g = s->grad;
    const trek_storage *storage = g->storage;
    int64_t stride = 1, offset = 0;
    for (int d = shape->ndim - 1; d >= 0; d--) {
        if (g->sizes[d] > 1 && g->strides[d] != stride)
            return false;
        offset = d == s->dim ? s->start * stride : offset;
        stride *= shape->sizes[d];
    }
    int64_t item = trek_item_size[g->dtype];
    return !storage->parent && !storage->release && storage->bytes == (size_t)(stride * item) &&
           g->data == (char *)storage->data + offset * item;
}

/* The first slice gets memory for the whole, or keeps its own memory if that is as large and the slice lies at its
 * place. */
static trek_status begin(trek_backward_call *b, const slice *s)
{
    trek_shape shape = trek_rule_shape(b, 0);
    trek_node *node = b->node->edges[0].node;
    trek_tensor *g = s->grad, *whole;
    trek_status status = TREK_OK;
    if (lies_in_place(s, &shape)) {
        int64_t strides[TREK_MAX_DIMS], stride = 1;
        for (int d = shape.ndim - 1; d >= 0; stride *= shape.sizes[d--])
            strides[d] = stride;
        whole = trek_tensor_make_view(g, (char *)g->storage->data, shape.ndim, shape.sizes, strides);
    } else {
        whole = trek_tensor_make(shape.ndim, shape.sizes, (trek_dtype)g->dtype, g->device);
        status = whole ? copy_slice(whole, s) : trek_error_status();
    }
    trek_partial *partial = whole && status == TREK_OK ? trek_block_alloc(sizeof *partial) : NULL;
    trek_var *var = partial ? trek_var_from(whole) : NULL;
    if (!partial)
        trek_tensor_release(whole);
    if (!var || (status = trek_walk_give(b, 0, var)) != TREK_OK) {
        trek_block_free(partial);
        return trek_error_status();
    }
    *partial = (trek_partial){ s->dim, s->start, s->end };
    node->partial = partial;
    return TREK_OK;
}

/* Adds a slice that begins or ends where the filled part ends or begins. */
static trek_status extend(trek_node *node, const slice *s)
{
    const trek_tensor *whole = node->grad->data;
    trek_shape shape = trek_shape_make(whole->sizes, whole->ndim);
    trek_status status = TREK_OK;
    if (whole->storage != s->grad->storage || !lies_in_place(s, &shape)) {
        if (!trek_grad_is_alone(node->grad))
            status = trek_partial_separate(node);
        if (status == TREK_OK)
            status = copy_slice(node->grad->data, s);
    }
    if (s->end == node->partial->from)
        node->partial->from = s->start;
    else
        node->partial->to = s->end;
    return status;
}

static trek_status give_to_node(trek_backward_call *b, const slice *s, bool *done)
{
    trek_node *node = b->node->edges[0].node;
    const trek_partial *p = node->partial;
    *done = true;
    if (!node->grad)
        return begin(b, s);
    if (p && p->dim == s->dim && (s->end == p->from || s->start == p->to))
        return extend(node, s);
    trek_status status = TREK_OK;
    bool inside = p && p->dim == s->dim && s->start >= p->from && s->end <= p->to;
    if (p && !trek_grad_is_alone(node->grad))
        status = trek_partial_separate(node);
    if (p && !inside && status == TREK_OK)
        status = trek_partial_complete(node);
    *done = trek_grad_is_alone(node->grad) && node->grad->data->dtype == s->grad->dtype;
    return status == TREK_OK && *done ? add_slice(node->grad->data, s) : status;
}

static trek_status give_to_leaf(trek_backward_call *b, const slice *s, bool *done)
{
    bool overwrite;
    trek_tensor *place = trek_rule_sink(b, 0, &overwrite);
    *done = place != NULL;
    if (!place)
        return TREK_OK;
    trek_status status = TREK_OK;
    if (overwrite) {
        status = trek_slice_zero(place, s->dim, 0, s->start);
        if (status == TREK_OK)
            status = trek_slice_zero(place, s->dim, s->end, place->sizes[s->dim]);
    }
    if (status == TREK_OK)
        status = overwrite ? copy_slice(place, s) : add_slice(place, s);
    if (status == TREK_OK)
        trek_rule_sunk(b, 0);
    return status;
}

trek_status trek_rule_give_slice(trek_backward_call *b, trek_var *grad, int dim, int64_t start, bool *done)
{
    slice s = { .grad = grad->data, .dim = dim, .start = start, .end = start + grad->data->sizes[dim] };
    const trek_edge *edge = &b->node->edges[0];
    *done = false;
    if (b->create_graph || s.grad->numel == 0 || s.grad->dtype != edge->dtype)
        return TREK_OK;
    if (edge->leaf)
        return give_to_leaf(b, &s, done);
    return edge->node && edge->output == 0 && !trek_group_is_whole(edge->node) ? give_to_node(b, &s, done) : TREK_OK;
}

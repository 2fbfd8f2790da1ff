/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of nodes that slices have only partly filled. */
#include "autograd/partial.h"

trek_status trek_slice_copy(trek_tensor *whole, int dim, int64_t from, trek_tensor *values)
{
    trek_tensor *place = trek_tensor_narrow(whole, dim, from, values->sizes[dim]);
    trek_status status = place ? trek_tensor_copy_from(place, values) : trek_error_status();
    trek_tensor_release(place);
    return status;
}

trek_status trek_slice_zero(trek_tensor *whole, int dim, int64_t from, int64_t to)
{
    if (from >= to)
        return TREK_OK;
    trek_tensor *place = trek_tensor_narrow(whole, dim, from, to - from);
    trek_op_call call = { .op = &trek_ops[TREK_OP_fill], .n_outputs = 1, .outputs = { place } };
    trek_status status = place ? trek_op_run(&call) : trek_error_status();
    trek_tensor_release(place);
    return status;
}

trek_status trek_partial_separate(trek_node *node)
{
    const trek_partial *p = node->partial;
    trek_tensor *old = node->grad->data;
    trek_tensor *made = trek_tensor_make(old->ndim, old->sizes, (trek_dtype)old->dtype, old->device);
    trek_tensor *filled = made ? trek_tensor_narrow(old, p->dim, p->from, p->to - p->from) : NULL;
    trek_status status = filled ? trek_slice_copy(made, p->dim, p->from, filled) : trek_error_status();
    trek_var *var = status == TREK_OK ? trek_var_new(made, false) : NULL;
    trek_tensor_release(filled);
    trek_tensor_release(made);
    if (!var)
        return trek_error_status();
    trek_var_release(node->grad);
    node->grad = var;
    return TREK_OK;
}

trek_status trek_partial_complete(trek_node *node)
{
    trek_partial *p = node->partial;
    int64_t size = node->grad->data->sizes[p->dim];
    trek_status status = TREK_OK;
    if (p->from > 0 || p->to < size) {
        if (!trek_grad_is_alone(node->grad))
            status = trek_partial_separate(node);
        if (status == TREK_OK)
            status = trek_slice_zero(node->grad->data, p->dim, 0, p->from);
        if (status == TREK_OK)
            status = trek_slice_zero(node->grad->data, p->dim, p->to, size);
    }
    trek_partial_free(node);
    return status;
}

void trek_partial_free(trek_node *node)
{
    trek_block_free(node->partial);
    node->partial = NULL;
}

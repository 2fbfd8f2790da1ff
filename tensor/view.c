/* SPDX-License-Identifier: Apache-2.0 */
/* Views: shape rules whose result shares the input's storage. */
#include <string.h>

#include "tensor/op.h"
#include "tensor/op_caller_internal.h"

int trek_normalize_dim(int64_t dim, int ndim, const char *op)
{
    int limit = ndim > 0 ? ndim : 1; /* a scalar accepts -1 and 0 */
    if (dim >= -limit && dim < limit)
        return (int)(dim < 0 ? dim + limit : dim);
    trek_fail(TREK_ERR_ARGUMENT, "%s: dim: %lld; the tensor has %d dimensions", op, (long long)dim, ndim);
    return -1;
}

trek_dims_list trek_listed_dims(trek_dims_list dims, int ndim)
{
    if (dims.ndim == trek_dims_all().ndim)
        for (dims.ndim = 0; dims.ndim < ndim; dims.ndim++)
            dims.sizes[dims.ndim] = dims.ndim;
    return dims;
}

trek_status trek_resolve_shape(trek_shape *shape, int64_t numel, const char *op)
{
    char text[TREK_SHAPE_TEXT];
    int64_t known = 1, span = 8; /* bytes of the largest dtype, even without elements, because strides are steps of it */
    int open = -1;
    bool bad = shape->ndim < 0 || shape->ndim > TREK_MAX_DIMS;
    for (int d = 0; !bad && d < shape->ndim; d++) {
        if (shape->sizes[d] == -1 && open < 0)
            open = d;
        else
            bad = shape->sizes[d] < 0 || __builtin_mul_overflow(known, shape->sizes[d], &known) ||
                  __builtin_mul_overflow(span, shape->sizes[d] > 1 ? shape->sizes[d] : 1, &span);
    }
    if (!bad && open >= 0) {
        bad = known == 0 || numel % known != 0;
        if (!bad)
            shape->sizes[open] = numel / known;
    } else if (!bad) {
        bad = known != numel;
    }
    if (!bad)
        return TREK_OK;
    return trek_fail(TREK_ERR_SHAPE, "%s: shape: %s; must have the same number of elements as the tensor, %lld", op,
                     trek_shape_format(*shape, text, sizeof text),
                     (long long)numel);
}

bool trek_view_strides(const trek_tensor *t, int ndim, const int64_t *sizes, int64_t *strides)
{
    if (t->numel == 0 || t->contiguous) {
        int64_t stride = 1;
        for (int d = ndim - 1; d >= 0; d--) {
            strides[d] = stride;
            stride *= sizes[d] > 1 ? sizes[d] : 1;
        }
        return true;
    }
    /* Goes through both shapes from the last dimension on. Each run of old dimensions that is evenly spaced must be
     * used up by whole new dimensions. */
    int d = ndim - 1;
    int64_t run = 1, used = 1, base = t->ndim ? t->strides[t->ndim - 1] : 1;
    for (int s = t->ndim - 1; s >= 0; s--) {
        run *= t->sizes[s];
        bool ends = s == 0 || (t->sizes[s - 1] != 1 && t->strides[s - 1] != run * base);
        if (!ends)
            continue;
        while (d >= 0 && (used < run || sizes[d] == 1)) {
            strides[d] = used * base;
            used *= sizes[d];
            d--;
        }
        if (used != run)
            return false;
        if (s > 0) {
            base = t->strides[s - 1];
            run = used = 1;
        }
    }
    return d == -1;
}

/* Makes output 0 a view of input 0. */
static trek_status give_view(trek_op_call *call, int64_t offset, int ndim, const int64_t *sizes, const int64_t *strides)
{
    trek_tensor *x = call->inputs[0];
    char *data = x->data + offset * (int64_t)trek_dtype_size((trek_dtype)x->dtype);
    call->outputs[0] = trek_tensor_make_view(x, data, ndim, sizes, strides);
    call->n_outputs = 1;
    return call->outputs[0] ? TREK_OK : trek_error_status();
}

static trek_shape shape_of_attrs(const trek_op_call *call)
{
    trek_shape shape = { .ndim = (int)call->attrs.i[0] };
    memcpy(shape.sizes, &call->attrs.i[1], sizeof shape.sizes);
    return shape;
}

trek_status trek_infer_reshape(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    trek_shape shape = shape_of_attrs(call);
    if (trek_resolve_shape(&shape, x->numel, "reshape") != TREK_OK)
        return trek_error_status();
    int64_t strides[TREK_MAX_DIMS];
    if (trek_view_strides(x, shape.ndim, shape.sizes, strides))
        return give_view(call, 0, shape.ndim, shape.sizes, strides);
    trek_tensor *flat = trek_tensor_copy(x), *given = x;
    if (!flat)
        return trek_error_status();
    trek_view_strides(flat, shape.ndim, shape.sizes, strides);
    call->inputs[0] = flat;
    trek_status status = give_view(call, 0, shape.ndim, shape.sizes, strides);
    call->inputs[0] = given;
    trek_tensor_release(flat);
    return status;
}

trek_tensor *trek_tensor_view(trek_tensor *tensor, trek_shape shape)
{
    if (!tensor)
        return trek_fail_missing("tensor_view", "tensor"), NULL;
    int64_t strides[TREK_MAX_DIMS];
    if (trek_resolve_shape(&shape, tensor->numel, "tensor_view") != TREK_OK)
        return NULL;
    if (!trek_view_strides(tensor, shape.ndim, shape.sizes, strides))
        return trek_fail_null(TREK_ERR_SHAPE,
                              "tensor_view: the strides do not allow this view; copy it with trek_tensor_contiguous");
    return trek_tensor_make_view(tensor, tensor->data, shape.ndim, shape.sizes, strides);
}

trek_status trek_infer_expand(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    trek_shape shape = shape_of_attrs(call);
    int64_t strides[TREK_MAX_DIMS];
    int added = shape.ndim - x->ndim;
    bool fits = shape.ndim <= TREK_MAX_DIMS && added >= 0;
    for (int d = 0; fits && d < shape.ndim; d++) {
        int64_t size = d >= added ? x->sizes[d - added] : 1;
        if (shape.sizes[d] == -1 && d >= added)
            shape.sizes[d] = size;
        fits = shape.sizes[d] >= 0 && (size == shape.sizes[d] || size == 1);
        strides[d] = d >= added && size == shape.sizes[d] ? x->strides[d - added] : 0;
    }
    if (fits)
        return give_view(call, 0, shape.ndim, shape.sizes, strides);
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    return trek_op_fail(call, TREK_ERR_SHAPE, "shape: %s cannot be expanded to %s", trek_tensor_shape_text(x, a),
                        trek_shape_format(shape, b, sizeof b));
}

trek_status trek_infer_permute(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
    unsigned seen = 0;
    if (call->attrs.i[0] != x->ndim)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dims: %lld are listed for a tensor with %d dimensions",
                            (long long)call->attrs.i[0], x->ndim);
    for (int d = 0; d < x->ndim; d++) {
        int from = trek_normalize_dim(call->attrs.i[1 + d], x->ndim, "permute");
        if (from < 0)
            return trek_error_status();
        if (seen >> from & 1)
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "dims: dimension %d occurs twice", from);
        seen |= 1u << from;
        call->attrs.i[1 + d] = from;
        sizes[d] = x->sizes[from];
        strides[d] = x->strides[from];
    }
    return give_view(call, 0, x->ndim, sizes, strides);
}

trek_status trek_infer_transpose(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    int a = trek_normalize_dim(call->attrs.i[0], x->ndim, "transpose"),
        b = trek_normalize_dim(call->attrs.i[1], x->ndim, "transpose");
    if (a < 0 || b < 0)
        return trek_error_status();
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    memcpy(strides, x->strides, sizeof strides);
    if (x->ndim > 0) {
        sizes[a] = x->sizes[b], sizes[b] = x->sizes[a];
        strides[a] = x->strides[b], strides[b] = x->strides[a];
    }
    call->attrs.i[0] = a, call->attrs.i[1] = b;
    return give_view(call, 0, x->ndim, sizes, strides);
}

trek_status trek_infer_squeeze(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    int dim = trek_normalize_dim(call->attrs.i[0], x->ndim, "squeeze"), n = 0;
    if (dim < 0)
        return trek_error_status();
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        if (d == dim && x->sizes[d] == 1)
            continue;
        sizes[n] = x->sizes[d];
        strides[n++] = x->strides[d];
    }
    return give_view(call, 0, n, sizes, strides);
}

trek_status trek_infer_unsqueeze(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    int dim = trek_normalize_dim(call->attrs.i[0], x->ndim + 1, "unsqueeze");
    if (dim < 0)
        return trek_error_status();
    if (x->ndim == TREK_MAX_DIMS)
        return trek_op_fail(call, TREK_ERR_SHAPE, "x: more than %d dimensions; must be fewer", TREK_MAX_DIMS);
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
    for (int d = 0; d <= x->ndim; d++) {
        int from = d < dim ? d : d - 1;
        sizes[d] = d == dim ? 1 : x->sizes[from];
        strides[d] = d == dim ? (d < x->ndim ? x->strides[d] * x->sizes[d] : 1) : x->strides[from];
    }
    return give_view(call, 0, x->ndim + 1, sizes, strides);
}

/* Returns the dimension of narrow or select; -1 on failure. */
static int slice_dim(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    int dim = trek_normalize_dim(call->attrs.i[0], x->ndim, trek_op_called(call->op));
    if (dim >= 0 && x->ndim == 0)
        return trek_op_fail(call, TREK_ERR_SHAPE, "x: it is a scalar; must have dimensions"), -1;
    call->attrs.i[0] = dim;
    return dim;
}

trek_status trek_infer_narrow(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    int dim = slice_dim(call);
    if (dim < 0)
        return trek_error_status();
    int64_t start = call->attrs.i[1], length = call->attrs.i[2];
    if (start < 0 && start >= -x->sizes[dim])
        start += x->sizes[dim];
    if (start < 0 || length < 0 || start > x->sizes[dim] - length) {
        char text[TREK_SHAPE_TEXT];
        return trek_op_fail(call, TREK_ERR_ARGUMENT,
                            "length and start: %lld elements from %lld on along dimension %d of %s; must be inside",
                            (long long)length, (long long)call->attrs.i[1], dim, trek_tensor_shape_text(x, text));
    }
    call->attrs.i[1] = start;
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    sizes[dim] = length;
    return give_view(call, start * x->strides[dim], x->ndim, sizes, x->strides);
}

trek_status trek_infer_select(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    int dim = slice_dim(call), n = 0;
    if (dim < 0)
        return trek_error_status();
    int64_t index = call->attrs.i[1] < 0 ? call->attrs.i[1] + x->sizes[dim] : call->attrs.i[1];
    if (index < 0 || index >= x->sizes[dim]) {
        char text[TREK_SHAPE_TEXT];
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "index: %lld along dimension %d of %s; must be inside",
                            (long long)call->attrs.i[1], dim, trek_tensor_shape_text(x, text));
    }
    call->attrs.i[1] = index;
    int64_t sizes[TREK_MAX_DIMS], strides[TREK_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        if (d == dim)
            continue;
        sizes[n] = x->sizes[d];
        strides[n++] = x->strides[d];
    }
    return give_view(call, index * x->strides[dim], n, sizes, strides);
}

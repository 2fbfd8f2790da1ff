/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules of sorting, selecting, running extremes, scattering and searching. */
#include <string.h>

#include "tensor/infer_internal.h"
#include "tensor/op_caller_internal.h"

#define TREK_OP(name, signature, infer, ...) trek_status trek_infer_##infer(trek_op_call *call);
#include "tensor/ops.def"
#undef TREK_OP

/* Makes the dimension in attrs.i[k] positive. Returns false on failure. */
static bool take_dim(trek_op_call *call, int k)
{
    int dim = trek_normalize_dim(call->attrs.i[k], call->inputs[0]->ndim, trek_op_called(call->op));
    call->attrs.i[k] = dim;
    return dim >= 0;
}

/* Outputs: values of x's dtype and their indices, both with x's sizes, except `length` along dim. */
static trek_status values_and_places(trek_op_call *call, int64_t length)
{
    trek_tensor *x = call->inputs[0];
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    if (x->ndim > 0)
        sizes[call->attrs.i[0]] = length;
    TRY(trek_op_output(call, 0, x->ndim, sizes, (trek_dtype)x->dtype));
    return trek_op_output(call, 1, x->ndim, sizes, TREK_I64);
}

static int64_t line_length(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    return x->ndim > 0 ? x->sizes[call->attrs.i[0]] : 1;
}

trek_status trek_infer_sort(trek_op_call *call)
{
    return take_dim(call, 0) ? values_and_places(call, line_length(call)) : trek_error_status();
}

trek_status trek_infer_cumulative_extreme(trek_op_call *call) { return trek_infer_sort(call); }

trek_status trek_infer_topk(trek_op_call *call)
{
    if (!take_dim(call, 0))
        return trek_error_status();
    int64_t n = line_length(call), k = call->attrs.i[1];
    if (k < 0 || k > n)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "k: %lld; there are %lld elements", (long long)k, (long long)n);
    if (k == 0 && call->inputs[0]->ndim == 0)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "k: 0; must be 1 for a scalar, which has one element");
    return values_and_places(call, k);
}

trek_status trek_infer_kthvalue(trek_op_call *call)
{
    if (!take_dim(call, 0))
        return trek_error_status();
    int64_t n = line_length(call), k = call->attrs.i[1], which = call->attrs.i[2];
    if (which < 0 || which >= TREK_ORDER_CHOICES)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "which: %lld is unknown", (long long)which);
    if (which != TREK_ORDER_KTH && n == 0)
        return trek_op_fail(call, TREK_ERR_SHAPE, "x: it has 0 elements, which have no value");
    if (which == TREK_ORDER_KTH && (k < 1 || k > n))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "k: %lld; must be 1 to %lld", (long long)k, (long long)n);
    return values_and_places(call, 1);
}

/* Sorted lines and values with the same leading dimensions, or one sorted line for all values. */
trek_status trek_infer_searchsorted(trek_op_call *call)
{
    trek_tensor *lines = call->inputs[0], *x = call->inputs[1];
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    bool fits = lines->ndim == 1 || (lines->ndim > 0 && lines->ndim == x->ndim);
    for (int d = 0; fits && lines->ndim > 1 && d < x->ndim - 1; d++)
        fits = lines->sizes[d] == x->sizes[d];
    if (!fits)
        return trek_op_fail(call, TREK_ERR_SHAPE, "sorted lines: %s do not fit values %s", trek_tensor_shape_text(lines, a),
                            trek_tensor_shape_text(x, b));
    return trek_op_output(call, 0, x->ndim, x->sizes, TREK_I64);
}

/* Their number must be known before the result is made: on a GPU this waits for it. */
trek_status trek_infer_nonzero(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *is = trek_tensor_ne_scalar(x, 0);
    trek_tensor *count = is ? trek_tensor_sum(is, trek_dims_all(), false) : NULL;
    int64_t n = count ? (int64_t)trek_tensor_item(count) : -1, sizes[2] = { n, x->ndim };
    trek_tensor_release(is);
    trek_tensor_release(count);
    return n < 0 || trek_error_status() != TREK_OK ? trek_error_status() : trek_op_output(call, 0, 2, sizes, TREK_I64);
}

trek_status trek_infer_scatter(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *index = call->inputs[1], *source = call->inputs[2];
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    TRY(need_integer(call, "index", index));
    TRY(need_dtype(call, "source", source, (trek_dtype)x->dtype));
    if (!take_dim(call, 0))
        return trek_error_status();
    bool fits = index->ndim == x->ndim;
    for (int d = 0; fits && d < x->ndim; d++)
        fits = d == call->attrs.i[0] || index->sizes[d] <= x->sizes[d];
    if (!fits)
        return trek_op_fail(call, TREK_ERR_SHAPE, "x and index: %s and %s do not fit together", trek_tensor_shape_text(x, a),
                            trek_tensor_shape_text(index, b));
    TRY(need_sizes(call, "source", source, index->ndim, index->sizes));
    return trek_op_output(call, 0, x->ndim, x->sizes, (trek_dtype)x->dtype);
}

trek_status trek_infer_scatter_reduce(trek_op_call *call)
{
    if (call->attrs.i[1] < 0 || call->attrs.i[1] >= TREK_SCATTER_KINDS)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "reduction: %lld; must be a value of trek_scatter_kind",
                            (long long)call->attrs.i[1]);
    return trek_infer_scatter(call);
}

trek_status trek_infer_diagonal(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    if (!take_dim(call, 1) || !take_dim(call, 2))
        return trek_error_status();
    int first = (int)call->attrs.i[1], second = (int)call->attrs.i[2], n = 0;
    if (x->ndim < 2 || first == second)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dims: %d and %d; must be two different dimensions", first, second);
    int64_t offset = call->attrs.i[0], rows = x->sizes[first], columns = x->sizes[second], sizes[TREK_MAX_DIMS],
        strides[TREK_MAX_DIMS];
    int64_t below = offset < 0 ? (offset < -rows ? rows : -offset) : 0,
        right = offset > 0 ? (offset > columns ? columns : offset) : 0;
    int64_t length = rows - below < columns - right ? rows - below : columns - right;
    for (int d = 0; d < x->ndim; d++) {
        if (d == first || d == second)
            continue;
        sizes[n] = x->sizes[d];
        strides[n++] = x->strides[d];
    }
    sizes[n] = length;
    strides[n++] = x->strides[first] + x->strides[second];
    int64_t start = length > 0 ? below * x->strides[first] + right * x->strides[second] : 0;
    call->n_outputs = 1;
    call->outputs[0] = trek_tensor_make_view(x, x->data + start * trek_item_size[x->dtype], n, sizes, strides);
    return call->outputs[0] ? TREK_OK : trek_error_status();
}

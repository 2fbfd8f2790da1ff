/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules of element-wise ops, reductions, and ops that move elements. */
#include <stdlib.h>
#include <string.h>

#include "tensor/channels_last.h"
#include "tensor/number_internal.h"
#include "tensor/op.h"
#include "tensor/op_caller_internal.h"

static trek_status fail_two(trek_op_call *call, trek_status status, const char *what, const trek_tensor *a, const trek_tensor *b)
{
    char x[TREK_SHAPE_TEXT], y[TREK_SHAPE_TEXT];
    return trek_op_fail(call, status, "%s: %s and %s", what, trek_tensor_shape_text(a, x), trek_tensor_shape_text(b, y));
}

static trek_dtype dtype_of(const trek_op_call *call, int k) { return (trek_dtype)call->inputs[k]->dtype; }

static trek_status check_same(trek_op_call *call)
{
    for (int k = 1; k < call->n_inputs; k++)
        if (!trek_same_sizes(call->inputs[0], call->inputs[k]))
            return fail_two(call, TREK_ERR_SHAPE, "shapes differ", call->inputs[0], call->inputs[k]);
    return TREK_OK;
}

/* All inputs must have one shape, which the result gets, too. */
static trek_status same_shape(trek_op_call *call, trek_dtype dtype)
{
    trek_status status = check_same(call);
    return status != TREK_OK ? status : trek_op_output(call, 0, call->inputs[0]->ndim, call->inputs[0]->sizes, dtype);
}

/* Returns the input whose order of dimensions a result of these sizes gets: the first that has these sizes, unless it
 * is row-major. NULL: none. */
static const trek_tensor *layout_giver(const trek_op_call *call, int ndim, const int64_t *sizes)
{
    for (int k = 0; k < call->n_inputs; k++) {
        const trek_tensor *x = call->inputs[k];
        bool whole = x->ndim == ndim && x->numel > 1;
        for (int d = 0; whole && d < ndim; d++)
            whole = x->sizes[d] == sizes[d] && (x->strides[d] != 0 || sizes[d] == 1);
        if (whole)
            return x->contiguous ? NULL : x;
    }
    return NULL;
}

/* Orders a new tensor's dimensions by x's strides, without gaps, as PyTorch does. Element-wise ops can then process
 * both contiguously. */
static void lay_out_as(trek_tensor *t, const trek_tensor *x)
{
    int order[TREK_MAX_DIMS], n = 0;
    bool row_major = true;
    for (int d = 0; d < x->ndim; d++) {
        if (x->sizes[d] == 1)
            continue;
        int at = n++;
        for (; at > 0 && llabs(x->strides[order[at - 1]]) < llabs(x->strides[d]); at--)
            order[at] = order[at - 1];
        order[at] = d;
        row_major = row_major && at == n - 1;
    }
    if (row_major)
        return;
    int64_t step = 1;
    while (n-- > 0) {
        t->strides[order[n]] = step;
        step *= t->sizes[order[n]];
    }
    t->contiguous = false;
}

/* trek_op_output for an element-wise op: a result made here keeps its input's order of dimensions. */
static trek_status output_alike(trek_op_call *call, int ndim, const int64_t *sizes, trek_dtype dtype)
{
    bool given = call->outputs[0];
    trek_status status = trek_op_output(call, 0, ndim, sizes, dtype);
    const trek_tensor *x = given || status != TREK_OK ? NULL : layout_giver(call, ndim, sizes);
    if (x && (x->device.type == TREK_CPU || trek_lies_channels_last(x)))
        lay_out_as(call->outputs[0], x);
    return status;
}

static trek_status same_layout(trek_op_call *call, trek_dtype dtype)
{
    trek_status status = check_same(call);
    return status != TREK_OK ? status : output_alike(call, call->inputs[0]->ndim, call->inputs[0]->sizes, dtype);
}

trek_status trek_infer_same(trek_op_call *call) { return same_layout(call, dtype_of(call, 0)); }

/* The table's dimensions except the last are broadcast to those of x. */
trek_status trek_infer_rotary(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *table = call->inputs[1];
    trek_dtype wanted = dtype_of(call, 0) == TREK_F64 ? TREK_F64 : TREK_F32;
    if (dtype_of(call, 1) != wanted)
        return trek_op_fail(call, TREK_ERR_DTYPE, "table: dtype %s for %s; must be %s", trek_dtype_name(dtype_of(call, 1)),
                            trek_dtype_name(dtype_of(call, 0)), trek_dtype_name(wanted));
    int64_t turned = table->ndim > 0 ? table->sizes[table->ndim - 1] : -1;
    bool fits = turned >= 0 && turned % 2 == 0 && x->ndim >= table->ndim && turned <= x->sizes[x->ndim - 1];
    for (int d = 0; fits && d < table->ndim - 1; d++)
        fits = table->sizes[d] == 1 || table->sizes[d] == x->sizes[d + x->ndim - table->ndim];
    if (!fits)
        return fail_two(call, TREK_ERR_SHAPE, "table: it must be [..., an even number up to D] for x [..., D]", table, x);
    return output_alike(call, x->ndim, x->sizes, dtype_of(call, 0));
}

trek_status trek_infer_to_bool(trek_op_call *call) { return same_layout(call, TREK_BOOL); }
/* ... but row-major, whatever the input is. */
trek_status trek_infer_same_dense(trek_op_call *call) { return same_shape(call, dtype_of(call, 0)); }

trek_status trek_infer_convert(trek_op_call *call)
{
    trek_dtype dtype = (trek_dtype)call->attrs.i[0];
    if (trek_dtype_size(dtype) == 0)
        return trek_op_fail(call, TREK_ERR_DTYPE, "dtype: %lld; must be a value of trek_dtype", (long long)call->attrs.i[0]);
    return same_layout(call, dtype);
}

static trek_status broadcast_into(trek_op_call *call, int first, trek_dtype dtype)
{
    int ndim = 0;
    for (int k = first; k < call->n_inputs; k++)
        if (call->inputs[k]->ndim > ndim)
            ndim = call->inputs[k]->ndim;
    int64_t sizes[TREK_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        sizes[d] = 1;
        for (int k = first; k < call->n_inputs; k++) {
            const trek_tensor *x = call->inputs[k];
            int own = d - (ndim - x->ndim);
            if (own < 0 || x->sizes[own] == 1 || x->sizes[own] == sizes[d])
                continue;
            if (sizes[d] != 1)
                return fail_two(call, TREK_ERR_SHAPE, "shapes do not broadcast", call->inputs[first], x);
            sizes[d] = x->sizes[own];
        }
    }
    return output_alike(call, ndim, sizes, dtype);
}

static trek_status broadcast(trek_op_call *call, trek_dtype dtype)
{
    if (call->n_inputs == 2 && trek_same_sizes(call->inputs[0], call->inputs[1]))
        return output_alike(call, call->inputs[0]->ndim, call->inputs[0]->sizes, dtype);
    return broadcast_into(call, 0, dtype);
}

trek_status trek_infer_broadcast(trek_op_call *call) { return broadcast(call, dtype_of(call, 0)); }
trek_status trek_infer_broadcast_bool(trek_op_call *call) { return broadcast(call, TREK_BOOL); }

trek_status trek_infer_where(trek_op_call *call)
{
    if (dtype_of(call, 0) != TREK_BOOL)
        return trek_op_fail(call, TREK_ERR_DTYPE, "condition: dtype %s; must be bool", trek_dtype_name(dtype_of(call, 0)));
    return broadcast_into(call, 0, dtype_of(call, 1));
}

/* The dtype of a sum, or of what is summed next: f32 for 16 bits. */
static trek_dtype wide_dtype(const trek_op_call *call)
{
    return trek_dtype_is_16bit(dtype_of(call, 0)) ? TREK_F32 : dtype_of(call, 0);
}

trek_status trek_infer_pointwise_loss(trek_op_call *call);
trek_status trek_infer_pointwise_loss(trek_op_call *call)
{
    if (call->attrs.i[0] < 0 || call->attrs.i[0] >= TREK_LOSS_KINDS)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "kind: %lld; must be a loss", (long long)call->attrs.i[0]);
    return broadcast(call, wide_dtype(call));
}

trek_status trek_infer_pointwise_loss_backward(trek_op_call *call);
trek_status trek_infer_pointwise_loss_backward(trek_op_call *call) { return broadcast_into(call, 0, dtype_of(call, 1)); }

/* --- reductions ---------------------------------------------------------------------- */

/* Turns the listed dimensions into a mask. Returns false on failure. */
static bool reduced_dims(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    int64_t *i = call->attrs.i, listed = i[0], mask = 0;
    if (listed < 0 || listed > TREK_MAX_DIMS)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dims: %lld dimensions are listed; must be fewer", (long long)listed), false;
    for (int k = 0; k < listed; k++) {
        int dim = trek_normalize_dim(i[1 + k], x->ndim, trek_op_called(call->op));
        if (dim < 0)
            return false;
        if (mask >> dim & 1)
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "dims: dimension %d occurs twice", dim), false;
        if (x->ndim > 0)
            mask |= (int64_t)1 << dim;
    }
    i[0] = listed == 0 ? ((int64_t)1 << x->ndim) - 1 : mask;
    return true;
}

static trek_status reduce_to(trek_op_call *call, trek_dtype dtype)
{
    trek_tensor *x = call->inputs[0];
    if (!reduced_dims(call))
        return trek_error_status();
    int64_t sizes[TREK_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        bool reduced = call->attrs.i[0] >> d & 1;
        if (!reduced || call->attrs.i[9])
            sizes[n++] = reduced ? 1 : x->sizes[d];
    }
    return trek_op_output(call, 0, n, sizes, dtype);
}

trek_status trek_infer_reduce(trek_op_call *call) { return reduce_to(call, dtype_of(call, 0)); }
trek_status trek_infer_reduce_wide(trek_op_call *call);
trek_status trek_infer_reduce_wide(trek_op_call *call) { return reduce_to(call, wide_dtype(call)); }
trek_status trek_infer_reduce_bool(trek_op_call *call) { return reduce_to(call, TREK_BOOL); }

static trek_dtype sum_dtype(const trek_op_call *call)
{
    return trek_dtype_is_float(dtype_of(call, 0)) ? dtype_of(call, 0) : TREK_I64;
}

trek_status trek_infer_reduce_sum(trek_op_call *call) { return reduce_to(call, sum_dtype(call)); }

/* An element of an empty tensor has no value, even if none is requested. */
static trek_status refuse_empty(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    bool empty = false;
    for (int d = 0; x->numel == 0 && d < x->ndim; d++)
        empty |= x->sizes[d] == 0 && (call->attrs.i[0] >> d & 1);
    if (!empty)
        return TREK_OK;
    char text[TREK_SHAPE_TEXT];
    return trek_op_fail(call, TREK_ERR_SHAPE, "x: %s; it has 0 elements, which have no value", trek_tensor_shape_text(x, text));
}

trek_status trek_infer_reduce_nonempty(trek_op_call *call)
{
    trek_status status = reduce_to(call, dtype_of(call, 0));
    return status == TREK_OK ? refuse_empty(call) : status;
}

trek_status trek_infer_reduce_arg(trek_op_call *call)
{
    if (call->attrs.i[0] > 1)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dims: must be one dimension, or all of them (trek_dims_all())");
    trek_status status = reduce_to(call, TREK_I64);
    return status == TREK_OK ? refuse_empty(call) : status;
}

static bool one_dim(trek_op_call *call)
{
    int dim = trek_normalize_dim(call->attrs.i[0], call->inputs[0]->ndim, trek_op_called(call->op));
    call->attrs.i[0] = dim;
    return dim >= 0;
}

trek_status trek_infer_dim_same(trek_op_call *call)
{
    return one_dim(call) ? same_shape(call, dtype_of(call, 0)) : trek_error_status();
}

trek_status trek_infer_dim_sum(trek_op_call *call)
{
    return one_dim(call) ? same_shape(call, sum_dtype(call)) : trek_error_status();
}

/* --- moving elements -------------------------------------------------------------------- */

trek_status trek_infer_flip(trek_op_call *call)
{
    if (call->attrs.i[0] != 0 && !reduced_dims(call)) /* an empty list means no dimension */
        return trek_error_status();
    return output_alike(call, call->inputs[0]->ndim, call->inputs[0]->sizes, dtype_of(call, 0));
}

trek_status trek_infer_cat(trek_op_call *call)
{
    trek_tensor *first = call->inputs[0];
    if (first->ndim == 0)
        return trek_op_fail(call, TREK_ERR_SHAPE, "inputs: scalars cannot be concatenated; use trek_stack");
    if (!one_dim(call))
        return trek_error_status();
    int dim = (int)call->attrs.i[0];
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, first->sizes, sizeof sizes);
    for (int k = 1; k < call->n_inputs; k++) {
        trek_tensor *x = call->inputs[k];
        bool fits = x->ndim == first->ndim;
        for (int d = 0; fits && d < x->ndim; d++)
            fits = d == dim || x->sizes[d] == first->sizes[d];
        if (!fits)
            return fail_two(call, TREK_ERR_SHAPE, "shapes differ outside of the dimension", first, x);
        if (x->dtype != first->dtype)
            return trek_op_fail(call, TREK_ERR_DTYPE, "inputs: dtypes %s and %s differ; must be equal",
                                trek_dtype_name(dtype_of(call, 0)), trek_dtype_name(dtype_of(call, k)));
        sizes[dim] += x->sizes[dim];
    }
    return trek_op_output(call, 0, first->ndim, sizes, dtype_of(call, 0));
}

trek_status trek_infer_matrix_same(trek_op_call *call)
{
    if (call->inputs[0]->ndim < 2)
        return trek_op_fail(call, TREK_ERR_SHAPE, "x: %d dimensions; must have at least 2", call->inputs[0]->ndim);
    return same_shape(call, dtype_of(call, 0));
}

static bool is_index(trek_op_call *call, int k)
{
    trek_dtype dtype = dtype_of(call, k);
    if (dtype == TREK_I64 || dtype == TREK_I32 || dtype == TREK_U8)
        return true;
    trek_op_fail(call, TREK_ERR_DTYPE, "index: dtype %s; must be an integer dtype", trek_dtype_name(dtype));
    return false;
}

trek_status trek_infer_index_select(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *index = call->inputs[1];
    if (!is_index(call, 1) || !one_dim(call))
        return trek_error_status();
    if (index->ndim > 1 || x->ndim == 0)
        return fail_two(call, TREK_ERR_SHAPE, "x and index: x must have dimensions, and the index 1", x, index);
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    sizes[call->attrs.i[0]] = index->numel;
    return trek_op_output(call, 0, x->ndim, sizes, dtype_of(call, 0));
}

static bool same_dtypes(trek_op_call *call, int a, int b)
{
    if (dtype_of(call, a) == dtype_of(call, b))
        return true;
    trek_op_fail(call, TREK_ERR_DTYPE, "inputs: dtypes %s and %s differ; must be equal", trek_dtype_name(dtype_of(call, a)),
                 trek_dtype_name(dtype_of(call, b)));
    return false;
}

trek_status trek_infer_index_add(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *index = call->inputs[1], *source = call->inputs[2];
    if (!is_index(call, 1) || !one_dim(call) || !same_dtypes(call, 0, 2))
        return trek_error_status();
    int dim = (int)call->attrs.i[0];
    bool fits = x->ndim > 0 && source->ndim == x->ndim && index->ndim <= 1 && source->sizes[dim] == index->numel;
    for (int d = 0; fits && d < x->ndim; d++)
        fits = d == dim || x->sizes[d] == source->sizes[d];
    if (!fits)
        return fail_two(call, TREK_ERR_SHAPE, "source: it does not fit", x, source);
    return trek_op_output(call, 0, x->ndim, x->sizes, dtype_of(call, 0));
}

/* The index may be smaller than `of` in the other dimensions, but not larger. */
static bool index_within(trek_op_call *call, const trek_tensor *index, const trek_tensor *of, int dim)
{
    bool fits = index->ndim == of->ndim;
    for (int d = 0; fits && d < index->ndim; d++)
        fits = d == dim || index->sizes[d] <= of->sizes[d];
    if (!fits)
        fail_two(call, TREK_ERR_SHAPE, "index: it does not fit", of, index);
    return fits;
}

trek_status trek_infer_gather(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *index = call->inputs[1];
    if (!is_index(call, 1) || !one_dim(call) || !index_within(call, index, x, (int)call->attrs.i[0]))
        return trek_error_status();
    return trek_op_output(call, 0, index->ndim, index->sizes, dtype_of(call, 0));
}

trek_status trek_infer_scatter_add(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *index = call->inputs[1], *source = call->inputs[2];
    if (!is_index(call, 1) || !one_dim(call) || !same_dtypes(call, 0, 2))
        return trek_error_status();
    if (!index_within(call, index, x, (int)call->attrs.i[0]) || !index_within(call, index, source, -1))
        return trek_error_status();
    return trek_op_output(call, 0, x->ndim, x->sizes, dtype_of(call, 0));
}

trek_status trek_infer_one_hot(trek_op_call *call)
{
    trek_tensor *x = call->inputs[0];
    if (call->attrs.i[0] == -1) { /* the largest class determines how many there are */
        trek_tensor *most = x->numel ? trek_tensor_max(x, trek_dims_all(), false) : NULL;
        if (!most)
            return trek_op_fail(call, TREK_ERR_SHAPE, "x: it has 0 elements, from which the number of classes does not follow");
        call->attrs.i[0] = (int64_t)trek_tensor_item(most) + 1;
        trek_tensor_release(most);
    }
    if (call->attrs.i[0] < 1 || x->ndim == TREK_MAX_DIMS)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "classes: %lld; must be 0 or more", (long long)call->attrs.i[0]);
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    sizes[x->ndim] = call->attrs.i[0];
    return trek_op_output(call, 0, x->ndim + 1, sizes, TREK_I64);
}

trek_status trek_infer_fill(trek_op_call *call)
{
    const trek_tensor *out = call->outputs[0];
    if (!out)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "x: missing; must be given");
    trek_dtype dtype = (trek_dtype)out->dtype;
    if (call->op->id == TREK_OP_fill && !trek_dtype_is_float(dtype) && !trek_dtype_holds(dtype, call->attrs.f[0]))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "value: %g; %s cannot hold it", call->attrs.f[0], trek_dtype_name(dtype));
    return TREK_OK;
}

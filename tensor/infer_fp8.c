/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules of products of 8-bit numbers. */
#include "tensor/fp8.h"
#include "tensor/infer_internal.h"

static trek_status need_format(const trek_op_call *call, int64_t format)
{
    if (format == TREK_E4M3 || format == TREK_E5M2)
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_ARGUMENT, "format: %lld; must be E4M3 or E5M2", (long long)format);
}

/* The record is written in place. */
static trek_status need_record(const trek_op_call *call, const trek_tensor *record)
{
    char text[TREK_SHAPE_TEXT];
    int64_t role = call->attrs.i[1];
    if (!record)
        return TREK_OK;
    TRY(need_dtype(call, "record", record, TREK_I32));
    TRY(need_ndim(call, "record", record, 2));
    if (role < 0 || role >= record->sizes[0] || record->sizes[1] < 2 || !record->contiguous)
        return trek_op_fail(call, TREK_ERR_SHAPE, "record: %s has no row %lld", trek_tensor_shape_text(record, text),
                            (long long)role);
    return TREK_OK;
}

trek_status trek_infer_fp8_quantise(trek_op_call *call);
trek_status trek_infer_fp8_quantise(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    if (x->ndim == 0)
        return trek_op_fail(call, TREK_ERR_SHAPE, "x: it is a scalar; must have a dimension");
    TRY(need_format(call, call->attrs.i[0]));
    TRY(need_record(call, input(call, 1)));
    if (call->attrs.i[3] < -64 || call->attrs.i[3] > 64)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "margin: %lld; must be inside [-64, 64]", (long long)call->attrs.i[3]);
    int64_t columns = x->sizes[x->ndim - 1], rows = 1, one = 1;
    for (int d = 0; d < x->ndim - 1; d++)
        rows *= x->sizes[d];
    TRY(trek_op_output(call, 0, 2, (const int64_t[2]){ rows, columns }, TREK_U8));
    if (call->attrs.i[2] & TREK_FP8_TURNED)
        TRY(trek_op_output(call, 1, 2, (const int64_t[2]){ columns, rows }, TREK_U8));
    return trek_op_output(call, 2, 1, &one, TREK_F32);
}

trek_status trek_infer_fp8_product(trek_op_call *call);
trek_status trek_infer_fp8_product(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *y = call->inputs[1];
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    trek_dtype dtype = (trek_dtype)call->attrs.i[2];
    TRY(need_ndim(call, "left", x, 2));
    TRY(need_ndim(call, "right", y, 2));
    TRY(need_dtype(call, "right", y, TREK_U8));
    if (x->sizes[1] != y->sizes[1])
        return trek_op_fail(call, TREK_ERR_SHAPE, "x and y: rows of %s and %s; must have equal lengths",
                            trek_tensor_shape_text(x, first), trek_tensor_shape_text(y, second));
    for (int k = 2; k < 4; k++) {
        TRY(need_dtype(call, "scale", call->inputs[k], TREK_F32));
        TRY(need_vector(call, "scale", call->inputs[k], 1));
    }
    TRY(need_format(call, call->attrs.i[0]));
    TRY(need_format(call, call->attrs.i[1]));
    if (dtype != TREK_BF16 && dtype != TREK_F32)
        return trek_op_fail(call, TREK_ERR_DTYPE, "dtype: %s; must be bf16 or f32", trek_dtype_name(dtype));
    TRY(need_vector(call, "bias", input(call, 4), y->sizes[0]));
    TRY(need_dtype(call, "bias", input(call, 4), dtype));
    return trek_op_output(call, 0, 2, (const int64_t[2]){ x->sizes[0], y->sizes[0] }, dtype);
}

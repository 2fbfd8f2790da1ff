/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules of the fused ops of transformers: norms, attention, the loss of a linear layer. */
#include <math.h>

#include "tensor/infer_internal.h"

/* -- norms -- */

/* Checks the dtypes and the number of normalised (last) dimensions, whose sizes weight and bias must have; *rows is
 * the product of the others. */
static trek_status norm_sizes(const trek_op_call *call, const trek_tensor *x, const trek_tensor *weight, const trek_tensor *bias,
                              int64_t *rows)
{
    int64_t dims = call->attrs.i[0];
    char text[TREK_SHAPE_TEXT];
    TRY(need_norm_dtypes(call, (trek_dtype)x->dtype, weight, bias));
    if (dims < 1 || dims > x->ndim)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dims: %lld dimensions of %s cannot be normalised", (long long)dims,
                            trek_tensor_shape_text(x, text));
    if (weight)
        TRY(need_sizes(call, "weight", weight, (int)dims, x->sizes + x->ndim - dims));
    if (bias)
        TRY(need_sizes(call, "bias", bias, (int)dims, x->sizes + x->ndim - dims));
    *rows = 1;
    for (int d = 0; d < x->ndim - dims; d++)
        *rows *= x->sizes[d];
    return TREK_OK;
}

trek_status trek_infer_rms_norm(trek_op_call *call);
trek_status trek_infer_rms_norm(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    int64_t rows;
    TRY(norm_sizes(call, x, input(call, 1), NULL, &rows));
    TRY(trek_op_output(call, 0, x->ndim, x->sizes, (trek_dtype)x->dtype));
    return trek_op_output(call, 1, 1, &rows, statistics_dtype((trek_dtype)x->dtype));
}

trek_status trek_infer_rms_norm_backward(trek_op_call *call);
trek_status trek_infer_rms_norm_backward(trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *x = call->inputs[1], *weight = input(call, 3);
    trek_dtype dtype = (trek_dtype)x->dtype;
    int64_t rows;
    TRY(norm_sizes(call, x, weight, NULL, &rows));
    TRY(need_sizes(call, "gradient", grad, x->ndim, x->sizes));
    TRY(need_dtype(call, "gradient", grad, dtype));
    TRY(need_vector(call, "rstd", call->inputs[2], rows));
    TRY(need_dtype(call, "rstd", call->inputs[2], statistics_dtype(dtype)));
    TRY(trek_op_output(call, 0, x->ndim, x->sizes, dtype));
    if (weight)
        TRY(trek_op_output(call, 1, weight->ndim, weight->sizes, (trek_dtype)weight->dtype));
    return TREK_OK;
}

trek_status trek_infer_add_layer_norm(trek_op_call *call);
trek_status trek_infer_add_layer_norm(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    trek_dtype dtype = (trek_dtype)x->dtype;
    int64_t rows;
    TRY(need_sizes(call, "branch", call->inputs[1], x->ndim, x->sizes));
    TRY(norm_sizes(call, x, input(call, 2), input(call, 3), &rows));
    TRY(trek_op_output(call, 0, x->ndim, x->sizes, dtype));
    TRY(trek_op_output(call, 1, x->ndim, x->sizes, dtype));
    TRY(trek_op_output(call, 2, 1, &rows, statistics_dtype(dtype)));
    return trek_op_output(call, 3, 1, &rows, statistics_dtype(dtype));
}

trek_status trek_infer_add_layer_norm_backward(trek_op_call *call);
trek_status trek_infer_add_layer_norm_backward(trek_op_call *call)
{
    const trek_tensor *residual = call->inputs[2], *weight = input(call, 5);
    trek_dtype dtype = (trek_dtype)residual->dtype;
    int64_t rows;
    TRY(norm_sizes(call, residual, weight, NULL, &rows));
    for (int k = 0; k < 2; k++) {
        if (!call->inputs[k])
            continue;
        TRY(need_sizes(call, k ? "gradient of the residual" : "gradient", call->inputs[k], residual->ndim, residual->sizes));
        TRY(need_dtype(call, k ? "gradient of the residual" : "gradient", call->inputs[k], dtype));
    }
    for (int k = 3; k < 5; k++) {
        TRY(need_vector(call, k == 3 ? "mean" : "rstd", call->inputs[k], rows));
        TRY(need_dtype(call, k == 3 ? "mean" : "rstd", call->inputs[k], statistics_dtype(dtype)));
    }
    int dims = (int)call->attrs.i[0];
    TRY(trek_op_output(call, 0, residual->ndim, residual->sizes, dtype));
    if (weight)
        TRY(trek_op_output(call, 1, dims, weight->sizes, (trek_dtype)weight->dtype));
    return trek_op_output(call, 2, dims, residual->sizes + residual->ndim - dims, norm_bias_dtype(dtype, weight));
}

/* -- attention -- */

static trek_status attention_mismatch(const trek_op_call *call, const char *what, const trek_tensor *x, const trek_tensor *y)
{
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    return trek_op_fail(call, TREK_ERR_SHAPE, "%s: %s and %s", what, trek_tensor_shape_text(x, first),
                        trek_tensor_shape_text(y, second));
}

static trek_status attention_mask(const trek_op_call *call, const trek_tensor *q, const trek_tensor *k, const trek_tensor *mask)
{
    char text[TREK_SHAPE_TEXT], expected[TREK_SHAPE_TEXT];
    int64_t sizes[4] = { q->sizes[0], q->sizes[1], q->sizes[2], k->sizes[2] };
    if (!mask)
        return TREK_OK;
    if (mask->dtype != TREK_BOOL)
        TRY(need_float(call, "mask", mask));
    bool fits = mask->ndim <= 4;
    for (int d = 0; fits && d < mask->ndim; d++)
        fits = mask->sizes[d] == 1 || mask->sizes[d] == sizes[4 - mask->ndim + d];
    if (fits)
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_SHAPE, "mask: %s; must broadcast to %s", trek_tensor_shape_text(mask, text),
                        trek_shape_format(trek_shape_make(sizes, 4), expected, sizeof expected));
}

/* Checks what forward and backward have in common, and stores the scale in the attributes. */
static trek_status check_attention(trek_op_call *call, const trek_tensor *q, const trek_tensor *k, const trek_tensor *v,
                                   const trek_tensor *mask)
{
    trek_attrs *a = &call->attrs;
    TRY(need_ndim(call, "query", q, 4));
    TRY(need_ndim(call, "key", k, 4));
    TRY(need_ndim(call, "value", v, 4));
    if (!trek_same_sizes(k, v))
        return attention_mismatch(call, "key and value differ", k, v);
    if (q->sizes[0] != k->sizes[0] || q->sizes[3] != k->sizes[3])
        return attention_mismatch(call, "batch or depth of query and key differ", q, k);
    if (k->sizes[1] < 1 ? q->sizes[1] > 0 : q->sizes[1] % k->sizes[1] != 0)
        return attention_mismatch(call, "the heads of the query are not a multiple of those of the key", q, k);
    TRY(attention_mask(call, q, k, mask));
    if (!(a->f[0] >= 0 && a->f[0] <= 1))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dropout: %g; must be inside [0, 1)", a->f[0]);
    if (!isfinite(a->f[1]))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "scale: %g; must be finite", a->f[1]);
    if (a->f[1] == TREK_ZERO)
        a->f[1] = -0.0; /* which backward takes as given */
    else if (a->f[1] == 0 && !signbit(a->f[1]))
        a->f[1] = q->sizes[3] > 0 ? 1 / sqrt((double)q->sizes[3]) : 1;
    a->i[4] = a->i[4] != 0;
    return TREK_OK;
}

/* y is stored as [B, T, H, D], so that joining the heads again is a view. */
static trek_status attention_output(trek_op_call *call, const trek_tensor *q)
{
    if (call->outputs[0])
        return trek_op_output(call, 0, 4, q->sizes, (trek_dtype)q->dtype);
    int64_t sizes[4] = { q->sizes[0], q->sizes[2], q->sizes[1], q->sizes[3] };
    trek_tensor *base = trek_tensor_make(4, sizes, (trek_dtype)q->dtype, q->device);
    if (!base)
        return trek_error_status();
    int64_t strides[4] = { base->strides[0], base->strides[2], base->strides[1], base->strides[3] };
    call->outputs[0] = trek_tensor_make_view(base, base->data, 4, q->sizes, strides);
    trek_tensor_release(base);
    if (call->n_outputs < 1)
        call->n_outputs = 1;
    return call->outputs[0] ? TREK_OK : trek_error_status();
}

trek_status trek_infer_attention(trek_op_call *call);
trek_status trek_infer_attention(trek_op_call *call)
{
    const trek_tensor *q = call->inputs[0];
    TRY(check_attention(call, q, call->inputs[1], call->inputs[2], input(call, 3)));
    TRY(attention_output(call, q));
    return trek_op_output(call, 1, 3, q->sizes, statistics_dtype((trek_dtype)q->dtype));
}

trek_status trek_infer_attention_backward(trek_op_call *call);
trek_status trek_infer_attention_backward(trek_op_call *call)
{
    const trek_tensor *q = call->inputs[1], *k = call->inputs[2], *v = call->inputs[3], *lse = call->inputs[5];
    trek_dtype dtype = (trek_dtype)q->dtype;
    TRY(check_attention(call, q, k, v, input(call, 6)));
    TRY(need_sizes(call, "gradient", call->inputs[0], 4, q->sizes));
    TRY(need_sizes(call, "result", call->inputs[4], 4, q->sizes));
    TRY(need_sizes(call, "logsumexp", lse, 3, q->sizes));
    TRY(need_dtype(call, "logsumexp", lse, statistics_dtype(dtype)));
    TRY(trek_op_output(call, 0, 4, q->sizes, dtype));
    TRY(trek_op_output(call, 1, 4, k->sizes, dtype));
    return trek_op_output(call, 2, 4, v->sizes, dtype);
}

/* -- linear_cross_entropy -- */

/* Checks what forward and backward have in common. */
static trek_status check_linear_cross_entropy(const trek_op_call *call, const trek_tensor *x, const trek_tensor *weight,
                                              const trek_tensor *bias, const trek_tensor *labels)
{
    const trek_attrs *a = &call->attrs;
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    TRY(need_ndim(call, "input", x, 2));
    TRY(need_ndim(call, "weight", weight, 2));
    if (x->sizes[1] != weight->sizes[1])
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s does not fit weight %s", trek_tensor_shape_text(x, first),
                            trek_tensor_shape_text(weight, second));
    TRY(need_vector(call, "bias", bias, weight->sizes[0]));
    TRY(need_integer(call, "labels", labels));
    if (labels->ndim != 1 || labels->sizes[0] != x->sizes[0])
        return trek_op_fail(call, TREK_ERR_SHAPE, "labels: %s do not fit input %s", trek_tensor_shape_text(labels, second),
                            trek_tensor_shape_text(x, first));
    if (weight->sizes[0] < 1 && x->sizes[0] > 0)
        return trek_op_fail(call, TREK_ERR_SHAPE, "weight: %s; must have classes", trek_tensor_shape_text(weight, first));
    if (!trek_reduces_losses(a->i[1]))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "reduction: %lld; must be TREK_REDUCTION_MEAN, _SUM or _NONE",
                            (long long)a->i[1]);
    if (!(a->f[0] >= 0 && a->f[0] <= 1))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "label_smoothing: %g; must be inside [0, 1]", a->f[0]);
    int64_t known = TREK_HEAD_X | TREK_HEAD_WEIGHT | (bias ? TREK_HEAD_BIAS : 0);
    if ((a->i[2] & ~known) || (a->i[2] && a->i[1] == TREK_REDUCTION_NONE))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "gradients: %lld cannot be computed on the way", (long long)a->i[2]);
    return TREK_OK;
}

static int64_t kept_numbers(const trek_tensor *x, const trek_tensor *weight, int64_t gradients)
{
    return (gradients & TREK_HEAD_X ? x->numel : 0) + (gradients & TREK_HEAD_WEIGHT ? weight->numel : 0) +
        (gradients & TREK_HEAD_BIAS ? weight->sizes[0] : 0);
}

trek_status trek_infer_linear_cross_entropy(trek_op_call *call);
trek_status trek_infer_linear_cross_entropy(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    trek_dtype dtype = (trek_dtype)x->dtype;
    TRY(check_linear_cross_entropy(call, x, call->inputs[1], call->inputs[2], call->inputs[3]));
    TRY(trek_op_output(call, 0, call->attrs.i[1] == TREK_REDUCTION_NONE ? 1 : 0, x->sizes, statistics_dtype(dtype)));
    TRY(trek_op_output(call, 1, 1, x->sizes, TREK_F64));
    TRY(trek_op_output(call, 2, 0, NULL, statistics_dtype(dtype)));
    if (!call->attrs.i[2])
        return TREK_OK;
    int64_t kept = kept_numbers(x, call->inputs[1], call->attrs.i[2]);
    return trek_op_output(call, 3, 1, &kept, statistics_dtype(dtype));
}

/* The gradients that forward has stored; a given dweight may have another dtype than x. */
static trek_status infer_kept(trek_op_call *call, const trek_tensor *kept)
{
    const trek_tensor *x = call->inputs[1], *weight = call->inputs[2];
    const int64_t gradients = call->attrs.i[2], numbers = kept_numbers(x, weight, gradients);
    trek_dtype dtype = (trek_dtype)x->dtype, wide = statistics_dtype(dtype);
    bool given = call->outputs[1] && (trek_dtype)call->outputs[1]->dtype == wide;
    TRY(need_vector(call, "kept gradients", kept, numbers));
    TRY(need_dtype(call, "kept gradients", kept, wide));
    if (call->attrs.i[3] && !call->outputs[1])
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "output: missing; must be given, to add to it");
    TRY(trek_op_output(call, 0, 2, (int64_t[]){ gradients & TREK_HEAD_X ? x->sizes[0] : 0, x->sizes[1] }, dtype));
    if (gradients & TREK_HEAD_WEIGHT)
        TRY(trek_op_output(call, 1, 2, weight->sizes, given ? wide : dtype));
    return gradients & TREK_HEAD_BIAS ? trek_op_output(call, 2, 1, weight->sizes, dtype) : TREK_OK;
}

trek_status trek_infer_linear_cross_entropy_backward(trek_op_call *call);
trek_status trek_infer_linear_cross_entropy_backward(trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *x = call->inputs[1], *weight = call->inputs[2], *bias = call->inputs[3];
    trek_dtype dtype = (trek_dtype)x->dtype;
    TRY(check_linear_cross_entropy(call, x, weight, bias, call->inputs[4]));
    TRY(need_sizes(call, "gradient", grad, call->attrs.i[1] == TREK_REDUCTION_NONE ? 1 : 0, x->sizes));
    TRY(need_float(call, "gradient", grad));
    TRY(need_vector(call, "logsumexp", call->inputs[5], x->sizes[0]));
    TRY(need_dtype(call, "logsumexp", call->inputs[5], TREK_F64));
    TRY(need_ndim(call, "total weight", call->inputs[6], 0));
    TRY(need_dtype(call, "total weight", call->inputs[6], statistics_dtype(dtype)));
    if (input(call, 7))
        return infer_kept(call, input(call, 7));
    TRY(trek_op_output(call, 0, 2, x->sizes, dtype));
    TRY(trek_op_output(call, 1, 2, weight->sizes, dtype));
    return bias ? trek_op_output(call, 2, 1, bias->sizes, dtype) : TREK_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Linear products with 8-bit operands on the tape: forward x W^T, backward g W and g^T x (Micikevicius et al., "FP8
 * Formats for Deep Learning", 2022: activations and weights in E4M3, gradients in E5M2). What backward needs of x and
 * W is kept as codes. */
#include "autograd/fp8_internal.h"

#include "autograd/autocast.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/fp8.h"

enum { KEPT_X, KEPT_X_SCALES, KEPT_WEIGHT, KEPT_WEIGHT_SCALES, KEPT };

/* The properties of a layer's call, kept by the tape. */
typedef struct product {
    trek_var *record;         /* retained; may be NULL */
    int margin;
    bool training, roll, recording;
    bool calibrates;          /* uses bf16 operands, whose magnitudes enter the record */
    bool x_needs, weight_needs;
    trek_dtype x_dtype, weight_dtype;
    trek_shape x_shape;
} product;

static void product_free(void *data)
{
    product *p = data;
    trek_var_release(p->record);
    trek_free(p);
}

/* Makes codes, their transpose (NULL unless requested) and scales. If record is NULL, the tensor's own magnitude
 * determines the scale. */
static trek_status quantise(const product *p, trek_var *x, trek_var *record, int format, int role, int flags, trek_var *outs[3])
{
    trek_attrs attrs = { .i = { format, role, flags, p->margin } };
    return trek_apply_many(&trek_ops[TREK_OP_fp8_quantise], (trek_var *[]){ x, record }, 2, &attrs, outs, 3);
}

static trek_var *multiply(trek_var *x, trek_var *y, trek_var *x_scales, trek_var *y_scales, trek_var *bias, int x_format,
                          trek_dtype dtype)
{
    return trek_apply_fp8_product(x, y, x_scales, y_scales, bias, x_format, TREK_E4M3, dtype);
}

/* Only enters the magnitude into the record. */
static trek_status observe(const product *p, trek_var *x, int format, int role, int flags)
{
    trek_var *codes[3];
    return quantise(p, x, p->record, format, role, TREK_FP8_OBSERVE | flags, codes);
}

static trek_status calibrating_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs)
{
    const product *p = trek_function_data(context);
    trek_status status = observe(p, inputs[0], TREK_E4M3, TREK_FP8_INPUT, p->roll ? TREK_FP8_ROLL : 0);
    if (status == TREK_OK)
        status = observe(p, inputs[1], TREK_E4M3, TREK_FP8_WEIGHT, 0);
    trek_var *kept[2] = { trek_cast(inputs[0], TREK_BF16), trek_cast(inputs[1], TREK_BF16) };
    trek_var *bias = n > 2 ? trek_cast(inputs[2], TREK_BF16) : NULL;
    if (status != TREK_OK || (n > 2 && !bias))
        return trek_error_status();
    outputs[0] = trek_linear(kept[0], kept[1], bias);
    return outputs[0] && p->recording ? trek_save_for_backward(context, kept, 2) : trek_error_status();
}

/* The sums are f32, as for codes. */
static trek_status calibrating_backward(trek_function_context *context, trek_var *g, bool of_x, bool of_weight,
                                        trek_var **input_grads)
{
    const product *p = trek_function_data(context);
    trek_var *x = trek_saved(context, 0), *weight = trek_saved(context, 1), *wide = trek_cast(g, TREK_F32);
    int64_t in = p->x_shape.sizes[p->x_shape.ndim - 1];
    trek_status status = observe(p, g, TREK_E5M2, TREK_FP8_GRAD, 0);
    if (of_x && status == TREK_OK)
        input_grads[0] = trek_cast(trek_reshape(trek_matmul(wide, trek_cast(weight, TREK_F32)), p->x_shape), p->x_dtype);
    if (of_weight && status == TREK_OK) {
        x = trek_reshape(trek_cast(x, TREK_F32), trek_dims(trek_var_size(g, 0), in));
        input_grads[1] = trek_cast(trek_matmul(trek_transpose(wide, 0, 1), x), p->weight_dtype);
    }
    return trek_error_status();
}

static trek_status product_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs,
                                   int n_outputs)
{
    const product *p = trek_function_data(context);
    trek_var *x[3], *weight[3], *bias = n > 2 ? trek_cast(inputs[2], TREK_BF16) : NULL;
    int of_x = (p->training ? TREK_FP8_OBSERVE : TREK_FP8_FROZEN) | (p->roll ? TREK_FP8_ROLL : 0);
    (void)n_outputs;
    if (p->calibrates)
        return calibrating_forward(context, inputs, n, outputs);
    trek_status status = quantise(p, inputs[0], p->record, TREK_E4M3, TREK_FP8_INPUT,
                                  of_x | (p->weight_needs ? TREK_FP8_TURNED : 0), x);
    if (status == TREK_OK)
        status = quantise(p, inputs[1], p->training ? p->record : NULL, TREK_E4M3, TREK_FP8_WEIGHT,
                          TREK_FP8_OBSERVE | (p->x_needs ? TREK_FP8_TURNED : 0), weight);
    if (status != TREK_OK || (n > 2 && !bias))
        return trek_error_status();
    trek_var *y = multiply(x[0], weight[0], x[2], weight[2], bias, TREK_E4M3, TREK_BF16);
    trek_shape shape = p->x_shape;
    shape.sizes[shape.ndim - 1] = trek_var_size(inputs[1], 0);
    outputs[0] = y ? trek_reshape(y, shape) : NULL;
    if (!outputs[0])
        return trek_error_status();
    if (!p->recording)
        return TREK_OK;
    trek_var *kept[KEPT] = { [KEPT_X] = p->weight_needs ? x[1] : x[2], [KEPT_X_SCALES] = x[2],
                             [KEPT_WEIGHT] = p->x_needs ? weight[1] : weight[2], [KEPT_WEIGHT_SCALES] = weight[2] };
    return trek_save_for_backward(context, kept, KEPT);
}

static trek_status codes_backward(trek_function_context *context, trek_var *g, bool of_x, bool of_weight, trek_var **input_grads)
{
    const product *p = trek_function_data(context);
    trek_var *kept[KEPT], *codes[3];
    for (int k = 0; k < KEPT; k++)
        if (!(kept[k] = trek_saved(context, k)))
            return trek_error_status();
    trek_status status = quantise(p, g, p->record, TREK_E5M2, TREK_FP8_GRAD,
                                  (p->training ? TREK_FP8_OBSERVE : 0) | (of_weight ? TREK_FP8_TURNED : 0), codes);
    if (status != TREK_OK)
        return status;
    if (of_x) {
        trek_var *dx = multiply(codes[0], kept[KEPT_WEIGHT], codes[2], kept[KEPT_WEIGHT_SCALES], NULL, TREK_E5M2, p->x_dtype);
        input_grads[0] = dx ? trek_reshape(dx, p->x_shape) : NULL;
    }
    if (of_weight)
        input_grads[1] = multiply(codes[1], kept[KEPT_X], codes[2], kept[KEPT_X_SCALES], NULL, TREK_E5M2, p->weight_dtype);
    return trek_error_status();
}

/* The gradients' record is written whenever a product with them is needed. */
static trek_status product_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                    int n)
{
    const product *p = trek_function_data(context);
    (void)n_grads;
    if (context->create_graph)
        return trek_fail(TREK_ERR_UNSUPPORTED, "backward: products of 8-bit operands have first derivatives only");
    if (!grads[0])
        return TREK_OK;
    int64_t out = trek_var_size(grads[0], trek_var_ndim(grads[0]) - 1);
    trek_var *g = trek_reshape(grads[0], trek_dims(trek_var_numel(grads[0]) / out, out));
    bool of_x = p->x_needs && trek_needs_grad(context, 0), of_weight = p->weight_needs && trek_needs_grad(context, 1);
    if (!g)
        return trek_error_status();
    trek_status status = !of_x && !of_weight ? TREK_OK
        : p->calibrates                      ? calibrating_backward(context, g, of_x, of_weight, input_grads)
                                             : codes_backward(context, g, of_x, of_weight, input_grads);
    if (status == TREK_OK && n > 2 && trek_needs_grad(context, 2))
        input_grads[2] = trek_sum(trek_cast(g, TREK_F32), trek_dims(0), false);
    return status == TREK_OK ? trek_error_status() : status;
}

static const trek_function linear_function = {
    .name = "fp8_linear", .forward = product_forward, .backward = product_backward, .free = product_free,
};

trek_var *trek_fp8_linear(trek_var *x, trek_var *weight, trek_var *bias, const trek_fp8_scaling *scaling)
{
    if (!x || !weight)
        return trek_fail_missing("linear", "input"), NULL;
    product *p = trek_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    *p = (product){ .record = scaling->record ? trek_var_retain(scaling->record) : NULL, .margin = scaling->margin,
                    .training = scaling->training, .roll = scaling->roll, .calibrates = scaling->calibrates,
                    .recording = trek_recording(),
                    .x_dtype = trek_var_dtype(x), .weight_dtype = trek_var_dtype(weight), .x_shape = trek_var_shape(x) };
    p->x_needs = p->recording && trek_var_requires_grad(x);
    p->weight_needs = p->recording && trek_var_requires_grad(weight);
    trek_var *inputs[] = { x, weight, bias };
    trek_autocast_begin(TREK_F32); /* the ops inside already have the right dtypes */
    trek_var *y = trek_function_apply_one(&linear_function, p, inputs, bias ? 3 : 2);
    trek_autocast_end();
    return y;
}

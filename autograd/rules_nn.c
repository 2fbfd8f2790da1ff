/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of products, convolution, pooling, normalisation, dropout and cross entropy: fused kernels for the
 * first order, the composite under create_graph. */
#include <string.h>

#include "autograd/rules_internal.h"

/* --- products --------------------------------------------------------------------- */

/* The gradient of a 16-bit product that was computed in f32 is multiplied in 16 bits, too. */
trek_status trek_rule_matmul(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    trek_var *other = trek_rule_input(b, trek_rule_needs(b, 0) ? 1 : 0), *g = b->grad;
    if (other && trek_dtype_is_16bit(trek_var_dtype(other)))
        g = trek_cast(g, trek_var_dtype(other));
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_apply_matmul(g, trek_transpose(other, -2, -1)));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_apply_matmul(trek_transpose(trek_rule_input(b, 0), -2, -1), g));
    return status;
}

/* Returns x as rows: [..., n] -> [rows, n], or x itself if it has two dimensions. */
static trek_var *as_rows(trek_var *x)
{
    if (!x || trek_var_ndim(x) == 2)
        return x;
    trek_shape rows = trek_var_shape(x);
    int64_t n = rows.sizes[--rows.ndim]; /* may be 0, without changing the number of rows */
    return trek_reshape(x, trek_dims(trek_shape_numel(rows), n));
}

/* outputs: the results of a product of grad^T and x, computed into the given outputs. */
static trek_status weight_product(trek_tensor *outputs[2], trek_tensor *grad, trek_tensor *x, bool adds, bool sums)
{
    int64_t sizes[2] = { grad->sizes[1], grad->sizes[0] }, strides[2] = { grad->strides[1], grad->strides[0] };
    trek_tensor *turned = trek_tensor_make_view(grad, grad->data, 2, sizes, strides);
    if (!turned)
        return trek_error_status();
    trek_tensor *in[2] = { turned, x };
    trek_op_call call = { .op = &trek_ops[TREK_OP_matmul], .n_inputs = 2, .inputs = in, .n_outputs = 1 + sums,
                          .outputs = { outputs[0], outputs[1] } };
    call.attrs.i[0] = adds | sums << 1; /* adds: to what output 0 holds */
    trek_status status = trek_op_run(&call);
    trek_tensor_release(turned);
    outputs[0] = call.outputs[0];
    outputs[1] = call.outputs[1];
    return status;
}

trek_status trek_rule_weight_into(trek_tensor *place, trek_tensor *grad, trek_tensor *x, bool overwrite)
{
    return weight_product((trek_tensor *[2]){ place, NULL }, grad, x, !overwrite, false);
}

/* Returns where the gradient of input k can be written directly. 16-bit products can give f32, so a gradient kept in
 * f32 is never rounded to 16 bits on its way. */
static trek_tensor *sink_of_product(trek_backward_call *b, int k, bool *overwrite)
{
    trek_tensor *place = trek_rule_sink(b, k, overwrite);
    bool low = trek_dtype_is_16bit((trek_dtype)b->grad->data->dtype);
    return place || !low ? place : trek_rule_sink_wide(b, k, overwrite);
}

static trek_status linear_weight(trek_backward_call *b, trek_var *g, trek_var *x)
{
    bool overwrite;
    if (!g || !x)
        return trek_error_status();
    if (trek_rule_takes_product(b, 1, g->data, x->data))
        return trek_error_status();
    bool alike = g->data->dtype == x->data->dtype;
    trek_tensor *place = alike ? sink_of_product(b, 1, &overwrite) : NULL;
    if (!place)
        return trek_rule_give_to(b, 1, trek_apply_matmul(trek_transpose(g, 0, 1), x));
    trek_status status = trek_rule_weight_into(place, g->data, x->data, overwrite);
    if (status == TREK_OK)
        trek_rule_sunk(b, 1);
    return status;
}

/* Sums over rows, directly into the bias's gradient if that holds nothing yet. */
static trek_status linear_bias(trek_backward_call *b, trek_var *g)
{
    bool overwrite;
    if (!g)
        return trek_error_status();
    if (g->data->sizes[0] == 1) /* the sum of one row is the row */
        return trek_rule_give_to(b, 2, trek_select(g, 0, 0));
    trek_tensor *place = trek_rule_sink(b, 2, &overwrite);
    if (!place || !overwrite)
        return trek_rule_give_to(b, 2, trek_sum(g, trek_dims(0), false));
    trek_op_call call = { .op = &trek_ops[TREK_OP_sum], .n_inputs = 1, .inputs = &g->data, .n_outputs = 1, .outputs = { place } };
    call.attrs.i[0] = 1; /* one dim: 0 */
    trek_status status = trek_op_run(&call);
    if (status == TREK_OK)
        trek_rule_sunk(b, 2);
    return status;
}

/* Computes both at once, for several rows of one 16-bit dtype on devices other than the CPU: libraries there sum the
 * rows that the product reads anyway. */
static trek_status linear_parameters(trek_backward_call *b, trek_var *g, trek_var *x)
{
    bool overwrite_weight = false, overwrite_bias = false;
    trek_tensor *weight = sink_of_product(b, 1, &overwrite_weight), *bias = sink_of_product(b, 2, &overwrite_bias);
    int dtype = weight ? weight->dtype : g->data->dtype; /* of both results */
    trek_tensor *const places[2] = { weight, bias && overwrite_bias && bias->dtype == dtype ? bias : NULL };
    trek_tensor *outputs[2] = { places[0], places[1] };
    trek_status status = weight_product(outputs, g->data, x->data, weight && !overwrite_weight, true);
    for (int k = 0; status == TREK_OK && k < 2; k++)
        if (places[k])
            trek_rule_sunk(b, 1 + k);
        else
            status = trek_rule_give_to(b, 1 + k, trek_cast(trek_var_from(trek_tensor_retain(outputs[k])),
                                                           (trek_dtype)g->data->dtype));
    for (int k = 0; k < 2; k++)
        if (!places[k])
            trek_tensor_release(outputs[k]);
    return status;
}

static bool sums_with_product(const trek_var *g, const trek_var *x)
{
    return g && x && g->data->device.type != TREK_CPU && g->data->dtype == x->data->dtype &&
           trek_dtype_is_16bit((trek_dtype)g->data->dtype) && g->data->sizes[0] > 1;
}

trek_status trek_rule_linear(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *g = as_rows(b->grad);
    if (b->attrs->i[0] == TREK_ACTIVATION_RELU)
        g = trek_apply_relu_backward(g, as_rows(trek_rule_output(b, 0)));
    else if (b->attrs->i[0] == TREK_ACTIVATION_GELU)
        g = trek_apply_gelu_backward(g, as_rows(trek_rule_output(b, 1)), false);
    trek_status status = g ? TREK_OK : trek_error_status();
    if (status == TREK_OK && trek_rule_needs(b, 0)) {
        trek_var *dx = trek_apply_matmul(g, trek_rule_input(b, 1));
        if (dx && b->node && trek_rule_shape(b, 0).ndim != 2)
            dx = trek_reshape(dx, trek_rule_shape(b, 0));
        status = trek_rule_give_to(b, 0, dx);
    }
    trek_var *x = status == TREK_OK && trek_rule_needs(b, 1) ? as_rows(trek_rule_input(b, 0)) : NULL;
    if (status == TREK_OK && trek_rule_needs(b, 2) && sums_with_product(g, x))
        return linear_parameters(b, g, x);
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = linear_weight(b, g, x);
    if (status == TREK_OK && trek_rule_needs(b, 2))
        status = linear_bias(b, g);
    return status;
}

/* --- convolution and pooling ---------------------------------------------------------- */

/* The three are each other's derivatives: the transpose reverses conv2d's change of x's shape, and the weight's
 * gradient is bilinear in x and dy. So they can be differentiated any number of times. */
static trek_var *convolved(const trek_backward_call *b, trek_var *x, trek_var *weight)
{
    trek_attrs numbers = { 0 };
    memcpy(numbers.i, b->attrs->i, 7 * sizeof numbers.i[0]); /* no activation */
    return trek_apply(&trek_ops[TREK_OP_conv2d], (trek_var *[]){ x, weight, NULL }, 3, &numbers);
}

trek_status trek_rule_conv2d(trek_backward_call *b)
{
    trek_var *g = b->grad;
    if (b->attrs->i[7] == TREK_ACTIVATION_RELU)
        g = trek_apply_relu_backward(g, trek_rule_output(b, 0));
    trek_status status = g ? TREK_OK : trek_error_status();
    if (status == TREK_OK && trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, trek_apply_conv2d_input_grad(g, trek_rule_input(b, 1), b->attrs, trek_rule_shape(b, 0)));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_apply_conv2d_weight_grad(g, trek_rule_input(b, 0), b->attrs,
                                                                       trek_rule_shape(b, 1)));
    if (status == TREK_OK && trek_rule_needs(b, 2))
        status = trek_rule_give_to(b, 2, trek_sum(g, trek_dims(0, 2, 3), false));
    return status;
}

/* Also for conv2d_input_grad, which has no bias. */
trek_status trek_rule_conv_transpose2d(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, convolved(b, b->grad, trek_rule_input(b, 1)));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_apply_conv2d_weight_grad(trek_rule_input(b, 0), b->grad, b->attrs,
                                                                       trek_rule_shape(b, 1)));
    if (status == TREK_OK && trek_rule_needs(b, 2))
        status = trek_rule_give_to(b, 2, trek_sum(b->grad, trek_dims(0, 2, 3), false));
    return status;
}

/* The inputs are dy and x. */
trek_status trek_rule_conv2d_weight_grad(trek_backward_call *b)
{
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0))
        status = trek_rule_give_to(b, 0, convolved(b, trek_rule_input(b, 1), b->grad));
    if (status == TREK_OK && trek_rule_needs(b, 1))
        status = trek_rule_give_to(b, 1, trek_apply_conv2d_input_grad(trek_rule_input(b, 0), b->grad, b->attrs,
                                                                      trek_rule_shape(b, 1)));
    return status;
}

trek_status trek_rule_unfold(trek_backward_call *b)
{
    trek_shape shape = trek_rule_shape(b, 0);
    return trek_rule_give(b, trek_apply_fold(b->grad, b->attrs, shape.sizes[2], shape.sizes[3]));
}

trek_status trek_rule_fold(trek_backward_call *b)
{
    return trek_rule_give(b, trek_apply_unfold(b->grad, b->attrs, b->attrs->i[7], b->attrs->i[8]));
}

trek_status trek_rule_max_pool2d(trek_backward_call *b)
{
    trek_shape shape = trek_rule_shape(b, 0);
    trek_var *index = trek_rule_output(b, 1), *grad = b->grad;
    if (!b->create_graph)
        return trek_rule_give(b, trek_apply_max_pool2d_backward(grad, index, shape));
    if (b->attrs->i[6] > 1 || b->attrs->i[7] > 1) { /* windows that lie wholly in the padding selected nothing */
        trek_var *none = trek_lt_scalar(index, 0);
        grad = trek_masked_fill(grad, none, 0);
        index = trek_masked_fill(index, none, 0);
    }
    int64_t n = shape.sizes[0], c = shape.sizes[1], pixels = shape.sizes[2] * shape.sizes[3];
    trek_var *zeros = trek_rule_zeros(b, trek_dims(n, c, pixels));
    trek_var *spread = trek_scatter_add(zeros, 2, trek_flatten(index, 2, 3), trek_flatten(grad, 2, 3));
    return trek_rule_give(b, trek_reshape(spread, shape));
}

trek_status trek_rule_avg_pool2d(trek_backward_call *b)
{
    trek_shape shape = trek_rule_shape(b, 0);
    return trek_rule_give(b, trek_apply_avg_pool2d_backward(b->grad, b->attrs, shape.sizes[2], shape.sizes[3]));
}

trek_status trek_rule_avg_pool2d_backward(trek_backward_call *b)
{
    trek_var *inputs[1] = { b->grad };
    return trek_rule_give(b, trek_apply(&trek_ops[TREK_OP_avg_pool2d], inputs, 1, b->attrs));
}

trek_status trek_rule_adaptive_avg_pool2d(trek_backward_call *b)
{
    trek_shape shape = trek_rule_shape(b, 0);
    trek_attrs numbers = *b->attrs; /* x's layout: a gradient of one position does not determine it */
    numbers.i[0] = shape.sizes[2], numbers.i[1] = shape.sizes[3];
    return trek_rule_give(b, trek_apply(&trek_ops[TREK_OP_adaptive_avg_pool2d_backward], &b->grad, 1, &numbers));
}

trek_status trek_rule_adaptive_avg_pool2d_backward(trek_backward_call *b)
{
    trek_shape shape = trek_rule_shape(b, 0);
    return trek_rule_give(b, trek_adaptive_avg_pool2d(b->grad, shape.sizes[2], shape.sizes[3]));
}

/* Each is the other's transpose, with the same numbers. */
trek_status trek_rule_resample(trek_backward_call *b)
{
    trek_attrs numbers = *b->attrs;
    numbers.i[1] = trek_rule_shape(b, 0).sizes[numbers.i[0]];
    bool backward = b->op->id == TREK_OP_resample_backward;
    return trek_rule_give(b, backward ? trek_apply_resample(b->grad, &numbers) : trek_apply_resample_backward(b->grad, &numbers));
}

trek_status trek_rule_grid_sample(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_attrs numbers = *b->attrs;
    numbers.i[3] = (trek_rule_needs(b, 0) ? 0 : 1) | (trek_rule_needs(b, 1) ? 0 : 2);
    trek_var *in[3] = { b->grad, trek_rule_input(b, 0), trek_rule_input(b, 1) }, *outs[2] = { NULL };
    trek_status status = trek_apply_many(&trek_ops[TREK_OP_grid_sample_backward], in, 3, &numbers, outs, 2);
    for (int k = 0; status == TREK_OK && k < 2; k++)
        b->grads[k] = trek_rule_needs(b, k) ? outs[k] : NULL;
    return status;
}

/* --- normalisation ------------------------------------------------------------------------ */

/* Gives the outputs dx, dweight, dbias of a backward kernel to those inputs that want them. */
static trek_status give_three(trek_backward_call *b, trek_var *const *outs)
{
    for (int k = 0; k < 3 && k < b->n_inputs; k++)
        if (trek_rule_needs(b, k))
            b->grads[k] = outs[k];
    return TREK_OK;
}

/* For a norm that is differentiated by its backward kernel. */
static trek_status norm_rule(trek_backward_call *b, enum trek_op_id backward)
{
    trek_var *in[5] = { b->grad, trek_rule_input(b, 0), trek_rule_output(b, 1), trek_rule_output(b, 2), trek_rule_input(b, 1) };
    trek_var *outs[3] = { NULL };
    trek_status status = trek_apply_many(&trek_ops[backward], in, 5, b->attrs, outs, 3);
    return status == TREK_OK ? give_three(b, outs) : status;
}

trek_status trek_rule_layer_norm(trek_backward_call *b)
{
    return b->create_graph ? trek_rule_composite(b) : norm_rule(b, TREK_OP_layer_norm_backward);
}

trek_status trek_rule_group_norm(trek_backward_call *b)
{
    return b->create_graph ? trek_rule_composite(b) : norm_rule(b, TREK_OP_group_norm_backward);
}

/* In evaluation the statistics are constants. */
static trek_status batch_norm_eval(trek_backward_call *b)
{
    trek_shape x_shape = trek_rule_shape(b, 0), channels = { .ndim = x_shape.ndim };
    trek_dims_list others = { 0 };
    for (int d = 0; d < x_shape.ndim; d++) {
        channels.sizes[d] = d == 1 ? x_shape.sizes[1] : 1;
        if (d != 1)
            others.sizes[others.ndim++] = d;
    }
    trek_var *mean = trek_reshape(trek_rule_output(b, 1), channels), *rstd = trek_reshape(trek_rule_output(b, 2), channels);
    trek_var *weight = trek_rule_input(b, 1), *scale = weight ? trek_mul(rstd, trek_reshape(weight, channels)) : rstd;
    trek_var *grad = trek_rule_wide(b->grad);
    if (!scale || !grad || trek_error_status() != TREK_OK)
        return trek_error_status();
    if (trek_rule_needs(b, 0))
        b->grads[0] = trek_mul(grad, scale);
    if (trek_rule_needs(b, 1))
        b->grads[1] = trek_sum(trek_mul(grad, trek_mul(trek_sub(trek_rule_input(b, 0), mean), rstd)), others, false);
    if (trek_rule_needs(b, 2))
        b->grads[2] = trek_sum(grad, others, false);
    return trek_error_status();
}

trek_status trek_rule_batch_norm(trek_backward_call *b)
{
    if (b->create_graph)
        return b->attrs->i[0] ? trek_rule_composite(b) : batch_norm_eval(b);
    return norm_rule(b, TREK_OP_batch_norm_backward);
}

/* --- dropout, cross entropy ----------------------------------------------------------------- */

/* Uses the same mask again, although nothing of it was kept. */
trek_status trek_rule_dropout(trek_backward_call *b)
{
    return trek_rule_give(b, trek_apply_dropout(b->grad, b->attrs->f[0], b->attrs));
}

trek_status trek_rule_cross_entropy(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *weight = trek_rule_input(b, 2);
    return trek_rule_give(b, trek_apply_cross_entropy_backward(b->grad, trek_rule_input(b, 0), trek_rule_input(b, 1), weight,
                                                               trek_rule_output(b, 1), trek_rule_output(b, 2), b->attrs));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules of products, convolution, pooling, norms, embedding and cross entropy, and how the options of
 * convolution and pooling become attributes. */
#include "tensor/channels_last.h"
#include "tensor/infer_internal.h"
#include "tensor/option_internal.h"

/* -- products -- */

/* A gradient of 16-bit inputs can be requested in f32 by giving such an output. */
static trek_dtype product_dtype(const trek_op_call *call, trek_dtype dtype)
{
    const trek_tensor *given = call->outputs[0];
    return given && given->dtype == TREK_F32 && trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype;
}

static trek_status matmul_mismatch(const trek_op_call *call, const char *what, const trek_tensor *x, const trek_tensor *y)
{
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    return trek_op_fail(call, TREK_ERR_SHAPE, "%s: %s x %s", what, trek_tensor_shape_text(x, first),
                        trek_tensor_shape_text(y, second));
}

trek_status trek_infer_matmul(trek_op_call *call);
trek_status trek_infer_matmul(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *y = call->inputs[1];
    if (x->ndim == 0 || y->ndim == 0)
        return matmul_mismatch(call, "both must have at least one dimension", x, y);
    int64_t k = x->sizes[x->ndim - 1], k_of_y = y->sizes[y->ndim == 1 ? 0 : y->ndim - 2];
    if (k != k_of_y)
        return matmul_mismatch(call, "inner dimensions differ", x, y);
    if ((call->attrs.i[0] & 1) && !call->outputs[0])
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "output: missing; must be given, to add to it");

    int64_t sizes[TREK_MAX_DIMS];
    int x_batch = x->ndim > 2 ? x->ndim - 2 : 0, y_batch = y->ndim > 2 ? y->ndim - 2 : 0;
    int batch = x_batch > y_batch ? x_batch : y_batch, ndim = batch;
    for (int d = 0; d < batch; d++) {
        int64_t a = d < batch - x_batch ? 1 : x->sizes[d - (batch - x_batch)];
        int64_t b = d < batch - y_batch ? 1 : y->sizes[d - (batch - y_batch)];
        if (a != b && a != 1 && b != 1)
            return matmul_mismatch(call, "batch dimensions do not broadcast", x, y);
        sizes[d] = a == 1 ? b : a;
    }
    if (x->ndim > 1)
        sizes[ndim++] = x->sizes[x->ndim - 2];
    if (y->ndim > 1)
        sizes[ndim++] = y->sizes[y->ndim - 1];
    TRY(trek_op_output(call, 0, ndim, sizes, product_dtype(call, x->dtype)));
    if (!(call->attrs.i[0] & 2))
        return TREK_OK;
    if (x->ndim != 2 || y->ndim != 2 || !trek_dtype_is_float((trek_dtype)x->dtype))
        return matmul_mismatch(call, "sums of rows need two floating matrices", x, y);
    return trek_op_output(call, 1, 1, x->sizes, product_dtype(call, x->dtype)); /* as output 0 */
}

trek_status trek_infer_linear(trek_op_call *call);
trek_status trek_infer_linear(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *weight = call->inputs[1];
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    TRY(need_ndim(call, "weight", weight, 2));
    if (x->ndim == 0 || x->sizes[x->ndim - 1] != weight->sizes[1])
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s does not fit weight %s", trek_tensor_shape_text(x, first),
                            trek_tensor_shape_text(weight, second));
    TRY(need_vector(call, "bias", input(call, 2), weight->sizes[0]));
    int64_t activation = call->attrs.i[0];
    if (activation < TREK_ACTIVATION_NONE || activation > TREK_ACTIVATION_GELU)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "activation: %lld; must be a value of trek_activation",
                            (long long)activation);
    int64_t sizes[TREK_MAX_DIMS];
    for (int d = 0; d < x->ndim - 1; d++)
        sizes[d] = x->sizes[d];
    sizes[x->ndim - 1] = weight->sizes[0];
    TRY(trek_op_output(call, 0, x->ndim, sizes, (trek_dtype)x->dtype));
    if (activation == TREK_ACTIVATION_GELU)
        TRY(trek_op_output(call, 1, x->ndim, sizes, (trek_dtype)x->dtype));
    return TREK_OK;
}

/* trek_op_output for an image, which is stored channels last if `last`, unless it was given. */
static trek_status image_output(trek_op_call *call, int k, const int64_t *sizes, trek_dtype dtype, bool last)
{
    bool given = call->outputs[k];
    TRY(trek_op_output(call, k, 4, sizes, dtype));
    trek_tensor *t = call->outputs[k];
    if (last && !given) {
        trek_channels_last_strides(t->sizes, t->strides);
        trek_tensor_set_contiguous(t);
    }
    return TREK_OK;
}

/* -- convolution -- */

/* Bits of i[11]. */
enum { INPUT_LAST = 1, WEIGHT_LAST = 2 };

/* The result of a convolution has the order of x or the weight. The bits are kept for the gradients. */
static trek_status convolved_output(trek_op_call *call, const int64_t *sizes)
{
    const trek_tensor *x = call->inputs[0], *weight = call->inputs[1];
    int64_t last = (trek_lies_channels_last(x) ? INPUT_LAST : 0) | (trek_lies_channels_last(weight) ? WEIGHT_LAST : 0);
    call->attrs.i[11] = last;
    return image_output(call, 0, sizes, (trek_dtype)x->dtype, last != 0);
}

/* [0] defaults to `fallback`, [1] to [0]. */
static void pair(int64_t *to, const int64_t *from, int64_t fallback)
{
    to[0] = from[0] ? from[0] : fallback;
    to[1] = from[1] ? from[1] : to[0];
    for (int d = 0; d < 2; d++)
        if (to[d] == TREK_ZERO)
            to[d] = 0;
}

/* What is not said stays so, until check_window refuses it. */
static void paddings(int64_t *to, const int64_t *from)
{
    trek_option_paddings(to, from, 2);
    for (int d = 0; d < 2; d++)
        to[d] = trek_option_integer(to[d], 0);
}

trek_status trek_option_check_paddings(const char *name, const char *what, const int64_t *padding, int dims)
{
    for (int d = 0; d < dims; d++)
        if (padding[d] == TREK_NOT_SAID)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: %s: " TREK_NOT_SAID_TEXT, name, what);
    for (int d = 0; d < dims; d++)
        if (trek_option_integer(padding[d], 0) < 0)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %lld; must not be negative", name, what, (long long)padding[d]);
    return TREK_OK;
}

void trek_attrs_conv(trek_attrs *a, const trek_conv_opts *opts)
{
    static const trek_conv_opts defaults;
    if (!opts)
        opts = &defaults;
    pair(a->i, opts->stride, 1);
    paddings(a->i + 2, opts->padding);
    pair(a->i + 4, opts->dilation, 1);
    a->i[6] = trek_option_integer(opts->groups, 1);
}

void trek_attrs_conv_transpose(trek_attrs *a, const trek_conv_transpose_opts *opts)
{
    static const trek_conv_transpose_opts defaults;
    if (!opts)
        opts = &defaults;
    pair(a->i, opts->stride, 1);
    paddings(a->i + 2, opts->padding);
    pair(a->i + 4, opts->dilation, 1);
    a->i[6] = trek_option_integer(opts->groups, 1);
    paddings(a->i + 7, opts->output_padding);
    pair(a->i + 9, opts->output_size, 0);
}

void trek_attrs_conv_grad(trek_attrs *a, const trek_attrs *conv, const trek_shape *shape)
{
    *a = *conv;
    for (int d = 0; d < 4; d++)
        a->i[7 + d] = d < shape->ndim ? shape->sizes[d] : 0;
}

static trek_status check_window(const trek_op_call *call, const int64_t *stride, const int64_t *padding, const int64_t *dilation)
{
    if (padding[1] == TREK_NOT_SAID)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "padding: " TREK_NOT_SAID_TEXT);
    for (int d = 0; d < 2; d++)
        if (stride[d] < 1 || padding[d] < 0 || dilation[d] < 1 || stride[d] > INT32_MAX || padding[d] > INT32_MAX ||
            dilation[d] > INT32_MAX)
            return trek_op_fail(call, TREK_ERR_ARGUMENT,
                                "stride [%lld, %lld], dilation [%lld, %lld], padding [%lld, %lld]: out of range; stride and "
                                "dilation must be positive, padding not negative",
                                (long long)stride[0], (long long)stride[1], (long long)dilation[0], (long long)dilation[1],
                                (long long)padding[0], (long long)padding[1]);
    return TREK_OK;
}

/* Returns the number of positions of a window of `kernel` along one dimension; below 1 if it does not fit. */
static int64_t window_places(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
{
    if (kernel > INT32_MAX)
        return 0;
    int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

/* Says why the sizes of x and weight are refused. */
static trek_status refuse_conv(const trek_op_call *call, const int64_t *x, const int64_t *weight)
{
    const int64_t *a = call->attrs.i;
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    trek_shape_format(trek_shape_make(x, 4), first, sizeof first);
    trek_shape_format(trek_shape_make(weight, 4), second, sizeof second);
    if (x[1] % a[6] || x[1] / a[6] != weight[1])
        return trek_op_fail(call, TREK_ERR_SHAPE, "input and weight: channels of %s and %s differ (groups %lld)", first, second,
                            (long long)a[6]);
    if (weight[0] % a[6])
        return trek_op_fail(call, TREK_ERR_SHAPE, "weight: output channels of %s; must be a multiple of groups, %lld", second,
                            (long long)a[6]);
    if (weight[2] < 1 || weight[3] < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE, "weight: %s; the kernel must not be empty", second);
    return trek_op_fail(call, TREK_ERR_SHAPE,
                        "weight: the kernel of %s does not fit the padded input %s (padding [%lld, %lld])", second, first,
                        (long long)a[2], (long long)a[3]);
}

/* Checks sizes of x and weight with the attributes and writes the sizes of the result. */
static trek_status conv_sizes(const trek_op_call *call, const int64_t *x, const int64_t *weight, int64_t *y)
{
    const int64_t *a = call->attrs.i;
    int64_t groups = a[6];
    TRY(check_window(call, a, a + 2, a + 4));
    if (groups < 1)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "groups: %lld; must be positive", (long long)groups);
    if (x[1] % groups || x[1] / groups != weight[1] || weight[0] % groups || weight[2] < 1 || weight[3] < 1)
        return refuse_conv(call, x, weight);
    y[0] = x[0];
    y[1] = weight[0];
    y[2] = window_places(x[2], weight[2], a[0], a[2], a[4]);
    y[3] = window_places(x[3], weight[3], a[1], a[3], a[5]);
    return y[2] < 1 || y[3] < 1 ? refuse_conv(call, x, weight) : TREK_OK;
}

trek_status trek_infer_conv2d(trek_op_call *call);
trek_status trek_infer_conv2d(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *weight = call->inputs[1];
    int64_t sizes[4];
    TRY(need_ndim(call, "input", x, 4));
    TRY(need_ndim(call, "weight", weight, 4));
    TRY(need_vector(call, "bias", input(call, 2), weight->sizes[0]));
    if (call->attrs.i[7] != TREK_ACTIVATION_NONE && call->attrs.i[7] != TREK_ACTIVATION_RELU)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "activation: %lld; must be a value of trek_activation",
                            (long long)call->attrs.i[7]);
    TRY(conv_sizes(call, x->sizes, weight->sizes, sizes));
    return convolved_output(call, sizes);
}

/* Returns the rows or columns of a transposed convolution without output padding; a number larger than any memory if
 * it cannot be represented. */
static int64_t transposed_places(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
{
    int64_t places, reach;
    if (kernel > INT32_MAX || __builtin_mul_overflow(size - 1, stride, &places) ||
        __builtin_mul_overflow(kernel - 1, dilation, &reach) || __builtin_add_overflow(places, reach + 1, &places))
        return INT64_MAX / 2;
    return places - 2 * padding;
}

/* Writes height and width of the result, and the output padding that the requested ones need. */
static trek_status transposed_sizes(const trek_op_call *call, const trek_tensor *x, const trek_tensor *weight, int64_t *a,
                                    int64_t *y)
{
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    for (int d = 0; d < 2; d++) {
        int64_t least = transposed_places(x->sizes[2 + d], weight->sizes[2 + d], a[d], a[2 + d], a[4 + d]);
        if (a[9 + d] != 0 && (a[9 + d] < least || a[9 + d] - least >= a[d]))
            return trek_op_fail(call, TREK_ERR_ARGUMENT,
                                "output size: [%lld, %lld]; %s must be %lld to %lld for input %s and weight %s", (long long)a[9],
                                (long long)a[10], d ? "its width" : "its height", (long long)least, (long long)(least + a[d] - 1),
                                trek_tensor_shape_text(x, first), trek_tensor_shape_text(weight, second));
        if (a[9 + d] != 0)
            a[7 + d] = a[9 + d] - least;
        y[d] = least + a[7 + d];
    }
    if (y[0] < 1 || y[1] < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE,
                            "output: input %s and weight %s give [%lld, %lld] (padding [%lld, %lld]); must be positive",
                            trek_tensor_shape_text(x, first), trek_tensor_shape_text(weight, second), (long long)y[0],
                            (long long)y[1], (long long)a[2], (long long)a[3]);
    return TREK_OK;
}

/* Output padding of at least the stride is refused: conv2d of such a result would be larger than x. */
static trek_status check_output_padding(const trek_op_call *call, const int64_t *a)
{
    if (a[8] == TREK_NOT_SAID)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "output padding: " TREK_NOT_SAID_TEXT);
    for (int d = 0; d < 2; d++)
        if (a[7 + d] < 0 || a[7 + d] >= a[d])
            return trek_op_fail(call, TREK_ERR_ARGUMENT,
                                "output padding: [%lld, %lld]; must not be negative, and smaller than stride [%lld, %lld] or "
                                "dilation [%lld, %lld]",
                                (long long)a[7], (long long)a[8], (long long)a[0], (long long)a[1], (long long)a[4],
                                (long long)a[5]);
    return TREK_OK;
}

trek_status trek_infer_conv_transpose2d(trek_op_call *call);
trek_status trek_infer_conv_transpose2d(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *weight = call->inputs[1];
    int64_t *a = call->attrs.i, groups = a[6];
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    TRY(need_ndim(call, "input", x, 4));
    TRY(need_ndim(call, "weight", weight, 4));
    TRY(check_window(call, a, a + 2, a + 4));
    if (groups < 1)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "groups: %lld; must be positive", (long long)groups);
    if (x->sizes[1] != weight->sizes[0])
        return trek_op_fail(call, TREK_ERR_SHAPE, "input and weight: channels of %s and %s differ",
                            trek_tensor_shape_text(x, first), trek_tensor_shape_text(weight, second));
    if (weight->sizes[0] % groups)
        return trek_op_fail(call, TREK_ERR_SHAPE, "weight: input channels of %s; must be a multiple of groups, %lld",
                            trek_tensor_shape_text(weight, second), (long long)groups);
    if (x->sizes[2] < 1 || x->sizes[3] < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; must have pixels", trek_tensor_shape_text(x, first));
    if (weight->sizes[2] < 1 || weight->sizes[3] < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE, "weight: %s; the kernel must not be empty",
                            trek_tensor_shape_text(weight, second));
    int64_t sizes[4] = { x->sizes[0] };
    if (__builtin_mul_overflow(weight->sizes[1], groups, &sizes[1]))
        return trek_op_fail(call, TREK_ERR_SHAPE, "weight: %s and %lld groups give too many channels",
                            trek_tensor_shape_text(weight, second), (long long)groups);
    TRY(need_vector(call, "bias", input(call, 2), sizes[1]));
    if (a[9] == 0 && a[10] == 0)
        TRY(check_output_padding(call, a));
    TRY(transposed_sizes(call, x, weight, a, sizes + 2));
    return convolved_output(call, sizes);
}

trek_status trek_infer_conv2d_grad(trek_op_call *call);
trek_status trek_infer_conv2d_grad(trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *other = call->inputs[1];
    const int64_t *result = call->attrs.i + 7;
    bool of_input = call->op->id == TREK_OP_conv2d_input_grad;
    int64_t sizes[4];
    TRY(need_ndim(call, "gradient", grad, 4));
    TRY(need_ndim(call, of_input ? "weight" : "input", other, 4));
    TRY(conv_sizes(call, of_input ? result : other->sizes, of_input ? other->sizes : result, sizes));
    TRY(need_sizes(call, "gradient", grad, 4, sizes));
    bool last = call->attrs.i[11] & (of_input ? INPUT_LAST : WEIGHT_LAST);
    return image_output(call, 0, result, product_dtype(call, (trek_dtype)grad->dtype), last);
}

/* Returns the number of windows, or an error. */
static trek_status unfold_places(const trek_op_call *call, int64_t height, int64_t width, int64_t *places)
{
    const int64_t *a = call->attrs.i;
    TRY(check_window(call, a, a + 2, a + 4));
    if (a[7] < 1 || a[8] < 1)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "kernel: [%lld, %lld]; must be positive", (long long)a[7], (long long)a[8]);
    int64_t rows = window_places(height, a[7], a[0], a[2], a[4]), columns = window_places(width, a[8], a[1], a[3], a[5]);
    if (rows < 1 || columns < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE, "kernel: [%lld, %lld] does not fit %lld x %lld with padding [%lld, %lld]",
                            (long long)a[7], (long long)a[8], (long long)height, (long long)width, (long long)a[2],
                            (long long)a[3]);
    *places = rows * columns;
    return TREK_OK;
}

trek_status trek_infer_unfold(trek_op_call *call);
trek_status trek_infer_unfold(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    int64_t places;
    TRY(need_ndim(call, "input", x, 4));
    TRY(unfold_places(call, x->sizes[2], x->sizes[3], &places));
    int64_t sizes[3] = { x->sizes[0], x->sizes[1] * call->attrs.i[7] * call->attrs.i[8], places };
    return trek_op_output(call, 0, 3, sizes, (trek_dtype)x->dtype);
}

trek_status trek_infer_fold(trek_op_call *call);
trek_status trek_infer_fold(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    const int64_t *a = call->attrs.i;
    char text[TREK_SHAPE_TEXT];
    int64_t places;
    TRY(need_ndim(call, "input", x, 3));
    TRY(unfold_places(call, a[9], a[10], &places));
    if (x->sizes[1] % (a[7] * a[8]) || x->sizes[2] != places)
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; must be [N, C * %lld, %lld]", trek_tensor_shape_text(x, text),
                            (long long)(a[7] * a[8]), (long long)places);
    int64_t sizes[4] = { x->sizes[0], x->sizes[1] / (a[7] * a[8]), a[9], a[10] };
    return trek_op_output(call, 0, 4, sizes, (trek_dtype)x->dtype);
}

/* -- pooling -- */

void trek_attrs_pool(trek_attrs *a, const trek_pool_opts *opts)
{
    static const trek_pool_opts defaults;
    if (!opts)
        opts = &defaults;
    pair(a->i, opts->kernel, 0);
    if (opts->stride[0])
        pair(a->i + 2, opts->stride, 0);
    else
        a->i[2] = a->i[0], a->i[3] = opts->stride[1] ? opts->stride[1] : a->i[1];
    paddings(a->i + 4, opts->padding);
    pair(a->i + 6, opts->dilation, 1);
    a->i[8] = opts->ceil_mode;
    a->i[9] = !opts->exclude_padding;
    a->f[0] = (double)opts->divisor_override;
}

/* With ceil_mode a last, partial window counts if it begins inside the input or its left padding. */
static int64_t pool_places(int64_t size, const int64_t *a, int d)
{
    int64_t kernel = a[d], stride = a[2 + d], padding = a[4 + d], dilation = a[6 + d];
    if (kernel > INT32_MAX)
        return 0;
    int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
    if (!a[8])
        return room < 0 ? 0 : room / stride + 1;
    room += stride - 1; /* the last window, rounded up, may be the only one */
    int64_t places = room < 0 ? 0 : room / stride + 1;
    return places > 0 && (places - 1) * stride >= size + padding ? places - 1 : places;
}

static trek_status pool_sizes(const trek_op_call *call, const int64_t *x, int64_t *y)
{
    const int64_t *a = call->attrs.i;
    if (a[0] < 1 || a[1] < 1)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "kernel: [%lld, %lld]; must be positive", (long long)a[0], (long long)a[1]);
    TRY(check_window(call, a + 2, a + 4, a + 6));
    if (a[4] > a[0] / 2 || a[5] > a[1] / 2)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "padding: [%lld, %lld]; must be at most half the kernel, [%lld, %lld]",
                            (long long)a[4], (long long)a[5], (long long)a[0], (long long)a[1]);
    if (call->op->id != TREK_OP_max_pool2d && (a[6] != 1 || a[7] != 1))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dilation: set; only max pooling has it");
    if (x[2] < 1 || x[3] < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %lld x %lld; must have pixels", (long long)x[2], (long long)x[3]);
    y[0] = x[0];
    y[1] = x[1];
    y[2] = pool_places(x[2], a, 0);
    y[3] = pool_places(x[3], a, 1);
    if (y[2] < 1 || y[3] < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE, "kernel: [%lld, %lld] does not fit an input of %lld x %lld", (long long)a[0],
                            (long long)a[1], (long long)x[2], (long long)x[3]);
    return TREK_OK;
}

trek_status trek_infer_pool2d(trek_op_call *call);
trek_status trek_infer_pool2d(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    int64_t sizes[4];
    TRY(need_ndim(call, "input", x, 4));
    TRY(pool_sizes(call, x->sizes, sizes));
    bool last = trek_lies_channels_last(x);
    TRY(image_output(call, 0, sizes, (trek_dtype)x->dtype, last));
    if (call->op->id == TREK_OP_max_pool2d)
        TRY(image_output(call, 1, sizes, TREK_I64, last));
    return TREK_OK;
}

trek_status trek_infer_max_pool2d_backward(trek_op_call *call);
trek_status trek_infer_max_pool2d_backward(trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *index = call->inputs[1];
    const int64_t *a = call->attrs.i;
    char text[TREK_SHAPE_TEXT];
    TRY(need_ndim(call, "gradient", grad, 4));
    TRY(need_sizes(call, "index", index, 4, grad->sizes));
    TRY(need_dtype(call, "index", index, TREK_I64));
    if (a[0] != 4 || a[1] != grad->sizes[0] || a[2] != grad->sizes[1])
        return trek_op_fail(call, TREK_ERR_SHAPE, "gradient: %s does not fit the input's shape",
                            trek_tensor_shape_text(grad, text));
    bool last = trek_lies_channels_last(index) || trek_lies_channels_last(grad);
    return image_output(call, 0, a + 1, (trek_dtype)grad->dtype, last);
}

trek_status trek_infer_avg_pool2d_backward(trek_op_call *call);
trek_status trek_infer_avg_pool2d_backward(trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0];
    TRY(need_ndim(call, "gradient", grad, 4));
    int64_t sizes[4] = { grad->sizes[0], grad->sizes[1], call->attrs.i[10], call->attrs.i[11] }, expected[4];
    TRY(pool_sizes(call, sizes, expected));
    TRY(need_sizes(call, "gradient", grad, 4, expected));
    return image_output(call, 0, sizes, (trek_dtype)grad->dtype, trek_lies_channels_last(grad));
}

static trek_status adaptive_sizes(trek_op_call *call, const char *name)
{
    const trek_tensor *x = call->inputs[0];
    int64_t height = call->attrs.i[0], width = call->attrs.i[1];
    char text[TREK_SHAPE_TEXT];
    TRY(need_ndim(call, name, x, 4));
    if (height < 1 || width < 1)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "sizes: [%lld, %lld]; must be positive", (long long)height,
                            (long long)width);
    if (x->sizes[2] < 1 || x->sizes[3] < 1)
        return trek_op_fail(call, TREK_ERR_SHAPE, "%s: %s; must have pixels", name, trek_tensor_shape_text(x, text));
    int64_t sizes[4] = { x->sizes[0], x->sizes[1], height, width };
    return image_output(call, 0, sizes, (trek_dtype)x->dtype, call->attrs.i[2]);
}

trek_status trek_infer_adaptive_avg_pool2d(trek_op_call *call);
trek_status trek_infer_adaptive_avg_pool2d(trek_op_call *call)
{
    call->attrs.i[2] = trek_lies_channels_last(call->inputs[0]);
    return adaptive_sizes(call, "input");
}

trek_status trek_infer_adaptive_avg_pool2d_backward(trek_op_call *call);
trek_status trek_infer_adaptive_avg_pool2d_backward(trek_op_call *call)
{
    return adaptive_sizes(call, "gradient");
}

trek_status trek_infer_adaptive_max_pool2d(trek_op_call *call);
trek_status trek_infer_adaptive_max_pool2d(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    call->attrs.i[2] = trek_lies_channels_last(x);
    TRY(adaptive_sizes(call, "input"));
    int64_t sizes[4] = { x->sizes[0], x->sizes[1], call->attrs.i[0], call->attrs.i[1] };
    return image_output(call, 1, sizes, TREK_I64, call->attrs.i[2]);
}

/* -- norms -- */

/* Checks the number of normalised dimensions; their product is *columns, that of the others *rows. */
static trek_status layer_norm_sizes(const trek_op_call *call, const trek_tensor *x, int64_t *rows)
{
    int64_t dims = call->attrs.i[0];
    char text[TREK_SHAPE_TEXT];
    if (dims < 1 || dims > x->ndim)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "dims: %lld dimensions of %s cannot be normalised", (long long)dims,
                            trek_tensor_shape_text(x, text));
    *rows = 1;
    for (int d = 0; d < x->ndim - dims; d++)
        *rows *= x->sizes[d];
    return TREK_OK;
}

/* The usual mistake is an input with other sizes than the norm was made for. */
static trek_status need_last_sizes(trek_op_call *call, const trek_tensor *x, const char *name, const trek_tensor *given, int dims)
{
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    if (given->ndim != dims || memcmp(given->sizes, x->sizes + x->ndim - dims, (size_t)dims * sizeof *x->sizes) == 0)
        return need_sizes(call, name, given, dims, x->sizes + x->ndim - dims);
    return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; must end in %s, the sizes of %s", trek_tensor_shape_text(x, first),
                        trek_tensor_shape_text(given, second), name);
}

/* Does so for something that has a number for each channel; NULL: nothing to check. */
static trek_status need_channels(trek_op_call *call, const trek_tensor *x, const char *name, const trek_tensor *given)
{
    char text[TREK_SHAPE_TEXT];
    if (!given || given->ndim != 1 || given->sizes[0] == x->sizes[1])
        return need_vector(call, name, given, x->sizes[1]);
    return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s has %lld channels in dimension 1; %s has %lld",
                        trek_tensor_shape_text(x, text), (long long)x->sizes[1], name, (long long)given->sizes[0]);
}

trek_status trek_infer_layer_norm(trek_op_call *call);
trek_status trek_infer_layer_norm(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    int64_t rows;
    TRY(need_norm_dtypes(call, (trek_dtype)x->dtype, input(call, 1), input(call, 2)));
    TRY(layer_norm_sizes(call, x, &rows));
    int dims = (int)call->attrs.i[0];
    for (int k = 1; k < 3; k++)
        if (input(call, k))
            TRY(need_last_sizes(call, x, k == 1 ? "weight" : "bias", input(call, k), dims));
    TRY(trek_op_output(call, 0, x->ndim, x->sizes, (trek_dtype)x->dtype));
    TRY(trek_op_output(call, 1, 1, &rows, statistics_dtype((trek_dtype)x->dtype)));
    return trek_op_output(call, 2, 1, &rows, statistics_dtype((trek_dtype)x->dtype));
}

/* The gradient and statistics of a norm's backward; outputs dx, dweight (if there is a weight), dbias. */
static trek_status norm_backward(trek_op_call *call, int64_t statistics, int dims, const int64_t *sizes)
{
    const trek_tensor *grad = call->inputs[0], *x = call->inputs[1], *weight = input(call, 4);
    trek_dtype dtype = (trek_dtype)x->dtype, statistics_type = statistics_dtype(dtype);
    TRY(need_sizes(call, "gradient", grad, x->ndim, x->sizes));
    TRY(need_dtype(call, "gradient", grad, dtype));
    for (int k = 2; k < 4; k++) {
        TRY(need_vector(call, k == 2 ? "mean" : "rstd", call->inputs[k], statistics));
        TRY(need_dtype(call, k == 2 ? "mean" : "rstd", call->inputs[k], statistics_type));
    }
    TRY(need_float(call, "weight", weight));
    if (weight)
        TRY(need_sizes(call, "weight", weight, dims, sizes));
    TRY(trek_op_output(call, 0, x->ndim, x->sizes, dtype));
    if (weight)
        TRY(trek_op_output(call, 1, dims, sizes, (trek_dtype)weight->dtype));
    return trek_op_output(call, 2, dims, sizes, norm_bias_dtype(dtype, weight));
}

trek_status trek_infer_layer_norm_backward(trek_op_call *call);
trek_status trek_infer_layer_norm_backward(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[1];
    int64_t rows = 0;
    TRY(need_norm_dtypes(call, (trek_dtype)x->dtype, input(call, 4), NULL));
    TRY(layer_norm_sizes(call, x, &rows));
    int dims = (int)call->attrs.i[0];
    return norm_backward(call, rows, dims, x->sizes + x->ndim - dims);
}

trek_status trek_infer_batch_norm(trek_op_call *call);
trek_status trek_infer_batch_norm(trek_op_call *call)
{
    static const char *const names[] = { "input", "weight", "bias", "running mean", "running variance" };
    const trek_tensor *x = call->inputs[0];
    char text[TREK_SHAPE_TEXT];
    bool training = call->attrs.i[0];
    if (x->ndim < 2)
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; must be [N, C, ...]", trek_tensor_shape_text(x, text));
    int64_t channels = x->sizes[1];
    for (int k = 1; k < 5; k++) {
        TRY(need_channels(call, x, names[k], input(call, k)));
        TRY(need_float(call, names[k], input(call, k)));
    }
    if (!input(call, 3) != !input(call, 4))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "running_mean and running_var: one is NULL; must be given together");
    if (!training && !input(call, 3))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "running_mean and running_var: NULL; must be given outside of training");
    if (training && channels > 0 && x->numel == channels)
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; training needs more than 1 value for each channel",
                            trek_tensor_shape_text(x, text));
    if (trek_lies_channels_last(x))
        TRY(image_output(call, 0, x->sizes, (trek_dtype)x->dtype, true));
    TRY(trek_op_output(call, 0, x->ndim, x->sizes, (trek_dtype)x->dtype));
    TRY(trek_op_output(call, 1, 1, &channels, statistics_dtype((trek_dtype)x->dtype)));
    return trek_op_output(call, 2, 1, &channels, statistics_dtype((trek_dtype)x->dtype));
}

trek_status trek_infer_batch_norm_backward(trek_op_call *call);
trek_status trek_infer_batch_norm_backward(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[1];
    char text[TREK_SHAPE_TEXT];
    if (x->ndim < 2)
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; must be [N, C, ...]", trek_tensor_shape_text(x, text));
    if (trek_lies_channels_last(x))
        TRY(image_output(call, 0, x->sizes, (trek_dtype)x->dtype, true));
    return norm_backward(call, x->sizes[1], 1, &x->sizes[1]);
}

/* The groups of all samples. */
static trek_status group_norm_sizes(const trek_op_call *call, const trek_tensor *x, int64_t *groups)
{
    int64_t count = call->attrs.i[0];
    char text[TREK_SHAPE_TEXT];
    if (x->ndim < 2)
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: %s; must have at least 2 dimensions", trek_tensor_shape_text(x, text));
    if (count < 1 || x->sizes[1] % count != 0)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "groups: %lld channels in %lld groups; must be a multiple",
                            (long long)x->sizes[1], (long long)count);
    *groups = x->sizes[1] > 0 ? x->sizes[0] * count : 0; /* without channels any number of groups is possible */
    return TREK_OK;
}

trek_status trek_infer_group_norm(trek_op_call *call);
trek_status trek_infer_group_norm(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    int64_t groups = 0;
    TRY(group_norm_sizes(call, x, &groups));
    for (int k = 1; k < 3; k++) {
        TRY(need_channels(call, x, k == 1 ? "weight" : "bias", input(call, k)));
        TRY(need_float(call, k == 1 ? "weight" : "bias", input(call, k)));
    }
    if (groups > 0 && x->numel == call->attrs.i[0])
        return trek_op_fail(call, TREK_ERR_SHAPE, "input: 1 value for each group; must have more");
    TRY(trek_op_output(call, 0, x->ndim, x->sizes, (trek_dtype)x->dtype));
    TRY(trek_op_output(call, 1, 1, &groups, statistics_dtype((trek_dtype)x->dtype)));
    return trek_op_output(call, 2, 1, &groups, statistics_dtype((trek_dtype)x->dtype));
}

trek_status trek_infer_group_norm_backward(trek_op_call *call);
trek_status trek_infer_group_norm_backward(trek_op_call *call)
{
    const trek_tensor *x = call->inputs[1];
    int64_t groups = 0;
    TRY(group_norm_sizes(call, x, &groups));
    return norm_backward(call, groups, 1, &x->sizes[1]);
}

/* -- embedding and cross entropy -- */

static trek_status check_padding_index(const trek_op_call *call, int64_t index, int64_t rows)
{
    if (index >= -1 && index < rows)
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_ARGUMENT, "padding_idx: %lld; must be inside [0, %lld)", (long long)index,
                        (long long)rows);
}

trek_status trek_infer_embedding(trek_op_call *call);
trek_status trek_infer_embedding(trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0], *indices = call->inputs[1];
    char text[TREK_SHAPE_TEXT];
    int64_t sizes[TREK_MAX_DIMS];
    TRY(need_ndim(call, "weight", weight, 2));
    TRY(need_integer(call, "indices", indices));
    TRY(check_padding_index(call, call->attrs.i[0], weight->sizes[0]));
    if (indices->ndim == TREK_MAX_DIMS)
        return trek_op_fail(call, TREK_ERR_SHAPE, "indices: %s; too many dimensions", trek_tensor_shape_text(indices, text));
    for (int d = 0; d < indices->ndim; d++)
        sizes[d] = indices->sizes[d];
    sizes[indices->ndim] = weight->sizes[1];
    return trek_op_output(call, 0, indices->ndim + 1, sizes, (trek_dtype)weight->dtype);
}

trek_status trek_infer_embedding_backward(trek_op_call *call);
trek_status trek_infer_embedding_backward(trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *indices = call->inputs[1], *bags = input(call, 2), *factors = input(call, 3);
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    int64_t rows = call->attrs.i[1];
    TRY(need_integer(call, "indices", indices));
    bool fits = bags ? grad->ndim == 2 && trek_same_sizes(bags, indices) : grad->ndim == indices->ndim + 1;
    for (int d = 0; fits && !bags && d < indices->ndim; d++)
        fits = grad->sizes[d] == indices->sizes[d];
    if (!fits)
        return trek_op_fail(call, TREK_ERR_SHAPE, "gradient: %s does not fit indices %s", trek_tensor_shape_text(grad, first),
                            trek_tensor_shape_text(indices, second));
    TRY(need_dtype(call, "bags", bags, TREK_I64));
    TRY(need_dtype(call, "factors", factors, statistics_dtype((trek_dtype)grad->dtype)));
    if (factors)
        TRY(need_sizes(call, "factors", factors, indices->ndim, indices->sizes));
    if (rows < 0)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "rows: %lld; must be 0 or more", (long long)rows);
    TRY(check_padding_index(call, call->attrs.i[0], rows));
    int64_t sizes[2] = { rows, grad->sizes[grad->ndim - 1] };
    return trek_op_output(call, 0, 2, sizes, product_dtype(call, (trek_dtype)grad->dtype));
}

trek_status trek_infer_embedding_bag(trek_op_call *call);
trek_status trek_infer_embedding_bag(trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0], *indices = call->inputs[1], *offsets = call->inputs[2];
    const trek_tensor *factors = input(call, 3);
    int64_t mode = call->attrs.i[1];
    TRY(need_ndim(call, "weight", weight, 2));
    TRY(need_integer(call, "indices", indices));
    TRY(need_ndim(call, "indices", indices, 1));
    TRY(need_dtype(call, "offsets", offsets, TREK_I64));
    TRY(need_ndim(call, "offsets", offsets, 1));
    if (offsets->numel == 0)
        return trek_op_fail(call, TREK_ERR_SHAPE, "offsets: [0]; must be those of bags, and their end");
    TRY(need_vector(call, "per_sample_weights", factors, indices->numel));
    TRY(check_padding_index(call, call->attrs.i[0], weight->sizes[0]));
    if (mode < TREK_REDUCTION_MEAN || mode > TREK_REDUCTION_MAX)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "mode: %lld; must be TREK_REDUCTION_MEAN, _SUM or _MAX", (long long)mode);
    if (factors && mode != TREK_REDUCTION_SUM)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "per_sample_weights: given; only sums have them");
    int64_t sizes[2] = { offsets->numel - 1, weight->sizes[1] },
        places[2] = { mode == TREK_REDUCTION_MAX ? sizes[0] : 0, sizes[1] };
    TRY(trek_op_output(call, 0, 2, sizes, (trek_dtype)weight->dtype));
    return trek_op_output(call, 1, 2, places, TREK_I64);
}

/* Checks what forward and backward of cross entropy have in common. */
static trek_status check_cross_entropy(trek_op_call *call, const trek_tensor *logits, const trek_tensor *labels,
                                       const trek_tensor *weight)
{
    const trek_attrs *a = &call->attrs;
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    TRY(need_ndim(call, "logits", logits, 2));
    TRY(need_integer(call, "labels", labels));
    if (labels->ndim != 1 || labels->sizes[0] != logits->sizes[0])
        return trek_op_fail(call, TREK_ERR_SHAPE, "labels: %s do not fit logits %s, whose dimension 1 is the classes'",
                            trek_tensor_shape_text(labels, second), trek_tensor_shape_text(logits, first));
    if (logits->sizes[1] < 1 && logits->sizes[0] > 0)
        return trek_op_fail(call, TREK_ERR_SHAPE, "logits: %s; must have classes", trek_tensor_shape_text(logits, first));
    TRY(need_vector(call, "class weights", weight, logits->sizes[1]));
    TRY(need_float(call, "class weights", weight));
    if (!trek_reduces_losses(a->i[1]))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "reduction: %lld; must be TREK_REDUCTION_MEAN, _SUM or _NONE",
                            (long long)a->i[1]);
    if (!(a->f[0] >= 0 && a->f[0] <= 1))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "label_smoothing: %g; must be inside [0, 1]", a->f[0]);
    return TREK_OK;
}

trek_status trek_infer_cross_entropy(trek_op_call *call);
trek_status trek_infer_cross_entropy(trek_op_call *call)
{
    const trek_tensor *logits = call->inputs[0];
    TRY(check_cross_entropy(call, logits, call->inputs[1], input(call, 2)));
    trek_dtype dtype = (trek_dtype)logits->dtype;
    TRY(trek_op_output(call, 0, call->attrs.i[1] == TREK_REDUCTION_NONE ? 1 : 0, logits->sizes, dtype));
    TRY(trek_op_output(call, 1, 1, logits->sizes, TREK_F64)); /* its last digits matter in the probabilities */
    return trek_op_output(call, 2, 0, NULL, statistics_dtype(dtype));
}

trek_status trek_infer_cross_entropy_backward(trek_op_call *call);
trek_status trek_infer_cross_entropy_backward(trek_op_call *call)
{
    const trek_tensor *grad = call->inputs[0], *logits = call->inputs[1];
    TRY(check_cross_entropy(call, logits, call->inputs[2], input(call, 3)));
    trek_dtype dtype = (trek_dtype)logits->dtype;
    TRY(need_sizes(call, "gradient", grad, call->attrs.i[1] == TREK_REDUCTION_NONE ? 1 : 0, logits->sizes));
    TRY(need_float(call, "gradient", grad));
    TRY(need_vector(call, "logsumexp", call->inputs[4], logits->sizes[0]));
    TRY(need_dtype(call, "logsumexp", call->inputs[4], TREK_F64));
    TRY(need_ndim(call, "total weight", call->inputs[5], 0));
    TRY(need_dtype(call, "total weight", call->inputs[5], statistics_dtype(dtype)));
    return trek_op_output(call, 0, 2, logits->sizes, dtype);
}

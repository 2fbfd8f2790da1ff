/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d and its gradients: the choice of the method. Also unfold and fold. */
#include "tensor/cpu/conv/conv.h"
#include "tensor/channels_last.h"
#include "tensor/cpu/dense.h"
#include "tensor/cpu/products/gemm_half.h"
#include "tensor/cpu/products/onednn.h"
#include "tensor/rank_context.h"

/* Makes the geometry from the attributes and the shapes of x, weight and y (4 sizes each). */
static trek_conv geometry(const trek_op_call *call, const int64_t *x, const int64_t *weight, const int64_t *y)
{
    const int64_t *a = call->attrs.i;
    trek_conv c = { .dtype = (trek_dtype)call->inputs[0]->dtype, .result = (trek_dtype)call->outputs[0]->dtype };
    c.images = x[0], c.channels = x[1], c.height = x[2], c.width = x[3];
    c.filters = weight[0], c.kernel_h = weight[2], c.kernel_w = weight[3];
    c.out_h = y[2], c.out_w = y[3];
    c.stride_h = a[0], c.stride_w = a[1], c.pad_h = a[2], c.pad_w = a[3], c.dilation_h = a[4], c.dilation_w = a[5];
    c.groups = a[6];
    c.group_channels = c.channels / c.groups;
    c.group_filters = c.filters / c.groups;
    return c;
}

static bool own_f32_suits(const trek_conv *c, trek_onednn_pass pass)
{
    trek_conv f32 = *c, transposed;
    f32.dtype = TREK_F32;
    if (pass == TREK_ONEDNN_FORWARD)
        return TREK_ISA_NAME(trek_conv_batch_suits)(&f32) || TREK_ISA_NAME(trek_conv_direct_suits)(&f32);
    if (pass == TREK_ONEDNN_INPUT_GRAD)
        return TREK_ISA_NAME(trek_conv_direct_suits)(&f32) && TREK_ISA_NAME(trek_conv_transposed)(&f32, &transposed);
    return TREK_ISA_NAME(trek_conv_batch_weight_grad_suits)(&f32) || TREK_ISA_NAME(trek_conv_direct_weight_grad_suits)(&f32);
}

/* Returns what trek_cpu_dense_halves need not convert: bf16 operands that are multiplied in pairs, and `results`.
 * Pairs are used if oneDNN supports them, and by trek's own products unless few channels or groups have a faster
 * method in f32. */
static unsigned halves(const trek_op_call *call, const trek_conv *c, trek_onednn_pass pass, bool results)
{
    if (c->dtype != TREK_BF16 || call->inputs[1]->dtype != TREK_BF16 || !TREK_ISA_NAME(trek_gemm_dots)())
        return 0;
    bool product = c->kernel_h == 1 && c->kernel_w == 1;
    bool pays = trek_onednn_conv_suits(c, pass) || (c->groups == 1 && (product || !own_f32_suits(c, pass)));
    return !pays ? 0 : results ? 3 | TREK_CPU_HALF_RESULTS : 3;
}

/* Returns the convolution of the images of one grain. */
static trek_conv of_grain(trek_conv c)
{
    int64_t grains = trek_rank_here.grains;
    if (grains > 1 && c.images % grains == 0)
        c.images /= grains;
    return c;
}

/* Returns whether the method for a grain gives an image the same bits whatever the number of images. Where images are divided
 * into bands of rows, and how many bands there are follows from their number, weights are multiplied by the zeros of padding, or
 * not. */
static bool treats_images_alike(const trek_conv *all, const trek_conv *grain)
{
    if (grain->dtype == TREK_BF16 || trek_onednn_conv_suits(grain, TREK_ONEDNN_FORWARD))
        return false;
    return TREK_ISA_NAME(trek_conv_batch_suits)(grain) ? grain->pad_h == 0 && TREK_ISA_NAME(trek_conv_batch_suits)(all)
                                                       : TREK_ISA_NAME(trek_conv_direct_suits)(grain);
}

static trek_status convolve(const trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *weight = call->inputs[1], *y = call->outputs[0];
    const void *bias = call->n_inputs > 2 && call->inputs[2] ? call->inputs[2]->data : NULL;
    if (y->numel == 0)
        return TREK_OK;
    trek_conv c = geometry(call, x->sizes, weight->sizes, y->sizes), grain = of_grain(c);
    if (trek_onednn_conv_suits(&grain, TREK_ONEDNN_FORWARD)) {
        trek_status status = trek_onednn_conv(&c, TREK_ONEDNN_FORWARD, false, x->data, weight->data, bias, y->data);
        if (status != TREK_ERR_UNSUPPORTED)
            return status;
    }
    if (c.dtype == TREK_BF16)
        return TREK_ISA_NAME(trek_conv_columns)(&c, x->data, weight->data, bias, y->data);
    if (TREK_ISA_NAME(trek_conv_batch_suits)(&grain))
        return TREK_ISA_NAME(trek_conv_batch)(&c, x->data, weight->data, bias, y->data);
    if (TREK_ISA_NAME(trek_conv_direct_suits)(&grain))
        return TREK_ISA_NAME(trek_conv_direct)(&c, x->data, weight->data, bias, y->data);
    return TREK_ISA_NAME(trek_conv_columns)(&c, x->data, weight->data, bias, y->data);
}

typedef struct relu_job {
    trek_dtype dtype;
    char *data;
} relu_job;

/* NaN remains, as in the op relu. */
static void relu_elements(void *arg, int64_t begin, int64_t end)
{
    const relu_job *job = arg;
    float *f32 = (float *)(void *)job->data;
    double *f64 = (double *)(void *)job->data;
    uint16_t *bf16 = (uint16_t *)(void *)job->data;
    if (job->dtype == TREK_F32)
        for (int64_t i = begin; i < end; i++)
            f32[i] = f32[i] < 0 ? 0 : f32[i];
    else if (job->dtype == TREK_F64)
        for (int64_t i = begin; i < end; i++)
            f64[i] = f64[i] < 0 ? 0 : f64[i];
    else
        for (int64_t i = begin; i < end; i++)
            bf16[i] = bf16[i] > 0x8000 && bf16[i] <= 0xff80 ? 0 : bf16[i]; /* from the smallest below 0 to -Inf */
}

/* For dense y in any order. */
static trek_status activate(const trek_op_call *call)
{
    const trek_tensor *y = call->outputs[0];
    if (call->attrs.i[7] == TREK_ACTIVATION_RELU)
        trek_parallel(y->numel, 16384, relu_elements, &(relu_job){ (trek_dtype)y->dtype, y->data });
    return TREK_OK;
}

static trek_status conv2d_dense(const trek_op_call *call)
{
    trek_status status = convolve(call);
    return status == TREK_OK ? activate(call) : status;
}

/* Runs oneDNN on images that are stored channels last, in place; the weight (or its gradient) is row-major and is
 * copied otherwise. UNSUPPORTED without any effect: the caller must make everything row-major. */
static trek_status channels_last(const trek_op_call *call, const trek_conv *c, trek_onednn_pass pass, const trek_tensor *bias)
{
    const trek_tensor *result = call->outputs[0];
    const trek_tensor *images[2] = { call->inputs[pass == TREK_ONEDNN_WEIGHT_GRAD], result }, *other = call->inputs[0];
    trek_tensor *weight = pass == TREK_ONEDNN_WEIGHT_GRAD ? call->outputs[0] : call->inputs[1];
    if (pass == TREK_ONEDNN_WEIGHT_GRAD)
        images[1] = other;
    const bool plain = call->inputs[0]->dtype == TREK_F32 && call->inputs[1]->dtype == TREK_F32 && result->dtype == TREK_F32;
    if (!plain || !trek_lies_channels_last(images[0]) || !trek_lies_channels_last(images[1]) || !trek_onednn_conv_suits_last(c))
        return TREK_ERR_UNSUPPORTED;
    trek_tensor *dense = pass == TREK_ONEDNN_WEIGHT_GRAD && !weight->contiguous
        ? trek_tensor_make(4, weight->sizes, TREK_F32, weight->device) : trek_tensor_contiguous(weight);
    if (!dense)
        return trek_error_status();
    trek_status status;
    if (pass == TREK_ONEDNN_WEIGHT_GRAD)
        status = trek_onednn_conv(c, pass, true, call->inputs[0]->data, call->inputs[1]->data, NULL, dense->data);
    else
        status = trek_onednn_conv(c, pass, true, call->inputs[0]->data, dense->data, bias ? bias->data : NULL, result->data);
    if (status == TREK_OK && pass == TREK_ONEDNN_WEIGHT_GRAD && dense != weight)
        status = trek_tensor_copy_from(weight, dense);
    trek_tensor_release(dense);
    return status;
}

/* Runs the kernel for each of the grains that the thread runs at once: methods depend on the number of images. Input 0 and the
 * result have images, the other inputs have none. */
static trek_status by_grains(const trek_op_call *call, trek_kernel kernel)
{
    int64_t grains = trek_rank_here.grains, x_sizes[TREK_MAX_DIMS], y_sizes[TREK_MAX_DIMS];
    trek_tensor *inputs[TREK_MAX_FIXED_INPUTS], *x = call->inputs[0], *y = call->outputs[0];
    if (grains <= 1 || y->sizes[0] % grains != 0)
        return kernel(call);
    trek_op_call one = *call;
    trek_status status = TREK_OK;
    memcpy(inputs, call->inputs, (size_t)call->n_inputs * sizeof *inputs);
    memcpy(x_sizes, x->sizes, (size_t)x->ndim * sizeof *x_sizes);
    memcpy(y_sizes, y->sizes, (size_t)y->ndim * sizeof *y_sizes);
    x_sizes[0] = y_sizes[0] = y->sizes[0] / grains;
    one.inputs = inputs;
    trek_rank_here.grains = 1;
    for (int64_t k = 0; k < grains && status == TREK_OK; k++) {
        int64_t x_at = k * x_sizes[0] * x->strides[0], y_at = k * y_sizes[0] * y->strides[0];
        inputs[0] = trek_tensor_make_view(x, x->data + x_at * (int64_t)trek_dtype_size((trek_dtype)x->dtype), x->ndim, x_sizes,
                                          x->strides);
        one.outputs[0] = trek_tensor_make_view(y, y->data + y_at * (int64_t)trek_dtype_size((trek_dtype)y->dtype), y->ndim,
                                               y_sizes, y->strides);
        status = inputs[0] && one.outputs[0] ? kernel(&one) : TREK_ERR_MEMORY;
        trek_tensor_release(inputs[0]);
        trek_tensor_release(one.outputs[0]);
    }
    trek_rank_here.grains = grains;
    return status;
}

static trek_status conv2d_images(const trek_op_call *call)
{
    trek_conv c = geometry(call, call->inputs[0]->sizes, call->inputs[1]->sizes, call->outputs[0]->sizes);
    const trek_tensor *bias = call->n_inputs > 2 ? call->inputs[2] : NULL;
    trek_status status = TREK_ERR_UNSUPPORTED;
    if (!bias || bias->contiguous)
        status = channels_last(call, &c, TREK_ONEDNN_FORWARD, bias);
    if (status != TREK_ERR_UNSUPPORTED)
        return status == TREK_OK ? activate(call) : status;
    return trek_cpu_dense_halves(call, 7, halves(call, &c, TREK_ONEDNN_FORWARD, true), conv2d_dense);
}

static trek_status conv2d(const trek_op_call *call)
{
    trek_conv all = geometry(call, call->inputs[0]->sizes, call->inputs[1]->sizes, call->outputs[0]->sizes);
    trek_conv grain = of_grain(all);
    bool alike = call->inputs[0]->contiguous && call->outputs[0]->contiguous && treats_images_alike(&all, &grain);
    return alike ? conv2d_images(call) : by_grains(call, conv2d_images);
}

static trek_status zeros(trek_tensor *t)
{
    memset(t->data, 0, (size_t)t->numel * trek_dtype_size((trek_dtype)t->dtype));
    return TREK_OK;
}

static trek_status direct_input_grad(const trek_conv *c, const trek_conv *transposed, const void *dy, const trek_tensor *weight,
                                     const void *bias, void *dx)
{
    void *turned = trek_block_alloc((size_t)weight->numel * trek_dtype_size((trek_dtype)weight->dtype));
    if (!turned)
        return TREK_ERR_MEMORY;
    TREK_ISA_NAME(trek_conv_turn_weight)(c, weight->data, turned);
    trek_status status;
    if (TREK_ISA_NAME(trek_conv_batch_suits)(transposed))
        status = TREK_ISA_NAME(trek_conv_batch)(transposed, dy, turned, bias, dx);
    else
        status = TREK_ISA_NAME(trek_conv_direct)(transposed, dy, turned, bias, dx);
    trek_block_free(turned);
    return status;
}

typedef struct bias_job {
    const trek_conv *c;
    const void *bias;
    char *images;
} bias_job;

static void bias_images(void *arg, int64_t begin, int64_t end)
{
    const bias_job *job = arg;
    const trek_conv *c = job->c;
    int64_t places = c->height * c->width, size = c->channels * places * (int64_t)trek_dtype_size(c->result);
    for (int64_t i = begin; i < end; i++)
        trek_conv_add_bias(c->result, c->channels, places, job->bias, job->images + i * size);
}

/* Adds to images [N, C, H, W], which do not have 16 bits; bias may be NULL. */
static trek_status add_bias(const trek_conv *c, const void *bias, void *images)
{
    if (bias)
        trek_parallel(c->images, 65536 / (c->channels * c->height * c->width + 1) + 1, bias_images,
                      &(bias_job){ c, bias, images });
    return TREK_OK;
}

/* Computes dx, or the result of a transposed convolution, whose bias is added. */
static trek_status input_grad_dense(const trek_op_call *call)
{
    trek_tensor *dy = call->inputs[0], *weight = call->inputs[1], *dx = call->outputs[0];
    const trek_tensor *bias = call->n_inputs > 2 ? call->inputs[2] : NULL;
    const void *offset = bias ? bias->data : NULL;
    trek_conv c = geometry(call, dx->sizes, weight->sizes, dy->sizes), transposed;
    if (dx->numel == 0)
        return TREK_OK;
    if (dy->numel == 0 || weight->numel == 0) {
        zeros(dx);
        return add_bias(&c, offset, dx->data);
    }
    if (trek_onednn_conv_suits(&c, TREK_ONEDNN_INPUT_GRAD)) {
        trek_status status = trek_onednn_conv(&c, TREK_ONEDNN_INPUT_GRAD, false, dy->data, weight->data, NULL, dx->data);
        if (status != TREK_ERR_UNSUPPORTED)
            return status == TREK_OK ? add_bias(&c, offset, dx->data) : status;
    }
    if (c.dtype != TREK_BF16 && TREK_ISA_NAME(trek_conv_direct_suits)(&c) && TREK_ISA_NAME(trek_conv_transposed)(&c, &transposed))
        return direct_input_grad(&c, &transposed, dy->data, weight, offset, dx->data);
    return TREK_ISA_NAME(trek_conv_columns_input_grad)(&c, dy->data, weight->data, offset, dx->data);
}

/* Also computes the transposed convolution, whose bias is added to its sums. */
static trek_status input_grad_images(const trek_op_call *call)
{
    trek_conv c = geometry(call, call->outputs[0]->sizes, call->inputs[1]->sizes, call->inputs[0]->sizes);
    bool bias = call->n_inputs > 2 && call->inputs[2];
    trek_status status = bias ? TREK_ERR_UNSUPPORTED : channels_last(call, &c, TREK_ONEDNN_INPUT_GRAD, NULL);
    if (status != TREK_ERR_UNSUPPORTED)
        return status;
    return trek_cpu_dense_halves(call, 7, halves(call, &c, TREK_ONEDNN_INPUT_GRAD, !bias), input_grad_dense);
}

static trek_status input_grad(const trek_op_call *call) { return by_grains(call, input_grad_images); }

static trek_status weight_grad_dense(const trek_op_call *call)
{
    trek_tensor *dy = call->inputs[0], *x = call->inputs[1], *dweight = call->outputs[0];
    if (dy->numel == 0 || x->numel == 0)
        return zeros(dweight);
    trek_conv c = geometry(call, x->sizes, dweight->sizes, dy->sizes);
    if (trek_onednn_conv_suits(&c, TREK_ONEDNN_WEIGHT_GRAD)) {
        trek_status status = trek_onednn_conv(&c, TREK_ONEDNN_WEIGHT_GRAD, false, dy->data, x->data, NULL, dweight->data);
        if (status != TREK_ERR_UNSUPPORTED)
            return status;
    }
    if (c.dtype == TREK_BF16)
        return TREK_ISA_NAME(trek_conv_columns_weight_grad)(&c, dy->data, x->data, dweight->data);
    if (TREK_ISA_NAME(trek_conv_batch_weight_grad_suits)(&c))
        return TREK_ISA_NAME(trek_conv_batch_weight_grad)(&c, dy->data, x->data, dweight->data);
    if (TREK_ISA_NAME(trek_conv_direct_weight_grad_suits)(&c))
        return TREK_ISA_NAME(trek_conv_direct_weight_grad)(&c, dy->data, x->data, dweight->data);
    return TREK_ISA_NAME(trek_conv_columns_weight_grad)(&c, dy->data, x->data, dweight->data);
}

static trek_status conv2d_weight_grad(const trek_op_call *call) 
{
    trek_conv c = geometry(call, call->inputs[1]->sizes, call->outputs[0]->sizes, call->inputs[0]->sizes);
    trek_status status = channels_last(call, &c, TREK_ONEDNN_WEIGHT_GRAD, NULL);
    if (status != TREK_ERR_UNSUPPORTED)
        return status;
    return trek_cpu_dense_halves(call, 3, halves(call, &c, TREK_ONEDNN_WEIGHT_GRAD, false), weight_grad_dense);
}

/* -- unfold and fold -- */

static trek_conv window_geometry(const trek_op_call *call, const int64_t *image, trek_dtype dtype)
{
    const int64_t *a = call->attrs.i;
    trek_conv c = { .dtype = dtype, .images = image[0], .channels = image[1], .height = image[2], .width = image[3] };
    c.groups = 1;
    c.stride_h = a[0], c.stride_w = a[1], c.pad_h = a[2], c.pad_w = a[3], c.dilation_h = a[4], c.dilation_w = a[5];
    c.kernel_h = a[7], c.kernel_w = a[8];
    c.out_h = (c.height + 2 * c.pad_h - c.dilation_h * (c.kernel_h - 1) - 1) / c.stride_h + 1;
    c.out_w = (c.width + 2 * c.pad_w - c.dilation_w * (c.kernel_w - 1) - 1) / c.stride_w + 1;
    return c;
}

typedef struct window_job {
    trek_conv c;
    const char *from;
    char *to;
    int64_t plane, columns;  /* bytes of one channel's image, and of its columns */
    bool fold;
} window_job;

/* Processes ranges of images times channels. */
static void window_channels(void *arg, int64_t begin, int64_t end)
{
    window_job *job = arg;
    if (!job->fold) {
        TREK_ISA_NAME(trek_conv_unfold)(&job->c, end - begin, job->from + begin * job->plane, job->to + begin * job->columns);
        return;
    }
    memset(job->to + begin * job->plane, 0, (size_t)((end - begin) * job->plane));
    TREK_ISA_NAME(trek_conv_fold)(&job->c, end - begin, job->from + begin * job->columns, job->to + begin * job->plane);
}

static trek_status window_dense(const trek_op_call *call)
{
    bool fold = call->op->id == TREK_OP_fold;
    trek_tensor *x = call->inputs[0], *y = call->outputs[0];
    window_job job = { .fold = fold, .from = x->data, .to = y->data };
    if (y->numel == 0)
        return TREK_OK;
    if (x->numel == 0)
        return zeros(y);
    job.c = window_geometry(call, fold ? y->sizes : x->sizes, (trek_dtype)x->dtype);
    int64_t size = (int64_t)trek_dtype_size((trek_dtype)x->dtype);
    job.plane = job.c.height * job.c.width * size;
    job.columns = job.c.kernel_h * job.c.kernel_w * job.c.out_h * job.c.out_w * size;
    trek_parallel(job.c.images * job.c.channels, 65536 / (job.columns + 1) + 1, window_channels, &job);
    return TREK_OK;
}

/* Unfolding moves elements of any dtype. */
static trek_status window(const trek_op_call *call)
{
    return trek_cpu_dense_halves(call, 1, call->op->id == TREK_OP_fold ? 0 : 1 | TREK_CPU_HALF_RESULTS, window_dense);
}

void TREK_ISA_NAME(trek_cpu_register_conv2d)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_conv2d][dtype] = conv2d;
            b->kernels[TREK_OP_conv_transpose2d][dtype] = input_grad;
            b->kernels[TREK_OP_conv2d_input_grad][dtype] = input_grad;
            b->kernels[TREK_OP_conv2d_weight_grad][dtype] = conv2d_weight_grad;
            b->kernels[TREK_OP_unfold][dtype] = window;
            b->kernels[TREK_OP_fold][dtype] = window;
        }
}

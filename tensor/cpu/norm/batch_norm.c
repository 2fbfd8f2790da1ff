/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm (Ioffe and Szegedy 2015), forward and backward. Statistics are kept
 * in double; weights and running statistics may be of any floating dtype. */
#include <math.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"

typedef struct norm_job {
    const void *x, *dy;
    void *y;                                 /* dx in the backward pass */
    int64_t images, channels, pixels;
    double *mean, *variance, *scale, *shift; /* of each channel */
    double *sum, *product, *slope;
} norm_job;

enum { ARRAYS = 7 };

#define TREK_REAL f32
#include "tensor/cpu/norm/batch_norm_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/norm/batch_norm_template.h"
#undef TREK_REAL

/* The job's arrays are one block that begins at job->mean. */
static trek_status job_init(norm_job *job, const trek_tensor *x, void *y)
{
    job->x = x->data;
    job->y = y;
    job->images = x->sizes[0];
    job->channels = x->sizes[1];
    job->pixels = 1;
    for (int d = 2; d < x->ndim; d++)
        job->pixels *= x->sizes[d];
    double *arrays = trek_block_alloc((size_t)(ARRAYS * job->channels + 1) * sizeof *arrays);
    if (!arrays)
        return TREK_ERR_MEMORY;
    job->mean = arrays, job->variance = arrays + job->channels, job->scale = arrays + 2 * job->channels;
    job->shift = arrays + 3 * job->channels, job->sum = arrays + 4 * job->channels;
    job->product = arrays + 5 * job->channels, job->slope = arrays + 6 * job->channels;
    return TREK_OK;
}

static int64_t channel_grain(const norm_job *job)
{
    return (16384 / (job->images * job->pixels + 1) + 8) / 8 * 8; /* no two threads write to one line */
}
static int64_t image_grain(const norm_job *job) { return 16384 / (job->channels * job->pixels + 1) + 1; }

static trek_tensor *input(const trek_op_call *call, int k)
{
    return k < call->n_inputs ? call->inputs[k] : NULL;
}

/* running = (1 - momentum) running + momentum new, with the unbiased variance. */
static void update_running(const trek_op_call *call, const norm_job *job, double *scratch)
{
    double momentum = call->attrs.f[0], count = (double)(job->images * job->pixels);
    for (int k = 3; k < 5; k++) {
        trek_tensor *running = input(call, k);
        trek_cpu_read_vector(running, scratch);
        for (int64_t c = 0; c < job->channels; c++) {
            double now = k == 3 ? job->mean[c] : job->variance[c] * (count / (count - 1));
            scratch[c] = (1 - momentum) * scratch[c] + momentum * now;
        }
        trek_cpu_write_vector(running, scratch);
        trek_tensor_bump(running);
    }
}

static trek_status forward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    bool training = call->attrs.i[0], wide = x->dtype == TREK_F64;
    norm_job job = { 0 };
    if (job_init(&job, x, call->outputs[0]->data) != TREK_OK)
        return TREK_ERR_MEMORY;
    if (training) {
        trek_parallel(job.channels, channel_grain(&job), wide ? statistics_channels_f64 : statistics_channels_f32, &job);
        if (input(call, 3) && x->numel > 0)
            update_running(call, &job, job.sum);
    } else {
        trek_cpu_read_vector(input(call, 3), job.mean);
        trek_cpu_read_vector(input(call, 4), job.variance);
    }
    double *rstd = job.product, *weight = job.slope;
    for (int64_t c = 0; c < job.channels; c++) {
        rstd[c] = 1 / sqrt(job.variance[c] + call->attrs.f[1]);
        weight[c] = 1;
        job.shift[c] = 0;
    }
    if (input(call, 1))
        trek_cpu_read_vector(input(call, 1), weight);
    if (input(call, 2))
        trek_cpu_read_vector(input(call, 2), job.shift);
    for (int64_t c = 0; c < job.channels; c++)
        job.scale[c] = weight[c] * rstd[c];
    trek_cpu_write_vector(call->outputs[1], job.mean);
    trek_cpu_write_vector(call->outputs[2], rstd);
    trek_parallel(job.images, image_grain(&job), wide ? normalize_images_f64 : normalize_images_f32, &job);
    trek_block_free(job.mean);
    return TREK_OK;
}

/* In evaluation dx = dy scale, whatever x is: a norm of dy. */
static void scale_grad(norm_job *job, bool wide)
{
    job->x = job->dy;
    for (int64_t c = 0; c < job->channels; c++)
        job->mean[c] = job->shift[c] = 0;
    trek_parallel(job->images, image_grain(job), wide ? normalize_images_f64 : normalize_images_f32, job);
}

static trek_status backward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[1];
    bool training = call->attrs.i[0], wide = x->dtype == TREK_F64;
    norm_job job = { .dy = call->inputs[0]->data };
    if (job_init(&job, x, call->outputs[0]->data) != TREK_OK)
        return TREK_ERR_MEMORY;
    double count = (double)(job.images * job.pixels), *rstd = job.variance;
    trek_cpu_read_vector(call->inputs[2], job.mean);
    trek_cpu_read_vector(call->inputs[3], rstd);
    trek_parallel(job.channels, channel_grain(&job), wide ? grad_channels_f64 : grad_channels_f32, &job);
    for (int64_t c = 0; c < job.channels; c++)
        job.scale[c] = 1;
    if (input(call, 4))
        trek_cpu_read_vector(input(call, 4), job.scale);
    for (int64_t c = 0; c < job.channels; c++) {
        job.scale[c] *= rstd[c];
        job.shift[c] = count > 0 ? job.scale[c] * job.sum[c] / count : 0;
        job.slope[c] = count > 0 ? job.scale[c] * rstd[c] * rstd[c] * job.product[c] / count : 0;
        job.product[c] *= rstd[c];
    }
    if (call->outputs[1])
        trek_cpu_write_vector(call->outputs[1], job.product);
    trek_cpu_write_vector(call->outputs[2], job.sum);
    if (training)
        trek_parallel(job.images, image_grain(&job), wide ? grad_images_f64 : grad_images_f32, &job);
    else
        scale_grad(&job, wide);
    trek_block_free(job.mean);
    return TREK_OK;
}

static trek_status batch_norm(const trek_op_call *call) { return trek_cpu_dense(call, 1, forward_dense); }
static trek_status batch_norm_backward(const trek_op_call *call) { return trek_cpu_dense(call, 3, backward_dense); }

void TREK_ISA_NAME(trek_cpu_register_batch_norm)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_batch_norm][dtype] = batch_norm;
            b->kernels[TREK_OP_batch_norm_backward][dtype] = batch_norm_backward;
        }
}

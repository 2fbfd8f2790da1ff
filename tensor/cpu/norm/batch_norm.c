/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm (Ioffe and Szegedy 2015) and group norm (Wu and He 2018), forward and backward. Statistics are computed
 * in double; weights and running statistics may have any floating dtype. */
#include <math.h>

#include "tensor/channels_last.h"
#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"
#include "tensor/half_internal.h"

typedef struct norm_job {
    const void *x, *dy;
    void *y;                                 /* dx in the backward pass */
    trek_dtype stored;                       /* of x, dy and y; 16-bit ones are computed in f32 */
    int64_t images, channels, pixels;        /* for a group norm one image with the channels of all images */
    int64_t group;                           /* channels of one group */
    double eps;
    bool training;
    double *mean, *variance, *scale, *shift; /* of each channel */
    double *sum, *product, *slope;
    double *weight, *rstd;                   /* share memory with others of these */
} norm_job;

enum {
    ARRAYS = 7,
    CHUNK = 4096,          /* elements that are read, summed and written at once */
    NARROW = 16,           /* with fewer pixels, channels are processed together */
    NARROW_CHANNELS = CHUNK / NARROW,
    SIDE = 16              /* the most channels together, if rows are short */
};

/* Returns the channels of an image that make a chunk, or 1. */
static int64_t block_channels(const norm_job *job)
{
    return job->pixels > 0 && job->pixels < CHUNK ? CHUNK / job->pixels : 1;
}

/* Returns how many channels are summed together, in memory order: those with rows of less than about a page. */
static int64_t side_by_side(const norm_job *job) { return job->pixels < 1024 ? SIDE : 1; }

/* -- elements [at, at + n) in the type of the computation: in place, or in the buffer -- */

#define BUFFER_f32 CHUNK
#define BUFFER_f64 1 /* no buffer is needed */

static inline const float *read_f32(const norm_job *job, const void *from, int64_t at, int64_t n, float *buffer)
{
    if (job->stored == TREK_F32)
        return (const float *)from + at;
    if (job->stored == TREK_BF16)
        trek_f32_from_bf16_row(buffer, (const uint16_t *)from + at, n);
    else
        trek_f32_from_f16_row(buffer, (const uint16_t *)from + at, n);
    return buffer;
}

static inline const double *read_f64(const norm_job *job, const void *from, int64_t at, int64_t n, double *buffer)
{
    (void)job, (void)n, (void)buffer;
    return (const double *)from + at;
}

/* Where a result of job->y is written, and how it gets from there to y. */
static inline float *place_f32(const norm_job *job, int64_t at, float *buffer)
{
    return job->stored == TREK_F32 ? (float *)job->y + at : buffer;
}
static inline double *place_f64(const norm_job *job, int64_t at, double *buffer)
{
    (void)buffer;
    return (double *)job->y + at;
}
static inline void write_f32(const norm_job *job, int64_t at, int64_t n, const float *placed)
{
    if (job->stored == TREK_BF16)
        trek_bf16_from_f32_row((uint16_t *)job->y + at, placed, n);
    else if (job->stored == TREK_F16)
        trek_f16_from_f32_row((uint16_t *)job->y + at, placed, n);
}
static inline void write_f64(const norm_job *job, int64_t at, int64_t n, const double *placed)
{
    (void)job, (void)at, (void)n, (void)placed;
}

/* -- what is computed from the sums of a channel -- */

static void finish_forward(const norm_job *job, int64_t c)
{
    double spread = job->variance[c] + job->eps;
    job->rstd[c] = spread == 0 && job->training ? 0 : 1 / sqrt(spread); /* all elements are equal: 0, as in PyTorch */
    job->scale[c] = job->weight[c] * job->rstd[c];
}

static void finish_backward(const norm_job *job, int64_t c)
{
    double count = (double)(job->images * job->pixels), rstd = job->rstd[c];
    job->scale[c] = job->weight[c] * rstd;
    job->shift[c] = count > 0 ? job->scale[c] * job->sum[c] / count : 0;
    job->slope[c] = count > 0 ? job->scale[c] * rstd * rstd * job->product[c] / count : 0;
    job->product[c] *= rstd;
}

/* Does so for a group's channels [c, c + job->group), which all get its statistics. */
static void finish_group_forward(const norm_job *job, int64_t c)
{
    double mean = 0, variance = 0, count = (double)job->group;
    for (int64_t k = c; k < c + job->group; k++)
        mean += job->mean[k] / count;
    for (int64_t k = c; k < c + job->group; k++)
        variance += (job->variance[k] + (job->mean[k] - mean) * (job->mean[k] - mean)) / count;
    for (int64_t k = c; k < c + job->group; k++) {
        job->mean[k] = mean;
        job->variance[k] = variance;
        finish_forward(job, k);
    }
}

static void finish_group_backward(const norm_job *job, int64_t c)
{
    double count = (double)(job->group * job->pixels), rstd = job->rstd[c], sum = 0, product = 0;
    for (int64_t k = c; k < c + job->group; k++) {
        sum += job->weight[k] * job->sum[k];
        product += job->weight[k] * job->product[k];
    }
    for (int64_t k = c; k < c + job->group; k++) {
        job->scale[k] = job->weight[k] * rstd;
        job->shift[k] = count > 0 ? rstd * sum / count : 0;
        job->slope[k] = count > 0 ? rstd * rstd * rstd * product / count : 0;
        job->product[k] *= rstd;
    }
}

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
    job->stored = (trek_dtype)x->dtype;
    job->images = x->sizes[0];
    job->channels = x->sizes[1];
    job->pixels = 1;
    for (int d = 2; d < x->ndim; d++)
        job->pixels *= x->sizes[d];
    if (trek_lies_channels_last(x)) { /* every pixel is an image of one pixel */
        job->images *= job->pixels;
        job->pixels = 1;
    }
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
    return (16384 / (job->images * job->pixels + 1) + 8) / 8 * 8; /* no two threads write to one cache line */
}
static int64_t image_grain(const norm_job *job) { return 16384 / (job->channels * job->pixels + 1) + 1; }

/* Returns whether a channel's arrays remain in the cache until they are read again, and there are channels for all
 * threads. Shorter rows are faster in memory order. */
static bool by_channels(const norm_job *job, int arrays)
{
    int64_t bytes = arrays * job->images * job->pixels * (int64_t)trek_dtype_size(job->stored);
    return job->pixels >= 256 && job->channels >= 16 && bytes <= 1 << 19;
}

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

static void read_or_fill(const trek_op_call *call, int k, int64_t channels, double value, double *to)
{
    for (int64_t c = 0; c < channels; c++)
        to[c] = value;
    if (input(call, k))
        trek_cpu_read_vector(input(call, k), to);
}

static trek_status forward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    bool training = call->attrs.i[0], wide = x->dtype == TREK_F64;
    norm_job job = { .eps = call->attrs.f[1], .training = training };
    if (job_init(&job, x, call->outputs[0]->data) != TREK_OK)
        return TREK_ERR_MEMORY;
    bool together = training && by_channels(&job, 2);
    job.rstd = job.product, job.weight = job.slope;
    read_or_fill(call, 1, job.channels, 1, job.weight);
    read_or_fill(call, 2, job.channels, 0, job.shift);
    if (together) {
        trek_parallel(job.channels, channel_grain(&job), wide ? forward_channels_f64 : forward_channels_f32, &job);
    } else if (training) {
        trek_parallel(job.channels, channel_grain(&job), wide ? statistics_channels_f64 : statistics_channels_f32, &job);
    } else {
        trek_cpu_read_vector(input(call, 3), job.mean);
        trek_cpu_read_vector(input(call, 4), job.variance);
    }
    if (training && input(call, 3) && x->numel > 0)
        update_running(call, &job, job.sum);
    for (int64_t c = 0; c < job.channels && !together; c++)
        finish_forward(&job, c);
    trek_cpu_write_vector(call->outputs[1], job.mean);
    trek_cpu_write_vector(call->outputs[2], job.rstd);
    if (!together)
        trek_parallel(job.images, image_grain(&job), wide ? normalize_images_f64 : normalize_images_f32, &job);
    trek_block_free(job.mean);
    return TREK_OK;
}

/* In evaluation dx = dy scale for any x: a norm of dy. */
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
    bool together = training && by_channels(&job, 3);
    job.rstd = job.variance, job.weight = job.scale;
    trek_cpu_read_vector(call->inputs[2], job.mean);
    trek_cpu_read_vector(call->inputs[3], job.rstd);
    read_or_fill(call, 4, job.channels, 1, job.weight);
    for (int64_t c = 0; c < job.channels; c++)
        job.sum[c] = job.product[c] = 0;
    if (together)
        trek_parallel(job.channels, channel_grain(&job), wide ? backward_channels_f64 : backward_channels_f32, &job);
    else
        trek_parallel(job.channels, channel_grain(&job), wide ? grad_channels_f64 : grad_channels_f32, &job);
    for (int64_t c = 0; c < job.channels && !together; c++)
        finish_backward(&job, c);
    if (call->outputs[1])
        trek_cpu_write_vector(call->outputs[1], job.product);
    trek_cpu_write_vector(call->outputs[2], job.sum);
    if (training && !together)
        trek_parallel(job.images, image_grain(&job), wide ? grad_images_f64 : grad_images_f32, &job);
    else if (!training)
        scale_grad(&job, wide);
    trek_block_free(job.mean);
    return TREK_OK;
}

/* Returns whether all are stored channels last, which the loops read directly. */
static bool all_last(const trek_tensor *x, const trek_tensor *other, const trek_tensor *y)
{
    return trek_lies_channels_last(x) && trek_lies_channels_last(other) && trek_lies_channels_last(y) &&
           other->dtype == x->dtype && y->dtype == x->dtype;
}

/* Returns whether the loops can read 16-bit arrays directly. Short rows are faster if they are converted to f32 first. */
static bool plain_half(const trek_tensor *x, const trek_tensor *other, const trek_tensor *y)
{
    int64_t pixels = 1;
    for (int d = 2; d < x->ndim; d++)
        pixels *= x->sizes[d];
    return trek_cpu_is_half(x) && (pixels == 1 || pixels >= 64) && x->contiguous && other->contiguous && y->contiguous &&
        other->dtype == x->dtype &&
           y->dtype == x->dtype;
}

static trek_status batch_norm(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    bool plain = all_last(x, x, call->outputs[0]) || plain_half(x, x, call->outputs[0]);
    return plain ? forward_dense(call) : trek_cpu_dense(call, 1, forward_dense);
}

static trek_status batch_norm_backward(const trek_op_call *call)
{
    const trek_tensor *dy = call->inputs[0], *x = call->inputs[1], *dx = call->outputs[0];
    bool plain = all_last(x, dy, dx) || plain_half(x, dy, dx);
    return plain ? backward_dense(call) : trek_cpu_dense(call, 3, backward_dense);
}

/* -- groups: channels of one image whose statistics are combined -- */

static trek_status group_job(norm_job *job, const trek_op_call *call, const trek_tensor *x, void *y)
{
    trek_tensor one = *x; /* [1, N C, pixels] */
    one.sizes[0] = 1;
    one.sizes[1] = x->sizes[0] * x->sizes[1];
    job->group = call->attrs.i[0] > 0 ? x->sizes[1] / call->attrs.i[0] : 0;
    return job_init(job, &one, y);
}

/* Repeats a vector of the C channels, or the value, for each sample. */
static void repeat_channels(const trek_op_call *call, int k, int64_t channels, double value, const norm_job *job, double *to)
{
    if (job->channels > 0)
        read_or_fill(call, k, channels, value, to);
    for (int64_t c = channels; c < job->channels; c++)
        to[c] = to[c - channels];
}

static int64_t groups_of(const norm_job *job) { return job->group > 0 ? job->channels / job->group : 0; }
static int64_t group_grain(const norm_job *job) { return 16384 / (job->group * job->pixels + 1) + 1; }

static trek_status group_forward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    norm_job job = { .eps = call->attrs.f[0] };
    if (group_job(&job, call, x, call->outputs[0]->data) != TREK_OK)
        return TREK_ERR_MEMORY;
    job.rstd = job.product, job.weight = job.slope;
    repeat_channels(call, 1, x->sizes[1], 1, &job, job.weight);
    repeat_channels(call, 2, x->sizes[1], 0, &job, job.shift);
    trek_parallel(groups_of(&job), group_grain(&job),
                  x->dtype == TREK_F64 ? forward_groups_f64 : forward_groups_f32, &job);
    for (int64_t g = 0; g < groups_of(&job); g++) {
        job.mean[g] = job.mean[g * job.group];
        job.rstd[g] = job.rstd[g * job.group];
    }
    trek_cpu_write_vector(call->outputs[1], job.mean);
    trek_cpu_write_vector(call->outputs[2], job.rstd);
    trek_block_free(job.mean);
    return TREK_OK;
}

static void zero(const trek_tensor *t)
{
    if (t)
        memset(t->data, 0, (size_t)t->numel * trek_dtype_size((trek_dtype)t->dtype));
}

static trek_status group_backward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[1];
    const int64_t channels = x->sizes[1];
    norm_job job = { .dy = call->inputs[0]->data };
    if (x->numel == 0) { /* without samples nothing writes the channels' sums */
        zero(call->outputs[1]);
        zero(call->outputs[2]);
        return TREK_OK;
    }
    if (group_job(&job, call, x, call->outputs[0]->data) != TREK_OK)
        return TREK_ERR_MEMORY;
    job.rstd = job.variance, job.weight = job.scale;
    trek_cpu_read_vector(call->inputs[2], job.mean);
    trek_cpu_read_vector(call->inputs[3], job.rstd);
    for (int64_t c = job.channels - 1; c >= 0; c--) { /* copies a group's numbers to each of its channels, from the end,
                                                       * because they are at the beginning */
        job.mean[c] = job.mean[c / job.group];
        job.rstd[c] = job.rstd[c / job.group];
    }
    repeat_channels(call, 4, channels, 1, &job, job.weight);
    for (int64_t c = 0; c < job.channels; c++)
        job.sum[c] = job.product[c] = 0;
    trek_parallel(groups_of(&job), group_grain(&job),
                  x->dtype == TREK_F64 ? backward_groups_f64 : backward_groups_f32, &job);
    for (int64_t c = channels; c < job.channels; c++) {
        job.sum[c % channels] += job.sum[c];
        job.product[c % channels] += job.product[c];
    }
    if (call->outputs[1])
        trek_cpu_write_vector(call->outputs[1], job.product);
    trek_cpu_write_vector(call->outputs[2], job.sum);
    trek_block_free(job.mean);
    return TREK_OK;
}

static trek_status group_norm(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    return plain_half(x, x, call->outputs[0]) ? group_forward_dense(call) : trek_cpu_dense(call, 1, group_forward_dense);
}

static trek_status group_norm_backward(const trek_op_call *call)
{
    bool plain = plain_half(call->inputs[1], call->inputs[0], call->outputs[0]);
    return plain ? group_backward_dense(call) : trek_cpu_dense(call, 3, group_backward_dense);
}

void TREK_ISA_NAME(trek_cpu_register_batch_norm)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_batch_norm][dtype] = batch_norm;
            b->kernels[TREK_OP_batch_norm_backward][dtype] = batch_norm_backward;
            b->kernels[TREK_OP_group_norm][dtype] = group_norm;
            b->kernels[TREK_OP_group_norm_backward][dtype] = group_norm_backward;
        }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution as products of matrices: an image's windows become the columns of
 * a matrix (Chellapilla, Puri and Simard 2006). One buffer of columns per thread. */
#include "tensor/cpu/conv/conv.h"

#include <stdatomic.h>

#include "tensor/cpu/products/gemm.h"

#define TREK_REAL f32
#include "tensor/cpu/conv/conv_columns_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/conv/conv_columns_template.h"
#undef TREK_REAL

void TREK_ISA_NAME(trek_conv_unfold)(const trek_conv *c, int64_t channels, const void *image, void *columns)
{
    if (c->dtype == TREK_F64)
        unfold_f64(c, channels, image, columns);
    else
        unfold_f32(c, channels, image, columns);
}

void TREK_ISA_NAME(trek_conv_fold)(const trek_conv *c, int64_t channels, const void *columns, void *image)
{
    if (c->dtype == TREK_F64)
        fold_f64(c, channels, columns, image);
    else
        fold_f32(c, channels, columns, image);
}

/* One call of the three: which arrays are read and which is written differs. */
typedef struct columns_job {
    const trek_conv *c;
    const char *x, *weight, *bias, *dy;
    char *y, *dx, *partials;
    int64_t block;          /* images whose weight gradients go into one partial sum */
    size_t element;
    bool plain;             /* an image is its own matrix of columns: 1 x 1 kernels */
    atomic_bool failed;
} columns_job;

static int64_t depth_of(const trek_conv *c) { return c->group_channels * c->kernel_h * c->kernel_w; }
static int64_t places_of(const trek_conv *c) { return c->out_h * c->out_w; }

static bool product(const trek_conv *c, trek_gemm *g)
{
    g->a_dtype = g->b_dtype = c->dtype;
    return (c->dtype == TREK_F64 ? TREK_ISA_NAME(trek_gemm_f64)(g) : TREK_ISA_NAME(trek_gemm_f32)(g)) == TREK_OK;
}

/* NULL where none is needed; *fine tells whether it could be had. */
static char *column_buffer(columns_job *job, bool *fine)
{
    char *buffer = job->plain ? NULL : trek_block_alloc((size_t)(depth_of(job->c) * places_of(job->c) + 1) * job->element);
    *fine = job->plain || buffer;
    if (!*fine)
        job->failed = true;
    return buffer;
}

static void forward_images(void *arg, int64_t begin, int64_t end)
{
    columns_job *job = arg;
    const trek_conv *c = job->c;
    int64_t depth = depth_of(c), places = places_of(c), size = (int64_t)job->element;
    bool fine;
    char *buffer = column_buffer(job, &fine);
    for (int64_t i = begin; fine && i < end; i++)
        for (int64_t group = 0; group < c->groups; group++) {
            const char *image = job->x + (i * c->channels + group * c->group_channels) * c->height * c->width * size;
            if (!job->plain)
                TREK_ISA_NAME(trek_conv_unfold)(c, c->group_channels, image, buffer);
            int64_t filter = group * c->group_filters;
            trek_gemm g = { .m = c->group_filters, .n = places, .k = depth };
            g.a = job->weight + filter * depth * size, g.a_row = depth, g.a_col = 1;
            g.b = job->plain ? image : buffer, g.b_row = places, g.b_col = 1;
            g.c = job->y + (i * c->filters + filter) * places * size, g.c_row = places, g.c_col = 1;
            g.bias = job->bias ? job->bias + filter * size : NULL, g.bias_row = 1;
            if (!product(c, &g))
                job->failed = true;
        }
    trek_block_free(buffer);
}

static void input_grad_images(void *arg, int64_t begin, int64_t end)
{
    columns_job *job = arg;
    const trek_conv *c = job->c;
    int64_t depth = depth_of(c), places = places_of(c), size = (int64_t)job->element;
    bool fine;
    char *buffer = column_buffer(job, &fine);
    for (int64_t i = begin; fine && i < end; i++)
        for (int64_t group = 0; group < c->groups; group++) {
            char *image = job->dx + (i * c->channels + group * c->group_channels) * c->height * c->width * size;
            int64_t filter = group * c->group_filters;
            trek_gemm g = { .m = depth, .n = places, .k = c->group_filters };
            g.a = job->weight + filter * depth * size, g.a_row = 1, g.a_col = depth;
            g.b = job->dy + (i * c->filters + filter) * places * size, g.b_row = places, g.b_col = 1;
            g.c = job->plain ? image : buffer, g.c_row = places, g.c_col = 1;
            const char *bias = job->bias ? job->bias + group * c->group_channels * size : NULL;
            g.bias = job->plain ? bias : NULL, g.bias_row = 1;
            if (!product(c, &g))
                job->failed = true;
            if (job->plain)
                continue;
            memset(image, 0, (size_t)(c->group_channels * c->height * c->width * size));
            TREK_ISA_NAME(trek_conv_fold)(c, c->group_channels, buffer, image);
            if (bias)
                trek_conv_add_bias(c->dtype, c->group_channels, c->height * c->width, bias, image);
        }
    trek_block_free(buffer);
}

/* Blocks of images, each into a partial sum of its own. */
static void weight_grad_blocks(void *arg, int64_t begin, int64_t end)
{
    columns_job *job = arg;
    const trek_conv *c = job->c;
    int64_t depth = depth_of(c), places = places_of(c), size = (int64_t)job->element;
    bool fine;
    char *buffer = column_buffer(job, &fine);
    for (int64_t block = begin; fine && block < end; block++) {
        char *partial = job->partials + block * c->filters * depth * size;
        int64_t first = block * job->block, last = first + job->block < c->images ? first + job->block : c->images;
        for (int64_t i = first; i < last; i++)
            for (int64_t group = 0; group < c->groups; group++) {
                const char *image = job->x + (i * c->channels + group * c->group_channels) * c->height * c->width * size;
                int64_t filter = group * c->group_filters;
                if (!job->plain)
                    TREK_ISA_NAME(trek_conv_unfold)(c, c->group_channels, image, buffer);
                trek_gemm g = { .m = c->group_filters, .n = depth, .k = places, .accumulate = i > first };
                g.a = job->dy + (i * c->filters + filter) * places * size, g.a_row = places, g.a_col = 1;
                g.b = job->plain ? image : buffer, g.b_row = 1, g.b_col = places;
                g.c = partial + filter * depth * size, g.c_row = depth, g.c_col = 1;
                if (!product(c, &g))
                    job->failed = true;
            }
    }
    trek_block_free(buffer);
}

static void job_init(columns_job *job, const trek_conv *c)
{
    job->c = c;
    job->element = c->dtype == TREK_F64 ? 8 : 4;
    job->plain = c->kernel_h == 1 && c->kernel_w == 1 && c->stride_h == 1 && c->stride_w == 1 && c->pad_h == 0 && c->pad_w == 0;
}

/* Images side by side, or one after the other with the threads inside the product where they are few and large. */
static trek_status over_images(columns_job *job, void (*fn)(void *arg, int64_t begin, int64_t end))
{
    const trek_conv *c = job->c;
    double work = (double)c->filters * (double)depth_of(c) * (double)places_of(c);
    int threads = trek_pool_threads(trek_pool_here());
    if (c->images < threads && work > 4e6)
        fn(job, 0, c->images);
    else
        trek_parallel(c->images, (int64_t)(5e4 / (work + 1)) + 1, fn, job);
    return job->failed ? trek_fail(TREK_ERR_MEMORY, "conv2d: no memory for columns") : TREK_OK;
}

trek_status TREK_ISA_NAME(trek_conv_columns)(const trek_conv *c, const void *x, const void *weight, const void *bias, void *y)
{
    columns_job job = { .x = x, .weight = weight, .bias = bias, .y = y };
    job_init(&job, c);
    return over_images(&job, forward_images);
}

trek_status TREK_ISA_NAME(trek_conv_columns_input_grad)(const trek_conv *c, const void *dy, const void *weight, const void *bias,
                                                        void *dx)
{
    columns_job job = { .dy = dy, .weight = weight, .bias = bias, .dx = dx };
    job_init(&job, c);
    return over_images(&job, input_grad_images);
}

trek_status TREK_ISA_NAME(trek_conv_columns_weight_grad)(const trek_conv *c, const void *dy, const void *x, void *dweight)
{
    columns_job job = { .dy = dy, .x = x };
    job_init(&job, c);
    int64_t count = c->filters * depth_of(c);
    job.block = (c->images + 7) / 8; /* at most 8 partial sums, whatever the threads */
    int64_t blocks = (c->images + job.block - 1) / job.block;
    job.partials = blocks == 1 ? dweight : trek_block_alloc((size_t)(blocks * count) * job.element);
    if (!job.partials)
        return TREK_ERR_MEMORY;
    trek_parallel(blocks, 1, weight_grad_blocks, &job);
    if (blocks > 1)
        trek_conv_sum_partials(c->dtype, dweight, job.partials, blocks, count);
    if (blocks > 1)
        trek_block_free(job.partials);
    return job.failed ? trek_fail(TREK_ERR_MEMORY, "conv2d: no memory for columns") : TREK_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution by matrix products: the windows of an image become the columns of a matrix (Chellapilla, Puri and
 * Simard 2006). Each thread has one buffer of columns. */
#include "tensor/cpu/conv/conv.h"

#include <stdatomic.h>

#include "tensor/cpu/products/gemm.h"

/* Finds the output positions [*begin, *end) whose input `place * stride + shift` is in [0, size). */
static void inside(int64_t size, int64_t places, int64_t stride, int64_t shift, int64_t *begin, int64_t *end)
{
    *begin = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *end = size - shift <= 0 ? 0 : (size - shift + stride - 1) / stride;
    *end = *end > places ? places : *end;
    *begin = *begin > *end ? *end : *begin;
}

#define TREK_REAL f32
#include "tensor/cpu/conv/conv_fold_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/conv/conv_fold_template.h"
#undef TREK_REAL

/* Elements as words of their size. */
typedef uint16_t word_16 __attribute__((may_alias));
typedef uint32_t word_32 __attribute__((may_alias));
typedef uint64_t word_64 __attribute__((may_alias));

#define TREK_UNFOLD unfold_16
#define TREK_WORD word_16
#include "tensor/cpu/conv/conv_unfold_template.h"
#undef TREK_UNFOLD
#undef TREK_WORD
#define TREK_UNFOLD unfold_32
#define TREK_WORD word_32
#include "tensor/cpu/conv/conv_unfold_template.h"
#undef TREK_UNFOLD
#undef TREK_WORD
#define TREK_UNFOLD unfold_64
#define TREK_WORD word_64
#include "tensor/cpu/conv/conv_unfold_template.h"

void TREK_ISA_NAME(trek_conv_unfold)(const trek_conv *c, int64_t channels, const void *image, void *columns)
{
    switch (trek_dtype_size(c->dtype)) {
    case 2: unfold_16(c, channels, image, columns); break;
    case 4: unfold_32(c, channels, image, columns); break;
    default: unfold_64(c, channels, image, columns); break;
    }
}

void TREK_ISA_NAME(trek_conv_fold)(const trek_conv *c, int64_t channels, const void *columns, void *image)
{
    if (c->dtype == TREK_F64)
        fold_f64(c, channels, columns, image);
    else
        fold_f32(c, channels, columns, image);
}

/* One call of the three functions, which differ in the arrays that they read and write. */
typedef struct columns_job {
    const trek_conv *c;
    const char *x, *weight, *bias, *dy;
    char *y, *dx, *partials;
    int64_t block;          /* images whose weight gradients go into one partial sum */
    int64_t element, sum;   /* bytes of an element, and of a sum */
    bool plain;             /* an image is its own matrix of columns: 1 x 1 kernels */
    atomic_bool failed;
} columns_job;

static int64_t depth_of(const trek_conv *c) { return c->group_channels * c->kernel_h * c->kernel_w; }
static int64_t places_of(const trek_conv *c) { return c->out_h * c->out_w; }

static trek_dtype sum_dtype(const trek_conv *c) { return c->dtype == TREK_F64 ? TREK_F64 : TREK_F32; }

/* C's dtype is given; the bias has the dtype of sums. */
static bool product(const trek_conv *c, trek_gemm *g)
{
    g->a_dtype = g->b_dtype = c->dtype;
    g->bias_dtype = sum_dtype(c);
    return (c->dtype == TREK_F64 ? TREK_ISA_NAME(trek_gemm_f64)(g) : TREK_ISA_NAME(trek_gemm_f32)(g)) == TREK_OK;
}

static int64_t image_size(const trek_conv *c) { return c->group_channels * c->height * c->width; }

/* Allocates columns and `more` elements. Returns NULL if none is needed. *fine says whether there was enough memory. */
static char *column_buffer(columns_job *job, int64_t more, int64_t element, bool *fine)
{
    int64_t columns = depth_of(job->c) * places_of(job->c);
    char *buffer = job->plain ? NULL : trek_block_alloc((size_t)((columns + more + 1) * element));
    *fine = job->plain || buffer;
    if (!*fine)
        job->failed = true;
    return buffer;
}

static void forward_images(void *arg, int64_t begin, int64_t end)
{
    columns_job *job = arg;
    const trek_conv *c = job->c;
    int64_t depth = depth_of(c), places = places_of(c), size = job->element;
    bool fine;
    char *buffer = column_buffer(job, 0, size, &fine);
    for (int64_t i = begin; fine && i < end; i++)
        for (int64_t group = 0; group < c->groups; group++) {
            const char *image = job->x + (i * c->channels + group * c->group_channels) * c->height * c->width * size;
            if (!job->plain)
                TREK_ISA_NAME(trek_conv_unfold)(c, c->group_channels, image, buffer);
            int64_t filter = group * c->group_filters;
            trek_gemm g = { .m = c->group_filters, .n = places, .k = depth, .c_dtype = c->result };
            g.a = job->weight + filter * depth * size, g.a_row = depth, g.a_col = 1;
            g.b = job->plain ? image : buffer, g.b_row = places, g.b_col = 1;
            g.c = job->y + (i * c->filters + filter) * places * (int64_t)trek_dtype_size(c->result);
            g.c_row = places, g.c_col = 1;
            g.bias = job->bias ? job->bias + filter * job->sum : NULL, g.bias_row = 1;
            if (!product(c, &g))
                job->failed = true;
        }
    trek_block_free(buffer);
}

/* Adds columns of sums into an image of a group. `wide` holds the sums of an image that has 16 bits. */
static void fold_image(const columns_job *job, const char *columns, const char *bias, char *wide, char *image)
{
    const trek_conv *c = job->c;
    char *sums = c->result == sum_dtype(c) ? image : wide;
    memset(sums, 0, (size_t)(image_size(c) * job->sum));
    TREK_ISA_NAME(trek_conv_fold)(c, c->group_channels, columns, sums);
    if (bias)
        trek_conv_add_bias(sum_dtype(c), c->group_channels, c->height * c->width, bias, sums);
    if (sums == wide)
        trek_bf16_from_f32_row((uint16_t *)(void *)image, (const float *)(const void *)wide, image_size(c));
}

static void input_grad_images(void *arg, int64_t begin, int64_t end)
{
    columns_job *job = arg;
    const trek_conv *c = job->c;
    int64_t depth = depth_of(c), places = places_of(c), size = job->element;
    bool fine;
    char *buffer = column_buffer(job, c->result == sum_dtype(c) ? 0 : image_size(c), job->sum, &fine);
    for (int64_t i = begin; fine && i < end; i++)
        for (int64_t group = 0; group < c->groups; group++) {
            char *image = job->dx + (i * c->channels + group * c->group_channels) * c->height * c->width *
                                    (int64_t)trek_dtype_size(c->result);
            int64_t filter = group * c->group_filters;
            trek_gemm g = { .m = depth, .n = places, .k = c->group_filters, .c_dtype = job->plain ? c->result : sum_dtype(c) };
            g.a = job->weight + filter * depth * size, g.a_row = 1, g.a_col = depth;
            g.b = job->dy + (i * c->filters + filter) * places * size, g.b_row = places, g.b_col = 1;
            g.c = job->plain ? image : buffer, g.c_row = places, g.c_col = 1;
            const char *bias = job->bias ? job->bias + group * c->group_channels * job->sum : NULL;
            g.bias = job->plain ? bias : NULL, g.bias_row = 1;
            if (!product(c, &g))
                job->failed = true;
            else if (!job->plain)
                fold_image(job, buffer, bias, buffer + depth * places * job->sum, image);
        }
    trek_block_free(buffer);
}

/* Processes blocks of images, each with its own partial sum. */
static void weight_grad_blocks(void *arg, int64_t begin, int64_t end)
{
    columns_job *job = arg;
    const trek_conv *c = job->c;
    int64_t depth = depth_of(c), places = places_of(c), size = job->element;
    bool fine;
    char *buffer = column_buffer(job, 0, size, &fine);
    for (int64_t block = begin; fine && block < end; block++) {
        char *partial = job->partials + block * c->filters * depth * job->sum;
        int64_t first = block * job->block, last = first + job->block < c->images ? first + job->block : c->images;
        for (int64_t i = first; i < last; i++)
            for (int64_t group = 0; group < c->groups; group++) {
                const char *image = job->x + (i * c->channels + group * c->group_channels) * c->height * c->width * size;
                int64_t filter = group * c->group_filters;
                if (!job->plain)
                    TREK_ISA_NAME(trek_conv_unfold)(c, c->group_channels, image, buffer);
                trek_gemm g = { .m = c->group_filters, .n = depth, .k = places, .c_dtype = sum_dtype(c) };
                g.accumulate = i > first;
                g.a = job->dy + (i * c->filters + filter) * places * size, g.a_row = places, g.a_col = 1;
                g.b = job->plain ? image : buffer, g.b_row = 1, g.b_col = places;
                g.c = partial + filter * depth * job->sum, g.c_row = depth, g.c_col = 1;
                if (!product(c, &g))
                    job->failed = true;
            }
    }
    trek_block_free(buffer);
}

static void job_init(columns_job *job, const trek_conv *c)
{
    job->c = c;
    job->element = (int64_t)trek_dtype_size(c->dtype);
    job->sum = (int64_t)trek_dtype_size(sum_dtype(c));
    job->plain = c->kernel_h == 1 && c->kernel_w == 1 && c->stride_h == 1 && c->stride_w == 1 && c->pad_h == 0 && c->pad_w == 0;
}

/* Processes images in parallel; if they are few and large, one after the other, with threads inside the product. */
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
    job.block = (c->images + 7) / 8; /* at most 8 partial sums, whatever the number of threads */
    int64_t blocks = (c->images + job.block - 1) / job.block;
    job.partials = blocks == 1 ? dweight : trek_block_alloc((size_t)(blocks * count * job.sum));
    if (!job.partials)
        return TREK_ERR_MEMORY;
    trek_parallel(blocks, 1, weight_grad_blocks, &job);
    if (blocks > 1)
        trek_conv_sum_partials(sum_dtype(c), dweight, job.partials, blocks, count);
    if (blocks > 1)
        trek_block_free(job.partials);
    return job.failed ? trek_fail(TREK_ERR_MEMORY, "conv2d: no memory for columns") : TREK_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Direct convolution with stride 1, without columns, which is faster if channels are few. The gradient with respect
 * to the input is a convolution, too. */
#include <stdatomic.h>

#include "tensor/cpu/conv/conv.h"

/* Rows of an image placed one after the other: `pitch` elements for each row, `size` for each channel. */
typedef struct direct_lines {
    int64_t pitch, size, pad_h, pad_w;
    const int64_t *shift;  /* offset of each step (channel of the group, row and column of the kernel) along the line */
} direct_lines;

typedef struct direct_job {
    const trek_conv *c;
    const direct_lines *lines;
    const void *x, *weight, *bias, *dy;
    void *y, *partials;
    int64_t block;         /* images of one partial sum of the weight's gradient */
    atomic_bool failed;
} direct_job;

/* Returns the next of the equal blocks into which `left` is divided, none larger than `most`. */
static int64_t direct_block(int64_t left, int64_t most)
{
    int64_t blocks = (left + most - 1) / most;
    return (left + blocks - 1) / blocks;
}

#define TREK_REAL f32
#define TREK_REAL_BYTES 4
#include "tensor/cpu/conv/conv_direct_template.h"
#undef TREK_REAL
#undef TREK_REAL_BYTES
#define TREK_REAL f64
#define TREK_REAL_BYTES 8
#include "tensor/cpu/conv/conv_direct_template.h"

static size_t element_size(const trek_conv *c) { return c->dtype == TREK_F64 ? 8 : 4; }
static int64_t steps_of(const trek_conv *c) { return c->group_channels * c->kernel_h * c->kernel_w; }

/* Computes the geometry of a convolution's lines. It allocates l->shift, which is NULL on failure. */
static trek_status lines_init(const trek_conv *c, direct_lines *l)
{
    int64_t *shift = trek_block_alloc((size_t)steps_of(c) * sizeof *shift);
    l->pitch = c->width + 2 * c->pad_w;
    l->size = (c->height + 2 * c->pad_h) * l->pitch;
    l->pad_h = c->pad_h;
    l->pad_w = c->pad_w;
    l->shift = shift;
    for (int64_t channel = 0, s = 0; shift && channel < c->group_channels; channel++)
        for (int64_t ky = 0; ky < c->kernel_h; ky++)
            for (int64_t kx = 0; kx < c->kernel_w; kx++)
                shift[s++] = channel * l->size + ky * c->dilation_h * l->pitch + kx * c->dilation_w;
    return shift ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_status direct_status(direct_job *job)
{
    return job->failed ? trek_fail(TREK_ERR_MEMORY, "conv2d: no memory for an image") : TREK_OK;
}

bool TREK_ISA_NAME(trek_conv_direct_suits)(const trek_conv *c)
{
    bool plain = c->kernel_h == 1 && c->kernel_w == 1 && c->groups == 1; /* this is an ordinary matrix product */
    return c->stride_h == 1 && c->stride_w == 1 && !plain && c->group_channels > 0;
}

static int64_t grad_block(const trek_conv *c)
{
    int64_t block = (c->images + 7) / 8; /* depends only on the batch, not on the threads */
    return block > 16 ? 16 : block;
}

/* The sums over lanes at the end of each block must cost less than the positions. */
bool TREK_ISA_NAME(trek_conv_direct_weight_grad_suits)(const trek_conv *c)
{
    int64_t places = c->out_h * (c->width + 2 * c->pad_w) * grad_block(c);
    return TREK_ISA_NAME(trek_conv_direct_suits)(c) && places >= 32 * TREK_VECTOR_BYTES / (int64_t)element_size(c);
}

trek_status TREK_ISA_NAME(trek_conv_direct)(const trek_conv *c, const void *x, const void *weight, const void *bias, void *y)
{
    direct_lines lines;
    direct_job job = { .c = c, .lines = &lines, .x = x, .bias = bias, .y = y };
    trek_status status = lines_init(c, &lines);
    void *arranged = trek_block_alloc((size_t)(c->filters * steps_of(c)) * element_size(c));
    if (status != TREK_OK || !arranged) {
        trek_block_free((void *)lines.shift);
        trek_block_free(arranged);
        return TREK_ERR_MEMORY;
    }
    job.weight = arranged;
    int64_t work = c->filters * steps_of(c) * c->out_h * c->out_w;
    int64_t grain = 50000 / (work + 1) + 1;
    if (c->dtype == TREK_F64) {
        arrange_weight_f64(c, weight, arranged);
        trek_parallel(c->images, grain, direct_images_f64, &job);
    } else {
        arrange_weight_f32(c, weight, arranged);
        trek_parallel(c->images, grain, direct_images_f32, &job);
    }
    trek_block_free((void *)lines.shift);
    trek_block_free(arranged);
    return direct_status(&job);
}

bool TREK_ISA_NAME(trek_conv_transposed)(const trek_conv *c, trek_conv *transposed)
{
    trek_conv t = *c;
    t.channels = c->filters, t.filters = c->channels;
    t.group_channels = c->group_filters, t.group_filters = c->group_channels;
    t.height = c->out_h, t.width = c->out_w;
    t.out_h = c->height, t.out_w = c->width;
    t.pad_h = (c->kernel_h - 1) * c->dilation_h - c->pad_h;
    t.pad_w = (c->kernel_w - 1) * c->dilation_w - c->pad_w;
    *transposed = t;
    return c->stride_h == 1 && c->stride_w == 1 && t.pad_h >= 0 && t.pad_w >= 0;
}

void TREK_ISA_NAME(trek_conv_turn_weight)(const trek_conv *c, const void *weight, void *turned)
{
    int64_t taps = c->kernel_h * c->kernel_w, at = 0;
    for (int64_t group = 0; group < c->groups; group++)
        for (int64_t channel = 0; channel < c->group_channels; channel++)
            for (int64_t o = 0; o < c->group_filters; o++, at += taps) {
                int64_t place = ((group * c->group_filters + o) * c->group_channels + channel) * taps;
                if (c->dtype == TREK_F64)
                    for (int64_t t = 0; t < taps; t++)
                        ((double *)turned)[at + t] = ((const double *)weight)[place + taps - 1 - t];
                else
                    for (int64_t t = 0; t < taps; t++)
                        ((float *)turned)[at + t] = ((const float *)weight)[place + taps - 1 - t];
            }
}

trek_status TREK_ISA_NAME(trek_conv_direct_weight_grad)(const trek_conv *c, const void *dy, const void *x, void *dweight)
{
    direct_lines lines;
    direct_job job = { .c = c, .lines = &lines, .x = x, .dy = dy };
    int64_t count = c->filters * steps_of(c);
    job.block = grad_block(c);
    int64_t blocks = (c->images + job.block - 1) / job.block;
    trek_status status = lines_init(c, &lines);
    job.partials = blocks == 1 ? dweight : trek_block_alloc((size_t)(blocks * count) * element_size(c));
    if (status == TREK_OK && job.partials) {
        bool wide = c->dtype == TREK_F64;
        trek_parallel(blocks, 1, wide ? direct_grad_blocks_f64 : direct_grad_blocks_f32, &job);
        if (blocks > 1)
            trek_conv_sum_partials(c->dtype, dweight, job.partials, blocks, count);
    }
    bool fine = status == TREK_OK && job.partials;
    if (blocks > 1)
        trek_block_free(job.partials);
    trek_block_free((void *)lines.shift);
    return fine ? direct_status(&job) : TREK_ERR_MEMORY;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution with one image in each lane of a vector, for small images with few channels, for which other methods
 * leave lanes unused. Images that are too few for the lanes are divided into bands of output rows, one in each lane. */
#include <stdatomic.h>

#include "tensor/cpu/conv/conv.h"

/* The layout of an image's rows between zeros: element (y, x) of a channel is at first + y * pitch + x. */
typedef struct batch_frame {
    int64_t width, height, pitch, gap, first, size; /* gap: from the end of a channel's last row to the next channel's first */
} batch_frame;

/* One element of a filter: the offset of its input from the output's position, in vectors, and its weight. */
typedef struct batch_step {
    int32_t x, weight;
} batch_step;

/* The elements that reach the image and not only the zeros around it. */
typedef struct batch_list {
    batch_step *step;
    int64_t count;
} batch_list;

typedef struct batch_job {
    const trek_conv *c;      /* of a lane: `band`, or the images' own */
    const trek_conv *whole;  /* of the images */
    trek_conv band;
    int64_t bands;           /* of each image */
    batch_frame frame;
    int64_t steps, blocks;   /* elements of a filter; blocks of filters of a group */
    int64_t *shift;          /* of each step, in vectors */
    const void *x, *weight, *bias, *dy;
    void *y, *partials;
    atomic_bool failed;
    /* forward: rows of the output, and tiles of each row, classified by the part of the kernel that reaches the image */
    int64_t tiles, row_classes, tile_classes;
    int64_t *row_class, *tile_class, *tile_start;
    batch_list *lists;       /* [row_classes][tile_classes] */
    void *list_memory;
} batch_job;

/* Returns the next of the equal blocks into which `left` is divided, none larger than `most`. */
static int64_t batch_block(int64_t left, int64_t most)
{
    int64_t blocks = (left + most - 1) / most;
    return (left + blocks - 1) / blocks;
}

/* Returns where block number `block` of these blocks begins. */
static int64_t batch_block_start(int64_t count, int64_t most, int64_t block)
{
    int64_t start = 0;
    for (int64_t b = 0; b < block; b++)
        start += batch_block(count - start, most);
    return start;
}

#define TREK_REAL f32
#include "tensor/cpu/conv/conv_batch_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/conv/conv_batch_template.h"
#undef TREK_REAL

static size_t element_size(const trek_conv *c) { return c->dtype == TREK_F64 ? 8 : 4; }

/* Elements [begin, end) of the kernel, along one dimension, that reach the image in at least one of `places`
 * positions. */
typedef struct batch_reach {
    int64_t begin, end;
} batch_reach;

static batch_reach reach_along(int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, int64_t place,
                               int64_t places)
{
    int64_t low = place * stride - pad, high = (place + places - 1) * stride - pad; /* input positions of element 0 */
    batch_reach r = { high < 0 ? (-high + dilation - 1) / dilation : 0,
                      low >= size ? 0 : (size - low + dilation - 1) / dilation };
    r.end = r.end > kernel ? kernel : r.end;
    r.begin = r.begin > r.end ? r.end : r.begin;
    return r;
}

/* Returns the index of the reach among those seen so far; a new one is added. */
static int64_t reach_class(batch_reach *seen, int64_t *count, batch_reach r)
{
    for (int64_t k = *count; k-- > 0;)
        if (seen[k].begin == r.begin && seen[k].end == r.end)
            return k;
    seen[*count] = r;
    return (*count)++;
}

static void fill_list(const batch_job *job, batch_reach rows, batch_reach columns, batch_list *list)
{
    const trek_conv *c = job->c;
    batch_step *to = list->step;
    for (int64_t channel = 0; channel < c->group_channels; channel++)
        for (int64_t ky = rows.begin; ky < rows.end; ky++)
            for (int64_t kx = columns.begin; kx < columns.end; kx++) {
                int64_t s = (channel * c->kernel_h + ky) * c->kernel_w + kx;
                *to++ = (batch_step){ (int32_t)job->shift[s], (int32_t)s };
            }
    list->count = to - list->step;
}

/* Divides the output into tiles of at most `most` positions and makes the lists of their classes. */
static trek_status make_lists(batch_job *job, int64_t most)
{
    const trek_conv *c = job->c;
    job->tiles = (c->out_w + most - 1) / most;
    size_t numbers = (size_t)(c->out_h + 2 * job->tiles + 1) * sizeof(int64_t);
    size_t reaches = (size_t)(c->out_h + job->tiles) * sizeof(batch_reach);
    batch_reach *rows = trek_block_alloc(numbers + reaches), *columns = rows + c->out_h;
    if (!rows)
        return TREK_ERR_MEMORY;
    job->list_memory = rows;
    job->row_class = (int64_t *)(void *)(columns + job->tiles);
    job->tile_class = job->row_class + c->out_h;
    job->tile_start = job->tile_class + job->tiles;
    for (int64_t row = 0; row < c->out_h; row++)
        job->row_class[row] = reach_class(rows, &job->row_classes, reach_along(c->height, c->kernel_h, c->stride_h, c->pad_h,
                                                                               c->dilation_h, row, 1));
    job->tile_start[0] = 0;
    for (int64_t tile = 0; tile < job->tiles; tile++) {
        int64_t start = job->tile_start[tile], places = batch_block(c->out_w - start, most);
        job->tile_start[tile + 1] = start + places;
        job->tile_class[tile] = reach_class(columns, &job->tile_classes, reach_along(c->width, c->kernel_w, c->stride_w, c->pad_w,
                                                                                     c->dilation_w, start, places));
    }
    int64_t lists = job->row_classes * job->tile_classes;
    job->lists = trek_block_alloc((size_t)lists * (sizeof(batch_list) + (size_t)job->steps * sizeof(batch_step)));
    if (!job->lists)
        return TREK_ERR_MEMORY;
    batch_step *step = (batch_step *)(void *)(job->lists + lists);
    for (int64_t k = 0; k < lists; k++, step += job->steps) {
        job->lists[k].step = step;
        fill_list(job, rows[k / job->tile_classes], columns[k % job->tile_classes], &job->lists[k]);
    }
    return TREK_OK;
}

static int64_t lanes_of(const trek_conv *c) { return TREK_VECTOR_BYTES / (int64_t)element_size(c); }
static int64_t teams_of(const trek_conv *c) { return (c->images + lanes_of(c) - 1) / lanes_of(c); }

/* Returns which share of the lanes' positions are positions of the output, if an image is divided into that many bands. */
static double used_share(const trek_conv *c, int64_t bands)
{
    int64_t lanes = lanes_of(c), teams = (c->images * bands + lanes - 1) / lanes;
    return (double)(c->images * c->out_h) / (double)(teams * lanes * ((c->out_h + bands - 1) / bands));
}

/* The same if rows are placed one after the other, as conv_direct.c does it; padding counts as much as the image. */
static double used_by_lines(const trek_conv *c)
{
    int64_t lanes = lanes_of(c), line = (c->out_h - 1) * (c->width + 2 * c->pad_w) + c->out_w;
    return (double)(c->out_h * c->out_w) / (double)((line + lanes - 1) / lanes * lanes);
}

/* Returns how many bands each image is divided into, so that its lanes are used: 1 for enough images, 0 if no number suits. */
static int64_t bands_of(const trek_conv *c)
{
    int64_t lanes = lanes_of(c), most = c->out_h < lanes ? c->out_h : lanes, best = 1;
    /* with a stride and few channels in a group, the other method makes columns at almost no cost */
    bool thin = c->groups > 1 && c->group_channels < 4 && (c->stride_h > 1 || c->stride_w > 1);
    if ((thin ? 4 : 1) * 4 * c->images >= 3 * teams_of(c) * lanes)
        return 1;
    for (int64_t bands = 2; bands <= most; bands++)
        if (used_share(c, bands) > used_share(c, best))
            best = bands;
    bool lines = c->stride_h == 1 && c->stride_w == 1;
    return used_share(c, best) >= 0.75 && (!lines || used_share(c, best) > used_by_lines(c)) ? best : 0;
}

/* Returns the geometry of one of that many bands of an image: rows of zeros around an image are rows of the band. The last bands
 * may have fewer rows, or none. */
static trek_conv band_of(const trek_conv *c, int64_t bands)
{
    trek_conv band = *c;
    if (bands == 1)
        return band;
    band.out_h = (c->out_h + bands - 1) / bands;
    band.height = (band.out_h - 1) * c->stride_h + (c->kernel_h - 1) * c->dilation_h + 1;
    band.pad_h = 0;
    band.images = c->images * bands;
    return band;
}

static trek_status job_init(batch_job *job, const trek_conv *whole, int64_t block)
{
    batch_frame *f = &job->frame;
    job->whole = whole;
    job->bands = bands_of(whole);
    job->band = band_of(whole, job->bands);
    const trek_conv *c = job->c = &job->band;
    job->steps = c->group_channels * c->kernel_h * c->kernel_w;
    job->blocks = (c->group_filters + block - 1) / block;
    f->width = c->width, f->height = c->height;
    f->pitch = c->width + 2 * c->pad_w;
    f->size = (c->height + 2 * c->pad_h) * f->pitch;
    f->gap = 2 * c->pad_h * f->pitch;
    f->first = c->pad_h * f->pitch + c->pad_w;
    job->shift = trek_block_alloc((size_t)job->steps * sizeof *job->shift);
    for (int64_t channel = 0, s = 0; job->shift && channel < c->group_channels; channel++)
        for (int64_t ky = 0; ky < c->kernel_h; ky++)
            for (int64_t kx = 0; kx < c->kernel_w; kx++)
                job->shift[s++] = channel * f->size + ky * c->dilation_h * f->pitch + kx * c->dilation_w;
    return job->shift ? TREK_OK : TREK_ERR_MEMORY;
}

/* Checks that lanes are used, and that a group of channels of a team fits into `bytes`. */
static bool suits(const trek_conv *whole, int64_t bytes)
{
    int64_t bands = bands_of(whole);
    if (bands == 0 || whole->group_channels == 0)
        return false;
    const trek_conv c = band_of(whole, bands);
    return c.group_channels * (c.height + 2 * c.pad_h) * (c.width + 2 * c.pad_w) * TREK_VECTOR_BYTES <= bytes;
}

bool TREK_ISA_NAME(trek_conv_batch_suits)(const trek_conv *c) { return suits(c, 512 * 1024); }
bool TREK_ISA_NAME(trek_conv_batch_weight_grad_suits)(const trek_conv *c) { return suits(c, 4096 * 1024); }

static trek_status batch_status(const batch_job *job)
{
    return job->failed ? trek_fail(TREK_ERR_MEMORY, "conv2d: no memory for a team of images") : TREK_OK;
}

trek_status TREK_ISA_NAME(trek_conv_batch)(const trek_conv *whole, const void *x, const void *weight, const void *bias,
                                           void *y)
{
    batch_job job = { .x = x, .bias = bias, .y = y };
    trek_status status = job_init(&job, whole, 6);
    const trek_conv *c = job.c;
    if (status == TREK_OK)
        status = make_lists(&job, TREK_VECTOR_BYTES == 64 ? 4 : 2);
    void *arranged = trek_block_alloc((size_t)(c->filters * job.steps) * element_size(c));
    if (status == TREK_OK && arranged) {
        job.weight = arranged;
        if (c->dtype == TREK_F64)
            arrange_f64(c, job.steps, weight, arranged);
        else
            arrange_f32(c, job.steps, weight, arranged);
        int64_t work = 6 * job.steps * c->out_h * c->out_w * lanes_of(c);
        trek_parallel(teams_of(c) * c->groups * job.blocks, 100000 / (work + 1) + 1,
                      c->dtype == TREK_F64 ? forward_tasks_f64 : forward_tasks_f32, &job);
    }
    bool fine = status == TREK_OK && arranged;
    trek_block_free(job.lists);
    trek_block_free(job.list_memory);
    trek_block_free(job.shift);
    trek_block_free(arranged);
    return fine ? batch_status(&job) : TREK_ERR_MEMORY;
}

trek_status TREK_ISA_NAME(trek_conv_batch_weight_grad)(const trek_conv *whole, const void *dy, const void *x, void *dweight)
{
    batch_job job = { .x = x, .dy = dy };
    trek_status status = job_init(&job, whole, TREK_VECTOR_BYTES == 64 ? 5 : 3);
    const trek_conv *c = job.c;
    int64_t count = c->filters * job.steps, teams = teams_of(c);
    job.partials = teams == 1 ? dweight : trek_block_alloc((size_t)(teams * count) * element_size(c));
    bool fine = status == TREK_OK && job.partials;
    if (fine) {
        int64_t work = 6 * job.steps * c->out_h * c->out_w * lanes_of(c);
        trek_parallel(teams * c->groups * job.blocks, 100000 / (work + 1) + 1,
                      c->dtype == TREK_F64 ? weight_grad_tasks_f64 : weight_grad_tasks_f32, &job);
    }
    if (fine && teams > 1)
        trek_conv_sum_partials(c->dtype, dweight, job.partials, teams, count);
    if (teams > 1)
        trek_block_free(job.partials);
    trek_block_free(job.shift);
    return fine ? batch_status(&job) : TREK_ERR_MEMORY;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Max and average pooling, also to a given size, and their gradients. Planes (images times channels) are independent
 * of each other. */
#include <math.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"

typedef struct pool_job {
    const void *from;
    void *to;
    int64_t *index;
    const int64_t *given_index;
    int64_t planes, height, width, out_h, out_w;  /* sizes of the input and of the output, also in the backward pass */
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    bool count_padding, adaptive;
    double divisor;                               /* average: the divisor of every window; 0: the number of elements in it */
    double *scale;                                /* average: 1 / divisor of each output position */
    int64_t *spans;                               /* average: begin and end of each position's rows, then of its columns */
    void *rows;                                   /* for each plane a row of the input and, for maxima, one of positions, */
    int64_t row_bytes;                            /* whose sizes together are this */
} pool_job;

static int64_t low(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t high(int64_t a, int64_t b) { return a > b ? a : b; }

/* Finds input rows (or columns) [*begin, *end) of an output position, clipped. Returns how many count for the average. */
static int64_t span(const pool_job *job, bool horizontal, int64_t place, int64_t *begin, int64_t *end)
{
    int64_t size = horizontal ? job->width : job->height, places = horizontal ? job->out_w : job->out_h;
    if (job->adaptive) {
        *begin = place * size / places;
        *end = ((place + 1) * size + places - 1) / places;
        return *end - *begin;
    }
    int64_t kernel = horizontal ? job->kernel_w : job->kernel_h, padding = horizontal ? job->pad_w : job->pad_h;
    int64_t first = place * (horizontal ? job->stride_w : job->stride_h) - padding, last = low(first + kernel, size + padding);
    *begin = high(first, 0);
    *end = high(low(last, size), *begin);
    return job->count_padding ? last - first : *end - *begin;
}

#define TREK_REAL f32
#include "tensor/cpu/conv/pool2d_vector_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/conv/pool2d_vector_template.h"
#undef TREK_REAL

#define TREK_TYPE f32
#define TREK_TYPE_C float
#define TREK_PLACE_C int32_t
#define TREK_AVERAGE
#include "tensor/cpu/conv/pool2d_template.h"
#define TREK_TYPE f64
#define TREK_TYPE_C double
#define TREK_PLACE_C int64_t
#define TREK_AVERAGE
#include "tensor/cpu/conv/pool2d_template.h"
#define TREK_TYPE i64
#define TREK_TYPE_C int64_t
#define TREK_PLACE_C int64_t
#define TREK_LOWEST INT64_MIN
#include "tensor/cpu/conv/pool2d_template.h"
#define TREK_TYPE i32
#define TREK_TYPE_C int32_t
#define TREK_PLACE_C int32_t
#define TREK_LOWEST INT32_MIN
#include "tensor/cpu/conv/pool2d_template.h"
#define TREK_TYPE u8
#define TREK_TYPE_C uint8_t
#define TREK_PLACE_C int32_t
#define TREK_LOWEST 0
#include "tensor/cpu/conv/pool2d_template.h"

/* x and y: the larger and the smaller side, either of which may be the input of the call. */
static pool_job job_of(const trek_op_call *call, const trek_tensor *x, const trek_tensor *y)
{
    const int64_t *a = call->attrs.i;
    pool_job job = { .from = call->inputs[0]->data, .to = call->outputs[0]->data, .planes = x->sizes[0] * x->sizes[1] };
    job.height = x->sizes[2], job.width = x->sizes[3], job.out_h = y->sizes[2], job.out_w = y->sizes[3];
    job.kernel_h = a[0], job.kernel_w = a[1], job.stride_h = a[2], job.stride_w = a[3];
    job.pad_h = a[4], job.pad_w = a[5], job.dilation_h = a[6], job.dilation_w = a[7];
    job.count_padding = a[9];
    return job;
}

static int64_t plane_grain(const pool_job *job) { return 16384 / (job->height * job->width + 1) + 1; }

static trek_status max_pool2d_dense(const trek_op_call *call)
{
    static void (*const planes[TREK_DTYPE_COUNT])(void *, int64_t, int64_t) = {
        [TREK_F32] = max_planes_f32, [TREK_F64] = max_planes_f64, [TREK_I64] = max_planes_i64,
        [TREK_I32] = max_planes_i32, [TREK_U8] = max_planes_u8,
    };
    pool_job job = job_of(call, call->inputs[0], call->outputs[0]);
    job.adaptive = call->op->id == TREK_OP_adaptive_max_pool2d;
    if (job.adaptive)
        job.dilation_h = job.dilation_w = 1;
    job.index = (int64_t *)(void *)call->outputs[1]->data;
    job.row_bytes = 2 * job.width * (int64_t)sizeof(int64_t);
    job.rows = trek_block_alloc((size_t)(job.planes * job.row_bytes));
    if (!job.rows && job.planes > 0)
        return TREK_ERR_MEMORY;
    trek_parallel(job.planes, plane_grain(&job), planes[call->inputs[0]->dtype], &job);
    trek_block_free(job.rows);
    return TREK_OK;
}

static trek_status max_pool2d_backward_dense(const trek_op_call *call)
{
    static void (*const planes[TREK_DTYPE_COUNT])(void *, int64_t, int64_t) = {
        [TREK_F32] = max_grad_planes_f32, [TREK_F64] = max_grad_planes_f64, [TREK_I64] = max_grad_planes_i64,
        [TREK_I32] = max_grad_planes_i32, [TREK_U8] = max_grad_planes_u8,
    };
    const trek_tensor *index = call->inputs[1];
    pool_job job = { .from = call->inputs[0]->data, .to = call->outputs[0]->data };
    const int64_t *x = call->outputs[0]->sizes, *y = call->inputs[0]->sizes;
    job.planes = x[0] * x[1], job.height = x[2], job.width = x[3], job.out_h = y[2], job.out_w = y[3];
    job.given_index = (const int64_t *)(const void *)index->data;
    uint64_t outside = 0;
    for (int64_t i = 0; i < index->numel; i++)
        outside |= (uint64_t)job.given_index[i] + 1 > (uint64_t)(job.height * job.width); /* -1: no position */
    if (outside)
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "indices: one is outside of the plane of %lld x %lld", (long long)job.height,
                            (long long)job.width);
    trek_parallel(job.planes, plane_grain(&job), planes[call->inputs[0]->dtype], &job);
    return TREK_OK;
}

/* Computes 1 / divisor of each position, its input range, and a row for each plane, in one block that begins at
 * job->scale. */
static trek_status average_init(pool_job *job)
{
    int64_t places = job->out_h * job->out_w, edges = 2 * (job->out_h + job->out_w);
    job->scale = trek_block_alloc((size_t)(places + edges + job->planes * job->width) * sizeof *job->scale);
    if (!job->scale)
        return TREK_ERR_MEMORY;
    int64_t *edge = job->spans = (int64_t *)(void *)(job->scale + places);
    job->rows = job->spans + edges;
    for (int64_t y = 0; y < job->out_h; y++, edge += 2)
        span(job, false, y, edge, edge + 1);
    for (int64_t x = 0; x < job->out_w; x++, edge += 2)
        span(job, true, x, edge, edge + 1);
    for (int64_t y = 0; y < job->out_h; y++)
        for (int64_t x = 0; x < job->out_w; x++) {
            int64_t begin, end, rows = span(job, false, y, &begin, &end), columns = span(job, true, x, &begin, &end);
            double divisor = job->divisor != 0 ? job->divisor : (double)(rows * columns);
            job->scale[y * job->out_w + x] = divisor != 0 ? 1 / divisor : 0;
        }
    return TREK_OK;
}

static trek_status average_dense(const trek_op_call *call)
{
    int id = call->op->id;
    bool backward = id == TREK_OP_avg_pool2d_backward || id == TREK_OP_adaptive_avg_pool2d_backward;
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    pool_job job = job_of(call, backward ? out : in, backward ? in : out);
    job.adaptive = id == TREK_OP_adaptive_avg_pool2d || id == TREK_OP_adaptive_avg_pool2d_backward;
    job.divisor = job.adaptive ? 0 : call->attrs.f[0];
    if (average_init(&job) != TREK_OK)
        return TREK_ERR_MEMORY;
    bool wide = in->dtype == TREK_F64;
    if (backward)
        trek_parallel(job.planes, plane_grain(&job), wide ? average_grad_planes_f64 : average_grad_planes_f32, &job);
    else
        trek_parallel(job.planes, plane_grain(&job), wide ? average_planes_f64 : average_planes_f32, &job);
    trek_block_free(job.scale);
    return TREK_OK;
}

static trek_status max_pool2d(const trek_op_call *call) { return trek_cpu_dense(call, 1, max_pool2d_dense); }
static trek_status max_pool2d_backward(const trek_op_call *call) { return trek_cpu_dense(call, 3, max_pool2d_backward_dense); }
static trek_status average(const trek_op_call *call) { return trek_cpu_dense(call, 1, average_dense); }

void TREK_ISA_NAME(trek_cpu_register_pool2d)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++) {
        if (TREK_NUMBERS >> dtype & 1) {
            b->kernels[TREK_OP_max_pool2d][dtype] = max_pool2d;
            b->kernels[TREK_OP_max_pool2d_backward][dtype] = max_pool2d_backward;
            b->kernels[TREK_OP_adaptive_max_pool2d][dtype] = max_pool2d;
        }
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_avg_pool2d][dtype] = average;
            b->kernels[TREK_OP_avg_pool2d_backward][dtype] = average;
            b->kernels[TREK_OP_adaptive_avg_pool2d][dtype] = average;
            b->kernels[TREK_OP_adaptive_avg_pool2d_backward][dtype] = average;
        }
    }
}

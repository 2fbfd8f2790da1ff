/* SPDX-License-Identifier: Apache-2.0 */
/* grid_sample and its gradients. For a part of the grid at a time it makes a table of the elements that are used,
 * which serves all channels. */
#include <string.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"
#include "tensor/resample.h"

/* LINE_TAPS: taps of one dimension. TAPS: 4 x 4 in two dimensions, 2 x 2 x 2 in three. PART: positions of the grid at
 * a time, in whole vectors. GROUP: channels at a time. */
enum { LINE_TAPS = 4, TAPS = 16, PART = 128, GROUP = 32 };

typedef struct grid_job {
    const void *x, *grid, *dy;
    void *y, *dx, *dgrid;
    int64_t samples, channels, points, plane; /* positions of the grid, elements of a channel */
    int64_t parts, groups;
    int64_t sizes[3];                         /* of a channel, in the order of the grid's coordinates: width first */
    int dims, mode, padding, taps;
    bool align;
} grid_job;

static int line_taps_of(const grid_job *job)
{
    return job->mode == TREK_GRID_MODE_NEAREST ? 1 : job->mode == TREK_GRID_MODE_BILINEAR ? 2 : 4;
}

#define TREK_REAL f32
#include "tensor/cpu/conv/grid_sample_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/conv/grid_sample_template.h"
#undef TREK_REAL

static grid_job job_of(const trek_op_call *call, const trek_tensor *x, const trek_tensor *grid)
{
    const int64_t *a = call->attrs.i;
    grid_job job = { .x = x->data, .grid = grid->data, .samples = x->sizes[0], .channels = x->sizes[1], .points = 1, .plane = 1,
                     .dims = x->ndim - 2, .mode = (int)a[0], .padding = (int)a[1], .align = a[2] != 0 };
    job.taps = 1;
    for (int d = 0; d < job.dims; d++) {
        job.sizes[d] = x->sizes[x->ndim - 1 - d];
        job.plane *= job.sizes[d];
        job.points *= grid->sizes[1 + d];
        job.taps *= line_taps_of(&job);
    }
    job.parts = (job.points + PART - 1) / PART;
    job.groups = (job.channels + GROUP - 1) / GROUP;
    return job;
}

static trek_status grid_sample_dense(const trek_op_call *call)
{
    grid_job job = job_of(call, call->inputs[0], call->inputs[1]);
    job.y = call->outputs[0]->data;
    if (call->outputs[0]->numel > 0)
        trek_parallel(job.samples * job.parts, 32 / (job.channels + 1) + 1,
                      call->inputs[0]->dtype == TREK_F64 ? sample_units_f64 : sample_units_f32, &job);
    return TREK_OK;
}

static trek_status grid_sample_backward_dense(const trek_op_call *call)
{
    grid_job job = job_of(call, call->inputs[1], call->inputs[2]);
    bool wide = call->inputs[0]->dtype == TREK_F64;
    job.dy = call->inputs[0]->data;
    job.dx = call->outputs[0]->data;
    job.dgrid = call->outputs[1]->data;
    if (call->outputs[0]->numel > 0)
        trek_parallel(job.samples * job.groups, 1, wide ? input_grad_units_f64 : input_grad_units_f32, &job);
    if (job.mode == TREK_GRID_MODE_NEAREST) /* constant between two positions */
        memset(job.dgrid, 0, (size_t)call->outputs[1]->numel * (wide ? sizeof(double) : sizeof(float)));
    else if (call->outputs[1]->numel > 0)
        trek_parallel(job.samples * job.parts, 32 / (job.channels + 1) + 1, wide ? grid_grad_units_f64 : grid_grad_units_f32,
                      &job);
    return TREK_OK;
}

static trek_status grid_sample(const trek_op_call *call) { return trek_cpu_dense(call, 3, grid_sample_dense); }
static trek_status grid_sample_backward(const trek_op_call *call) { return trek_cpu_dense(call, 7, grid_sample_backward_dense); }

void TREK_ISA_NAME(trek_cpu_register_grid_sample)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_grid_sample][dtype] = grid_sample;
            b->kernels[TREK_OP_grid_sample_backward][dtype] = grid_sample_backward;
        }
}

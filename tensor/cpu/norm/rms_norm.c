/* SPDX-License-Identifier: Apache-2.0 */
/* Root mean square norm (Zhang and Sennrich 2019), forward and backward. */
#include <math.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"

typedef struct rms_job {
    const void *x, *dy, *weight;
    void *y, *rstd;                 /* y is dx in the backward pass */
    void *dweight;                  /* may be NULL */
    void *partials;                 /* [blocks][columns] of dweight */
    int64_t rows, columns, block, blocks;
    double eps;
} rms_job;

#define TREK_REAL f32
#include "tensor/cpu/norm/rms_norm_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/norm/rms_norm_template.h"
#undef TREK_REAL

static int64_t columns_of(const trek_tensor *x, int64_t dims)
{
    int64_t n = 1;
    for (int d = x->ndim - (int)dims; d < x->ndim; d++)
        n *= x->sizes[d];
    return n;
}

static const void *data_of(const trek_op_call *call, int k)
{
    return k < call->n_inputs && call->inputs[k] ? call->inputs[k]->data : NULL;
}

static trek_status forward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    rms_job job = { .x = x->data, .weight = data_of(call, 1), .y = call->outputs[0]->data, .rstd = call->outputs[1]->data,
                    .eps = call->attrs.f[0] };
    job.columns = columns_of(x, call->attrs.i[0]);
    job.rows = call->outputs[1]->numel;
    trek_parallel(job.rows, 16384 / (job.columns + 1) + 1, x->dtype == TREK_F64 ? forward_rows_f64 : forward_rows_f32, &job);
    return TREK_OK;
}

static trek_status backward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[1];
    rms_job job = { .dy = call->inputs[0]->data, .x = x->data, .rstd = call->inputs[2]->data, .weight = data_of(call, 3),
                    .y = call->outputs[0]->data, .dweight = call->outputs[1] ? call->outputs[1]->data : NULL };
    job.columns = columns_of(x, call->attrs.i[0]);
    job.rows = call->inputs[2]->numel;
    job.block = (job.rows + 15) / 16; /* at most 16 partial sums, whatever the number of threads */
    job.block = job.block < 8 ? 8 : job.block;
    job.blocks = job.columns ? (job.rows + job.block - 1) / job.block : 0;
    bool wide = x->dtype == TREK_F64;
    job.partials = trek_block_alloc((size_t)((job.dweight ? job.blocks * job.columns : 0) + 1) * (wide ? 8 : 4));
    if (!job.partials)
        return TREK_ERR_MEMORY;
    trek_parallel(job.blocks, 8192 / (job.block * (job.columns + 1)) + 1, wide ? backward_blocks_f64 : backward_blocks_f32, &job);
    if (job.dweight)
        trek_parallel(job.columns, 16384 / (job.blocks + 1) + 1, wide ? combine_f64 : combine_f32, &job);
    trek_block_free(job.partials);
    return TREK_OK;
}

static trek_status rms_norm(const trek_op_call *call) { return trek_cpu_dense(call, 3, forward_dense); }
static trek_status rms_norm_backward(const trek_op_call *call) { return trek_cpu_dense(call, 15, backward_dense); }

void TREK_ISA_NAME(trek_cpu_register_rms_norm)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_rms_norm][dtype] = rms_norm;
            b->kernels[TREK_OP_rms_norm_backward][dtype] = rms_norm_backward;
        }
}

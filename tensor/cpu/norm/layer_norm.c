/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm (Ba, Kiros and Hinton 2016), forward and backward, also of a sum of two tensors (the residual stream of
 * a transformer and a branch), which is stored. */
#include <math.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"

typedef struct norm_job {
    const void *x, *dy, *weight, *bias;
    const void *branch;             /* added to x first, the sum is stored in `residual`; NULL: none */
    void *residual;
    const void *stream;             /* added to dx; NULL: nothing */
    void *y, *mean, *rstd;          /* y is dx in the backward pass */
    void *dweight, *dbias;          /* may be NULL */
    void *partials;                 /* [blocks][dbias, dweight][columns] */
    int64_t rows, columns, block, blocks;
    double eps;
} norm_job;

#define TREK_REAL f32
#include "tensor/cpu/norm/layer_norm_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/norm/layer_norm_template.h"
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
    norm_job job = { .x = x->data, .weight = data_of(call, 1), .bias = data_of(call, 2), .y = call->outputs[0]->data,
                     .mean = call->outputs[1]->data, .rstd = call->outputs[2]->data, .eps = call->attrs.f[0] };
    job.columns = columns_of(x, call->attrs.i[0]);
    job.rows = call->outputs[1]->numel;
    trek_parallel(job.rows, 16384 / (job.columns + 1) + 1, x->dtype == TREK_F64 ? forward_rows_f64 : forward_rows_f32, &job);
    return TREK_OK;
}

static trek_status run_backward(norm_job *job, bool wide)
{
    job->block = (job->rows + 15) / 16; /* at most 16 partial sums, whatever the number of threads */
    job->block = job->block < 8 ? 8 : job->block;
    job->blocks = job->columns ? (job->rows + job->block - 1) / job->block : 0;
    job->partials = trek_block_alloc((size_t)(job->blocks * 2 * job->columns + 1) * (wide ? 8 : 4));
    if (!job->partials)
        return TREK_ERR_MEMORY;
    trek_parallel(job->blocks, 8192 / (job->block * (job->columns + 1)) + 1, wide ? backward_blocks_f64 : backward_blocks_f32,
                  job);
    trek_parallel(job->columns, 16384 / (job->blocks + 1) + 1, wide ? combine_f64 : combine_f32, job);
    trek_block_free(job->partials);
    return TREK_OK;
}

static trek_status backward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[1];
    norm_job job = { .dy = call->inputs[0]->data, .x = x->data, .mean = call->inputs[2]->data, .rstd = call->inputs[3]->data,
                     .weight = data_of(call, 4), .y = call->outputs[0]->data, .dbias = call->outputs[2]->data,
                     .dweight = call->outputs[1] ? call->outputs[1]->data : NULL };
    job.columns = columns_of(x, call->attrs.i[0]);
    job.rows = call->inputs[2]->numel;
    return run_backward(&job, x->dtype == TREK_F64);
}

static trek_status add_backward_dense(const trek_op_call *call)
{
    const trek_tensor *residual = call->inputs[2];
    norm_job job = { .dy = call->inputs[0]->data, .stream = data_of(call, 1), .x = residual->data, .mean = call->inputs[3]->data,
                     .rstd = call->inputs[4]->data, .weight = data_of(call, 5), .y = call->outputs[0]->data,
                     .dbias = call->outputs[2]->data, .dweight = call->outputs[1] ? call->outputs[1]->data : NULL };
    job.columns = columns_of(residual, call->attrs.i[0]);
    job.rows = call->inputs[3]->numel;
    return run_backward(&job, residual->dtype == TREK_F64);
}

static trek_status add_forward_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    norm_job job = { .x = x->data, .branch = data_of(call, 1), .weight = data_of(call, 2), .bias = data_of(call, 3),
                     .y = call->outputs[0]->data, .residual = call->outputs[1]->data, .mean = call->outputs[2]->data,
                     .rstd = call->outputs[3]->data, .eps = call->attrs.f[0] };
    job.columns = columns_of(x, call->attrs.i[0]);
    job.rows = call->outputs[2]->numel;
    trek_parallel(job.rows, 16384 / (job.columns + 1) + 1, x->dtype == TREK_F64 ? forward_rows_f64 : forward_rows_f32, &job);
    return TREK_OK;
}

/* The residual is rounded to 16 bits before it is normalised: a row of one number gives 0, not what was rounded away. */
static trek_status add_layer_norm_half(const trek_op_call *call)
{
    trek_tensor *normed[3] = { call->outputs[1], call->n_inputs > 2 ? call->inputs[2] : NULL,
                               call->n_inputs > 3 ? call->inputs[3] : NULL };
    trek_op_call sum = { .op = &trek_ops[TREK_OP_add], .n_inputs = 2, .inputs = call->inputs, .n_outputs = 1,
                         .outputs = { call->outputs[1] } };
    trek_op_call norm = { .op = &trek_ops[TREK_OP_layer_norm], .n_inputs = 3, .inputs = normed, .n_outputs = 3,
                          .attrs = call->attrs,
                          .outputs = { call->outputs[0], call->outputs[2], call->outputs[3] } };
    trek_status status = trek_op_run(&sum);
    return status == TREK_OK ? trek_cpu_dense(&norm, 7, forward_dense) : status;
}

static trek_status layer_norm(const trek_op_call *call) { return trek_cpu_dense(call, 7, forward_dense); }
static trek_status layer_norm_backward(const trek_op_call *call) { return trek_cpu_dense(call, 31, backward_dense); }
static trek_status add_layer_norm(const trek_op_call *call)
{
    return trek_cpu_is_half(call->inputs[0]) ? add_layer_norm_half(call) : trek_cpu_dense(call, 15, add_forward_dense);
}
static trek_status add_layer_norm_backward(const trek_op_call *call) { return trek_cpu_dense(call, 63, add_backward_dense); }

void TREK_ISA_NAME(trek_cpu_register_layer_norm)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_layer_norm][dtype] = layer_norm;
            b->kernels[TREK_OP_layer_norm_backward][dtype] = layer_norm_backward;
            b->kernels[TREK_OP_add_layer_norm][dtype] = add_layer_norm;
            b->kernels[TREK_OP_add_layer_norm_backward][dtype] = add_layer_norm_backward;
        }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Resampling along a dimension, and its transpose. A table says of which elements each element of the result is made. */
#include <string.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/kernels.h"
#include "tensor/resample.h"

typedef struct resample_job {
    const void *from;
    void *to;
    int64_t outer, in, out, inner;
    int64_t taps, step;  /* entries of a position, and the distance between them */
    int32_t *index;      /* [taps, step]; -1: no element */
    void *weight;        /* [taps, step] */
} resample_job;

#define TREK_REAL f32
#include "tensor/cpu/conv/resample_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/conv/resample_template.h"
#undef TREK_REAL

/* Allocates `taps` empty entries for each of `places` positions: one block that begins at job->weight. */
static trek_status make_table(resample_job *job, int64_t taps, int64_t places, bool wide)
{
    job->taps = taps;
    job->step = (places + 15) / 16 * 16; /* whole vectors */
    size_t entries = (size_t)(job->taps * job->step), bytes = entries * (wide ? sizeof(double) : sizeof(float));
    job->weight = trek_block_alloc(bytes + entries * sizeof(int32_t));
    if (!job->weight)
        return TREK_ERR_MEMORY;
    memset(job->weight, 0, bytes);
    job->index = (int32_t *)(void *)((char *)job->weight + bytes);
    memset(job->index, 0xff, entries * sizeof(int32_t));
    return TREK_OK;
}

static void enter(resample_job *job, int64_t tap, int64_t place, int64_t index, double weight, bool wide)
{
    job->index[tap * job->step + place] = (int32_t)index;
    if (wide)
        ((double *)job->weight)[tap * job->step + place] = weight;
    else
        ((float *)job->weight)[tap * job->step + place] = (float)weight;
}

static trek_status fill_forward(resample_job *job, const trek_resample_plan *plan)
{
    trek_status status = make_table(job, trek_resample_most(plan), plan->out, plan->wide);
    for (int64_t o = 0; status == TREK_OK && o < plan->out; o++) {
        trek_resample_window w = trek_resample_window_of(plan, o);
        for (int k = 0; k < w.count; k++)
            enter(job, k, o, trek_resample_place(plan, &w, k), trek_resample_weight(plan, &w, k), plan->wide);
    }
    return status;
}

/* Finds for each element of x the elements of the result to which it contributes. */
static trek_status fill_backward(resample_job *job, const trek_resample_plan *plan)
{
    int64_t *used = trek_block_alloc((size_t)plan->in * sizeof *used), most = 1;
    if (!used)
        return TREK_ERR_MEMORY;
    memset(used, 0, (size_t)plan->in * sizeof *used);
    for (int64_t o = 0; o < plan->out; o++) {
        trek_resample_window w = trek_resample_window_of(plan, o);
        for (int k = 0; k < w.count; k++) {
            int64_t n = ++used[trek_resample_place(plan, &w, k)];
            most = n > most ? n : most;
        }
    }
    trek_status status = make_table(job, most, plan->in, plan->wide);
    memset(used, 0, (size_t)plan->in * sizeof *used);
    for (int64_t o = 0; status == TREK_OK && o < plan->out; o++) {
        trek_resample_window w = trek_resample_window_of(plan, o);
        for (int k = 0; k < w.count; k++) {
            int64_t i = trek_resample_place(plan, &w, k);
            enter(job, used[i]++, i, o, trek_resample_weight(plan, &w, k), plan->wide);
        }
    }
    trek_block_free(used);
    return status;
}

static trek_status resample_dense(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *y = call->outputs[0];
    const int64_t *a = call->attrs.i;
    bool backward = call->op->id == TREK_OP_resample_backward, wide = x->dtype == TREK_F64;
    resample_job job = { .from = x->data, .to = y->data, .outer = 1, .in = x->sizes[a[0]], .out = y->sizes[a[0]], .inner = 1 };
    for (int d = 0; d < x->ndim; d++)
        *(d < a[0] ? &job.outer : &job.inner) *= d == a[0] ? 1 : x->sizes[d];
    if (y->numel == 0)
        return TREK_OK;
    trek_resample_plan plan = trek_resample_planned(backward ? job.out : job.in, backward ? job.in : job.out, (int)a[2],
                                                    a[3] != 0, wide, call->attrs.f[0]);
    trek_status status = backward ? fill_backward(&job, &plan) : fill_forward(&job, &plan);
    if (status != TREK_OK)
        return status;
    int64_t units = job.inner == 1 ? job.outer : job.outer * job.out;
    int64_t work = job.taps * (job.inner == 1 ? job.out : job.inner); /* of a unit */
    trek_parallel(units, 32768 / (work + 1) + 1, wide ? resample_units_f64 : resample_units_f32, &job);
    trek_block_free(job.weight);
    return TREK_OK;
}

static trek_status resample(const trek_op_call *call) { return trek_cpu_dense(call, 1, resample_dense); }

void TREK_ISA_NAME(trek_cpu_register_resample)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_resample][dtype] = resample;
            b->kernels[TREK_OP_resample_backward][dtype] = resample;
        }
}

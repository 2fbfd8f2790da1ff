/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuda/lines.cuh"

/* Nothing moves along a broadcast dimension, so it counts as far. */
static int64_t span_of(int64_t stride) { return stride == 0 ? INT64_MAX : stride < 0 ? -stride : stride; }

/* The last operand decides which dimensions are near: the output in calls of one operand, otherwise an input. */
static void add_dim(trek_lines *l, const trek_tensor *const *tensors, int dim)
{
    int near = l->operands - 1, at = l->n_dims++;
    int64_t span = span_of(tensors[near]->strides[dim]);
    for (; at > 0 && span_of(l->dims[at - 1].step[near]) < span; at--)
        l->dims[at] = l->dims[at - 1];
    l->dims[at].size = tensors[0]->sizes[dim];
    for (int k = 0; k < TREK_LINE_OPERANDS; k++)
        l->dims[at].step[k] = k < l->operands ? tensors[k]->strides[dim] : 0;
}

static void join_dims(trek_lines *l)
{
    int joined = 0;
    for (int d = 0; d < l->n_dims; d++) {
        bool one = joined > 0;
        for (int k = 0; one && k < l->operands; k++)
            one = l->dims[joined - 1].step[k] == l->dims[d].step[k] * l->dims[d].size;
        int64_t size = one ? l->dims[joined - 1].size * l->dims[d].size : l->dims[d].size;
        joined -= one;
        l->dims[joined] = l->dims[d];
        l->dims[joined++].size = size;
    }
    l->n_dims = joined;
}

trek_lines trek_lines_of(const trek_tensor *const *tensors, int operands, int dim)
{
    trek_lines l;
    memset(&l, 0, sizeof l);
    const trek_tensor *out = tensors[0];
    l.operands = operands;
    l.n = out->ndim > 0 ? out->sizes[dim] : 1;
    l.lines = l.n > 0 ? out->numel / l.n : 0;
    for (int d = 0; d < out->ndim; d++)
        if (d != dim && out->sizes[d] != 1)
            add_dim(&l, tensors, d);
    join_dims(&l);
    for (int k = 0; k < operands && out->ndim > 0; k++)
        l.step[k] = tensors[k]->strides[dim];
    for (int d = 0; d < l.n_dims; d++)
        l.dims[d].by = trek_quotient_of(l.dims[d].size);
    l.wide = l.lines > 0x7fffffff;
    int near = operands - 1, log_n = trek_log2_up(l.n), log_lines = trek_log2_up(l.lines);
    l.layout.along = l.n_dims == 0 || span_of(l.step[near]) < span_of(l.dims[l.n_dims - 1].step[near]);
    if (l.layout.along) {
        l.layout.log_r = log_n < 8 ? log_n : 8;
        if (l.lines >= 4096 && log_n < 11 && log_n > 5)
            l.layout.log_r = 5;
        l.layout.log_c = 8 - l.layout.log_r;
    } else {
        l.layout.log_c = log_lines < 5 ? log_lines : l.lines >= 1 << 18 ? 8 : 5;
        l.layout.log_r = 8 - l.layout.log_c < log_n ? 8 - l.layout.log_c : log_n;
        l.layout.log_c = 8 - l.layout.log_r;
    }
    return l;
}

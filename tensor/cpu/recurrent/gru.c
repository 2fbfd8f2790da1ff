/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of a gated recurrent unit (Cho and others 2014; the reset gate after the product, as in cuDNN and PyTorch),
 * and its gradient. */
#include "tensor/cpu/recurrent/recurrent.h"

#define REAL float
#define R(name) name##_f32
#include "tensor/cpu/recurrent/gru_template.h"
#undef REAL
#undef R

#define REAL double
#define R(name) name##_f64
#include "tensor/cpu/recurrent/gru_template.h"
#undef REAL
#undef R

static trek_status forward_dense(const trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[1];
    recurrent r = recurrent_of(call, call->inputs[0], weight);
    trek_status status = TREK_ISA_NAME(trek_recurrent_begin)(&r, call->inputs[4], call->attrs.i[1] ? 0 : r.rows * 4 * r.hidden);
    set_part(&r, call->outputs[1], 0, call->inputs[3], 0);
    if (status == TREK_OK)
        status = TREK_ISA_NAME(trek_recurrent_pack)(&r, weight, 3 * r.hidden, r.hidden, 1, r.hidden, false);
    if (status == TREK_OK)
        status = TREK_ISA_NAME(trek_recurrent_run)(&r, r.wide ? gru_forward_rows_f64 : gru_forward_rows_f32);
    TREK_ISA_NAME(trek_recurrent_end)(&r);
    return status;
}

static trek_status backward_dense(const trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0];
    recurrent r = recurrent_of(call, call->inputs[1], weight);
    trek_status status = TREK_ISA_NAME(trek_recurrent_begin)(&r, call->inputs[6], 0);
    set_part(&r, call->outputs[2], 0, call->inputs[4], 0);
    if (status == TREK_OK)
        status = TREK_ISA_NAME(trek_recurrent_pack)(&r, weight, r.hidden, 3 * r.hidden, r.hidden, 1, true);
    if (status == TREK_OK)
        status = TREK_ISA_NAME(trek_recurrent_run)(&r, r.wide ? gru_backward_rows_f64 : gru_backward_rows_f32);
    TREK_ISA_NAME(trek_recurrent_end)(&r);
    return status;
}

static trek_status gru(const trek_op_call *call) { return trek_cpu_dense(call, 1 | 2 | 4 | 8, forward_dense); }
static trek_status gru_backward(const trek_op_call *call)
{
    return trek_cpu_dense(call, 1 | 2 | 4 | 8 | 16 | 32, backward_dense);
}

void TREK_ISA_NAME(trek_cpu_register_gru)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_gru][dtype] = gru;
            b->kernels[TREK_OP_gru_backward][dtype] = gru_backward;
        }
}

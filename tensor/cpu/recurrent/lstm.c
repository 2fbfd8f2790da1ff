/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of a long short-term memory (Hochreiter and Schmidhuber 1997; with a forget gate, Gers, Schmidhuber and
 * Cummins 2000), and its gradient. */
#include "tensor/cpu/recurrent/recurrent.h"

#define REAL float
#define R(name) name##_f32
#include "tensor/cpu/recurrent/lstm_template.h"
#undef REAL
#undef R

#define REAL double
#define R(name) name##_f64
#include "tensor/cpu/recurrent/lstm_template.h"
#undef REAL
#undef R

static trek_status forward_dense(const trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[1];
    recurrent r = recurrent_of(call, call->inputs[0], weight);
    trek_status status = TREK_ISA_NAME(trek_recurrent_begin)(&r, call->inputs[4], call->attrs.i[1] ? 0 : r.rows * 5 * r.hidden);
    for (int k = 0; k < 2; k++)
        set_part(&r, call->outputs[1], k, call->inputs[2 + k], 0);
    if (status == TREK_OK)
        status = TREK_ISA_NAME(trek_recurrent_pack)(&r, weight, 4 * r.hidden, r.hidden, 1, r.hidden, false);
    if (status == TREK_OK)
        status = TREK_ISA_NAME(trek_recurrent_run)(&r, r.wide ? lstm_forward_rows_f64 : lstm_forward_rows_f32);
    TREK_ISA_NAME(trek_recurrent_end)(&r);
    return status;
}

static trek_status backward_dense(const trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0], *grad_state = call->inputs[3];
    recurrent r = recurrent_of(call, call->inputs[1], weight);
    trek_status status = TREK_ISA_NAME(trek_recurrent_begin)(&r, call->inputs[5], 0);
    for (int k = 0; k < 2; k++)
        set_part(&r, call->outputs[1], k, grad_state, k);
    if (status == TREK_OK)
        status = TREK_ISA_NAME(trek_recurrent_pack)(&r, weight, r.hidden, 4 * r.hidden, r.hidden, 1, true);
    if (status == TREK_OK)
        status = TREK_ISA_NAME(trek_recurrent_run)(&r, r.wide ? lstm_backward_rows_f64 : lstm_backward_rows_f32);
    TREK_ISA_NAME(trek_recurrent_end)(&r);
    return status;
}

static trek_status lstm(const trek_op_call *call) { return trek_cpu_dense(call, 1 | 2 | 4 | 8, forward_dense); }
static trek_status lstm_backward(const trek_op_call *call) { return trek_cpu_dense(call, 1 | 2 | 4 | 8 | 16, backward_dense); }

void TREK_ISA_NAME(trek_cpu_register_lstm)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_lstm][dtype] = lstm;
            b->kernels[TREK_OP_lstm_backward][dtype] = lstm_backward;
        }
}

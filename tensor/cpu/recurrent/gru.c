/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of a gated recurrent unit (Cho and others 2014; the reset gate after the product, as in cuDNN and PyTorch),
 * and its gradient. */
#include "tensor/cpu/recurrent/recurrent.h"

#define GATES 3
#define KEPT 4
#define D_PRODUCT 1

#define REAL float
#define R(name) name##_f32
#include "tensor/cpu/recurrent/gru_template.h"
#include "tensor/cpu/recurrent/recurrent_template.h"
#undef REAL
#undef R

#define REAL double
#define R(name) name##_f64
#include "tensor/cpu/recurrent/gru_template.h"
#include "tensor/cpu/recurrent/recurrent_template.h"
#undef REAL
#undef R

static const recurrent_layer layer = {
    .gates = GATES, .kept = KEPT, .parts = 1, .initial = 3, .lengths = 4, .grad_state = 4, .grad_lengths = 6,
        .d_state = D_PRODUCT + 1,
    .forward = { forward_rows_f32, forward_rows_f64 }, .backward = { backward_rows_f32, backward_rows_f64 },
};

static trek_status forward_dense(const trek_op_call *call) { return TREK_ISA_NAME(trek_recurrent_forward)(call, &layer); }
static trek_status backward_dense(const trek_op_call *call) { return TREK_ISA_NAME(trek_recurrent_backward)(call, &layer); }
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

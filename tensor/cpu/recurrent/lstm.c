/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of a long short-term memory (Hochreiter and Schmidhuber 1997; with a forget gate, Gers, Schmidhuber and
 * Cummins 2000), and its gradient. */
#include "tensor/cpu/recurrent/recurrent.h"

#define GATES 4
#define KEPT 5
#define D_PRODUCT 0

#define REAL float
#define R(name) name##_f32
#include "tensor/cpu/recurrent/lstm_template.h"
#include "tensor/cpu/recurrent/recurrent_template.h"
#undef REAL
#undef R

#define REAL double
#define R(name) name##_f64
#include "tensor/cpu/recurrent/lstm_template.h"
#include "tensor/cpu/recurrent/recurrent_template.h"
#undef REAL
#undef R

static const recurrent_layer layer = {
    .gates = GATES, .kept = KEPT, .parts = 2, .initial = 2, .lengths = 4, .grad_state = 3, .grad_lengths = 5,
        .d_state = D_PRODUCT + 1,
    .forward = { forward_rows_f32, forward_rows_f64 }, .backward = { backward_rows_f32, backward_rows_f64 },
};

static trek_status forward_dense(const trek_op_call *call) { return TREK_ISA_NAME(trek_recurrent_forward)(call, &layer); }
static trek_status backward_dense(const trek_op_call *call) { return TREK_ISA_NAME(trek_recurrent_backward)(call, &layer); }
static trek_status lstm(const trek_op_call *call) { return trek_cpu_dense(call, 1 | 2 | 4 | 8, forward_dense); }
static trek_status lstm_backward(const trek_op_call *call)
{
    return trek_cpu_dense(call, 1 | 2 | 4 | 8 | 16, backward_dense);
}

void TREK_ISA_NAME(trek_cpu_register_lstm)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_lstm][dtype] = lstm;
            b->kernels[TREK_OP_lstm_backward][dtype] = lstm_backward;
        }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy over rows of logits, and its gradient: what the losses have in common. */
#ifndef TREK_TENSOR_CPU_REDUCE_CROSS_ENTROPY_ROWS_H
#define TREK_TENSOR_CPU_REDUCE_CROSS_ENTROPY_ROWS_H

#include "tensor/cpu/dense.h"
#include "tensor/cpu/elementwise/vector_library.h"
#include "tensor/cpu/vector_math.h"

typedef struct loss_job {
    const void *logits;
    const trek_tensor *labels;   /* contiguous */
    int64_t first_row;           /* the label of row 0, if rows are processed in pieces */
    const double *weight;        /* of the classes; NULL: 1 each */
    double weight_sum;
    int64_t classes, ignore;
    double smoothing;
    double *lse;                 /* in f64, because probabilities of logits in the ten thousands need its digits */
    double *losses;              /* of the rows */
    void *grad_logits;
    const double *grads;         /* of the rows; NULL: `grad` for all */
    double grad;
} loss_job;

/* Returns what `rounded` lacks of `whole`. */
static inline double what_lacks(double whole, double rounded) { return isfinite(rounded) ? whole - rounded : 0; }

#define TREK_REAL f32
#include "tensor/cpu/vector.h"
TREK_INLINE V exponential_f32(V x) { return trek_exp_wide(x); }
#include "tensor/cpu/reduce/cross_entropy_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/vector.h"
TREK_LIBRARY(exp, f64, exp)
TREK_INLINE V exponential_f64(V x) { return (V)trek_exp_f64_library((trek_wide64)x); }
#include "tensor/cpu/reduce/cross_entropy_template.h"
#undef TREK_REAL

static inline trek_status check_labels(const trek_op_call *call, const trek_tensor *labels, int64_t classes)
{
    for (int64_t row = 0; row < labels->numel; row++) {
        int64_t label = trek_cpu_integer(labels, row);
        if ((label < 0 || label >= classes) && label != call->attrs.i[0])
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "label %lld at row %lld is outside [0, %lld)", (long long)label,
                                (long long)row, (long long)classes);
    }
    return TREK_OK;
}

#endif

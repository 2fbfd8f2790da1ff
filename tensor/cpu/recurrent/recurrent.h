/* SPDX-License-Identifier: Apache-2.0 */
/* What the recurrent layers share: the order of the steps, which rows take part in one, and the product with the recurrent
 * weight, which is packed once for all steps. Rows are independent, so a thread takes some of them through all steps; how
 * many there are changes no bit. */
#ifndef TREK_TENSOR_CPU_RECURRENT_RECURRENT_H
#define TREK_TENSOR_CPU_RECURRENT_RECURRENT_H

#include <math.h>
#include <stdatomic.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/products/gemm.h"
#include "tensor/cpu/vector_math.h"

typedef struct recurrent {
    const trek_op_call *call;
    int64_t steps, rows, hidden;
    bool reverse, wide;          /* wide: f64 */
    int64_t *ends;               /* of each row, how many steps it has; NULL: all */
    trek_gemm product;           /* every step's, but for a and c */
    void *packed, *workspace;    /* its B, and room for A; NULL: the product is taken as it is */
    void *zeros;                 /* [4 hidden], for what is not given */
    void *spare;                 /* room for what nobody keeps */
    atomic_bool failed;
} recurrent;

/* Sizes are told by a sequence [T, N, ...] and the weight [..., H]. */
static inline recurrent recurrent_of(const trek_op_call *call, const trek_tensor *sequence, const trek_tensor *weight)
{
    return (recurrent){ .call = call, .steps = sequence->sizes[0], .rows = sequence->sizes[1], .hidden = weight->sizes[1],
                        .reverse = call->attrs.i[0], .wide = weight->dtype == TREK_F64 };
}

/* Room for `spare` numbers, and the lengths (NULL: all rows have all steps); ARGUMENT outside [0, steps]. */
trek_status TREK_ISA_NAME(trek_recurrent_begin)(recurrent *r, const trek_tensor *lengths, int64_t spare);
void TREK_ISA_NAME(trek_recurrent_end)(recurrent *r);
/* The product of every step, [rows, k] x B, B's strides in elements of weight. */
trek_status TREK_ISA_NAME(trek_recurrent_pack)(recurrent *r, const trek_tensor *weight, int64_t n, int64_t k, int64_t b_row,
                                               int64_t b_col, bool accumulate);
/* C (+)= A B for rows [begin, end), of which a and c are the first one's. */
void TREK_ISA_NAME(trek_recurrent_product)(recurrent *r, int64_t begin, int64_t end, const void *a, int64_t a_row, void *c,
                                           int64_t c_row);
/* fn for parts of the rows, or for all of them on the caller where the product has threads of its own. MEMORY. */
trek_status TREK_ISA_NAME(trek_recurrent_run)(recurrent *r, void (*fn)(void *arg, int64_t begin, int64_t end));

/* Part k of a state [parts, rows, hidden] is part `place` of another one; from NULL: zeros. */
static inline void set_part(const recurrent *r, trek_tensor *state, int k, const trek_tensor *from, int place)
{
    size_t size = (size_t)(r->rows * r->hidden) * (r->wide ? 8 : 4);
    if (from)
        memcpy(state->data + (size_t)k * size, from->data + (size_t)place * size, size);
    else
        memset(state->data + (size_t)k * size, 0, size);
}

/* The time of the s-th step that is taken forward. */
static inline int64_t time_of(const recurrent *r, int64_t s) { return r->reverse ? r->steps - 1 - s : s; }
static inline bool has_step(const recurrent *r, int64_t row, int64_t t) { return !r->ends || t < r->ends[row]; }
/* Whether t is the first step that the row takes. */
static inline bool begins_at(const recurrent *r, int64_t row, int64_t t)
{
    return r->reverse ? t == (r->ends ? r->ends[row] : r->steps) - 1 : t == 0;
}
static inline bool any_has_step(const recurrent *r, int64_t begin, int64_t end, int64_t t)
{
    for (int64_t row = begin; row < end; row++)
        if (has_step(r, row, t))
            return true;
    return false;
}

static inline double trek_sigmoid_f64(double x)
{
    double e = exp(-fabs(x)); /* never overflows */
    return (x < 0 ? e : 1) / (1 + e);
}
static inline double trek_tanh_f64(double x) { return tanh(x); }

#endif

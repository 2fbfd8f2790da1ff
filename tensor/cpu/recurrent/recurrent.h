/* SPDX-License-Identifier: Apache-2.0 */
/* What recurrent layers have in common: the order of the steps, which rows take part in a step, and the product with
 * the recurrent weight, which is packed once for all steps. Rows are independent, so a thread processes some of them
 * for all steps; how many does not change any bit. */
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
    int64_t *ends;               /* for each row the number of its steps; NULL: all */
    trek_gemm product;           /* the product of every step, except a and c */
    void *packed, *workspace;    /* its B, and memory for A; NULL: the product is not packed */
    void *zeros;                 /* [4 hidden] replaces what is not given */
    void *spare;                 /* memory for results that nobody needs */
    atomic_bool failed;
} recurrent;

/* Takes sizes from a sequence [T, N, ...] and the weight [..., H]. */
static inline recurrent recurrent_of(const trek_op_call *call, const trek_tensor *sequence, const trek_tensor *weight)
{
    return (recurrent){ .call = call, .steps = sequence->sizes[0], .rows = sequence->sizes[1], .hidden = weight->sizes[1],
                        .reverse = call->attrs.i[0], .wide = weight->dtype == TREK_F64 };
}

/* Allocates `spare` numbers and reads the lengths (NULL: all rows have all steps). Fails with ARGUMENT if a length is
 * outside [0, steps]. */
trek_status TREK_ISA_NAME(trek_recurrent_begin)(recurrent *r, const trek_tensor *lengths, int64_t spare);
void TREK_ISA_NAME(trek_recurrent_end)(recurrent *r);
/* Packs the product of every step, [rows, k] x B, with B's strides in elements of weight. */
trek_status TREK_ISA_NAME(trek_recurrent_pack)(recurrent *r, const trek_tensor *weight, int64_t n, int64_t k, int64_t b_row,
                                               int64_t b_col, bool accumulate);
/* Computes C (+)= A B for rows [begin, end); a and c are those of the first row. */
void TREK_ISA_NAME(trek_recurrent_product)(recurrent *r, int64_t begin, int64_t end, const void *a, int64_t a_row, void *c,
                                           int64_t c_row);
/* Calls fn for parts of the rows, or for all of them on the caller if the product has its own threads. Fails with
 * MEMORY. */
trek_status TREK_ISA_NAME(trek_recurrent_run)(recurrent *r, void (*fn)(void *arg, int64_t begin, int64_t end));

/* Copies part `place` of another state to part k of a state [parts, rows, hidden]; from NULL: zeros. */
static inline void set_part(const recurrent *r, trek_tensor *state, int k, const trek_tensor *from, int place)
{
    size_t size = (size_t)(r->rows * r->hidden) * (r->wide ? 8 : 4);
    if (from)
        memcpy(state->data + (size_t)k * size, from->data + (size_t)place * size, size);
    else
        memset(state->data + (size_t)k * size, 0, size);
}

/* Returns the time of the s-th forward step. */
static inline int64_t time_of(const recurrent *r, int64_t s) { return r->reverse ? r->steps - 1 - s : s; }
static inline bool has_step(const recurrent *r, int64_t row, int64_t t) { return !r->ends || t < r->ends[row]; }
/* Returns whether t is the first step of the row. */
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

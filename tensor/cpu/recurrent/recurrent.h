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

/* What distinguishes layers: the numbers of each element of the state, and the places of inputs and outputs. Forward:
 * the gates' sequence, the weight, ...; results, state, kept. Backward: the weight, kept, ...; gradients. */
typedef struct recurrent_layer {
    int gates, kept;             /* numbers in the sequence, and those kept for the gradient */
    int parts;                   /* tensors that the state consists of; h is the first */
    int initial, lengths;        /* inputs of forward: the first part of the initial state, the lengths */
    int grad_state, grad_lengths, d_state; /* inputs of backward, and the output that is the gradient of the initial state */
    void (*forward[2])(void *arg, int64_t begin, int64_t end);  /* f32, f64: rows [begin, end) of a recurrent */
    void (*backward[2])(void *arg, int64_t begin, int64_t end);
} recurrent_layer;

trek_status TREK_ISA_NAME(trek_recurrent_forward)(const trek_op_call *call, const recurrent_layer *layer);
trek_status TREK_ISA_NAME(trek_recurrent_backward)(const trek_op_call *call, const recurrent_layer *layer);
/* Computes C (+)= A B for rows [begin, end), where B is the weight of every step; a and c are those of the first row. */
void TREK_ISA_NAME(trek_recurrent_product)(recurrent *r, int64_t begin, int64_t end, const void *a, int64_t a_row, void *c,
                                           int64_t c_row);

/* Returns the time of the s-th forward step. */
static inline int64_t time_of(const recurrent *r, int64_t s) { return r->reverse ? r->steps - 1 - s : s; }
static inline bool has_step(const recurrent *r, int64_t row, int64_t t) { return !r->ends || t < r->ends[row]; }
/* Returns whether t is the first step of the row. */
static inline bool begins_at(const recurrent *r, int64_t row, int64_t t)
{
    return r->reverse ? t == (r->ends ? r->ends[row] : r->steps) - 1 : t == 0;
}
/* Returns the place of the row's step before time t, among the rows of all times. */
static inline int64_t before_of(const recurrent *r, int64_t row, int64_t t)
{
    return (r->reverse ? t + 1 : t - 1) * r->rows + row;
}
/* Returns row `at` of [.., hidden]; zeros if x is NULL. */
static inline const float *row_of_f32(const recurrent *r, const trek_tensor *x, int64_t at)
{
    return x ? (const float *)(const void *)x->data + at * r->hidden : r->zeros;
}
static inline const double *row_of_f64(const recurrent *r, const trek_tensor *x, int64_t at)
{
    return x ? (const double *)(const void *)x->data + at * r->hidden : r->zeros;
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

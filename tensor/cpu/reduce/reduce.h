/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions: the walk over an input of any strides, which reduce.c and its neighbours use. The order of additions
 * depends only on shape and strides: fixed chunks of the reduced elements, combined in order, whatever the number of
 * threads. */
#ifndef TREK_TENSOR_CPU_REDUCE_REDUCE_H
#define TREK_TENSOR_CPU_REDUCE_REDUCE_H

#include "tensor/cpu/elementwise/elementwise.h"

/* The partial result of an output: f64 for floating inputs, i64 for others. */
typedef union trek_partial {
    double f;
    int64_t i;
} trek_partial;

/* Folds `n` contiguous elements into one partial result. parameter: a number of the output (its mean, its maximum). */
typedef void (*trek_fold_row)(trek_partial *partial, const void *row, int64_t n, double parameter);
#define TREK_FOLD_COLUMNS 1024 /* the most at once */
/* Folds `rows` rows of n elements, `stride` bytes apart, into n partial results. */
typedef void (*trek_fold_columns)(trek_partial *partials, const void *row, int64_t stride, int64_t rows, int64_t n,
                                  const double *parameters);

/* One pass over the elements. */
typedef struct trek_fold {
    trek_partial start;
    trek_fold_row row;
    trek_fold_columns columns;
    void (*combine)(trek_partial *into, const trek_partial *from, int64_t n);
    void (*repeat)(trek_partial *partials, int64_t n, int64_t times); /* each as if its elements had occurred `times` times */
} trek_fold;

typedef struct trek_reduce_plan {
    const trek_fold *first, *second; /* second: NULL if one pass is enough */
    double (*parameter)(trek_partial first, int64_t count); /* what the second pass gets */
    /* Computes the result from the last pass's partial result, as an element of the output's kind. NULL: it is the
     * partial result. */
    trek_partial (*finish)(trek_partial partial, double parameter, int64_t count, const trek_attrs *attrs);
    bool floating;                   /* the result is .f */
    int64_t grain;
    const trek_fold *halves;         /* the first pass over 16-bit floats without conversion; NULL: they are converted */
} trek_reduce_plan;

trek_status TREK_ISA_NAME(trek_reduce)(const trek_op_call *call, const trek_reduce_plan *plan);

#endif

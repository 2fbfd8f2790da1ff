/* SPDX-License-Identifier: Apache-2.0 */
/* Lines along one dimension, several neighbouring lines at a time, for kernels that compare whole lines. */
#ifndef TREK_TENSOR_CPU_ORDER_ORDER_H
#define TREK_TENSOR_CPU_ORDER_ORDER_H

#include <stdatomic.h>

#include "tensor/cpu/kernels.h"

enum { TREK_ORDER_OPERANDS = 3 };

/* Up to 3 tensors of the same sizes, except along dim: x, values, indices. */
typedef struct trek_order {
    const trek_op_call *call;
    int operands, width;             /* width: bytes of an element of x and values */
    int64_t n;                       /* elements of a line of x */
    char *data[TREK_ORDER_OPERANDS];
    int64_t along[TREK_ORDER_OPERANDS], across[TREK_ORDER_OPERANDS]; /* strides in elements */
    int n_outer;
    int64_t outer_sizes[TREK_MAX_DIMS], outer[TREK_ORDER_OPERANDS][TREK_MAX_DIMS];
    int64_t columns, block, blocks;  /* neighbouring lines, and how many are processed at a time */
    size_t scratch;                  /* bytes that each call of `run` may use */
    void (*run)(const struct trek_order *o, char *const *data, int64_t columns, void *scratch);
    atomic_bool failed;              /* no memory */
} trek_order;

/* Begins the walk over x and the outputs of a call along dimension attrs.i[0], in blocks of at most `block`
 * neighbouring lines. */
void trek_order_begin(trek_order *o, const trek_op_call *call, int64_t block);
/* Calls run for all blocks, on all threads. work: steps that a line takes. Fails with MEMORY. */
trek_status trek_order_run(trek_order *o, int64_t work);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The walk of kernels that find places by an index tensor: others bring what is done along a line. */
#ifndef TREK_TENSOR_CPU_MOVES_INDEX_H
#define TREK_TENSOR_CPU_MOVES_INDEX_H

#include "tensor/cpu/kernels.h"

/* One index from an integer tensor. */
static inline int64_t trek_index_at(const char *data, int64_t element, trek_dtype dtype)
{
    switch (dtype) {
    case TREK_I64: return ((const int64_t *)data)[element];
    case TREK_I32: return ((const int32_t *)data)[element];
    default: return ((const uint8_t *)data)[element];
    }
}

/* A tensor's strides with the dimension in question and that of the columns apart. */
typedef struct trek_operand {
    char *data;
    int64_t outer[TREK_MAX_DIMS], dim, last; /* strides in elements */
} trek_operand;

typedef struct trek_lookup trek_lookup;
/* n places along the dimension, `columns` beside each. */
typedef void (*trek_lookup_line)(const trek_lookup *l, char *indexed, char *other, const char *index, int64_t n, int64_t columns);

/* The index's space: places along dim are looked up in `indexed`, `other` has an element for each. */
struct trek_lookup {
    trek_operand index, indexed, other;
    trek_dtype index_dtype;
    int n_outer;
    int64_t outer_sizes[TREK_MAX_DIMS];
    int64_t n, pieces, piece;    /* along dim, in pieces that may run at once */
    int width;                   /* bytes of an element */
    int64_t columns, blocks;     /* along the last dimension, if it is another one */
    trek_lookup_line line;
    void (*row)(uint16_t *a, const uint16_t *b, int64_t n); /* for rows that lie side by side; NULL: as line has it */
};

/* out = x, then `line` over out, source and index, in the order of the index along the dimension. whole_index: it has the
 * source's dimensions; else it is 1-D. */
trek_status TREK_ISA_NAME(trek_scatter_through)(const trek_op_call *call, bool whole_index, trek_lookup_line line);

#endif

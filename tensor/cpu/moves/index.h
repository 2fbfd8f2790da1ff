/* SPDX-License-Identifier: Apache-2.0 */
/* The walk of kernels that find places by an index tensor: others bring what is done along a line. */
#ifndef TREK_TENSOR_CPU_MOVES_INDEX_H
#define TREK_TENSOR_CPU_MOVES_INDEX_H

#include <stdatomic.h>

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
    /* sums and products of 16-bit elements: */
    bool bf16, product;
    int64_t bound;               /* places along dim */
    float *results;              /* room for those of a line */
    const int64_t *order;        /* of one index for all: its entries by place */
    int64_t entry;               /* from one of the source to the next */
    atomic_bool *no_memory;
};

/* out = x, then `line` over out, source and index, in the order of the index along the dimension. whole_index: it has the
 * source's dimensions; else it is 1-D. */
trek_status TREK_ISA_NAME(trek_scatter_through)(const trek_op_call *call, bool whole_index, trek_lookup_line line);

/* A line of 16-bit sums or products in f32, rounded once; it needs room for so many results. */
void TREK_ISA_NAME(trek_halves_line)(const trek_lookup *l, char *indexed, char *other, const char *index, int64_t n,
                                     int64_t columns);
int64_t TREK_ISA_NAME(trek_halves_room)(const trek_lookup *l);

/* Of one index for all rows: makes a walk over its n entries one over places that adds up what belongs to each. Its memory, for
 * trek_block_free; NULL and MEMORY. */
bool TREK_ISA_NAME(trek_halves_are_rows)(const trek_lookup *l, int64_t columns);
int64_t *TREK_ISA_NAME(trek_halves_by_place)(trek_lookup *l, int64_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The walk of kernels that find positions by an index tensor. Kernels provide the operation along a line. */
#ifndef TREK_TENSOR_CPU_MOVES_INDEX_H
#define TREK_TENSOR_CPU_MOVES_INDEX_H

#include <stdatomic.h>

#include "tensor/cpu/kernels.h"

/* Returns one index from an integer tensor. */
static inline int64_t trek_index_at(const char *data, int64_t element, trek_dtype dtype)
{
    switch (dtype) {
    case TREK_I64: return ((const int64_t *)data)[element];
    case TREK_I32: return ((const int32_t *)data)[element];
    default: return ((const uint8_t *)data)[element];
    }
}

/* A tensor's strides, with the indexed dimension and the columns' dimension separate. */
typedef struct trek_operand {
    char *data;
    int64_t outer[TREK_MAX_DIMS], dim, last; /* strides in elements */
} trek_operand;

typedef struct trek_lookup trek_lookup;
/* Processes n positions along the dimension, with `columns` adjacent elements each. */
typedef void (*trek_lookup_line)(const trek_lookup *l, char *indexed, char *other, const char *index, int64_t n, int64_t columns);

/* The space of the index: positions along dim are looked up in `indexed`; `other` has an element for each. */
struct trek_lookup {
    trek_operand index, indexed, other;
    trek_dtype index_dtype;
    int n_outer;
    int64_t outer_sizes[TREK_MAX_DIMS];
    int64_t n, pieces, piece;    /* along dim, in pieces that may run in parallel */
    int width;                   /* bytes of an element */
    int64_t columns, blocks;     /* along the last dimension, if that is another one */
    trek_lookup_line line;
    /* For sums and products of 16-bit elements: */
    bool bf16, product;
    int64_t bound;               /* number of positions along dim */
    float *results;              /* memory for the results of a line */
    const int64_t *order;        /* with one index for all: its entries by position */
    int64_t entry;               /* from one of the source to the next */
    atomic_bool *no_memory;
};

/* Computes out = x, then `line` over out, source and index, in the order of the index along the dimension.
 * whole_index: the index has the source's dimensions; otherwise it is 1-D. */
trek_status TREK_ISA_NAME(trek_scatter_through)(const trek_op_call *call, bool whole_index, trek_lookup_line line);

/* Computes a line of 16-bit sums or products in f32, rounded once. It needs memory for as many results. */
void TREK_ISA_NAME(trek_halves_line)(const trek_lookup *l, char *indexed, char *other, const char *index, int64_t n,
                                     int64_t columns);
int64_t TREK_ISA_NAME(trek_halves_room)(const trek_lookup *l);

/* With one index for all rows, turns a walk over its n entries into one over positions that adds what belongs to
 * each. Returns the memory, for trek_block_free, or NULL on failure (MEMORY). */
bool TREK_ISA_NAME(trek_halves_are_rows)(const trek_lookup *l, int64_t columns);
int64_t *TREK_ISA_NAME(trek_halves_by_place)(trek_lookup *l, int64_t n);

#endif

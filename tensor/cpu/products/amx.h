/* SPDX-License-Identifier: Apache-2.0 */
/* Products by tiles: the instructions of Intel's AMX for bf16, and the same in plain C for machines without it. A tile has 16
 * rows of 64 bytes. Operands are packed into tiles (gemm_amx_pack.h): a tile of A has 32 numbers along k of each of 16 rows, and
 * a tile of B has the pairs of 32 numbers along k of 16 columns. This interface is compiled once, for all instruction sets. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_AMX_H
#define TREK_TENSOR_CPU_PRODUCTS_AMX_H

#include <stdint.h>

enum {
    TREK_AMX_LANES = 16,     /* rows of A, or columns of B, in a tile */
    TREK_AMX_DEPTH = 32,     /* numbers along k */
    TREK_AMX_NUMBERS = 512,  /* in a tile of A or B */
    TREK_AMX_MOST_TERMS = 3, /* bf16 numbers whose sum is a number of an operand */
};

/* A block of C of up to 2 x 2 tiles: c[i * c_row + j] = sum over k. A strip has the tiles of 16 rows or columns: `terms` tiles,
 * from the term with the highest bits to the one with the lowest, at each step along k. */
typedef struct trek_amx_block {
    const uint16_t *a[2], *b[2]; /* two strips each; the second is NULL if the block is one tile high, or wide */
    int64_t depth;               /* tiles along k; 0 is allowed */
    int terms;
    float *c; /* whole tiles */
    int64_t c_row;
} trek_amx_block;

/* One of the two implementations. */
typedef struct trek_amx {
    /* Configures the tiles of the calling thread, and releases them: switching away from a thread that holds tiles is slow.
     * Pairs of them do not nest. */
    void (*begin)(void);
    void (*end)(void);
    void (*multiply)(const trek_amx_block *block); /* between the two */
} trek_amx;

extern const trek_amx trek_amx_plain;
/* Returns the hardware's implementation, or NULL if the CPU or the system does not offer it. Asks the system for permission at
 * the first call. */
const trek_amx *trek_amx_hardware(void);

#endif

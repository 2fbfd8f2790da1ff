/* SPDX-License-Identifier: Apache-2.0 */
/* What adding products to sums needs for itself (trek_backend.binned_add_products, on CPUs). */
#ifndef TREK_TENSOR_BINNED_ROOM_H
#define TREK_TENSOR_BINNED_ROOM_H

#include "tensor/binned.h"

/* What a thread has in the cache meanwhile: elements of tiles of several terms; and by how much rows of operands are longer
 * there, so that they do not fall on the same places of the cache. */
#define TREK_BINNED_RESULTS 65536
#define TREK_BINNED_PITCH 16
/* Rows of a tile whose columns are a block, and the least elements of another one. */
#define TREK_BINNED_TILE_ROWS 14
#define TREK_BINNED_TILE 16384

/* Returns the most elements of a tile. */
static inline int64_t trek_binned_tile(int64_t columns)
{
    int64_t band = trek_binned_band(columns) * columns;
    return columns % TREK_BINNED_BLOCK == 0 ? TREK_BINNED_TILE_ROWS * TREK_BINNED_BLOCK
        : band > TREK_BINNED_TILE ? band : TREK_BINNED_TILE;
}

/* Returns how many bytes each thread needs at most for n products. */
static inline int64_t trek_binned_product_room(int64_t rows, int64_t columns, int64_t samples, int n)
{
    int64_t of_x = columns % TREK_BINNED_BLOCK == 0 ? TREK_BINNED_BLOCK : columns;
    return (TREK_BINNED_RESULTS + samples * (rows + TREK_BINNED_PITCH) + n * samples * (of_x + TREK_BINNED_PITCH)) *
        (int64_t)sizeof(float) + 2 * trek_binned_tile(columns) * (int64_t)sizeof(int64_t);
}

#endif

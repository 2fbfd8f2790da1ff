/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of the thread's batch a part of a forward works on, and parts of a forward that not every rank runs.
 * Random numbers remain those of a sample's position in the global batch, and draws after such a part remain those of
 * their position in the program. */
#ifndef TREK_TENSOR_ROW_MAP_H
#define TREK_TENSOR_ROW_MAP_H

#include <stdatomic.h>

#include "tensor/rank_context.h"

/* Row k of a tensor of n rows is row rows[k] of the thread's `total`; with a multiple of n rows, groups of rows are. */
typedef struct trek_row_map {
    atomic_int refs;
    int64_t n, total;
    int64_t rows[];
} trek_row_map;

/* Makes a map of n > 0 rows of the `total` rows that the thread has now (by the current map, if there is one).
 * Returns NULL on failure (MEMORY). */
trek_row_map *trek_row_map_new(const int64_t *rows, int64_t n, int64_t total);
trek_row_map *trek_row_map_retain(const trek_row_map *map); /* NULL is allowed */
void trek_row_map_release(const trek_row_map *map);         /* NULL is allowed */
/* Returns the thread's map if it applies to a tensor of `rows` rows; NULL: random ops need nothing. */
const trek_row_map *trek_row_map_for(int64_t rows);
/* Returns the position in the global batch of row k of `rows`, counted in such rows. */
int64_t trek_row_place(int64_t rows, int64_t k);

/* The draws of a part that ranks run different numbers of times: each run has its own numbers, and the part takes one
 * draw of the thread's. */
typedef struct trek_rng_part {
    uint64_t stream, draw;
} trek_rng_part;

trek_rng_part trek_rng_part_begin(void);
/* Begins run `which` of the part: it has the same numbers wherever and whenever it runs. */
void trek_rng_part_run(const trek_rng_part *part, uint64_t which);
void trek_rng_part_end(const trek_rng_part *part);

#endif

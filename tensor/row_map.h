/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of the thread's batch a part of a forward works on, and parts of a forward that not every rank runs: random numbers
 * stay those of a sample's place in the global batch, and what is drawn behind such a part those of its place in the program.
 * Internal. */
#ifndef TREK_TENSOR_ROW_MAP_H
#define TREK_TENSOR_ROW_MAP_H

#include <stdatomic.h>

#include "tensor/rank_context.h"

/* Row k of a tensor of n rows is row rows[k] of the thread's `total`; with a multiple of n rows, groups of them are. */
typedef struct trek_row_map {
    atomic_int refs;
    int64_t n, total;
    int64_t rows[];
} trek_row_map;

/* Of the `total` rows that the thread has now (by the map that holds now, if there is one) those n > 0. NULL and MEMORY. */
trek_row_map *trek_row_map_new(const int64_t *rows, int64_t n, int64_t total);
trek_row_map *trek_row_map_retain(const trek_row_map *map); /* NULL is fine */
void trek_row_map_release(const trek_row_map *map);         /* NULL is fine */
/* The thread's map, if a tensor of `rows` rows falls under it; NULL: random ops need nothing. */
const trek_row_map *trek_row_map_for(int64_t rows);
/* Place in the global batch of row k of `rows`, counted in such rows. */
int64_t trek_row_place(int64_t rows, int64_t k);

/* Draws of a part that ranks run in different numbers: each run of it has numbers of its own, and takes one of the thread's. */
typedef struct trek_rng_part {
    uint64_t stream, draw;
} trek_rng_part;

trek_rng_part trek_rng_part_begin(void);
/* Run `which` of the part: the same numbers wherever and whenever it runs. */
void trek_rng_part_run(const trek_rng_part *part, uint64_t which);
void trek_rng_part_end(const trek_rng_part *part);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Rows selected from a batch, and parts of a forward: see row_map.h. */
#include "tensor/row_map.h"

#include "tensor/memory_internal.h"
#include "tensor/random_internal.h"

/* Returns the position of row k of `rows` among those of the map, counted in such rows. */
static int64_t through(const trek_row_map *map, int64_t rows, int64_t k)
{
    int64_t group = rows / map->n;
    return map->rows[k / group] * group + k % group;
}

const trek_row_map *trek_row_map_for(int64_t rows)
{
    const trek_row_map *map = trek_rank_here.row_map;
    return map && rows > 0 && rows % map->n == 0 ? map : NULL;
}

trek_row_map *trek_row_map_new(const int64_t *rows, int64_t n, int64_t total)
{
    trek_row_map *map = trek_alloc(sizeof *map + (size_t)n * sizeof *map->rows);
    if (!map)
        return NULL;
    const trek_row_map *around = trek_row_map_for(total);
    atomic_init(&map->refs, 1);
    map->n = n;
    map->total = around ? total / around->n * around->total : total;
    for (int64_t k = 0; k < n; k++)
        map->rows[k] = around ? through(around, total, rows[k]) : rows[k];
    return map;
}

trek_row_map *trek_row_map_retain(const trek_row_map *map)
{
    trek_row_map *own = (trek_row_map *)(uintptr_t)map;
    if (own)
        atomic_fetch_add_explicit(&own->refs, 1, memory_order_relaxed);
    return own;
}

void trek_row_map_release(const trek_row_map *map)
{
    trek_row_map *own = (trek_row_map *)(uintptr_t)map;
    if (own && atomic_fetch_sub_explicit(&own->refs, 1, memory_order_acq_rel) == 1)
        trek_free(own);
}

int64_t trek_row_place(int64_t rows, int64_t k)
{
    const trek_row_map *map = trek_row_map_for(rows);
    int64_t whole = map ? rows / map->n * map->total : rows;
    return trek_rng_first_row(whole) + (map ? through(map, rows, k) : k);
}

/* The finaliser of Steele, Lea and Flood (splitmix64). */
static uint64_t mixed(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

trek_rng_part trek_rng_part_begin(void)
{
    trek_rank_context *here = &trek_rank_here;
    return (trek_rng_part){ .stream = here->rng_stream, .draw = here->rng_draw };
}

void trek_rng_part_run(const trek_rng_part *part, uint64_t which)
{
    trek_rank_context *here = &trek_rank_here;
    here->rng_stream = mixed(mixed(mixed(part->stream) ^ part->draw) ^ which);
    here->rng_draw = 0;
}

void trek_rng_part_end(const trek_rng_part *part)
{
    trek_rank_context *here = &trek_rank_here;
    here->rng_stream = part->stream;
    here->rng_draw = part->draw + 1;
}

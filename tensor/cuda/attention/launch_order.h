/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the blocks of a kernel of attention take their work. A block has one tile of rows of one head,
 * and reads everything that the tile sees of the head's other side: keys and values, or queries and the gradients of
 * outputs. Heads are processed in sections of as many heads as fit into the L2 with their other sides. A section ends
 * before the next one begins, so that the tiles of a head read from the L2 what its first tile loaded. Within a
 * section the tiles with the most work go first. The order of sums does not depend on it. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_LAUNCH_ORDER_H
#define TREK_TENSOR_CUDA_ATTENTION_LAUNCH_ORDER_H

#include <stdint.h>

#ifdef __CUDACC__
#define TREK_ON_BOTH_SIDES __host__ __device__ __forceinline__
#else
#define TREK_ON_BOTH_SIDES inline
#endif

/* Passed to kernels by value. */
typedef struct trek_launch_order {
    int tiles, pairs, section; /* tiles of a head; heads of all sequences; heads of a section (the last one may have fewer) */
} trek_launch_order;

typedef struct trek_launch_place {
    int turn, pair; /* turn: 0 for the tile with the most work, up to tiles - 1 */
} trek_launch_place;

/* Returns the order for tiles * pairs blocks, at least one and at most 0x7fffffff. The other side of `sharing`
 * consecutive heads, which are never separated, takes `bytes` in a cache of `l2` bytes. A section uses three eighths
 * of the cache, because the L2 of large GPUs has two halves, both of which may hold what all multiprocessors read,
 * and because data that blocks read and write once also go through it. Sections have nearly the same size, so that
 * the last one keeps all multiprocessors busy, too. */
static inline trek_launch_order trek_launch_order_of(int64_t l2, int64_t bytes, int64_t sharing, int64_t tiles, int64_t pairs)
{
    const int64_t groups = pairs / sharing, fit = l2 / 8 * 3 / (bytes > 0 ? bytes : 1);
    const int64_t most = fit < 1 ? 1 : fit < groups ? fit : groups, sections = (groups + most - 1) / most;
    const trek_launch_order order = { (int)tiles, (int)pairs, (int)((groups + sections - 1) / sections * sharing) };
    return order;
}

/* Returns the work of block `unit`. */
static TREK_ON_BOTH_SIDES trek_launch_place trek_launch_place_of(trek_launch_order order, int unit)
{
    const int before = unit / (order.section * order.tiles) * order.section, left = order.pairs - before;
    const int heads = left < order.section ? left : order.section, rest = unit - before * order.tiles;
    const trek_launch_place place = { rest / heads, before + rest % heads };
    return place;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The tile instructions of the CPU, with the functions of amx_plain.h. Which tile an instruction works on is a part of the
 * instruction: numbers of tiles are constants, 0 to 3 for sums, 4 and 5 for A, 6 and 7 for B. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_AMX_HARDWARE_H
#define TREK_TENSOR_CPU_PRODUCTS_AMX_HARDWARE_H

#include <immintrin.h>

#include "tensor/cpu/products/amx_config.h"

#define TILE_TARGET __attribute__((target("amx-tile,amx-bf16")))
#define TILE_INLINE TILE_TARGET static inline __attribute__((always_inline))

/* The registers are the CPU's. */
typedef struct tile_unit {
    char nothing;
} tile_unit;

TILE_INLINE void tile_configure(tile_unit *u, const tile_config *config)
{
    (void)u;
    __asm__ volatile("" : : "r"(config) : "memory"); /* older compilers take the instruction to read 8 bytes of the 64 */
    _tile_loadconfig(config);
}

TILE_INLINE void tile_release(tile_unit *u)
{
    (void)u;
    _tile_release();
}

#define TREK_TILES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

TILE_INLINE void tile_zero(tile_unit *u, const int t)
{
    (void)u;
#define TREK_TILE_CASE(n)                                                                                                        \
    case n:                                                                                                                      \
        _tile_zero(n);                                                                                                           \
        break;
    switch (t) {
        TREK_TILES(TREK_TILE_CASE)
    }
#undef TREK_TILE_CASE
}

TILE_INLINE void tile_load(tile_unit *u, const int t, const void *from, int64_t stride)
{
    (void)u;
#define TREK_TILE_CASE(n)                                                                                                        \
    case n:                                                                                                                      \
        _tile_loadd(n, from, stride);                                                                                            \
        break;
    switch (t) {
        TREK_TILES(TREK_TILE_CASE)
    }
#undef TREK_TILE_CASE
}

TILE_INLINE void tile_store(const tile_unit *u, const int t, void *to, int64_t stride)
{
    (void)u;
#define TREK_TILE_CASE(n)                                                                                                        \
    case n:                                                                                                                      \
        _tile_stored(n, to, stride);                                                                                             \
        break;
    switch (t) {
        TREK_TILES(TREK_TILE_CASE)
    }
#undef TREK_TILE_CASE
}

/* Sum 2 i + j takes rows of A from tile 4 + i and columns of B from tile 6 + j. */
TILE_INLINE void tile_dot(tile_unit *u, const int sum, const int a, const int b)
{
    (void)u, (void)a, (void)b;
    switch (sum) {
    case 0:
        _tile_dpbf16ps(0, 4, 6);
        break;
    case 1:
        _tile_dpbf16ps(1, 4, 7);
        break;
    case 2:
        _tile_dpbf16ps(2, 5, 6);
        break;
    case 3:
        _tile_dpbf16ps(3, 5, 7);
        break;
    }
}

#undef TREK_TILES
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The tile instructions in plain C, as Intel's manual documents them: numbers are rounded to the nearest, ties to even, and
 * subnormal numbers count as zeros and become zeros. The thread must have the default rounding mode; the hardware does not read
 * it. amx_hardware.h has the same functions. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_AMX_PLAIN_H
#define TREK_TENSOR_CPU_PRODUCTS_AMX_PLAIN_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "tensor/cpu/products/amx_config.h"
#include "tensor/half_internal.h"

#define TILE_INLINE static inline

/* The registers. */
typedef struct tile_unit {
    tile_config config;
    _Alignas(64) uint8_t tiles[TILE_COUNT][TILE_ROWS_MOST][TILE_ROW_BYTES];
} tile_unit;

TILE_INLINE void tile_zero(tile_unit *u, int t) { memset(u->tiles[t], 0, sizeof u->tiles[t]); }

TILE_INLINE void tile_release(tile_unit *u) { memset(u, 0, sizeof *u); }

/* All tiles become zero. */
TILE_INLINE void tile_configure(tile_unit *u, const tile_config *config)
{
    tile_release(u);
    u->config = *config;
}

/* Loads the rows that the tile has; what is beyond them becomes zero. `stride` is in bytes. */
TILE_INLINE void tile_load(tile_unit *u, int t, const void *from, int64_t stride)
{
    tile_zero(u, t);
    for (int i = 0; i < u->config.rows[t]; i++)
        memcpy(u->tiles[t][i], (const char *)from + i * stride, u->config.row_bytes[t]);
}

TILE_INLINE void tile_store(const tile_unit *u, int t, void *to, int64_t stride)
{
    for (int i = 0; i < u->config.rows[t]; i++)
        memcpy((char *)to + i * stride, u->tiles[t][i], u->config.row_bytes[t]);
}

TILE_INLINE float tile_number(uint32_t bits) { return trek_f32_bits(bits & 0x7f800000u ? bits : bits & 0x80000000u); }

/* Rounds a sum once. x is exact, or its rounding to f64 has not moved it across a tie of f32: both factors have 8 bits. What is
 * below the smallest normal number after rounding becomes zero. */
TILE_INLINE float tile_rounded(double x)
{
    double kept = fabs(x) < 0x1p-126 - 0x1p-151 ? 0 * x : x;
    return (float)kept;
}

/* The numbers of two tiles, widened: a[i][2 k + q] and b[q][k][j] are the first (q 0) and the second numbers of pairs. */
typedef struct tile_factors {
    float a[TILE_ROWS_MOST][TILE_ROW_BYTES / 2], b[2][TILE_ROWS_MOST][TILE_ROW_BYTES / 4];
    uint32_t least[2], most[2]; /* exponents of numbers that are not zero */
} tile_factors;

TILE_INLINE float tile_widened(tile_factors *f, int side, uint32_t bits)
{
    uint32_t exponent = bits >> 23 & 0xff;
    f->least[side] = exponent > 0 && exponent < f->least[side] ? exponent : f->least[side];
    f->most[side] = exponent > f->most[side] ? exponent : f->most[side];
    return tile_number(bits);
}

TILE_INLINE void tile_widen(const tile_unit *u, int a, int b, tile_factors *f)
{
    f->least[0] = f->least[1] = 255;
    f->most[0] = f->most[1] = 0;
    for (int i = 0; i < TILE_ROWS_MOST; i++)
        for (int k = 0; k < TILE_ROW_BYTES / 4; k++) {
            uint32_t x, y;
            memcpy(&x, u->tiles[a][i] + 4 * k, sizeof x);
            memcpy(&y, u->tiles[b][i] + 4 * k, sizeof y);
            f->a[i][2 * k] = tile_widened(f, 0, x << 16);
            f->a[i][2 * k + 1] = tile_widened(f, 0, x & 0xffff0000u);
            f->b[0][i][k] = tile_widened(f, 1, y << 16);
            f->b[1][i][k] = tile_widened(f, 1, y & 0xffff0000u);
        }
}

/* Returns whether products and their sums in f32 are rounded as the instruction rounds them: products are exact, as they have 16
 * bits, and multiples of 2^-115, so that no sum is subnormal; none is infinite. */
TILE_INLINE bool tile_in_range(const tile_factors *f)
{
    return f->least[0] + f->least[1] >= 254 - 100 && f->most[0] + f->most[1] <= 254 + 120 && f->most[0] < 255 && f->most[1] < 255;
}

/* Sums of one row of A: of the first numbers of pairs, or of the second (q). */
TILE_INLINE void tile_sums(const tile_factors *f, bool in_range, int i, int q, int pairs, float *sums)
{
    for (int k = 0; k < pairs; k++) {
        const float x = f->a[i][2 * k + q], *y = f->b[q][k];
        if (in_range)
            for (int j = 0; j < TILE_ROW_BYTES / 4; j++)
                sums[j] += x * y[j];
        else
            for (int j = 0; j < TILE_ROW_BYTES / 4; j++)
                sums[j] = tile_rounded((double)x * (double)y[j] + (double)sums[j]);
    }
}

/* Adds to tile `sum` the products of the pairs of bf16 in tiles a and b (TDPBF16PS): along k those of the pairs' first numbers,
 * and those of the second; both sums; and last what the tile had. */
TILE_INLINE void tile_dot(tile_unit *u, int sum, int a, int b)
{
    tile_factors f;
    tile_widen(u, a, b, &f);
    const bool in_range = tile_in_range(&f);
    for (int i = 0; i < u->config.rows[sum]; i++) {
        float first[TILE_ROW_BYTES / 4] = { 0 }, second[TILE_ROW_BYTES / 4] = { 0 }, row[TILE_ROW_BYTES / 4];
        tile_sums(&f, in_range, i, 0, u->config.row_bytes[a] / 4, first);
        tile_sums(&f, in_range, i, 1, u->config.row_bytes[a] / 4, second);
        memcpy(row, u->tiles[sum][i], sizeof row);
        for (int j = 0; j < u->config.row_bytes[sum] / 4; j++) {
            float pair = tile_rounded((double)first[j] + (double)second[j]);
            row[j] = tile_rounded((double)tile_number(trek_bits_f32(row[j])) + (double)pair);
        }
        memcpy(u->tiles[sum][i], row, sizeof row);
    }
}

#endif

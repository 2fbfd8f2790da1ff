/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of tiles, in the layout that LDTILECFG reads, and the one that products use. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_AMX_CONFIG_H
#define TREK_TENSOR_CPU_PRODUCTS_AMX_CONFIG_H

#include <stdint.h>

enum { TILE_COUNT = 8, TILE_ROWS_MOST = 16, TILE_ROW_BYTES = 64 };

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Palette 1, each of the eight tiles whole. */
static inline tile_config tile_config_whole(void)
{
    tile_config config = { .palette = 1 };
    for (int t = 0; t < TILE_COUNT; t++) {
        config.row_bytes[t] = TILE_ROW_BYTES;
        config.rows[t] = TILE_ROWS_MOST;
    }
    return config;
}

#endif

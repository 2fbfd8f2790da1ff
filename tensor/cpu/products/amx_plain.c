/* SPDX-License-Identifier: Apache-2.0 */
/* Products by the tile instructions in plain C: for tests on machines that do not have them. */
#include "tensor/cpu/products/amx.h"

#include "tensor/cpu/products/amx_plain.h"

#define TILE_KERNEL_INLINE static inline
#include "tensor/cpu/products/amx_kernel.h"

static void nothing(void) {}

static void multiply(const trek_amx_block *block)
{
    tile_unit unit; /* 8 KiB: the registers need not outlive a block */
    const tile_config config = tile_config_whole();
    tile_configure(&unit, &config);
    multiply_block(&unit, block);
}

const trek_amx trek_amx_plain = { nothing, nothing, multiply };

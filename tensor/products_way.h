/* SPDX-License-Identifier: Apache-2.0 */
/* How large products of f32 and of bf16 are computed, if it is not left to a measurement. The ways differ in bits. */
#ifndef TREK_TENSOR_PRODUCTS_WAY_H
#define TREK_TENSOR_PRODUCTS_WAY_H

#include "tensor/types.h"

typedef enum trek_products_way {
    TREK_PRODUCTS_WAY_MEASURED = -1, /* the fastest of the others */
    TREK_PRODUCTS_WAY_FMA,           /* by multiply-add of f32 */
    TREK_PRODUCTS_WAY_TILES, /* by tiles of bf16: f32 as sums of bf16 numbers. Plain C serves where the CPU has no tiles */
    TREK_PRODUCTS_WAY_DOTS,  /* of bf16 only: by the CPU's dot product of pairs */
} trek_products_way;

/* Returns the way that was chosen for f32 or BF16: by trek_products_choose, otherwise by TREK_F32_PRODUCTS or
 * TREK_BF16_PRODUCTS, otherwise TREK_PRODUCTS_WAY_MEASURED. */
trek_products_way trek_products_chosen(trek_dtype dtype);

/* Returns what the variable says. */
trek_products_way trek_products_asked(trek_dtype dtype);

/* Chooses for the whole process; TREK_PRODUCTS_WAY_MEASURED: what the variable says. Not while products are computed. */
void trek_products_choose(trek_dtype dtype, trek_products_way way);

/* From here on nothing is measured that decides how products and convolutions are computed on GPUs, for the whole process:
 * another measurement could decide in another way, on each device. */
void trek_products_fix(void);
bool trek_products_are_fixed(void);

/* Returns how large products of f32 are computed on the CPU: TREK_PRODUCTS_WAY_FMA or TREK_PRODUCTS_WAY_TILES. */
trek_products_way trek_products_in_use(void);

#endif

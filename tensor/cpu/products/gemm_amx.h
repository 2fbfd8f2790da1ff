/* SPDX-License-Identifier: Apache-2.0 */
/* Products by tiles (amx.h): of bf16, and of f32 as sums of bf16 numbers. Both operands are packed into tiles once, then blocks
 * of C are computed, each by one thread. Each f32 is the sum of three bf16 numbers, of which six products are added, so that the
 * errors are those of f32; at lower precisions (trek_matmul_precision) two, of which three are added, or one. Where a block's
 * operands have numbers that such sums cannot carry, it is computed by multiply-add: infinities, NaN, and numbers so large or so
 * small that a product of parts would be infinite or subnormal. Which blocks these are depends on the operands only, not on the
 * number of threads. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_GEMM_AMX_H
#define TREK_TENSOR_CPU_PRODUCTS_GEMM_AMX_H

#include "tensor/cpu/products/amx.h"
#include "tensor/cpu/products/gemm.h"

/* Returns the tiles by which the product is computed: if TREK_PRODUCTS_WAY_TILES is chosen for its dtype, or if the CPU has
 * tiles, the measurement has found them faster, and the product is large enough. Returns NULL otherwise. */
const trek_amx *TREK_ISA_NAME(trek_gemm_amx_serving)(const trek_gemm *g);

/* Computes it so; `amx` is what the function above has returned. Fails only with MEMORY. */
trek_status TREK_ISA_NAME(trek_gemm_amx)(const trek_gemm *g, const trek_amx *amx);

/* Returns whether the CPU's tiles are faster for f32 at the precision that is set, or for BF16; false if the CPU has none. */
bool TREK_ISA_NAME(trek_gemm_amx_faster)(trek_dtype dtype);

#endif

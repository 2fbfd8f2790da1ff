/* SPDX-License-Identifier: Apache-2.0 */
/* Products with 16-bit operands or results: see gemm.h; products of bf16 may also be
 * computed by tiles (gemm_amx.h). Numbers are widened, or paired for the CPU's dot product of
 * bf16, while they are packed. Sums are in f32, and results are rounded once, when their tile is complete. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_GEMM_HALF_H
#define TREK_TENSOR_CPU_PRODUCTS_GEMM_HALF_H

#include "tensor/cpu/products/gemm.h"

static inline bool trek_gemm_has_half(const trek_gemm *g)
{
    return g->a_dtype != TREK_F32 || g->b_dtype != TREK_F32 || g->c_dtype != TREK_F32 || (g->bias && g->bias_dtype != TREK_F32);
}

/* Computes without tiles. A, B, C and bias may each be f32, BF16 or F16, with at least one of A and B 16-bit. Fails only with
 * MEMORY. */
trek_status TREK_ISA_NAME(trek_gemm_half_vectors)(const trek_gemm *g);

/* Returns whether products of bf16 with bf16 use the CPU's dot product of pairs, at up to twice the rate of f32. */
bool TREK_ISA_NAME(trek_gemm_dots)(void);

#endif

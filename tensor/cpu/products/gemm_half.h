/* SPDX-License-Identifier: Apache-2.0 */
/* Products with 16-bit operands or results: gemm.h. Numbers are widened, or
 * paired for the CPU's dot product of bf16, while they are packed; sums are
 * made in f32, and results rounded once, where their tile is at hand. */
#ifndef TREK_TENSOR_CPU_PRODUCTS_GEMM_HALF_H
#define TREK_TENSOR_CPU_PRODUCTS_GEMM_HALF_H

#include "tensor/cpu/products/gemm.h"

static inline bool trek_gemm_has_half(const trek_gemm *g)
{
    return g->a_dtype != TREK_F32 || g->b_dtype != TREK_F32 || g->c_dtype != TREK_F32 || (g->bias && g->bias_dtype != TREK_F32);
}

/* Each of A, B, C and bias is f32, BF16 or F16, at least one of A and B 16-bit. Fails only for lack of memory. */
trek_status TREK_ISA_NAME(trek_gemm_half)(const trek_gemm *g);

/* Whether products of bf16 with bf16 go by the CPU's dot product of pairs, at up to twice the rate of f32. */
bool TREK_ISA_NAME(trek_gemm_dots)(void);
/* trek_cpu_use_dots (tensor/cpu/use.h) */
bool TREK_ISA_NAME(trek_gemm_use_dots)(int way);

#endif

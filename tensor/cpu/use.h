/* SPDX-License-Identifier: Apache-2.0 */
/* For tests, which run every method of the CPU in one process. trek_cpu_use may not be called while anything runs. */
#ifndef TREK_TENSOR_CPU_USE_H
#define TREK_TENSOR_CPU_USE_H

#include <stdbool.h>

/* Fills the CPU's table (tensor/backend.h) for another instruction set, or for the one that it began with if isa is NULL. Returns
 * false if the library or the machine does not have it. */
bool trek_cpu_use(const char *isa);
/* Returns whether the CPU has the dot product of pairs of bf16 (trek_products_choose, TREK_PRODUCTS_WAY_DOTS), which only avx512
 * uses. */
bool trek_cpu_has_dots(void);

#endif

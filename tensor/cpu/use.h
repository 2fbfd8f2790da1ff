/* SPDX-License-Identifier: Apache-2.0 */
/* For tests, which run every method of the CPU in one process. Neither function may be called while anything runs. */
#ifndef TREK_TENSOR_CPU_USE_H
#define TREK_TENSOR_CPU_USE_H

#include <stdbool.h>

/* Fills the CPU's table (tensor/backend.h) for another instruction set, or for the one that it began with if isa is NULL. Returns
 * false if the library or the machine does not have it. */
bool trek_cpu_use(const char *isa);
/* Says whether products of bf16 use the CPU's dot product of pairs, which only avx512 has: 1 yes, 0 no, -1 as TREK_BF16_DOT or a
 * measurement decides. Returns false if the CPU has none. */
bool trek_cpu_use_dots(int way);

#endif

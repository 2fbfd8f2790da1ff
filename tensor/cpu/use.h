/* SPDX-License-Identifier: Apache-2.0 */
/* For tests, which run every way of the CPU in one process. Neither is called while anything runs. Internal. */
#ifndef TREK_TENSOR_CPU_USE_H
#define TREK_TENSOR_CPU_USE_H

#include <stdbool.h>

/* Fills the CPU's table (tensor/backend.h) for another instruction set; NULL: the one that it began with. False: the library or
 * the machine has not got it. */
bool trek_cpu_use(const char *isa);
/* Products of bf16 by the CPU's dot product of pairs, which only avx512 has: 1, 0, or -1: as TREK_BF16_DOT or a measurement
 * says. False: there is none. */
bool trek_cpu_use_dots(int way);

#endif

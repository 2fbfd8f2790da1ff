/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10, written from its description: what the library's random numbers are compared with. */
#ifndef TREK_TESTS_PHILOX_H
#define TREK_TESTS_PHILOX_H

#include <stdint.h>

/* Returns one of the four words of a block. */
uint32_t test_philox_word(uint64_t seed, uint64_t block, uint32_t draw, uint32_t step, int word);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What samplers share. */
#ifndef TREK_DATA_SAMPLER_INTERNAL_H
#define TREK_DATA_SAMPLER_INTERNAL_H

#include "data/sampler.h"

/* Combines two numbers into one, for another seed. */
uint64_t trek_sampler_mix(uint64_t a, uint64_t b);
/* Returns where position `at` of n goes in the shuffle of (seed, epoch); n >= 1. */
int64_t trek_sampler_place(int64_t at, int64_t n, uint64_t seed, int64_t epoch);

#endif

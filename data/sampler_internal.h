/* SPDX-License-Identifier: Apache-2.0 */
/* What samplers share. */
#ifndef TREK_DATA_SAMPLER_INTERNAL_H
#define TREK_DATA_SAMPLER_INTERNAL_H

#include "data/sampler.h"

/* A number of two numbers: another seed. */
uint64_t trek_sampler_mix(uint64_t a, uint64_t b);
/* Where place `at` of n goes in the shuffle of (seed, epoch); n >= 1. */
int64_t trek_sampler_place(int64_t at, int64_t n, uint64_t seed, int64_t epoch);

#endif

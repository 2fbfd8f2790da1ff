/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks do with their slowdowns. */
#ifndef TREK_DISTRIBUTED_BALANCE_SLOWDOWN_INTERNAL_H
#define TREK_DISTRIBUTED_BALANCE_SLOWDOWN_INTERNAL_H

#include "distributed/balance/slowdown.h"

/* Returns the factor at a batch, at least 1. It is 1 if `slowdown` is NULL or the factor is not finite. */
double trek_slowdown_factor(const trek_slowdown *slowdown, int64_t batch);

/* Waits for (factor - 1) * compute_ns nanoseconds, at most an hour, after a batch that took compute_ns. It does nothing if
 * `slowdown` is NULL or compute_ns <= 0. */
void trek_slowdown_apply(const trek_slowdown *slowdown, int64_t batch, int64_t compute_ns);

#endif

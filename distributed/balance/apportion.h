/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing whole samples among ranks. */
#ifndef TREK_DISTRIBUTED_BALANCE_APPORTION_H
#define TREK_DISTRIBUTED_BALANCE_APPORTION_H

#include "tensor/status.h"

TREK_BEGIN

/* Writes to counts how many of `total` items each of n parties gets: proportional to
 * weights (NULL: equal), by largest remainder (Hamilton's method), ties to the first.
 * Counts sum to total; weight 0 gets nothing. Errors: ARGUMENT (total < 0 or above 2^53,
 * n < 1, a weight that is negative or not finite, weights that sum to 0 or to infinity). */
TREK_API trek_status trek_apportion(int64_t total, const double *weights, int n, int64_t *counts);

TREK_END

#endif

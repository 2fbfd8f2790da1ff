/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing whole samples among ranks. */
#ifndef TREK_DISTRIBUTED_BALANCE_APPORTION_H
#define TREK_DISTRIBUTED_BALANCE_APPORTION_H

#include "tensor/status.h"

TREK_BEGIN

/* Divides `total` items among n parties and writes how many each gets to `counts`, [n]. The counts are proportional to
 * `weights` (NULL: equal) and their sum is `total`. They are computed by largest remainder (Hamilton's method), where the
 * first of equal remainders wins. A party of weight 0 gets none.
 * Errors: ARGUMENT if total < 0 or above 2^53, if n < 1, if a weight is negative or not finite, or if the sum of the weights
 * is 0 or infinite. */
TREK_API trek_status trek_apportion(int64_t total, const double *weights, int n, int64_t *counts);

TREK_END

#endif

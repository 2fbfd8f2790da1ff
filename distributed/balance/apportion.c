/* SPDX-License-Identifier: Apache-2.0 */
/* The method of largest remainders. Quotas are f64; errors of rounding are corrected by the same rule, so that counts
 * always sum to the total. */
#include "distributed/balance/apportion.h"

#include <math.h>

#include "tensor/status_internal.h"

#define MOST_ITEMS (INT64_C(1) << 53) /* a quota above this is not exact as an f64 */

static trek_status check(int64_t total, const double *weights, int n, const int64_t *counts, double *sum)
{
    if (!counts)
        return trek_fail_missing("apportion", "counts");
    if (total < 0 || total > MOST_ITEMS || n < 1)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "apportion: total and n: %lld items among %d; must be 0 items or more among at least 1",
                         (long long)total, n);
    *sum = 0;
    for (int k = 0; k < n; k++) {
        double weight = weights ? weights[k] : 1;
        if (!(weight >= 0) || isinf(weight))
            return trek_fail(TREK_ERR_ARGUMENT, "apportion: weight %d: %g; must be finite and not negative", k, weight);
        *sum += weight;
    }
    if (!(*sum > 0) || isinf(*sum))
        return trek_fail(TREK_ERR_ARGUMENT, "apportion: weights: their sum is %g; must be finite and above 0", *sum);
    return TREK_OK;
}

trek_status trek_apportion(int64_t total, const double *weights, int n, int64_t *counts)
{
    double sum = 0;
    trek_status status = check(total, weights, n, counts, &sum);
    if (status != TREK_OK)
        return status;
    int64_t given = 0;
    for (int k = 0; k < n; k++) {
        counts[k] = weights ? (int64_t)floor((double)total * (weights[k] / sum)) : total / n;
        given += counts[k];
    }
    if (!weights) { /* with equal remainders the first items win */
        for (int k = 0; k < (int)(total - given); k++)
            counts[k]++;
        return TREK_OK;
    }
    while (given != total) { /* at most n rounds */
        int best = -1;
        double most = 0;
        int64_t change = given < total ? 1 : -1;
        for (int k = 0; k < n; k++) {
            double left = ((double)total * (weights[k] / sum) - (double)counts[k]) * (double)change;
            if (weights[k] > 0 && (change > 0 || counts[k] > 0) && (best < 0 || left > most)) {
                best = k;
                most = left;
            }
        }
        counts[best] += change;
        given += change;
    }
    return TREK_OK;
}

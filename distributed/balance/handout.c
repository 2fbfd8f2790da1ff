/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/balance/handout.h"

#include <math.h>

#include "distributed/balance/apportion.h"
#include "tensor/status_internal.h"

trek_status trek_handout_ahead(int64_t total, double ahead, const double *weights, int n, int64_t *counts)
{
    if (!(ahead >= 0 && ahead <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "handout_ahead: ahead: %g; must be 0 to 1", ahead);
    trek_status status = trek_apportion(total, weights, n, counts); /* checks the rest, and is the result for ahead = 1 */
    if (status != TREK_OK || ahead == 1)
        return status;
    double sum = 0;
    for (int k = 0; k < n; k++)
        sum += weights ? weights[k] : 1;
    for (int k = 0; k < n; k++) {
        int64_t part = (int64_t)floor(ahead * (double)total * ((weights ? weights[k] : 1) / sum));
        counts[k] = part < counts[k] ? part : counts[k]; /* so that the sum is at most the total */
    }
    return TREK_OK;
}

int64_t trek_handout_next(int64_t left, double part, double fastest, int64_t least)
{
    if (left < 0 || !(part >= 0 && part <= fastest && fastest <= 1) || least < 1) {
        trek_fail(
            TREK_ERR_ARGUMENT,
            "handout_next: left, part, fastest and least: %lld, %g, %g and %lld; must be 0 or more, 0 to fastest, at most 1, "
            "and at least 1",
            (long long)left, part, fastest, (long long)least);
        return 0;
    }
    double own = (double)left * part;
    if (part < fastest && own < 0.7 * (double)least * (1 - 1.5 * part / fastest))
        return 0;
    double half = ceil(own * 0.5);
    int64_t n = half > (double)least ? (int64_t)half : least;
    return n < left ? n : left;
}

double trek_handout_before(double ready, double each, double end)
{
    if (!(each > 0)) {
        trek_fail(TREK_ERR_ARGUMENT, "handout_before: each: %g; must be above 0", each);
        return 0;
    }
    double n = ready < end ? ceil((end - ready) / each) - 1 : 0;
    return n > 0 ? n : 0;
}

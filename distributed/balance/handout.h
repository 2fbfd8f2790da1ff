/* SPDX-License-Identifier: Apache-2.0 */
/* Handing out the pieces of a step while it runs, so that nobody waits although speeds are known only roughly.
 *
 * The first pieces are divided before the step begins, in proportion to the measured speeds. The others are taken one after
 * another from a counter that all ranks share: a rank that needs work takes half of its part of what is left, so that pieces
 * become smaller towards the end and the last ones end at the same time (weighted factoring: S. F. Hummel et al., "Load-sharing
 * in heterogeneous systems via weighted factoring", SPAA 1996). Where ranks see how far the others have come, they take one at a
 * time, and a slow one leaves the last ones to others (trek_handout_before). The functions are plain arithmetic: equal arguments
 * give equal results, and the counter, the threads and the clock are the caller's. */
#ifndef TREK_DISTRIBUTED_BALANCE_HANDOUT_H
#define TREK_DISTRIBUTED_BALANCE_HANDOUT_H

#include "tensor/status.h"

TREK_BEGIN

/* Divides the first items of a step among n ranks and writes how many each gets to `counts`, [n]. `ahead`, in [0, 1], is the
 * part of the step that is divided. A rank gets the whole number below ahead * total * its part of the sum of `weights` (NULL:
 * equal), which may be 0. Items from the sum of the counts on are left for the counter.
 * Errors: ARGUMENT if `ahead` is not in [0, 1], and as for trek_apportion. `counts` is unchanged then. */
TREK_API trek_status trek_handout_ahead(int64_t total, double ahead, const double *weights, int n, int64_t *counts);

/* Returns how many of the `left` items a rank takes from the counter: half of its part of them, rounded up, but not fewer than
 * `least` and not more than `left`. `part`, in [0, 1], is its speed divided by the sum of all speeds, and `fastest` is the
 * largest part of any rank. `least` is above 1 if one item takes less time than asking the counter.
 *
 * The result is 0 if the step ends earlier without the rank: it is slow, and others would have done what is left before it had
 * done `least` items. (It gets none if left * part < 0.7 * least * (1 - 1.5 * part / fastest). The numbers come from
 * simulations with speeds between 1 : 1.1 and 1 : 20.) The fastest rank always gets something. A caller that gives `part` for
 * `fastest` always gets something, too.
 * Errors: ARGUMENT if left < 0, if `part` is not in [0, fastest], if `fastest` is above 1 or if least < 1; the function returns
 * 0 then. */
TREK_API int64_t trek_handout_next(int64_t left, double part, double fastest, int64_t least);

/* Returns how many items a rank can have done before `end`, if it is ready for the next one at `ready` and an item takes it the
 * time `each`, above 0. Items that end at `end` do not count.
 *
 * A rank that is free takes an item only if the sum of this over all other ranks, up to the time at which it would have done
 * the item, is below the number of items that nobody has. If all do so, and items take the time that is known of them, a step
 * ends as early as whole items allow: its end is the least time by which the ranks together can have done all items.
 * Errors: ARGUMENT if `each` is not above 0; the function returns 0 then. */
TREK_API double trek_handout_before(double ready, double each, double end);

TREK_END

#endif

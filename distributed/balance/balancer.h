/* SPDX-License-Identifier: Apache-2.0 */
/* The balancer: which share of each global batch a rank gets, so that ranks of
 * different speed end together. Plain arithmetic on measured times: no devices,
 * no threads, no clock; the same reports give the same shares. One thread at a time
 * may use an object. */
#ifndef TREK_DISTRIBUTED_BALANCE_BALANCER_H
#define TREK_DISTRIBUTED_BALANCE_BALANCER_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_balancer trek_balancer;

typedef struct trek_balancer_opts {
    int64_t first;            /* steps before the first decision; default 10 */
    int64_t every;            /* steps from one decision to the next; default 50 */
    double smoothing;         /* weight of a new throughput against the average; default 0.3, above 0, at most 1 */
    double min_share;         /* no rank's share falls below; default min(0.05, 0.5 / ranks), TREK_ZERO: no bound, at most
                                 1 / ranks. Below half a sample, the rank gets none and is not measured */
    double min_gain;          /* by how much shorter new shares must make the predicted compute for a change; default
                                 0.02, TREK_ZERO: any that is more than the noise of the measurements */
    bool allow_idle;          /* a rank that costs more than it brings gets nothing */
    int64_t probe_every;      /* steps after which such a rank is tried again for `first` steps; default 500 */
    double speed_ratio;       /* hint: every other rank is this many times as fast as slow_rank, 1 to 1000000. Default 0:
                                 no hint, slow_rank is not looked at, and shares are equal at first */
    int slow_rank;            /* 0 .. ranks-1 */
} trek_balancer_opts;

/* `ranks` >= 2. opts may be NULL. NULL and ARGUMENT (also for one rank, which has nothing to balance), MEMORY. */
TREK_API trek_balancer *trek_balancer_new(int ranks, const trek_balancer_opts *opts);

/* Tells how a step went, and decides after the steps first, first + every,
 * first + 2 every, ..., and, where there may be a gain that the noise hides, first, 2 first, 4 first steps later again.
 * compute_ms: each rank's time in computing, waiting and communication excluded. samples: how many it had. A rank with 0 of
 * either keeps its throughput. communication_ms: of the step; 0 if none. Whether the shares changed tells trek_balancer_changed.
 *
 * A rank's throughput is samples / compute_ms, the first one as it is, then
 * smoothed. A decision makes shares proportional to throughput, none under
 * min_share, those of ranks that were never measured as they are, if that shortens the predicted compute by min_gain and, by the
 * means since the last decision or change of pace, by more than those means scatter (their standard errors, 2 + sqrt(2 ln ranks)
 * times): jitter moves nothing. A step's fixed cost needs no
 * model: throughput is measured at the present share, and shares come to rest only where
 * all ranks take equally long. Costs O(ranks) a step, O(ranks log ranks) a decision.
 *
 * Errors: ARGUMENT (a time that is negative, not finite or above 1e15 ms, negative samples), and then nothing changes. */
TREK_API trek_status trek_balancer_report(trek_balancer *balancer, const double *compute_ms, const int64_t *samples,
                                          double communication_ms);
TREK_API bool trek_balancer_changed(const trek_balancer *balancer); /* whether the last report changed the shares */

/* Writes each rank's share; they sum to 1 to rounding. Samples: trek_apportion with these weights. */
TREK_API trek_status trek_balancer_shares(const trek_balancer *balancer, double *shares);
/* Smoothed samples per millisecond; 0 before the first measurement. */
TREK_API double trek_balancer_throughput(const trek_balancer *balancer, int rank);

/* The rank that cost more than it brought at the last decision, or -1: without it the
 * predicted step would be shorter by more than min_gain. For two ranks communication goes with it, which is why even a rank
 * that computes in time may be costly; for more it is taken to stay. With allow_idle the rank has no
 * share from then on; one rank a decision. */
TREK_API int trek_balancer_costly(const trek_balancer *balancer);

/* Starts from shares of an earlier run (see trek_plan), as from a hint: ranks are
 * measured anew, and the count of steps begins again. A rank with share 0 is idle; without
 * allow_idle it gets min_share, and the others less. ARGUMENT: shares out of 0 .. 1, or that do not sum to 1. */
TREK_API trek_status trek_balancer_resume(trek_balancer *balancer, const double *shares);

/* Speed-up over the fastest rank alone on the same batch, 0 before the first report. Predicted:
 * from the throughputs, the shares and the communication. Achieved: from the steps' longest compute and communication,
 * smoothed like the throughputs. */
TREK_API double trek_balancer_predicted_speedup(const trek_balancer *balancer);
TREK_API double trek_balancer_achieved_speedup(const trek_balancer *balancer);

TREK_API void trek_balancer_free(trek_balancer **balancer); /* sets NULL */

TREK_END

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The balancer decides which share of each global batch a rank gets, so that ranks of different speeds finish together. It is
 * plain arithmetic on measured times, without devices, threads or a clock: equal reports give equal shares. Only one thread at
 * a time may use a balancer. */
#ifndef TREK_DISTRIBUTED_BALANCE_BALANCER_H
#define TREK_DISTRIBUTED_BALANCE_BALANCER_H

#include "tensor/status.h"

TREK_BEGIN

/* A balancer. */
typedef struct trek_balancer trek_balancer;

/* Options of a balancer. */
typedef struct trek_balancer_opts {
    int64_t first;       /* steps before the first decision; default 10 */
    int64_t every;       /* steps between decisions; default 50 */
    double smoothing;    /* weight of a new throughput in the average, above 0 and at most 1; default 0.3 */
    /* The smallest share of a rank, at most 1 / ranks; TREK_ZERO: no limit. Default min(0.05, 0.5 / ranks). A rank whose share
     * is below half a sample gets none and is not measured. */
    double min_share;
    /* The part by which new shares must shorten the predicted compute time for a change; default 0.02. TREK_ZERO: any gain
     * above the noise of the measurements. */
    double min_gain;
    bool allow_idle;     /* a rank that costs more time than it saves gets no samples; default false */
    int64_t probe_every; /* steps after which such a rank is tried again for `first` steps; default 500 */
    double speed_ratio;  /* hint: other ranks are this many times as fast as slow_rank, 1 to 1000000; default 0: no hint */
    int slow_rank;       /* the slow rank of the hint, 0 .. ranks - 1; not used without a hint */
} trek_balancer_opts;

/* Returns a new balancer for at least 2 ranks. `opts` may be NULL. Without a hint shares are equal at first. The caller frees
 * it.
 * Errors: ARGUMENT, also for one rank. MEMORY. NULL is returned. */
TREK_API trek_balancer *trek_balancer_new(int ranks, const trek_balancer_opts *opts);

/* Reports the times of a step, and decides about the shares after the steps first, first + every, first + 2 every, ... If
 * noise may hide a gain, it decides also first, 2 first and 4 first steps later. trek_balancer_changed returns whether the
 * shares have changed.
 *
 * `compute_ms` are the milliseconds of computing of each rank, without waiting and communication. `samples` are their numbers
 * of samples. A rank with 0 in either keeps its throughput. `communication_ms` is that of the step, or 0.
 *
 * The throughput of a rank is samples / compute_ms: at first the measured value, then smoothed. A decision makes shares
 * proportional to throughput, but not below min_share. Ranks that were never measured keep their shares. New shares are used if
 * they shorten the predicted compute time by min_gain. The gain, by the means since the last decision or change of pace, must
 * also exceed the scatter of these means: 2 + sqrt(2 ln ranks) times their standard errors. So jitter changes nothing. A fixed
 * cost of a step needs no model: throughput is measured at the current share, and shares only stay constant when all ranks take
 * equally long.
 * A step costs O(ranks), a decision O(ranks log ranks).
 *
 * Errors: ARGUMENT if a time is negative, not finite or above 1e15 ms, or if a number of samples is negative. Nothing changes
 * then. */
TREK_API trek_status trek_balancer_report(trek_balancer *balancer, const double *compute_ms, const int64_t *samples,
                                          double communication_ms);
/* Returns whether the last report changed the shares. */
TREK_API bool trek_balancer_changed(const trek_balancer *balancer);

/* Writes each rank's share to `shares`. Their sum is 1 up to rounding. trek_apportion with these weights gives the numbers of
 * samples. */
TREK_API trek_status trek_balancer_shares(const trek_balancer *balancer, double *shares);
/* Returns the smoothed throughput of a rank in samples per millisecond, or 0 before its first measurement. */
TREK_API double trek_balancer_throughput(const trek_balancer *balancer, int rank);

/* Returns the rank that cost more time than it saved at the last decision, or -1. Without this rank the predicted step would be
 * shorter by more than min_gain. If there are two ranks, a step without this rank needs no communication, so that even a rank
 * which is not slow can be costly. With more ranks the communication is assumed to take as long as before. With allow_idle
 * the rank has no share from then on. Each decision finds at most one rank. */
TREK_API int trek_balancer_costly(const trek_balancer *balancer);

/* Starts with the shares of an earlier run (trek_plan), as with a hint: ranks are measured again, and steps are counted from
 * 0. A rank with share 0 is idle. Without allow_idle it gets min_share, and the others get less.
 * Errors: ARGUMENT if a share is outside of 0 .. 1 or the sum is not 1. */
TREK_API trek_status trek_balancer_resume(trek_balancer *balancer, const double *shares);

/* Returns the predicted speed-up over the fastest rank alone on the same batch, or 0 before the first report. It is computed
 * from throughputs, shares and communication. */
TREK_API double trek_balancer_predicted_speedup(const trek_balancer *balancer);
/* Returns the measured speed-up over the fastest rank alone on the same batch, or 0 before the first report. It is computed
 * from the longest compute time and the communication of the steps, smoothed like the throughputs. */
TREK_API double trek_balancer_achieved_speedup(const trek_balancer *balancer);

/* Frees the balancer and sets *balancer to NULL. */
TREK_API void trek_balancer_free(trek_balancer **balancer);

TREK_END

#endif

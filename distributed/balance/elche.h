/* SPDX-License-Identifier: Apache-2.0 */
/* El Che decides how many batches each rank runs between two reductions. The slowest rank sets the pace: it runs `anchor`
 * batches, and each faster rank runs proportionally more, so that all reach the reduction together. It is plain arithmetic on
 * measured times, without devices, threads or a clock: equal reports give equal counts. Only one thread at a time may use an
 * object. */
#ifndef TREK_DISTRIBUTED_BALANCE_ELCHE_H
#define TREK_DISTRIBUTED_BALANCE_ELCHE_H

#include "tensor/status.h"

TREK_BEGIN

/* The state of El Che. */
typedef struct trek_elche trek_elche;

/* Options of El Che. */
typedef struct trek_elche_opts {
    int64_t anchor;          /* batches of the slowest rank at first, 1 to 1000000, at most max_anchor; default 10 */
    double overhead_target;  /* the anchor grows if communication / compute is above it; 0.01 to 0.50; default 0.10 */
    int64_t max_anchor;      /* the largest anchor, 1 to 1000000; default 200, or anchor if that is more */
    int64_t max_batch_diff;  /* the most by which a count changes at a report, except the first; default 0: no limit */
    double speed_ratio;      /* hint: other ranks are this many times as fast as slow_rank, 1 to 1000000; default 0: no hint */
    int slow_rank;           /* the slow rank of the hint, 0 .. ranks - 1; not used without a hint */
    /* The constant sum of all counts, 1 to 2^40. Only their division follows the speeds, and the anchor follows from it.
     * Default 0: the counts follow from the anchor. */
    int64_t global_batches;
} trek_elche_opts;

/* Returns a new object for at least 2 ranks. `opts` may be NULL. Without a hint all ranks start with equal counts. The caller
 * frees it.
 * Errors: ARGUMENT, also for one rank. MEMORY. NULL is returned. */
TREK_API trek_elche *trek_elche_new(int ranks, const trek_elche_opts *opts);

/* Reports the times of a window and computes new counts.
 *
 * `compute_ms` are the milliseconds in which each rank computed all of its batches, without waiting and communication.
 * `batches` are the numbers that the ranks ran, which may differ from the counts. A rank with 0 in either keeps its estimate.
 * `communication_ms` is that of the reduction. With 0 it was not measured, and the anchor stays.
 *
 * The estimate of a rank, its milliseconds per batch, is its first measurement. Then it is smoothed: the factor is the
 * relative error of the prediction, limited to 0.1 .. 0.8. A second error in a row with the same sign and above a tenth is a
 * change of pace instead of jitter, and its factor is 0.8. Let M be the estimate of the slowest rank. The overhead is
 * communication_ms / (anchor * M). If it is above the target, the anchor becomes ceil(anchor * overhead / target), at most
 * max_anchor. If it is below half the target, the anchor falls by one, but not below its start. The counts are then
 * round(anchor * M / own estimate). With global_batches, the chosen counts are those with which the window ends soonest.
 *
 * The counts of all ranks are set at the first measurement. Later they are set when one differs by more than a tenth (with
 * global_batches also only if the window gets 2 % shorter), or when a smaller correction promises more than 2 % after a change
 * of pace or in three reports in a row. A report costs O(ranks log ranks).
 *
 * Errors: ARGUMENT if a time is negative, not finite or above 1e15 ms, or if a number of batches is negative. Nothing changes
 * then. */
TREK_API trek_status trek_elche_report(trek_elche *elche, const double *compute_ms, const int64_t *batches,
                                       double communication_ms);

/* Writes each rank's number of batches in the next window to `counts`. It is at least 1 unless global_batches < ranks. */
TREK_API trek_status trek_elche_counts(const trek_elche *elche, int64_t *counts);
/* Returns whether the last report changed a count or the anchor. */
TREK_API bool trek_elche_changed(const trek_elche *elche);
/* Returns the sum of the counts. If `elche` is NULL, it returns -1 and sets an error. */
TREK_API int64_t trek_elche_total(const trek_elche *elche);
/* Returns the anchor. With global_batches it is the count of the slowest rank. */
TREK_API int64_t trek_elche_anchor(const trek_elche *elche);
/* Returns whether a rank has been measured. */
TREK_API bool trek_elche_calibrated(const trek_elche *elche);
/* Returns the estimated milliseconds per batch of a rank, or 0 before its first measurement. */
TREK_API double trek_elche_ms_per_batch(const trek_elche *elche, int rank);

/* Starts with counts and an anchor of an earlier run (trek_plan), as with a hint: the first report measures again. With
 * global_batches the sum of the counts must be equal to it.
 * Errors: ARGUMENT if a count is negative, if the sum is 0, or if the anchor is not in 1 .. max_anchor. */
TREK_API trek_status trek_elche_resume(trek_elche *elche, const int64_t *counts, int64_t anchor);

/* Returns the predicted speed-up over the fastest rank alone, or 0 before the first report: the sum of the ranks' throughputs
 * divided by that of the fastest. */
TREK_API double trek_elche_predicted_speedup(const trek_elche *elche);
/* Returns the measured speed-up over the fastest rank alone, or 0 before the first report: the batches of the last window per
 * millisecond of its longest compute time and its communication, divided by the throughput of the fastest rank. */
TREK_API double trek_elche_achieved_speedup(const trek_elche *elche);

/* Frees the object and sets *elche to NULL. */
TREK_API void trek_elche_free(trek_elche **elche);

/* --- for examples, simulations and loops of the program: a loop of trek_graph_next needs none of these --- */

/* Writes the counts of a window with at most `max` batches, as at the end of an epoch. If the sum of the counts is not above
 * `max`, they are the counts themselves. Otherwise `max` batches are divided in the proportion of the counts so that the
 * window ends soonest. Their sum is then `max`, and a rank gets 0 only if `max` is less than the number of ranks with batches.
 * The object does not change.
 * Errors: ARGUMENT if max < 0. */
TREK_API trek_status trek_elche_counts_within(trek_elche *elche, int64_t max, int64_t *counts);

/* Lowers the anchor to ceil(anchor * factor), at least 1 and also below its start, and the counts with it, at once. It is for
 * a guard that sees the ranks diverge. Then the anchor grows by at most one batch for each report while it is below
 * max_anchor. `factor` is limited to 0.1 .. 1. With global_batches nothing changes.
 * Errors: ARGUMENT if `factor` is not above 0. */
TREK_API trek_status trek_elche_lower_anchor(trek_elche *elche, double factor);

TREK_END

#endif

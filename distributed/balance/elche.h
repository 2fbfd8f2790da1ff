/* SPDX-License-Identifier: Apache-2.0 */
/* El Che: how many batches each rank runs between two reductions. The column
 * marches at the pace of the slowest: the slowest rank runs `anchor` batches,
 * each faster one proportionally more, and all meet at the reduction. Plain
 * arithmetic on measured times: no devices, no threads, no clock; the same
 * reports give the same counts. One thread at a time may use an object. */
#ifndef TREK_DISTRIBUTED_BALANCE_ELCHE_H
#define TREK_DISTRIBUTED_BALANCE_ELCHE_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_elche trek_elche;

typedef struct trek_elche_opts {
    int64_t anchor; /* batches of the slowest rank at first; default 10, 1 to 1000000. Above max_anchor: lowered to it */
    double overhead_target;   /* communication over compute above which the anchor grows; default 0.10, 0.01 to 0.50 */
    int64_t max_anchor;       /* default 200, or anchor if that is more; 1 to 1000000 */
    int64_t max_batch_diff;   /* by how much a rank's count moves at one report, the first one excepted; default 0: no bound */
    double speed_ratio;       /* hint: every other rank is this many times as fast as slow_rank, 1 to 1000000. Default 0:
                                 no hint, slow_rank is not looked at, and all start with the same count */
    int slow_rank;            /* 0 .. ranks-1 */
    int64_t global_batches;   /* constant-global mode: the counts always sum to this, and only the split follows the speeds;
                                 the anchor then follows from it. Default 0: the anchor leads. 1 to 2^40 */
} trek_elche_opts;

/* `ranks` >= 2. opts may be NULL. NULL and ARGUMENT (also for one rank, which has nobody to march with), MEMORY. */
TREK_API trek_elche *trek_elche_new(int ranks, const trek_elche_opts *opts);

/* Tells how a window went. compute_ms: each rank's time in computing all of its
 * batches, waiting and communication excluded. batches: how many it ran (not
 * necessarily what the counts said). A rank with 0 of either keeps its estimate.
 * communication_ms: of the reduction; 0: not measured, the anchor stays.
 *
 * A rank's milliseconds per batch are its first measurement, then smoothed with
 * the relative error of the prediction as factor, clamped to 0.1 .. 0.8; a second
 * error in a row of the same sign and above a tenth is a change of pace and no
 * jitter, and gets 0.8. Let M be the slowest rank's. The overhead is communication_ms /
 * (anchor x M); above the target the anchor becomes ceil(anchor x overhead /
 * target), at most max_anchor; below half the target it falls by one, never below
 * its start. Counts are then round(anchor x M / own); with global_batches those that
 * end the window soonest. They are set for all ranks at the first measurement, and
 * when one differs by more than a tenth (with global_batches: and the window would be 2 % better), or when
 * a smaller correction promises more than 2 % after such a change of pace, or for three reports in a row.
 * Costs O(ranks log ranks).
 *
 * Errors: ARGUMENT (a time that is negative, not finite or above 1e15 ms, negative batches), and then nothing changes. */
TREK_API trek_status trek_elche_report(trek_elche *elche, const double *compute_ms, const int64_t *batches,
                                       double communication_ms);

/* Writes each rank's batches in the next window. At least 1 each, unless global_batches < ranks. */
TREK_API trek_status trek_elche_counts(const trek_elche *elche, int64_t *counts);
TREK_API bool trek_elche_changed(const trek_elche *elche);     /* whether the last report changed a count or the anchor */
TREK_API int64_t trek_elche_total(const trek_elche *elche);    /* the sum of the counts; -1 and an error for NULL */
TREK_API int64_t trek_elche_anchor(const trek_elche *elche);   /* with global_batches: the slowest rank's count */
TREK_API bool trek_elche_calibrated(const trek_elche *elche);  /* whether anything has been measured */
TREK_API double trek_elche_ms_per_batch(const trek_elche *elche, int rank); /* the estimate; 0 before the first measurement */

/* Starts from counts and an anchor of an earlier run (see trek_plan), as from a hint: the first report
 * measures anew. With global_batches the counts must sum to it. ARGUMENT: a negative count, a sum of 0, an anchor
 * out of 1 .. max_anchor. */
TREK_API trek_status trek_elche_resume(trek_elche *elche, const int64_t *counts, int64_t anchor);

/* Speed-up over the fastest rank alone, 0 before the first report. Predicted: the sum of
 * the ranks' throughputs over the fastest one's. Achieved: what the last window ran per
 * millisecond of its longest compute and its communication, over the fastest one's throughput. */
TREK_API double trek_elche_predicted_speedup(const trek_elche *elche);
TREK_API double trek_elche_achieved_speedup(const trek_elche *elche);

TREK_API void trek_elche_free(trek_elche **elche); /* sets NULL */

/* --- for examples, simulations and loops of one's own: a loop of trek_graph_next needs none of these --- */

/* The counts of a window with at most `max` batches in all, as at the end of an epoch:
 * the counts themselves if they sum to no more, else `max` batches split in their
 * proportion so that the window ends soonest. They then sum to `max` exactly, and a rank gets 0
 * only where max is less than the ranks that have any. Changes nothing. ARGUMENT: max < 0. */
TREK_API trek_status trek_elche_clamp_total(trek_elche *elche, int64_t max, int64_t *counts);

/* Lowers the anchor to ceil(anchor x factor), at least 1, also below its start, and the
 * counts with it, at once: for a guard that sees the ranks diverge. From there it grows by one batch a report at most, as long
 * as it is below max_anchor. factor is clamped to 0.1 .. 1. With
 * global_batches nothing changes. ARGUMENT: a factor not above 0. */
TREK_API trek_status trek_elche_nudge_down(trek_elche *elche, double factor);

TREK_END

#endif

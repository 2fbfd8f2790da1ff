/* SPDX-License-Identifier: Apache-2.0 */
/* Observed scalars of a graph and their trends. Values recorded between two
 * flushes (usually: an epoch) become one point, their mean. */
#ifndef TREK_GRAPH_OBSERVE_H
#define TREK_GRAPH_OBSERVE_H

#include "graph/graph.h"

TREK_BEGIN

/* Adds a value to the present point of `name`. */
TREK_API trek_status trek_graph_record(trek_graph *graph, const char *name, double value);
/* Records the tagged value of the last forward, which must be a scalar: SHAPE
 * otherwise; STATE before the first forward. Reads it back from the device. */
TREK_API trek_status trek_graph_collect(trek_graph *graph, const char *tag);

/* What a value of several elements is reduced to. */
typedef enum trek_collect {
    TREK_COLLECT_MEAN,
    TREK_COLLECT_SUM,
    TREK_COLLECT_MAX,
    TREK_COLLECT_MIN,
    TREK_COLLECT_NORM
} trek_collect;
/* The same for a tagged value of any shape, reduced to a scalar (NORM: the 2-norm). */
TREK_API trek_status trek_graph_collect_with(trek_graph *graph, const char *tag, trek_collect how);
/* From the function of trek_graph_set_loss (or of trek_trainer_run), on whatever rank it runs: the point of `name` is
 * that of all ranks and processes. ARGUMENT: no name; a name that is a sum and a mean, or a metric, at once. STATE on any other
 * thread. What is no mean of batches (F1, AUROC, R2) is trek_record_metric's (metric.h). */

/* A scalar's mean over the samples of all batches. It stays on its device until the point ends. SHAPE for anything else. */
TREK_API trek_status trek_record_scalar(const char *name, trek_var *value);
/* The mean of values by weight (>= 0); 0: not counted. */
TREK_API trek_status trek_record_mean(const char *name, double value, double weight);
/* The sum of values. */
TREK_API trek_status trek_record_sum(const char *name, double value);

/* Ends the point: the mean of what was recorded goes to each name's trend. Names
 * without new values get none. Nested graphs' are flushed, too. In a job of several processes, where the graph has a
 * registered loss, a collective. */
TREK_API trek_status trek_graph_flush(trek_graph *graph);
/* The same, but nested graphs' points go on. */
TREK_API trek_status trek_graph_flush_local(trek_graph *graph);
TREK_API int64_t trek_graph_flushes(const trek_graph *graph); /* of this graph, so far */
/* The last flushed point of a name; NaN if there is none. */
TREK_API double trek_graph_latest(trek_graph *graph, const char *name);

typedef struct trek_trend trek_trend;
/* The flushed points of a name, borrowed (valid as long as the graph); NULL
 * without an error if nothing was recorded under it. */
TREK_API const trek_trend *trek_graph_trend(trek_graph *graph, const char *name);

/* Of a trend (NULL is an empty one). `window` counts the last points; 0, or more than there are: all. */
TREK_API int64_t trek_trend_count(const trek_trend *trend);
TREK_API double trek_trend_value(const trek_trend *trend, int64_t k); /* oldest first; NaN out of range */
TREK_API double trek_trend_latest(const trek_trend *trend);           /* NaN when empty, as the next three */
TREK_API double trek_trend_mean(const trek_trend *trend, int64_t window); /* of the last `window` points */
TREK_API double trek_trend_min(const trek_trend *trend, int64_t window);  /* the smallest of them */
TREK_API double trek_trend_max(const trek_trend *trend, int64_t window);  /* the largest of them */
/* Change per point of the least-squares line through the last `window` points; 0 for fewer than two. */
TREK_API double trek_trend_slope(const trek_trend *trend, int64_t window);
/* |slope| < tolerance; false with fewer than `window` points, or fewer than two. */
TREK_API bool trek_trend_stalled(const trek_trend *trend, int64_t window, double tolerance);
/* slope < 0; false with fewer than two points. */
TREK_API bool trek_trend_improving(const trek_trend *trend, int64_t window);
/* The points' variance < tolerance; false with fewer than `window` points, or fewer than two. */
TREK_API bool trek_trend_converged(const trek_trend *trend, int64_t window, double tolerance);

/* Of several trends, such as a group's (trek_graph_trend_group in tree.h); an entry may be NULL. */
typedef enum trek_trend_state { TREK_TREND_STALLED, TREK_TREND_IMPROVING, TREK_TREND_CONVERGED } trek_trend_state;
/* Whether all of them are so, by the functions above (IMPROVING: tolerance plays no part); false of none. */
TREK_API bool trek_trends_all(const trek_trend *const *trends, int n, trek_trend_state state, int64_t window, double tolerance);
/* Whether some of them are. */
TREK_API bool trek_trends_any(const trek_trend *const *trends, int n, trek_trend_state state, int64_t window, double tolerance);
/* Writes each one's slope. */
TREK_API void trek_trends_slopes(const trek_trend *const *trends, int n, int64_t window, double *slopes);
/* Their mean; 0 of none. */
TREK_API double trek_trends_mean_slope(const trek_trend *const *trends, int n, int64_t window);

/* --- how long it will take --- */

/* What is left of `whole`, in the unit of `elapsed`, were all of it as the part `done` so far: elapsed / done (whole - done).
 * NaN where nothing is done, or more than the whole. */
TREK_API double trek_eta(double elapsed, double done, double whole);
/* Seconds until the graph has been flushed `flushes` times, an epoch each: by the time from its first forward (before that: its
 * first flush) to its last flush. NaN before a flush. */
TREK_API double trek_graph_eta(const trek_graph *graph, int64_t flushes);

TREK_END

#endif

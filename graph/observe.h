/* SPDX-License-Identifier: Apache-2.0 */
/* Observed scalars of a graph and their trends. The values of a name that are recorded between two flushes, usually in an epoch,
 * become one point of its trend: their mean. */
#ifndef TREK_GRAPH_OBSERVE_H
#define TREK_GRAPH_OBSERVE_H

#include "graph/record.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* Adds a value to the current point of `name`, which trek_graph_flush ends. The point is the mean of the values that were added
 * to it. */
TREK_API trek_status trek_graph_record(trek_graph *graph, const char *name, double value);
/* Records the tagged value of the last forward under the tag's name. It waits for the device.
 * Errors: SHAPE if the value is not a scalar. STATE before the first forward. */
TREK_API trek_status trek_graph_collect(trek_graph *graph, const char *tag);

/* Records the tagged value of the last forward, which may have any shape, reduced to a scalar: MEAN, SUM, MAX, MIN or NORM of its
 * elements. It waits for the device.
 * Errors: STATE before the first forward. ARGUMENT for another reduction. */
TREK_API trek_status trek_graph_collect_with(trek_graph *graph, const char *tag, trek_reduction reduction);
/* -- Recording in the function of trek_graph_set_loss or trek_trainer_run. These functions may be called on any rank. The point
 * of a name is computed from the values of all ranks and processes. For values that are not means of batches (F1, AUROC, R2) use
 * trek_record_metric (metric.h). -- */

/* Adds a value to the current point of `name`, which is the mean of the values, weighted by `weight`. It may be called only in
 * the function of trek_graph_set_loss or trek_trainer_run. A weight of 0 does not count.
 * Errors: STATE on any other thread. ARGUMENT if `weight` is negative or not finite, or if `name` is missing, empty or contains a
 * tab or a line break, or is also recorded as a sum or a metric. */
TREK_API trek_status trek_record_mean(const char *name, double value, double weight);
/* Adds a value to the current point of `name`, which is the sum of the values. It may be called only in the function of
 * trek_graph_set_loss or trek_trainer_run.
 * Errors: STATE on any other thread. ARGUMENT if `name` is missing, empty or contains a tab or a line break, or is also recorded
 * as a mean or a metric. */
TREK_API trek_status trek_record_sum(const char *name, double value);

/* Ends the current point of each name and appends it to the name's trend. A name without new values gets no point. Nested graphs
 * are flushed, too. In a job of several processes it is a collective if the graph has a registered loss. */
TREK_API trek_status trek_graph_flush(trek_graph *graph);
/* Ends the current points as trek_graph_flush does, but not those of nested graphs. */
TREK_API trek_status trek_graph_flush_local(trek_graph *graph);
/* Returns how often the graph has been flushed. */
TREK_API int64_t trek_graph_flushes(const trek_graph *graph);
/* Returns the last flushed point of a name, or NaN if it has no point yet. */
TREK_API double trek_graph_latest(trek_graph *graph, const char *name);

/* The flushed points of a name, oldest first. In the functions below NULL is an empty trend. */
typedef struct trek_trend trek_trend;
/* Returns the trend of a name, borrowed: it is valid as long as the graph. Returns NULL without an error if nothing was recorded
 * under this name. */
TREK_API const trek_trend *trek_graph_trend(trek_graph *graph, const char *name);

/* Returns the number of points. */
TREK_API int64_t trek_trend_count(const trek_trend *trend);
/* Returns point k, where 0 is the oldest, or NaN if k is out of range. */
TREK_API double trek_trend_value(const trek_trend *trend, int64_t k);
/* Returns the last point, or NaN if the trend is empty. */
TREK_API double trek_trend_latest(const trek_trend *trend);
/* Returns the mean of the last `window` points, or NaN if the trend is empty. If `window` is 0 or too large, all points count. */
TREK_API double trek_trend_mean(const trek_trend *trend, int64_t window);
/* Returns the smallest of the last `window` points, or NaN if the trend is empty. If `window` is 0 or too large, all points
 * count. */
TREK_API double trek_trend_min(const trek_trend *trend, int64_t window);
/* Returns the largest of the last `window` points, or NaN if the trend is empty. If `window` is 0 or too large, all points
 * count. */
TREK_API double trek_trend_max(const trek_trend *trend, int64_t window);
/* Returns the slope of the least-squares line through the last `window` points, per point, or 0 for fewer than two points. If
 * `window` is 0 or too large, all points count. */
TREK_API double trek_trend_slope(const trek_trend *trend, int64_t window);
/* Returns true if |slope| < tolerance over the last `window` points. Returns false if the trend has fewer than `window` points
 * or fewer than two. */
TREK_API bool trek_trend_stalled(const trek_trend *trend, int64_t window, double tolerance);
/* Returns true if the slope over the last `window` points is negative. Returns false for fewer than two points. */
TREK_API bool trek_trend_improving(const trek_trend *trend, int64_t window);
/* Returns true if the variance of the last `window` points is below `tolerance`. Returns false if the trend has fewer than
 * `window` points or fewer than two. */
TREK_API bool trek_trend_converged(const trek_trend *trend, int64_t window, double tolerance);

/* A property of a trend, which trek_trend_stalled, trek_trend_improving or trek_trend_converged tests. */
typedef enum trek_trend_state {
    TREK_TREND_STATE_STALLED,
    TREK_TREND_STATE_IMPROVING,
    TREK_TREND_STATE_CONVERGED
} trek_trend_state;
/* Returns true if all of `n` trends have a property, and false if n is 0. An entry may be NULL. With TREK_TREND_STATE_IMPROVING
 * `tolerance` is not used. trek_graph_trend_group (tree.h) gives the trends of a group. */
TREK_API bool trek_trends_all(const trek_trend *const *trends, int n, trek_trend_state state, int64_t window, double tolerance);
/* Returns true if at least one of `n` trends has a property. An entry may be NULL. With TREK_TREND_STATE_IMPROVING `tolerance` is
 * not used. */
TREK_API bool trek_trends_any(const trek_trend *const *trends, int n, trek_trend_state state, int64_t window, double tolerance);
/* Writes the slope of each of `n` trends over its last `window` points to `slopes`. */
TREK_API void trek_trends_slopes(const trek_trend *const *trends, int n, int64_t window, double *slopes);
/* Returns the mean of the slopes of `n` trends over their last `window` points, or 0 if n is 0. */
TREK_API double trek_trends_mean_slope(const trek_trend *const *trends, int n, int64_t window);

/* --- remaining time --- */

/* Returns the estimated remaining time, elapsed / done * (whole - done), in the unit of `elapsed`. `done` is the part of `whole`
 * that is finished. Returns NaN if `done` is 0 or larger than `whole`. */
TREK_API double trek_eta(double elapsed, double done, double whole);
/* Returns the estimated time in seconds until the graph has been flushed `flushes` times, usually once for each epoch. The
 * estimate uses the time from the graph's first forward, or its first flush if that was earlier, to its last flush. Returns NaN
 * before the first flush. */
TREK_API double trek_graph_eta(const trek_graph *graph, int64_t flushes);

TREK_END

#endif

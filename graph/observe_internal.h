/* SPDX-License-Identifier: Apache-2.0 */
/* What was observed since the last flush. Internal. */
#ifndef TREK_GRAPH_OBSERVE_INTERNAL_H
#define TREK_GRAPH_OBSERVE_INTERNAL_H

#include "graph/graph_internal.h"
#include "graph/metric_internal.h"
#include "graph/observe.h"
#include "tensor/rank_context.h"

struct trek_observation {
    char *name;
    bool seen;                /* since the last flush */
    bool recorded;            /* by the function of trek_graph_set_loss: its point is of all ranks and processes */
    bool total;               /* the point is the sum, not the mean */
    trek_metric *metric;      /* the point is its value (owned); NULL: a scalar's */
    bool valued;              /* the metric's value was taken: `value`, `values` */
    double value;
    trek_tensor *values;      /* of the last point that was a metric's (owned); NULL: there was none */
    double sum, weight;       /* of value * weight (of totals: of values), as far as the host knows it */
    trek_tensor *on_device;   /* the rest of that sum, an f32 or f64 scalar (owned); NULL: none */
    trek_trend *trend;        /* an object of its own: callers hold its address */
};

/* What is recorded on this thread goes to that graph (NULL: nowhere) until the call with what this one returns. rows: of
 * the batch that runs. */
typedef struct trek_recording {
    trek_graph *graph;
    double rows;
} trek_recording;
trek_recording trek_recording_begin(trek_recording to);
/* Whether the calling thread runs that graph's training function. */
static inline bool trek_recording_of(const trek_graph *graph)
{
    return trek_rank_context_mine && trek_rank_context_mine->recording == graph;
}

trek_observation *trek_observation_find(const trek_graph *graph, const char *name); /* NULL: none */
/* Adds a sum of values that weigh `weight`, as from a training function. */
trek_status trek_observation_add(trek_graph *graph, const char *name, bool total, double sum, double weight);
/* The same of a scalar variable, which stays where it is. */
trek_status trek_observation_add_scalar(trek_graph *graph, const char *name, trek_var *value, double weight);
/* What was recorded as a metric: the observation's own, made if need be. NULL: a scalar has that name, or another spec, or
 * MEMORY. */
trek_metric *trek_observation_metric(trek_graph *graph, const char *name, const metric_form *form);
/* The point as it is now; NaN of nothing, and where a metric has none, which is logged. */
trek_status trek_observation_point(trek_observation *o, double *point);
/* The tagged value reduced to a number. */
trek_status trek_collect_number(trek_var *value, trek_collect how, double *number);
void trek_trend_reset(trek_trend *trend); /* no points */
/* Sums that are on the graph's device come to the host, nested graphs' too: on the thread that works there. */
trek_status trek_observations_read(trek_graph *graph);
/* All ranks' and processes' come to this graph; in a job of several processes a collective where a loss is registered. */
trek_status trek_graph_gather_observations(trek_graph *graph);
/* The points end: to the trends. */
trek_status trek_observations_flush(trek_graph *graph);
/* What was recorded is forgotten: one's, or all. */
void trek_observation_forget(trek_observation *o);
void trek_observations_drop(trek_graph *graph);

#endif

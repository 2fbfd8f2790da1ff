/* SPDX-License-Identifier: Apache-2.0 */
/* What was observed since the last flush. */
#ifndef TREK_GRAPH_OBSERVE_INTERNAL_H
#define TREK_GRAPH_OBSERVE_INTERNAL_H

#include "graph/graph_internal.h"
#include "graph/metric_internal.h"
#include "graph/observe.h"

struct trek_observation {
    char *name;
    bool seen;                /* since the last flush */
    bool recorded;            /* by the function of trek_graph_set_loss: its point covers all ranks and processes */
    bool total;               /* the point is the sum, not the mean */
    trek_metric *metric;      /* the point is the metric's value (owned); NULL: a scalar's */
    bool valued;              /* the metric's value was computed: `value`, `values` */
    double value;
    trek_tensor *values;      /* of the last point, if that was a metric's (owned); NULL: it was not */
    double sum, weight;       /* the sum of value * weight (for totals: of values), as far as the host knows it */
    trek_tensor *on_device;   /* the rest of that sum, an f32 or f64 scalar (owned); NULL: none */
    trek_trend *trend;        /* a separate object, because callers hold its address */
};

/* Records on this thread go to that graph (NULL: nowhere), until this is called with what it has returned. rows: of
 * the batch that runs. */
typedef struct trek_recording {
    trek_graph *graph;
    double rows;
} trek_recording;
extern _Thread_local trek_recording trek_recording_here;
static inline trek_recording trek_recording_begin(trek_recording to)
{
    trek_recording before = trek_recording_here;
    trek_recording_here = to;
    return before;
}
/* Returns whether the calling thread runs that graph's training function. */
static inline bool trek_recording_of(const trek_graph *graph) { return trek_recording_here.graph == graph; }

trek_observation *trek_observation_find(const trek_graph *graph, const char *name); /* returns NULL if there is none */
/* Adds a sum of values with total weight `weight`, as a training function does. */
trek_status trek_observation_add(trek_graph *graph, const char *name, bool total, double sum, double weight);
/* Adds a scalar variable, which stays on its device. */
trek_status trek_observation_add_scalar(trek_graph *graph, const char *name, trek_var *value, double weight);
/* Returns the metric of an observation, made if necessary. Returns NULL if a scalar has that name, if the spec
 * differs, or without memory. */
trek_metric *trek_observation_metric(trek_graph *graph, const char *name, const metric_form *form);
/* Gets the current point. It is NaN if there is nothing, or if a metric has no value, which is logged. */
trek_status trek_observation_point(trek_observation *o, double *point);
/* Reduces the tagged value to a number. */
trek_status trek_collect_number(trek_var *value, trek_reduction reduction, double *number);
void trek_trend_reset(trek_trend *trend); /* no points */
/* Copies sums on the graph's device to the host, also those of nested graphs. Called on the thread that works there. */
trek_status trek_observations_read(trek_graph *graph);
/* Gathers what all ranks and processes have recorded in this graph. In a job of several processes it is a collective
 * if a loss is registered. */
trek_status trek_graph_gather_observations(trek_graph *graph);
/* Ends the points and adds them to the trends. */
trek_status trek_observations_flush(trek_graph *graph);
/* Forget what was recorded: of one observation, or of all. */
void trek_observation_forget(trek_observation *o);
void trek_observations_drop(trek_graph *graph);

#endif

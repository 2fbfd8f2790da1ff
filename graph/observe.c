/* SPDX-License-Identifier: Apache-2.0 */
/* Observed scalars: what was recorded since the last flush, and the points before it. */
#include "graph/observe.h"

#include <math.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/graph_internal.h"
#include "graph/observe_internal.h"
#include "graph/watch.h"
#include "tensor/trace.h"

_Atomic(const trek_graph_watch *) trek_graph_watcher;

struct trek_trend {
    double *points;
    int count, capacity;
};

void trek_observations_free(trek_graph *graph)
{
    for (int k = 0; k < graph->n_observations; k++) {
        trek_free(graph->observations[k].name);
        trek_tensor_release(graph->observations[k].on_device);
        trek_tensor_release(graph->observations[k].values);
        trek_metric_free(&graph->observations[k].metric);
        trek_free(graph->observations[k].trend->points);
        trek_free(graph->observations[k].trend);
    }
    trek_free(graph->observations);
    graph->observations = NULL;
    graph->n_observations = graph->cap_observations = 0;
}

trek_observation *trek_observation_find(const trek_graph *graph, const char *name)
{
    for (int k = 0; k < graph->n_observations; k++)
        if (strcmp(graph->observations[k].name, name) == 0)
            return &graph->observations[k];
    return NULL;
}

static trek_observation *find_or_add(trek_graph *graph, const char *name)
{
    trek_observation *found = trek_observation_find(graph, name);
    if (found)
        return found;
    if (trek_array_grow(&graph->observations, &graph->cap_observations, graph->n_observations + 1,
                        sizeof *graph->observations) != TREK_OK)
        return NULL;
    trek_observation added = { .name = trek_strdup(name), .trend = trek_calloc(1, sizeof *added.trend) };
    if (!added.name || !added.trend) {
        trek_free(added.name);
        trek_free(added.trend);
        return NULL;
    }
    graph->observations[graph->n_observations] = added;
    return &graph->observations[graph->n_observations++];
}

/* Checks that a name is used for one kind of observation between two flushes. */
static trek_status check_sort(const trek_observation *o, bool total, bool metric)
{
    if (!o->seen || (o->total == total && (o->metric != NULL) == metric))
        return TREK_OK;
    const char *sort = o->metric ? "metric" : o->total ? "sum" : "mean";
    return trek_fail(TREK_ERR_ARGUMENT,
                     "graph_record: \"%s\": recorded as a %s and as a %s; a name has one kind until the next flush", o->name,
                     sort,
                     metric  ? "metric"
                     : total ? "sum"
                             : "mean");
}

trek_status trek_graph_record(trek_graph *graph, const char *name, double value)
{
    if (!graph || !name)
        return trek_fail_missing("graph_record", graph ? "name" : "graph");
    trek_observation *observation = find_or_add(graph, name);
    if (!observation)
        return TREK_ERR_MEMORY;
    if (check_sort(observation, false, false) != TREK_OK)
        return trek_error_status();
    observation->sum += value;
    observation->weight++;
    observation->recorded &= observation->seen; /* a training function has also recorded under that name */
    observation->total = false;
    observation->seen = true;
    return TREK_OK;
}

trek_status trek_observation_add(trek_graph *graph, const char *name, bool total, double sum, double weight)
{
    trek_observation *o = find_or_add(graph, name);
    if (!o)
        return TREK_ERR_MEMORY;
    if (check_sort(o, total, false) != TREK_OK)
        return trek_error_status();
    o->total = total;
    o->sum += sum;
    o->weight += weight;
    o->seen = o->recorded = true;
    return TREK_OK;
}

trek_metric *trek_observation_metric(trek_graph *graph, const char *name, const metric_form *form)
{
    trek_observation *o = find_or_add(graph, name);
    if (!o || check_sort(o, false, true) != TREK_OK)
        return NULL;
    trek_metric *made = o->metric && trek_metric_is(o->metric, form) ? NULL : trek_metric_make(form);
    if (made && o->seen && trek_metric_compare(o->metric, made) != TREK_OK)
        trek_metric_free(&made);
    if (trek_error_status() != TREK_OK)
        return NULL;
    if (made) {
        trek_metric_free(&o->metric);
        o->metric = made;
    }
    o->total = o->valued = false;
    o->seen = o->recorded = true;
    return o->metric;
}

/* A metric without a value does not end the training that it measures. */
static trek_status take_value(trek_observation *o)
{
    char message[TREK_ERROR_SIZE];
    trek_status status;
    trek_tensor *values = trek_metric_values(o->metric, NULL);
    o->value = NAN;
    if (values) {
        o->value = values->ndim == 0 ? trek_tensor_item(values) : (double)NAN;
    } else if (trek_error_status() == TREK_ERR_ARGUMENT) {
        trek_error_take(&status, message);
        trek_log_message(TREK_LOG_LEVEL_WARNING, "graph_flush: the metric \"%s\" has no value: %s", o->name, message);
    }
    trek_tensor_release(o->values);
    o->values = values;
    o->valued = true;
    return trek_error_status();
}

trek_status trek_observation_point(trek_observation *o, double *point)
{
    trek_status status = o->metric && !o->valued ? take_value(o) : TREK_OK;
    *point = o->metric ? o->value : o->total ? o->sum : o->weight > 0 ? o->sum / o->weight : (double)NAN;
    return status;
}

trek_tensor *trek_graph_metric_values(trek_graph *graph, const char *name)
{
    if (!graph || !name) {
        trek_fail_missing("graph_metric_values", graph ? "name" : "graph");
        return NULL;
    }
    const trek_observation *o = trek_observation_find(graph, name);
    return o ? trek_tensor_retain(o->values) : NULL;
}

static trek_status read_one(trek_graph *graph, void *arg)
{
    (void)arg;
    for (int k = 0; k < graph->n_observations; k++) {
        trek_observation *o = &graph->observations[k];
        if (o->on_device)
            o->sum += trek_tensor_item(o->on_device);
        if (o->metric && trek_metric_read(o->metric) != TREK_OK)
            return trek_error_status();
        trek_tensor_release(o->on_device);
        o->on_device = NULL;
    }
    return trek_error_status();
}

trek_status trek_observations_read(trek_graph *graph) { return trek_graph_each(graph, read_one, NULL); }

void trek_observation_forget(trek_observation *o)
{
    trek_tensor_release(o->on_device);
    trek_metric_free(&o->metric);
    o->on_device = NULL;
    o->sum = o->weight = 0;
    o->seen = o->valued = false;
}

void trek_observations_drop(trek_graph *graph)
{
    for (int k = 0; k < graph->n_observations; k++)
        trek_observation_forget(&graph->observations[k]);
}

/* Returns the tagged value. Returns NULL with an error, also before the first forward. */
static trek_var *value_to_collect(trek_graph *graph, const char *tag)
{
    trek_var *value = trek_graph_tagged(graph, tag);
    if (!value && trek_error_status() == TREK_OK)
        trek_fail(TREK_ERR_STATE, "graph_collect: tag: \"%s\" has no value before the first forward", tag);
    return value;
}

trek_status trek_graph_collect(trek_graph *graph, const char *tag)
{
    trek_var *value = value_to_collect(graph, tag);
    if (!value)
        return trek_error_status();
    if (trek_var_numel(value) != 1) {
        char text[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_SHAPE,
                         "graph_collect: tag: \"%s\" has shape %s; must be a scalar, use trek_graph_collect_with for others", tag,
                         trek_shape_format(trek_var_shape(value), text, sizeof text));
    }
    return trek_graph_record(graph, tag, trek_var_item(value));
}

static trek_var *reduce(trek_var *value, trek_reduction reduction)
{
    trek_dims_list all = trek_dims_all();
    switch (reduction) {
    case TREK_REDUCTION_MEAN: return trek_mean(value, all, false);
    case TREK_REDUCTION_SUM: return trek_sum(value, all, false);
    case TREK_REDUCTION_MAX: return trek_max(value, all, false);
    case TREK_REDUCTION_MIN: return trek_min(value, all, false);
    case TREK_REDUCTION_NORM: return trek_sqrt(trek_sum(trek_square(value), all, false));
    default: break;
    }
    return trek_fail_null(TREK_ERR_ARGUMENT,
                          "graph_collect_with: reduction: %d; must be TREK_REDUCTION_MEAN, _SUM, _MAX, _MIN or _NORM",
                          (int)reduction);
}

trek_status trek_collect_number(trek_var *value, trek_reduction reduction, double *number)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *scalar = scope.depth ? reduce(value, reduction) : NULL;
    *number = scalar ? trek_var_item(scalar) : 0;
    trek_no_grad_end();
    trek_scope_end(scope);
    return trek_error_status();
}

trek_status trek_graph_collect_with(trek_graph *graph, const char *tag, trek_reduction reduction)
{
    trek_var *value = value_to_collect(graph, tag);
    double number = 0;
    trek_status status = value ? trek_collect_number(value, reduction, &number) : trek_error_status();
    return status == TREK_OK ? trek_graph_record(graph, tag, number) : status;
}

static trek_status flush_one(trek_graph *graph, void *arg)
{
    (void)arg;
    for (int k = 0; k < graph->n_observations; k++) {
        trek_observation *o = &graph->observations[k];
        trek_trend *t = o->trend;
        if (!o->seen)
            continue;
        if (trek_array_grow(&t->points, &t->capacity, t->count + 1, sizeof *t->points) != TREK_OK)
            return TREK_ERR_MEMORY;
        if (trek_observation_point(o, &t->points[t->count]) != TREK_OK)
            return trek_error_status();
        t->count++;
        if (!o->metric) {
            trek_tensor_release(o->values); /* of an earlier metric */
            o->values = NULL;
        }
        trek_observation_forget(o);
    }
    return TREK_OK;
}

trek_status trek_graph_gather_observations(trek_graph *graph)
{
    trek_stepper *s = graph->stepper;
    return s && s->klass->gather_observations ? s->klass->gather_observations(s) : trek_observations_read(graph);
}

/* Any flush ends a point of the graph's training. */
static void count_flush(trek_graph *graph)
{
    graph->flushes++;
    graph->flushed_ns = trek_clock_ns();
    if (!graph->began_ns)
        graph->began_ns = graph->flushed_ns;
}

trek_status trek_observations_flush(trek_graph *graph)
{
    count_flush(graph);
    return trek_graph_each(graph, flush_one, NULL);
}

trek_status trek_graph_flush(trek_graph *graph)
{
    if (!graph)
        return trek_fail_missing("graph_flush", "graph");
    trek_status status = trek_graph_gather_observations(graph);
    const trek_graph_watch *watch = trek_graph_watched();
    if (watch && status == TREK_OK)
        watch->flushing(graph);
    return status == TREK_OK ? trek_observations_flush(graph) : status;
}

trek_status trek_graph_flush_local(trek_graph *graph)
{
    if (!graph)
        return trek_fail_missing("graph_flush_local", "graph");
    trek_status status = trek_graph_gather_observations(graph);
    if (status != TREK_OK)
        return status;
    count_flush(graph);
    return flush_one(graph, NULL);
}

int64_t trek_graph_flushes(const trek_graph *graph) { return graph ? graph->flushes : 0; }

double trek_graph_eta(const trek_graph *graph, int64_t flushes)
{
    if (!graph || !graph->flushes)
        return (double)NAN;
    double elapsed = (double)(graph->flushed_ns - graph->began_ns) * 1e-9;
    return trek_eta(elapsed, (double)graph->flushes, (double)flushes);
}

const trek_trend *trek_graph_trend(trek_graph *graph, const char *name)
{
    if (!graph || !name) {
        trek_fail_missing("graph_trend", graph ? "name" : "graph");
        return NULL;
    }
    const trek_observation *observation = trek_observation_find(graph, name);
    return observation ? observation->trend : NULL;
}

double trek_graph_latest(trek_graph *graph, const char *name) { return trek_trend_latest(trek_graph_trend(graph, name)); }

/* --- trends ----------------------------------------------------------------- */

/* Returns the number of the last `window` points, and the first of them. */
static int64_t points_of(const trek_trend *trend, int64_t window, const double **points)
{
    int64_t count = trek_trend_count(trend);
    int64_t n = window <= 0 || window > count ? count : window;
    *points = n ? trend->points + (count - n) : NULL;
    return n;
}

static bool has_points(const trek_trend *trend, int64_t window)
{
    int64_t count = trek_trend_count(trend);
    return count >= 2 && count >= window;
}

void trek_trend_reset(trek_trend *trend) { trend->count = 0; }

int64_t trek_trend_count(const trek_trend *trend) { return trend ? trend->count : 0; }

double trek_trend_value(const trek_trend *trend, int64_t k)
{
    return k >= 0 && k < trek_trend_count(trend) ? trend->points[k] : (double)NAN;
}

double trek_trend_latest(const trek_trend *trend) { return trek_trend_value(trend, trek_trend_count(trend) - 1); }

double trek_trend_mean(const trek_trend *trend, int64_t window)
{
    const double *points;
    int64_t n = points_of(trend, window, &points);
    double sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += points[k];
    return n ? sum / (double)n : (double)NAN;
}

double trek_trend_min(const trek_trend *trend, int64_t window)
{
    const double *points;
    int64_t n = points_of(trend, window, &points);
    double least = n ? points[0] : (double)NAN;
    for (int64_t k = 1; k < n; k++)
        least = points[k] < least || isnan(points[k]) ? points[k] : least;
    return least;
}

double trek_trend_max(const trek_trend *trend, int64_t window)
{
    const double *points;
    int64_t n = points_of(trend, window, &points);
    double most = n ? points[0] : (double)NAN;
    for (int64_t k = 1; k < n; k++)
        most = points[k] > most || isnan(points[k]) ? points[k] : most;
    return most;
}

double trek_trend_slope(const trek_trend *trend, int64_t window)
{
    const double *points;
    int64_t n = points_of(trend, window, &points);
    if (n < 2)
        return 0;
    double centre = (double)(n - 1) / 2, mean = trek_trend_mean(trend, window), cross = 0, square = 0;
    for (int64_t k = 0; k < n; k++) {
        double x = (double)k - centre;
        cross += x * (points[k] - mean);
        square += x * x;
    }
    return cross / square;
}

bool trek_trend_stalled(const trek_trend *trend, int64_t window, double tolerance)
{
    return has_points(trend, window) && fabs(trek_trend_slope(trend, window)) < tolerance;
}

bool trek_trend_improving(const trek_trend *trend, int64_t window)
{
    return has_points(trend, 0) && trek_trend_slope(trend, window) < 0;
}

bool trek_trend_converged(const trek_trend *trend, int64_t window, double tolerance)
{
    if (!has_points(trend, window))
        return false;
    const double *points;
    int64_t n = points_of(trend, window, &points);
    double mean = trek_trend_mean(trend, window), squares = 0;
    for (int64_t k = 0; k < n; k++)
        squares += (points[k] - mean) * (points[k] - mean);
    return squares / (double)n < tolerance;
}

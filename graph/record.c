/* SPDX-License-Identifier: Apache-2.0 */
/* What a training function records: on the rank's own graph, with the weight of the current batch. */
#include <math.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"

_Thread_local trek_recording trek_recording_here;

static trek_status check(const char *function, const char *name)
{
    if (!name)
        return trek_fail_missing(function, "name");
    if (name[0] == '\0' || strpbrk(name, "\t\n\r") || strncmp(name, TREK_MEASURED, sizeof TREK_MEASURED - 1) == 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "%s: name: \"%s\"; must not be empty, contain a tab or a line break, or begin with \"%s\"", function,
                         name, TREK_MEASURED);
    if (!trek_recording_here.graph)
        return trek_fail(
            TREK_ERR_STATE,
            "%s: \"%s\": no function of trek_graph_set_loss runs on this thread; trek_graph_record records what a loop measures",
            function, name);
    return trek_error_status();
}

trek_status trek_record_mean(const char *name, double value, double weight)
{
    trek_status status = check("record_mean", name);
    if (status != TREK_OK)
        return status;
    if (!(weight >= 0) || isinf(weight))
        return trek_fail(TREK_ERR_ARGUMENT, "record_mean: weight: %g for \"%s\"; must be finite and not negative", weight, name);
    return weight == 0 ? TREK_OK : trek_observation_add(trek_recording_here.graph, name, false, value * weight, weight);
}

trek_status trek_record_sum(const char *name, double value)
{
    trek_status status = check("record_sum", name);
    return status == TREK_OK ? trek_observation_add(trek_recording_here.graph, name, true, value, 0) : status;
}

/* Does not wait for a device: the sum stays there until the point ends. */
static trek_status add_on_device(trek_observation *o, trek_var *value, double weight)
{
    trek_scope scope = trek_scope_begin();
    if (!scope.depth)
        return trek_error_status();
    trek_no_grad_begin();
    trek_dtype dtype = trek_var_dtype(value) == TREK_F64 ? TREK_F64 : TREK_F32;
    trek_var *part = trek_mul_scalar(trek_reshape(trek_cast(value, dtype), trek_dims_none()), weight);
    trek_var *sum = part && o->on_device ? trek_add(part, trek_var_from(trek_tensor_retain(o->on_device))) : part;
    trek_no_grad_end();
    if (sum) {
        trek_tensor_release(o->on_device);
        o->on_device = trek_tensor_retain(sum->data);
    }
    trek_scope_end(scope);
    return sum ? TREK_OK : trek_error_status();
}

trek_status trek_observation_add_scalar(trek_graph *graph, const char *name, trek_var *value, double weight)
{
    if (weight == 0)
        return TREK_OK;
    if (trek_var_device(value).type == TREK_CPU)
        return trek_observation_add(graph, name, false, trek_tensor_item(value->data) * weight, weight);
    trek_status status = trek_observation_add(graph, name, false, 0, weight);
    return status == TREK_OK ? add_on_device(trek_observation_find(graph, name), value, weight) : status;
}

trek_status trek_record_scalar(const char *name, trek_var *value)
{
    trek_status status = check("record_scalar", name);
    if (status != TREK_OK)
        return status;
    if (!value)
        return trek_fail_missing("record_scalar", "value");
    if (trek_var_numel(value) != 1) {
        char text[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_SHAPE, "record_scalar: value: \"%s\" has shape %s; must be a scalar", name,
                         trek_shape_format(trek_var_shape(value), text, sizeof text));
    }
    return trek_observation_add_scalar(trek_recording_here.graph, name, value, trek_recording_here.rows);
}

static trek_status record_metric(const char *function, const char *name, const trek_metric_spec *spec, trek_var *pred,
                                 trek_var *target, trek_var *weight)
{
    metric_form form;
    trek_status status = check(function, name);
    if (status == TREK_OK)
        status = trek_metric_form(function, spec, &form);
    trek_metric *metric = status == TREK_OK ? trek_observation_metric(trek_recording_here.graph, name, &form) : NULL;
    if (status == TREK_OK)
        status = metric ? trek_metric_take(function, metric, pred, target, weight) : trek_error_status();
    return status;
}

trek_status trek_record_metric(const char *name, const trek_metric_spec *spec, trek_var *pred, trek_var *target)
{
    return record_metric("record_metric", name, spec, pred, target, NULL);
}

trek_status trek_record_metric_weighted(const char *name, const trek_metric_spec *spec, trek_var *pred, trek_var *target,
                                        trek_var *weight)
{
    return record_metric("record_metric_weighted", name, spec, pred, target, weight);
}

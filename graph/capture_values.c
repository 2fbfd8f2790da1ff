/* SPDX-License-Identifier: Apache-2.0 */
/* Values that go into captured steps, and come out of them. */
#include "graph/capture_records.h"

#include "autograd/var_internal.h"

static trek_status check_number(const char *function, int k)
{
    return k >= 0 && k < TREK_CAPTURE_VALUES ? TREK_OK
                                    : trek_fail(TREK_ERR_ARGUMENT, "%s: value: %d; must be 0 to %d", function, k,
                                                TREK_CAPTURE_VALUES - 1);
}

void trek_captures_give(struct trek_captures *c, int k, trek_var *value)
{
    trek_var_retain(value);
    trek_var_release(c->values[k]);
    c->values[k] = value;
    c->fresh[k] = true;
}

trek_var *trek_captures_input(const struct trek_captures *c, int k) { return c->present->inputs[k]; }

trek_var *trek_captures_output(const struct trek_captures *c, int k) { return c->outputs[k]; }

const char *trek_captures_problem(const struct trek_captures *c) { return c->problem; }

int64_t trek_captures_replays(const struct trek_captures *c) { return c->replays; }

trek_status trek_captures_put(struct trek_captures *c, int k, trek_var *value)
{
    trek_var *detached = trek_var_detach(value);
    if (!detached)
        return trek_error_status();
    trek_var_release(c->present->outputs[k]);
    c->present->outputs[k] = trek_var_retain(detached);
    return TREK_OK;
}

trek_status trek_graph_capture_input(trek_graph *graph, int k, trek_var *value)
{
    struct trek_captures *c = trek_captures_of(graph, "graph_capture_input");
    if (!c || !value)
        return c ? trek_fail_missing("graph_capture_input", "value") : trek_error_status();
    trek_status status = check_number("graph_capture_input", k);
    if (status != TREK_OK)
        return status;
    if (c->present)
        return trek_fail(TREK_ERR_STATE,
                         "graph_capture_input: called from inside the step function; call it before trek_graph_capture");
    trek_captures_give(c, k, value);
    return TREK_OK;
}

trek_var *trek_graph_captured_input(trek_graph *graph, int k)
{
    struct trek_captures *c = trek_captures_of(graph, "graph_captured_input");
    if (!c || check_number("graph_captured_input", k) != TREK_OK)
        return NULL;
    if (!c->present)
        return trek_fail_null(TREK_ERR_STATE,
                              "graph_captured_input: called while no step function is running; only step functions may call it");
    if (!c->present->inputs[k])
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "graph_captured_input: value: %d was not given; trek_graph_capture_input gives it", k);
    return c->present->inputs[k];
}

trek_status trek_graph_capture_output(trek_graph *graph, int k, trek_var *value)
{
    struct trek_captures *c = trek_captures_of(graph, "graph_capture_output");
    if (!c || !value)
        return c ? trek_fail_missing("graph_capture_output", "value") : trek_error_status();
    trek_status status = check_number("graph_capture_output", k);
    if (status != TREK_OK)
        return status;
    if (!c->present)
        return trek_fail(TREK_ERR_STATE,
                         "graph_capture_output: called while no step function is running; only step functions may call it");
    return trek_captures_put(c, k, value);
}

trek_var *trek_graph_captured_output(trek_graph *graph, int k)
{
    struct trek_captures *c = trek_captures_of(graph, "graph_captured_output");
    return c && check_number("graph_captured_output", k) == TREK_OK ? c->outputs[k] : NULL;
}

int64_t trek_graph_replays(const trek_graph *graph)
{
    if (!graph)
        trek_fail_missing("graph_replays", "graph");
    return !graph ? -1 : graph->captures ? graph->captures->replays : 0;
}

const char *trek_graph_capture_problem(const trek_graph *graph)
{
    if (!graph)
        trek_fail_missing("graph_capture_problem", "graph");
    return graph && graph->captures ? graph->captures->problem : "";
}

trek_status trek_graph_capture_reset(trek_graph *graph)
{
    struct trek_captures *c = trek_captures_of(graph, "graph_capture_reset");
    if (!c)
        return trek_error_status();
    if (c->present)
        return trek_fail(TREK_ERR_STATE,
                         "graph_capture_reset: called from inside the step function; call it outside of step functions");
    trek_captures_forget_parts(graph);
    trek_captures_clear(c);
    return TREK_OK;
}

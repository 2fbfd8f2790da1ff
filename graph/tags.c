/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph keeps after a forward: the values of its tags, and its states; also in the graphs inside it. */
#include "graph/graph_internal.h"
#include "graph/tree.h"
#include "graph/verbs.h"
#include "tensor/debug.h"

#include <string.h>

/* --- the graph and those inside it ------------------------------------------------ */

trek_status trek_graph_each(trek_graph *graph, trek_graph_fn fn, void *arg)
{
    trek_status status = fn(graph, arg);
    for (int k = 0; k < graph->n_below && status == TREK_OK; k++)
        status = fn(graph->below[k], arg);
    return status;
}

static trek_status detach_one(trek_graph *graph, void *arg)
{
    (void)arg;
    trek_status status = TREK_OK;
    for (int k = 0; k < graph->layout.n_states && status == TREK_OK; k++)
        status = trek_detach_slot(&graph->route.frame.states[k]);
    for (int k = 0; k < graph->route.n_kept && status == TREK_OK; k++)
        status = trek_detach_slot(&graph->route.frame.slots[graph->route.kept[k]]);
    return status;
}

trek_status trek_graph_detach(trek_graph *graph)
{
    trek_status status = trek_graph_each(graph, detach_one, NULL);
    for (int k = 0; k < graph->n_loops && status == TREK_OK; k++)
        status = trek_loop_detach(graph->loops[k]);
    return status;
}

static trek_status reset_one(trek_graph *graph, void *arg)
{
    (void)arg;
    for (int k = 0; k < graph->layout.n_states; k++) {
        trek_var_release(graph->route.frame.states[k]);
        graph->route.frame.states[k] = NULL;
    }
    return TREK_OK;
}

trek_status trek_graph_reset_state(trek_graph *graph)
{
    return graph ? trek_graph_each(graph, reset_one, NULL) : trek_fail_missing("graph_reset_state", "graph");
}

bool trek_graph_states_are_reset(const trek_graph *graph)
{
    for (int k = 0; k < graph->layout.n_states; k++)
        if (graph->route.frame.states[k])
            return false;
    return graph->layout.n_states > 0;
}

/* --- tags and inputs --------------------------------------------------------- */

int trek_graph_find_name(const trek_graph_name *names, int n, const char *name)
{
    for (int k = 0; k < n; k++)
        if (strcmp(names[k].name, name) == 0)
            return k;
    return -1;
}


int trek_graph_input_count(const trek_graph *graph) { return graph ? graph->layout.n_inputs : 0; }

const char *trek_graph_input_name(const trek_graph *graph, int k)
{
    return graph && k >= 0 && k < graph->layout.n_inputs ? graph->layout.inputs[k].name : NULL;
}

int trek_graph_tag_count(const trek_graph *graph) { return graph ? graph->layout.n_tags : 0; }

const char *trek_graph_tag_name(const trek_graph *graph, int k)
{
    return graph && k >= 0 && k < graph->layout.n_tags ? graph->layout.tags[k].name : NULL;
}

trek_var *trek_graph_tag_value(trek_graph *graph, int k) { return graph->route.frame.slots[graph->layout.tags[k].value]; }

void trek_graph_put_tag(trek_graph *graph, int k, trek_var *value)
{
    trek_var **slot = &graph->route.frame.slots[graph->layout.tags[k].value];
    trek_var *old = *slot;
    *slot = value ? trek_var_retain(value) : NULL;
    trek_var_release(old);
    if (graph->unjoined)
        graph->unjoined[k] = false;
}

trek_status trek_graph_unjoin_tag(trek_graph *graph, int k)
{
    if (!graph->unjoined && !(graph->unjoined = trek_calloc((size_t)graph->layout.n_tags, sizeof *graph->unjoined)))
        return trek_error_status();
    trek_graph_put_tag(graph, k, NULL);
    graph->unjoined[k] = true;
    return TREK_OK;
}

static void forget_tags(trek_graph *graph)
{
    for (int k = 0; k < graph->route.n_kept; k++) {
        trek_var **slot = &graph->route.frame.slots[graph->route.kept[k]];
        trek_var_release(*slot);
        *slot = NULL;
    }
    for (int k = 0; graph->unjoined && k < graph->layout.n_tags; k++)
        graph->unjoined[k] = false;
}

void trek_graph_forget_nested_tags(trek_graph *graph)
{
    if (!trek_route_is_mine(graph))
        return; /* the forward ran on another thread, and does not change tags */
    for (int k = 0; k < graph->n_below; k++)
        forget_tags(graph->below[k]);
}

trek_var *trek_graph_tag_given(trek_graph *graph, int k, const char *path, const char *function)
{
    trek_var *value = trek_graph_tag_value(graph, k);
    if (!value && graph->unjoined && graph->unjoined[k])
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "%s: \"%s\": the ranks' values do not fit together as rows of the batch",
                              function, path);
    return value;
}

trek_var *trek_graph_tagged(trek_graph *graph, const char *tag)
{
    if (!graph || !tag) {
        trek_fail_missing("graph_tagged", graph ? "tag" : "graph");
        return NULL;
    }
    if (trek_gone(graph, "graph_tagged", "the graph"))
        return NULL;
    int k = trek_graph_find_name(graph->layout.tags, graph->layout.n_tags, tag);
    if (k < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "graph_tagged: tag: nothing is tagged \"%s\"", tag);
    return trek_graph_tag_given(graph, k, tag, "graph_tagged");
}

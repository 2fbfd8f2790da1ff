/* SPDX-License-Identifier: Apache-2.0 */
/* What loops have published in the last forward, of the graph or of all its replicas. */
#include <string.h>

#include "autograd/ops.h"
#include "graph/graph_internal.h"
#include "graph/verbs.h"
#include "tensor/debug.h"

/* Finds the loop of "name", the only one that has published it, or of "path.name", the loop at that path. Returns
 * NULL if none has, or on failure. */
static trek_module *loop_of(trek_graph *graph, const char *name, const char **own)
{
    const char *dot = strrchr(name, '.');
    *own = dot ? dot + 1 : name;
    if (dot) {
        char path[256];
        if ((size_t)(dot - name) >= sizeof path)
            return trek_fail_null(TREK_ERR_ARGUMENT, "graph_trace: name: the path of trace \"%s\" is too long", name);
        memcpy(path, name, (size_t)(dot - name));
        path[dot - name] = '\0';
        trek_module *at = trek_graph_at(graph, path);
        return !at || trek_is_loop(at) ? at : trek_fail_null(TREK_ERR_ARGUMENT, "graph_trace: name: \"%s\" is not a loop", path);
    }
    trek_module *found = NULL;
    for (int k = 0; k < graph->n_loops; k++) {
        if (trek_loop_trace_count(graph->loops[k], name) == 0)
            continue;
        if (found)
            return trek_fail_null(TREK_ERR_ARGUMENT, "graph_trace: name: several loops have a trace \"%s\"; write \"path.%s\"",
                                  name, name);
        found = graph->loops[k];
    }
    return found;
}

static trek_graph *replica_of(trek_graph *graph, int rank)
{
    const trek_stepper *s = graph->stepper;
    return s && s->klass->replica ? s->klass->replica(s, rank) : rank == 0 ? graph : NULL;
}

/* Returns the largest number of values of a replica; -1 on failure. */
static int count_of(trek_graph *graph, const char *name)
{
    int most = 0;
    trek_graph *replica;
    for (int r = 0; (replica = replica_of(graph, r)) != NULL; r++) {
        const char *own;
        bool clean = trek_error_status() == TREK_OK;
        trek_module *loop = loop_of(replica, name, &own);
        if (!loop && clean && trek_error_status() != TREK_OK)
            return -1;
        int n = loop ? trek_loop_trace_count(loop, own) : 0;
        most = n > most ? n : most;
    }
    return most;
}

int trek_graph_trace_count(trek_graph *graph, const char *name)
{
    if (!graph || !name) {
        trek_fail_missing("graph_trace_count", graph ? "name" : "graph");
        return -1;
    }
    return trek_gone(graph, "graph_trace_count", "the graph") ? -1 : count_of(graph, name);
}

/* Returns the rank's value k, or the last one of a rank whose rows had halted, detached, on the first one's device. */
static trek_var *part_of(trek_graph *replica, const char *name, int k, trek_var *first)
{
    const char *own;
    trek_module *loop = loop_of(replica, name, &own);
    int n = loop ? trek_loop_trace_count(loop, own) : 0;
    trek_var *value = n ? trek_var_detach(trek_loop_trace_value(loop, own, k < n ? k : n - 1)) : NULL;
    return value && first ? trek_to(value, trek_var_device(first)) : value;
}

static trek_var *joined(trek_graph *graph, const char *name, int k)
{
    enum { MOST = 1024 };
    trek_var *parts[MOST];
    trek_graph *replica;
    int n = 0;
    for (int r = 0; n < MOST && (replica = replica_of(graph, r)) != NULL; r++) {
        trek_var *part = part_of(replica, name, k, n ? parts[0] : NULL);
        if (part)
            parts[n++] = part;
        else if (trek_error_status() != TREK_OK)
            return NULL;
    }
    if (n > 1 && trek_var_ndim(parts[0]) == 0)
        return trek_fail_null(TREK_ERR_UNSUPPORTED,
                              "graph_trace: name: \"%s\" is a scalar on each of %d ranks; publish rows instead", name, n);
    return n > 1 ? trek_cat(parts, n, 0) : parts[0];
}

trek_var *trek_graph_trace(trek_graph *graph, const char *name, int k)
{
    int n = trek_graph_trace_count(graph, name);
    if (n < 0)
        return NULL;
    if (k < 0 || k >= n)
        return trek_fail_null(TREK_ERR_ARGUMENT, "graph_trace: k: %d; there are %d values \"%s\" of loops", k, n, name);
    if (replica_of(graph, 1))
        return joined(graph, name, k);
    const char *own = NULL;
    trek_module *loop = loop_of(graph, name, &own);
    return loop ? trek_loop_trace_value(loop, own, k) : NULL;
}

trek_status trek_graph_detach_state(trek_graph *graph)
{
    if (!graph)
        return trek_fail_missing("graph_detach_state", "graph");
    if (trek_gone(graph, "graph_detach_state", "the graph"))
        return trek_error_status();
    trek_stepper *s = graph->stepper;
    return s && s->klass->detach ? s->klass->detach(s) : trek_graph_detach(graph);
}

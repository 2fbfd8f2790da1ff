/* SPDX-License-Identifier: Apache-2.0 */
/* A profile's times by module, for a graph: as observed scalars and as colours. */
#include "graph/timeline_times.h"
#include "nn/module_internal.h"

#include <string.h>

#include "graph/tree.h"

/* Returns the path of a row's module inside the graph, which follows its class's name. Returns NULL if it does not
 * belong to the graph's own run. */
static const char *inside(const trek_graph *graph, const char *name)
{
    size_t length = strlen(graph->base.own->klass->name);
    if (strncmp(name, graph->base.own->klass->name, length) != 0)
        return NULL;
    return name[length] == '.' ? name + length + 1 : name[length] ? NULL : name + length;
}

static int64_t took(const trek_timeline_row *row) { return row->device_ns ? row->device_ns : row->total_ns; }

static void add_forward(trek_module_time *to, const trek_timeline_row *row)
{
    to->calls += row->calls;
    to->result = row->result;
    to->flops = row->flops;
    to->made_bytes = row->made_bytes;
    to->result_bytes = row->result_bytes;
}

trek_status trek_module_times_make(trek_module_times *times, const trek_graph *graph, trek_timeline *timeline, int rank)
{
    trek_timeline_summary_opts opts = { .group = TREK_TIMELINE_GROUP_MODULE, .sort = TREK_TIMELINE_SORT_NAME,
                                        .one_rank = rank >= 0,
                                        .rank = rank > 0 ? rank : 0 };
    *times = (trek_module_times){ 0 };
    int64_t n = 0, capacity = 256;
    trek_timeline_row *rows = NULL;
    do { /* others may record meanwhile */
        capacity = n > capacity ? n + 64 : capacity;
        trek_free(rows);
        rows = trek_calloc((size_t)capacity, sizeof *rows);
        n = rows ? trek_timeline_averages(timeline, &opts, rows, capacity) : -1;
    } while (n > capacity);
    times->list = n >= 0 ? trek_calloc((size_t)n + 1, sizeof *times->list) : NULL;
    n = times->list ? n : -1;
    for (int64_t k = 0; k < n; k++) {
        const char *path = rows[k].kind == TREK_TIMELINE_KIND_MODULE ? inside(graph, rows[k].name) : NULL;
        if (!path)
            continue;
        bool again = times->n && strcmp(times->list[times->n - 1].path, path) == 0; /* sorted: forward before backward */
        trek_module_time *to = &times->list[again ? times->n - 1 : times->n++];
        to->path = path;
        to->result = to->result ? to->result : "";
        *(rows[k].backward ? &to->backward_ns : &to->forward_ns) = took(&rows[k]);
        if (!rows[k].backward)
            add_forward(to, &rows[k]);
    }
    trek_free(rows);
    return n >= 0 ? TREK_OK : trek_error_status();
}

void trek_module_times_free(trek_module_times *times) { trek_free(times->list); }

int trek_module_times_place(const trek_module_times *times, const char *path)
{
    int low = 0, high = times->n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(times->list[middle].path, path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const trek_module_time *trek_module_times_find(const trek_module_times *times, const char *path)
{
    int k = trek_module_times_place(times, path);
    return k < times->n && strcmp(times->list[k].path, path) == 0 ? &times->list[k] : NULL;
}

static trek_status record(trek_graph *graph, const trek_module_time *time, const char *ending, int64_t ns)
{
    if (!ns)
        return TREK_OK;
    char *name = trek_format("ms.%s%s", time->path, ending);
    trek_status status = name ? trek_graph_record(graph, name, (double)ns / 1e6 / (double)time->calls) : TREK_ERR_MEMORY;
    trek_free(name);
    return status;
}

static int depth_of(const char *path)
{
    int depth = 1;
    for (; *path; path++)
        depth += *path == '.';
    return depth;
}

trek_status trek_graph_record_times(trek_graph *graph, trek_timeline *timeline, int depth)
{
    if (!graph || !timeline)
        return trek_fail_missing("graph_record_times", graph ? "timeline" : "graph");
    if (depth < TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_record_times: depth: %d; must be TREK_OFF, 0 or more", depth);
    trek_module_times times;
    trek_status status = trek_module_times_make(&times, graph, timeline, -1);
    for (int k = 0; k < times.n && status == TREK_OK; k++) {
        const trek_module_time *time = &times.list[k];
        if (!*time->path || !time->calls || (depth != TREK_OFF && depth_of(time->path) > (depth ? depth : 1)))
            continue;
        status = record(graph, time, "", time->forward_ns);
        if (status == TREK_OK)
            status = record(graph, time, ".backward", time->backward_ns);
    }
    trek_module_times_free(&times);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks have recorded: first this process's replicas in rank order, then the processes. All processes add
 * the same numbers in the same order. */
#include <stdio.h>
#include <string.h>

#include "distributed/ddp.h"
#include "distributed/job/job_bytes.h"
#include "distributed/job/survival.h"
#include "distributed/team/observations.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"

static trek_status read_rank(int rank, void *arg)
{
    return trek_observations_read(((const trek_team *)arg)->replicas[rank].graph);
}

static trek_status take_metric(trek_graph *into, const char *name, trek_metric *from)
{
    trek_metric *to = from ? trek_observation_metric(into, name, &from->form) : NULL;
    return to ? trek_metric_merge(to, from) : trek_error_status();
}

/* Returns the graph itself, then those inside it. */
static trek_graph *nth(const trek_graph *graph, int k) { return k ? graph->below[k - 1] : (trek_graph *)(uintptr_t)graph; }

static trek_status take_graph(trek_graph *into, trek_graph *from)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < from->n_observations && status == TREK_OK; k++) {
        const trek_observation *o = &from->observations[k];
        if (o->seen && o->metric)
            status = take_metric(into, o->name, o->metric);
        else if (o->seen)
            status = trek_observation_add(into, o->name, o->total, o->sum, o->weight);
    }
    trek_observations_drop(from);
    return status;
}

static trek_status take_replica(trek_graph *into, trek_graph *from)
{
    trek_status status = TREK_OK;
    for (int k = 0; k <= into->n_below && status == TREK_OK; k++)
        status = take_graph(nth(into, k), nth(from, k));
    return status;
}

/* Records samples and milliseconds of this process's ranks since the last call, under their numbers in the job. */
static trek_status tell_measured(const trek_team *team, const trek_job *job)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < team->local_ranks && status == TREK_OK; r++) {
        char rows[40], ms[40];
        rank_replica *own = &team->replicas[r];
        snprintf(rows, sizeof rows, TREK_MEASURED "rows.%d", job->first_rank + r);
        snprintf(ms, sizeof ms, TREK_MEASURED "ms.%d", job->first_rank + r);
        status = trek_observation_add(team->graph, rows, true, (double)own->measured_rows, 0);
        if (status == TREK_OK)
            status = trek_observation_add(team->graph, ms, true, own->measured_ms, 0);
        own->measured_rows = 0;
        own->measured_ms = 0;
    }
    return status;
}

/* --- processes ------------------------------------------------------------------------------ */

/* An observation as it is sent: this head, the name, and the numbers: sum and weight, or those of a metric. */
typedef struct message_head {
    int64_t name, numbers;           /* number of bytes, number of doubles */
    int64_t sort, graph;             /* the index of the graph: 0 for itself, then those inside it */
} message_head;
enum { OF_MEAN, OF_SUM, OF_METRIC };

static void describe_one(trek_text *text, int graph, const trek_observation *o)
{
    double scalar[2] = { o->sum, o->weight }, *numbers = scalar;
    message_head head = { .name = (int64_t)strlen(o->name), .numbers = 2, .sort = o->total ? OF_SUM : OF_MEAN, .graph = graph };
    if (o->metric) {
        head.sort = OF_METRIC;
        numbers = trek_metric_pack(o->metric, &head.numbers);
        text->failed |= !numbers;
    }
    trek_text_bytes(text, (const char *)&head, sizeof head);
    trek_text_bytes(text, o->name, (size_t)head.name);
    if (numbers)
        trek_text_bytes(text, (const char *)numbers, (size_t)head.numbers * sizeof *numbers);
    if (o->metric)
        trek_free(numbers);
}

trek_text trek_observations_pack(const trek_graph *graph)
{
    trek_text text = { 0 };
    for (int g = 0; g <= graph->n_below; g++) {
        const trek_graph *own = nth(graph, g);
        for (int k = 0; k < own->n_observations; k++)
            if (own->observations[k].seen && own->observations[k].recorded)
                describe_one(&text, g, &own->observations[k]);
    }
    return text;
}

static trek_status take_one(trek_graph *into, const message_head *head, const char *bytes)
{
    size_t size = (size_t)head->numbers * sizeof(double);
    char *name = trek_calloc((size_t)head->name + 1, 1);
    double *numbers = trek_alloc(size);
    trek_status status = name && numbers ? TREK_OK : TREK_ERR_MEMORY;
    into = nth(into, (int)head->graph);
    if (status == TREK_OK) {
        memcpy(name, bytes, (size_t)head->name);
        memcpy(numbers, bytes + head->name, size);
    }
    if (status == TREK_OK && head->sort == OF_METRIC) {
        trek_metric *from = trek_metric_unpack(numbers, head->numbers);
        status = take_metric(into, name, from);
        trek_metric_free(&from);
    } else if (status == TREK_OK) {
        status = trek_observation_add(into, name, head->sort == OF_SUM, numbers[0], numbers[1]);
    }
    trek_free(name);
    trek_free(numbers);
    return status;
}

static bool fits(const trek_graph *graph, const message_head *head, int64_t left)
{
    bool counts = head->graph >= 0 && head->graph <= graph->n_below && head->name > 0 && head->numbers >= 2 &&
        head->sort >= OF_MEAN && head->sort <= OF_METRIC;
    return counts && head->name <= left && head->numbers <= (left - head->name) / (int64_t)sizeof(double);
}

trek_status trek_observations_unpack(trek_graph *into, const char *bytes, int64_t length)
{
    trek_status status = TREK_OK;
    message_head head;
    for (int64_t at = 0; at < length && status == TREK_OK;) {
        if (length - at >= (int64_t)sizeof head)
            memcpy(&head, bytes + at, sizeof head);
        at += (int64_t)sizeof head;
        if (at > length || !fits(into, &head, length - at))
            return trek_fail(TREK_ERR_COMM, "graph_flush: values that another rank recorded are damaged");
        status = take_one(into, &head, bytes + at);
        at += head.name + head.numbers * (int64_t)sizeof(double);
    }
    return status;
}

static trek_status drop_recorded(trek_graph *graph, void *arg)
{
    (void)arg;
    for (int k = 0; k < graph->n_observations; k++)
        if (graph->observations[k].recorded)
            trek_observation_forget(&graph->observations[k]);
    return TREK_OK;
}

trek_text trek_observations_take(trek_graph *graph)
{
    trek_text text = trek_observations_pack(graph);
    trek_graph_each(graph, drop_recorded, NULL);
    return text;
}

/* Gathers what the processes have packed. Every process comes here; one that has failed sends nothing. */
static trek_status exchange(const trek_team *team, const trek_job *job, trek_status own, job_bytes *all)
{
    trek_text text = { 0 };
    if (own == TREK_OK)
        text = trek_observations_pack(team->graph);
    trek_status status = trek_job_bytes_gather(job->comm, own == TREK_OK && !text.failed ? text.data : NULL, (int64_t)text.length,
                                               own, "what it has recorded", all);
    trek_text_clear(&text);
    return status;
}

static trek_status gather_processes(const trek_team *team, const trek_job *job, trek_status own)
{
    trek_graph *graph = team->graph;
    job_bytes all = { 0 };
    trek_status status = exchange(team, job, own, &all);
    if (status == TREK_OK) /* all have it, and need what they have recorded no more */
        status = trek_survival_commit(job);
    if (status == TREK_OK)
        trek_graph_each(graph, drop_recorded, NULL);
    for (int p = 0; status == TREK_OK && p < job->processes; p++)
        status = trek_observations_unpack(graph, all.bytes + (size_t)p * all.room, all.lengths[p]);
    trek_job_bytes_clear(&all);
    return status;
}

/* Gathers what the ranks of this process have recorded in the caller's graph. */
static trek_status gather_ranks(const trek_team *team, const trek_job *job)
{
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = trek_ranks_call(team->ranks, read_rank, (void *)(uintptr_t)team);
    for (int r = 1; r < team->local_ranks && status == TREK_OK; r++)
        status = take_replica(team->graph, team->replicas[r].graph);
    const trek_graph_loader *loader = team->graph->graph_loader;
    return status == TREK_OK && loader && loader->measures ? tell_measured(team, job) : status;
}

trek_status trek_ranks_gather_observations(const trek_team *team, const trek_job *job)
{
    trek_status status = gather_ranks(team, job);
    const trek_graph_loader *loader = team->graph->graph_loader;
    bool together = trek_job_has_others(job) && loader && loader->loss;
    return together ? gather_processes(team, job, status) : status;
}

trek_status trek_ranks_pack_observations(const trek_team *team, const trek_job *job, trek_text *text)
{
    trek_status status = gather_ranks(team, job);
    job_bytes all = { 0 };
    if (trek_job_is_alone(job)) {
        *text = status == TREK_OK ? trek_observations_pack(team->graph) : (trek_text){ 0 };
        return status;
    }
    status = exchange(team, job, status, &all);
    for (int p = 0; status == TREK_OK && p < job->processes; p++)
        trek_text_bytes(text, all.bytes + (size_t)p * all.room, (size_t)all.lengths[p]);
    trek_job_bytes_clear(&all);
    return status;
}

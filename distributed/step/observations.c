/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded scalars of all ranks: those of this process's replicas in rank order, then those of the processes, as lines of
 * text. All processes add the same numbers in the same order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/step/stepper_ranks.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"

static trek_status read_rank(int rank, void *arg) { return trek_observations_read(((ranks_stepper *)arg)->replicas[rank].graph); }

static trek_status take_replica(trek_graph *into, trek_graph *from)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < from->n_observations && status == TREK_OK; k++) {
        const trek_observation *o = &from->observations[k];
        if (o->seen)
            status = trek_observation_add(into, o->name, o->total, o->sum, o->weight);
    }
    trek_observations_drop(from);
    return status;
}

/* Samples and milliseconds of this process's ranks since the last time, under their numbers in the job. */
static trek_status tell_measured(ranks_stepper *s)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < s->local_ranks && status == TREK_OK; r++) {
        char rows[40], ms[40];
        rank_replica *own = &s->replicas[r];
        snprintf(rows, sizeof rows, TREK_MEASURED "rows.%d", s->first_rank + r);
        snprintf(ms, sizeof ms, TREK_MEASURED "ms.%d", s->first_rank + r);
        status = trek_observation_add(s->base.graph, rows, true, (double)own->measured_rows, 0);
        if (status == TREK_OK)
            status = trek_observation_add(s->base.graph, ms, true, own->measured_ms, 0);
        own->measured_rows = 0;
        own->measured_ms = 0;
    }
    return status;
}

/* --- processes ------------------------------------------------------------------------------ */

static unsigned long long bits_of(double value)
{
    unsigned long long bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double value_of(const char *bits)
{
    unsigned long long read = strtoull(bits, NULL, 16);
    double value;
    memcpy(&value, &read, sizeof value);
    return value;
}

/* "name<TAB>1 for a sum, 0 for a mean<TAB>sum<TAB>weight", the numbers' bits in hex */
static char *describe(const trek_graph *graph)
{
    trek_text text = { 0 };
    trek_text_add(&text, "");
    for (int k = 0; k < graph->n_observations; k++) {
        const trek_observation *o = &graph->observations[k];
        if (o->seen && o->recorded)
            trek_text_format(&text, "%s\t%d\t%016llx\t%016llx\n", o->name, o->total, bits_of(o->sum), bits_of(o->weight));
    }
    return trek_text_take(&text);
}

static trek_status take_line(trek_graph *into, char *line)
{
    char *kind = strchr(line, '\t'), *sum = kind ? strchr(kind + 1, '\t') : NULL, *weight = sum ? strchr(sum + 1, '\t') : NULL;
    if (!weight)
        return trek_fail(TREK_ERR_COMM, "another process's recorded scalars are damaged");
    *kind = *sum = *weight = '\0';
    return trek_observation_add(into, line, kind[1] == '1', value_of(sum + 1), value_of(weight + 1));
}

static trek_status take_text(trek_graph *into, char *text)
{
    trek_status status = TREK_OK;
    for (char *line = text; *line && status == TREK_OK;) {
        char *end = line + strcspn(line, "\n");
        char *next = *end ? end + 1 : end;
        *end = '\0';
        status = take_line(into, line);
        line = next;
    }
    return status;
}

static void drop_recorded(trek_graph *graph)
{
    for (int k = 0; k < graph->n_observations; k++)
        if (graph->observations[k].recorded)
            trek_observation_forget(&graph->observations[k]);
}

/* Every process comes here, one that has failed says nothing. */
static trek_status gather_processes(ranks_stepper *s, trek_status own)
{
    trek_graph *graph = s->base.graph;
    char *text = own == TREK_OK ? describe(graph) : NULL;
    int64_t length = text ? (int64_t)strlen(text) : -1, most = 0;
    int64_t *lengths = trek_calloc((size_t)s->processes, sizeof *lengths);
    trek_status status = lengths ? trek_comm_gather_bytes(s->comm, &length, sizeof length, lengths) : trek_error_status();
    for (int p = 0; status == TREK_OK && p < s->processes; p++) {
        most = lengths[p] > most ? lengths[p] : most;
        if (lengths[p] < 0 && own == TREK_OK && text)
            own = trek_fail(TREK_ERR_PEER, "process %d could not read what it has recorded", p);
    }
    size_t room = (size_t)most + 1;
    char *mine = trek_calloc(1, room), *all = trek_calloc((size_t)s->processes, room);
    if (status == TREK_OK && mine && text) /* else `most` is not known */
        memcpy(mine, text, (size_t)length);
    if (status == TREK_OK && most > 0 && !(mine && all)) {
        status = trek_error_status();
        trek_comm_abort(s->comm, "a process has no memory for what was recorded");
    }
    if (status == TREK_OK && most > 0)
        status = trek_comm_gather_bytes(s->comm, mine, room, all);
    if (status == TREK_OK)
        status = own;
    if (status == TREK_OK)
        drop_recorded(graph);
    for (int p = 0; status == TREK_OK && p < s->processes; p++)
        status = take_text(graph, all + (size_t)p * room);
    trek_free(lengths);
    trek_free(text);
    trek_free(mine);
    trek_free(all);
    return status;
}

trek_status trek_ranks_gather_observations(trek_stepper *stepper)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = trek_ranks_call(s->ranks, read_rank, s);
    for (int r = 1; r < s->local_ranks && status == TREK_OK; r++)
        status = take_replica(stepper->graph, s->replicas[r].graph);
    const trek_graph_loader *loader = stepper->graph->graph_loader;
    if (status == TREK_OK && loader && loader->measures)
        status = tell_measured(s);
    bool together = s->comm && loader && loader->loss;
    return together ? gather_processes(s, status) : status;
}

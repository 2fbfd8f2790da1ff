/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a graph's modules in a few steps: a timeline listens during one step, and its results are added up.
 * Steps are chosen so that all of this takes a small part of the training's time: SPARSE times the duration of the
 * last one has to pass. */
#include <string.h>

#include "graph/timeline_internal.h"
#include "monitor/monitor_internal.h"
#include "tensor/trace.h"

enum {
    WARM_UP = 2,              /* steps that are not measured, because they set up what later ones use */
    FIRST = 3,                /* steps that are measured right away */
    SPARSE = 400,
    FRAME_NS = 700,           /* the most that recording an op takes */
    ROWS = 4096
};

void trek_monitor_profile_init(trek_monitor_profile *p, int every)
{
    pthread_mutex_init(&p->lock, NULL);
    p->every = every == TREK_OFF ? 0 : every ? every : TREK_MONITOR_PROFILE_EVERY;
}

/* Forgets the measurements, because another graph comes. */
void trek_monitor_profile_clear(trek_monitor_profile *p)
{
    if (p->measuring)
        trek_timeline_return(p->timeline);
    pthread_mutex_lock(&p->lock);
    p->sums.n = 0;
    p->samples = p->told = 0;
    p->measuring = false;
    p->passes = p->tried = 0;
    p->next_step = p->next_ns = 0;
    pthread_mutex_unlock(&p->lock);
}

void trek_monitor_profile_end(trek_monitor_profile *p)
{
    trek_monitor_profile_clear(p);
    trek_timeline_free(&p->timeline);
    trek_module_times_free(&p->sums);
    pthread_mutex_destroy(&p->lock);
}

static trek_status add_time(trek_monitor_profile *p, const trek_module_time *time)
{
    trek_module_times *sums = &p->sums;
    int k = trek_module_times_place(sums, time->path);
    if (k == sums->n || strcmp(sums->list[k].path, time->path) != 0) {
        if (trek_array_grow(&sums->list, &p->capacity, sums->n + 1, sizeof *sums->list) != TREK_OK)
            return TREK_ERR_MEMORY;
        memmove(sums->list + k + 1, sums->list + k, (size_t)(sums->n++ - k) * sizeof *sums->list);
        sums->list[k] = (trek_module_time){ .path = time->path };
    }
    trek_module_time *sum = &sums->list[k];
    sum->result = time->result;
    sum->forward_ns += time->forward_ns;
    sum->backward_ns += time->backward_ns;
    sum->calls += time->calls;
    sum->flops += time->flops;
    sum->made_bytes += time->made_bytes;
    sum->result_bytes += time->result_bytes;
    return TREK_OK;
}

/* A step in whose passes the graph also ran for something else, such as an evaluation, has more forwards per pass
 * than others. The steps with the fewest count. */
static bool counts(trek_monitor_profile *p, const trek_module_time *whole)
{
    if (!whole || !whole->calls)
        return false;
    double forwards = (double)whole->calls / (double)(p->passes > 0 ? p->passes : 1);
    if (p->samples && forwards > p->forwards)
        return false;
    if (p->samples && forwards < p->forwards)
        p->sums.n = 0, p->samples = p->told = 0;
    p->forwards = forwards;
    return true;
}

static void add_sample(trek_monitor_profile *p, const trek_graph *graph, int rank)
{
    trek_module_times times;
    trek_status status = trek_module_times_make(&times, graph, p->timeline, rank);
    pthread_mutex_lock(&p->lock);
    if (status == TREK_OK && counts(p, trek_module_times_find(&times, ""))) {
        for (int k = 0; k < times.n && status == TREK_OK; k++)
            status = add_time(p, &times.list[k]);
        p->samples++;
    }
    pthread_mutex_unlock(&p->lock);
    trek_module_times_free(&times);
}

static bool wanted(const trek_monitor_profile *p, const trek_graph *graph, int64_t step, int64_t now)
{
    bool first = step >= WARM_UP && p->samples < FIRST && p->tried < 2 * FIRST;
    return p->every > 0 && !graph->captures && (first || (step >= p->next_step && now >= p->next_ns && step >= WARM_UP));
}

static void begin_sample(trek_monitor_profile *p)
{
    if (!p->timeline)
        p->timeline = trek_timeline_new(&(trek_timeline_opts){ .capacity = 1, .ops = true, .rows = ROWS, .device_times = true });
    p->passes = 0;
    p->tried++;
    p->measuring = p->timeline && trek_timeline_borrow(p->timeline);
}

/* Records become rarer as samples accumulate, because the figures then hardly change. */
static bool worth_telling(const trek_monitor_profile *p)
{
    return p->samples >= FIRST && p->samples >= 2 * p->told;
}

void trek_monitor_profile_step(trek_monitor *m, trek_graph *graph, int64_t step, int64_t began)
{
    trek_monitor_profile *p = &m->profile;
    int64_t frames = 0;
    if (p->measuring) {
        p->measuring = false;
        frames = trek_timeline_count(p->timeline) + trek_timeline_dropped(p->timeline);
        if (trek_timeline_return(p->timeline))
            add_sample(p, graph, m->first_rank);
        trek_timeline_clear(p->timeline);
        if (worth_telling(p))
            trek_monitor_graph_record(m, graph);
        int64_t now = trek_clock_ns();
        p->next_step = step + p->every;
        p->next_ns = now + SPARSE * (now - began + frames * FRAME_NS);
    }
    if (wanted(p, graph, step, began))
        begin_sample(p);
}

void trek_monitor_profile_finish(trek_monitor *m, trek_graph *graph)
{
    trek_monitor_profile *p = &m->profile;
    if (p->measuring)
        trek_timeline_return(p->timeline);
    p->measuring = false;
    if (p->samples > p->told)
        trek_monitor_graph_record(m, graph);
}

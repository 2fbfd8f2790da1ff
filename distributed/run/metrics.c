/* SPDX-License-Identifier: Apache-2.0 */
/* An epoch's metrics: from what was observed on all ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/run/run_internal.h"
#include "distributed/step/stepper_ranks.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"
#include "tensor/memory_internal.h"

run_epoch *trek_run_epoch_new(int64_t epoch)
{
    run_epoch *e = trek_calloc(1, sizeof *e);
    if (e)
        e->metrics = (trek_epoch_metrics){ .epoch = epoch, .loss = NAN, .evaluation_loss = NAN, .lr = NAN };
    return e;
}

void trek_run_epoch_free(run_epoch *e)
{
    for (int k = 0; e && k < e->metrics.n_scalars; k++)
        trek_free((void *)e->scalars[k].name);
    if (e)
        trek_free(e->scalars);
    if (e)
        trek_free(e->ranks);
    trek_free(e);
}

trek_status trek_run_publish(trek_run *run, run_epoch *epoch)
{
    pthread_mutex_lock(&run->lock);
    trek_status status = trek_array_grow(&run->epochs, &run->cap_epochs, run->n_epochs + 1, sizeof *run->epochs);
    if (status == TREK_OK)
        run->epochs[run->n_epochs++] = epoch;
    else
        trek_run_epoch_free(epoch);
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
    return status;
}

double trek_metrics_get(const trek_epoch_metrics *metrics, const char *name)
{
    if (!metrics || !name) {
        trek_fail_missing("trek_metrics_get", metrics ? "name" : "metrics");
        return NAN;
    }
    if (strcmp(name, "loss") == 0)
        return metrics->loss;
    if (strcmp(name, "evaluation_loss") == 0)
        return metrics->evaluation_loss;
    for (int k = 0; k < metrics->n_scalars; k++)
        if (strcmp(metrics->scalars[k].name, name) == 0)
            return metrics->scalars[k].value;
    return NAN;
}

/* --- from observations ---------------------------------------------------------------------- */

static double point_of(const trek_observation *o)
{
    return o->total ? o->sum : o->weight > 0 ? o->sum / o->weight : (double)NAN;
}

static bool is_measured(const trek_observation *o) { return strncmp(o->name, TREK_MEASURED, sizeof TREK_MEASURED - 1) == 0; }

/* "trek:rows.3". What ranks do in an evaluation is no part of their training. */
static void take_measured(run_epoch *e, const trek_observation *o, bool training, double *loss)
{
    const char *name = o->name + sizeof TREK_MEASURED - 1, *number = strchr(name, '.');
    int rank = number ? atoi(number + 1) : -1;
    if (strcmp(name, "loss") == 0)
        *loss = point_of(o);
    if (!training || rank < 0 || rank >= e->metrics.ranks)
        return;
    if (strncmp(name, "rows.", 5) == 0)
        e->ranks[rank].samples = (int64_t)o->sum;
    else
        e->ranks[rank].compute_s = o->sum * 1e-3;
}

static trek_status add_scalar(run_epoch *e, const char *prefix, const char *name, double value)
{
    int n = e->metrics.n_scalars;
    size_t size = strlen(prefix) + strlen(name) + 1;
    trek_metric *scalars = trek_realloc(e->scalars, (size_t)(n + 1) * sizeof *scalars);
    if (!scalars)
        return TREK_ERR_MEMORY;
    e->metrics.scalars = e->scalars = scalars;
    char *whole = trek_calloc(1, size);
    if (!whole)
        return TREK_ERR_MEMORY;
    snprintf(whole, size, "%s%s", prefix, name);
    scalars[n] = (trek_metric){ whole, value };
    e->metrics.n_scalars++;
    return TREK_OK;
}

/* What was observed becomes metrics, and what has a name of the program's also points of trends. */
static trek_status take_observations(trek_graph *graph, run_epoch *e, const char *prefix, double *loss)
{
    trek_status status = trek_graph_gather_observations(graph);
    for (int k = 0; k < graph->n_observations && status == TREK_OK; k++) {
        trek_observation *o = &graph->observations[k];
        if (!o->seen)
            continue;
        if (!is_measured(o)) {
            status = add_scalar(e, prefix, o->name, point_of(o));
            continue;
        }
        take_measured(e, o, !*prefix, loss);
        trek_observation_forget(o);
    }
    return status;
}

static void derive(run_epoch *e)
{
    trek_epoch_metrics *m = &e->metrics;
    m->per_rank = e->ranks;
    if (m->ranks == 1)
        e->ranks[0] = (trek_rank_metrics){ .samples = m->samples, .compute_s = m->seconds };
    m->samples = 0;
    for (int r = 0; r < m->ranks; r++)
        m->samples += e->ranks[r].samples;
    for (int r = 0; r < m->ranks; r++) {
        trek_rank_metrics *rank = &e->ranks[r];
        rank->share = m->samples ? (double)rank->samples / (double)m->samples : 0;
        rank->samples_per_s = rank->compute_s > 0 ? (double)rank->samples / rank->compute_s : 0;
        rank->waiting_s = m->seconds > rank->compute_s ? m->seconds - rank->compute_s : 0;
    }
    m->samples_per_s = m->seconds > 0 ? (double)m->samples / m->seconds : 0;
}

static void measure_averages(trek_run *run, trek_epoch_metrics *m)
{
    const ranks_stepper *s = trek_graph_ranks(run->graph);
    if (!s)
        return;
    m->drift = s->averages ? s->drift : 0;
    if (!s->background)
        return;
    trek_background_stats now = trek_background_look(s->background);
    m->averages = now.averages - run->averages.averages;
    m->bytes_sent = now.bytes_sent - run->averages.bytes_sent;
    m->drift = now.drift;
    m->lost = now.lost;
    run->averages = now;
}

trek_status trek_run_measure_training(trek_run *run, run_epoch *e)
{
    trek_epoch_metrics *m = &e->metrics;
    m->ranks = trek_graph_world_size(run->graph);
    m->lr = trek_graph_lr(run->graph);
    e->ranks = trek_calloc((size_t)m->ranks, sizeof *e->ranks);
    trek_trainer_workload workload = { 0 };
    trek_status status = e->ranks ? trek_trainer_describe(run->graph, &workload) : trek_error_status();
    m->anchor = workload.windows ? workload.anchor : 0;
    measure_averages(run, m);
    if (status == TREK_OK)
        status = take_observations(run->graph, e, "", &m->loss);
    if (status != TREK_OK)
        return status;
    derive(e);
    return trek_observations_flush(run->graph);
}

trek_status trek_run_measure_evaluation(trek_run *run, run_epoch *e)
{
    trek_status status = take_observations(run->graph, e, TREK_RUN_EVALUATION, &e->metrics.evaluation_loss);
    trek_observations_drop(run->graph);
    return status;
}

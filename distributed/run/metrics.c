/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics of an epoch, from what was observed on all ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/rounds/averaging.h"
#include "distributed/run/run_internal.h"
#include "distributed/stepper.h"
#include "distributed/system/system.h"
#include "distributed/team/observations.h"
#include "distributed/trainer_ranks.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"
#include "nn/module_tree.h"
#include "tensor/memory_internal.h"

run_epoch *trek_run_epoch_new(int64_t epoch)
{
    run_epoch *e = trek_calloc(1, sizeof *e);
    if (e)
        e->metrics = (trek_epoch_metrics){ .epoch = epoch, .complete = true, .loss = NAN, .evaluation_loss = NAN, .lr = NAN };
    return e;
}

void trek_run_epoch_free(run_epoch *e)
{
    for (int k = 0; e && k < e->metrics.n_scalars; k++) {
        trek_free((void *)e->scalars[k].name);
        trek_tensor_release((trek_tensor *)e->scalars[k].values);
    }
    if (e)
        trek_free(e->scalars);
    if (e)
        trek_free(e->ranks);
    trek_free(e);
}

trek_status trek_run_publish(trek_run *run, run_epoch *epoch)
{
    trek_lock_acquire(&run->lock);
    trek_status status = trek_array_grow(&run->epochs, &run->cap_epochs, run->n_epochs + 1, sizeof *run->epochs);
    if (status == TREK_OK)
        run->epochs[run->n_epochs++] = epoch;
    else
        trek_run_epoch_free(epoch);
    trek_condition_wake_all(&run->changed);
    trek_lock_release(&run->lock);
    return status;
}

static const trek_epoch_scalar *find(const trek_epoch_metrics *metrics, const char *name)
{
    for (int k = 0; k < metrics->n_scalars; k++)
        if (strcmp(metrics->scalars[k].name, name) == 0)
            return &metrics->scalars[k];
    return NULL;
}

const trek_tensor *trek_metrics_values(const trek_epoch_metrics *metrics, const char *name)
{
    if (!metrics || !name) {
        trek_fail_missing("metrics_values", metrics ? "name" : "metrics");
        return NULL;
    }
    const trek_epoch_scalar *scalar = find(metrics, name);
    return scalar ? scalar->values : NULL;
}

double trek_metrics_get(const trek_epoch_metrics *metrics, const char *name)
{
    if (!metrics || !name) {
        trek_fail_missing("metrics_get", metrics ? "name" : "metrics");
        return NAN;
    }
    if (strcmp(name, "loss") == 0)
        return metrics->loss;
    if (strcmp(name, "evaluation_loss") == 0)
        return metrics->evaluation_loss;
    const trek_epoch_scalar *scalar = find(metrics, name);
    return scalar ? scalar->value : (double)NAN;
}

/* --- from observations ---------------------------------------------------------------------- */

static bool is_measured(const trek_observation *o) { return strncmp(o->name, TREK_MEASURED, sizeof TREK_MEASURED - 1) == 0; }

/* Takes "trek:rows.3" and the like. What ranks do in an evaluation is not a part of their training. */
static void take_measured(run_epoch *e, trek_observation *o, bool training, double *loss)
{
    const char *name = o->name + sizeof TREK_MEASURED - 1, *number = strchr(name, '.');
    int rank = number ? atoi(number + 1) : -1;
    if (strcmp(name, "loss") == 0)
        trek_observation_point(o, loss); /* a scalar, which cannot fail */
    if (!training || rank < 0 || rank >= e->metrics.ranks)
        return;
    if (strncmp(name, "rows.", 5) == 0)
        e->ranks[rank].samples = (int64_t)o->sum;
    else
        e->ranks[rank].compute_s = o->sum * 1e-3;
}

static trek_status add_scalar(run_epoch *e, const char *prefix, trek_observation *o)
{
    int n = e->metrics.n_scalars;
    size_t size = strlen(prefix) + strlen(o->name) + 1;
    double value;
    trek_status status = trek_observation_point(o, &value);
    if (status != TREK_OK)
        return status;
    trek_epoch_scalar *scalars = trek_realloc(e->scalars, (size_t)(n + 1) * sizeof *scalars);
    if (!scalars)
        return TREK_ERR_MEMORY;
    e->metrics.scalars = e->scalars = scalars;
    char *whole = trek_calloc(1, size);
    if (!whole)
        return TREK_ERR_MEMORY;
    snprintf(whole, size, "%s%s", prefix, o->name);
    int at = n; /* in the order of the names, as each process has recorded them in an order of its own */
    for (; at > 0 && strcmp(scalars[at - 1].name, whole) > 0; at--)
        scalars[at] = scalars[at - 1];
    scalars[at] = (trek_epoch_scalar){ whole, value, o->metric ? trek_tensor_retain(o->values) : NULL };
    e->metrics.n_scalars++;
    return TREK_OK;
}

typedef struct taking {
    run_epoch *e;
    const char *prefix;
    double *loss;
} taking;

static trek_status take_observation(const taking *t, const char *around, trek_observation *o)
{
    if (!o->seen)
        return TREK_OK;
    if (!is_measured(o))
        return add_scalar(t->e, around, o);
    take_measured(t->e, o, !*t->prefix, t->loss);
    trek_observation_forget(o);
    return TREK_OK;
}

/* Those of nested graphs are reported under their paths, except what only concerns the nested graph itself. */
static trek_status take_graph(const char *path, trek_module *module, void *arg)
{
    const taking *t = arg;
    trek_graph *graph = trek_graph_of(module);
    if (!graph || !graph->n_observations)
        return TREK_OK;
    char *around = trek_format("%s%s%s", t->prefix, path, *path ? "." : "");
    trek_status status = around ? TREK_OK : TREK_ERR_MEMORY;
    for (int k = 0; k < graph->n_observations && status == TREK_OK; k++)
        if (!*path || graph->observations[k].name[0] != '_')
            status = take_observation(t, around, &graph->observations[k]);
    trek_free(around);
    return status;
}

/* Turns what has been gathered into metrics. Observations with a name of the program also become points of trends. */
static trek_status take_observations(trek_graph *graph, run_epoch *e, const char *prefix, double *loss)
{
    taking t = { e, prefix, loss };
    return trek_module_each(&graph->base, take_graph, &t);
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
    const trek_step *s = trek_graph_ranks(run->graph);
    if (!s)
        return;
    m->drift = trek_step_drift(s);
    if (!trek_ranks_rounds(s))
        return;
    trek_rounds_stats now = trek_rounds_look(trek_ranks_rounds(s));
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
    m->step = trek_graph_steps(run->graph);
    e->ranks = trek_calloc((size_t)m->ranks, sizeof *e->ranks);
    trek_trainer_workload workload = { 0 };
    trek_status status = e->ranks ? trek_trainer_describe(run->graph, &workload) : trek_error_status();
    m->anchor = workload.windows ? workload.anchor : 0;
    m->rank = workload.rank;
    m->process = trek_graph_job(run->graph)->process;
    m->processes = trek_graph_job(run->graph)->processes;
    measure_averages(run, m);
    if (status == TREK_OK)
        status = trek_graph_gather_observations(run->graph);
    if (status == TREK_OK)
        status = take_observations(run->graph, e, "", &m->loss);
    if (status != TREK_OK)
        return status;
    derive(e);
    return trek_observations_flush(run->graph);
}

trek_status trek_run_begin_within(trek_run *run, const run_epoch *e)
{
    const trek_epoch_metrics *m = &e->metrics;
    trek_step *s = trek_graph_ranks(run->graph);
    run->begun = (run_before){ .steps = m->steps, .samples = m->samples, .ns = (int64_t)(m->seconds * 1e9),
                               .averages = m->averages };
    run->within = true;
    if (s)
        return trek_ranks_pack_observations(trek_step_team(s), trek_graph_job(run->graph), &run->recorded);
    trek_status status = trek_observations_read(run->graph);
    run->recorded = trek_observations_pack(run->graph);
    return status;
}

void trek_run_end_within(trek_run *run)
{
    trek_text_clear(&run->recorded);
    run->within = false;
}

static trek_status drop(trek_graph *graph, void *arg)
{
    (void)arg;
    trek_observations_drop(graph);
    return TREK_OK;
}

trek_status trek_run_measure_evaluation(trek_run *run, run_epoch *e, bool *again)
{
    int processes = trek_graph_job(run->graph)->processes;
    trek_status status = trek_graph_gather_observations(run->graph);
    *again = status == TREK_OK && trek_graph_job(run->graph)->processes < processes;
    if (status == TREK_OK && !*again)
        status = take_observations(run->graph, e, TREK_RUN_EVALUATION, &e->metrics.evaluation_loss);
    trek_graph_each(run->graph, drop, NULL);
    return status;
}

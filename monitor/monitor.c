/* SPDX-License-Identifier: Apache-2.0 */
/* Monitors: their lifetime, what graphs report to them, and the monitor that TREK_LOG_DIR requests. Nothing here may
 * make the training fail: errors from here are cleared, and if an error is already set, nothing is done. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/var.h"
#include "data/batch_here.h"
#include "data/loader_position.h"
#include "distributed/trainer.h"
#include "distributed/trainer_ranks.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"
#include "graph/watch.h"
#include "monitor/monitor_internal.h"
#include "monitor/page.h"
#include "monitor/registry.h"
#include "tensor/trace.h"

/* LOOK_NS: how often the clock is read if steps are shorter; MOST_PASSED: the maximum number of such steps in between. */
enum { MOST_MONITORS = 16, SECOND_NS = 1000000000, LOOK_NS = 128000, MOST_PASSED = 256 };

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static trek_monitor *monitors[MOST_MONITORS], *automatic;
static int n_monitors;
static bool wanted; /* TREK_LOG_DIR */

static void listen(bool on);

static trek_status join(trek_monitor *m)
{
    pthread_mutex_lock(&registry);
    bool room = n_monitors < MOST_MONITORS;
    if (room)
        monitors[n_monitors++] = m;
    pthread_mutex_unlock(&registry);
    if (!room)
        return trek_fail(TREK_ERR_STATE, "monitor_new: there are already %d monitors; free one first", MOST_MONITORS);
    listen(true);
    return TREK_OK;
}

/* Returns whether it was the last one. */
static bool leave(trek_monitor *m)
{
    pthread_mutex_lock(&registry);
    for (int k = 0; k < n_monitors; k++)
        if (monitors[k] == m)
            monitors[k--] = monitors[--n_monitors];
    bool last = n_monitors == 0;
    if (m->graph)
        atomic_store(&m->graph->watched_by, NULL);
    pthread_mutex_unlock(&registry);
    trek_monitor_lanes_wake();
    if (last && !wanted)
        listen(false);
    return last;
}

trek_monitor *trek_monitor_new(const trek_monitor_opts *opts)
{
    if (trek_error_status() != TREK_OK)
        return NULL;
    if (trek_forked)
        return trek_fail_forked(), NULL;
    trek_monitor *m = trek_monitor_make(opts ? opts : &(trek_monitor_opts){ 0 });
    if (m && join(m) != TREK_OK) {
        trek_monitor_drop(m);
        m = NULL;
    }
    if (!m)
        return NULL;
    trek_monitor_open(m);
    if (m->tensorboard && m->file >= 0)
        trek_monitor_events_open(m);
    trek_monitor_introduce(m);
    if (m->process == 0)
        trek_registry_add(m->path);
    trek_monitor_sampler_start(m);
    return m;
}

static void write_end(trek_monitor *m)
{
    trek_text line = { 0 };
    bool own = trek_error_status() != TREK_OK, failed = m->failed != TREK_OK || own;
    trek_monitor_begin(&line, "end");
    trek_monitor_word(&line, "status", failed ? "failed" : m->stopped ? "stopped" : "done");
    if (failed)
        trek_monitor_word(&line, "error", m->failed != TREK_OK ? m->error : trek_error());
    trek_monitor_write(m, &line);
}

static void settle(void);

static void tell_last_step(trek_monitor *m, trek_graph *graph);

static void finish_graph(trek_monitor *m, trek_graph *graph)
{
    if (m->process == 0 && m->introduced)
        tell_last_step(m, graph);
    trek_monitor_profile_finish(m, graph);
    settle();
}

void trek_monitor_free(trek_monitor **monitor)
{
    trek_monitor *m = monitor ? *monitor : NULL;
    if (!m)
        return;
    *monitor = NULL;
    if (!trek_forked && m->graph && trek_error_status() == TREK_OK)
        finish_graph(m, m->graph);
    bool last = leave(m);
    if (!trek_forked) {
        trek_monitor_sampler_stop(m);
        write_end(m);
        if (m->process == 0 && last)
            trek_registry_remove();
    }
    trek_monitor_drop(m);
}

const char *trek_monitor_path(const trek_monitor *monitor) { return monitor ? monitor->path : NULL; }

static trek_monitor *monitor_of(const trek_graph *graph)
{
    trek_monitor *found = NULL;
    pthread_mutex_lock(&registry);
    for (int k = 0; k < n_monitors && !found; k++)
        if (monitors[k]->graph == graph)
            found = monitors[k];
    pthread_mutex_unlock(&registry);
    return found;
}

static void set_graph(trek_monitor *m, trek_graph *graph)
{
    trek_monitor_profile_clear(&m->profile);
    pthread_mutex_lock(&registry);
    pthread_mutex_lock(&m->lock);
    if (m->graph)
        atomic_store(&m->graph->watched_by, NULL);
    m->graph = graph;
    m->introduced = false;
    m->loader_epoch = m->loader_batch = m->loader_batches = -1;
    m->last_loss = (double)NAN;
    m->point_step = m->told_step = -1;
    atomic_store(&m->left, 0);
    if (graph)
        atomic_store(&graph->watched_by, m);
    pthread_mutex_unlock(&m->lock);
    trek_monitor_lanes_wake();
    pthread_mutex_unlock(&registry);
}

static void settle(void)
{
    trek_status status;
    char message[TREK_ERROR_SIZE];
    if (trek_error_status() == TREK_OK)
        return;
    trek_error_take(&status, message);
    trek_log_message(TREK_LOG_LEVEL_WARNING, "the watched run is incomplete: %s", message);
}

/* --- the one that the environment asks for ------------------------------------------------------ */

static trek_page *automatic_page; /* from TREK_MONITOR */

static void end_automatic(void)
{
    trek_monitor_free(&automatic);
    trek_page_free(&automatic_page);
}

/* Made if nobody watches yet. It is tried only once: after a failure it is not tried again in every step. */
static trek_monitor *make_automatic(void)
{
    static atomic_bool tried;
    trek_monitor *m = atomic_exchange(&tried, true) ? NULL : trek_monitor_new(NULL);
    if (!m)
        settle();
    pthread_mutex_lock(&registry);
    automatic = m ? m : automatic;
    pthread_mutex_unlock(&registry);
    if (m && m->process == 0 && !(automatic_page = trek_page_from_environment(m->path)))
        settle();
    if (m)
        atexit(end_automatic);
    return m;
}

/* Returns the monitor of this graph. The automatic one takes the first graph that trains, and the next one when that
 * is gone. */
static trek_monitor *watching(trek_graph *graph)
{
    trek_monitor *m = trek_forked || trek_error_status() != TREK_OK ? NULL : monitor_of(graph);
    if (m || !wanted || trek_forked || trek_error_status() != TREK_OK)
        return m;
    pthread_mutex_lock(&registry);
    m = automatic;
    bool other = m ? m->graph != NULL : n_monitors > 0;
    pthread_mutex_unlock(&registry);
    m = other ? NULL : m ? m : make_automatic();
    if (m)
        set_graph(m, graph);
    return m;
}

/* --- what is known of the graph, looked at by the thread that trains ---------------------------- */

static void look_at_ranks(trek_monitor *m, trek_graph *graph)
{
    trek_trainer_workload w;
    if (trek_trainer_describe(graph, &w) != TREK_OK)
        return;
    double *all = trek_calloc((size_t)w.ranks, sizeof *all), *own = trek_calloc((size_t)w.local_ranks, sizeof *own);
    int n = all ? trek_graph_shares(graph, all, w.ranks) : 0;
    for (int k = 0; own && k < w.local_ranks; k++)
        own[k] = w.rank + k < n ? all[w.rank + k] : w.ranks == 1 ? 1 : (double)NAN;
    pthread_mutex_lock(&m->lock);
    m->first_rank = w.rank;
    m->ranks = w.ranks;
    m->windows = w.windows;
    m->anchor = w.windows ? w.anchor : -1;
    m->window = w.windows ? w.window : -1;
    double *before = m->shares;
    m->shares = own;
    m->local_ranks = own ? w.local_ranks : 0;
    pthread_mutex_unlock(&m->lock);
    trek_free(before);
    trek_free(all);
}

/* Returns the graph's own loader, or the one whose batch this thread works on. */
static const trek_loader *loader_of(const trek_graph *graph)
{
    const trek_loader *own = graph->graph_loader ? graph->graph_loader->loader : NULL;
    return own ? own : trek_batch_here()->loader;
}

/* Runs in every step, because the position may be needed when the loader is gone. */
static void note_place(trek_monitor *m, const trek_graph *graph)
{
    const trek_loader *loader = loader_of(graph);
    if (!loader)
        return;
    trek_loader_position(loader, &m->loader_epoch, &m->loader_batch);
    m->loader_batches = trek_loader_batches(loader);
}

static void set_place(trek_monitor *m, int64_t epoch, int64_t batch, int64_t batches)
{
    pthread_mutex_lock(&m->lock);
    m->epoch = epoch;
    m->batch = batch;
    m->batches = batches;
    pthread_mutex_unlock(&m->lock);
}

static void look_at_loader(trek_monitor *m, const trek_graph *graph)
{
    note_place(m, graph);
    set_place(m, m->loader_batch < 0 ? graph->flushes : m->loader_epoch, m->loader_batch, m->loader_batches);
}

static void write_progress(trek_monitor *m, int64_t now)
{
    trek_text line = { 0 };
    double seconds = m->began_ns ? (double)(now - m->began_ns) * 1e-9 : 0;
    double part = m->batches > 0 ? (double)m->batch / (double)m->batches : 0;
    trek_monitor_begin(&line, "progress");
    trek_monitor_whole(&line, "epoch", m->epoch);
    trek_monitor_whole(&line, "epochs", m->epochs);
    trek_monitor_whole(&line, "batch", m->batch);
    trek_monitor_whole(&line, "batches", m->batches);
    trek_monitor_whole(&line, "step", m->step);
    trek_monitor_number(&line, "eta_s", trek_eta(seconds, (double)m->epoch + part, (double)m->epochs));
    trek_monitor_number(&line, "seconds", seconds);
    trek_monitor_write(m, &line);
    m->told_step = m->step;
}

static void introduce(trek_monitor *m, trek_graph *graph)
{
    int64_t now = trek_clock_ns();
    m->parameters = trek_module_param_count(trek_graph_module(graph));
    look_at_ranks(m, graph);
    look_at_loader(m, graph);
    trek_monitor_find_gpus(m);
    pthread_mutex_lock(&m->lock);
    m->introduced = m->ranked = true;
    m->began_ns = m->began_ns ? m->began_ns : now;
    m->rate_ns = now;
    m->rate_samples = trek_monitor_samples(m->local_ranks);
    pthread_mutex_unlock(&m->lock);
    trek_monitor_introduce(m);
    if (m->process == 0)
        trek_monitor_graph(m, graph);
}

/* --- what graphs tell --------------------------------------------------------------------------- */

/* Returns the graph's monitor in a step in which it does not read the clock. It takes no lock, because most steps
 * take this path. */
static inline trek_monitor *passing(const trek_graph *graph)
{
    trek_monitor *m = atomic_load_explicit(&graph->watched_by, memory_order_acquire);
    return m && atomic_load_explicit(&m->left, memory_order_relaxed) > 1 ? m : NULL;
}

/* Varies the number randomly between half and one and a half, so that something done every few steps is neither
 * always nor never seen. */
static int by_chance(trek_monitor *m, int64_t steps)
{
    m->chance = m->chance * 1664525u + 1013904223u;
    return (int)(steps / 2 + (int64_t)(m->chance >> 8) % (steps + 1));
}

/* Decides how many steps pass until the clock is read again. If a step takes long, sampler.c ends this within a
 * second. */
static void pace(trek_monitor *m, int64_t now, bool soon)
{
    int64_t step = m->step, steps = step - m->paced_step, ns = now - m->paced_ns;
    int64_t within = m->interval_ns / 16 < LOOK_NS ? m->interval_ns / 16 : LOOK_NS;
    int64_t passed = steps > 0 && ns > 0 && m->paced_ns ? within * steps / ns : 0;
    int left = soon ? 0 : by_chance(m, passed < MOST_PASSED ? passed : MOST_PASSED);
    m->paced_ns = now;
    m->paced_step = step;
    trek_monitor_lanes_sampled(now);
    atomic_store_explicit(&m->left, left, memory_order_relaxed);
    pthread_mutex_lock(&registry);
    bool alone = n_monitors == 1 && m->ranks == 1;
    pthread_mutex_unlock(&registry);
    if (alone && left > 2)
        trek_monitor_lanes_rest(now);
}

static void pass(trek_monitor *m, const trek_graph *graph)
{
    int left = atomic_load_explicit(&m->left, memory_order_relaxed) - 1;
    atomic_store_explicit(&m->step, graph->settings.steps, memory_order_relaxed);
    note_place(m, graph);
    atomic_store_explicit(&m->left, left, memory_order_relaxed);
    if (left == 1)
        trek_monitor_lanes_sample(trek_clock_ns());
}

static bool due(const trek_monitor *m, int64_t now) { return now - m->scalars_ns >= m->interval_ns; }

/* A CPU's number is available and costs nothing. The run's last step may be one in which nobody looks. */
static void keep_loss(trek_monitor *m, const trek_graph *graph, trek_var *loss)
{
    trek_dtype dtype = trek_var_dtype(loss);
    if (trek_var_device(loss).type != TREK_CPU || trek_var_numel(loss) != 1 || (dtype != TREK_F32 && dtype != TREK_F64))
        return;
    const void *value = trek_tensor_data(trek_var_data(loss));
    m->last_loss = dtype == TREK_F32 ? (double)*(const float *)value : *(const double *)value;
    m->loss_step = graph->settings.steps;
}

/* Only reads the loss when a point is due: it may have to be fetched from a device, and a capture of a step must not
 * be disturbed. */
static void on_loss(trek_graph *graph, trek_var *loss)
{
    trek_monitor *m = passing(graph);
    if (m) {
        keep_loss(m, graph, loss);
        return;
    }
    m = watching(graph);
    if (m) {
        m->profile.passes++;
        keep_loss(m, graph, loss);
    }
    if (!m || m->process > 0 || trek_var_numel(loss) != 1)
        return;
    m->heard = true;
    m->comes |= due(m, trek_clock_ns());
    if (m->comes && (trek_var_device(loss).type == TREK_CPU || !graph->captures))
        m->loss = trek_var_item(loss);
    settle();
}

static void on_stepping(trek_graph *graph)
{
    trek_monitor *m = passing(graph) ? NULL : watching(graph);
    if (!m)
        return;
    if (!m->introduced)
        introduce(m, graph);
    if (m->process == 0 && trek_clock_ns() - m->looked_ns >= SECOND_NS && unlink(m->wish_path) == 0)
        trek_monitor_histograms(m, trek_graph_steps(graph), trek_graph_module(graph));
    settle();
}

static void add(const char **names, double *values, int *n, const char *name, double value)
{
    if (isnan(value) && strcmp(name, "loss") != 0)
        return;
    names[*n] = name;
    values[(*n)++] = value;
}

static void write_scalars(trek_monitor *m, trek_graph *graph, int64_t now)
{
    const char *names[4];
    double values[4];
    int n = 0;
    int64_t samples = trek_monitor_samples(m->local_ranks);
    double seconds = (double)(now - m->rate_ns) * 1e-9;
    if (graph->graph_loader || !isnan(m->loss))
        add(names, values, &n, "loss", m->loss);
    add(names, values, &n, "lr", trek_graph_lr(graph));
    add(names, values, &n, "gradient_norm", trek_graph_grad_norm(graph));
    if (samples > m->rate_samples && seconds > 0)
        add(names, values, &n, "samples_per_s", (double)(samples - m->rate_samples) / seconds);
    m->rate_ns = now;
    m->rate_samples = samples;
    m->point_step = m->step;
    trek_monitor_scalars(m, m->step, names, values, n);
}

/* Reports the result of the last steps, which passed between two readings of the clock. */
static void tell_last_step(trek_monitor *m, trek_graph *graph)
{
    int64_t now = trek_clock_ns(), batch = m->loader_batch, batches = m->loader_batches;
    bool whole = batches > 0 && batch >= batches;
    if (m->told_step != m->step || (whole && m->epoch == m->loader_epoch)) {
        if (batch < 0)
            set_place(m, graph->flushes, -1, -1);
        else
            set_place(m, m->loader_epoch + whole, whole ? 0 : batch, batches);
        write_progress(m, now);
    }
    if (m->point_step == m->step)
        return;
    m->loss = m->loss_step + 1 == m->step ? m->last_loss : (double)NAN;
    write_scalars(m, graph, now);
}

/* A point has the loss of its own step. If a loss came before a point was due, the next step gets the point. */
static void on_stepped(trek_graph *graph)
{
    trek_monitor *m = passing(graph);
    if (m) {
        pass(m, graph);
        return;
    }
    if (!(m = watching(graph)))
        return;
    int64_t now = trek_clock_ns();
    m->step = trek_graph_steps(graph);
    note_place(m, graph);
    if (m->process == 0 && (m->comes || (!m->heard && due(m, now)))) {
        write_scalars(m, graph, now);
        m->scalars_ns = now;
    }
    bool soon = m->heard && !m->comes && due(m, now);
    m->heard = m->comes = false;
    if (now - m->looked_ns >= SECOND_NS) {
        m->looked_ns = now;
        look_at_loader(m, graph);
        look_at_ranks(m, graph);
        if (m->process == 0)
            write_progress(m, now);
    }
    if (m->process == 0)
        trek_monitor_profile_step(m, graph, m->step, now);
    settle();
    pace(m, now, soon || m->profile.measuring);
}

static void on_flushing(trek_graph *graph)
{
    trek_monitor *m = watching(graph);
    trek_monitor_point *values = m && m->process == 0 ? trek_calloc((size_t)graph->n_observations + 1, sizeof *values) : NULL;
    int n = 0;
    for (int k = 0; values && k < graph->n_observations; k++) {
        trek_observation *o = &graph->observations[k];
        if (!o->seen || strncmp(o->name, TREK_MEASURED, sizeof TREK_MEASURED - 1) == 0)
            continue;
        values[n].name = o->name;
        trek_observation_point(o, &values[n++].value);
    }
    if (values)
        trek_monitor_flushed(m, graph->flushes, values, n);
    trek_free(values);
    settle();
}

static void on_freed(trek_graph *graph)
{
    trek_monitor *m = monitor_of(graph);
    if (m && !trek_forked && trek_error_status() == TREK_OK)
        finish_graph(m, graph);
    if (m)
        set_graph(m, NULL);
}

static void on_began(trek_graph *graph, int64_t epochs)
{
    trek_monitor *m = watching(graph);
    if (!m)
        return;
    m->epochs = epochs;
    m->in_run = true;
    introduce(m, graph);
    settle();
}

static void on_epoch(trek_graph *graph, const trek_epoch_metrics *metrics)
{
    trek_monitor *m = watching(graph);
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->epoch = metrics->epoch + metrics->complete;
    m->batch = metrics->complete ? 0 : m->batch;
    m->drift = metrics->drift > 0 ? metrics->drift : (double)NAN;
    pthread_mutex_unlock(&m->lock);
    if (m->process == 0) {
        trek_monitor_epoch(m, metrics);
        write_progress(m, trek_clock_ns());
    }
    settle();
}

/* A run has ended whose graph is gone: its end is noted in the monitors that were in it. */
static void on_ended(trek_status status, const char *message, bool stopped)
{
    pthread_mutex_lock(&registry);
    for (int k = 0; k < n_monitors; k++) {
        trek_monitor *m = monitors[k];
        if (!m->in_run || (m->graph && n_monitors > 1))
            continue;
        m->in_run = false;
        m->failed = status;
        m->stopped = stopped;
        snprintf(m->error, sizeof m->error, "%s", status != TREK_OK ? message : "");
    }
    pthread_mutex_unlock(&registry);
}

static void on_log(trek_log_level level, const char *message)
{
    trek_monitor *all[MOST_MONITORS];
    if (trek_forked)
        return;
    pthread_mutex_lock(&registry);
    int n = n_monitors;
    memcpy(all, monitors, sizeof all);
    pthread_mutex_unlock(&registry);
    for (int k = 0; k < n; k++)
        trek_monitor_log_line(all[k], level, message);
}

static const trek_graph_watch hooks = { on_loss, on_stepping, on_stepped, on_flushing, on_freed, on_began, on_epoch, on_ended };

static void listen(bool on)
{
    atomic_store(&trek_graph_watcher, on ? &hooks : NULL);
    atomic_store(&trek_log_watcher, on ? on_log : NULL);
    trek_monitor_lanes_listen(on);
}

/* Reads one variable when the library is loaded; everything else starts with the first step. */
__attribute__((constructor)) static void look_whether_wanted(void)
{
    const char *folder = getenv("TREK_LOG_DIR");
    wanted = folder && *folder;
    if (wanted)
        listen(true);
}

trek_status trek_monitor_attach(trek_monitor *m, trek_graph *graph)
{
    if (!m)
        return trek_fail_missing("monitor_attach", "monitor");
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    trek_monitor *other = graph ? monitor_of(graph) : NULL;
    if (other && other != m)
        return trek_fail(TREK_ERR_STATE, "monitor_attach: graph: another monitor already watches it");
    if (m->graph && m->graph != graph)
        finish_graph(m, m->graph);
    set_graph(m, graph);
    return TREK_OK;
}

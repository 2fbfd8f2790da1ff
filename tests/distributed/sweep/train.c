/* SPDX-License-Identifier: Apache-2.0 */
/* One training as it was drawn, by a run or by a loop of one's own. What it has come to lies in one file afterwards: the last
 * checkpoint, with the optimizer's state, and what was told of each epoch or pass. */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/loader_position.h"
#include "distributed/balance/plan.h"
#include "distributed/checkpoint.h"
#include "graph/graph_loader.h"
#include "graph/timeline.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "optim/averaged.h"
#include "tests/distributed/sweep/sweep.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { MOST_TOLD = 4096 };

static struct {
    int n;
    double told[MOST_TOLD];
    char checkpoint[640];
} now;

static void tell(double value)
{
    if (now.n < MOST_TOLD)
        now.told[now.n++] = value;
}

/* --- what is made for it ------------------------------------------------------------------------- */

static trek_plan *plan_of(const sweep *s)
{
    int ranks = s->processes * s->run.trainer.ranks;
    trek_plan *plan = s->shares_in_plan ? trek_plan_new(ranks) : NULL;
    for (int k = 0; plan && k < 2; k++) { /* others from some step on */
        double shares[SWEEP_MOST_RANKS], sum = 0;
        for (int r = 0; r < ranks; r++)
            sum += s->shares[r];
        for (int r = 0; r < ranks; r++)
            shares[r] = s->shares[(r + k) % ranks] / sum;
        trek_plan_add_shares(plan, k * s->shares_in_plan, shares);
    }
    return plan;
}

static trek_run_opts opts_of(sweep *s, trek_dataset *data, trek_dataset *evaluation, trek_plan *plan, trek_timeline *timeline)
{
    trek_run_opts o = s->run;
    o.build_model = sweep_build;
    o.train_step = sweep_loss_of;
    o.dataset = data;
    o.evaluation = evaluation;
    o.optimizer = s->optimizer;
    o.arg = s;
    o.trainer.plan = plan;
    o.trainer.timeline = timeline;
    return o;
}

/* --- by a run ---------------------------------------------------------------------------------------- */

static trek_status on_metrics(const trek_epoch_metrics *m, void *arg)
{
    tell((double)m->epoch);
    tell((double)m->steps);
    tell((double)m->samples);
    tell(m->loss);
    tell(m->evaluation_loss);
    tell(m->lr);
    tell(m->best);
    const char *const names[] = { "output", "rows", "evaluation.output", "evaluation.rows" }; /* their order is nobody's */
    for (int k = 0; k < 4; k++)
        tell(trek_metrics_get(m, names[k]));
    tell(m->n_scalars);
    return TREK_OK;
}

static trek_status on_checkpoint(trek_graph *graph, int64_t epoch, const char *path, void *arg)
{
    snprintf(now.checkpoint, sizeof now.checkpoint, "%s", path);
    return TREK_OK;
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    const sweep *s = arg;
    return s->frozen ? TREK_OK : sweep_freeze(graph, epoch % 2 == 1);
}

static trek_status run_once(const trek_run_opts *o)
{
    trek_run *run = trek_trainer_run(o);
    trek_state *state = run ? trek_run_join(run) : NULL;
    trek_state_free(&state);
    return trek_error_status();
}

static trek_status train_by_run(const sweep *s, trek_run_opts *o, const char *folder)
{
    trek_status status = TREK_OK;
    o->checkpoint_folder = folder;
    o->on_metrics = on_metrics;
    o->on_checkpoint = on_checkpoint;
    o->on_epoch = s->freezes ? on_epoch : NULL;
    if (s->resumes) {
        trek_run_opts first = *o;
        first.epochs = s->resumed_at;
        status = run_once(&first);
        o->resume_from = folder;
        o->trainer.ranks = s->resumed_ranks;
        o->trainer.n_memory_budget = o->trainer.memory_budget ? s->resumed_ranks : 0;
    }
    return status == TREK_OK ? run_once(o) : status;
}

/* --- by a loop of one's own ---------------------------------------------------------------------------- */

typedef struct loop {
    sweep *s;
    const trek_run_opts *o;
    trek_graph *graph;
    trek_loader *loader;
    trek_averaged *averaged;
    const char *path;        /* of its checkpoints */
} loop;

static void close_loop(loop *l)
{
    trek_averaged_free(&l->averaged);
    trek_graph_free(&l->graph);
    trek_loader_free(&l->loader);
}

static trek_status open_loop(loop *l, int ranks)
{
    const trek_run_opts *o = l->o;
    trek_trainer_opts t = o->trainer;
    t.ranks = ranks;
    t.n_memory_budget = t.memory_budget ? ranks : 0;
    t.build_replica = sweep_build;
    t.arg = l->s;
    t.optimizer = o->optimizer;
    t.schedule = o->schedule;
    trek_loader_opts of_loader = { .batch_size = o->batch_size, .shuffle = o->shuffle, .seed = o->seed,
                                   .drop_last = o->drop_last, .prefetch = o->prefetch, .workers = o->workers };
    l->graph = sweep_build(trek_cpu(0), l->s);
    l->loader = trek_loader_new(trek_dataset_retain(o->dataset), &of_loader);
    if (!l->graph || !l->loader)
        return trek_error_status();
    trek_graph_set_loader(l->graph, l->loader, o->input);
    trek_graph_set_loss(l->graph, l->s->way == SWEEP_BATCHES ? sweep_loss_of : NULL, l->s);
    trek_seed(o->seed);
    if (trek_trainer_setup(l->graph, &t) == TREK_OK && l->s->ema > 0)
        l->averaged = trek_averaged_new(trek_graph_module(l->graph),
                                        &(trek_averaged_opts){ .decay = l->s->ema, .buffers = true });
    return trek_error_status();
}

static void take_pass(const loop *l, trek_batch *batch)
{
    trek_scope scope = trek_scope_begin();
    trek_var *loss;
    if (l->s->way == SWEEP_BATCHES) {
        loss = trek_graph_train_batch(l->graph, batch);
    } else {
        loss = sweep_loss_of(l->graph, trek_graph_forward(l->graph, trek_batch_get(batch, "x")), batch, l->s);
        trek_graph_backward(l->graph, loss);
    }
    if (loss && l->s->tells)
        tell(trek_var_item(loss));
    trek_scope_end(scope);
}

/* As after a crash: by way of a file, and on other ranks. */
static trek_status go_on(loop *l, int64_t *epoch)
{
    trek_status status = trek_checkpoint_save(l->graph, NULL, l->path);
    close_loop(l);
    if (status == TREK_OK)
        status = open_loop(l, l->s->resumed_ranks);
    if (status == TREK_OK)
        status = trek_checkpoint_load(l->graph, NULL, l->path);
    if (status == TREK_OK)
        trek_loader_position(l->loader, epoch, NULL);
    return status;
}

static trek_status take_step(const loop *l)
{
    trek_status status = trek_graph_step(l->graph);
    return status == TREK_OK && l->averaged ? trek_averaged_update(l->averaged) : status;
}

static trek_status each_epoch(loop *l)
{
    int passes = 0, each = l->o->trainer.accumulate > 1 ? l->o->trainer.accumulate : l->s->adds ? l->s->adds : 1;
    bool resumes = l->s->resumes, begun = false;
    for (int64_t epoch = 0; epoch < l->o->epochs && trek_error_status() == TREK_OK; epoch++) {
        if (!begun)
            trek_graph_start(l->graph, epoch);
        begun = false;
        for (trek_batch *batch; (batch = trek_graph_next(l->graph));) {
            take_pass(l, batch);
            if (++passes % each == 0 && take_step(l) == TREK_OK && resumes && passes >= 2 * l->s->resumed_at) {
                resumes = false;
                go_on(l, &epoch);
            }
            if (trek_error_status() != TREK_OK)
                return trek_error_status();
        }
    }
    if (passes % each != 0)
        take_step(l);
    return trek_error_status();
}

static trek_status note_averaged(const loop *l)
{
    trek_state *state = l->averaged ? trek_averaged_state(l->averaged) : NULL;
    for (int k = 0; state && k < trek_state_count(state); k++) {
        double *values = test_read(trek_state_tensor(state, k));
        for (int64_t i = 0; values && i < trek_tensor_numel(trek_state_tensor(state, k)); i++)
            tell(values[i]);
        free(values);
    }
    trek_state_free(&state);
    return trek_error_status();
}

static trek_status train_by_loop(sweep *s, const trek_run_opts *o, const char *folder)
{
    snprintf(now.checkpoint, sizeof now.checkpoint, "%s/loop.safetensors", folder);
    loop l = { .s = s, .o = o, .path = now.checkpoint };
    if (open_loop(&l, o->trainer.ranks) == TREK_OK && each_epoch(&l) == TREK_OK && note_averaged(&l) == TREK_OK)
        trek_checkpoint_save(l.graph, NULL, l.path);
    close_loop(&l);
    return trek_error_status();
}

/* --- either -------------------------------------------------------------------------------------------- */

/* The checkpoint with what was told, in one file. */
static trek_status keep(const char *path)
{
    trek_state *state = trek_state_read(now.checkpoint);
    trek_tensor *told = state && now.n ? trek_tensor_from_data(now.told, trek_dims(now.n), TREK_F64, trek_cpu(0)) : NULL;
    if (told)
        trek_state_add(state, "told", told);
    trek_tensor_release(told);
    if (state)
        trek_state_write(state, path);
    trek_state_free(&state);
    return trek_error_status();
}

static void remove_folder(const char *folder)
{
    char path[1024];
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        snprintf(path, sizeof path, "%.700s/%.255s", folder, entry->d_name);
        unlink(path);
    }
    if (list)
        closedir(list);
    rmdir(folder);
}

trek_status sweep_train(sweep *s, const char *path)
{
    char folder[600];
    snprintf(folder, sizeof folder, "%s.run", path); /* one for all processes */
    memset(&now, 0, sizeof now);
    trek_dataset *data = sweep_data(s, false), *evaluation = s->evaluates ? sweep_data(s, true) : NULL;
    trek_plan *plan = plan_of(s);
    trek_timeline *timeline = s->timed ? trek_timeline_new(NULL) : NULL;
    trek_run_opts o = opts_of(s, data, evaluation, plan, timeline);
    bool writes = !getenv("TREK_RANK") || atoi(getenv("TREK_RANK")) == 0;
    if (s->slow && !s->one)
        setenv("TREK_SLOWDOWN", s->slow == 1 ? "2s" : "1,2s", 1);
    trek_status status = mkdir(folder, 0700) != 0 && errno != EEXIST ? trek_fail(TREK_ERR_IO, "no folder %s", folder)
        : s->way == SWEEP_RUN ? train_by_run(s, &o, folder) : train_by_loop(s, &o, folder);
    unsetenv("TREK_SLOWDOWN");
    if (status == TREK_OK && writes)
        status = keep(path);
    trek_timeline_free(&timeline);
    trek_plan_free(&plan);
    trek_dataset_free(&evaluation);
    trek_dataset_free(&data);
    if (writes)
        remove_folder(folder);
    return status;
}

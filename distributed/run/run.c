/* SPDX-License-Identifier: Apache-2.0 */
/* The run as its program sees it: it is started, asked, and joined. */
#include <math.h>
#include <string.h>

#include "distributed/replay/replay.h"
#include "distributed/run/run_internal.h"
#include "distributed/stop.h"
#include "distributed/system/system.h"
#include "graph/watch.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/debug.h"
#include "tensor/devices.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"

static void *run_thread(void *arg)
{
    trek_run *run = arg;
    trek_run_train(run);
    const trek_graph_watch *watch = trek_graph_watched();
    if (watch)
        watch->ended(trek_error_status(), trek_error(), trek_stop_requested() || atomic_load(&run->stop));
    trek_lock_acquire(&run->lock);
    trek_error_take(&run->status, run->message);
    run->ended = true;
    run->progress.running = false;
    trek_condition_wake_all(&run->changed);
    trek_lock_release(&run->lock);
    trek_error_clear();
    return NULL;
}

static void run_free(trek_run *run)
{
    for (int k = 0; k < run->n_epochs; k++)
        trek_run_epoch_free(run->epochs[k]);
    trek_free(run->epochs);
    trek_state_free(&run->final);
    trek_run_opts_clear(&run->opts);
    trek_condition_destroy(&run->changed);
    trek_lock_destroy(&run->lock);
    trek_free(run);
}

static trek_run *start(const trek_run_opts *given, trek_module *module)
{
    trek_run_opts own = given ? *given : (trek_run_opts){ 0 };
    const trek_run_opts *opts = given ? &own : NULL;
    own.patience = trek_option_integer(own.patience, 0);
    own.min_delta = trek_option(own.min_delta, 0);
    own.lr_scale = trek_option(own.lr_scale, 0);
    if (trek_run_check(opts, module) != TREK_OK)
        return NULL;
    trek_run *run = trek_calloc(1, sizeof *run);
    if (!run)
        return NULL;
    trek_lock_init(&run->lock);
    trek_condition_init(&run->changed);
    run->best = NAN;
    run->best_epoch = -1;
    run->module = module;
    run->progress = (trek_run_progress){ .running = true, .epochs = opts->epochs, .max_steps = opts->max_steps,
                                         .loss = NAN };
    trek_status status = trek_run_opts_copy(&run->opts, opts);
    int64_t step;
    if (status == TREK_OK && trek_replay_asked(&step))
        status = trek_run_become_replay(&run->opts, step);
    if (status == TREK_OK && trek_thread_begin(&run->thread, run_thread, run) != 0)
        status = trek_fail(TREK_ERR_STATE, "trainer_run: the thread of the run cannot be started");
    if (status == TREK_OK)
        return run;
    run_free(run);
    return NULL;
}

trek_run *trek_trainer_run(const trek_run_opts *opts) { return start(opts, NULL); }

static trek_status first_device(const char *name, trek_var *param, void *arg)
{
    (void)name;
    *(trek_device *)arg = trek_var_device(param);
    return TREK_ERR_STATE; /* ends the walk */
}

trek_status trek_fit(trek_module *module, const trek_run_opts *opts)
{
    if (!module || !opts)
        return trek_fail_missing("fit", module ? "options" : "module");
    if (trek_gone(module, "fit", "the module"))
        return trek_error_status();
    if (opts->build_model || opts->trainer.ranks > 1)
        return trek_fail(TREK_ERR_ARGUMENT, "fit: %s", opts->build_model ? ".build_model is not called: there is a module"
                                            : "a module is one rank; trek_trainer_run builds one for each");
    trek_device device = trek_device_default();
    trek_module_each_param(module, first_device, &device);
    trek_status status = trek_device_sync(device); /* another thread can read the module's values from here on */
    if (status != TREK_OK)
        return status;
    trek_run_opts o = *opts;
    o.trainer.ranks = 1;
    o.trainer.devices = &device;
    bool training = module->own->training;
    module->own->owners++; /* the graph around it then leaves it to the caller */
    trek_run *run = start(&o, module);
    trek_state *final = run ? trek_run_join(run) : NULL;
    module->own->owners--;
    trek_module_train(module, training);
    trek_state_free(&final);
    return trek_error_status();
}

static bool take_next(trek_run *run, trek_epoch_metrics *metrics, bool waits, const char *function)
{
    if (!run || !metrics) {
        trek_fail_missing(function, run ? "metrics" : "run");
        return false;
    }
    if (trek_forked) {
        trek_fail_forked();
        return false;
    }
    trek_lock_acquire(&run->lock);
    while (waits && run->next == run->n_epochs && !run->ended)
        trek_condition_wait(&run->changed, &run->lock);
    bool there = run->next < run->n_epochs;
    if (there)
        *metrics = run->epochs[run->next++]->metrics;
    trek_lock_release(&run->lock);
    return there;
}

bool trek_run_next(trek_run *run, trek_epoch_metrics *metrics) { return take_next(run, metrics, true, "run_next"); }
bool trek_run_poll(trek_run *run, trek_epoch_metrics *metrics) { return take_next(run, metrics, false, "run_poll"); }

trek_status trek_run_look(trek_run *run, trek_run_progress *progress)
{
    if (!run || !progress)
        return trek_fail_missing("run_look", run ? "progress" : "run");
    if (trek_forked)
        return trek_fail_forked();
    trek_lock_acquire(&run->lock);
    *progress = run->progress;
    trek_lock_release(&run->lock);
    return TREK_OK;
}

void trek_run_stop(trek_run *run)
{
    if (run)
        atomic_store(&run->stop, true);
}

trek_state *trek_run_join(trek_run *run)
{
    if (!run) {
        trek_fail_missing("run_join", "run");
        return NULL;
    }
    if (trek_forked) { /* the thread and everything it uses belong to the parent */
        trek_fail_forked();
        return NULL;
    }
    trek_thread_join(run->thread);
    trek_state *final = run->final;
    run->final = NULL;
    if (run->status != TREK_OK) {
        trek_state_free(&final);
        trek_fail(run->status, "%s", run->message);
    }
    run_free(run);
    return final;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A run that makes a step of an earlier one again (distributed/replay/): what is left of its options. */
#include <string.h>

#include "distributed/replay/replay.h"
#include "distributed/run/run_internal.h"
#include "tensor/memory_internal.h"

/* What does not decide about bits is left out. */
static void leave_out(trek_run_opts *o)
{
    trek_dataset_free(&o->evaluation);
    trek_free((void *)o->checkpoint_folder);
    trek_free((void *)o->best_metric);
    o->checkpoint_folder = o->best_metric = NULL;
    o->keep_best = false;
    o->on_metrics = NULL;
    o->on_checkpoint = NULL;
    o->checkpoint_every = o->checkpoint_every_steps = o->evaluate_every = o->evaluate_every_steps = o->patience = 0;
    o->min_processes = 0;
}

/* One rank on a CPU. */
static trek_status be_alone(trek_trainer_opts *t)
{
    trek_device *device = trek_alloc(sizeof *device);
    if (!device)
        return TREK_ERR_MEMORY;
    *device = trek_cpu(0);
    trek_free((void *)t->devices);
    trek_free((void *)t->shares);
    trek_free((void *)t->memory_budget);
    t->devices = device;
    t->shares = NULL;
    t->ranks = 1;
    t->memory_budget = NULL;
    t->activations = 0;
    t->n_shares = t->n_memory_budget = 0;
    t->shard = TREK_SHARD_NONE;
    t->comm = NULL;
    t->plan = NULL;
    t->min_processes = 0;
    return TREK_OK;
}

trek_status trek_run_become_replay(trek_run_opts *o, int64_t step)
{
    if (o->trainer.grain == 0)
        return trek_fail(TREK_ERR_STATE,
                         "trainer_run: .trainer.grain: 0, but TREK_REPLAY is set; only runs in grains can be replayed");
    const char *folder = o->checkpoint_folder ? o->checkpoint_folder : o->resume_from;
    char *from = folder ? trek_run_checkpoint_before(folder, step) : NULL;
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    bool own = o->resume_from && o->checkpoint_folder && strcmp(o->resume_from, o->checkpoint_folder) == 0;
    if (from || own) { /* the last checkpoint of its own folder may be a later one */
        trek_free((void *)o->resume_from);
        o->resume_from = from;
    }
    leave_out(o);
    o->max_steps = step;
    if (o->trainer.grain == TREK_GRAIN && (o->trainer.grain = trek_replay_grain(o->trainer.digests)) < 1)
        return trek_error_status();
    return be_alone(&o->trainer);
}

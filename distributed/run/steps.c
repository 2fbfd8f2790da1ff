/* SPDX-License-Identifier: Apache-2.0 */
/* What a run does after certain numbers of steps, which count from its beginning, also after it was resumed. */
#include "distributed/run/run_internal.h"
#include "distributed/stepper.h"
#include "graph/graph_loader_internal.h"

bool trek_run_is_due(const trek_run *run, int64_t every)
{
    return every > 0 && trek_graph_steps(run->graph) / every > run->looked / every;
}

bool trek_run_is_due_report(const trek_run *run)
{
    return trek_run_is_over(run) || trek_run_is_due(run, run->opts.evaluate_every_steps);
}

bool trek_run_is_due_checkpoint(const trek_run *run, const trek_epoch_metrics *m, bool last)
{
    const trek_run_opts *o = &run->opts;
    int64_t every = o->checkpoint_every ? o->checkpoint_every : o->checkpoint_every_steps ? 0 : 1;
    return last || trek_run_is_due(run, o->checkpoint_every_steps) || (m->complete && every > 0 && (m->epoch + 1) % every == 0);
}

bool trek_run_is_due_evaluation(const trek_run *run, const trek_epoch_metrics *m, bool last)
{
    const trek_run_opts *o = &run->opts;
    int64_t every = o->evaluate_every ? o->evaluate_every : o->evaluate_every_steps ? 0 : 1;
    return last || trek_run_is_due(run, o->evaluate_every_steps) || (m->complete && every > 0 && (m->epoch + 1) % every == 0);
}

bool trek_run_is_over(const trek_run *run)
{
    return run->opts.max_steps > 0 && trek_graph_steps(run->graph) >= run->opts.max_steps;
}

/* Returns the smaller number of steps that are left, of which 0 stands for any number. */
static int64_t sooner(int64_t left, int64_t every, int64_t steps)
{
    int64_t next = every > 0 ? every - steps % every : 0;
    return next > 0 && (left == 0 || next < left) ? next : left;
}

void trek_run_limit_pass(const trek_run *run)
{
    const trek_run_opts *o = &run->opts;
    const trek_step *s = trek_graph_ranks(run->graph);
    int64_t steps = trek_graph_steps(run->graph), left = o->max_steps > 0 ? o->max_steps - steps : 0;
    left = sooner(sooner(left, o->checkpoint_every_steps, steps), o->evaluate_every_steps, steps);
    run->graph->graph_loader->most_batches = s && trek_step_averages(s) ? left : 0;
}

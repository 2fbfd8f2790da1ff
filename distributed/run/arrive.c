/* SPDX-License-Identifier: Apache-2.0 */
/* How a process comes to a run that trains in grains, also in the midst of an epoch. The run's job lets it in, as it does in a
 * loop of the program's own (pass/arrivals.h). Here is what a run has besides: numbers go with the state of the graph, and the
 * process that has come begins its loop within the epoch, without what all processes do together outside steps. */
#include "distributed/arrivals.h"
#include "distributed/checkpoint_internal.h"
#include "distributed/run/run_internal.h"
#include "distributed/stepper.h"

/* What goes with the state. */
enum { BEST, SINCE_BEST, PARTS, SITES, STEPS, SAMPLES, NS, AVERAGES, NUMBERS };

/* Returns what has been done in the epoch before the pass that is under way, which is the first one of a step. */
static run_before before_pass(const trek_run *run)
{
    const run_part *part = &run->part;
    return (run_before){ .steps = trek_graph_steps(run->graph) - part->steps + part->before.steps,
                         .samples = run->progress.samples - part->samples + part->before.samples,
                         .ns = trek_now_ns() - run->epoch_start_ns,
                         .averages = (part->passes - 1) / part->every + part->before.averages };
}

static trek_state *collect_state(trek_graph *graph, void *arg)
{
    const trek_run *run = arg;
    const run_before before = before_pass(run);
    const double numbers[NUMBERS] = { [BEST] = run->best, [SINCE_BEST] = (double)run->since_best,
                                      [PARTS] = (double)run->parts, [SITES] = run->sites, [STEPS] = (double)before.steps,
                                      [SAMPLES] = (double)before.samples, [NS] = (double)before.ns,
                                      [AVERAGES] = (double)before.averages };
    return trek_checkpoint_collect_plain(graph, numbers, NUMBERS);
}

static trek_status read_state(trek_graph *graph, int fd, void *arg)
{
    trek_run *run = arg;
    double numbers[NUMBERS];
    trek_status status = trek_checkpoint_read_plain(graph, fd, numbers, NUMBERS);
    if (status != TREK_OK)
        return status;
    run->best = numbers[BEST];
    run->since_best = (int64_t)numbers[SINCE_BEST];
    run->parts = (int64_t)numbers[PARTS];
    run->sites = (int)numbers[SITES];
    run->before = (run_before){ .steps = (int64_t)numbers[STEPS], .samples = (int64_t)numbers[SAMPLES],
                                .ns = (int64_t)numbers[NS], .averages = (int64_t)numbers[AVERAGES] };
    return TREK_OK;
}

trek_survival_state trek_run_arrivals_state(trek_run *run)
{
    return (trek_survival_state){ .collect = collect_state, .read = read_state, .arg = run,
                                  .optimizer = TREK_CHECKPOINT_OPTIMIZER };
}

static trek_survival *survival_of(const trek_run *run)
{
    return run->graph ? trek_graph_job(run->graph)->survival : NULL;
}

bool trek_run_has_come(const trek_run *run)
{
    const trek_survival *survival = survival_of(run);
    return survival && survival->arrived;
}

trek_status trek_run_arrive(trek_run *run)
{
    const trek_survival *survival = survival_of(run);
    if (!trek_trainer_joined(run->graph, run->train))
        return trek_error_status();
    run->first_epoch = survival->place.epoch;
    run->looked = trek_graph_steps(run->graph);
    run->resumed = true;
    run->rated = true; /* by the others */
    return TREK_OK;
}

void trek_run_leave(const trek_run *run)
{
    if (trek_run_has_come(run))
        trek_survival_leave(trek_graph_job(run->graph), trek_error());
}

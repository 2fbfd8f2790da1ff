/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/policy/grain_size.h"

#include "distributed/pass/division.h"
#include "distributed/policy/grain_pass.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/reduce.h"
#include "distributed/system/system.h"
#include "distributed/team/step.h"
#include "tensor/rank_context.h"

/* A sample may take this much longer than in the best grain that was measured. */
#define MOST_COST 1.05
/* Grains of a quarter of a batch, of an eighth, and so on. */
enum { FEWEST = 4, MOST = 64, TRIES = 3 };

void trek_grains_set_size(trek_step *s, int64_t size)
{
    s->grain = s->grains->size = size;
    trek_division_publish(s);
}

int64_t trek_grains_largest(int64_t batch) { return (batch + FEWEST - 1) / FEWEST; }

/* Rank 0 runs the first grain of a batch. */
static int64_t first_grain(trek_grain_call *call, int rank, int64_t most, int64_t *n)
{
    bool *done = call->source;
    (void)most;
    *n = 1;
    if (rank > 0 || *done)
        return -1;
    *done = true;
    return 0;
}

/* Drops what the grain has given, and how long it has taken. */
static trek_status drop(trek_step *s)
{
    double ms, starved_ms;
    int64_t units;
    for (int r = 0; r < s->team->local_ranks; r++)
        trek_grain_sums_clear(&s->grains->sums[r]);
    s->grains->n_records = 0;
    trek_status status = trek_ranks_zero(s);
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK; r++)
        status = trek_stopwatch_read(&s->team->watches->of[r], &ms, &starved_ms, &units);
    return status;
}

/* Runs a grain of so many samples once. */
static trek_status run_once(trek_step *s, trek_loader *loader, int64_t size, int64_t *ns)
{
    const trek_batch_plan *plan = trek_loader_plan(loader);
    trek_step_pass pass = { .loader = loader, .rows = plan->batch_size, .backward = true,
                             .training = trek_team_is_training(s->team), .denominator = (double)plan->batch_size,
                             .rng_step = trek_rank_here.rng_step, .rng_draw = trek_rank_here.rng_draw };
    bool done = false;
    trek_grain_call call = { .s = s, .pass = &pass, .next = first_grain, .source = &done };
    s->grains->size = size;
    trek_grains_keep_buffers(s->grains, s->team->replicas[0].model, s->grains->first_buffers);
    trek_status status = trek_grain_call_begin(&call);
    if (status == TREK_OK)
        status = trek_grains_reserve(s->grains, 1);
    int64_t start = trek_now_ns();
    if (status == TREK_OK)
        status = trek_grain_call_run(&call);
    *ns = trek_now_ns() - start;
    trek_grain_call_end(&call);
    trek_rank_here.rng_draw = pass.rng_draw;
    trek_status dropped = drop(s);
    return status == TREK_OK ? dropped : status;
}

/* Finds the size on this process. */
static trek_status measure(trek_step *s, int64_t *best)
{
    trek_loader *loader = s->team->graph->graph_loader->loader;
    int64_t batch = trek_loader_plan(loader)->batch_size, sizes[16];
    double costs[16], least = 0;
    int n = 0;
    trek_status status = trek_ranks_prepare_scaler(s);
    trek_team_follow_flags(s->team);
    for (int64_t grains = FEWEST; grains <= MOST && status == TREK_OK; grains *= 2) {
        int64_t size = (batch + grains - 1) / grains, ns, fastest = INT64_MAX;
        if (n > 0 && size == sizes[n - 1])
            break;
        for (int k = 0; k < TRIES && status == TREK_OK; k++) {
            status = run_once(s, loader, size, &ns);
            fastest = ns < fastest ? ns : fastest;
        }
        sizes[n] = size;
        costs[n] = (double)fastest / (double)size;
        least = n == 0 || costs[n] < least ? costs[n] : least;
        n++;
    }
    int64_t for_all = (batch + s->job.world_size - 1) / s->job.world_size; /* every rank gets a grain */
    *best = batch;
    for (int k = 0; k < n && status == TREK_OK; k++)
        if (costs[k] <= MOST_COST * least)
            *best = sizes[k];
    *best = *best < for_all ? *best : for_all;
    return status;
}

trek_status trek_grains_choose(trek_step *s)
{
    int64_t before = s->grains->size, chosen = 0, *all = trek_calloc((size_t)s->job.processes, sizeof *all);
    trek_status status = all ? TREK_OK : TREK_ERR_MEMORY;
    if (status == TREK_OK && s->job.process == 0)
        status = measure(s, &chosen);
    s->grains->size = before;
    chosen = status == TREK_OK ? chosen : -1;
    if (!all && trek_job_has_others(&s->job))
        trek_job_abort(&s->job, "a process has no memory to choose the size of grains");
    trek_status gathered = all ? trek_job_gather(&s->job, &chosen, sizeof chosen, all) : status;
    if (status == TREK_OK)
        status = gathered;
    if (status == TREK_OK && all[0] < 1)
        status = trek_fail(TREK_ERR_PEER, "trainer_setup: .grain: TREK_GRAIN; process 0 could not measure its grains");
    if (status == TREK_OK) {
        s->grain_chosen = true;
        trek_grains_set_size(s, all[0]);
    }
    trek_free(all);
    return status;
}

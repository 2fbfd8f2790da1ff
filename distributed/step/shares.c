/* SPDX-License-Identifier: Apache-2.0 */
/* How a process's samples are divided among its ranks, and what a step reports to the code that decides that. */
#include "distributed/balance/apportion.h"
#include "distributed/balance/slowdown_internal.h"
#include "distributed/step/job_sync.h"
#include "distributed/step/stepper_ranks.h"
#include "distributed/system/system.h"
#include "graph/graph_internal.h"
#include "graph/graph_loader_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

trek_status trek_ranks_split(const ranks_stepper *s, int64_t n, int64_t *counts)
{
    const double *shares = trek_ranks_shares(s) + s->first_rank;
    double sum = 0;
    for (int r = 0; r < s->local_ranks; r++)
        sum += shares[r];
    return trek_apportion(n, sum > 0 ? shares : NULL, s->local_ranks, counts);
}

trek_status trek_slowed(const ranks_stepper *s, int rank, trek_stopwatch *watch, bool ends)
{
    if (!s->slowdowns)
        return TREK_OK;
    trek_slowdown_apply(&s->slowdowns[rank], s->slowed_batches[rank], trek_now_ns() - watch->start_ns);
    s->slowed_batches[rank] += ends;
    return TREK_OK;
}

/* Notes how long the caller's loader has kept all ranks of the process waiting for a batch, and whether they train on
 * it. */
void trek_ranks_note_wait(ranks_stepper *s, bool trains)
{
    int64_t ns = trek_rank_here.loader_ns - s->loader_ns;
    s->loader_ns += ns;
    for (int r = 0; r < s->local_ranks && trains; r++)
        trek_stopwatch_starved(&s->watches->of[r], ns);
}

/* Names a rank for which others wait because its data come too late, once, together with what provides them. */
static void tell_starving(ranks_stepper *s)
{
    const trek_graph_loader *own = s->base.graph->graph_loader;
    const trek_loader *loader = own && own->loader ? own->loader : trek_rank_here.batch_loader;
    int rank = trek_starvation_report(&s->starvation, s->ms, s->starved_ms);
    if (rank < 0 || s->process > 0)
        return;
    trek_log_message(
        TREK_LOG_LEVEL_WARNING,
        "step %lld: rank %d spends %.0f %% of its time waiting for its data%s%s, the least of any rank is %.0f %%: faster "
        "storage, or more .workers and .prefetch of its loader, would help",
        (long long)s->base.graph->settings.steps, rank, 100 * trek_starvation_of(&s->starvation, rank),
        loader ? ", dataset " : "", loader ? trek_loader_plan(loader)->dataset->klass->name : "",
        100 * trek_starvation_least(&s->starvation));
}

static void tell_workload(ranks_stepper *s)
{
    trek_workload_state state;
    trek_workload_describe(s->workload, &state);
    trek_trace_event(state.windows ? "anchor" : "rebalance", state.windows ? (double)state.anchor : state.predicted);
    if (s->process > 0)
        return;
    if (state.windows)
        trek_log_message(TREK_LOG_LEVEL_INFO,
                         "step %lld: windows of %lld batches from here on, %lld by the slowest rank; predicted speed-up over the "
                         "fastest rank %.2f, achieved %.2f",
                         (long long)s->base.graph->settings.steps, (long long)trek_workload_window(s->workload),
                         (long long)state.anchor,
                         state.predicted, state.achieved);
    else
        trek_log_message(TREK_LOG_LEVEL_INFO,
                         "step %lld: new shares from here on; predicted speed-up over the fastest rank %.2f, achieved %.2f",
                         (long long)s->base.graph->settings.steps, state.predicted, state.achieved);
}

/* Turns times into shares or counts of the next step. */
trek_status trek_ranks_update_workload(ranks_stepper *s, trek_drift_verdict drift)
{
    bool changed, shrunk = false;
    int64_t units;
    for (int r = 0; r < s->local_ranks; r++)
        s->replicas[r].measured_ms += s->ms[s->first_rank + r];
    trek_status status = trek_stopwatch_read(&s->reduce_watch, &s->own_communication_ms, NULL, &units);
    double communication_ms = s->comm ? s->communication_ms : s->own_communication_ms;
    tell_starving(s);
    if (status == TREK_OK) /* not measured: the anchor does not grow */
        status = trek_workload_report(s->workload, s->base.graph->settings.steps, s->windowed, s->ms, s->units,
                                      drift == TREK_DRIFT_STABLE ? communication_ms : 0, &changed);
    if (status == TREK_OK && drift == TREK_DRIFT_SHRINKS)
        status = trek_workload_shrink(s->workload, 0.5, &shrunk);
    if (status != TREK_OK || !(changed || shrunk))
        return status;
    trek_job_sync_publish(s);
    tell_workload(s);
    return TREK_OK;
}

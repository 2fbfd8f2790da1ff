/* SPDX-License-Identifier: Apache-2.0 */
/* How a process's samples are divided among its ranks, and what a step reports to the code that decides that. */
#include "data/batch_here.h"
#include "distributed/balance/apportion.h"
#include "distributed/balance/slowdown.h"
#include "distributed/pass/division.h"
#include "distributed/pass/shares.h"
#include "distributed/system/system.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "graph/graph_loader_internal.h"
#include "tensor/trace.h"

trek_status trek_pace_begin(trek_step *s)
{
    trek_pace *pace = &s->pace;
    size_t ranks = (size_t)s->job.world_size;
    pace->ms = trek_calloc(ranks, sizeof *pace->ms);
    pace->units = trek_calloc(ranks, sizeof *pace->units);
    pace->starved_ms = trek_calloc(ranks, sizeof *pace->starved_ms);
    pace->loader_ns = trek_batch_here()->loader_ns; /* of another graph */
    bool made = pace->ms && pace->units && pace->starved_ms;
    return made && trek_starvation_begin(&pace->starvation, s->job.world_size) == TREK_OK ? TREK_OK : trek_error_status();
}

void trek_pace_end(trek_step *s)
{
    trek_pace *pace = &s->pace;
    trek_workload_free(&pace->workload);
    trek_stopwatch_clear(&pace->reduce_watch);
    trek_starvation_end(&pace->starvation);
    trek_free(pace->rank_shares);
    trek_free(pace->ms);
    trek_free(pace->units);
    trek_free(pace->starved_ms);
    *pace = (trek_pace){ 0 };
}

int trek_ranks_sites(const trek_step *s) { return s->pace.sites ? s->job.processes : s->job.world_size; }
int trek_ranks_first_site(const trek_step *s) { return s->pace.sites ? s->job.process : s->job.first_rank; }
int trek_ranks_local_sites(const trek_step *s) { return s->pace.sites ? 1 : s->job.local_ranks; }
int trek_ranks_sites_of(const trek_step *s, int process) { return s->pace.sites ? 1 : s->job.process_ranks[process]; }

trek_status trek_ranks_split(const trek_step *s, int64_t n, int64_t *counts)
{
    const double *shares = trek_ranks_shares(s) + s->job.first_rank;
    int ranks = s->team->local_ranks;
    double sum = 0;
    bool even = n % ranks == 0;
    for (int r = 0; r < ranks; r++) {
        sum += shares[r];
        even &= shares[r] == shares[0];
    }
    for (int r = 0; r < ranks && even; r++)
        counts[r] = n / ranks;
    return even ? TREK_OK : trek_apportion(n, sum > 0 ? shares : NULL, ranks, counts);
}

trek_status trek_slowed(const trek_step *s, int rank, trek_stopwatch *watch, bool ends)
{
    if (!s->team->slowdowns)
        return TREK_OK;
    trek_slowdown_apply(&s->team->slowdowns[rank], s->team->slowed_batches[rank], trek_now_ns() - watch->start_ns);
    s->team->slowed_batches[rank] += ends;
    return TREK_OK;
}

/* Notes how long the caller's loader has kept all ranks of the process waiting for a batch, and whether they train on
 * it. */
void trek_ranks_note_wait(trek_step *s, bool trains)
{
    int64_t ns = trek_batch_here()->loader_ns - s->pace.loader_ns;
    s->pace.loader_ns += ns;
    for (int r = 0; r < s->team->local_ranks && trains; r++)
        trek_stopwatch_starved(&s->team->watches->of[r], ns);
}

/* Names a rank for which others wait because its data come too late, once, together with what provides them. */
static void tell_starving(trek_step *s)
{
    const trek_graph_loader *own = s->team->graph->graph_loader;
    const trek_loader *loader = own && own->loader ? own->loader : trek_batch_here()->loader;
    int rank = trek_starvation_report(&s->pace.starvation, s->pace.ms, s->pace.starved_ms);
    if (rank < 0 || s->job.process > 0)
        return;
    trek_log_message(
        TREK_LOG_LEVEL_WARNING,
        "step %lld: rank %d spends %.0f %% of its time waiting for its data%s%s, the least of any rank is %.0f %%: faster "
        "storage, or more .workers and .prefetch of its loader, would help",
        (long long)s->team->graph->settings.steps, rank, 100 * trek_starvation_of(&s->pace.starvation, rank),
        loader ? ", dataset " : "", loader ? trek_loader_plan(loader)->dataset->klass->name : "",
        100 * trek_starvation_least(&s->pace.starvation));
}

static void tell_workload(trek_step *s)
{
    trek_workload_state state;
    trek_workload_describe(s->pace.workload, &state);
    trek_trace_event(state.windows ? "anchor" : "rebalance", state.windows ? (double)state.anchor : state.predicted);
    if (s->job.process > 0)
        return;
    if (state.windows)
        trek_log_message(TREK_LOG_LEVEL_INFO,
                         "step %lld: windows of %lld batches from here on, %lld by the slowest rank; predicted speed-up over the "
                         "fastest rank %.2f, achieved %.2f",
                         (long long)s->team->graph->settings.steps, (long long)trek_workload_window(s->pace.workload),
                         (long long)state.anchor,
                         state.predicted, state.achieved);
    else
        trek_log_message(TREK_LOG_LEVEL_INFO,
                         "step %lld: new shares from here on; predicted speed-up over the fastest rank %.2f, achieved %.2f",
                         (long long)s->team->graph->settings.steps, state.predicted, state.achieved);
}

trek_status trek_pace_report(trek_step *s, int64_t step, bool windowed, double communication_ms, trek_drift_verdict drift,
                             bool *changed)
{
    bool shrunk = false; /* without communication the anchor does not grow */
    trek_status status = trek_workload_report(s->pace.workload, step, windowed, s->pace.ms, s->pace.units,
                                              drift == TREK_DRIFT_STABLE ? communication_ms : 0, changed);
    if (status == TREK_OK && drift == TREK_DRIFT_SHRINKS)
        status = trek_workload_shrink(s->pace.workload, 0.5, &shrunk);
    *changed |= shrunk;
    return status;
}

trek_status trek_ranks_update_workload(trek_step *s, trek_drift_verdict drift)
{
    bool changed = false;
    int64_t units;
    for (int r = 0; r < s->team->local_ranks; r++)
        s->team->replicas[r].measured_ms += s->pace.ms[s->job.first_rank + r];
    trek_status status = trek_stopwatch_read(&s->pace.reduce_watch, &s->pace.own_communication_ms, NULL, &units);
    double communication_ms = trek_job_is_alone(&s->job) ? s->pace.own_communication_ms : s->pace.communication_ms;
    tell_starving(s);
    if (status == TREK_OK)
        status = trek_pace_report(s, s->team->graph->settings.steps, s->windowed, communication_ms, drift, &changed);
    if (status != TREK_OK || !changed)
        return status;
    trek_division_publish(s);
    tell_workload(s);
    return TREK_OK;
}

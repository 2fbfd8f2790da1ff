/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer says while it trains: means over all ranks, their work and their speed. */
#include "distributed/trainer.h"

#include <math.h>

#include "autograd/var_internal.h"
#include "distributed/balance/plan_internal.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/shares.h"
#include "distributed/pass/survivors.h"
#include "distributed/stepper.h"
#include "distributed/team/step.h"
#include "distributed/trainer_ranks.h"
#include "graph/batch_run.h"
#include "graph/graph_internal.h"

/* Computes what a process contributes to the mean: {weight x loss, weight}. */
static trek_status part_of_mean(const trek_graph *graph, trek_var *loss, double *part)
{
    if (!loss)
        return trek_fail_missing("trainer_mean", "loss");
    double value = trek_var_item(loss);
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    part[1] = trek_graph_loss_weight(graph, loss, -1);
    part[0] = part[1] > 0 ? part[1] * value : 0; /* a loss of no samples may be NaN */
    return trek_error_status();
}

/* Adds the parts of all processes. */
static trek_status sum_parts(trek_step *s, trek_status own, const double *part, double *sum)
{
    trek_status status = trek_replica_agree(s->job.comm, own, "trainer_mean");
    if (status == TREK_OK)
        status = trek_comm_run(s->job.comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                              .dtype = TREK_F64, .count = 2, .in = part, .out = sum });
    return status == TREK_OK ? trek_survival_commit(&s->job) : status;
}

double trek_trainer_mean(trek_graph *graph, trek_var *loss)
{
    if (!graph) {
        trek_fail_missing("trainer_mean", "graph");
        return NAN;
    }
    double part[2] = { 0 }, sum[2];
    trek_step *s = trek_graph_ranks(graph);
    trek_status own = part_of_mean(graph, loss, part), status;
    if (!s || !s->job.comm)
        return own == TREK_OK && part[1] > 0 ? trek_var_item(loss) : own == TREK_OK ? 0 : (double)NAN;
    do
        status = sum_parts(s, own, part, sum);
    while (status != TREK_OK && trek_survival_go_on(&s->job, &status));
    if (status == TREK_OK)
        status = trek_survivors_after_commit(s);
    return status != TREK_OK ? (double)NAN : sum[1] > 0 ? sum[0] / sum[1] : 0;
}

trek_status trek_trainer_describe(trek_graph *graph, trek_trainer_workload *workload)
{
    if (!graph || !workload)
        return trek_fail_missing("trainer_describe", graph ? "workload" : "graph");
    const trek_step *s = trek_graph_ranks(graph);
    *workload = (trek_trainer_workload){ .ranks = 1, .local_ranks = 1, .costly = -1 };
    if (!s)
        return trek_error_status();
    trek_workload_state state;
    trek_workload_describe(s->pace.workload, &state);
    *workload = (trek_trainer_workload){ .ranks = s->job.world_size,
                                         .rank = s->job.first_rank,
                                         .local_ranks = s->job.local_ranks,
                                         .windows = state.windows,
                                         .anchor = state.anchor,
                                         .window = trek_workload_window(s->pace.workload),
                                         .predicted = state.predicted,
                                         .achieved = state.achieved,
                                         .costly = state.costly };
    return trek_error_status();
}

int trek_trainer_throughput(trek_graph *graph, double *samples_per_s, int capacity)
{
    const trek_step *s = graph ? trek_graph_ranks(graph) : NULL;
    if (!graph)
        return trek_fail_missing("trainer_throughput", "graph"), 0;
    int n = s && trek_workload_measures(s->pace.workload) ? trek_ranks_sites(s) : 0;
    double samples =
        n && trek_workload_window(s->pace.workload) > 0 ? (double)trek_loader_plan(graph->graph_loader->loader)->batch_size : 1;
    for (int r = 0; samples_per_s && r < n && r < capacity; r++)
        samples_per_s[r] = 1000 * samples * trek_workload_throughput(s->pace.workload, r);
    return n;
}

int trek_trainer_counts(trek_graph *graph, int64_t *counts, int capacity)
{
    const trek_step *s = trek_graph_ranks(graph);
    int64_t window = s ? trek_workload_window(s->pace.workload) : 0, all[TREK_MAX_RANKS];
    if (window == 0 || trek_workload_counts(s->pace.workload, window, all) != TREK_OK)
        return 0;
    int n = trek_ranks_sites(s);
    for (int r = 0; r < n && r < capacity; r++)
        counts[r] = all[r];
    return n;
}

trek_plan *trek_trainer_plan(trek_graph *graph)
{
    const trek_step *s = trek_graph_ranks(graph);
    return s ? trek_plan_copy(trek_workload_plan(s->pace.workload)) : NULL;
}

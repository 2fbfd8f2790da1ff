/* SPDX-License-Identifier: Apache-2.0 */
/* What a process contributes to a pass by trek_graph_forward and trek_graph_backward:
 * its weight and the seed of its loss. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/step/job_sync.h"
#include "distributed/step/overlap.h"
#include "distributed/step/rank_sums.h"
#include "distributed/step/stepper_ranks.h"
#include "graph/graph_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- a single rank -------------------------------------------------------------------- */

trek_status trek_ranks_alone(ranks_stepper *s, int64_t units, bool goes_back, trek_alone_fn fn, void *arg)
{
    trek_rank_sums *sums = trek_ranks_sums(s->ranks);
    trek_stopwatch *watch = &s->watches->of[0];
    trek_rank_sums_set_deadline(sums, trek_ranks_comm(s->ranks, 0)->deadline_ns);
    if (s->comm)
        trek_rank_sums_set_comm(sums, s->comm);
    trek_rank_sums_begin(sums, NULL, s->comm != NULL);
    if (goes_back)
        trek_rank_sums_goes_back(sums);
    trek_rank_sums_enter(sums, 0);
    trek_status status = trek_stopwatch_start(watch, trek_ranks_device(s->ranks, 0));
    if (status == TREK_OK)
        status = fn(s, arg);
    if (status == TREK_OK)
        status = trek_stopwatch_stop(watch, units);
    trek_rank_sums_leave(sums, 0, status);
    return status;
}

/* --- backward --------------------------------------------------------------------------- */

static trek_status run_backward(ranks_stepper *s, void *arg)
{
    trek_var **pair = arg; /* loss and seed */
    return trek_overlap_backward(s, pair[0], pair[1]);
}

static trek_status backward_with_seed(ranks_stepper *s, trek_var *loss, double factor)
{
    trek_var *seed;
    trek_status status = trek_graph_seed(s->base.graph->scaler, factor, &loss, &seed);
    if (status != TREK_OK)
        return status;
    trek_var *pair[2] = { loss, seed };
    return s->local_ranks == 1 ? trek_ranks_alone(s, 0, true, run_backward, pair) : run_backward(s, pair);
}

/* The factor of a process's gradient in a pass whose weights sum to `total`. Where nothing counts anywhere: zeros, as on one
 * device, from losses that are 0. */
static double factor_of_pass(ranks_stepper *s, double own, double total, bool stated)
{
    trek_accumulation *a = &s->base.graph->accumulation;
    if (trek_accumulation_weighs(a))
        return total > 0 ? own / trek_accumulation_denominator(a, total) : 0;
    return total > 0 ? own / total : stated ? 0 : 1;
}

/* The caller's tape first; where it meets a split forward, the ranks go on. The process is one
 * contributor: alone, its pass is its gradient, whatever its weight, unless that is 0, or passes are weighed. */
trek_status trek_ranks_backward(trek_stepper *stepper, trek_var *loss, double weight)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    if (s->averages)
        return trek_fail(TREK_ERR_STATE, "trek_graph_backward: parameters are averaged, which needs trek_graph_train_batch");
    trek_status status = trek_error_status();
    trek_job_sync_say(s, "backward", true);
    if (status == TREK_OK && trek_var_numel(loss) != 1) {
        char text[TREK_SHAPE_TEXT];
        status = trek_fail(TREK_ERR_SHAPE, "trek_graph_backward: the loss must be a scalar, not %s",
                           trek_shape_text(trek_var_shape(loss), text));
    }
    bool weighs = trek_accumulation_weighs(&stepper->graph->accumulation);
    double own = status == TREK_OK && (s->comm || weighs || weight == 0) ? trek_graph_loss_weight(stepper->graph, loss, weight)
        : 1, total = own;
    if (isnan(own))
        status = trek_error_status();
    if (status == TREK_OK)
        status = trek_workload_check_batch(s->workload);
    if (status == TREK_OK)
        status = trek_overlap_keep(s);
    if (status == TREK_OK)
        status = trek_ranks_apply_grad_factor(s);
    if (status != TREK_OK) {
        trek_job_sync_failed(s, status);
        return status;
    }
    bool overlap = false;
    status = trek_job_sync_pass(s, own, &total, &overlap);
    if (status != TREK_OK)
        return status;
    bool skips = own == 0 && (total > 0 || weight == 0 || weighs) && !(s->comm && trek_ranks_meet(s));
    trek_overlap_begin(s, overlap);
    if (!skips)
        status = backward_with_seed(s, loss, factor_of_pass(s, own, total, weight == 0));
    trek_status sent = trek_overlap_end(s);
    trek_step_passed(&s->step, !skips);
    return status == TREK_OK ? sent : status;
}

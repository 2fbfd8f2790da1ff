/* SPDX-License-Identifier: Apache-2.0 */
/* What a process contributes to a pass by trek_graph_forward and trek_graph_backward: its weight and the seed of its
 * loss. */
#include <math.h>

#include "autograd/losses_internal.h"
#include "autograd/var_internal.h"
#include "distributed/pass/gathered.h"
#include "distributed/pass/job_sync.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/overlap.h"
#include "distributed/reduce/reduce.h"
#include "distributed/pass/split_forward.h"
#include "distributed/team/rank_sums.h"
#include "distributed/team/step.h"
#include "graph/batch_run.h"
#include "graph/graph_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- a single rank -------------------------------------------------------------------- */

trek_status trek_ranks_alone(trek_step *s, int64_t units, bool goes_back, trek_alone_fn fn, void *arg)
{
    trek_rank_sums *sums = trek_ranks_sums(s->team->ranks);
    trek_stopwatch *watch = &s->team->watches->of[0];
    trek_ranks_begin_sums(s->team->ranks, NULL, s->job.comm, goes_back);
    trek_rank_sums_enter(sums, 0);
    trek_status status = trek_stopwatch_start(watch, trek_ranks_device(s->team->ranks, 0));
    if (status == TREK_OK)
        status = fn(s, arg);
    if (status == TREK_OK)
        status = trek_stopwatch_stop(watch, units);
    trek_rank_sums_leave(sums, 0, status);
    return status;
}

/* --- on the caller's tape ------------------------------------------------------------------- */

static void complete_on_tape(int k, void *arg)
{
    (void)k;
    ((trek_step *)arg)->overlap.on_tape++;
}

/* If rank 0's parameters are used outside the forward, too, these uses would come after the ranks' parts. Then
 * everything is sent at the end. */
static bool sends_in_split(void *arg)
{
    const trek_step *s = arg;
    return s->overlap.on_tape == s->team->replicas[0].model->n_params;
}

static void *arg_of_rank(int rank, void *arg) { return trek_overlap_of(arg, rank); }
static void end_rank(int rank, void *arg) { trek_overlap_rest(rank, arg); }

/* Runs the backward pass of a loss on the caller's tape. The gradients of the ranks of a split forward are sent when
 * they are complete. */
static trek_status run_tape(trek_step *s, trek_var *loss, trek_var *seed, bool zeros)
{
    trek_replica *model = s->team->replicas[0].model;
    trek_backward_watch watch = { .leaves = model->params, .n_leaves = model->n_params, .only_these = true,
                                  .zeros = zeros };
    trek_split_watch ranks = { .tape_leaf = s->overlap.tape_leaf, .begins = sends_in_split, .arg_of_rank = arg_of_rank,
                               .complete = trek_reducer_complete, .end = end_rank, .arg = s };
    bool sends = trek_overlap_of(s, 0) != NULL;
    if (sends && s->team->local_ranks == 1) {
        watch.complete = trek_reducer_complete;
        watch.arg = trek_overlap_of(s, 0);
    } else if (sends) {
        watch.complete = complete_on_tape;
        watch.arg = s;
    }
    const trek_split_watch **present = trek_ranks_split_watch(s->team->ranks), *outer = *present;
    *present = sends && s->team->local_ranks > 1 ? &ranks : NULL;
    trek_status status = trek_backward_watched(&loss, &seed, 1, NULL, &watch);
    *present = outer;
    return status;
}

/* --- backward --------------------------------------------------------------------------- */

typedef struct backward_call {
    trek_var *loss, *seed;
    bool zeros; /* the loss has weight 0, but what it uses still counts as used */
} backward_call;

static trek_status run_backward(trek_step *s, void *arg)
{
    const backward_call *c = arg;
    return run_tape(s, c->loss, c->seed, c->zeros);
}

/* counted: the weight on the device; NULL: the host knows the factor. */
static trek_status backward_with_seed(trek_step *s, trek_var *loss, double factor, trek_var *counted, bool zeros)
{
    trek_var *seed;
    trek_grad_scaler *scaler = s->team->graph->scaler;
    trek_status status = counted ? trek_graph_seed_by(scaler, counted, &loss, &seed)
                                 : trek_graph_seed(scaler, factor, &loss, &seed);
    if (status != TREK_OK)
        return status;
    backward_call call = { loss, seed, zeros };
    return s->team->local_ranks == 1 ? trek_ranks_alone(s, 0, true, run_backward, &call) : run_backward(s, &call);
}

/* Returns the factor of a process's gradient in a pass whose weights sum to `total`. If nothing counts in any
 * process, gradients are zeros, as they are on one device, from losses that are 0. */
static double factor_of_pass(trek_step *s, double own, double total, bool stated)
{
    trek_accumulation *a = &s->team->graph->accumulation;
    if (trek_accumulation_weighs(a))
        return total > 0 ? own / trek_accumulation_denominator(a, total) : 0;
    return total > 0 ? own / total : stated ? 0 : 1;
}

/* In a step that processes record, weights that are counted on their devices are also summed there, because each
 * replay counts its own labels. counted NULL: the weight of this process is known. Returns the factor of
 * factor_of_pass: own / total, or 1 if nothing counts in any process. */
static trek_var *factor_there(trek_step *s, trek_var *counted, double known)
{
    trek_device device = trek_ranks_device(s->team->ranks, 0);
    trek_no_grad_begin();
    trek_var *own = counted ? counted : trek_var_from(trek_tensor_full(trek_dims_none(), known, TREK_F64, device));
    trek_var *total = trek_mul_scalar(own, 1), *factor = NULL;
    if (total && trek_comm_all_reduce(s->job.comm, total->data, TREK_REDUCTION_SUM) == TREK_OK)
        factor = trek_where(trek_gt_scalar(total, 0), trek_div(own, total),
                            trek_var_from(trek_tensor_full(trek_dims_none(), 1, TREK_F64, device)));
    trek_no_grad_end();
    return factor;
}

/* Returns the weight of this process's loss. NaN: an error, or *counted has the weight on the device. */
static double own_weight(const trek_step *s, trek_var *loss, double stated, trek_var **counted)
{
    bool weighs = trek_accumulation_weighs(&s->team->graph->accumulation);
    *counted = s->records && trek_job_has_others(&s->job) && stated < 0 ? trek_loss_counted(loss) : NULL;
    if (*counted || trek_error_status() != TREK_OK)
        return NAN;
    return trek_job_has_others(&s->job) || weighs || stated == 0 ? trek_graph_loss_weight(s->team->graph, loss, stated) : 1;
}

/* Does what can fail before the other processes are met. *own is the weight of its loss, unless *counted has it on
 * the device. */
static trek_status prepare_pass(trek_step *s, trek_var *loss, double stated, double *own, trek_var **counted)
{
    trek_status status = trek_error_status();
    if (status == TREK_OK && trek_var_numel(loss) != 1) {
        char text[TREK_SHAPE_TEXT];
        status = trek_fail(TREK_ERR_SHAPE, "graph_backward: loss: %s; must be a scalar",
                           trek_shape_format(trek_var_shape(loss), text, sizeof text));
    }
    *counted = NULL;
    *own = status == TREK_OK ? own_weight(s, loss, stated, counted) : 1;
    if (isnan(*own) && !*counted)
        status = trek_error_status();
    if (status == TREK_OK)
        status = trek_workload_check_batch(s->pace.workload);
    if (status == TREK_OK)
        status = trek_overlap_keep(s);
    return status == TREK_OK ? trek_ranks_apply_grad_factor(s) : status;
}

/* Runs the caller's tape first; when it reaches a split forward, the ranks continue. The process is one contributor.
 * If it is alone, the gradient of its pass is the gradient, whatever its weight, unless the weight was given as 0 or
 * passes are weighed. */
trek_status trek_ranks_backward(trek_step *s, trek_var *loss, double weight)
{
    trek_job_say(&s->job, "backward", true);
    bool weighs = trek_accumulation_weighs(&s->team->graph->accumulation);
    trek_var *counted;
    double own;
    trek_status status = prepare_pass(s, loss, weight, &own, &counted);
    if (status != TREK_OK) {
        trek_job_sync_failed(s, status);
        return status;
    }
    bool overlap = false;
    double total = own;
    status = trek_job_sync_pass(s, own, &total, &overlap);
    if (status != TREK_OK)
        return status;
    bool zeros = own == 0 && (total != 0 || weight == 0 || weighs) && !(trek_job_has_others(&s->job) && trek_team_meets(s->team));
    trek_var *factor = isnan(total) ? factor_there(s, counted, own) : NULL; /* before anything else is sent */
    if (overlap)
        trek_overlap_begin(s);
    if (isnan(total) && !factor)
        status = trek_error_status();
    else
        status = backward_with_seed(s, loss, factor ? 1 : factor_of_pass(s, own, total, weight == 0), factor, zeros);
    trek_status sent = trek_overlap_end(s);
    trek_ranks_passed(s, true);
    return status == TREK_OK ? sent : status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a process contributes to a pass by trek_graph_forward and trek_graph_backward:
 * its weight, the seed of its loss, and, where it has a single rank, the forward
 * itself, on the caller's own tape. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/overlap.h"
#include "distributed/rank_sums.h"
#include "distributed/rounds.h"
#include "distributed/stepper_ranks.h"
#include "graph/graph_internal.h"
#include "tensor/place.h"
#include "tensor/trace.h"

/* As the loader knows it; else somewhere where no other process's samples are. */
void trek_ranks_place_of(const ranks_stepper *s, int64_t rows, int64_t *first, int64_t *global)
{
    bool is_batch = trek_place_here.batch_rows == rows;
    *first = is_batch ? trek_place_here.batch_first : (int64_t)s->process << 40;
    *global = is_batch ? trek_place_here.batch_global : rows;
}

/* --- a single rank -------------------------------------------------------------------- */

static int64_t rows_of_inputs(const ranks_stepper *s, trek_var *const *inputs)
{
    for (int k = 0; k < s->n_inputs; k++)
        if (inputs[k]->data->ndim > 0 && !s->replicated[k])
            return inputs[k]->data->sizes[0];
    return 0;
}

/* Layers may make sums with the other processes while fn runs. */
typedef trek_status (*alone_fn)(ranks_stepper *s, void *arg);
static trek_status run_alone(ranks_stepper *s, int64_t units, alone_fn fn, void *arg)
{
    trek_rank_sums *sums = trek_ranks_sums(s->ranks);
    trek_stopwatch *watch = &s->watches->of[0];
    trek_rank_sums_set_deadline(sums, trek_ranks_comm(s->ranks, 0)->deadline_ns);
    if (s->comm)
        trek_rank_sums_set_comm(sums, s->comm);
    trek_rank_sums_begin(sums, NULL, s->comm != NULL);
    trek_rank_sums_enter(sums, 0);
    trek_status status = trek_stopwatch_start(watch, trek_ranks_device(s->ranks, 0));
    if (status == TREK_OK)
        status = fn(s, arg);
    if (status == TREK_OK)
        status = trek_stopwatch_stop(watch, units);
    trek_rank_sums_leave(sums, 0, status);
    return status;
}

typedef struct route_call {
    trek_var *const *inputs;
    int n;
    trek_var *y;
} route_call;

static trek_status run_route(ranks_stepper *s, void *arg)
{
    route_call *c = arg;
    c->y = trek_graph_run_route(s->base.graph, c->inputs, c->n);
    return c->y ? TREK_OK : trek_status_get();
}

trek_var *trek_ranks_forward_alone(ranks_stepper *s, trek_var *const *inputs, int n)
{
    route_call c = { inputs, n, NULL };
    int64_t start = trek_trace_enter("forward"), rows = rows_of_inputs(s, inputs);
    trek_place before = trek_place_here;
    trek_ranks_note_flags(s);
    trek_ranks_place_of(s, rows, &trek_place_here.first_sample, &trek_place_here.global_rows);
    trek_place_here.rows = rows;
    trek_status status = run_alone(s, s->training[0] ? rows : 0, run_route, &c);
    trek_place_here.first_sample = before.first_sample;
    trek_place_here.rows = before.rows;
    trek_place_here.global_rows = before.global_rows;
    s->forward_rows = rows;
    if (status == TREK_OK && s->training[0])
        s->replicas[0].samples += rows;
    trek_trace_end("forward", start, rows);
    return status == TREK_OK ? c.y : NULL;
}

/* --- backward --------------------------------------------------------------------------- */

/* What the loss is the mean of: stated, reported by the loss, else the rows of the last forward. */
static double weight_of(const ranks_stepper *s, trek_var *loss, double stated)
{
    if (stated >= 0)
        return stated;
    double weight = trek_loss_weight(loss);
    if (!isnan(weight))
        return weight;
    return s->forward_rows >= 0 ? (double)s->forward_rows : 1;
}

static trek_status run_backward(ranks_stepper *s, void *arg)
{
    trek_var **pair = arg; /* loss and seed */
    trek_backward_watch watch = { .leaves = s->replicas[0].params, .n_leaves = s->replicas[0].n_params, .only_these = true };
    if (s->sending) {
        watch.complete = trek_overlap_complete;
        watch.arg = s;
    }
    return trek_backward_watched(&pair[0], &pair[1], 1, NULL, &watch);
}

static trek_status backward_with_seed(ranks_stepper *s, trek_var *loss, double factor)
{
    trek_var *seed;
    trek_status status = trek_graph_scale_loss(s->base.graph, &loss, &seed);
    if (status != TREK_OK)
        return status;
    if (factor != 1) {
        trek_no_grad_begin();
        trek_tensor *one = seed ? NULL : trek_tensor_full(1, trek_var_shape(loss), trek_var_dtype(loss), trek_var_device(loss));
        seed = seed ? trek_cast(seed, trek_var_dtype(loss)) : one ? trek_var_from(one) : NULL;
        seed = trek_mul_scalar(seed, factor);
        trek_no_grad_end();
        if (!seed)
            return trek_status_get();
    }
    trek_var *pair[2] = { loss, seed };
    return s->world == 1 ? run_alone(s, 0, run_backward, pair) : run_backward(s, pair);
}

/* The caller's tape first; where it meets a split forward, the ranks go on. The process is one
 * contributor: alone, its pass is its gradient, whatever its weight, unless that is 0. */
trek_status trek_ranks_backward(trek_stepper *stepper, trek_var *loss, double weight)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    trek_status status = trek_status_get();
    trek_rounds_say(s, "backward", true);
    if (status == TREK_OK && trek_var_numel(loss) != 1) {
        char text[TREK_SHAPE_TEXT];
        status = trek_fail(TREK_ERR_SHAPE, "trek_graph_backward: the loss must be a scalar, not %s",
                           trek_shape_text(trek_var_shape(loss), text));
    }
    double own = status == TREK_OK && (s->comm || weight == 0) ? weight_of(s, loss, weight) : 1, total = own;
    if (status == TREK_OK)
        status = trek_overlap_keep(s);
    if (status == TREK_OK)
        status = trek_ranks_settle(s);
    if (status != TREK_OK) {
        trek_rounds_failed(s, status);
        return status;
    }
    bool overlap = false;
    status = trek_rounds_pass(s, own, &total, &overlap);
    if (status != TREK_OK)
        return status;
    bool skips = own == 0 && (total > 0 || weight == 0) && !(s->comm && trek_ranks_sync(s));
    trek_overlap_begin(s, overlap);
    if (!skips) /* nothing counts anywhere: zeros, as on one device */
        status = backward_with_seed(s, loss, total > 0 ? own / total : weight == 0 ? 0 : 1);
    s->passes += !skips;
    trek_status sent = trek_overlap_end(s);
    return status == TREK_OK ? sent : status;
}

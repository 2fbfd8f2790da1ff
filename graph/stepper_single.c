/* SPDX-License-Identifier: Apache-2.0 */
/* The default stepper: one device, the calling thread, nothing between. */
#include "autograd/var_internal.h"
#include "graph/feed_internal.h"
#include "graph/graph_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/place.h"
#include "tensor/trace.h"

#include <math.h>

typedef struct single {
    trek_stepper base;
    trek_params *params;
    trek_var **leaves;        /* those of params, borrowed */
    int n_leaves;
    trek_arena *arena;        /* made with the first optimizer */
    trek_optimizer *optimizer;
    trek_schedule schedule;   /* kind NONE: none */
    double max_norm, max_value; /* <= 0: off */
    int64_t steps;
} single;

static void free_single(trek_stepper *stepper)
{
    single *s = (single *)stepper;
    trek_optimizer_free(&s->optimizer);
    trek_arena_free(&s->arena);
    trek_params_free(&s->params);
    trek_free(s->leaves);
    trek_free(s);
}

static trek_var *forward(trek_stepper *stepper, trek_var *const *inputs, int n)
{
    int64_t start = trek_trace_enter("forward");
    trek_var *y = trek_graph_run_route(stepper->graph, inputs, n);
    if (start)
        trek_trace_end("forward", start, 0);
    return y;
}

/* One contributor: whatever its weight, unless it is 0, the pass is its gradient. */
static trek_status backward(trek_stepper *stepper, trek_var *loss, double weight)
{
    single *s = (single *)stepper;
    if (trek_var_numel(loss) != 1) {
        char text[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_SHAPE, "trek_graph_backward: the loss must be a scalar, not %s",
                         trek_shape_text(trek_var_shape(loss), text));
    }
    if (weight == 0)
        return TREK_OK;
    int64_t start = trek_trace_enter("backward");
    trek_backward_watch watch = { .leaves = s->leaves, .n_leaves = s->n_leaves, .only_these = true };
    trek_var *seed;
    trek_status status = trek_graph_scale_loss(stepper->graph, &loss, &seed);
    if (status == TREK_OK)
        status = trek_backward_watched(&loss, &seed, 1, NULL, &watch);
    if (start)
        trek_trace_end("backward", start, 0);
    return status;
}

static trek_var *pass(trek_stepper *stepper, const struct trek_batch *batch)
{
    single *s = (single *)stepper;
    trek_pass_sum sum = { 0 };
    trek_batch_run run = { .feed = stepper->graph->feed, .scaler = stepper->graph->scaler, .leaves = s->leaves, .n_leaves = s->n_leaves,
                           .backward = trek_graph_learns(stepper->graph) };
    trek_status status = trek_graph_run_batch(stepper->graph, batch, &run, &sum);
    if (status == TREK_OK)
        return trek_pass_mean(&sum, 1, trek_var_device(batch->vars[0]));
    trek_pass_sum_clear(&sum);
    return NULL;
}

static trek_status reduce(trek_stepper *stepper)
{
    (void)stepper;
    return trek_status_get();
}

static trek_step_opts step_opts(const single *s)
{
    return (trek_step_opts){ .max_norm = s->max_norm, .max_value = s->max_value, .scaler = s->base.graph->scaler, .adapt = true,
                             .zero_grad = true };
}

static trek_status set_scheduled_lr(single *s)
{
    if (s->schedule.kind == TREK_SCHEDULE_NONE)
        return TREK_OK;
    double lr = trek_schedule_lr(&s->schedule, s->steps);
    return isnan(lr) ? trek_status_get() : trek_optimizer_schedule_lr(s->optimizer, lr);
}

/* All that can fail comes before the optimizer's pass, which is the commit point. */
static trek_status update(single *s)
{
    if (set_scheduled_lr(s) != TREK_OK || trek_graph_detach(s->base.graph) != TREK_OK)
        return trek_status_get();
    trek_step_opts opts = step_opts(s);
    return trek_optimizer_step_with(s->optimizer, &opts);
}

static void count_step(single *s)
{
    s->steps++;
    trek_place_here.rng_step++;
    trek_place_here.rng_draw = 0;
}

static trek_status step(trek_stepper *stepper)
{
    single *s = (single *)stepper;
    trek_status status = trek_status_get();
    if (status != TREK_OK)
        return status;
    if (!s->optimizer)
        return trek_fail(TREK_ERR_STATE, "trek_graph_step: the graph has no optimizer; call trek_graph_set_optimizer "
                                         "or trek_trainer_setup first");
    int64_t start = trek_trace_enter("optimizer");
    status = update(s);
    if (start)
        trek_trace_end("optimizer", start, s->steps);
    if (status != TREK_OK)
        return status;
    count_step(s);
    return TREK_OK;
}

static trek_status zero_grad(trek_stepper *stepper)
{
    single *s = (single *)stepper;
    if (s->optimizer)
        return trek_optimizer_zero_grad(s->optimizer);
    trek_status status = trek_status_get();
    for (int k = 0; k < s->n_leaves && status == TREK_OK; k++)
        trek_var_zero_grad(s->leaves[k]);
    return status;
}

static trek_status train(trek_stepper *stepper, bool training)
{
    return trek_module_train(trek_graph_module(stepper->graph), training);
}

static trek_status freeze(trek_stepper *stepper, const char *path, bool frozen)
{
    trek_module *module = trek_graph_at(stepper->graph, path);
    return module ? trek_module_freeze(module, frozen) : trek_status_get();
}

static trek_status parameters_changed(trek_stepper *stepper)
{
    (void)stepper; /* there are no replicas */
    return TREK_OK;
}

/* The arena stays: parameters need not move again. On failure the old optimizer stays. */
static trek_status set_optimizer(trek_stepper *stepper, const trek_optimizer_spec *spec)
{
    single *s = (single *)stepper;
    trek_status status = trek_optimizer_spec_check(spec);
    if (status != TREK_OK)
        return status;
    if (!s->n_leaves)
        return trek_fail(TREK_ERR_ARGUMENT, "trek_graph_set_optimizer: the graph has no parameters");
    if (!s->arena && !(s->arena = trek_arena_new(s->params)))
        return trek_status_get();
    trek_optimizer *optimizer = trek_optimizer_new_over(*spec, s->arena);
    if (!optimizer)
        return trek_status_get();
    trek_optimizer_free(&s->optimizer);
    s->optimizer = optimizer;
    return TREK_OK;
}

static trek_status set_schedule(trek_stepper *stepper, const trek_schedule *schedule)
{
    single *s = (single *)stepper;
    if (schedule && isnan(trek_schedule_lr(schedule, 0)))
        return trek_status_get();
    s->schedule = schedule ? *schedule : (trek_schedule){ .kind = TREK_SCHEDULE_NONE };
    return TREK_OK;
}

static trek_status set_lr(trek_stepper *stepper, double lr)
{
    single *s = (single *)stepper;
    if (!s->optimizer)
        return trek_fail(TREK_ERR_STATE, "trek_graph_set_lr: the graph has no optimizer");
    trek_status status = trek_optimizer_set_lr(s->optimizer, lr);
    if (status == TREK_OK)
        s->schedule.kind = TREK_SCHEDULE_NONE;
    return status;
}

static trek_status set_clip(trek_stepper *stepper, double max_norm, double max_value)
{
    single *s = (single *)stepper;
    s->max_norm = max_norm;
    s->max_value = max_value;
    return TREK_OK;
}

static trek_status replicate_input(trek_stepper *stepper, const char *input)
{
    (void)stepper, (void)input; /* nothing is split */
    return TREK_OK;
}

static int world_size(const trek_stepper *stepper)
{
    (void)stepper;
    return 1;
}

static int shares(const trek_stepper *stepper, double *list, int capacity)
{
    (void)stepper;
    if (capacity > 0)
        list[0] = 1;
    return 1;
}

static double lr(const trek_stepper *stepper)
{
    const single *s = (const single *)stepper;
    return s->optimizer ? trek_optimizer_lr(s->optimizer) : (double)NAN;
}

static int64_t steps(const trek_stepper *stepper) { return ((const single *)stepper)->steps; }
static double grad_norm(const trek_stepper *stepper) { return trek_optimizer_grad_norm(((const single *)stepper)->optimizer); }
static trek_optimizer *optimizer_of(trek_stepper *stepper) { return ((single *)stepper)->optimizer; }

/* --- captured steps ------------------------------------------------------------- */

static uint64_t signature(const trek_stepper *stepper)
{
    const single *s = (const single *)stepper;
    uint64_t plan = 0, key = trek_mix(1, (uint64_t)(uintptr_t)s->optimizer);
    for (int k = 0; k < s->n_leaves; k++) {
        const trek_var *var = s->leaves[k];
        const trek_leaf *leaf = var->leaf;
        key = trek_mix(key, (uint64_t)(uintptr_t)var->data->data ^ (var->requires_grad ? 1 : 0) ^ (leaf && leaf->has_grad ? 2 : 0));
        key = trek_mix(key, leaf && leaf->grad ? (uint64_t)(uintptr_t)leaf->grad->data->data : 0);
    }
    if (!s->optimizer)
        return key;
    key = trek_mix(key, trek_optimizer_update(s->optimizer, &plan) ? plan : 0);
    key = trek_mix(key, (uint64_t)s->optimizer->plans << 1 | s->optimizer->stale);
    key = trek_mix(key, (uint64_t)s->optimizer->n_groups << 1 | (s->max_norm > 0));
    return trek_mix(key, (uint64_t)(uintptr_t)stepper->graph->scaler);
}

static trek_status before_replay(trek_stepper *stepper, bool rate_is_set)
{
    single *s = (single *)stepper;
    if (!rate_is_set && set_scheduled_lr(s) != TREK_OK)
        return trek_status_get();
    trek_status status = trek_arena_refresh_masters(s->arena); /* as prepare would */
    trek_step_opts opts = step_opts(s);
    return status == TREK_OK ? trek_records_before_replay(s->optimizer, &opts) : status;
}

static void after_replay(trek_stepper *stepper)
{
    single *s = (single *)stepper;
    count_step(s);
    trek_records_after_replay(s->optimizer);
}

static void set_steps(trek_stepper *stepper, int64_t count) { ((single *)stepper)->steps = count; }

static const struct trek_stepper_capture single_capture = {
    .signature = signature, .before_replay = before_replay, .after_replay = after_replay, .set_steps = set_steps,
};

static const trek_stepper_class single_class = {
    .name = "single", .free = free_single, .forward = forward, .backward = backward, .reduce = reduce, .step = step,
    .zero_grad = zero_grad, .train = train, .freeze = freeze, .parameters_changed = parameters_changed,
    .set_optimizer = set_optimizer, .set_schedule = set_schedule, .set_lr = set_lr, .set_clip = set_clip,
    .replicate_input = replicate_input, .world_size = world_size, .shares = shares, .lr = lr, .steps = steps, .pass = pass,
    .grad_norm = grad_norm, .optimizer = optimizer_of, .capture = &single_capture,
};

trek_stepper *trek_stepper_single_new(trek_graph *graph)
{
    single *s = trek_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->base = (trek_stepper){ &single_class, graph };
    s->params = trek_module_params(&graph->base);
    s->n_leaves = s->params ? trek_params_count(s->params) : 0;
    s->leaves = trek_alloc((size_t)s->n_leaves * sizeof *s->leaves);
    if (!s->params || !s->leaves) {
        free_single(&s->base);
        return NULL;
    }
    for (int k = 0; k < s->n_leaves; k++)
        s->leaves[k] = trek_params_var(s->params, k);
    return &s->base;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The default stepper: one device, on the calling thread. */
#include "autograd/var_internal.h"
#include "graph/graph_internal.h"
#include "graph/batch_run.h"
#include "nn/params.h"
#include "optim/optimizer_internal.h"
#include "optim/schedules.h"
#include "tensor/backend.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

#include <math.h>

typedef struct single {
    trek_stepper base;
    trek_params *params;
    trek_var **leaves;        /* the variables of params, borrowed */
    int n_leaves;
    trek_arena *arena;        /* made with the first optimizer */
    trek_optimizer *optimizer;
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
    if (trek_accumulation_weighs(&stepper->graph->accumulation) && n == stepper->graph->layout.n_inputs && inputs)
        stepper->graph->accumulation.rows = trek_graph_input_rows(stepper->graph, inputs, n);
    trek_graph_forget_nested_tags(stepper->graph);
    uint64_t rng_draw = trek_rank_here.rng_draw;
    trek_var *y = trek_graph_run_route(stepper->graph, inputs, n);
    if (!y)
        trek_rank_here.rng_draw = rng_draw; /* when it is made again, it draws the same numbers */
    bool counts = y && trek_trace_counts();
    int64_t rows = counts || start ? trek_graph_input_rows(stepper->graph, inputs, n) : 0;
    if (start)
        trek_trace_end("forward", start, y ? rows : 0);
    if (counts)
        trek_trace_samples(rows);
    return y;
}

/* There is one contributor: its pass is the gradient whatever its weight, unless that was stated to be 0 or passes
 * are weighed. */
static trek_status backward(trek_stepper *stepper, trek_var *loss, double weight)
{
    single *s = (single *)stepper;
    trek_accumulation *sum = &stepper->graph->accumulation;
    if (trek_var_numel(loss) != 1) {
        char text[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_SHAPE, "graph_backward: loss: %s; must be a scalar",
                         trek_shape_format(trek_var_shape(loss), text, sizeof text));
    }
    bool weighs = trek_accumulation_weighs(sum);
    if (weighs && isnan(weight = trek_graph_loss_weight(stepper->graph, loss, weight)))
        return trek_error_status();
    int64_t start = trek_trace_enter("backward");
    trek_backward_watch watch = { .leaves = s->leaves, .n_leaves = s->n_leaves, .only_these = true, .zeros = weight == 0 };
    trek_var *seed;
    double factor = weight == 0 ? 0 : weighs ? weight / trek_accumulation_denominator(sum, weight) : 1;
    trek_status status = trek_graph_seed(stepper->graph->scaler, factor, &loss, &seed);
    if (status == TREK_OK)
        status = trek_backward_watched(&loss, &seed, 1, NULL, &watch);
    if (weighs && status == TREK_OK)
        sum->weight += weight;
    if (start)
        trek_trace_end("backward", start, 0);
    return status;
}

static trek_status grad(trek_stepper *stepper, trek_var *loss, trek_var *const *inputs, int n, const trek_backward_opts *opts,
                        trek_var **grads)
{
    (void)stepper;
    return trek_grad(&loss, 1, inputs, n, NULL, opts, grads);
}

static trek_var *train_batch(trek_stepper *stepper, const struct trek_batch *batch)
{
    single *s = (single *)stepper;
    trek_pass_sum sum = { 0 };
    trek_accumulation *passes = &stepper->graph->accumulation;
    bool learns = trek_graph_learns(stepper->graph), weighs = learns && trek_accumulation_weighs(passes);
    trek_batch_run run = { .graph_loader = stepper->graph->graph_loader, .scaler = stepper->graph->scaler, .leaves = s->leaves,
                           .n_leaves = s->n_leaves,
                           .denominator = weighs ? trek_accumulation_denominator(passes, (double)batch->n) : 0,
                           .backward = learns };
    uint64_t rng_draw = trek_rank_here.rng_draw;
    trek_status status = trek_graph_run_batch(stepper->graph, batch, &run, &sum);
    if (status != TREK_OK)
        trek_rank_here.rng_draw = rng_draw; /* when it is made again, it draws the same numbers */
    if (weighs && status == TREK_OK)
        passes->weight += sum.weight;
    if (status == TREK_OK)
        return trek_pass_mean(&sum, 1, trek_var_device(batch->vars[0]));
    trek_pass_sum_clear(&sum);
    return NULL;
}

static trek_status reduce(trek_stepper *stepper)
{
    single *s = (single *)stepper;
    trek_accumulation *sum = &stepper->graph->accumulation;
    double factor = trek_accumulation_factor(sum);
    trek_status status = trek_error_status();
    if (status == TREK_OK && factor != 1)
        status = trek_grads_scale(s->params, factor);
    if (status == TREK_OK)
        trek_accumulation_settled(sum);
    return status;
}

static trek_step_opts step_opts(const single *s)
{
    const trek_graph *graph = s->base.graph;
    return (trek_step_opts){ .max_norm = graph->settings.max_norm, .max_value = graph->settings.max_value,
                             .factor = trek_accumulation_factor(&graph->accumulation), .scaler = graph->scaler, .adapt = true,
                             .zero_grad = true };
}

static trek_status set_scheduled_lr(single *s)
{
    const trek_graph_settings *settings = &s->base.graph->settings;
    if (settings->schedule.kind == TREK_SCHEDULE_KIND_NONE)
        return TREK_OK;
    double lr = trek_schedule_lr(&settings->schedule, settings->steps);
    return isnan(lr) ? trek_error_status() : trek_optimizer_schedule_lr(s->optimizer, lr);
}

/* Everything that can fail comes before the optimizer's pass, which is the commit point. */
static trek_status update(single *s)
{
    if (set_scheduled_lr(s) != TREK_OK ||
        (trek_graph_keeps(s->base.graph) && trek_graph_detach(s->base.graph) != TREK_OK))
        return trek_error_status();
    trek_step_opts opts = step_opts(s);
    return trek_optimizer_step_with(s->optimizer, &opts);
}

static void count_step(single *s)
{
    s->base.graph->settings.steps++;
    trek_rank_here.rng_step++;
    trek_rank_here.rng_draw = 0;
}

static trek_status step(trek_stepper *stepper)
{
    single *s = (single *)stepper;
    trek_status status = trek_error_status();
    if (status != TREK_OK)
        return status;
    if (!s->optimizer)
        return trek_fail(TREK_ERR_STATE,
                         "graph_step: the graph has no optimizer; call trek_graph_set_optimizer or trek_trainer_setup first");
    int64_t start = trek_trace_enter("optimizer");
    status = update(s);
    if (start)
        trek_trace_end("optimizer", start, stepper->graph->settings.steps);
    if (status != TREK_OK)
        return status;
    trek_accumulation_clear(&stepper->graph->accumulation);
    count_step(s);
    return TREK_OK;
}

static trek_status zero_grad(trek_stepper *stepper)
{
    single *s = (single *)stepper;
    trek_status status = s->optimizer ? trek_optimizer_zero_grad(s->optimizer) : trek_error_status();
    for (int k = 0; !s->optimizer && k < s->n_leaves && status == TREK_OK; k++)
        trek_var_zero_grad(s->leaves[k]);
    if (status == TREK_OK)
        trek_accumulation_clear(&stepper->graph->accumulation);
    return status;
}

static trek_status parameters_changed(trek_stepper *stepper)
{
    return trek_constants_move(stepper->graph); /* there are no replicas */
}

/* The arena stays: parameters need not move again. On failure the old optimizer stays. */
static trek_status set_optimizer(trek_stepper *stepper, const trek_optimizer_source *source)
{
    single *s = (single *)stepper;
    if (!s->n_leaves)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_optimizer: graph: it has no parameters; an optimizer needs some");
    if (!s->arena && !(s->arena = trek_arena_new(s->params)))
        return trek_error_status();
    trek_optimizer *optimizer = trek_optimizer_make(source, s->arena);
    if (!optimizer)
        return trek_error_status();
    trek_optimizer_free(&s->optimizer);
    s->optimizer = optimizer;
    return TREK_OK;
}

static trek_status set_lr(trek_stepper *stepper, double lr)
{
    single *s = (single *)stepper;
    if (!s->optimizer)
        return trek_fail(TREK_ERR_STATE, "graph_set_lr: the graph has no optimizer; call trek_graph_set_optimizer first");
    return trek_optimizer_set_lr(s->optimizer, lr);
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

static double grad_norm(const trek_stepper *stepper) { return trek_optimizer_grad_norm(((const single *)stepper)->optimizer); }
static trek_optimizer *optimizer_of(trek_stepper *stepper) { return ((single *)stepper)->optimizer; }

/* --- captured steps ------------------------------------------------------------- */

uint64_t trek_step_signature(const trek_graph *graph, trek_var *const *leaves, int n_leaves, const trek_optimizer *optimizer)
{
    uint64_t plan = 0, key = trek_mix(1, (uint64_t)(uintptr_t)optimizer);
    for (int k = 0; k < n_leaves; k++) {
        const trek_var *var = leaves[k];
        const trek_leaf *leaf = var->leaf;
        key = trek_mix(key, (uint64_t)(uintptr_t)var->data->data ^ (var->requires_grad ? 1 : 0) ^ (leaf &&
                                                                                                   leaf->has_grad ? 2 : 0));
        key = trek_mix(key, leaf && leaf->grad ? (uint64_t)(uintptr_t)leaf->grad->data->data : 0);
    }
    for (int k = 0; k < graph->constants.n; k++)
        key = trek_mix(key, graph->constants.list[k]->serial);
    if (!optimizer)
        return key;
    key = trek_mix(key, trek_optimizer_update(optimizer, &plan) ? plan : 0);
    key = trek_mix(key, (uint64_t)optimizer->plans << 1 | optimizer->stale);
    return trek_mix(key, (uint64_t)optimizer->n_groups);
}

static uint64_t signature(const trek_stepper *stepper)
{
    const single *s = (const single *)stepper;
    uint64_t key = trek_step_signature(stepper->graph, s->leaves, s->n_leaves, s->optimizer);
    key = trek_mix(key, stepper->graph->settings.max_norm > 0);
    return trek_mix(key, (uint64_t)(uintptr_t)stepper->graph->scaler);
}

typedef struct single_recording {
    trek_captured_step base;
    const trek_backend *backend;
    trek_capture *capture;
} single_recording;

static trek_status replay(trek_captured_step *recording, uint64_t rng_step)
{
    const single_recording *r = (const single_recording *)recording;
    return r->backend->capture_replay(r->capture, rng_step);
}

static void free_recording(trek_captured_step *recording)
{
    single_recording *r = (single_recording *)recording;
    r->backend->capture_free(r->capture);
    trek_free(r);
}

static trek_status begin_recording(trek_stepper *stepper, trek_device device)
{
    (void)stepper;
    return trek_backends[device.type]->capture_begin(device);
}

static trek_status end_recording(trek_stepper *stepper, trek_device device, trek_captured_step **result)
{
    (void)stepper;
    const trek_backend *backend = trek_backends[device.type];
    single_recording *r = result ? trek_calloc(1, sizeof *r) : NULL;
    trek_status status = result && !r ? trek_error_status() : TREK_OK;
    trek_status ended = backend->capture_end(device, r ? &r->capture : NULL);
    status = status == TREK_OK ? ended : status;
    if (status != TREK_OK) {
        trek_free(r);
        return status;
    }
    if (r) {
        r->base = (trek_captured_step){ replay, free_recording };
        r->backend = backend;
        *result = &r->base;
    }
    return TREK_OK;
}

static trek_status before_replay(trek_stepper *stepper, bool rate_is_set)
{
    single *s = (single *)stepper;
    if (!rate_is_set && set_scheduled_lr(s) != TREK_OK)
        return trek_error_status();
    trek_status status = trek_arena_refresh_masters(s->arena); /* as prepare would do */
    trek_step_opts opts = step_opts(s);
    return status == TREK_OK ? trek_device_update_before_replay(s->optimizer, &opts) : status;
}

static void after_replay(trek_stepper *stepper)
{
    single *s = (single *)stepper;
    count_step(s);
    trek_device_update_after_replay(s->optimizer);
}

static const struct trek_stepper_capture single_capture = {
    .signature = signature, .begin = begin_recording, .end = end_recording, .before_replay = before_replay,
    .after_replay = after_replay,
};

static const trek_stepper_class single_class = {
    .name = "single", .free = free_single, .forward = forward, .backward = backward, .grad = grad,
    .reduce = reduce, .step = step,
    .zero_grad = zero_grad, .parameters_changed = parameters_changed,
    .set_optimizer = set_optimizer, .set_lr = set_lr, .world_size = world_size, .shares = shares, .lr = lr,
    .train_batch = train_batch,
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/capture_runs.h"

#include <stdio.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "nn/module_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/random_internal.h"
#include "tensor/trace.h"

void trek_captures_give_up(struct trek_captures *c, const char *reason)
{
    snprintf(c->problem, sizeof c->problem, "%s", reason);
    if (trek_backends[c->device.type]->capture_begin && !c->stepper) /* of parts, the caller says so */
        trek_log_message(TREK_LOG_LEVEL_WARNING, "graph_capture: the step is not recorded but run call by call: %s", c->problem);
}

uint64_t trek_captures_signature(trek_graph *graph, const struct trek_captures *c)
{
    const trek_stepper *stepper = trek_captures_stepper(graph, c);
    uint64_t key = stepper->klass->capture->signature(stepper);
    key = trek_mix(key, (uint64_t)(uintptr_t)stepper);
    for (int k = 0; k < c->n_modules; k++)
        key = trek_mix(key, c->modules[k]->own->training);
    key = trek_mix(key, trek_rng_seed());
    key = trek_mix(key, (uint64_t)trek_grad_mode_here.autocast << 8 | graph->autocast);
    return trek_mix(key, (uint64_t)trek_grad_mode_here.no_grad_depth << 2 | trek_matmul_precision_get());
}

/* --- runs -------------------------------------------------------------------------------- */

trek_status trek_captures_call(trek_graph *graph, struct trek_captures *c, trek_capture_record *r)
{
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return trek_error_status();
    c->present = r;
    trek_status status = r->fn(graph, r->arg);
    c->present = NULL;
    trek_status sticky = trek_error_status();
    if (status != TREK_OK && sticky == TREK_OK)
        trek_fail(status, "graph_capture: step function: returned %s; must return TREK_OK", trek_status_name(status));
    trek_scope_end(scope);
    return status != TREK_OK ? status : sticky;
}

void trek_captures_show_outputs(struct trek_captures *c, trek_capture_record *r)
{
    for (int k = 0; k < TREK_CAPTURE_VALUES; k++) {
        if (c->outputs[k] == r->outputs[k])
            continue;
        trek_var_release(c->outputs[k]);
        c->outputs[k] = r->outputs[k] ? trek_var_retain(r->outputs[k]) : NULL;
    }
}

trek_status trek_captures_run_plainly(trek_graph *graph, struct trek_captures *c, trek_capture_record *r)
{
    bool watching = !c->problem[0];
    trek_captures_free_values(r->outputs);
    if (watching)
        trek_touch_begin(&r->touched, trek_captures_stepper(graph, c), c->device);
    trek_status status = trek_captures_call(graph, c, r);
    trek_touch_end();
    if (watching && status == TREK_OK && r->touched.problem)
        trek_captures_give_up(c, r->touched.problem);
    if (r->runs_left > 0 && status == TREK_OK)
        r->runs_left--;
    if (watching && !r->recording)
        r->signature = trek_captures_signature(graph, c);
    trek_captures_show_outputs(c, r);
    return status;
}

/* The host's state before a run that is recorded. */
typedef struct host_side {
    int64_t steps;
    uint64_t rng_step, rng_draw, captured_steps;
} host_side;

static host_side note_host_side(trek_graph *graph, struct trek_captures *c)
{
    for (int k = 0; k < trek_params_count(c->params); k++) {
        const trek_leaf *leaf = trek_params_var(c->params, k)->leaf;
        c->had_grad[k] = leaf && leaf->has_grad;
    }
    return (host_side){ .steps = trek_graph_steps(graph), .rng_step = trek_rank_here.rng_step,
                        .rng_draw = trek_rank_here.rng_draw,
                        .captured_steps = trek_device_update_captured };
}

/* Restores the host's state: gradients that were recorded have not been computed. */
static void put_host_side_back(trek_graph *graph, const struct trek_captures *c, const host_side *before)
{
    graph->settings.steps = before->steps;
    trek_rank_here.rng_step = before->rng_step;
    trek_rank_here.rng_draw = before->rng_draw;
    for (int k = 0; k < trek_params_count(c->params); k++) {
        trek_var *param = trek_params_var(c->params, k);
        if (param->leaf && param->leaf->grad_in_arena)
            param->leaf->has_grad = c->had_grad[k];
        else if (param->leaf && !c->had_grad[k])
            trek_var_zero_grad(param);
    }
    if (trek_captures_table(graph, c)->put_back)
        trek_captures_table(graph, c)->put_back(trek_captures_stepper(graph, c));
}

static trek_status keep_tags(trek_graph *graph, void *arg)
{
    trek_capture_record *r = arg;
    for (int k = 0; k < trek_graph_tag_count(graph); k++) {
        trek_var *value = trek_graph_tag_value(graph, k);
        if (!value)
            continue;
        trek_status status = trek_array_grow(&r->tags, &r->cap_tags, r->n_tags + 1, sizeof *r->tags);
        if (status != TREK_OK)
            return status;
        r->tags[r->n_tags++] = (trek_captured_tag){ graph, k, trek_var_retain(value) };
    }
    return TREK_OK;
}

/* Returns what is wrong with a run that was recorded without an error, or NULL. */
static const char *mistake(trek_graph *graph, const trek_capture_record *r, const trek_touch_list *earlier,
                           const host_side *before)
{
    int64_t steps = trek_graph_steps(graph) - before->steps;
    if (r->touched.problem)
        return r->touched.problem;
    if (r->touched.failed || earlier->failed)
        return "out of memory";
    if (steps < 0 || steps > 1)
        return "the function steps the graph more than once";
    if (trek_device_update_captured - before->captured_steps != (uint64_t)steps)
        return "the function steps another optimizer, too";
    if (!trek_touch_within(&r->touched, earlier))
        return "the function uses a tensor that did not exist in the call before; what changes from call to call is given by "
               "trek_graph_capture_input";
    return NULL;
}

/* Runs the function and records its work. If it fails, an error is set and r->recording is NULL. */
static trek_status record_run(trek_graph *graph, struct trek_captures *c, trek_capture_record *r, const host_side *before)
{
    trek_stepper *stepper = trek_captures_stepper(graph, c);
    trek_touch_list earlier = r->touched;
    r->touched = (trek_touch_list){ .n = 0 };
    trek_captures_free_values(r->outputs);
    trek_status status = stepper->klass->capture->begin(stepper, c->device);
    if (status == TREK_OK) {
        trek_touch_begin(&r->touched, stepper, c->device);
        status = trek_captures_call(graph, c, r);
        trek_touch_end();
        const char *reason = status == TREK_OK ? mistake(graph, r, &earlier, before) : NULL;
        if (reason)
            status = trek_fail(TREK_ERR_UNSUPPORTED, "graph_capture: %s", reason);
        trek_status ended = stepper->klass->capture->end(stepper, c->device, status == TREK_OK ? &r->recording : NULL);
        status = status == TREK_OK ? ended : status;
    }
    trek_touch_clear(&earlier);
    if (status == TREK_OK)
        status = trek_graph_each(graph, keep_tags, r);
    return status;
}

/* Records. Later replays find the device as this run leaves it. */
trek_status trek_captures_record(trek_graph *graph, struct trek_captures *c, trek_capture_record *r)
{
    host_side before = note_host_side(graph, c);
    uint64_t signature = trek_captures_signature(graph, c);
    trek_status status = record_run(graph, c, r, &before);
    r->number = 1;
    const struct trek_stepper_capture *capture = trek_captures_table(graph, c);
    if (capture->settle)
        status = capture->settle(trek_captures_stepper(graph, c), status, &r->number);
    if (status != TREK_OK) {
        char message[TREK_ERROR_SIZE];
        trek_error_take(&status, message);
        trek_capture_record_drop(r);
        put_host_side_back(graph, c, &before);
        trek_captures_give_up(c, message[0] ? message : trek_status_description(status));
        return trek_captures_run_plainly(graph, c, r);
    }
    r->signature = signature;
    r->steps = trek_graph_steps(graph) - before.steps;
    r->first_draw = before.rng_draw;
    r->last_draw = trek_rank_here.rng_draw;
    r->thread = pthread_self();
    if (r->steps)
        status = capture->before_replay(trek_captures_stepper(graph, c), true);
    if (status == TREK_OK)
        status = r->recording->replay(r->recording, before.rng_step);
    trek_captures_show_outputs(c, r);
    return status;
}

trek_status trek_captures_replay(trek_graph *graph, struct trek_captures *c, trek_capture_record *r)
{
    int64_t start = trek_trace_enter("replay");
    const struct trek_stepper_capture *capture = trek_captures_table(graph, c);
    trek_status status = r->steps ? capture->before_replay(trek_captures_stepper(graph, c), false) : TREK_OK;
    if (status == TREK_OK)
        status = r->recording->replay(r->recording, trek_rank_here.rng_step);
    if (status != TREK_OK)
        return status;
    if (r->steps)
        capture->after_replay(trek_captures_stepper(graph, c));
    trek_rank_here.rng_draw = r->last_draw;
    trek_touch_bump(&r->touched);
    for (int k = 0; k < r->n_tags; k++)
        if (trek_graph_tag_value(r->tags[k].graph, r->tags[k].tag) != r->tags[k].value)
            trek_graph_put_tag(r->tags[k].graph, r->tags[k].tag, r->tags[k].value);
    trek_captures_show_outputs(c, r);
    c->replays++;
    if (start)
        trek_trace_end("replay", start, trek_graph_steps(graph));
    return TREK_OK;
}

/* Makes an ordinary run between replays. The record stays as it is, with its results and what it retains. */
trek_status trek_captures_run_beside(trek_graph *graph, struct trek_captures *c, trek_capture_record *r)
{
    trek_touch_list held = r->touched;
    trek_var *outputs[TREK_CAPTURE_VALUES];
    memcpy(outputs, r->outputs, sizeof outputs);
    memset(r->outputs, 0, sizeof r->outputs);
    r->touched = (trek_touch_list){ .n = 0 };
    trek_status status = trek_captures_run_plainly(graph, c, r);
    trek_touch_clear(&r->touched);
    trek_captures_free_values(r->outputs);
    memcpy(r->outputs, outputs, sizeof outputs);
    r->touched = held;
    return status;
}

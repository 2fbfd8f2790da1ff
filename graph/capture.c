/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps: a few ordinary runs, one that is recorded, then replays.
 *
 * A record is valid as long as its signature: the addresses, modes and switches that the recorded work depends on,
 * which are compared before each replay. What the recorded run used from outside is retained, so that its memory
 * stays valid. The recorded run changes the host's state (counts, versions) as any run does, but its device work is
 * only done by the first replay. If recording fails, the host's state is restored and the function is called once
 * more. */
#include "graph/capture.h"
#include "nn/module_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "graph/capture_internal.h"
#include "nn/module_tree.h"
#include "nn/params.h"
#include "optim/optimizer_internal.h"
#include "tensor/backend.h"
#include "tensor/random_internal.h"
#include "tensor/trace.h"

enum { MAX_VALUES = 64, MAX_RECORDS = TREK_MOST_RECORDS, FIRST_RUNS = 3, LATER_RUNS = 1 };

typedef struct tag_value {
    trek_graph *graph;
    int tag;
    trek_var *value;           /* retained */
} tag_value;

typedef struct record {
    trek_step_fn fn;
    void *arg;
    uint64_t team;             /* digest of the inputs of all processes, including these */
    int64_t number;            /* of its recording, in all processes; >= 1 */
    trek_var *inputs[MAX_VALUES];  /* its own variables; NULL: not given */
    trek_var *outputs[MAX_VALUES]; /* of the recorded run; after recording they hold each replay's results */
    int runs_left;             /* before it is recorded */
    uint64_t used;             /* when it was last used, counted in calls */
    uint64_t signature;        /* of what is recorded, otherwise after the last run */
    int64_t steps;             /* 0 or 1: calls of step() in the function */
    uint64_t first_draw, last_draw; /* of the random numbers, before and after a run */
    pthread_t thread;
    trek_captured_step *recording; /* NULL: not recorded */
    trek_touch_list touched;
    int n_tags, cap_tags;
    tag_value *tags;
} record;

struct trek_captures {
    trek_stepper *stepper;     /* of parts of a step (capture_internal.h); NULL: the graph's */
    bool in_parts;             /* the function runs, and the stepper records parts of its step */
    trek_device device;
    bool planned;              /* device, params and modules are set */
    trek_params *params;
    int n_modules, cap_modules;
    trek_module **modules;
    bool *had_grad;            /* [parameters] whether there was a gradient before a run that is recorded */
    trek_var *values[MAX_VALUES]; /* as given */
    bool fresh[MAX_VALUES];    /* not copied yet */
    trek_var *outputs[MAX_VALUES]; /* of the last step */
    record *present;           /* the one whose function is running */
    record *last;              /* the one whose inputs hold the values */
    int n_records;
    record *records[MAX_RECORDS];
    uint64_t calls;
    int64_t replays;
    char problem[TREK_ERROR_SIZE]; /* "": none */
};

/* Returns the stepper whose work is recorded. */
static trek_stepper *stepper_of(const trek_graph *graph, const struct trek_captures *c)
{
    return c->stepper ? c->stepper : graph->stepper;
}

static const struct trek_stepper_capture *capture_of(const trek_graph *graph, const struct trek_captures *c)
{
    return stepper_of(graph, c)->klass->capture;
}

static bool has_parts(const trek_graph *graph, const struct trek_captures *c)
{
    const struct trek_stepper_capture *capture = capture_of(graph, c);
    return capture->has_parts && capture->has_parts(stepper_of(graph, c));
}

/* --- made and freed ------------------------------------------------------------- */

/* Drops the recorded work. What the function used remains known. */
static void drop_work(record *r)
{
    if (r->recording)
        r->recording->free(r->recording);
    r->recording = NULL;
    for (int k = 0; k < r->n_tags; k++)
        trek_var_release(r->tags[k].value);
    r->n_tags = 0;
}

static void drop_recording(record *r)
{
    drop_work(r);
    trek_touch_clear(&r->touched);
}

static void free_values(trek_var **values)
{
    for (int k = 0; k < MAX_VALUES; k++) {
        trek_var_release(values[k]);
        values[k] = NULL;
    }
}

static void free_record(record *r)
{
    drop_recording(r);
    free_values(r->inputs);
    free_values(r->outputs);
    trek_free(r->tags);
    trek_free(r);
}

static void clear(struct trek_captures *c)
{
    for (int k = 0; k < c->n_records; k++)
        free_record(c->records[k]);
    c->n_records = 0;
    c->last = NULL;
    free_values(c->values);
    free_values(c->outputs);
    trek_params_free(&c->params);
    trek_free(c->modules);
    trek_free(c->had_grad);
    c->modules = NULL;
    c->had_grad = NULL;
    c->n_modules = c->cap_modules = 0;
    c->planned = false;
    c->problem[0] = 0;
}

/* Drops what the graph's stepper has recorded of parts. */
static void forget_parts(const trek_graph *graph)
{
    trek_stepper *stepper = graph->stepper;
    if (stepper && stepper->klass->capture && stepper->klass->capture->forget_parts)
        stepper->klass->capture->forget_parts(stepper);
}

static void free_captures(trek_graph *graph)
{
    forget_parts(graph);
    clear(graph->captures);
    trek_free(graph->captures);
    graph->captures = NULL;
}

static bool drop_captures(trek_graph *graph)
{
    struct trek_captures *c = graph->captures;
    if (c->present)
        return false;
    forget_parts(graph);
    for (int k = 0; k < c->n_records; k++) {
        drop_recording(c->records[k]);
        c->records[k]->runs_left = FIRST_RUNS;
    }
    return true;
}

static const trek_captures_class captures_class = { free_captures, drop_captures };

static struct trek_captures *captures_of(trek_graph *graph, const char *function)
{
    if (!graph) {
        trek_fail_missing(function, "graph");
        return NULL;
    }
    if (!graph->captures)
        graph->captures = trek_calloc(1, sizeof *graph->captures);
    graph->captures_class = &captures_class;
    return graph->captures;
}

struct trek_captures *trek_captures_new(trek_stepper *stepper)
{
    struct trek_captures *c = trek_calloc(1, sizeof *c);
    if (c)
        c->stepper = stepper;
    return c;
}

void trek_captures_free(struct trek_captures **captures)
{
    if (*captures)
        clear(*captures);
    trek_free(*captures);
    *captures = NULL;
}

bool trek_graph_is_in_parts(const trek_graph *graph) { return graph->captures && graph->captures->in_parts; }

static trek_status add_module(const char *name, trek_module *module, void *arg)
{
    (void)name;
    struct trek_captures *c = arg;
    trek_status status = trek_array_grow(&c->modules, &c->cap_modules, c->n_modules + 1, sizeof *c->modules);
    if (status == TREK_OK)
        c->modules[c->n_modules++] = module;
    return status;
}

/* Collects what the signature is made of, and the graph's device. */
static trek_status plan(trek_graph *graph, struct trek_captures *c)
{
    c->n_modules = 0;
    trek_params_free(&c->params);
    c->params = trek_module_params(&graph->base);
    if (!c->params || trek_module_each(&graph->base, add_module, c) != TREK_OK)
        return trek_error_status();
    int n = trek_params_count(c->params);
    trek_free(c->had_grad);
    c->had_grad = trek_calloc((size_t)n + 1, sizeof *c->had_grad);
    if (!c->had_grad)
        return trek_error_status();
    c->device = n > 0 ? trek_params_var(c->params, 0)->data->device : trek_cpu(0);
    for (int k = 0; n == 0 && k < MAX_VALUES; k++)
        if (c->values[k]) {
            c->device = c->values[k]->data->device;
            break;
        }
    c->planned = true;
    return TREK_OK;
}

/* --- whether and why not ------------------------------------------------------------ */

static trek_status count_states(trek_graph *graph, void *arg)
{
    *(int *)arg += graph->layout.n_states;
    return TREK_OK;
}

/* Returns NULL if steps can be recorded, as far as this can be known in advance. */
static const char *obstacle(trek_graph *graph, const struct trek_captures *c)
{
    const trek_backend *backend = trek_backends[c->device.type];
    const struct trek_stepper_capture *capture = capture_of(graph, c);
    if (!c->stepper && !has_parts(graph, c) && trek_accumulation_weighs(&graph->accumulation))
        return ".accumulate weighs the passes of a step, which the host has to know";
    if (!backend->capture_begin)
        return "the device is a CPU";
    int states = 0;
    trek_graph_each(graph, count_states, &states);
    if (states)
        return "the graph carries values from one forward to the next";
    return capture->obstacle ? capture->obstacle(stepper_of(graph, c)) : NULL;
}

static void give_up(struct trek_captures *c, const char *reason)
{
    snprintf(c->problem, sizeof c->problem, "%s", reason);
    if (trek_backends[c->device.type]->capture_begin && !c->stepper) /* of parts, the caller says so */
        trek_log_message(TREK_LOG_LEVEL_WARNING, "graph_capture: the step is not recorded but run call by call: %s", c->problem);
}

static uint64_t signature_of(trek_graph *graph, const struct trek_captures *c)
{
    const trek_stepper *stepper = stepper_of(graph, c);
    uint64_t key = stepper->klass->capture->signature(stepper);
    key = trek_mix(key, (uint64_t)(uintptr_t)stepper);
    for (int k = 0; k < c->n_modules; k++)
        key = trek_mix(key, c->modules[k]->own->training);
    key = trek_mix(key, trek_rng_seed());
    key = trek_mix(key, (uint64_t)trek_grad_mode_here.autocast << 8 | graph->autocast);
    return trek_mix(key, (uint64_t)trek_grad_mode_here.no_grad_depth << 2 | trek_matmul_precision_get());
}

/* --- inputs --------------------------------------------------------------------------- */

static bool fits(const trek_var *own, const trek_var *given)
{
    if (!own || !given)
        return own == given;
    return own->data->dtype == given->data->dtype && trek_same_sizes(own->data, given->data);
}

static bool matches(const record *r, const struct trek_captures *c, trek_step_fn fn, const void *arg)
{
    if (r->fn != fn || r->arg != arg)
        return false;
    for (int k = 0; k < MAX_VALUES; k++)
        if (!fits(r->inputs[k], c->values[k]))
            return false;
    return true;
}

static trek_status make_inputs(record *r, const struct trek_captures *c)
{
    for (int k = 0; k < MAX_VALUES; k++) {
        if (!c->values[k])
            continue;
        const trek_tensor *like = c->values[k]->data;
        trek_tensor *own = trek_tensor_make(like->ndim, like->sizes, (trek_dtype)like->dtype, c->device);
        r->inputs[k] = own ? trek_var_new(own, false) : NULL;
        trek_tensor_release(own);
        if (!r->inputs[k])
            return trek_error_status();
    }
    return TREK_OK;
}

/* Finds the record of this function for values like these, here and in other processes. A new one replaces the record
 * that was not used for the longest time. */
static record *find_record(struct trek_captures *c, trek_step_fn fn, void *arg, uint64_t team)
{
    int oldest = 0;
    for (int k = 0; k < c->n_records; k++) {
        if ((c->problem[0] || c->records[k]->team == team) && matches(c->records[k], c, fn, arg))
            return c->records[k];
        if (c->records[k]->used < c->records[oldest]->used)
            oldest = k;
    }
    record *r = trek_calloc(1, sizeof *r);
    if (!r || make_inputs(r, c) != TREK_OK) {
        if (r)
            free_record(r);
        return NULL;
    }
    r->fn = fn;
    r->arg = arg;
    r->team = team;
    r->runs_left = c->n_records ? LATER_RUNS : FIRST_RUNS;
    if (c->n_records < MAX_RECORDS)
        return c->records[c->n_records++] = r;
    if (c->last == c->records[oldest])
        c->last = NULL;
    free_record(c->records[oldest]);
    return c->records[oldest] = r;
}

static trek_status copy_value(trek_tensor *to, const trek_tensor *from)
{
    if (!from->contiguous)
        return trek_tensor_copy_from(to, from);
    const trek_backend *backend = trek_backends[to->device.type == TREK_CPU ? from->device.type : to->device.type];
    size_t bytes = (size_t)from->numel * trek_item_size[from->dtype];
    trek_status status = bytes ? backend->copy_bytes(to->data, to->device, from->data, from->device, bytes, NULL) : TREK_OK;
    if (status == TREK_OK)
        trek_tensor_bump(to);
    return status;
}

static trek_status bring_inputs(struct trek_captures *c, record *r)
{
    for (int k = 0; k < MAX_VALUES; k++) {
        if (!c->values[k] || (c->last == r && !c->fresh[k]))
            continue;
        trek_status status = copy_value(r->inputs[k]->data, c->values[k]->data);
        if (status != TREK_OK) {
            c->last = NULL;
            return status;
        }
        c->fresh[k] = false;
    }
    c->last = r;
    return TREK_OK;
}

/* --- runs -------------------------------------------------------------------------------- */

static trek_status call_function(trek_graph *graph, struct trek_captures *c, record *r)
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

static void show_outputs(struct trek_captures *c, record *r)
{
    for (int k = 0; k < MAX_VALUES; k++) {
        if (c->outputs[k] == r->outputs[k])
            continue;
        trek_var_release(c->outputs[k]);
        c->outputs[k] = r->outputs[k] ? trek_var_retain(r->outputs[k]) : NULL;
    }
}

static trek_status run_plainly(trek_graph *graph, struct trek_captures *c, record *r)
{
    bool watching = !c->problem[0];
    free_values(r->outputs);
    if (watching)
        trek_touch_begin(&r->touched, stepper_of(graph, c), c->device);
    trek_status status = call_function(graph, c, r);
    trek_touch_end();
    if (watching && status == TREK_OK && r->touched.problem)
        give_up(c, r->touched.problem);
    if (r->runs_left > 0 && status == TREK_OK)
        r->runs_left--;
    if (watching && !r->recording)
        r->signature = signature_of(graph, c);
    show_outputs(c, r);
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
    if (capture_of(graph, c)->put_back)
        capture_of(graph, c)->put_back(stepper_of(graph, c));
}

static trek_status keep_tags(trek_graph *graph, void *arg)
{
    record *r = arg;
    for (int k = 0; k < trek_graph_tag_count(graph); k++) {
        trek_var *value = trek_graph_tag_value(graph, k);
        if (!value)
            continue;
        trek_status status = trek_array_grow(&r->tags, &r->cap_tags, r->n_tags + 1, sizeof *r->tags);
        if (status != TREK_OK)
            return status;
        r->tags[r->n_tags++] = (tag_value){ graph, k, trek_var_retain(value) };
    }
    return TREK_OK;
}

/* Returns what is wrong with a run that was recorded without an error, or NULL. */
static const char *mistake(trek_graph *graph, const record *r, const trek_touch_list *earlier, const host_side *before)
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
static trek_status record_run(trek_graph *graph, struct trek_captures *c, record *r, const host_side *before)
{
    trek_stepper *stepper = stepper_of(graph, c);
    trek_touch_list earlier = r->touched;
    r->touched = (trek_touch_list){ .n = 0 };
    free_values(r->outputs);
    trek_status status = stepper->klass->capture->begin(stepper, c->device);
    if (status == TREK_OK) {
        trek_touch_begin(&r->touched, stepper, c->device);
        status = call_function(graph, c, r);
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
static trek_status record_step(trek_graph *graph, struct trek_captures *c, record *r)
{
    host_side before = note_host_side(graph, c);
    uint64_t signature = signature_of(graph, c);
    trek_status status = record_run(graph, c, r, &before);
    r->number = 1;
    const struct trek_stepper_capture *capture = capture_of(graph, c);
    if (capture->settle)
        status = capture->settle(stepper_of(graph, c), status, &r->number);
    if (status != TREK_OK) {
        char message[TREK_ERROR_SIZE];
        trek_error_take(&status, message);
        drop_recording(r);
        put_host_side_back(graph, c, &before);
        give_up(c, message[0] ? message : trek_status_description(status));
        return run_plainly(graph, c, r);
    }
    r->signature = signature;
    r->steps = trek_graph_steps(graph) - before.steps;
    r->first_draw = before.rng_draw;
    r->last_draw = trek_rank_here.rng_draw;
    r->thread = pthread_self();
    if (r->steps)
        status = capture->before_replay(stepper_of(graph, c), true);
    if (status == TREK_OK)
        status = r->recording->replay(r->recording, before.rng_step);
    show_outputs(c, r);
    return status;
}

static trek_status replay(trek_graph *graph, struct trek_captures *c, record *r)
{
    int64_t start = trek_trace_enter("replay");
    const struct trek_stepper_capture *capture = capture_of(graph, c);
    trek_status status = r->steps ? capture->before_replay(stepper_of(graph, c), false) : TREK_OK;
    if (status == TREK_OK)
        status = r->recording->replay(r->recording, trek_rank_here.rng_step);
    if (status != TREK_OK)
        return status;
    if (r->steps)
        capture->after_replay(stepper_of(graph, c));
    trek_rank_here.rng_draw = r->last_draw;
    trek_touch_bump(&r->touched);
    for (int k = 0; k < r->n_tags; k++)
        if (trek_graph_tag_value(r->tags[k].graph, r->tags[k].tag) != r->tags[k].value)
            trek_graph_put_tag(r->tags[k].graph, r->tags[k].tag, r->tags[k].value);
    show_outputs(c, r);
    c->replays++;
    if (start)
        trek_trace_end("replay", start, trek_graph_steps(graph));
    return TREK_OK;
}

/* Makes an ordinary run between replays. The record stays as it is, with its results and what it retains. */
static trek_status run_beside_record(trek_graph *graph, struct trek_captures *c, record *r)
{
    trek_touch_list held = r->touched;
    trek_var *outputs[MAX_VALUES];
    memcpy(outputs, r->outputs, sizeof outputs);
    memset(r->outputs, 0, sizeof r->outputs);
    r->touched = (trek_touch_list){ .n = 0 };
    trek_status status = run_plainly(graph, c, r);
    trek_touch_clear(&r->touched);
    free_values(r->outputs);
    memcpy(r->outputs, outputs, sizeof outputs);
    r->touched = held;
    return status;
}

/* --- how a step is made ------------------------------------------------------------------ */

/* Inputs of other sizes have another digest. */
static uint64_t digest_of_inputs(const struct trek_captures *c)
{
    uint64_t digest = 1;
    for (int k = 0; k < MAX_VALUES; k++) {
        const trek_tensor *x = c->values[k] ? c->values[k]->data : NULL;
        digest = trek_mix(digest, x ? (uint64_t)x->ndim << 8 | (uint64_t)x->dtype : UINT64_MAX);
        for (int d = 0; x && d < x->ndim; d++)
            digest = trek_mix(digest, (uint64_t)x->sizes[d]);
    }
    return digest;
}

/* Returns what the process wishes for its vote. A record that is no longer valid is dropped here. */
static int64_t wish_of(trek_graph *graph, const struct trek_captures *c, record *r)
{
    if (r->recording && (r->signature != signature_of(graph, c) || !pthread_equal(r->thread, pthread_self()))) {
        drop_recording(r);
        r->runs_left = LATER_RUNS; /* consequences of the change are computed in an ordinary run */
    }
    if (!r->recording && r->runs_left == 0 && r->signature != signature_of(graph, c))
        r->runs_left = LATER_RUNS; /* what the last run has touched says nothing of this one */
    if (!r->recording)
        return r->runs_left > 0 ? -1 : 0;
    /* if this step had drawn other numbers before, its random numbers would differ */
    return trek_rank_here.rng_draw == r->first_draw ? r->number : -1;
}

static trek_status agree(trek_graph *graph, const struct trek_captures *c, trek_step_fn fn, const void *arg,
                         trek_capture_verdict *verdict)
{
    const struct trek_stepper_capture *capture = capture_of(graph, c);
    trek_capture_vote vote = { .inputs = digest_of_inputs(c) };
    for (int k = 0; k < c->n_records; k++)
        if (matches(c->records[k], c, fn, arg))
            vote.wishes[vote.n++] = (trek_capture_wish){ c->records[k]->team, wish_of(graph, c, c->records[k]) };
    if (capture->agree)
        return capture->agree(stepper_of(graph, c), &vote, verdict);
    *verdict = trek_capture_decide(&vote, 1);
    return TREK_OK;
}

/* The stepper records parts of the step, while the function is called. */
static trek_status call_in_parts(trek_graph *graph, struct trek_captures *c, record *r)
{
    const struct trek_stepper_capture *capture = capture_of(graph, c);
    bool replayed = false;
    free_values(r->outputs);
    c->in_parts = true;
    trek_status status = call_function(graph, c, r);
    c->in_parts = false;
    const char *reason = capture->parts(stepper_of(graph, c), &replayed);
    if (reason)
        give_up(c, reason);
    c->replays += status == TREK_OK && replayed;
    show_outputs(c, r);
    return status;
}

static trek_status make_step(trek_graph *graph, struct trek_captures *c, record *r, trek_capture_way way)
{
    if (c->problem[0])
        return run_plainly(graph, c, r);
    if (way == TREK_CAPTURE_REPLAY)
        return replay(graph, c, r);
    if (way == TREK_CAPTURE_CALL)
        return r->recording ? run_beside_record(graph, c, r) : run_plainly(graph, c, r);
    drop_work(r);
    return record_step(graph, c, r);
}

/* Abandons the step; the error is set. */
static trek_status abandon(const trek_graph *graph, const struct trek_captures *c, trek_capture_way way)
{
    trek_stepper *stepper = stepper_of(graph, c);
    trek_status status = trek_error_status();
    if (stepper && stepper->klass->capture->abandon)
        stepper->klass->capture->abandon(stepper, status, way == TREK_CAPTURE_REPLAY);
    return status;
}

trek_status trek_captures_run(trek_graph *graph, struct trek_captures *c, trek_step_fn step, void *arg)
{
    if (!c->planned && plan(graph, c) != TREK_OK)
        return abandon(graph, c, TREK_CAPTURE_CALL);
    const char *reason = c->problem[0] ? NULL : obstacle(graph, c);
    if (reason)
        give_up(c, reason);
    bool parts = !c->problem[0] && has_parts(graph, c);
    trek_capture_verdict verdict = { .way = TREK_CAPTURE_CALL };
    if (!c->problem[0] && !parts && agree(graph, c, step, arg, &verdict) != TREK_OK)
        return trek_error_status();
    if (verdict.why[0])
        give_up(c, verdict.why);
    record *r = find_record(c, step, arg, verdict.team);
    if (!r || bring_inputs(c, r) != TREK_OK)
        return abandon(graph, c, verdict.way);
    r->used = ++c->calls;
    return parts ? call_in_parts(graph, c, r) : make_step(graph, c, r, verdict.way);
}

trek_status trek_graph_capture(trek_graph *graph, trek_step_fn step, void *arg)
{
    struct trek_captures *c = captures_of(graph, "graph_capture");
    if (!c || !step)
        return c ? trek_fail_missing("graph_capture", "step function") : trek_error_status();
    if (c->present) {
        trek_status status = trek_error_status();
        return status != TREK_OK ? status
                                 : trek_fail(TREK_ERR_STATE, "graph_capture: called from inside a step function of the same "
                                                             "graph; call it outside of step functions");
    }
    if (trek_error_status() != TREK_OK || !trek_graph_stepper(graph))
        return abandon(graph, c, TREK_CAPTURE_CALL);
    return trek_captures_run(graph, c, step, arg);
}

/* --- values in and out -------------------------------------------------------------------- */

static trek_status check_number(const char *function, int k)
{
    return k >= 0 && k < MAX_VALUES ? TREK_OK
                                    : trek_fail(TREK_ERR_ARGUMENT, "%s: value: %d; must be 0 to %d", function, k, MAX_VALUES - 1);
}

void trek_captures_give(struct trek_captures *c, int k, trek_var *value)
{
    trek_var_retain(value);
    trek_var_release(c->values[k]);
    c->values[k] = value;
    c->fresh[k] = true;
}

trek_var *trek_captures_input(const struct trek_captures *c, int k) { return c->present->inputs[k]; }
trek_var *trek_captures_output(const struct trek_captures *c, int k) { return c->outputs[k]; }
const char *trek_captures_problem(const struct trek_captures *c) { return c->problem; }
int64_t trek_captures_replays(const struct trek_captures *c) { return c->replays; }

trek_status trek_captures_put(struct trek_captures *c, int k, trek_var *value)
{
    trek_var *detached = trek_var_detach(value);
    if (!detached)
        return trek_error_status();
    trek_var_release(c->present->outputs[k]);
    c->present->outputs[k] = trek_var_retain(detached);
    return TREK_OK;
}

trek_status trek_graph_capture_input(trek_graph *graph, int k, trek_var *value)
{
    struct trek_captures *c = captures_of(graph, "graph_capture_input");
    if (!c || !value)
        return c ? trek_fail_missing("graph_capture_input", "value") : trek_error_status();
    trek_status status = check_number("graph_capture_input", k);
    if (status != TREK_OK)
        return status;
    if (c->present)
        return trek_fail(TREK_ERR_STATE,
                         "graph_capture_input: called from inside the step function; call it before trek_graph_capture");
    trek_captures_give(c, k, value);
    return TREK_OK;
}

trek_var *trek_graph_captured_input(trek_graph *graph, int k)
{
    struct trek_captures *c = captures_of(graph, "graph_captured_input");
    if (!c || check_number("graph_captured_input", k) != TREK_OK)
        return NULL;
    if (!c->present)
        return trek_fail_null(TREK_ERR_STATE,
                              "graph_captured_input: called while no step function is running; only step functions may call it");
    if (!c->present->inputs[k])
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "graph_captured_input: value: %d was not given; trek_graph_capture_input gives it", k);
    return c->present->inputs[k];
}

trek_status trek_graph_capture_output(trek_graph *graph, int k, trek_var *value)
{
    struct trek_captures *c = captures_of(graph, "graph_capture_output");
    if (!c || !value)
        return c ? trek_fail_missing("graph_capture_output", "value") : trek_error_status();
    trek_status status = check_number("graph_capture_output", k);
    if (status != TREK_OK)
        return status;
    if (!c->present)
        return trek_fail(TREK_ERR_STATE,
                         "graph_capture_output: called while no step function is running; only step functions may call it");
    return trek_captures_put(c, k, value);
}

trek_var *trek_graph_captured_output(trek_graph *graph, int k)
{
    struct trek_captures *c = captures_of(graph, "graph_captured_output");
    return c && check_number("graph_captured_output", k) == TREK_OK ? c->outputs[k] : NULL;
}

int64_t trek_graph_replays(const trek_graph *graph)
{
    if (!graph)
        trek_fail_missing("graph_replays", "graph");
    return !graph ? -1 : graph->captures ? graph->captures->replays : 0;
}

const char *trek_graph_capture_problem(const trek_graph *graph)
{
    if (!graph)
        trek_fail_missing("graph_capture_problem", "graph");
    return graph && graph->captures ? graph->captures->problem : "";
}

trek_status trek_graph_capture_reset(trek_graph *graph)
{
    struct trek_captures *c = captures_of(graph, "graph_capture_reset");
    if (!c)
        return trek_error_status();
    if (c->present)
        return trek_fail(TREK_ERR_STATE,
                         "graph_capture_reset: called from inside the step function; call it outside of step functions");
    forget_parts(graph);
    clear(c);
    return TREK_OK;
}

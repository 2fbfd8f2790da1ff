/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/capture_records.h"

#include "autograd/var_internal.h"
#include "nn/module_tree.h"
#include "tensor/backend.h"

/* --- made and freed ------------------------------------------------------------- */

/* Drops the recorded work. What the function used remains known. */
void trek_capture_record_drop_work(trek_capture_record *r)
{
    if (r->recording)
        r->recording->free(r->recording);
    r->recording = NULL;
    for (int k = 0; k < r->n_tags; k++)
        trek_var_release(r->tags[k].value);
    r->n_tags = 0;
}

void trek_capture_record_drop(trek_capture_record *r)
{
    trek_capture_record_drop_work(r);
    trek_touch_clear(&r->touched);
}

void trek_captures_free_values(trek_var **values)
{
    for (int k = 0; k < TREK_CAPTURE_VALUES; k++) {
        trek_var_release(values[k]);
        values[k] = NULL;
    }
}

static void free_record(trek_capture_record *r)
{
    trek_capture_record_drop(r);
    trek_captures_free_values(r->inputs);
    trek_captures_free_values(r->outputs);
    trek_free(r->tags);
    trek_free(r);
}

void trek_captures_clear(struct trek_captures *c)
{
    for (int k = 0; k < c->n_records; k++)
        free_record(c->records[k]);
    c->n_records = 0;
    c->last = NULL;
    trek_captures_free_values(c->values);
    trek_captures_free_values(c->outputs);
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
void trek_captures_forget_parts(const trek_graph *graph)
{
    trek_stepper *stepper = graph->stepper;
    if (stepper && stepper->klass->capture && stepper->klass->capture->forget_parts)
        stepper->klass->capture->forget_parts(stepper);
}

static void free_captures(trek_graph *graph)
{
    trek_captures_forget_parts(graph);
    trek_captures_clear(graph->captures);
    trek_free(graph->captures);
    graph->captures = NULL;
}

static bool drop_captures(trek_graph *graph)
{
    struct trek_captures *c = graph->captures;
    if (c->present)
        return false;
    trek_captures_forget_parts(graph);
    for (int k = 0; k < c->n_records; k++) {
        trek_capture_record_drop(c->records[k]);
        c->records[k]->runs_left = TREK_CAPTURE_FIRST_RUNS;
    }
    return true;
}

static const trek_captures_class captures_class = { free_captures, drop_captures };

struct trek_captures *trek_captures_of(trek_graph *graph, const char *function)
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
        trek_captures_clear(*captures);
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
trek_status trek_captures_plan(trek_graph *graph, struct trek_captures *c)
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
    for (int k = 0; n == 0 && k < TREK_CAPTURE_VALUES; k++)
        if (c->values[k]) {
            c->device = c->values[k]->data->device;
            break;
        }
    c->planned = true;
    return TREK_OK;
}

/* --- inputs --------------------------------------------------------------------------- */

static bool fits(const trek_var *own, const trek_var *given)
{
    if (!own || !given)
        return own == given;
    return own->data->dtype == given->data->dtype && trek_same_sizes(own->data, given->data);
}

bool trek_capture_record_matches(const trek_capture_record *r, const struct trek_captures *c, trek_step_fn fn, const void *arg)
{
    if (r->fn != fn || r->arg != arg)
        return false;
    for (int k = 0; k < TREK_CAPTURE_VALUES; k++)
        if (!fits(r->inputs[k], c->values[k]))
            return false;
    return true;
}

static trek_status make_inputs(trek_capture_record *r, const struct trek_captures *c)
{
    for (int k = 0; k < TREK_CAPTURE_VALUES; k++) {
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
trek_capture_record *trek_captures_find_record(struct trek_captures *c, trek_step_fn fn, void *arg, uint64_t team)
{
    int oldest = 0;
    for (int k = 0; k < c->n_records; k++) {
        if ((c->problem[0] || c->records[k]->team == team) && trek_capture_record_matches(c->records[k], c, fn, arg))
            return c->records[k];
        if (c->records[k]->used < c->records[oldest]->used)
            oldest = k;
    }
    trek_capture_record *r = trek_calloc(1, sizeof *r);
    if (!r || make_inputs(r, c) != TREK_OK) {
        if (r)
            free_record(r);
        return NULL;
    }
    r->fn = fn;
    r->arg = arg;
    r->team = team;
    r->runs_left = c->n_records ? TREK_CAPTURE_LATER_RUNS : TREK_CAPTURE_FIRST_RUNS;
    if (c->n_records < TREK_MOST_RECORDS)
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

trek_status trek_captures_bring_inputs(struct trek_captures *c, trek_capture_record *r)
{
    for (int k = 0; k < TREK_CAPTURE_VALUES; k++) {
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

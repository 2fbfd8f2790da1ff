/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a module repeatedly on its own result; with a condition, until each row has halted. */
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "graph/graph_internal.h"
#include "graph/loop_internal.h"
#include "nn/module_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/row_map.h"
#include "tensor/scope_internal.h"
#include "tensor/status_internal.h"

/* Stores the value in the slot. */
static trek_status own(trek_var **slot, trek_var *value)
{
    if (!value)
        return trek_error_status();
    trek_var *old = *slot;
    *slot = trek_var_retain(value);
    trek_var_release(old);
    return TREK_OK;
}

static trek_var *flags(const bool *values, int64_t n, trek_device device)
{
    trek_tensor *tensor = trek_tensor_from_data(values, trek_dims(n), TREK_BOOL, device);
    return tensor ? trek_var_from(tensor) : NULL;
}

static trek_dtype wide(const trek_var *x) { return trek_var_dtype(x) == TREK_F64 ? TREK_F64 : TREK_F32; }

/* --- halting ------------------------------------------------------------------------- */

/* Computes, when only some rows have halted, the mask and the live rows that replace the halted ones. */
static trek_status note_halted(loop_run *r)
{
    int64_t stand_in = 0;
    while (r->halted[stand_in])
        stand_in++;
    for (int64_t k = 0; k < r->rows; k++)
        r->places[k] = r->halted[k] ? stand_in : k;
    trek_status status = own(&r->mask, flags(r->halted, r->rows, trek_var_device(r->x)));
    return status == TREK_OK ? own(&r->index, trek_verb_index(r->places, r->rows, trek_var_device(r->x))) : status;
}

static trek_var *run_condition(loop_run *r)
{
    trek_var *z = trek_forward(r->loop->condition, r->x);
    return trek_verb_numbers("loop: condition", z, r->rows, r->numbers) == TREK_OK ? z : NULL;
}

/* Runs the condition on the current stream; rows above 0 halt. */
static trek_status test(loop_run *r)
{
    if (!run_condition(r))
        return trek_error_status();
    int64_t live = 0;
    for (int64_t k = 0; k < r->rows; k++) {
        r->halted[k] |= r->numbers[k] > 0;
        live += !r->halted[k];
    }
    bool fewer = live < r->live;
    r->live = live;
    return fewer && live > 0 ? note_halted(r) : TREK_OK;
}

/* --- adaptive: a sum over passes, weighted by halting -------------------------------------- */

/* Determines which rows end with this pass, and adds h to what the others have spent. */
static void end_rows(loop_run *r, bool *ends)
{
    bool last = r->pass + 1 == r->loop->times;
    for (int64_t k = 0; k < r->rows; k++) {
        if (!r->halted[k])
            r->spent[k] += 1 / (1 + exp(-r->numbers[k]));
        ends[k] = !r->halted[k] && (last || r->spent[k] >= 1 - r->loop->epsilon);
    }
}

/* Returns value where the flags are false, and 0 elsewhere. */
static trek_var *unless(trek_var *mask, trek_var *value)
{
    trek_tensor *zero = trek_tensor_zeros(trek_dims_none(), trek_var_dtype(value), trek_var_device(value));
    return zero ? trek_where(mask, trek_var_from(zero), value) : NULL;
}

/* Computes p of this pass, and its part of result, cost and sum. */
static trek_status weigh(loop_run *r, trek_var *z, trek_var *ends)
{
    trek_var *h = trek_sigmoid(trek_cast(trek_reshape(z, trek_dims(r->rows)), wide(r->x)));
    trek_var *rest = r->sum ? trek_add_scalar(trek_neg(r->sum), 1) : NULL; /* before the first pass: 1 */
    trek_var *one = rest || !h ? NULL : trek_var_from(trek_tensor_ones(trek_var_shape(h), wide(r->x), trek_var_device(h)));
    trek_var *left = rest ? rest : one, *p = trek_where(ends, left, h), *cost = trek_add_scalar(left, (double)r->pass + 1);
    if (p && r->mask)
        p = unless(r->mask, p);
    cost = cost ? unless(trek_logical_not(ends), cost) : NULL;
    trek_var *part = p ? trek_mul(trek_verb_by_rows(p, r->x), trek_cast(r->x, wide(r->x))) : NULL;
    trek_status status = own(&r->result, part && r->result ? trek_add(r->result, part) : part);
    if (status == TREK_OK)
        status = own(&r->cost, cost && r->cost ? trek_add(r->cost, cost) : cost);
    return status == TREK_OK ? own(&r->sum, r->sum ? trek_add(r->sum, h) : h) : status;
}

static trek_status weigh_pass(loop_run *r)
{
    bool *ends = trek_calloc((size_t)r->rows + 1, sizeof *ends);
    trek_var *z = ends ? run_condition(r) : NULL;
    trek_status status = z ? TREK_OK : trek_error_status();
    if (status == TREK_OK) {
        end_rows(r, ends);
        trek_var *mask = flags(ends, r->rows, trek_var_device(r->x));
        status = mask ? weigh(r, z, mask) : trek_error_status();
    }
    int64_t live = 0;
    for (int64_t k = 0; k < r->rows && status == TREK_OK; k++) {
        r->halted[k] |= ends[k];
        live += !r->halted[k];
    }
    trek_free(ends);
    bool fewer = live < r->live;
    r->live = live;
    return status == TREK_OK && fewer && live > 0 ? note_halted(r) : status;
}

/* --- passes ---------------------------------------------------------------------------- */

/* Gathers the inputs of the body for a pass. Live rows replace halted ones, unless further inputs belong to each row. */
static trek_status gather_inputs(const loop_run *r, trek_var **inputs)
{
    inputs[0] = r->index && r->n == 1 ? trek_index_select(r->x, 0, r->index) : r->x;
    for (int k = 1; k < r->n; k++)
        inputs[k] = r->inputs[k];
    return inputs[0] ? TREK_OK : trek_error_status();
}

/* Returns the stream after a pass of a loop with a condition: halted rows do not change. */
static trek_var *merged(const loop_run *r, trek_var *y)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!trek_shape_equal(trek_var_shape(y), trek_var_shape(r->x)))
        return trek_fail_null(TREK_ERR_SHAPE,
                              "loop: body: result of shape %s for input of shape %s; with a condition the shape must not change",
                              trek_shape_format(trek_var_shape(y), b, sizeof b),
                              trek_shape_format(trek_var_shape(r->x), a, sizeof a));
    if (trek_var_dtype(y) != trek_var_dtype(r->x))
        y = trek_cast(y, trek_var_dtype(r->x));
    return y && r->mask ? trek_where(trek_verb_by_rows(r->mask, y), r->x, y) : y;
}

static trek_status run_body(loop_run *r)
{
    trek_var *inputs[TREK_VERB_MOST_INPUTS];
    if (gather_inputs(r, inputs) != TREK_OK)
        return trek_error_status();
    trek_var *y = trek_verb_run(r->loop->body, inputs, r->n);
    if (y && r->loop->condition)
        y = merged(r, y);
    trek_status status = own(&r->x, y);
    if (status == TREK_OK && r->loop->trace)
        status = trek_loop_record(r, r->loop->trace, r->x);
    for (int64_t k = 0; r->spent && !r->loop->adaptive && k < r->rows; k++)
        r->spent[k] += !r->halted[k];
    return status;
}

/* Runs one pass in its own scope. *more: another one must follow. */
static trek_status run_pass(loop_run *r, bool *more)
{
    const trek_loop *loop = r->loop;
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return trek_error_status();
    trek_status status = TREK_OK;
    if (loop->condition && loop->before)
        status = test(r);
    bool runs = !loop->condition || !loop->before || r->live > 0;
    if (status == TREK_OK && runs)
        status = run_body(r);
    if (status == TREK_OK && loop->adaptive)
        status = weigh_pass(r);
    else if (status == TREK_OK && loop->condition && !loop->before && r->pass + 1 < loop->times)
        status = test(r);
    *more = runs && (!loop->condition || r->live > 0);
    trek_scope_end(scope);
    return status;
}

/* With a condition, ranks make different numbers of passes, so each pass has its own random numbers. */
static trek_status run_passes(loop_run *r)
{
    trek_rng_part part = trek_rng_part_begin();
    trek_status status = TREK_OK;
    bool more = true;
    for (r->pass = 0; r->pass < r->loop->times && more && status == TREK_OK; r->pass++) {
        if (r->loop->condition)
            trek_rng_part_run(&part, (uint64_t)r->pass);
        status = run_pass(r, &more);
    }
    if (r->loop->condition)
        trek_rng_part_end(&part);
    return status;
}

static trek_status begin_run(loop_run *r)
{
    if (r->n > TREK_VERB_MOST_INPUTS)
        return trek_fail(TREK_ERR_ARGUMENT, "loop: inputs: %d; must be at most %d", r->n, TREK_VERB_MOST_INPUTS);
    r->x = trek_var_retain(r->inputs[0]);
    if (!r->loop->condition)
        return TREK_OK;
    if ((r->rows = r->live = trek_verb_rows("loop", r->x)) < 0)
        return trek_error_status();
    size_t rows = (size_t)r->rows + 1; /* never 0 bytes, because that may return NULL */
    r->halted = trek_calloc(rows, sizeof *r->halted);
    r->places = trek_calloc(rows, sizeof *r->places);
    r->numbers = trek_calloc(rows, sizeof *r->numbers);
    r->spent = trek_calloc(rows, sizeof *r->spent);
    return r->halted && r->places && r->numbers && r->spent ? TREK_OK : trek_error_status();
}

static void end_run(loop_run *r)
{
    trek_var *held[] = { r->x, r->mask, r->index, r->sum, r->result, r->cost };
    for (size_t k = 0; k < sizeof held / sizeof *held; k++)
        trek_var_release(held[k]);
    trek_free(r->halted);
    trek_free(r->places);
    trek_free(r->numbers);
    trek_free(r->spent);
}

/* --- results ------------------------------------------------------------------------------ */

/* Returns the run's variable in the caller's scope. */
static trek_var *handed_out(trek_var *var)
{
    if (trek_scope_push(trek_var_retain(var), "loop") == TREK_OK)
        return var;
    trek_var_release(var);
    return NULL;
}

static trek_var *made_passes(const loop_run *r)
{
    if (r->cost)
        return handed_out(r->cost);
    int64_t rows = r->loop->condition ? r->rows : trek_verb_rows("loop: passes", r->inputs[0]);
    if (rows < 0)
        return NULL;
    trek_device device = trek_var_device(r->x);
    trek_tensor *made;
    if (r->loop->condition) {
        trek_tensor *host = trek_tensor_from_data(r->spent, trek_dims(rows), TREK_F64, trek_cpu(0));
        trek_tensor *cast = host ? trek_tensor_cast(host, wide(r->x)) : NULL;
        made = cast ? trek_tensor_to(cast, device) : NULL;
        trek_tensor_release(cast);
        trek_tensor_release(host);
    } else {
        made = trek_tensor_full(trek_dims(rows), (double)r->loop->times, wide(r->x), device);
    }
    return made ? trek_var_from(made) : NULL;
}

static trek_var *made_result(const loop_run *r)
{
    if (!r->loop->adaptive)
        return handed_out(r->x);
    bool rounds = trek_var_dtype(r->x) != wide(r->x);
    return rounds ? trek_cast(r->result, trek_var_dtype(r->x)) : handed_out(r->result);
}

static trek_status loop_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    trek_loop *loop = (trek_loop *)self;
    loop_run run = { .loop = loop, .inputs = inputs, .n = n };
    trek_status status = begin_run(&run);
    run.around = trek_loop_enter(&run);
    if (status == TREK_OK)
        status = run_passes(&run);
    trek_loop_enter(run.around);
    if (status == TREK_OK && !(results[0] = made_result(&run)))
        status = trek_error_status();
    if (status == TREK_OK && count > 1 && !(results[1] = made_passes(&run)))
        status = trek_error_status();
    if (status == TREK_OK && !trek_route_is_apart())
        trek_loop_keep_traces(loop, &run.traces);
    trek_loop_free_traces(&run.traces);
    end_run(&run);
    return status;
}

static trek_var *loop_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *y;
    return loop_results(self, inputs, n, &y, 1) == TREK_OK ? y : NULL;
}

static trek_var *loop_forward(trek_module *self, trek_var *x) { return loop_forward_many(self, &x, 1); }

/* --- the module ----------------------------------------------------------------------------- */

static void loop_free(trek_module *self)
{
    trek_loop *loop = (trek_loop *)self;
    trek_loop_free_traces(&loop->traces);
    trek_free(loop->trace);
    pthread_mutex_destroy(&loop->lock);
}

static void loop_describe(const trek_module *self, char *text, size_t size)
{
    const trek_loop *loop = (const trek_loop *)self;
    const char *how = !loop->condition ? "" : loop->before ? ", halt before" : loop->adaptive ? ", adaptive" : ", halt after";
    int length = snprintf(text, size, "%lld%s", (long long)loop->times, how);
    if (loop->adaptive && length > 0 && (size_t)length < size) {
        char number[40];
        snprintf(text + length, size - (size_t)length, " %s", trek_number_text(loop->epsilon, 6, number));
    }
}

static const char *const loop_result_names[] = { "output", "passes", NULL };

static const trek_module_class loop_class = {
    .name = "loop", .size = sizeof(trek_loop), .forward = loop_forward, .forward_many = loop_forward_many, .free = loop_free,
    .describe = loop_describe, .forward_results = loop_results, .result_names = loop_result_names,
    .hands_inputs_on = true,
};

bool trek_is_loop(const trek_module *module) { return module->own->klass == &loop_class; }

static trek_status check(const trek_module *body, const trek_loop_opts *opts)
{
    const trek_module *condition = opts->halt_before ? opts->halt_before : opts->halt_after;
    if (opts->times < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "loop: .times: %lld; must be at least 1", (long long)opts->times);
    if (opts->halt_before && opts->halt_after)
        return trek_fail(TREK_ERR_ARGUMENT, "loop: .halt_before and .halt_after: both are set; a loop has one condition at most");
    if (opts->adaptive && !opts->halt_after)
        return trek_fail(TREK_ERR_ARGUMENT, "loop: .adaptive: set without .halt_after, which it needs");
    if (opts->epsilon != 0 && !(opts->adaptive && opts->epsilon > 0 && opts->epsilon < 1))
        return trek_fail(TREK_ERR_ARGUMENT, "loop: .epsilon: %g; must be inside (0, 1), and needs .adaptive", opts->epsilon);
    if (opts->trace && !*opts->trace)
        return trek_fail(TREK_ERR_ARGUMENT, "loop: .trace: it is empty; a name must have at least one character");
    if (!condition)
        return TREK_OK;
    trek_status status = trek_verb_refuse_meeting("loop", (trek_module *)(uintptr_t)body);
    return status == TREK_OK ? trek_verb_refuse_meeting("loop", (trek_module *)(uintptr_t)condition) : status;
}

trek_module *trek_loop_new(trek_module *body, const trek_loop_opts *opts)
{
    if (check(body, opts) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&loop_class);
    if (!base)
        return NULL;
    trek_loop *loop = (trek_loop *)base;
    pthread_mutex_init(&loop->lock, NULL);
    loop->times = opts->times;
    loop->before = opts->halt_before != NULL;
    loop->adaptive = opts->adaptive;
    loop->epsilon = opts->epsilon > 0 ? opts->epsilon : 0.01;
    if (opts->trace && !(loop->trace = trek_strdup(opts->trace)))
        base->own->failed = true;
    trek_module *condition = opts->halt_before ? opts->halt_before : opts->halt_after;
    trek_module_add(base, "body", offsetof(trek_loop, body), body);
    if (condition)
        trek_module_add(base, "condition", offsetof(trek_loop, condition), condition);
    return trek_module_check(base);
}

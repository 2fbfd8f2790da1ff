/* SPDX-License-Identifier: Apache-2.0 */
/* Which ops a forward runs: each outermost call of a row, and the values that it reads and makes.
 *
 * A value is a piece of memory viewed in some way. All tensors are kept until the run ends, so an address identifies
 * one value. Copies count as the value that they copy. */
#include "onnx/onnx_internal.h"

#include <string.h>

typedef struct trek_onnx_place {
    trek_tensor *tensor;     /* retained */
    int value, next;         /* of the same address; -1 for none */
} trek_onnx_place;

static const void *address_of(const trek_tensor *t) { return t->numel > 0 ? (const void *)t->data : (const void *)t; }

static bool alike(const trek_tensor *a, const trek_tensor *b)
{
    return a == b || (a->numel > 0 && a->storage == b->storage && a->data == b->data && a->dtype == b->dtype &&
                      trek_same_sizes(a, b) &&
                      ((a->contiguous && b->contiguous) ||
                       memcmp(a->strides, b->strides, (size_t)a->ndim * sizeof *a->strides) == 0));
}

/* Returns the newest place of the address, or -1. */
static int first_place(const trek_onnx_run *run, const trek_tensor *t)
{
    int head = trek_pointer_map_get(&run->map, address_of(t));
    return head < 0 ? -1 : run->heads[head];
}

static int find(const trek_onnx_run *run, const trek_tensor *t)
{
    for (int k = first_place(run, t); k >= 0; k = run->places[k].next)
        if (alike(run->places[k].tensor, t))
            return k;
    return -1;
}

static bool put(trek_onnx_run *run, trek_tensor *t, int value)
{
    bool added;
    if (trek_array_grow(&run->places, &run->cap_places, run->n_places + 1, sizeof *run->places) != TREK_OK ||
        trek_array_grow(&run->heads, &run->cap_heads, run->n_heads + 1, sizeof *run->heads) != TREK_OK ||
        trek_pointer_map_add(&run->map, address_of(t), run->n_heads, &added) != TREK_OK)
        return false;
    if (added)
        run->heads[run->n_heads++] = -1;
    int head = trek_pointer_map_get(&run->map, address_of(t));
    run->places[run->n_places] = (trek_onnx_place){ trek_tensor_retain(t), value, run->heads[head] };
    run->heads[head] = run->n_places++;
    return true;
}

/* Adds a value with the tensor's properties. Returns -1 on failure. */
static int add_value(trek_onnx_run *run, const trek_tensor *t, trek_onnx_value_kind kind, int from)
{
    if (trek_array_grow(&run->values, &run->cap_values, run->n_values + 1, sizeof *run->values) != TREK_OK)
        return -1;
    trek_onnx_value v = { .kind = kind, .dtype = (trek_dtype)t->dtype, .ndim = t->ndim, .from = from };
    memcpy(v.sizes, t->sizes, (size_t)t->ndim * sizeof *v.sizes);
    run->values[run->n_values] = v;
    return run->n_values++;
}

static trek_onnx_call *add_call(trek_onnx_run *run, const trek_op *op, int n_inputs)
{
    if (trek_array_grow(&run->calls, &run->cap_calls, run->n_calls + 1, sizeof *run->calls) != TREK_OK ||
        trek_array_grow(&run->inputs, &run->cap_inputs, run->n_inputs + n_inputs + 1, sizeof *run->inputs) != TREK_OK)
        return NULL;
    trek_onnx_call *call = &run->calls[run->n_calls++];
    *call = (trek_onnx_call){ .op = op, .n_inputs = n_inputs, .first_input = run->n_inputs, .outputs = { -1, -1, -1, -1 } };
    run->n_inputs += n_inputs;
    return call;
}

/* Handles a tensor that was made by viewing another one's memory in another shape, without an op. */
static int reshaped(trek_onnx_run *run, trek_tensor *t)
{
    for (int k = first_place(run, t); t->contiguous && t->numel > 0 && k >= 0; k = run->places[k].next) {
        const trek_tensor *other = run->places[k].tensor;
        if (other->storage != t->storage || !other->contiguous || other->numel != t->numel || other->dtype != t->dtype)
            continue;
        int from = run->places[k].value;
        trek_onnx_call *call = add_call(run, &trek_ops[TREK_OP_reshape], 1);
        int value = call ? add_value(run, t, TREK_ONNX_MADE, run->n_calls - 1) : -1;
        if (value < 0)
            return -1;
        run->inputs[call->first_input] = from;
        call->outputs[0] = value;
        return put(run, t, value) ? value : -1;
    }
    return -1;
}

int trek_onnx_run_value(trek_onnx_run *run, trek_tensor *t)
{
    int k = find(run, t);
    if (k >= 0)
        return run->places[k].value;
    int value = reshaped(run, t);
    if (value >= 0)
        return value;
    value = add_value(run, t, TREK_ONNX_LEAF, 0);
    if (value < 0 || !put(run, t, value))
        return -1;
    run->values[value].tensor = trek_tensor_retain(t);
    return value;
}

int trek_onnx_run_input(trek_onnx_run *run, trek_tensor *t, int k)
{
    int value = add_value(run, t, TREK_ONNX_INPUT, k);
    return value >= 0 && put(run, t, value) ? value : -1;
}

/* t was written to and is `value` now. Other views of the memory, if there are any, become unknown. */
static bool overwrite(trek_onnx_run *run, trek_tensor *t, int value)
{
    int lost = -1;
    bool there = false;
    for (int k = 0; k < run->n_places; k++) {
        trek_onnx_place *p = &run->places[k];
        if (p->tensor->storage != t->storage)
            continue;
        if (alike(p->tensor, t)) {
            p->value = value;
            there |= p->tensor == t;
            continue;
        }
        if (lost < 0 && (lost = add_value(run, p->tensor, TREK_ONNX_LOST, run->n_calls - 1)) < 0)
            return false;
        p->value = lost;
    }
    return there || put(run, t, value);
}

/* Copies do not count as calls. */
static bool copies(const trek_op_call *call)
{
    return call->op->id == TREK_OP_copy || (call->op->id == TREK_OP_convert && call->inputs[0]->dtype == call->outputs[0]->dtype);
}

static bool note_result(trek_onnx_run *run, trek_tensor *t, int value, bool given)
{
    return value >= 0 && (given ? overwrite(run, t, value) : put(run, t, value));
}

static bool note_call(trek_onnx_run *run, const trek_op_call *call, const int *inputs, bool given)
{
    trek_onnx_call *made = add_call(run, call->op, call->n_inputs);
    if (!made)
        return false;
    if (call->n_inputs > 0)
        memcpy(&run->inputs[made->first_input], inputs, (size_t)call->n_inputs * sizeof *inputs);
    made->attrs = call->attrs;
    int at = run->n_calls - 1;
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++) {
        trek_tensor *t = call->outputs[k];
        int value = t ? add_value(run, t, TREK_ONNX_MADE, at) : -1;
        if (t && !note_result(run, t, value, given))
            return false;
        run->calls[at].outputs[k] = value;
    }
    return true;
}

static bool note(trek_onnx_run *run, const trek_op_call *call, bool given)
{
    int few[TREK_MAX_FIXED_INPUTS], *values = few;
    bool fine = call->n_inputs <= TREK_MAX_FIXED_INPUTS || (values = trek_alloc((size_t)call->n_inputs * sizeof *values));
    for (int k = 0; fine && k < call->n_inputs; k++)
        fine = (values[k] = call->inputs[k] ? trek_onnx_run_value(run, call->inputs[k]) : -1) >= 0 || !call->inputs[k];
    if (fine)
        fine = copies(call) ? note_result(run, call->outputs[0], values[0], given) : note_call(run, call, values, given);
    if (values != few)
        trek_free(values);
    return fine;
}

/* --- what is several calls here and one there ------------------------------------------------------ */

static const trek_op compound_ops[TREK_COMPOUNDS] = {
    [TREK_COMPOUND_CONV] = { .name = "conv", .id = TREK_OP_COUNT + TREK_COMPOUND_CONV },
    [TREK_COMPOUND_CONV_TRANSPOSE] = { .name = "conv_transpose", .id = TREK_OP_COUNT + TREK_COMPOUND_CONV_TRANSPOSE },
    [TREK_COMPOUND_MAX_POOL] = { .name = "max_pool", .id = TREK_OP_COUNT + TREK_COMPOUND_MAX_POOL },
    [TREK_COMPOUND_PAD] = { .name = "pad", .id = TREK_OP_COUNT + TREK_COMPOUND_PAD },
    [TREK_COMPOUND_RNN] = { .name = "rnn", .id = TREK_OP_COUNT + TREK_COMPOUND_RNN },
    [TREK_COMPOUND_AVG_POOL] = { .name = "avg_pool", .id = TREK_OP_COUNT + TREK_COMPOUND_AVG_POOL },
};

static void enter(void *arg)
{
    trek_onnx_run *run = arg;
    if (run->entered++ > 0) /* nested in another, which counts */
        return;
    run->entered_calls = run->n_calls;
    run->entered_values = run->n_values;
}

/* Forgets everything seen since the compound was entered. The number of values in it may depend on sizes. */
static bool forget(trek_onnx_run *run, const trek_compound *c)
{
    for (int k = run->entered_values; k < run->n_values; k++)
        trek_tensor_release(run->values[k].tensor);
    run->n_values = run->entered_values;
    run->n_calls = run->entered_calls;
    int lost = add_value(run, c->outputs[0], TREK_ONNX_LOST, 0);
    for (int k = 0; lost >= 0 && k < run->n_places; k++)
        if (run->places[k].value >= run->entered_values)
            run->places[k].value = lost;
    return lost >= 0;
}

/* Makes the place of a tensor, which existed before or was made inside, refer to `value` from now on. */
static bool put_again(trek_onnx_run *run, trek_tensor *t, int value)
{
    int place = find(run, t);
    if (place < 0)
        return put(run, t, value);
    run->places[place].value = value;
    return true;
}

/* Returns the value of an input, which may have been seen for the first time inside. */
static int compound_input(trek_onnx_run *run, trek_tensor *t)
{
    int place = find(run, t);
    if (place < 0 || run->places[place].value < run->entered_values)
        return trek_onnx_run_value(run, t);
    int value = run->places[place].value;
    if (run->values[value].kind == TREK_ONNX_LEAF) /* given twice */
        return value;
    value = add_value(run, t, TREK_ONNX_LEAF, 0);
    if (value < 0 || !put_again(run, t, value))
        return -1;
    run->values[value].tensor = trek_tensor_retain(t);
    return value;
}

static bool note_compound(trek_onnx_run *run, const trek_compound *c)
{
    enum { MOST = (int)(sizeof c->inputs / sizeof *c->inputs) };
    int inputs[MOST], n = MOST;
    while (n > 0 && !c->inputs[n - 1])
        n--;
    for (int k = 0; k < n; k++)
        if ((inputs[k] = c->inputs[k] ? compound_input(run, c->inputs[k]) : -1) < 0 && c->inputs[k])
            return false;
    trek_onnx_call *call = add_call(run, &compound_ops[c->kind], n);
    if (!call)
        return false;
    memcpy(&run->inputs[call->first_input], inputs, (size_t)n * sizeof *inputs);
    call->compound = *c;
    int at = run->n_calls - 1;
    for (int k = 0; k < 2 && c->outputs[k]; k++) {
        int value = add_value(run, c->outputs[k], TREK_ONNX_MADE, at);
        if (value < 0 || !put_again(run, c->outputs[k], value))
            return false;
        run->calls[at].outputs[k] = value;
    }
    return true;
}

/* Turns the calls since the compound was entered into one. */
static void leave(const trek_compound *c, void *arg)
{
    trek_onnx_run *run = arg;
    if (--run->entered > 0)
        return;
    if (!run->failed && run->depth == 0 && !(forget(run, c) && note_compound(run, c)))
        run->failed = true;
}

/* Runs around every call of a row on the thread. */
static trek_status around(trek_op_call *call, trek_status (*go)(trek_op_call *call), void *arg)
{
    trek_onnx_run *run = arg;
    bool given = call->outputs[0] != NULL;
    run->depth++;
    trek_status status = go(call);
    if (--run->depth > 0 || status != TREK_OK || run->failed)
        return status;
    if (!note(run, call, given))
        run->failed = true;
    if (run->fail_at >= 0 && run->n_calls > run->fail_at)
        return trek_fail(TREK_ERR_UNSUPPORTED, "onnx_export: %s", run->problem);
    return run->failed ? TREK_ERR_MEMORY : TREK_OK;
}

void trek_onnx_run_begin(trek_onnx_run *run)
{
    run->watch = (trek_rank_watch){ .around = around, .enter = enter, .leave = leave, .arg = run };
    trek_rank_here.watch = &run->watch;
}

void trek_onnx_run_end(trek_onnx_run *run)
{
    (void)run;
    trek_rank_here.watch = NULL;
}

void trek_onnx_run_settle(trek_onnx_run *run)
{
    for (int k = 0; k < run->n_places; k++)
        trek_tensor_release(run->places[k].tensor);
    trek_free(run->places);
    trek_free(run->heads);
    trek_pointer_map_clear(&run->map);
    run->places = NULL;
    run->heads = NULL;
    run->n_places = run->cap_places = run->n_heads = run->cap_heads = 0;
}

void trek_onnx_run_clear(trek_onnx_run *run)
{
    trek_onnx_run_settle(run);
    for (int k = 0; k < run->n_values; k++)
        trek_tensor_release(run->values[k].tensor);
    trek_free(run->values);
    trek_free(run->calls);
    trek_free(run->inputs);
    trek_free(run->outputs);
    *run = (trek_onnx_run){ .fail_at = -1 };
}

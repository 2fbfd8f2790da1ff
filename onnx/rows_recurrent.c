/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent rows: the linear before them and the recurrence become one node. */
#include <string.h>

#include "onnx/onnx_internal.h"

static bool is_recurrent(const trek_onnx_call *call) { return call->op->id == TREK_OP_lstm || call->op->id == TREK_OP_gru; }

int trek_onnx_gates_linear(const trek_onnx *x, int call)
{
    const trek_onnx_run *run = &x->runs[0];
    const trek_onnx_call *c = &run->calls[call];
    if (!is_recurrent(c))
        return -1;
    const trek_onnx_value *gates = &run->values[run->inputs[c->first_input]];
    if (gates->kind != TREK_ONNX_MADE)
        return -1;
    const trek_onnx_call *maker = &run->calls[gates->from];
    return maker->op->id == TREK_OP_linear && maker->attrs.i[0] == TREK_ACTIVATION_NONE ? gates->from : -1;
}

/* Puts blocks of H rows into ONNX's order. */
static const char *in_order(trek_onnx *x, const char *a, int64_t hidden, int n, const int *order)
{
    const char *parts[4];
    for (int k = 0; k < n; k++)
        parts[k] = trek_onnx_sliced(x, a, order[k] * hidden, (order[k] + 1) * hidden, 0, 1);
    const char *all = trek_onnx_node(x, "Concat", n, parts);
    trek_onnx_attr_int(x, "axis", 0);
    return all;
}

static const char *led(trek_onnx *x, const char *a) { return trek_onnx_2(x, "Unsqueeze", a, trek_onnx_int(x, 0)); }

typedef struct cell {
    int n;                   /* gates */
    int order[4];            /* which of trek's blocks each of ONNX's is */
    int64_t hidden;
    trek_dtype dtype;
} cell;

static const char *zeros(trek_onnx *x, const cell *c)
{
    int64_t size = c->n * c->hidden;
    return trek_onnx_full(x, c->dtype, 0, 1, &size);
}

/* Returns the input, its weight and its bias: those of the linear, or the gates themselves. */
static void inputs_of(trek_onnx *x, const cell *c, const char **a, const char **weight, const char **bias)
{
    int at = trek_onnx_gates_linear(x, x->call);
    const trek_onnx_run *run = &x->runs[0];
    if (at >= 0) {
        const int *in = run->inputs + run->calls[at].first_input;
        *a = x->names[in[0]];
        *weight = x->names[in[1]];
        *bias = in[2] >= 0 ? x->names[in[2]] : NULL;
    } else {
        trek_tensor *eye = trek_tensor_eye(c->n * c->hidden, c->dtype, trek_cpu(0));
        *a = trek_onnx_in(x, 0);
        *weight = eye ? trek_onnx_constant(x, NULL, eye) : "";
        *bias = NULL;
        trek_tensor_release(eye);
    }
    *weight = led(x, in_order(x, *weight, c->hidden, c->n, c->order));
    *bias = *bias ? in_order(x, *bias, c->hidden, c->n, c->order) : zeros(x, c);
}

const char *trek_onnx_lengths(trek_onnx *x, int k)
{
    return trek_onnx_has(x, k) ? trek_onnx_cast(x, trek_onnx_in(x, k), trek_onnx_in_seen(x, k)->dtype, TREK_I32) : NULL;
}

void trek_onnx_recurrence(trek_onnx *x, const char *type, int64_t hidden, bool reverse, int n, const char *const *inputs)
{
    trek_onnx_node(x, type, n, inputs);
    trek_onnx_attr_int(x, "hidden_size", hidden);
    trek_onnx_attr_string(x, "direction", reverse ? "reverse" : "forward");
}

static bool only_two(trek_onnx *x)
{
    if (trek_onnx_wanted(x, 2))
        trek_onnx_refuse(x, "what it keeps for a gradient has no counterpart");
    return !trek_onnx_wanted(x, 2);
}

/* Returns the last node's first result, [T, 1, N, H], without its directions. Called after all of its other results. */
static const char *without_directions(trek_onnx *x, const char *y) { return trek_onnx_2(x, "Squeeze", y, trek_onnx_int(x, 1)); }

/* trek's order is i, f, g, o; ONNX's is i, o, f, c. */
static void lstm(trek_onnx *x, const char **outs)
{
    cell c = { 4, { 0, 3, 1, 2 }, trek_onnx_fixed(x, 1, 1), trek_onnx_in_seen(x, 1)->dtype };
    const char *a, *weight, *bias;
    if (!only_two(x))
        return;
    inputs_of(x, &c, &a, &weight, &bias);
    const char *both = trek_onnx_node(x, "Concat", 2, (const char *[]){ bias, zeros(x, &c) });
    trek_onnx_attr_int(x, "axis", 0);
    const char *in[7] = { a, weight, led(x, in_order(x, trek_onnx_in(x, 1), c.hidden, 4, c.order)), led(x, both),
                          trek_onnx_lengths(x, 4),
                          trek_onnx_has(x, 2) ? led(x, trek_onnx_in(x, 2)) : NULL,
                          trek_onnx_has(x, 3) ? led(x, trek_onnx_in(x, 3)) : NULL };
    trek_onnx_recurrence(x, "LSTM", c.hidden, trek_onnx_i(x, 0) != 0, 7, in);
    const char *y = trek_onnx_first(x), *h = trek_onnx_more(x), *last = trek_onnx_more(x);
    outs[0] = without_directions(x, y);
    outs[1] = trek_onnx_node(x, "Concat", 2, (const char *[]){ h, last });
    trek_onnx_attr_int(x, "axis", 0);
}

/* trek's order is r, z, n; ONNX's is z, r, h, with the product's bias inside what r scales. */
static void gru(trek_onnx *x, const char **outs)
{
    cell c = { 3, { 1, 0, 2 }, trek_onnx_fixed(x, 1, 1), trek_onnx_in_seen(x, 1)->dtype };
    const char *a, *weight, *bias;
    if (!only_two(x))
        return;
    inputs_of(x, &c, &a, &weight, &bias);
    const char *own = trek_onnx_has(x, 2) ? in_order(x, trek_onnx_in(x, 2), c.hidden, 3, c.order) : zeros(x, &c);
    const char *both = trek_onnx_node(x, "Concat", 2, (const char *[]){ bias, own });
    trek_onnx_attr_int(x, "axis", 0);
    const char *in[6] = { a, weight, led(x, in_order(x, trek_onnx_in(x, 1), c.hidden, 3, c.order)), led(x, both),
                          trek_onnx_lengths(x, 4),
                          trek_onnx_has(x, 3) ? led(x, trek_onnx_in(x, 3)) : NULL };
    trek_onnx_recurrence(x, "GRU", c.hidden, trek_onnx_i(x, 0) != 0, 6, in);
    trek_onnx_attr_int(x, "linear_before_reset", 1);
    const char *y = trek_onnx_first(x), *h = trek_onnx_more(x);
    outs[0] = without_directions(x, y);
    outs[1] = trek_onnx_2(x, "Squeeze", h, trek_onnx_int(x, 0));
}

const trek_onnx_row trek_onnx_rows_recurrent[] = {
    { TREK_OP_lstm, lstm, NULL }, { TREK_OP_gru, gru, NULL },
    { 0, NULL, NULL },
};

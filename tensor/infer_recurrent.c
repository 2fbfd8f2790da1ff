/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules of recurrent layers. */
#include "tensor/infer_internal.h"

/* weight must be [gates hidden, hidden]; *hidden is taken from it. */
static trek_status check_weight(const trek_op_call *call, const trek_tensor *weight, int64_t gates, int64_t *hidden)
{
    char text[TREK_SHAPE_TEXT];
    TRY(need_ndim(call, "weight", weight, 2));
    *hidden = weight->sizes[1];
    if (weight->sizes[0] == gates * *hidden)
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_SHAPE, "weight: %s; must be [%lld H, H]", trek_tensor_shape_text(weight, text),
                        (long long)gates);
}

static trek_status check_state(const trek_op_call *call, const char *name, const trek_tensor *state, int64_t rows, int64_t hidden)
{
    return state ? need_sizes(call, name, state, 2, (const int64_t[2]){ rows, hidden }) : TREK_OK;
}

static trek_status check_lengths(const trek_op_call *call, const trek_tensor *lengths, int64_t rows)
{
    if (lengths)
        TRY(need_integer(call, "lengths", lengths));
    return need_vector(call, "lengths", lengths, rows);
}

/* [T, N, parts hidden] */
static trek_status check_sequence(const trek_op_call *call, const char *name, const trek_tensor *x, int64_t parts, int64_t hidden)
{
    char text[TREK_SHAPE_TEXT];
    TRY(need_ndim(call, name, x, 3));
    if (x->sizes[2] == parts * hidden)
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_SHAPE, "%s: %s; must be [T, N, %lld]", name, trek_tensor_shape_text(x, text),
                        (long long)(parts * hidden));
}

trek_status trek_infer_lstm(trek_op_call *call);
trek_status trek_infer_lstm(trek_op_call *call)
{
    const trek_tensor *gates = call->inputs[0];
    trek_dtype dtype = (trek_dtype)gates->dtype;
    int64_t hidden;
    TRY(check_weight(call, call->inputs[1], 4, &hidden));
    TRY(check_sequence(call, "gates", gates, 4, hidden));
    int64_t steps = gates->sizes[0], rows = gates->sizes[1];
    TRY(check_state(call, "h0", call->inputs[2], rows, hidden));
    TRY(check_state(call, "c0", call->inputs[3], rows, hidden));
    TRY(check_lengths(call, call->inputs[4], rows));
    TRY(trek_op_output(call, 0, 3, (const int64_t[3]){ steps, rows, hidden }, dtype));
    TRY(trek_op_output(call, 1, 3, (const int64_t[3]){ 2, rows, hidden }, dtype));
    return trek_op_output(call, 2, 3, (const int64_t[3]){ call->attrs.i[1] ? steps : 0, rows, 5 * hidden },
                          statistics_dtype(dtype));
}

/* Checks the gradients of a layer's results, inputs k and k + 1. */
static trek_status check_gradients(const trek_op_call *call, int k, const int64_t *y, int state_dims, const int64_t *state)
{
    if (call->inputs[k])
        TRY(need_sizes(call, "gradient", call->inputs[k], 3, y));
    return call->inputs[k + 1] ? need_sizes(call, "gradient of the state", call->inputs[k + 1], state_dims, state) : TREK_OK;
}

trek_status trek_infer_lstm_backward(trek_op_call *call);
trek_status trek_infer_lstm_backward(trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0], *kept = call->inputs[1];
    trek_dtype dtype = (trek_dtype)weight->dtype;
    int64_t hidden;
    TRY(check_weight(call, weight, 4, &hidden));
    TRY(check_sequence(call, "kept values", kept, 5, hidden));
    TRY(need_dtype(call, "kept values", kept, statistics_dtype(dtype)));
    const int64_t y[3] = { kept->sizes[0], kept->sizes[1], hidden }, state[3] = { 2, y[1], hidden };
    TRY(check_gradients(call, 2, y, 3, state));
    TRY(check_state(call, "c0", call->inputs[4], y[1], hidden));
    TRY(check_lengths(call, call->inputs[5], y[1]));
    TRY(trek_op_output(call, 0, 3, (const int64_t[3]){ y[0], y[1], 4 * hidden }, dtype));
    return trek_op_output(call, 1, 3, state, dtype);
}

trek_status trek_infer_gru(trek_op_call *call);
trek_status trek_infer_gru(trek_op_call *call)
{
    const trek_tensor *gates = call->inputs[0];
    trek_dtype dtype = (trek_dtype)gates->dtype;
    int64_t hidden;
    TRY(check_weight(call, call->inputs[1], 3, &hidden));
    TRY(check_sequence(call, "gates", gates, 3, hidden));
    int64_t steps = gates->sizes[0], rows = gates->sizes[1];
    TRY(need_vector(call, "bias", call->inputs[2], 3 * hidden));
    TRY(check_state(call, "h0", call->inputs[3], rows, hidden));
    TRY(check_lengths(call, call->inputs[4], rows));
    TRY(trek_op_output(call, 0, 3, (const int64_t[3]){ steps, rows, hidden }, dtype));
    TRY(trek_op_output(call, 1, 2, (const int64_t[2]){ rows, hidden }, dtype));
    return trek_op_output(call, 2, 3, (const int64_t[3]){ call->attrs.i[1] ? steps : 0, rows, 4 * hidden },
                          statistics_dtype(dtype));
}

trek_status trek_infer_gru_backward(trek_op_call *call);
trek_status trek_infer_gru_backward(trek_op_call *call)
{
    const trek_tensor *weight = call->inputs[0], *kept = call->inputs[1];
    trek_dtype dtype = (trek_dtype)weight->dtype;
    int64_t hidden;
    TRY(check_weight(call, weight, 3, &hidden));
    TRY(check_sequence(call, "kept values", kept, 4, hidden));
    TRY(need_dtype(call, "kept values", kept, statistics_dtype(dtype)));
    const int64_t y[3] = { kept->sizes[0], kept->sizes[1], hidden }, gates[3] = { y[0], y[1], 3 * hidden };
    TRY(need_sizes(call, "result", call->inputs[2], 3, y));
    TRY(check_gradients(call, 3, y, 2, y + 1));
    TRY(check_state(call, "h0", call->inputs[5], y[1], hidden));
    TRY(check_lengths(call, call->inputs[6], y[1]));
    TRY(trek_op_output(call, 0, 3, gates, dtype));
    TRY(trek_op_output(call, 1, 3, gates, dtype));
    return trek_op_output(call, 2, 2, y + 1, dtype);
}

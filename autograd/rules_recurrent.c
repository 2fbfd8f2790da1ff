/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of recurrent layers: one kernel goes back through the steps, and the gradient of the recurrent weight
 * is one product over all of them. */
#include "autograd/rules_internal.h"

/* A layer's gradients by step, and what they are multiplied with. */
typedef struct recurrence {
    trek_var *d;                   /* [T, N, gates]: gradients of the products with h */
    trek_var *y, *h0, *lengths;    /* h0 and lengths may be NULL */
    bool reverse;
    int weight;                    /* the input whose gradient it is */
} recurrence;

static trek_var *steps_as_rows(trek_var *x, int64_t first, int64_t count)
{
    trek_var *part = trek_narrow(x, 0, first, count);
    return part ? trek_reshape(part, trek_dims(count * trek_var_size(x, 1), trek_var_size(x, 2))) : NULL;
}

/* Returns the gradients at each row's first step, [N, gates], which belong to the product with h0. */
static trek_var *first_steps(const recurrence *r)
{
    int64_t steps = trek_var_size(r->d, 0), rows = trek_var_size(r->d, 1), gates = trek_var_size(r->d, 2);
    if (!r->reverse || !r->lengths)
        return trek_select(r->d, 0, r->reverse ? steps - 1 : 0);
    /* a row without steps has gradients of 0, wherever it is read */
    trek_var *last = trek_clamp(trek_sub_scalar(trek_cast(r->lengths, TREK_I64), 1), 0, (double)steps);
    trek_var *index = trek_expand(trek_reshape(last, trek_dims(1, rows, 1)), trek_dims(1, rows, gates));
    return trek_select(trek_gather(r->d, 0, index), 0, 0);
}

/* Computes d^T times the h that each step began with: y of the previous step, or h0 at first. The result goes
 * directly into the parameter's gradient where possible. */
static trek_status weight_gradient(trek_backward_call *b, const recurrence *r)
{
    trek_var *d[2], *h[2];
    int n = 0;
    if (!r->d || !r->y)
        return trek_error_status();
    int64_t steps = trek_var_size(r->d, 0);
    if (steps > 1) {
        d[n] = steps_as_rows(r->d, r->reverse ? 0 : 1, steps - 1);
        h[n++] = steps_as_rows(r->y, r->reverse ? 1 : 0, steps - 1);
    }
    if (steps > 0 && r->h0) {
        d[n] = first_steps(r);
        h[n++] = r->h0;
    }
    if (steps > 0 && n == 0) { /* one step, from zeros */
        trek_tensor *zeros = trek_tensor_zeros(trek_rule_shape(b, r->weight), trek_var_dtype(r->d), trek_var_device(r->d));
        return trek_rule_give_to(b, r->weight, zeros ? trek_var_from(zeros) : NULL);
    }
    bool overwrite = true;
    trek_tensor *place = n > 0 ? trek_rule_sink(b, r->weight, &overwrite) : NULL;
    trek_var *sum = NULL;
    for (int k = 0; k < n; k++) {
        if (!d[k] || !h[k])
            return trek_error_status();
        if (place && trek_rule_weight_into(place, d[k]->data, h[k]->data, overwrite && k == 0) != TREK_OK)
            return trek_error_status();
        trek_var *product = place ? NULL : trek_matmul(trek_transpose(d[k], 0, 1), h[k]);
        sum = sum && product ? trek_add(sum, product) : product;
    }
    if (place) {
        trek_rule_sunk(b, r->weight);
        return TREK_OK;
    }
    b->grads[r->weight] = sum;
    return trek_error_status();
}

static trek_var *second_grad(const trek_backward_call *b) { return b->more_grads ? b->more_grads[1] : NULL; }

trek_status trek_rule_lstm(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *lengths = trek_rule_input(b, 4), *outs[2] = { NULL };
    trek_var *in[6] = { trek_rule_input(b, 1), trek_rule_output(b, 2), b->grad, second_grad(b), trek_rule_input(b, 3), lengths };
    trek_status status = trek_apply_many(&trek_ops[TREK_OP_lstm_backward], in, 6, b->attrs, outs, 2);
    if (status != TREK_OK)
        return status;
    b->grads[0] = outs[0];
    if (trek_rule_needs(b, 2))
        b->grads[2] = trek_select(outs[1], 0, 0);
    if (trek_rule_needs(b, 3))
        b->grads[3] = trek_select(outs[1], 0, 1);
    recurrence r = { .d = outs[0], .lengths = lengths, .reverse = b->attrs->i[0], .weight = 1 };
    if (!trek_rule_needs(b, 1))
        return trek_error_status();
    r.y = trek_rule_output(b, 0);
    r.h0 = trek_rule_input(b, 2);
    return weight_gradient(b, &r);
}

trek_status trek_rule_gru(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *lengths = trek_rule_input(b, 4), *h0 = trek_rule_input(b, 3), *y = trek_rule_output(b, 0), *outs[3] = { NULL };
    trek_var *in[7] = { trek_rule_input(b, 1), trek_rule_output(b, 2), y, b->grad, second_grad(b), h0, lengths };
    trek_status status = trek_apply_many(&trek_ops[TREK_OP_gru_backward], in, 7, b->attrs, outs, 3);
    if (status != TREK_OK)
        return status;
    b->grads[0] = outs[0];
    b->grads[3] = outs[2];
    if (trek_rule_needs(b, 2))
        b->grads[2] = trek_sum(outs[1], trek_dims(0, 1), false);
    recurrence r = { .d = outs[1], .y = y, .h0 = h0, .lengths = lengths, .reverse = b->attrs->i[0], .weight = 1 };
    return trek_rule_needs(b, 1) ? weight_gradient(b, &r) : trek_error_status();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The plain ops that equal recurrent layers, step by step. */
#include "autograd/rules_internal.h"

#define COMPOSITE(name) \
    trek_var *trek_composite_rule_##name(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs); \
    trek_var *trek_composite_rule_##name(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs)

typedef struct unrolled {
    int64_t steps, rows, hidden;
    bool reverse;
    trek_var *gates, *weight, *bias; /* bias may be NULL */
    trek_var *lengths;               /* [N, 1], or NULL */
    trek_var *h, *c;                 /* at the current step */
    trek_var *zeros;                 /* [N, H] */
    trek_var **y;                    /* [steps]; allocated with trek_alloc */
} unrolled;

static bool unroll_begin(unrolled *u, trek_var *gates, trek_var *weight, trek_var *lengths, const trek_attrs *attrs)
{
    if (!gates || !weight)
        return false;
    *u = (unrolled){ .steps = trek_var_size(gates, 0), .rows = trek_var_size(gates, 1), .hidden = trek_var_size(weight, 1),
                     .reverse = attrs->i[0], .gates = trek_rule_wide(gates), .weight = trek_rule_wide(weight) };
    u->lengths = lengths ? trek_unsqueeze(lengths, 1) : NULL;
    if (!u->gates || !u->weight || (lengths && !u->lengths))
        return false;
    trek_tensor *zeros = trek_tensor_zeros(trek_dims(u->rows, u->hidden), trek_var_dtype(u->gates), trek_var_device(gates));
    u->zeros = zeros ? trek_var_from(zeros) : NULL;
    u->y = u->zeros ? trek_alloc((size_t)(u->steps + 1) * sizeof *u->y) : NULL;
    return u->y;
}

/* Returns part k of [N, parts H]. */
static trek_var *part(const unrolled *u, trek_var *x, int k) { return trek_narrow(x, 1, k * u->hidden, u->hidden); }

static trek_var *product(const unrolled *u)
{
    trek_var *y = trek_matmul(u->h, trek_transpose(u->weight, 0, 1));
    return u->bias ? trek_add(y, u->bias) : y;
}

/* Takes the step at time t to its new h and c (which may be NULL) for rows that have this step. */
static void take(unrolled *u, int64_t t, trek_var *h, trek_var *c)
{
    trek_var *has = u->lengths ? trek_gt_scalar(u->lengths, (double)t) : NULL;
    u->y[t] = has ? trek_where(has, h, u->zeros) : h;
    u->h = has ? trek_where(has, h, u->h) : h;
    u->c = has && c ? trek_where(has, c, u->c) : c;
}

/* Returns y [T, N, H] in the dtype of `like`. */
static trek_var *sequence(const unrolled *u, const trek_var *like)
{
    if (u->steps > 0)
        return trek_rule_rounded(trek_stack(u->y, (int)u->steps, 0), like);
    trek_tensor *none = trek_tensor_zeros(trek_dims(0, u->rows, u->hidden), trek_var_dtype(like), trek_var_device(like));
    return none ? trek_var_from(none) : NULL;
}

COMPOSITE(lstm)
{
    (void)op, (void)n_inputs;
    unrolled u;
    if (!unroll_begin(&u, inputs[0], inputs[1], inputs[4], attrs))
        return NULL;
    u.h = inputs[2] ? trek_rule_wide(inputs[2]) : u.zeros;
    u.c = inputs[3] ? trek_rule_wide(inputs[3]) : u.zeros;
    for (int64_t s = 0; s < u.steps; s++) {
        int64_t t = u.reverse ? u.steps - 1 - s : s;
        trek_var *sum = trek_add(trek_select(u.gates, 0, t), product(&u));
        trek_var *i = trek_sigmoid(part(&u, sum, 0)), *f = trek_sigmoid(part(&u, sum, 1));
        trek_var *g = trek_tanh(part(&u, sum, 2)), *o = trek_sigmoid(part(&u, sum, 3));
        trek_var *c = trek_add(trek_mul(f, u.c), trek_mul(i, g));
        take(&u, t, trek_mul(o, trek_tanh(c)), c);
    }
    trek_var *state[2] = { u.h, u.c };
    trek_var *result = attrs->i[TREK_COMPOSITE_OUTPUT] ? trek_rule_rounded(trek_stack(state, 2, 0), inputs[0])
                                                       : sequence(&u, inputs[0]);
    trek_free(u.y);
    return result;
}

COMPOSITE(gru)
{
    (void)op, (void)n_inputs;
    unrolled u;
    if (!unroll_begin(&u, inputs[0], inputs[1], inputs[4], attrs))
        return NULL;
    u.bias = trek_rule_wide(inputs[2]);
    u.h = inputs[3] ? trek_rule_wide(inputs[3]) : u.zeros;
    for (int64_t s = 0; s < u.steps; s++) {
        int64_t t = u.reverse ? u.steps - 1 - s : s;
        trek_var *gates = trek_select(u.gates, 0, t), *sum = product(&u);
        trek_var *r = trek_sigmoid(trek_add(part(&u, gates, 0), part(&u, sum, 0)));
        trek_var *z = trek_sigmoid(trek_add(part(&u, gates, 1), part(&u, sum, 1)));
        trek_var *n = trek_tanh(trek_add(part(&u, gates, 2), trek_mul(r, part(&u, sum, 2))));
        take(&u, t, trek_add(n, trek_mul(z, trek_sub(u.h, n))), NULL);
    }
    trek_var *result = attrs->i[TREK_COMPOSITE_OUTPUT] ? trek_rule_rounded(u.h, inputs[0]) : sequence(&u, inputs[0]);
    trek_free(u.y);
    return result;
}

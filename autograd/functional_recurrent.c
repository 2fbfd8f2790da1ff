/* SPDX-License-Identifier: Apache-2.0 */
/* The public recurrent layers: one product for the inputs of all steps, then the recurrence. */
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

/* Replaces the inputs beyond each row's length by zeros. They may be anything, and 0 times a value that is not finite
 * is not 0. */
static trek_var *without_padding(trek_var *x, trek_var *lengths)
{
    int64_t steps = trek_var_size(x, 0);
    trek_tensor *times = trek_tensor_arange(0, (double)steps, 1, TREK_I64, trek_var_device(x));
    trek_var *time = times ? trek_var_from(times) : NULL;
    trek_var *beyond = trek_ge(trek_unsqueeze(time, 1), trek_unsqueeze(lengths, 0));
    return trek_masked_fill(x, trek_unsqueeze(beyond, 2), 0);
}

/* The first part of both layers: checks opts and computes the inputs' part of the gates [T, N, gates H]. Returns NULL
 * on failure. */
static trek_var *input_gates(const char *name, trek_var *x, trek_var *weight, trek_var *bias, trek_recurrent_opts *opts)
{
    char text[TREK_SHAPE_TEXT];
    if (!x || !weight)
        return trek_fail_missing(name, "input"), NULL;
    if (trek_var_ndim(x) != 3)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: input: %s; must be [T, N, features]", name,
                              trek_tensor_shape_text(x->data, text));
    if (opts->lengths) {
        trek_var *lengths = opts->lengths;
        trek_dtype dtype = trek_var_dtype(lengths);
        if (trek_var_ndim(lengths) != 1 || trek_var_size(lengths, 0) != trek_var_size(x, 1))
            return trek_fail_null(TREK_ERR_SHAPE, "%s: lengths: %s; must be [%lld]", name,
                                  trek_tensor_shape_text(lengths->data, text), (long long)trek_var_size(x, 1));
        if (dtype != TREK_I64 && dtype != TREK_I32 && dtype != TREK_U8)
            return trek_fail_null(TREK_ERR_DTYPE, "%s: lengths: dtype %s; must be an integer dtype", name,
                                  trek_dtype_name(dtype));
        opts->lengths = trek_to(lengths, trek_var_device(x));
        x = opts->lengths ? without_padding(x, opts->lengths) : NULL;
    }
    return x ? trek_linear(x, weight, bias) : NULL;
}

/* Biases that are added together have to be alike: neither is broadcast or promoted. */
static trek_var *joined_bias(trek_var *bias_ih, trek_var *bias_hh)
{
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    if (!bias_ih || !bias_hh)
        return bias_ih ? bias_ih : bias_hh;
    if (!trek_same_sizes(bias_ih->data, bias_hh->data))
        return trek_fail_null(TREK_ERR_SHAPE, "lstm: bias_ih and bias_hh: %s and %s; must be equal",
                              trek_tensor_shape_text(bias_ih->data, first), trek_tensor_shape_text(bias_hh->data, second));
    if (bias_ih->data->dtype != bias_hh->data->dtype)
        return trek_fail_null(TREK_ERR_DTYPE, "lstm: bias_ih and bias_hh: dtypes %s and %s; must be equal",
                              trek_dtype_name(trek_var_dtype(bias_ih)), trek_dtype_name(trek_var_dtype(bias_hh)));
    return trek_add(bias_ih, bias_hh);
}

static bool wants(const trek_var *var) { return var && var->requires_grad; }

/* --- with a projection: h = weight_hr h', so that weight_hh h = (weight_hh weight_hr) h' of an LSTM whose state is h' ------- */

static bool projection_fits(trek_var *x, trek_var *weight_hh, trek_var *weight_hr, const trek_var *h0)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!x || !weight_hh)
        return trek_fail_missing("lstm", "input"), false;
    trek_shape r = trek_var_shape(weight_hr), h = trek_var_shape(weight_hh);
    if (r.ndim != 2 || h.ndim != 2 || r.sizes[0] != h.sizes[1] || h.sizes[0] != 4 * r.sizes[1])
        return trek_fail(TREK_ERR_SHAPE, "lstm: weight_hr: %s does not fit weight_hh %s; must be [P, H] and [4 H, P]",
                         trek_tensor_shape_text(weight_hr->data, a), trek_tensor_shape_text(weight_hh->data, b)),
               false;
    if (trek_var_ndim(x) != 3)
        return trek_fail(TREK_ERR_SHAPE, "lstm: input: %s; must be [T, N, features]", trek_tensor_shape_text(x->data, a)), false;
    if (h0 && (trek_var_ndim(h0) != 2 || trek_var_size(h0, 0) != trek_var_size(x, 1) || trek_var_size(h0, 1) != r.sizes[0]))
        return trek_fail(TREK_ERR_SHAPE, "lstm: h0: %s; must be [%lld, %lld]", trek_tensor_shape_text(h0->data, a),
                         (long long)trek_var_size(x, 1), (long long)r.sizes[0]),
               false;
    return true;
}

/* Returns h0 [N, P] at each row's first step and 0 elsewhere: [T, N, P]. */
static trek_var *at_first_step(const trek_var *x, trek_var *h0, const trek_recurrent_opts *opts)
{
    int64_t steps = trek_var_size(x, 0), last = steps - 1;
    trek_tensor *numbers = trek_tensor_arange(0, (double)steps, 1, TREK_I64, trek_var_device(x));
    trek_var *times = trek_reshape(numbers ? trek_var_from(numbers) : NULL, trek_dims(steps, 1, 1)), *first;
    if (opts->reverse && opts->lengths)
        first = trek_eq(times, trek_unsqueeze(trek_sub_scalar(trek_cast(trek_to(opts->lengths, trek_var_device(x)), TREK_I64), 1),
                                              1));
    else
        first = trek_eq_scalar(times, opts->reverse ? (double)last : 0);
    trek_tensor *zero = trek_tensor_zeros(trek_dims_none(), trek_var_dtype(h0), trek_var_device(x));
    trek_shape whole = trek_dims(steps, trek_var_size(h0, 0), trek_var_size(h0, 1));
    return trek_expand(trek_where(first, h0, zero ? trek_var_from(zero) : NULL), whole);
}

/* Returns the projected state for rows that have had a step, and the old one for the others. */
static trek_var *projected_state(trek_var *state, const trek_recurrent_opts *opts, int64_t steps)
{
    trek_var *h = trek_linear(state, opts->weight_hr, NULL);
    if (!h || !opts->h0 || (steps > 0 && !opts->lengths))
        return h;
    if (steps == 0)
        return trek_cast(opts->h0, trek_var_dtype(h));
    trek_var *none = trek_eq_scalar(trek_to(opts->lengths, trek_var_device(h)), 0);
    return trek_where(trek_unsqueeze(none, 1), trek_cast(opts->h0, trek_var_dtype(h)), h);
}

/* h0 need not be a projection of any h', so its part of the gates is added to the input of the first step. */
static trek_var *projected_lstm(trek_var *x, trek_var *weight_ih, trek_var *weight_hh, trek_var *bias_ih, trek_var *bias_hh,
                                const trek_recurrent_opts *opts, trek_var **hn, trek_var **cn)
{
    trek_var *weight_hr = opts->weight_hr, *h0 = opts->h0, *inner = NULL;
    if (!projection_fits(x, weight_hh, weight_hr, h0))
        return NULL;
    trek_recurrent_opts plain = { .c0 = opts->c0, .lengths = opts->lengths, .reverse = opts->reverse };
    trek_var *whole = trek_matmul(weight_hh, weight_hr);
    int64_t steps = trek_var_size(x, 0);
    if (h0 && steps > 0) {
        x = trek_cat((trek_var *[]){ x, trek_cast(at_first_step(x, h0, opts), trek_var_dtype(x)) }, 2, 2);
        weight_ih = trek_cat((trek_var *[]){ weight_ih, weight_hh }, 2, 1);
    }
    trek_var *y = trek_linear(trek_lstm(x, weight_ih, whole, bias_ih, bias_hh, &plain, hn ? &inner : NULL, cn), weight_hr, NULL);
    if (y && hn)
        *hn = projected_state(inner, opts, steps);
    return !hn || *hn ? y : NULL;
}

trek_var *trek_lstm(trek_var *x, trek_var *weight_ih, trek_var *weight_hh, trek_var *bias_ih, trek_var *bias_hh,
                    const trek_recurrent_opts *given, trek_var **hn, trek_var **cn)
{
    trek_recurrent_opts opts = given ? *given : (trek_recurrent_opts){ 0 };
    trek_var *outs[2] = { NULL }, *bias = NULL;
    if (hn)
        *hn = NULL;
    if (cn)
        *cn = NULL;
    if (opts.weight_hr)
        return projected_lstm(x, weight_ih, weight_hh, bias_ih, bias_hh, &opts, hn, cn);
    bias = joined_bias(bias_ih, bias_hh);
    if ((bias_ih || bias_hh) && !bias)
        return NULL;
    trek_var *in[5] = { input_gates("lstm", x, weight_ih, bias, &opts), weight_hh, opts.h0, opts.c0, opts.lengths };
    if (!in[0] || !weight_hh)
        return trek_fail_missing("lstm", "input"), NULL;
    bool keep = trek_recording() && (wants(in[0]) || wants(in[1]) || wants(in[2]) || wants(in[3]));
    trek_attrs numbers = { .i = { opts.reverse, keep } };
    if (trek_apply_many(&trek_ops[TREK_OP_lstm], in, 5, &numbers, outs, 2) != TREK_OK)
        return NULL;
    if (hn && !(*hn = trek_select(outs[1], 0, 0)))
        return NULL;
    if (cn && !(*cn = trek_select(outs[1], 0, 1)))
        return NULL;
    return outs[0];
}

trek_var *trek_gru(trek_var *x, trek_var *weight_ih, trek_var *weight_hh, trek_var *bias_ih, trek_var *bias_hh,
                   const trek_recurrent_opts *given, trek_var **hn)
{
    trek_recurrent_opts opts = given ? *given : (trek_recurrent_opts){ 0 };
    trek_var *outs[2] = { NULL };
    if (hn)
        *hn = NULL;
    if (opts.c0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "gru: c0: given; a gru has none");
    if (opts.weight_hr)
        return trek_fail_null(TREK_ERR_ARGUMENT, "gru: weight_hr: given; a gru has none");
    trek_var *in[5] = { input_gates("gru", x, weight_ih, bias_ih, &opts), weight_hh, bias_hh, opts.h0, opts.lengths };
    if (!in[0] || !weight_hh)
        return trek_fail_missing("gru", "input"), NULL;
    bool keep = trek_recording() && (wants(in[0]) || wants(in[1]) || wants(in[2]) || wants(in[3]));
    trek_attrs numbers = { .i = { opts.reverse, keep } };
    if (trek_apply_many(&trek_ops[TREK_OP_gru], in, 5, &numbers, outs, 2) != TREK_OK)
        return NULL;
    if (hn)
        *hn = outs[1];
    return outs[0];
}

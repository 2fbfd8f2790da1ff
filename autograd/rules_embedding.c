/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of table look-ups, of bags of them, and of rotary positions. */
#include "autograd/rules_internal.h"

static trek_dtype wide_dtype(const trek_var *x) { return trek_var_dtype(x) == TREK_F64 ? TREK_F64 : TREK_F32; }

static trek_var *zeros_of(const trek_var *like, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *t = trek_tensor_zeros(shape, dtype, trek_var_device(like));
    return t ? trek_var_from(t) : NULL;
}

static trek_var *ones_of(const trek_var *like, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *t = trek_tensor_ones(shape, dtype, trek_var_device(like));
    return t ? trek_var_from(t) : NULL;
}

/* Returns 1 over the number of times that each position's row occurs, in the index's shape. */
static trek_var *over_frequency(trek_var *index, int64_t rows, trek_dtype dtype)
{
    trek_var *flat = trek_cast(trek_reshape(index, trek_dims(trek_var_numel(index))), TREK_I64);
    if (!flat || trek_var_numel(flat) == 0)
        return trek_cast(index, dtype);
    trek_var *counts = trek_index_add(zeros_of(flat, trek_dims(rows), TREK_I64), 0,
                                      flat, ones_of(flat, trek_dims(trek_var_numel(flat)), TREK_I64));
    trek_var *each = trek_cast(trek_index_select(counts, 0, flat), dtype);
    return each ? trek_reshape(trek_reciprocal(each), trek_var_shape(index)) : NULL;
}

/* Adds the sums of rows directly to the table's gradient. If that holds something already (from a head that shares
 * the table), rows are added one by one. A device would add them in any order, so there a whole table is computed
 * first. */
static trek_status embedding_into(trek_backward_call *b, trek_tensor *place, trek_tensor *index, trek_tensor *factors,
                                  int64_t rows, bool overwrite)
{
    trek_tensor *grad = b->grad->data, *in[4] = { grad, index, NULL, factors };
    trek_op_call call = { .op = &trek_ops[TREK_OP_embedding_backward], .n_inputs = 4, .inputs = in, .n_outputs = 1,
                          .outputs = { place }, .attrs.i = { b->attrs->i[0], rows } };
    if (overwrite)
        return trek_op_run(&call);
    trek_tensor *flat = trek_tensor_reshape(index, trek_dims(index->numel));
    trek_tensor *source = trek_tensor_reshape(grad, trek_dims(index->numel, place->sizes[1]));
    trek_op_call sum = { .op = &trek_ops[TREK_OP_index_add], .n_inputs = 3, .n_outputs = 1, .outputs = { place },
                         .inputs = (trek_tensor *[]){ place, flat, source } };
    trek_status status = flat && source ? trek_op_run(&sum) : trek_error_status();
    trek_tensor_release(flat);
    trek_tensor_release(source);
    return status;
}

trek_status trek_rule_embedding(trek_backward_call *b)
{
    int64_t rows = trek_rule_shape(b, 0).sizes[0];
    trek_var *index = trek_rule_input(b, 1), *factors = NULL;
    bool overwrite;
    if (b->attrs->i[1] && !(factors = over_frequency(index, rows, wide_dtype(b->grad))))
        return trek_error_status();
    trek_tensor *place = index ? trek_rule_sink(b, 0, &overwrite) : NULL;
    bool one_by_one = place && !factors && b->attrs->i[0] < 0 && place->device.type == TREK_CPU && index->data->dtype != TREK_U8;
    if (!place || (!overwrite && !one_by_one))
        return trek_rule_give(b, trek_apply_embedding_backward(b->grad, index, NULL, factors, b->attrs->i[0], rows));
    trek_status status = embedding_into(b, place, index->data, factors ? factors->data : NULL, rows, overwrite);
    if (status == TREK_OK)
        trek_rule_sunk(b, 0);
    return status;
}

/* --- bags ------------------------------------------------------------------------------------------------- */

/* Returns the bag of each position as i64, and the index behind the last bag for positions in no bag. */
static trek_var *bags_of(trek_var *offsets, int64_t places)
{
    trek_tensor *all = trek_tensor_arange(0, (double)places, 1, TREK_I64, trek_var_device(offsets));
    trek_var *ends = trek_narrow(offsets, 0, 1, trek_var_numel(offsets) - 1);
    return all ? trek_searchsorted(ends, trek_var_from(all), true) : NULL;
}

/* Sets v to 0 where an index is the padding. */
static trek_var *without_padding(trek_var *v, trek_var *index, int64_t padding)
{
    if (padding < 0 || !v)
        return v;
    trek_var *is = trek_eq_scalar(index, (double)padding);
    return trek_masked_fill(v, trek_var_ndim(v) > trek_var_ndim(index) ? trek_unsqueeze(is, -1) : is, 0);
}

/* Returns 1 over the number of rows in the mean of each position's bag. */
static trek_var *over_members(trek_var *index, trek_var *bags, int64_t n, int64_t padding, trek_dtype dtype)
{
    trek_var *one = without_padding(ones_of(index, trek_var_shape(index), dtype), index, padding);
    trek_var *counts = trek_index_add(zeros_of(index, trek_dims(n + 1), dtype), 0, bags, one);
    return trek_reciprocal(trek_index_select(trek_maximum(counts, ones_of(index, trek_dims_none(), dtype)), 0, bags));
}

/* Computes the factors of the positions in a sum or a mean (NULL: 1). Returns false on failure. */
static bool factors_of(trek_backward_call *b, trek_var *index, trek_var *bags, int64_t rows, trek_var **factors)
{
    trek_var *given = trek_rule_input(b, 3), *each;
    trek_dtype dtype = wide_dtype(b->grad);
    bool mean = b->attrs->i[1] == TREK_REDUCTION_MEAN;
    *factors = given ? trek_cast(given, dtype)
        : mean ? over_members(index, bags, trek_var_size(b->grad, 0), b->attrs->i[0], dtype) : NULL;
    if ((given || mean) && !*factors)
        return false;
    if (!b->attrs->i[2])
        return true;
    each = over_frequency(index, rows, dtype);
    *factors = *factors && each ? trek_mul(*factors, each) : each;
    return *factors;
}

/* Adds each number to the row that was the largest, in f32 for 16-bit dtypes. */
static trek_var *to_largest(trek_backward_call *b, trek_shape weight)
{
    trek_var *rows = trek_rule_output(b, 1), *g = trek_rule_wide(b->grad);
    trek_var *zeros = g ? zeros_of(g, weight, trek_var_dtype(g)) : NULL;
    if (!zeros || weight.sizes[0] == 0)
        return zeros;
    trek_var *empty = trek_lt_scalar(rows, 0);
    return trek_scatter_add(zeros, 0, trek_masked_fill(rows, empty, 0), trek_masked_fill(g, empty, 0));
}

/* Computes <rows[k], grad[bags[k]]> for each position; 0 for the padding and outside bags. */
static trek_var *products(trek_var *rows, trek_var *grad, trek_var *index, trek_var *bags, int64_t padding)
{
    int64_t n = trek_var_size(grad, 0);
    if (n == 0)
        return rows ? zeros_of(rows, trek_var_shape(index), trek_var_dtype(rows)) : NULL;
    trek_var *none = trek_ge_scalar(bags, (double)n);
    trek_var *own = trek_index_select(trek_rule_wide(grad), 0, trek_masked_fill(bags, none, 0));
    trek_var *sums = trek_sum(trek_mul(trek_rule_wide(rows), own), trek_dims(-1), false);
    return without_padding(trek_masked_fill(sums, none, 0), index, padding);
}

trek_status trek_rule_embedding_bag(trek_backward_call *b)
{
    trek_var *index = trek_rule_input(b, 1), *offsets = trek_rule_input(b, 2);
    trek_shape weight = trek_rule_shape(b, 0);
    trek_status status = TREK_OK;
    if (!index || !offsets)
        return trek_error_status();
    if (b->attrs->i[1] == TREK_REDUCTION_MAX)
        return trek_rule_needs(b, 0) ? trek_rule_give_to(b, 0, to_largest(b, weight)) : TREK_OK;
    trek_var *bags = bags_of(offsets, trek_var_numel(index));
    if (trek_rule_needs(b, 0)) {
        trek_var *factors = NULL, *grad = NULL;
        if (bags && factors_of(b, index, bags, weight.sizes[0], &factors))
            grad = trek_apply_embedding_backward(b->grad, index, bags, factors, b->attrs->i[0], weight.sizes[0]);
        status = trek_rule_give_to(b, 0, grad);
    }
    if (status == TREK_OK && trek_rule_needs(b, 3)) {
        trek_var *rows = bags ? trek_apply_embedding(trek_rule_input(b, 0), index, -1, b->attrs->i[2]) : NULL;
        status = trek_rule_give_to(b, 3, rows ? products(rows, b->grad, index, bags, b->attrs->i[0]) : NULL);
    }
    return status;
}

/* d grad: the cotangent's rows at the indices, except for the padding. d factors: their products with grad. */
trek_status trek_rule_embedding_backward(trek_backward_call *b)
{
    trek_var *index = trek_rule_input(b, 1), *bags = trek_rule_input(b, 2), *factors = trek_rule_input(b, 3);
    trek_var *rows = trek_embedding(index, b->grad, -1);
    trek_status status = TREK_OK;
    if (trek_rule_needs(b, 0)) {
        trek_var *g = without_padding(rows, index, b->attrs->i[0]);
        g = factors && g ? trek_mul(trek_rule_wide(g), trek_unsqueeze(factors, -1)) : g;
        if (bags && g) {
            trek_shape shape = trek_rule_shape(b, 0);
            shape.sizes[0]++;
            g = trek_rule_wide(g);
            g = trek_narrow(trek_index_add(zeros_of(g, shape, trek_var_dtype(g)), 0, bags, g), 0, 0, shape.sizes[0] - 1);
        }
        status = trek_rule_give_to(b, 0, g);
    }
    if (status == TREK_OK && factors && trek_rule_needs(b, 3)) {
        trek_var *grad = trek_rule_input(b, 0);
        trek_var *each = bags ? products(rows, grad, index, bags, b->attrs->i[0])
            : without_padding(trek_sum(trek_mul(trek_rule_wide(rows), trek_rule_wide(grad)), trek_dims(-1), false), index,
                              b->attrs->i[0]);
        status = trek_rule_give_to(b, 3, each);
    }
    return status;
}

/* --- positions ---------------------------------------------------------------------------------------------- */

trek_status trek_rule_rotary(trek_backward_call *b)
{
    return trek_rule_give(b, trek_apply_rotary(b->grad, trek_rule_input(b, 1), b->attrs->i[0], !b->attrs->i[1]));
}

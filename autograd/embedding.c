/* SPDX-License-Identifier: Apache-2.0 */
/* Table look-ups with options, and bags of them. */
#include <inttypes.h>

#include "autograd/backward.h"
#include "autograd/embedding_internal.h"
#include "autograd/rules_internal.h"
#include "tensor/option_internal.h"
#include "tensor/rank_context.h"

trek_status trek_padding_row(const char *name, int64_t given, int64_t rows, int64_t *row)
{
    *row = given;
    if (given == 0 || given == TREK_OFF)
        *row = -1;
    else if (given == TREK_ZERO && rows > 0)
        *row = 0;
    else if (given < -rows || given >= rows)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: padding_idx: %" PRId64 "; must be inside %" PRId64 " rows", name,
                         trek_option_integer(given, 0), rows);
    else if (given < 0)
        *row += rows;
    return TREK_OK;
}

trek_status trek_check_max_norm(const char *name, double max_norm, double norm_type)
{
    if (trek_option(max_norm, 0) >= 0 && trek_option(norm_type, 2) == trek_option(norm_type, 2))
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: max_norm: %g, norm_type: %g; must be 0 or more, and not NaN", name, max_norm,
                     norm_type);
}

/* --- norms -------------------------------------------------------------------------------------------- */

/* Writes new values over the rows that are looked up. A row that occurs twice is written twice with the same values. */
static trek_status write_rows(trek_var *weight, trek_var *index, trek_var *rows)
{
    trek_shape shape = trek_var_shape(rows);
    trek_var *places = trek_expand(trek_unsqueeze(trek_cast(index, TREK_I64), -1), shape);
    if (!places)
        return trek_error_status();
    trek_tensor *in[3] = { weight->data, places->data, rows->data };
    trek_op_call call = { .op = &trek_ops[TREK_OP_scatter], .n_inputs = 3, .inputs = in, .n_outputs = 1,
                          .outputs = { weight->data } };
    trek_status status = trek_op_run(&call);
    if (status == TREK_OK)
        trek_tensor_bump(weight->data);
    return status;
}

/* Like torch.embedding_renorm_. Nothing is recorded. */
static trek_status limit_norms(const char *name, trek_var *weight, trek_var *index, double most, double p)
{
    index = trek_reshape(index, trek_dims(trek_var_numel(index)));
    trek_var *rows = trek_embedding(index, weight, -1), *wide = trek_rule_wide(rows);
    trek_var *norm = trek_norm(wide, p, trek_dims(1), true);
    trek_var *factor = trek_mul_scalar(trek_reciprocal(trek_add_scalar(norm, 1e-7)), most);
    trek_var *limited = trek_where(trek_gt_scalar(norm, most), trek_mul(wide, factor), wide);
    limited = trek_rule_rounded(limited, weight);
    if (!limited)
        return trek_error_status();
    trek_status status = trek_check_overwrite(name, weight->data, limited->data);
    return status == TREK_OK ? write_rows(weight, index, limited) : status;
}

/* Scales rows of the weight that are too long, if that was requested. */
static trek_status renormalise(const char *name, trek_var *weight, trek_var *index, double max_norm, double norm_type)
{
    trek_status status = trek_check_max_norm(name, max_norm, norm_type);
    if (max_norm == 0 || status != TREK_OK)
        return status;
    if (trek_rank_here.world > 1)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "%s: max_norm: set, but it writes to the weight, which ranks share or have copies of", name);
    if (trek_var_ndim(weight) != 2 || trek_dtype_is_float(trek_var_dtype(index)) || trek_var_numel(index) == 0)
        return TREK_OK; /* the look-up reports what does not fit */
    trek_no_grad_begin();
    status = limit_norms(name, weight, index, trek_option(max_norm, 0), trek_option(norm_type, 2));
    trek_no_grad_end();
    return status;
}

/* --- look-ups ------------------------------------------------------------------------------------------- */

trek_var *trek_embedding_with(trek_var *indices, trek_var *weight, const trek_lookup_opts *given)
{
    trek_lookup_opts opts = given ? *given : (trek_lookup_opts){ 0 };
    int64_t row;
    if (!weight || !indices)
        return trek_fail_missing("embedding", "input"), NULL;
    int64_t rows = trek_var_ndim(weight) > 0 ? trek_var_size(weight, 0) : 0;
    if (trek_padding_row("embedding", opts.padding_idx, rows, &row) != TREK_OK ||
        renormalise("embedding", weight, indices, opts.max_norm, opts.norm_type) != TREK_OK)
        return NULL;
    return trek_apply_embedding(weight, indices, row, opts.scale_grad_by_freq);
}

/* --- bags ------------------------------------------------------------------------------------------------- */

/* Returns the offsets of lines: 0, m, 2 m, ... */
static trek_var *offsets_of_lines(trek_var *indices)
{
    int64_t bags = trek_var_size(indices, 0), each = trek_var_size(indices, 1);
    trek_device device = trek_var_device(indices);
    trek_tensor *t = each > 0 ? trek_tensor_arange(0, (double)(bags * each + 1), (double)each, TREK_I64, device)
        : trek_tensor_zeros(trek_dims(bags + 1), TREK_I64, device);
    return t ? trek_var_from(t) : NULL;
}

/* Returns where bags begin, and the end, as i64 [bags + 1]. */
static trek_var *offsets_of(trek_var *indices, const trek_bag_opts *opts)
{
    trek_var *offsets = opts->offsets;
    int ndim = trek_var_ndim(indices);
    if (ndim == 2 && !offsets)
        return offsets_of_lines(indices);
    if (ndim != 1)
        return trek_fail_null(ndim == 2 ? TREK_ERR_ARGUMENT : TREK_ERR_SHAPE,
                              ndim == 2
                                  ? "embedding_bag: offsets: given; indices with 2 dimensions have none, since each row is a bag"
                                  : "embedding_bag: indices: %d dimensions; must have 1 or 2",
                              ndim);
    if (!offsets)
        return trek_fail_null(TREK_ERR_ARGUMENT, "embedding_bag: offsets: NULL; indices with 1 dimension need them");
    trek_dtype dtype = trek_var_dtype(offsets);
    if (trek_var_ndim(offsets) != 1)
        return trek_fail_null(TREK_ERR_SHAPE, "embedding_bag: offsets: %d dimensions; must have 1", trek_var_ndim(offsets));
    if (dtype != TREK_I64 && dtype != TREK_I32)
        return trek_fail_null(TREK_ERR_DTYPE, "embedding_bag: offsets: dtype %s; must be i64 or i32", trek_dtype_name(dtype));
    offsets = trek_cast(offsets, TREK_I64);
    if (opts->include_last_offset || !offsets)
        return offsets;
    trek_tensor *end = trek_tensor_full(trek_dims(1), (double)trek_var_numel(indices), TREK_I64, trek_var_device(indices));
    return end ? trek_cat((trek_var *[]){ offsets, trek_var_from(end) }, 2, 0) : NULL;
}

trek_var *trek_embedding_bag(trek_var *indices, trek_var *weight, const trek_bag_opts *given)
{
    trek_bag_opts opts = given ? *given : (trek_bag_opts){ 0 };
    char first[TREK_SHAPE_TEXT], second[TREK_SHAPE_TEXT];
    int64_t row;
    if (!weight || !indices)
        return trek_fail_missing("embedding_bag", "input"), NULL;
    trek_var *offsets = offsets_of(indices, &opts), *factors = opts.per_sample_weights;
    if (!offsets)
        return NULL;
    if (factors && !trek_shape_equal(trek_var_shape(factors), trek_var_shape(indices)))
        return trek_fail_null(TREK_ERR_SHAPE, "embedding_bag: per_sample_weights: %s; must have the shape of the indices, %s",
                              trek_shape_format(trek_var_shape(factors), first, sizeof first),
                              trek_shape_format(trek_var_shape(indices), second, sizeof second));
    if (factors && opts.mode != TREK_REDUCTION_SUM)
        return trek_fail_null(TREK_ERR_ARGUMENT, "embedding_bag: per_sample_weights: given; only sums have them");
    if (opts.scale_grad_by_freq && opts.mode == TREK_REDUCTION_MAX)
        return trek_fail_null(
            TREK_ERR_ARGUMENT,
            "embedding_bag: scale_grad_by_freq: set together with TREK_REDUCTION_MAX, whose gradients are not scaled");
    int64_t rows = trek_var_ndim(weight) > 0 ? trek_var_size(weight, 0) : 0;
    if (trek_padding_row("embedding_bag", opts.padding_idx, rows, &row) != TREK_OK ||
        renormalise("embedding_bag", weight, indices, opts.max_norm, opts.norm_type) != TREK_OK)
        return NULL;
    trek_var *flat = trek_reshape(indices, trek_dims(trek_var_numel(indices)));
    factors = factors ? trek_reshape(factors, trek_dims(trek_var_numel(indices))) : NULL;
    if (!flat || (opts.per_sample_weights && !factors))
        return NULL;
    return trek_apply_embedding_bag(weight, flat, offsets, factors, row, (int)opts.mode, opts.scale_grad_by_freq);
}

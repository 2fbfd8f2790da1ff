/* SPDX-License-Identifier: Apache-2.0 */
/* Distances, and losses on pairs, triplets and margins. */
#include <math.h>

#include "autograd/blocks.h"
#include "autograd/losses_internal.h"

static trek_margin_opts options(const trek_margin_opts *given) { return given ? *given : (trek_margin_opts){ 0 }; }

static bool options_fit(const char *name, const trek_margin_opts *opts)
{
    if (opts->weight)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .weight: set; this loss has none", name), false;
    return trek_loss_reduction_known(name, opts->reduction);
}

static trek_var *at_least_0(trek_var *x) { return trek_clamp(x, 0, INFINITY); }

/* --- distances -------------------------------------------------------------------------------- */

/* Converts both to one dtype (f32 for 16-bit inputs) and one shape. *result is the dtype that the result is rounded
 * to. Returns false on failure. */
static bool pair_of(const char *name, trek_var **inputs, trek_dtype *result)
{
    if (!trek_loss_widen(name, inputs, 2, TREK_LOSS_TAKEN_FLOATS, result))
        return false;
    const trek_tensor *x = inputs[0]->data, *y = inputs[1]->data;
    trek_shape shape = { .ndim = x->ndim > y->ndim ? x->ndim : y->ndim };
    for (int d = 1; d <= shape.ndim; d++) {
        int64_t a = d <= x->ndim ? x->sizes[x->ndim - d] : 1, b = d <= y->ndim ? y->sizes[y->ndim - d] : 1;
        char texts[2][TREK_SHAPE_TEXT];
        if (a != b && a != 1 && b != 1)
            return trek_fail(TREK_ERR_SHAPE, "%s: inputs: shapes %s and %s do not broadcast", name,
                             trek_tensor_shape_text(x, texts[0]), trek_tensor_shape_text(y, texts[1])),
                   false;
        shape.sizes[shape.ndim - d] = a == 1 ? b : a;
    }
    for (int k = 0; k < 2; k++)
        if (!trek_shape_equal(trek_var_shape(inputs[k]), shape))
            inputs[k] = trek_expand(inputs[k], shape);
    return inputs[0] && inputs[1];
}

/* Computes |x| along dim, but at least eps. The gradient is that of |x| in either case. */
static trek_var *length_of(trek_var *x, int dim, double eps)
{
    trek_var *length = trek_norm(x, 2, trek_dims(dim), true), *fixed = length ? trek_var_detach(length) : NULL;
    return trek_add(length, trek_sub(trek_clamp(fixed, eps, INFINITY), fixed));
}

static trek_var *cosine(trek_var *x, trek_var *y, int dim, double eps)
{
    trek_var *a = trek_div(x, length_of(x, dim, eps)), *b = trek_div(y, length_of(y, dim, eps));
    return trek_sum(trek_mul(a, b), trek_dims(dim), false);
}
/* Returns whether both have one shape, and lines along dim that can be processed one after the other: it is the last dimension,
 * or its elements are adjacent. */
static bool of_lines(trek_var *const *in, int dim)
{
    const trek_tensor *x = in[0]->data, *y = in[1]->data;
    if (!trek_same_sizes(x, y) || dim < -x->ndim || dim >= x->ndim)
        return false;
    const int at = dim < 0 ? dim + x->ndim : dim;
    return at == x->ndim - 1 || (x->strides[at] == 1 && y->strides[at] == 1);
}

/* numbers: the dtype to compute in, eps */
static trek_var *cosine_of_lines(trek_var *const *in, const double *numbers)
{
    return cosine(trek_cast(in[0], (trek_dtype)numbers[0]), trek_cast(in[1], (trek_dtype)numbers[0]), -1, numbers[1]);
}

trek_var *trek_cosine_similarity(trek_var *x, trek_var *y, int dim, double eps)
{
    static const char name[] = "cosine_similarity";
    trek_dtype dtype, work;
    trek_var *inputs[2] = { x, y };
    if (!trek_loss_dtypes(name, inputs, 2, TREK_LOSS_TAKEN_FLOATS, &work, &dtype))
        return NULL;
    if (of_lines(inputs, dim)) {
        for (int k = 0; k < 2 && dim != -1; k++)
            inputs[k] = trek_movedim(inputs[k], trek_dims(dim), trek_dims(-1));
        return trek_loss_rounded(trek_by_rows(cosine_of_lines, inputs, 2, (double[]){ (double)work, eps }), dtype);
    }
    return pair_of(name, inputs, &dtype) ? trek_loss_rounded(cosine(inputs[0], inputs[1], dim, eps), dtype) : NULL;
}

/* numbers: the dtype to compute in, p, eps */
static trek_var *distance_of_lines(trek_var *const *in, const double *numbers)
{
    trek_var *x = trek_cast(in[0], (trek_dtype)numbers[0]), *y = trek_cast(in[1], (trek_dtype)numbers[0]);
    return trek_norm(trek_add_scalar(trek_sub(x, y), numbers[2]), numbers[1], trek_dims(-1), false);
}

static trek_var *distance(trek_var *x, trek_var *y, const double *numbers)
{
    return trek_by_rows(distance_of_lines, (trek_var *[]){ x, y }, 2, numbers);
}

trek_var *trek_pairwise_distance(trek_var *x, trek_var *y, double p, double eps, bool keepdim)
{
    static const char name[] = "pairwise_distance";
    trek_dtype dtype, work;
    trek_var *inputs[2] = { x, y };
    if (!trek_loss_dtypes(name, inputs, 2, TREK_LOSS_TAKEN_FLOATS, &work, &dtype))
        return NULL;
    if (!keepdim && trek_same_sizes(x->data, y->data) && trek_var_ndim(x) > 0)
        return trek_loss_rounded(distance(x, y, (double[]){ (double)work, p, eps }), dtype);
    if (!pair_of(name, inputs, &dtype))
        return NULL;
    trek_var *difference = trek_add_scalar(trek_sub(inputs[0], inputs[1]), eps);
    return trek_loss_rounded(trek_norm(difference, p, trek_dims(-1), keepdim), dtype);
}

/* --- losses ------------------------------------------------------------------------------------ */

static bool rows_fit(const char *name, const trek_var *x, const trek_var *y, const trek_var *target)
{
    int n = trek_var_ndim(x) - 1;
    bool fits = n <= 1 && trek_same_sizes(x->data, y->data) && trek_var_ndim(target) == n &&
        (n <= 0 || trek_var_size(target, 0) == trek_var_size(x, 0));
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT], c[TREK_SHAPE_TEXT];
    if (!fits)
        trek_fail(TREK_ERR_SHAPE, "%s: inputs: %s, %s and %s; must be [N, D], [N, D] and [N], or [D], [D] and []", name,
                  trek_tensor_shape_text(x->data, a), trek_tensor_shape_text(y->data, b),
                  trek_tensor_shape_text(target->data, c));
    return fits;
}

/* Selects `alike` where target is 1, `apart` where it is -1, and otherwise 0. */
static trek_var *by_target(trek_var *target, trek_var *alike, trek_var *apart)
{
    return trek_add(trek_masked_fill(alike, trek_ne_scalar(target, 1), 0),
                    trek_masked_fill(apart, trek_ne_scalar(target, -1), 0));
}

trek_var *trek_cosine_embedding_loss(trek_var *x, trek_var *y, trek_var *target, const trek_margin_opts *given)
{
    static const char name[] = "cosine_embedding_loss";
    trek_dtype dtype;
    trek_margin_opts opts = options(given);
    trek_var *in[2] = { x, y };
    if (!target)
        return trek_fail_missing(name, "input"), NULL;
    if (!options_fit(name, &opts) || !trek_loss_widen(name, in, 2, TREK_LOSS_TAKEN_FLOATS, &dtype) ||
        !rows_fit(name, in[0], in[1], target))
        return NULL;
    trek_dims_list last = trek_dims(-1);
    trek_var *squares = trek_mul(trek_add_scalar(trek_sum(trek_square(in[0]), last, false), 1e-12f),
                                 trek_add_scalar(trek_sum(trek_square(in[1]), last, false), 1e-12f));
    trek_var *cosine = trek_div(trek_sum(trek_mul(in[0], in[1]), last, false), trek_sqrt(squares));
    trek_var *losses = by_target(target, trek_add_scalar(trek_neg(cosine), 1),
                                 at_least_0(trek_sub_scalar(cosine, trek_option(opts.margin, 0))));
    return losses ? trek_loss_reduced(losses, opts.reduction, dtype) : NULL;
}

/* numbers: the dtype to compute in, the margin */
static trek_var *ranking_of(trek_var *const *in, const double *numbers)
{
    const trek_dtype work = (trek_dtype)numbers[0];
    trek_var *x = trek_cast(in[0], work), *y = trek_cast(in[1], work), *target = trek_cast(in[2], work);
    return at_least_0(trek_add_scalar(trek_mul(trek_neg(target), trek_sub(x, y)), numbers[1]));
}

trek_var *trek_margin_ranking_loss(trek_var *x, trek_var *y, trek_var *target, const trek_margin_opts *given)
{
    static const char name[] = "margin_ranking_loss";
    trek_dtype dtype, work;
    trek_margin_opts opts = options(given);
    trek_var *const in[3] = { x, y, target };
    if (!options_fit(name, &opts) || !trek_loss_alike(name, in, 3) ||
        !trek_loss_dtypes(name, in, 3, TREK_LOSS_TAKEN_ANY, &work, &dtype))
        return NULL;
    trek_var *losses = trek_by_blocks(ranking_of, in, 3, (double[]){ (double)work, trek_option(opts.margin, 0) });
    return losses ? trek_loss_reduced(losses, opts.reduction, dtype) : NULL;
}

trek_var *trek_hinge_embedding_loss(trek_var *x, trek_var *target, const trek_margin_opts *given)
{
    static const char name[] = "hinge_embedding_loss";
    trek_dtype dtype;
    trek_margin_opts opts = options(given);
    trek_var *in[2] = { x, target };
    if (!options_fit(name, &opts) || !trek_loss_alike(name, in, 2) ||
        !trek_loss_widen(name, in, 2, TREK_LOSS_TAKEN_ANY, &dtype))
        return NULL;
    trek_var *apart = at_least_0(trek_add_scalar(trek_neg(in[0]), trek_option(opts.margin, 1)));
    /* As in PyTorch: every target except 1 has the margin term, and every target except -1 the plain one. */
    trek_var *losses = trek_add(trek_masked_fill(apart, trek_eq_scalar(in[1], 1), 0),
                                trek_masked_fill(in[0], trek_eq_scalar(in[1], -1), 0));
    return losses ? trek_loss_reduced(losses, opts.reduction, dtype) : NULL;
}

trek_var *trek_triplet_margin_loss(trek_var *anchor, trek_var *positive, trek_var *negative, const trek_margin_opts *given)
{
    static const char name[] = "triplet_margin_loss";
    trek_dtype dtype, work;
    trek_margin_opts opts = options(given);
    double p = opts.p == 0 ? 2 : opts.p, eps = trek_option(opts.eps, 1e-6), margin = trek_option(opts.margin, 1);
    trek_var *const in[3] = { anchor, positive, negative };
    if (!(margin >= 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: margin: %g; must not be negative", name, margin);
    if (!options_fit(name, &opts) || !trek_loss_alike(name, in, 3) ||
        !trek_loss_dtypes(name, in, 3, TREK_LOSS_TAKEN_FLOATS, &work, &dtype))
        return NULL;
    const double numbers[] = { (double)work, p, eps };
    trek_var *near = distance(in[0], in[1], numbers), *far = distance(in[0], in[2], numbers);
    if (opts.swap)
        far = trek_minimum(far, distance(in[1], in[2], numbers));
    trek_var *losses = at_least_0(trek_add_scalar(trek_sub(near, far), margin));
    return losses ? trek_loss_reduced(losses, opts.reduction, dtype) : NULL;
}

static bool labels_of_rows(const char *name, const trek_var *logits, const trek_var *labels)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!logits || !labels)
        return trek_fail_missing(name, "input"), false;
    if (trek_dtype_is_float(trek_var_dtype(labels)) || trek_var_dtype(labels) == TREK_BOOL)
        return trek_fail(TREK_ERR_DTYPE, "%s: labels: dtype %s; must be an integer dtype", name,
                         trek_dtype_name(trek_var_dtype(labels))),
               false;
    if (trek_var_ndim(logits) != 2 || trek_var_ndim(labels) != 1 || trek_var_size(labels, 0) != trek_var_size(logits, 0))
        return trek_fail(TREK_ERR_SHAPE, "%s: logits and labels: %s and %s; must be [N, C] and [N]", name,
                         trek_tensor_shape_text(logits->data, a), trek_tensor_shape_text(labels->data, b)),
               false;
    return true;
}

trek_var *trek_multi_margin_loss(trek_var *logits, trek_var *labels, const trek_margin_opts *given)
{
    static const char name[] = "multi_margin_loss";
    trek_dtype dtype;
    trek_margin_opts opts = options(given);
    double p = opts.p == 0 ? 1 : opts.p, margin = trek_option(opts.margin, 1);
    if (p != 1 && p != 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: p: %g; must be 1 or 2", name, p);
    if (!trek_loss_reduction_known(name, opts.reduction) || !labels_of_rows(name, logits, labels) ||
        !trek_loss_widen(name, &logits, 1, TREK_LOSS_TAKEN_FLOATS, &dtype))
        return NULL;
    int64_t classes = trek_var_size(logits, 1);
    trek_var *index = trek_cast(labels, TREK_I64), *column = trek_unsqueeze(index, 1);
    trek_var *terms = at_least_0(trek_add_scalar(trek_sub(logits, trek_gather(logits, 1, column)), margin));
    terms = trek_masked_fill(p == 2 ? trek_square(terms) : terms, trek_cast(trek_one_hot(index, classes), TREK_BOOL), 0);
    if (opts.weight)
        terms = trek_mul(terms, trek_unsqueeze(trek_index_select(trek_cast(opts.weight, trek_var_dtype(logits)), 0, index), 1));
    trek_var *losses = trek_mul_scalar(trek_sum(terms, trek_dims(1), false), 1 / (double)classes);
    return losses ? trek_loss_reduced(losses, opts.reduction, dtype) : NULL;
}

trek_var *trek_multilabel_soft_margin_loss(trek_var *x, trek_var *target, const trek_loss_opts *given)
{
    static const char name[] = "multilabel_soft_margin_loss";
    trek_dtype dtype;
    trek_loss_opts opts = given ? *given : (trek_loss_opts){ 0 };
    trek_var *inputs[2] = { x, target };
    if (!trek_loss_alike(name, inputs, 2) || !trek_loss_widen(name, inputs, 2, TREK_LOSS_TAKEN_FLOATS, &dtype) ||
        !trek_loss_reduction_known(name, opts.reduction))
        return NULL;
    if (trek_var_ndim(inputs[0]) == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "%s: x: it is a scalar; must have dimensions", name);
    trek_var *losses = trek_apply_pointwise_loss(inputs[0], inputs[1], TREK_LOSS_LOGISTIC, 0);
    losses = trek_mean(trek_loss_weighted(name, losses, opts.weight), trek_dims(-1), false);
    return losses ? trek_loss_reduced(losses, opts.reduction, dtype) : NULL;
}

/* Checks that the values of target are classes, or end the row. */
static bool classes_fit(const char *name, trek_var *target, int64_t classes)
{
    trek_var *wrong = trek_logical_or(trek_lt_scalar(target, -1), trek_ge_scalar(target, (double)classes));
    trek_var *any = trek_any(wrong, trek_dims_all(), false);
    if (any && trek_var_item(any) == 0)
        return true;
    if (any)
        trek_fail(TREK_ERR_ARGUMENT, "%s: target: a label is out of range; must be one of %lld classes, or -1", name,
                  (long long)classes);
    return false;
}

trek_var *trek_multilabel_margin_loss(trek_var *x, trek_var *target, trek_reduction reduction)
{
    static const char name[] = "multilabel_margin_loss";
    trek_dtype dtype;
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!x || !target)
        return trek_fail_missing(name, "input"), NULL;
    if (trek_dtype_is_float(trek_var_dtype(target)) || trek_var_dtype(target) == TREK_BOOL)
        return trek_fail_null(TREK_ERR_DTYPE, "%s: target: dtype %s; must be an integer dtype", name,
                              trek_dtype_name(trek_var_dtype(target)));
    if (!trek_loss_reduction_known(name, reduction) || !trek_loss_widen(name, &x, 1, TREK_LOSS_TAKEN_FLOATS, &dtype))
        return NULL;
    int64_t classes = trek_var_ndim(x) > 0 ? trek_var_size(x, -1) : 0;
    if (trek_var_ndim(x) > 2 || classes == 0 || !trek_same_sizes(x->data, target->data))
        return trek_fail_null(TREK_ERR_SHAPE, "%s: x and target: %s and %s; must be [N, C] or [C]", name,
                              trek_tensor_shape_text(x->data, a), trek_tensor_shape_text(target->data, b));
    trek_var *labels = trek_cast(target, TREK_I64);
    if (!classes_fit(name, labels, classes))
        return NULL;
    trek_var *counts = trek_cumprod(trek_ge_scalar(labels, 0), -1), *there = trek_cast(counts, TREK_BOOL);
    trek_var *safe = trek_mul(labels, counts), *of_target = trek_gather(x, -1, safe);
    trek_var *is_target = trek_cast(trek_scatter_add(trek_zeros_like(labels), -1, safe, counts), TREK_BOOL);
    trek_var *terms = at_least_0(trek_add_scalar(trek_sub(trek_unsqueeze(x, -2), trek_unsqueeze(of_target, -1)), 1));
    trek_var *left_out = trek_logical_or(trek_logical_not(trek_unsqueeze(there, -1)), trek_unsqueeze(is_target, -2));
    terms = trek_sum(trek_masked_fill(terms, left_out, 0), trek_dims(-2, -1), false);
    trek_var *losses = trek_mul_scalar(terms, 1 / (double)classes);
    return losses ? trek_loss_reduced(losses, reduction, dtype) : NULL;
}

trek_var *trek_info_nce(trek_var *query, trek_var *key, double temperature, trek_reduction reduction)
{
    trek_dtype dtype;
    trek_var *in[2] = { query, key };
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!(temperature > 0))
        return trek_fail_null(TREK_ERR_ARGUMENT, "info_nce: temperature: %g; must be above 0", temperature);
    if (!trek_loss_reduction_known("info_nce", reduction) || !trek_loss_widen("info_nce", in, 2, TREK_LOSS_TAKEN_FLOATS, &dtype))
        return NULL;
    if (trek_var_ndim(in[0]) != 2 || !trek_same_sizes(in[0]->data, in[1]->data))
        return trek_fail_null(TREK_ERR_SHAPE, "info_nce: inputs: %s and %s; must be two [N, D]",
                              trek_tensor_shape_text(in[0]->data, a), trek_tensor_shape_text(in[1]->data, b));
    for (int k = 0; k < 2; k++)
        in[k] = trek_div(in[k], length_of(in[k], 1, 1e-12));
    trek_var *scores = trek_mul_scalar(trek_matmul(in[0], trek_transpose(in[1], 0, 1)), 1 / temperature);
    trek_var *labels = scores ? trek_var_from(trek_tensor_arange(0, (double)trek_var_size(scores, 0), 1, TREK_I64,
                                                                 trek_var_device(scores))) : NULL;
    trek_var *losses = trek_cross_entropy_with(scores, labels, &(trek_cross_entropy_opts){ .reduction = TREK_REDUCTION_NONE });
    return losses ? trek_loss_reduced(losses, reduction, dtype) : NULL;
}

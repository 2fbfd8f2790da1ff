/* SPDX-License-Identifier: Apache-2.0 */
/* What losses share: the dtypes that they accept, compute in and round to, and their reductions. A mean over nothing
 * is 0. */
#include <stdio.h>

#include "autograd/losses_internal.h"

bool trek_loss_takes(const char *name, trek_dtype x, trek_dtype y, trek_loss_taken what)
{
    static const char *const words[] = { "one must be floating", "one must be floating, and the other not bool",
                                         "both must be floating" };
    int floats = trek_dtype_is_float(x) + trek_dtype_is_float(y);
    if (floats == 2 || (floats == 1 && (what == TREK_LOSS_TAKEN_ANY ||
                                        (what == TREK_LOSS_TAKEN_INTEGERS && x != TREK_BOOL && y != TREK_BOOL))))
        return true;
    trek_fail(TREK_ERR_DTYPE, "%s: inputs: dtypes %s and %s; %s", name, trek_dtype_name(x), trek_dtype_name(y), words[what]);
    return false;
}

static bool broadcasts_to(const trek_tensor *x, const trek_tensor *y)
{
    bool fits = x->ndim <= y->ndim;
    for (int d = 1; fits && d <= x->ndim; d++)
        fits = x->sizes[x->ndim - d] == 1 || x->sizes[x->ndim - d] == y->sizes[y->ndim - d];
    return fits;
}

bool trek_loss_alike(const char *name, trek_var *const *inputs, int n)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT], hint[TREK_SHAPE_TEXT + 64] = "";
    for (int k = 0; k < n; k++)
        if (!inputs[k])
            return trek_fail_missing(name, "input"), false;
    const trek_tensor *x = inputs[0]->data, *y = x;
    for (int k = 1; k < n && trek_same_sizes(x, y); k++)
        y = inputs[k]->data;
    if (trek_same_sizes(x, y))
        return true;
    bool fewer = broadcasts_to(y, x);
    trek_tensor_shape_text(x, a);
    trek_tensor_shape_text(y, b);
    if (x->numel == y->numel)
        snprintf(hint, sizeof hint, "; trek_reshape one to the other's, as to %s", a);
    else if (fewer || broadcasts_to(x, y))
        snprintf(hint, sizeof hint, "; trek_expand the smaller to %s, if it is meant for all", fewer ? a : b);
    return trek_fail(TREK_ERR_SHAPE, "%s: inputs: %s and %s; must have one shape%s", name, a, b, hint), false;
}

trek_dtype trek_loss_dtype(trek_dtype common)
{
    return trek_dtype_is_16bit(common) && trek_grad_mode_here.autocast != TREK_F32 ? TREK_F32 : common;
}

bool trek_loss_dtypes(const char *name, trek_var *const *inputs, int n, trek_loss_taken what, trek_dtype *work,
                      trek_dtype *result)
{
    for (int k = 0; k < n; k++)
        if (!inputs[k])
            return trek_fail_missing(name, "input"), false;
    trek_dtype common = trek_var_dtype(inputs[0]);
    for (int k = n > 1; k < n; k++) {
        if (!trek_loss_takes(name, trek_var_dtype(inputs[0]), trek_var_dtype(inputs[k]), what))
            return false;
        common = trek_dtype_promote(common, trek_var_dtype(inputs[k]));
    }
    *result = trek_loss_dtype(common);
    *work = trek_dtype_is_16bit(common) ? TREK_F32 : common;
    return true;
}

bool trek_loss_widen(const char *name, trek_var **inputs, int n, trek_loss_taken what, trek_dtype *result)
{
    trek_dtype work;
    bool fine = trek_loss_dtypes(name, inputs, n, what, &work, result);
    for (int k = 0; fine && k < n; k++)
        fine = (inputs[k] = trek_cast(inputs[k], work)) != NULL;
    return fine;
}

trek_var *trek_loss_rounded(trek_var *loss, trek_dtype dtype)
{
    return loss && trek_dtype_is_float(dtype) ? trek_cast(loss, dtype) : loss;
}

/* Computes the mean over all elements, rounded to dtype. For no elements it is 0, still connected to x. */
static trek_var *mean_all(trek_var *x, trek_dtype dtype)
{
    bool none = x && trek_var_numel(x) == 0;
    trek_var *mean = none ? trek_sum(x, trek_dims_all(), false) : trek_mean(x, trek_dims_all(), false);
    return trek_loss_mean_of(trek_loss_rounded(mean, dtype), x ? (double)trek_var_numel(x) : 0);
}

trek_var *trek_loss_mean_rows(trek_var *total, double rows, trek_dtype dtype)
{
    return trek_loss_mean_of(trek_loss_rounded(rows != 0 ? trek_mul_scalar(total, 1 / rows) : total, dtype), rows);
}

bool trek_loss_reduction_known(const char *name, trek_reduction reduction)
{
    if (trek_reduces_losses(reduction))
        return true;
    trek_fail(TREK_ERR_ARGUMENT, "%s: reduction: %d; must be TREK_REDUCTION_MEAN, _SUM or _NONE", name, (int)reduction);
    return false;
}

trek_var *trek_loss_reduced(trek_var *losses, trek_reduction reduction, trek_dtype dtype)
{
    if (reduction == TREK_REDUCTION_MEAN)
        return mean_all(losses, dtype);
    return trek_loss_rounded(reduction == TREK_REDUCTION_SUM ? trek_sum(losses, trek_dims_all(), false) : losses, dtype);
}

trek_var *trek_loss_weighted(const char *name, trek_var *losses, trek_var *weight)
{
    if (!losses || !weight)
        return losses;
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!broadcasts_to(weight->data, losses->data))
        return trek_fail_null(TREK_ERR_SHAPE, "%s: weight: %s; must broadcast to the losses, %s", name,
                              trek_tensor_shape_text(weight->data, a), trek_tensor_shape_text(losses->data, b));
    return trek_mul(losses, trek_cast(weight, trek_var_dtype(losses)));
}

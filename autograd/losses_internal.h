/* SPDX-License-Identifier: Apache-2.0 */
/* What losses share. */
#ifndef TREK_AUTOGRAD_LOSSES_INTERNAL_H
#define TREK_AUTOGRAD_LOSSES_INTERNAL_H

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/option_internal.h"

/* Which dtypes a loss takes beside floating ones: for one of its inputs any, or integers; or none. */
typedef enum trek_loss_taken { TREK_LOSS_ANY_BESIDE, TREK_LOSS_INTEGERS_BESIDE, TREK_LOSS_FLOATS_ONLY } trek_loss_taken;

bool trek_loss_takes(const char *name, trek_dtype x, trek_dtype y, trek_loss_taken what);

/* What a loss of that dtype is rounded to: it, but f32 under autocast. */
trek_dtype trek_loss_dtype(trek_dtype common);

/* The inputs of a loss in what it is computed in: their common dtype, f32 for the 16-bit ones, so that its steps do not
 * round; false and an error. *result: what it is rounded to. */
bool trek_loss_widen(const char *name, trek_var **inputs, int n, trek_loss_taken what, trek_dtype *result);

/* Whether all n inputs are there and have one shape; false and an error, which says which reshape was meant. */
bool trek_loss_alike(const char *name, trek_var *const *inputs, int n);

trek_var *trek_loss_rounded(trek_var *loss, trek_dtype dtype);

bool trek_loss_reduction_known(const char *name, trek_reduction reduction);

/* losses times weight, if there is one, which broadcasts to them. */
trek_var *trek_loss_weighted(const char *name, trek_var *losses, trek_var *weight);

/* Reduced over all elements and rounded; a mean says how many they are. The mean of none: 0, still tied to them. */
trek_var *trek_loss_reduced(trek_var *losses, trek_reduction reduction, trek_dtype dtype);

/* total / rows, rounded; of no rows: the total, which is 0. */
trek_var *trek_loss_mean_rows(trek_var *total, double rows, trek_dtype dtype);

/* trek_loss_weight where it is counted on a GPU: an f64 scalar there, in the present scope, without a wait. NULL: it is not; or
 * an error is set. */
trek_var *trek_loss_counted(const trek_var *loss);

#endif

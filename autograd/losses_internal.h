/* SPDX-License-Identifier: Apache-2.0 */
/* What losses share. */
#ifndef TREK_AUTOGRAD_LOSSES_INTERNAL_H
#define TREK_AUTOGRAD_LOSSES_INTERNAL_H

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/option_internal.h"

/* The dtypes that an input of a loss may have in addition to floating ones: any, integers, or none. */
typedef enum trek_loss_taken { TREK_LOSS_TAKEN_ANY, TREK_LOSS_TAKEN_INTEGERS, TREK_LOSS_TAKEN_FLOATS } trek_loss_taken;

bool trek_loss_takes(const char *name, trek_dtype x, trek_dtype y, trek_loss_taken what);

/* Returns the dtype that a loss is rounded to: `common`, or f32 under autocast. */
trek_dtype trek_loss_dtype(trek_dtype common);

/* Finds the dtype that a loss of these inputs is computed in, and the one that it is rounded to. Returns false on failure. */
bool trek_loss_dtypes(const char *name, trek_var *const *inputs, int n, trek_loss_taken what, trek_dtype *work,
                      trek_dtype *result);

/* Converts a loss's inputs to the dtype of the computation: their common dtype, or f32 for 16-bit ones, so that
 * intermediate steps do not round. *result is the dtype that the loss is rounded to. Returns false on failure. */
bool trek_loss_widen(const char *name, trek_var **inputs, int n, trek_loss_taken what, trek_dtype *result);

/* Returns whether all n inputs are present and have the same shape. If not, the error suggests the reshape that was
 * probably intended. */
bool trek_loss_alike(const char *name, trek_var *const *inputs, int n);

trek_var *trek_loss_rounded(trek_var *loss, trek_dtype dtype);

bool trek_loss_reduction_known(const char *name, trek_reduction reduction);

/* Multiplies the losses by the weight, if there is one, which broadcasts to them. */
trek_var *trek_loss_weighted(const char *name, trek_var *losses, trek_var *weight);

/* Reduces over all elements and rounds. A mean also records the number of elements. The mean of no elements is 0,
 * still connected to them. */
trek_var *trek_loss_reduced(trek_var *losses, trek_reduction reduction, trek_dtype dtype);

/* Computes total / rows, rounded. Without rows it is the total, which is 0. */
trek_var *trek_loss_mean_rows(trek_var *total, double rows, trek_dtype dtype);

/* Like trek_loss_weight where the items are counted on a GPU: returns an f64 scalar there, in the current scope,
 * without waiting. Returns NULL if they are not counted there, or with an error. */
trek_var *trek_loss_counted(const trek_var *loss);

#endif

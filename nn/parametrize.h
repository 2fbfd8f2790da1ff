/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that each forward computes from other parameters, as torch.nn.utils.parametrize: weight norm, spectral norm, or a
 * module of the program.
 *
 * The parameter `name` of a layer is removed and replaced by the parameters that it is computed from, its originals:
 * "parametrizations.NAME.original", or "...original0", "...original1" and so on, and by the modules "parametrizations.NAME.0",
 * ".1" and so on, which compute it one after the other. This works for every layer whose constructor gave the parameter a field,
 * which all of trek's do. The names are PyTorch's, so that state files fit. Optimizers, clipping, checkpoints and ranks treat the
 * originals like any parameters. Each forward of the layer computes the weight once, in its own scope, with autocast off, by ops
 * that have gradients of any order. Between forwards the layer's field holds an original.
 *
 * Parametrise a module before an optimizer, a trainer or a list of parameters has it, and equally on every replica, that is, in
 * the function that builds the replicas. A weight that another layer shares stays shared as the original. Weight norm has new
 * originals, so the other layers keep the plain weight, as in PyTorch.
 *
 * Errors of every function here. On failure the module is as before.
 *   - ARGUMENT if the layer has no parameter of this name, or an option is out of range.
 *   - SHAPE or DTYPE if the computed weight does not fit the old one.
 *   - STATE if the weight lives in an optimizer's arena.
 *   - UNSUPPORTED, MEMORY. */
#ifndef TREK_NN_PARAMETRIZE_H
#define TREK_NN_PARAMETRIZE_H

#include "nn/module.h"

TREK_BEGIN

/* Makes a weight the product of a length and a direction: w = g v / |v|, where the 2-norm is over all dimensions except `dim`, or
 * over all dimensions if dim is -1 (Salimans and Kingma 2016; torch.nn.utils.parametrizations.weight_norm). original0 is g [1,
 * .., n, .., 1], or [] if dim is -1. original1 is v, which begins as the weight. name NULL stands for "weight". PyTorch's default
 * of dim is 0.
 * Dtypes: 16-bit weights are computed in f32 and rounded once.
 * Errors: ARGUMENT if dim is less than -1 or not less than the number of dimensions, or if the weight is parametrised already. */
TREK_API trek_status trek_weight_norm(trek_module *module, const char *name, int dim);

/* Options of trek_spectral_norm. */
typedef struct trek_spectral_norm_opts {
    int n_power_iterations; /* iterations of the power method at each forward in training; default 1 */
    double eps;             /* smallest norm that is divided by; default 1e-12, TREK_ZERO for 0 */
    /* The dimension that counts the rows of the matrix; negative numbers count from the end. Default 1 for transposed
     * convolutions and 0 for others, TREK_ZERO for 0. */
    int dim;
} trek_spectral_norm_opts;

/* Divides a weight by its largest singular value as a matrix: w / sigma with sigma = u^T W v, by the power method (Miyato et al.
 * 2018; torch.nn.utils.parametrizations.spectral_norm). The original is the weight itself. A vector is divided by its 2-norm.
 * name NULL stands for "weight"; opts may be NULL.
 * Buffers: _u and _v, unit vectors in the weight's dtype. They begin as random numbers (trek_seed) after 15 iterations. Each
 * forward in training continues from them; a forward in eval mode uses them as they are. A vector has no buffers.
 * Dtypes: 16-bit weights are computed in f32 and rounded once.
 * Ranks: all ranks have the same numbers as long as each has rows of each batch. A rank without rows has different ones until
 * buffers are merged.
 * Errors: ARGUMENT if an option is out of range, or if the weight has no dimensions or no elements. */
TREK_API trek_status trek_spectral_norm(trek_module *module, const char *name, const trek_spectral_norm_opts *opts);

/* Computes the n originals from which the parametrization makes `weight`. The originals are borrowed or belong to the current
 * scope. */
typedef trek_status (*trek_right_inverse_fn)(trek_module *parametrization, trek_var *weight, trek_var **originals, int n);

/* The largest number of originals of a parametrization. */
#define TREK_MOST_ORIGINALS 8

/* Options of trek_parametrize. */
typedef struct trek_parametrize_opts {
    int originals; /* number of originals; default 1 */
    /* Computes the originals at the beginning, and when a weight is assigned; see trek_parametrize. May be NULL for one
     * original. */
    trek_right_inverse_fn right_inverse;
} trek_parametrize_opts;

/* Makes a weight the result of the module `parametrization`, which takes one original (forward) or several (forward_many)
 * (torch.nn.utils.parametrize.register_parametrization). opts may be NULL.
 *
 * The originals are named "original", or "original0", "original1" and so on if there are several. opts->right_inverse computes
 * them from the present weight. Without it the single original is the weight as it is. An original that is the weight itself
 * stays the same variable; others are copied. If the weight is parametrised already, the new module comes last and takes the
 * result so far: it has one input and adds no originals.
 *
 * Ownership: the parametrization is taken over, also on failure, unless it contains the module. It follows train and eval mode
 * and may have parameters, buffers and children. */
TREK_API trek_status trek_parametrize(trek_module *module, const char *name, trek_module *parametrization,
                                      const trek_parametrize_opts *opts);

/* Returns true if the weight `name` is parametrised, or any weight if name is NULL. */
TREK_API bool trek_is_parametrized(const trek_module *module, const char *name);

/* Computes the weight as a forward would make it now and returns it; it belongs to the current scope. In training spectral norm
 * does its iterations. For a plain parameter it returns the parameter, borrowed.
 * Errors: NULL with ARGUMENT if the module has no parameter of this name. */
TREK_API trek_var *trek_parametrized_weight(trek_module *module, const char *name);

/* Writes originals from which this weight is computed. The weight has the same shape and may have any floating dtype and be on
 * any device. trek_module_reset uses this; without an inverse it writes the original, as at the beginning.
 * Errors: UNSUPPORTED if a parametrization has no right inverse, SHAPE. Nothing is written then. */
TREK_API trek_status trek_parametrized_assign(trek_module *module, const char *name, trek_tensor *weight);

/* Makes the weight a plain parameter again, with the value that a forward would compute now, or, if leave_parametrized is false,
 * with the value of its original (torch.nn.utils.parametrize.remove_parametrizations). If there is one original, the parameter is
 * the same variable. Otherwise it is a new one, which existing optimizers do not know.
 * Errors: ARGUMENT if leave_parametrized is false and there are several originals. */
TREK_API trek_status trek_parametrize_remove(trek_module *module, const char *name, bool leave_parametrized);

TREK_END

#endif

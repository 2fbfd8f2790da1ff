/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that are made of other parameters at each forward, as by torch.nn.utils.parametrize: weight norm, spectral norm, or a
 * module of a program's own.
 *
 * The parameter `name` of a layer (of any whose constructor gave it a field: all of trek's) goes, and what it is made of comes in
 * its stead: parameters "parametrizations.NAME.original", or "...original0", "...original1", and so on, and the modules
 * "parametrizations.NAME.0", ".1" that make it, one after the other. The names are PyTorch's, and state files fit. Optimizers,
 * clipping, checkpoints and ranks have the originals like any parameters. Each forward of the layer makes the weight once, within
 * its scope and by ops that have gradients of any order, with autocast off. In between the layer's field holds an original.
 *
 * It is done to a module before an optimizer, a trainer or a list of parameters has it (STATE: it lives in an optimizer's arena),
 * on every replica alike: in the function that builds them. A weight that another layer shares stays theirs as the original; of
 * weight norm, whose originals are new, they keep the plain one, as in PyTorch.
 *
 * Errors: ARGUMENT (no such parameter, what is out of range), SHAPE and DTYPE (what is made does not fit the weight), STATE,
 * UNSUPPORTED, MEMORY; then the module is as it was. */
#ifndef TREK_NN_PARAMETRIZE_H
#define TREK_NN_PARAMETRIZE_H

#include "nn/module.h"

TREK_BEGIN

/* Weight norm (Salimans and Kingma 2016; torch.nn.utils.parametrizations.weight_norm): w = g v / |v|, where the 2-norm is over
 * all dimensions but `dim`; dim -1: over all. original0 is g [1, .., n, .., 1], of dim -1 [], original1 is v, which begins as the
 * weight. name NULL: "weight". PyTorch's default of dim is 0. 16-bit weights are computed in f32 and rounded once. ARGUMENT: dim
 * outside [-1, dimensions); a weight that is parametrised already. */
TREK_API trek_status trek_weight_norm(trek_module *module, const char *name, int dim);

typedef struct trek_spectral_norm_opts {
    int n_power_iterations;   /* at each forward in training; default 1 */
    double eps;               /* least norm that is divided by; default 1e-12; TREK_ZERO for 0 */
    int dim;                  /* the rows of the matrix; default 1 of transposed convolutions, else 0; TREK_ZERO for 0; negative:
                                 from the end */
} trek_spectral_norm_opts;

/* Spectral norm (Miyato et al. 2018; torch.nn.utils.parametrizations.spectral_norm): w / sigma, where sigma = u^T W v is the
 * largest singular value of the weight as a matrix, by the power method. Buffers _u and _v, unit vectors in the weight's dtype,
 * begin with random numbers (trek_seed) and 15 iterations; each forward in training goes on from there, one in eval takes them
 * as they are. A vector is divided by its 2-norm, without buffers. original is the weight itself. name NULL: "weight"; opts may
 * be NULL. Of 16 bits in f32, rounded once. Ranks have the same numbers as long as all of them have rows of each batch; one
 * without rows has its own until buffers are merged. ARGUMENT: an option out of range, a weight without dimensions or elements.
 */
TREK_API trek_status trek_spectral_norm(trek_module *module, const char *name, const trek_spectral_norm_opts *opts);

/* What a weight is made of so that it is `weight`: writes the n originals (borrowed, or of the present scope). */
typedef trek_status (*trek_right_inverse_fn)(trek_module *parametrization, trek_var *weight, trek_var **originals, int n);
#define TREK_MOST_ORIGINALS 8 /* of a parametrization */

typedef struct trek_parametrize_opts {
    int originals;            /* default 1: "original"; more: "original0", "original1", ... */
    /* Gives the originals at the beginning, and where a weight is assigned. NULL: at the beginning the original is the weight as
     * it is (of one original). What is the weight itself stays the variable that it was; others are copied. */
    trek_right_inverse_fn right_inverse;
} trek_parametrize_opts;

/* torch.nn.utils.parametrize.register_parametrization: the weight is what `parametrization` makes of the originals: a module of
 * one input (forward), or of several (forward_many). It is taken over, also on failure (save where it holds the module), follows
 * train and eval, and may have parameters, buffers and children of its own. On a weight that is parametrised it comes last, and
 * takes what is made so far: one input, no new originals. opts may be NULL. */
TREK_API trek_status trek_parametrize(trek_module *module, const char *name, trek_module *parametrization,
                                      const trek_parametrize_opts *opts);
/* Whether the weight `name` (NULL: any) is parametrised. */
TREK_API bool trek_is_parametrized(const trek_module *module, const char *name);
/* The weight as a forward would make it now (of spectral norm in training with its iterations), in the present scope; of a plain
 * parameter the parameter, borrowed. NULL and ARGUMENT: there is none. */
TREK_API trek_var *trek_parametrized_weight(trek_module *module, const char *name);
/* Writes originals that make this weight (same shape, any floating dtype, any device). UNSUPPORTED: a parametrization has no
 * right inverse; then, as after SHAPE, nothing is written. trek_module_reset does so, and where there is no inverse writes the
 * original, as the beginning did. */
TREK_API trek_status trek_parametrized_assign(trek_module *module, const char *name, trek_tensor *weight);
/* torch.nn.utils.parametrize.remove_parametrizations: the weight is a plain parameter again, of the value that a forward would
 * make now; or, with leave_parametrized false, its original (ARGUMENT: there are several). One original remains the same
 * variable; else it is a new one, which optimizers that are there do not know. */
TREK_API trek_status trek_parametrize_remove(trek_module *module, const char *name, bool leave_parametrized);

TREK_END

#endif

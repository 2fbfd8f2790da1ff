/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values of parameters. Each function overwrites a leaf in place, also
 * one that requires a gradient; nothing is recorded. Numbers come from the
 * thread's generator (trek_seed) on the CPU and are then copied, so they are
 * the same on every device. Formulas, names and defaults are PyTorch's.
 *
 * Errors: STATE (not a leaf), DTYPE (not floating), SHAPE (fans need two
 * dimensions, others what they say), ARGUMENT (a negative deviation, a bound that is not finite), MEMORY. */
#ifndef TREK_NN_INIT_H
#define TREK_NN_INIT_H

#include "autograd/var.h"

TREK_BEGIN

/* What follows the layer: decides the gain. */
typedef enum trek_nonlinearity {
    TREK_NONLINEARITY_LEAKY_RELU, /* sqrt(2 / (1 + slope^2)); slope 0 is ReLU */
    TREK_NONLINEARITY_RELU,       /* sqrt(2) */
    TREK_NONLINEARITY_TANH,       /* 5/3 */
    TREK_NONLINEARITY_SELU,       /* 3/4 */
    TREK_NONLINEARITY_LINEAR,     /* 1; for convolutions and the sigmoid, too */
} trek_nonlinearity;

/* Which variance stays: the forward pass's (inputs of an element), or the backward one's (outputs). */
typedef enum trek_fan_mode { TREK_FAN_IN, TREK_FAN_OUT } trek_fan_mode;

typedef struct trek_kaiming_opts {
    trek_fan_mode mode;             /* default: keep the variance of the forward pass */
    trek_nonlinearity nonlinearity; /* default: leaky ReLU */
    double negative_slope;          /* default 0 */
} trek_kaiming_opts;

/* What the deviation is multiplied by, as said above; negative_slope is leaky ReLU's. */
TREK_API double trek_init_gain(trek_nonlinearity nonlinearity, double negative_slope);

TREK_API trek_status trek_init_uniform(trek_var *param, double low, double high);      /* [low, high) */
TREK_API trek_status trek_init_normal(trek_var *param, double mean, double deviation); /* N(mean, deviation^2) */
/* A normal distribution cut off outside [low, high], by the inverse distribution function. */
TREK_API trek_status trek_init_trunc_normal(trek_var *param, double mean, double deviation, double low, double high);
TREK_API trek_status trek_init_constant(trek_var *param, double value);
TREK_API trek_status trek_init_zeros(trek_var *param);
TREK_API trek_status trek_init_ones(trek_var *param);
/* Glorot and Bengio 2010: U(-b, b), b = gain sqrt(6 / (fan_in + fan_out)); N(0, gain^2 2 / (fan_in + fan_out)). */
TREK_API trek_status trek_init_xavier_uniform(trek_var *param, double gain);
TREK_API trek_status trek_init_xavier_normal(trek_var *param, double gain);
/* He et al. 2015: U(-b, b), b = gain sqrt(3 / fan); N(0, gain^2 / fan). opts may be NULL. */
TREK_API trek_status trek_init_kaiming_uniform(trek_var *param, const trek_kaiming_opts *opts);
TREK_API trek_status trek_init_kaiming_normal(trek_var *param, const trek_kaiming_opts *opts);
/* Saxe et al. 2013: rows (or columns, if there are fewer of them) are orthonormal, times gain; further dimensions are flattened.
 */
TREK_API trek_status trek_init_orthogonal(trek_var *param, double gain);
/* Two dimensions: the identity, or as much of it as there is. */
TREK_API trek_status trek_init_eye(trek_var *param);
/* Three to five dimensions [out, in / groups, kernel ...]: the middle of the kernel is 1 from each input channel of a group to
 * the output channel of its number there, as far as there are both, and all else 0. ARGUMENT: groups that do not divide out. */
TREK_API trek_status trek_init_dirac(trek_var *param, int64_t groups);
/* Martens 2010. Two dimensions: N(0, deviation^2), and of each column ceil(sparsity rows) elements, drawn anew, are 0.
 * ARGUMENT: a sparsity outside [0, 1]. */
TREK_API trek_status trek_init_sparse(trek_var *param, double sparsity, double deviation);

/* Between the two, which nest, functions that would draw random numbers check their arguments, on this thread, and leave the
 * values as they are: those of a new parameter are anything. Modules that get their values from a file are made without
 * drawing others first, as by torch.nn.utils.skip_init; the generator does not advance. Constants are written. An end
 * without a begin does nothing. */
TREK_API void trek_init_skip_begin(void);
TREK_API void trek_init_skip_end(void);

TREK_END

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values of parameters. Each function overwrites a leaf in place, also one that requires a gradient; nothing is recorded.
 * The numbers are drawn from the thread's generator (trek_seed) on the CPU and then copied, so they are the same on every device.
 * Formulas, names and defaults are PyTorch's.
 *
 * Errors of every function here:
 *   - STATE if the variable is not a leaf.
 *   - DTYPE if its dtype is not floating.
 *   - SHAPE if the function needs fan_in and fan_out and there are fewer than two dimensions, or other dimensions than its
 *     comment says.
 *   - ARGUMENT if a deviation is negative or a bound is not finite.
 *   - MEMORY. */
#ifndef TREK_NN_INIT_H
#define TREK_NN_INIT_H

#include "autograd/var.h"

TREK_BEGIN

/* The function that follows a layer. It determines the gain (trek_init_gain). */
typedef enum trek_nonlinearity {
    TREK_NONLINEARITY_LEAKY_RELU, /* gain sqrt(2 / (1 + slope^2)); slope 0 is ReLU */
    TREK_NONLINEARITY_RELU,       /* gain sqrt(2) */
    TREK_NONLINEARITY_TANH,       /* gain 5/3 */
    TREK_NONLINEARITY_SELU,       /* gain 3/4 */
    TREK_NONLINEARITY_LINEAR,     /* gain 1; also for convolutions and the sigmoid */
} trek_nonlinearity;

/* The number of connections that the deviation is computed from. */
typedef enum trek_fan {
    TREK_FAN_IN,  /* inputs of an element: keeps the variance of the forward pass */
    TREK_FAN_OUT, /* outputs of an element: keeps the variance of the backward pass */
} trek_fan;

/* Options of trek_init_kaiming_uniform and trek_init_kaiming_normal. */
typedef struct trek_kaiming_opts {
    trek_fan mode;                  /* default TREK_FAN_IN */
    trek_nonlinearity nonlinearity; /* default TREK_NONLINEARITY_LEAKY_RELU */
    double negative_slope;          /* slope of the leaky ReLU; default 0 */
} trek_kaiming_opts;

/* Returns the factor that the deviation is multiplied by for this nonlinearity. Only the leaky ReLU uses negative_slope. */
TREK_API double trek_init_gain(trek_nonlinearity nonlinearity, double negative_slope);

/* Draws each element from the uniform distribution on [low, high). */
TREK_API trek_status trek_init_uniform(trek_var *param, double low, double high);

/* Draws each element from the normal distribution with this mean and standard deviation. */
TREK_API trek_status trek_init_normal(trek_var *param, double mean, double deviation);

/* Draws each element from a normal distribution that is cut off outside [low, high], by the inverse distribution function. */
TREK_API trek_status trek_init_trunc_normal(trek_var *param, double mean, double deviation, double low, double high);

/* Sets each element to the value. */
TREK_API trek_status trek_init_constant(trek_var *param, double value);

/* Sets each element to 0. */
TREK_API trek_status trek_init_zeros(trek_var *param);

/* Sets each element to 1. */
TREK_API trek_status trek_init_ones(trek_var *param);

/* Draws each element from U(-b, b), where b = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010). */
TREK_API trek_status trek_init_xavier_uniform(trek_var *param, double gain);

/* Draws each element from N(0, s^2), where s^2 = gain^2 2 / (fan_in + fan_out) (Glorot and Bengio 2010). */
TREK_API trek_status trek_init_xavier_normal(trek_var *param, double gain);

/* Draws each element from U(-b, b), where b = gain sqrt(3 / fan) (He et al. 2015). opts may be NULL. */
TREK_API trek_status trek_init_kaiming_uniform(trek_var *param, const trek_kaiming_opts *opts);

/* Draws each element from N(0, s^2), where s^2 = gain^2 / fan (He et al. 2015). opts may be NULL. */
TREK_API trek_status trek_init_kaiming_normal(trek_var *param, const trek_kaiming_opts *opts);

/* Makes the rows orthonormal, or the columns if there are fewer columns, and multiplies them by gain (Saxe et al. 2013). The
 * first dimension counts the rows, the product of the others the columns. */
TREK_API trek_status trek_init_orthogonal(trek_var *param, double gain);

/* Sets a parameter of two dimensions to the identity matrix. If it is not square, the rest is zero. */
TREK_API trek_status trek_init_eye(trek_var *param);

/* Makes a convolution pass its input channels through. The parameter is [out, in / groups, kernel ...] with three to five
 * dimensions. Within each group the middle element of the kernel from input channel k to output channel k is 1, and all other
 * elements are 0.
 * Errors: ARGUMENT if `groups` does not divide the number of output channels. */
TREK_API trek_status trek_init_dirac(trek_var *param, int64_t groups);

/* Draws the elements of a matrix from N(0, deviation^2) and sets ceil(sparsity rows) randomly chosen elements of each column to 0
 * (Martens 2010).
 * Errors: ARGUMENT if sparsity is outside [0, 1]. */
TREK_API trek_status trek_init_sparse(trek_var *param, double sparsity, double deviation);

/* Starts a region in which initialisation draws no random numbers on this thread, as torch.nn.utils.skip_init: functions that
 * would draw check their arguments and leave the values as they are, and the generator does not advance. Constants are still
 * written. A new parameter then has arbitrary values; use this for modules that get their values from a file. Regions nest. */
TREK_API void trek_init_skip_begin(void);

/* Ends the innermost region that trek_init_skip_begin has started. It does nothing outside such regions. */
TREK_API void trek_init_skip_end(void);

TREK_END

#endif

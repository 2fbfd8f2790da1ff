/* SPDX-License-Identifier: Apache-2.0 */
/* What ops over space share. Internal. */
#ifndef TREK_AUTOGRAD_SPATIAL_INTERNAL_H
#define TREK_AUTOGRAD_SPATIAL_INTERNAL_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

/* A max pool of a kind, and where its elements come from (NULL: not asked for). */
typedef trek_var *(*trek_pool_function)(trek_var *x, const trek_pool_opts *opts, trek_var **indices);

/* The options of a convolution of `dims` dimensions with their padding as numbers; *x gets what one side has more than the
 * other. False: an error is set. */
bool trek_conv_resolve(const char *name, trek_var **x, const trek_var *weight, const trek_conv_opts *opts, int dims,
                       trek_conv_opts *to);

/* trek_avg_pool2d, without indices. */
trek_var *trek_avg_pool2d_plain(trek_var *x, const trek_pool_opts *opts, trek_var **indices);

#endif

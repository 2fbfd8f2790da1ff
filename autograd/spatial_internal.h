/* SPDX-License-Identifier: Apache-2.0 */
/* What spatial ops share. */
#ifndef TREK_AUTOGRAD_SPATIAL_INTERNAL_H
#define TREK_AUTOGRAD_SPATIAL_INTERNAL_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

/* A max pool of some kind, and the indices of its elements (NULL if they are not needed). */
typedef trek_var *(*trek_pool_function)(trek_var *x, const trek_pool_opts *opts, trek_var **indices);

/* Returns the options of a convolution of `dims` dimensions with their padding as numbers. *x is padded by the
 * difference between its two sides. Returns false on failure. */
bool trek_conv_resolve(const char *name, trek_var **x, const trek_var *weight, const trek_conv_opts *opts, int dims,
                       trek_conv_opts *to);

/* trek_avg_pool2d, without indices. */
trek_var *trek_avg_pool2d_plain(trek_var *x, const trek_pool_opts *opts, trek_var **indices);

#endif

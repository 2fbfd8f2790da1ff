/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of nodes that slices have only partly filled, for the rules of slices and for the walk. */
#ifndef TREK_AUTOGRAD_PARTIAL_H
#define TREK_AUTOGRAD_PARTIAL_H

#include "autograd/tape_internal.h"

struct trek_partial {
    int dim;
    int64_t from, to;         /* the filled indices along dim; the others hold nothing yet */
};

/* Copies values to whole[from, ...) along dim. */
trek_status trek_slice_copy(trek_tensor *whole, int dim, int64_t from, trek_tensor *values);
/* Sets whole[from, to) along dim to 0. */
trek_status trek_slice_zero(trek_tensor *whole, int dim, int64_t from, int64_t to);

/* For a node whose `partial` is set: zeroes what no slice has filled. Required before node->grad is read or fully
 * accumulated to. */
trek_status trek_partial_complete(trek_node *node);
/* Gives a gradient that others use as well memory of its own, with a copy of the filled part. */
trek_status trek_partial_separate(trek_node *node);
void trek_partial_free(trek_node *node);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of nodes of which slices have filled a part: how the rules of slices and the walk see them. */
#ifndef TREK_AUTOGRAD_PARTIAL_H
#define TREK_AUTOGRAD_PARTIAL_H

#include "autograd/tape_internal.h"

struct trek_partial {
    int dim;
    int64_t from, to;         /* of the indices along dim; the others hold nothing yet */
};

/* whole[from, ...) along dim = values. */
trek_status trek_slice_copy(trek_tensor *whole, int dim, int64_t from, trek_tensor *values);
/* whole[from, to) along dim = 0. */
trek_status trek_slice_zero(trek_tensor *whole, int dim, int64_t from, int64_t to);

/* Of a node whose `partial` is set: zeroes what no slice has filled. Whoever reads node->grad, or adds to all of it, has to. */
trek_status trek_partial_complete(trek_node *node);
/* Memory of its own, with what is filled of it, for a gradient that others look at, too. */
trek_status trek_partial_separate(trek_node *node);
void trek_partial_free(trek_node *node);

#endif

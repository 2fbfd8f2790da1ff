/* SPDX-License-Identifier: Apache-2.0 */
/* What functions with indices share. */
#ifndef TREK_AUTOGRAD_INDEX_INTERNAL_H
#define TREK_AUTOGRAD_INDEX_INTERNAL_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

/* Returns indices (i64 or i32) into a dimension of that size as i64, all checked, with negative ones counted from the
 * end. Returns NULL on failure. */
trek_var *trek_checked_index(const char *name, trek_var *index, int64_t size);

/* Returns 0, 1, ... in x's shape. A view of it shows the positions in x that the same view of x would show. */
trek_var *trek_numbered(const trek_var *x);

/* Returns whether all elements of a bool are true; waits for a GPU. If not, it returns false with an error that says
 * `what`; another failure returns false as well. */
bool trek_all_hold(const char *name, trek_var *condition, const char *what);

/* Whether scatters have this reduction. Otherwise it fails with ARGUMENT. */
bool trek_scatter_reduction_known(const char *name, trek_reduction reduction);

#endif

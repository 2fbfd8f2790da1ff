/* SPDX-License-Identifier: Apache-2.0 */
/* What functions of indices share. Internal. */
#ifndef TREK_AUTOGRAD_INDEX_INTERNAL_H
#define TREK_AUTOGRAD_INDEX_INTERNAL_H

#include "autograd/var.h"

/* Indices (i64, i32) of a dimension of that size: negative ones from its end, all checked, as i64; NULL and an error. */
trek_var *trek_checked_index(const char *name, trek_var *index, int64_t size);

/* 0, 1, .. in x's shape: what a view of it shows are the places in x that the same view of x shows. */
trek_var *trek_numbered(const trek_var *x);

#endif

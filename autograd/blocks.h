/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of elements or of lines that are made of several ops, computed a block at a time. */
#ifndef TREK_AUTOGRAD_BLOCKS_H
#define TREK_AUTOGRAD_BLOCKS_H

#include "autograd/var.h"

enum { TREK_BLOCKS_INPUTS = 3 };

/* Such a function of one to three inputs, and of its numbers. Each element of its result depends on the same element of
 * the inputs only, or on that of an input of one element. */
typedef trek_var *(*trek_blocks_fn)(trek_var *const *in, const double *numbers);

/* Returns f(in, numbers). If nothing is recorded, large inputs of one shape on the CPU are processed a block at a time, so that
 * what passes from op to op stays in the cache. The bits are the same. Returns NULL if one of the n inputs is NULL. */
trek_var *trek_by_blocks(trek_blocks_fn f, trek_var *const *in, int n, const double *numbers);
/* The same for functions of inputs of one shape that reduce the last dimension: blocks are whole lines. */
trek_var *trek_by_rows(trek_blocks_fn f, trek_var *const *in, int n, const double *numbers);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A model and data for the tests of trek_ddp: a weight used twice, a frozen one, an unused
 * one, one that only marked rows use; rows that are the same on whatever rank. */
#ifndef TREK_TESTS_DDP_NET_H
#define TREK_TESTS_DDP_NET_H

#include "nn/module.h"

enum { IN = 6, HIDDEN = 9, OUT = 3 };

typedef struct ddp_net {
    trek_module base;
    trek_var *w1, *b1, *tied, *frozen, *unused, *branch, *w2, *b2;
} ddp_net;

/* Initial values follow from seed. */
trek_module *ddp_net_new(trek_dtype dtype, uint32_t seed);
trek_module *ddp_net_new_with(trek_dtype dtype, uint32_t seed, int64_t hidden);
/* Rows [first, first + n) (n <= 64) of a stream; row 1 is marked where width is IN, in three of four streams. */
trek_var *ddp_rows(uint32_t stream, int64_t first, int64_t n, int64_t width, trek_dtype dtype);
/* Mean squared error over these rows. */
trek_var *ddp_loss_of(trek_module *model, uint32_t stream, int64_t first, int64_t n, trek_dtype dtype);

#endif

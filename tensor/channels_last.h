/* SPDX-License-Identifier: Apache-2.0 */
/* Channels last: a stride order of [N, C, H, W] in which the channels of a pixel are neighbours. */
#ifndef TREK_TENSOR_CHANNELS_LAST_H
#define TREK_TENSOR_CHANNELS_LAST_H

#include "tensor/tensor_internal.h"

/* Computes the strides of a dense [N, C, H, W] of these sizes that is stored channels last. */
static inline void trek_channels_last_strides(const int64_t *sizes, int64_t *strides)
{
    strides[1] = 1;
    strides[3] = sizes[1];
    strides[2] = sizes[3] * strides[3];
    strides[0] = sizes[2] * strides[2];
}

/* Returns whether t is dense, stored channels last, and not row-major as well. With one channel or one pixel the two
 * orders are the same. */
static inline bool trek_lies_channels_last(const trek_tensor *t)
{
    int64_t strides[4];
    if (t->ndim != 4 || t->contiguous || t->numel == 0)
        return false;
    trek_channels_last_strides(t->sizes, strides);
    for (int d = 0; d < 4; d++)
        if (t->sizes[d] != 1 && t->strides[d] != strides[d])
            return false;
    return true;
}

/* Returns whether t can be read as channels last in place. */
static inline bool trek_fits_channels_last(const trek_tensor *t)
{
    return trek_lies_channels_last(t) || (t->ndim == 4 && t->contiguous && (t->sizes[1] == 1 || t->sizes[2] * t->sizes[3] == 1));
}

#endif

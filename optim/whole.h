/* SPDX-License-Identifier: Apache-2.0 */
/* Building blocks for classes that update whole parameters: passes over all elements, on the threads of the rank. */
#ifndef TREK_OPTIM_WHOLE_H
#define TREK_OPTIM_WHOLE_H

#include "optim/optimizer_class.h"
#include "tensor/backend.h"

/* Returns the slice without zero_grad and 16-bit copies, for an update of the elements alone. */
static inline trek_update_slice trek_whole_slice(const trek_update_whole *w)
{
    trek_update_slice s = *w->slice;
    s.zero_grad = false;
    s.low = NULL;
    return s;
}

static inline void trek_whole_elements(trek_update_fn update, trek_dtype dtype, const trek_update_slice *slice)
{
    trek_cpu_backend()->update_slice(trek_cpu(0), &(trek_update_kernel){ update, -1 }, dtype, slice);
}

/* Returns the 2-norm. */
static inline double trek_whole_norm(trek_dtype dtype, const void *data, int64_t count)
{
    double sum;
    bool finite;
    trek_cpu_backend()->sum_squares(trek_cpu(0), dtype, data, count, &sum, &finite);
    return sqrt(sum);
}

/* Computes x = x keep + factor direction. */
void trek_whole_step(trek_dtype dtype, void *x, const void *direction, int64_t count, double keep, double factor);

#endif

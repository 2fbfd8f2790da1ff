/* SPDX-License-Identifier: Apache-2.0 */
/* What classes of whole parameters are made of: passes over all elements, on the threads of the rank. Internal. */
#ifndef TREK_OPTIM_WHOLE_H
#define TREK_OPTIM_WHOLE_H

#include "optim/optimizer_class.h"
#include "tensor/backend.h"

/* The slice with nothing but elements to be updated. */
static inline trek_update_slice trek_whole_slice(const trek_update_whole *w)
{
    trek_update_slice s = *w->slice;
    s.zero_grad = false;
    s.low = NULL;
    return s;
}

static inline void trek_whole_elements(trek_update_fn update, trek_dtype dtype, const trek_update_slice *slice)
{
    trek_cpu_backend()->update_slice(&(trek_update_kernel){ update, -1 }, dtype, slice);
}

/* The 2-norm. */
static inline double trek_whole_norm(trek_dtype dtype, const void *data, int64_t count)
{
    double sum;
    bool finite;
    trek_cpu_backend()->sum_squares(dtype, data, count, &sum, &finite);
    return sqrt(sum);
}

/* x = x keep + factor direction. */
void trek_whole_step(trek_dtype dtype, void *x, const void *direction, int64_t count, double keep, double factor);

#endif

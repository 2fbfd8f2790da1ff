/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that change sizes or take windows, without parameters. The rules of nn/layers.h apply. */
#ifndef TREK_NN_RESAMPLE_H
#define TREK_NN_RESAMPLE_H

#include "autograd/resample.h"
#include "nn/module.h"

TREK_BEGIN

/* Returns a layer that computes trek_interpolate (autograd/resample.h). The size of the result, not opts->scale, determines the
 * positions if recompute_scale is set.
 * Errors: ARGUMENT if neither or both of size and scale are given, or if the mode is unknown. */
TREK_API trek_module *trek_nn_upsample(const trek_interpolate_opts *opts);

/* Returns a layer that computes trek_unfold.
 * Errors: ARGUMENT if the kernel is missing. */
TREK_API trek_module *trek_nn_unfold(const trek_unfold_opts *opts);

/* Returns a layer that computes trek_fold to a size of [height, width].
 * Errors: ARGUMENT if the kernel or the size is missing. */
TREK_API trek_module *trek_nn_fold(int64_t height, int64_t width, const trek_unfold_opts *opts);

TREK_END

#endif

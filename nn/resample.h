/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of other sizes and of windows, without parameters. Part of nn/layers.h, whose rules hold. */
#ifndef TREK_NN_RESAMPLE_H
#define TREK_NN_RESAMPLE_H

#include "autograd/resample.h"
#include "nn/module.h"

TREK_BEGIN

/* trek_interpolate (autograd/resample.h); places by the sizes where recompute_scale is set. ARGUMENT: no size and no scale, or
 * both; no such mode. */
TREK_API trek_module *trek_nn_upsample(const trek_interpolate_opts *opts);
/* trek_unfold and trek_fold. ARGUMENT: no kernel, no size. */
TREK_API trek_module *trek_nn_unfold(const trek_unfold_opts *opts);
TREK_API trek_module *trek_nn_fold(int64_t height, int64_t width, const trek_unfold_opts *opts);

TREK_END

#endif

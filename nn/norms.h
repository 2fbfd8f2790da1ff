/* SPDX-License-Identifier: Apache-2.0 */
/* Further normalisation layers. Part of nn/layers.h, whose rules hold. */
#ifndef TREK_NN_NORMS_H
#define TREK_NN_NORMS_H

#include "nn/module.h"

TREK_BEGIN

typedef struct trek_group_norm_opts {
    int64_t groups, channels; /* required; channels a multiple of groups */
    double eps;               /* default 1e-5; TREK_ZERO for 0 */
    bool no_affine;           /* no weight and bias */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_group_norm_opts;

/* [N, channels, ...]: trek_group_norm; weight 1, bias 0, [channels] both. */
TREK_API trek_module *trek_nn_group_norm(int64_t groups, int64_t channels, trek_device device);
TREK_API trek_module *trek_nn_group_norm_with(const trek_group_norm_opts *opts);

typedef struct trek_instance_norm_opts {
    int64_t features;         /* C; required */
    double eps;               /* default 1e-5; TREK_ZERO for 0 */
    double momentum;          /* default 0.1; TREK_ZERO, or TREK_OFF, for 0 */
    bool affine;              /* weight and bias; without (the default) there are none */
    bool running_stats;       /* kept in training and used in eval; the default: the sample's own, always */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_instance_norm_opts;

/* 1d: [N, C, L], 2d: [N, C, H, W], 3d: [N, C, D, H, W], or one sample without N (SHAPE otherwise, also for another C):
 * trek_instance_norm. weight 1, bias 0, buffers running_mean 0, running_var 1 [C], num_batches_tracked (i64 scalar, which PyTorch
 * does not count, either). Running statistics are those of the rank's own part. */
TREK_API trek_module *trek_nn_instance_norm1d(int64_t features, trek_device device);
TREK_API trek_module *trek_nn_instance_norm1d_with(const trek_instance_norm_opts *opts);
TREK_API trek_module *trek_nn_instance_norm2d(int64_t features, trek_device device);
TREK_API trek_module *trek_nn_instance_norm2d_with(const trek_instance_norm_opts *opts);
TREK_API trek_module *trek_nn_instance_norm3d(int64_t features, trek_device device);
TREK_API trek_module *trek_nn_instance_norm3d_with(const trek_instance_norm_opts *opts);

typedef struct trek_local_response_norm_opts {
    int64_t size;             /* channels; required */
    double alpha;             /* default 1e-4; TREK_ZERO for 0 */
    double beta;              /* default 0.75; TREK_ZERO for 0 */
    double k;                 /* default 1; TREK_ZERO for 0 */
} trek_local_response_norm_opts;

/* trek_local_response_norm. */
TREK_API trek_module *trek_nn_local_response_norm(int64_t size);
TREK_API trek_module *trek_nn_local_response_norm_with(const trek_local_response_norm_opts *opts);

TREK_END

#endif

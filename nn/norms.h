/* SPDX-License-Identifier: Apache-2.0 */
/* Further normalisation layers. The rules of nn/layers.h apply. */
#ifndef TREK_NN_NORMS_H
#define TREK_NN_NORMS_H

#include "nn/module.h"

TREK_BEGIN

/* Options of trek_nn_group_norm_with. */
typedef struct trek_group_norm_opts {
    int64_t groups;     /* number of groups, which must divide channels; required */
    int64_t channels;   /* number of channels; required */
    double eps;         /* added to the variance; default 1e-5, TREK_ZERO for 0 */
    bool no_affine;     /* leaves out weight and bias */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_group_norm_opts;

/* Returns a group norm, as trek_group_norm.
 * Shapes: x [N, channels, ...] -> the same; SHAPE for others.
 * Parameters: weight [channels], all 1, and bias [channels], all 0. */
TREK_API trek_module *trek_nn_group_norm(int64_t groups, int64_t channels, trek_device device);

/* Returns the layer of trek_nn_group_norm with all options. */
TREK_API trek_module *trek_nn_group_norm_with(const trek_group_norm_opts *opts);

/* Options of all instance norms. */
typedef struct trek_instance_norm_opts {
    int64_t features;   /* channels C; required */
    double eps;         /* added to the variance; default 1e-5, TREK_ZERO for 0 */
    double momentum;    /* weight of a new batch in the running statistics; default 0.1, TREK_ZERO or TREK_OFF for 0 */
    bool affine;        /* adds weight and bias; default: neither */
    bool running_stats; /* keeps running statistics in training and uses them in eval mode; default: always the sample's own */
    trek_dtype dtype;   /* of the parameters; default f32 */
    trek_device device; /* of the parameters; default trek_device_default() */
} trek_instance_norm_opts;

/* Returns an instance norm of sequences, as trek_instance_norm. It normalises each channel of each sample.
 * Shapes: x [N, C, L] or [C, L] -> the same; SHAPE for others and for another C.
 * Parameters: weight [C], all 1, and bias [C], all 0, if .affine is set.
 * Buffers: running_mean [C], initially 0, running_var [C], initially 1, and num_batches_tracked (i64 scalar), if .running_stats
 * is set. num_batches_tracked is never increased, as in PyTorch.
 * Ranks: the running statistics are those of the rank's own part of the batch. */
TREK_API trek_module *trek_nn_instance_norm1d(int64_t features, trek_device device);

/* Returns the layer of trek_nn_instance_norm1d with all options. */
TREK_API trek_module *trek_nn_instance_norm1d_with(const trek_instance_norm_opts *opts);

/* Returns an instance norm of images, x [N, C, H, W] or [C, H, W]; the rest is as in trek_nn_instance_norm1d. */
TREK_API trek_module *trek_nn_instance_norm2d(int64_t features, trek_device device);

/* Returns the layer of trek_nn_instance_norm2d with all options. */
TREK_API trek_module *trek_nn_instance_norm2d_with(const trek_instance_norm_opts *opts);

/* Returns an instance norm of volumes, x [N, C, D, H, W] or [C, D, H, W]; the rest is as in trek_nn_instance_norm1d. */
TREK_API trek_module *trek_nn_instance_norm3d(int64_t features, trek_device device);

/* Returns the layer of trek_nn_instance_norm3d with all options. */
TREK_API trek_module *trek_nn_instance_norm3d_with(const trek_instance_norm_opts *opts);

/* Options of trek_nn_local_response_norm_with. */
typedef struct trek_local_response_norm_opts {
    int64_t size; /* number of neighbouring channels; required */
    double alpha; /* factor of the sum of squares; default 1e-4, TREK_ZERO for 0 */
    double beta;  /* exponent; default 0.75, TREK_ZERO for 0 */
    double k;     /* added to the sum of squares; default 1, TREK_ZERO for 0 */
} trek_local_response_norm_opts;

/* Returns a layer that normalises each element over `size` neighbouring channels, as trek_local_response_norm. */
TREK_API trek_module *trek_nn_local_response_norm(int64_t size);

/* Returns the layer of trek_nn_local_response_norm with all options. */
TREK_API trek_module *trek_nn_local_response_norm_with(const trek_local_response_norm_opts *opts);

TREK_END

#endif

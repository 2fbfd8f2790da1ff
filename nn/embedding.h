/* SPDX-License-Identifier: Apache-2.0 */
/* Bags of rows of a table, and positions. Part of nn/layers.h, whose rules hold. */
#ifndef TREK_NN_EMBEDDING_H
#define TREK_NN_EMBEDDING_H

#include "nn/module.h"
#include "tensor/op_opts.h"

TREK_BEGIN

typedef struct trek_embedding_bag_opts {
    int64_t num, dim;         /* rows and their length; required */
    trek_bag_mode mode;       /* default mean */
    int64_t padding_idx;      /* a row that is zero, is passed over and gets no gradient; default (and TREK_OFF): none;
                               * TREK_ZERO: row 0; below TREK_OFF: from the end */
    bool include_last_offset; /* as trek_bag_opts' (autograd/embedding.h), as the next */
    double max_norm;          /* default: none */
    double norm_type;         /* default 2 */
    bool scale_grad_by_freq;
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_embedding_bag_opts;

/* trek_embedding_bag: indices [bags, m] -> [bags, dim]. trek_forward_many takes indices, offsets [bags] (NULL: indices have 2
 * dimensions), per_sample_weights (NULL: none); "offsets" and "per_sample_weights" in graphs. weight [num, dim], N(0, 1). A
 * forward that is split over ranks wants indices of 2 dimensions. */
TREK_API trek_module *trek_nn_embedding_bag(int64_t num, int64_t dim, trek_device device);
TREK_API trek_module *trek_nn_embedding_bag_with(const trek_embedding_bag_opts *opts);

typedef struct trek_rotary_layer_opts {
    int64_t dim;              /* how many elements of a head are turned, even; required */
    int64_t length;           /* positions 0 .. length - 1; default 4096 */
    double base;              /* default 10000 */
    bool interleaved;         /* pairs (0, 1), (2, 3), ..; default (0, dim / 2), (1, dim / 2 + 1), .. */
    trek_dtype dtype;         /* of the table: f32, the default, or f64 */
    trek_device device;
} trek_rotary_layer_opts;

/* trek_rotary: x [..., T, D], q or k with D >= dim, at positions 0 .. T - 1; trek_forward_many takes x and positions, integers
 * that broadcast to x's dimensions but the last (NULL: as before; "positions" in graphs). One layer serves all of a model.
 * Buffer table [length, dim], trek_rotary_table's. SHAPE: T beyond length; ARGUMENT: a position outside it. */
TREK_API trek_module *trek_nn_rotary(int64_t dim, int64_t length, trek_device device);
TREK_API trek_module *trek_nn_rotary_with(const trek_rotary_layer_opts *opts);

typedef struct trek_sinusoidal_positions_opts {
    int64_t dim;              /* required */
    int64_t length;           /* positions 0 .. length - 1; default 5000 */
    double base;              /* default 10000 */
    double dropout;           /* of the sum, in training; default 0 */
    trek_dtype dtype;         /* default f32 */
    trek_device device;
} trek_sinusoidal_positions_opts;

/* x [..., T, dim] + trek_sinusoidal_positions of 0 .. T - 1, then dropout: "Attention is all you need", 3.5. Buffer pe
 * [length, dim]. SHAPE: T beyond length. */
TREK_API trek_module *trek_nn_sinusoidal_positions(int64_t dim, int64_t length, trek_device device);
TREK_API trek_module *trek_nn_sinusoidal_positions_with(const trek_sinusoidal_positions_opts *opts);

TREK_END

#endif

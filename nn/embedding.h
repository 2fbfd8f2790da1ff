/* SPDX-License-Identifier: Apache-2.0 */
/* Bags of rows of a table, and positions. The rules of nn/layers.h apply. */
#ifndef TREK_NN_EMBEDDING_H
#define TREK_NN_EMBEDDING_H

#include "nn/module.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* Options of trek_nn_embedding_bag_with. */
typedef struct trek_embedding_bag_opts {
    int64_t num;         /* number of rows of the table; required */
    int64_t dim;         /* elements of a row; required */
    trek_reduction mode; /* how the rows of a bag are combined: MEAN (default), SUM or MAX */
    /* A row that is zero, is left out of bags and gets no gradient. Default, and with TREK_OFF: no row. TREK_ZERO is row 0;
     * numbers below TREK_OFF count from the end. */
    int64_t padding_idx;
    bool include_last_offset; /* as in trek_bag_opts (autograd/embedding.h) */
    double max_norm;          /* rows with a larger norm are scaled to it, as in trek_bag_opts; default: no limit */
    double norm_type;         /* p of that norm; default 2 */
    bool scale_grad_by_freq;  /* as in trek_bag_opts */
    trek_dtype dtype;         /* of the table; default f32 */
    trek_device device;       /* of the table; default trek_device_default() */
} trek_embedding_bag_opts;

/* Returns a layer that combines the rows of each bag, as trek_embedding_bag.
 * Shapes: indices [bags, m] -> [bags, dim].
 * Inputs: trek_forward_many takes indices, offsets [bags] and per_sample_weights ("offsets" and "per_sample_weights" in graphs).
 * Offsets are NULL if the indices have two dimensions; per_sample_weights may be NULL.
 * Parameters: weight [num, dim], N(0, 1).
 * Ranks: a forward that is split over ranks needs indices of two dimensions. */
TREK_API trek_module *trek_nn_embedding_bag(int64_t num, int64_t dim, trek_device device);

/* Returns the layer of trek_nn_embedding_bag with all options. */
TREK_API trek_module *trek_nn_embedding_bag_with(const trek_embedding_bag_opts *opts);

/* Options of trek_nn_rotary_with. */
typedef struct trek_rotary_layer_opts {
    int64_t dim;        /* number of elements of a head that are rotated, even; required */
    int64_t length;     /* number of positions; default 4096 */
    double base;        /* base of the angles; default 10000 */
    bool interleaved;   /* pairs are (0, 1), (2, 3), and so on; default (0, dim / 2), (1, dim / 2 + 1), and so on */
    trek_dtype dtype;   /* of the table: f32, the default, or f64 */
    trek_device device; /* of the table; default trek_device_default() */
} trek_rotary_layer_opts;

/* Returns a layer that rotates queries or keys by their positions, as trek_rotary. One layer serves all layers of a model.
 * Shapes: x [..., T, D] -> the same, where D is at least dim. The positions are 0 .. T - 1.
 * Inputs: trek_forward_many takes x and positions ("positions" in graphs), which are integers that broadcast to the dimensions of
 * x without the last; NULL stands for 0 .. T - 1.
 * Buffers: table [length, dim], as trek_rotary_table makes it.
 * Errors: SHAPE if T is larger than length. ARGUMENT if a position is outside the table. */
TREK_API trek_module *trek_nn_rotary(int64_t dim, int64_t length, trek_device device);

/* Returns the layer of trek_nn_rotary with all options. */
TREK_API trek_module *trek_nn_rotary_with(const trek_rotary_layer_opts *opts);

/* Options of trek_nn_sinusoidal_positions_with. */
typedef struct trek_sinusoidal_positions_opts {
    int64_t dim;        /* features of x; required */
    int64_t length;     /* number of positions; default 5000 */
    double base;        /* base of the angles; default 10000 */
    double dropout;     /* probability of dropping an element of the sum in training; default 0 */
    trek_dtype dtype;   /* of the table; default f32 */
    trek_device device; /* of the table; default trek_device_default() */
} trek_sinusoidal_positions_opts;

/* Returns a layer that adds trek_sinusoidal_positions of 0 .. T - 1 to x and applies dropout ("Attention is all you need", 3.5).
 * Shapes: x [..., T, dim] -> the same.
 * Buffers: pe [length, dim].
 * Errors: SHAPE if T is larger than length. */
TREK_API trek_module *trek_nn_sinusoidal_positions(int64_t dim, int64_t length, trek_device device);

/* Returns the layer of trek_nn_sinusoidal_positions with all options. */
TREK_API trek_module *trek_nn_sinusoidal_positions_with(const trek_sinusoidal_positions_opts *opts);

TREK_END

#endif

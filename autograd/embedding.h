/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table, bags of rows, and positions: as angles, as waves and as biases of attention scores. Part of autograd/ops.h,
 * whose rules apply. */
#ifndef TREK_AUTOGRAD_EMBEDDING_H
#define TREK_AUTOGRAD_EMBEDDING_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* --- rows of tables -------------------------------------------------------------------------------- */

/* Options of trek_embedding_with. */
typedef struct trek_lookup_opts {
    /* A row that gets no gradient. Default, and with TREK_OFF: no row. TREK_ZERO is row 0; numbers below TREK_OFF count from the
     * end. */
    int64_t padding_idx;
    /* Rows that are looked up and have a larger norm are scaled to it, in the weight itself, before and without a gradient;
     * default: no limit. TREK_ZERO for 0. */
    double max_norm;
    double norm_type; /* p of that norm; default 2, TREK_ZERO for 0 */
    /* Divides the gradient of a row by its number of occurrences among the indices, and second derivatives as well. PyTorch does
     * not divide second derivatives. */
    bool scale_grad_by_freq;
} trek_lookup_opts;

/* Looks up the rows of a table by indices, as trek_embedding, with options (torch.nn.functional.embedding). opts may be NULL.
 * Shapes: weight [n, d], indices [...] -> [..., d].
 * Errors: those of trek_embedding. With max_norm the weight is written: UNSUPPORTED on several ranks, which share it, and
 * ARGUMENT if several of its elements have the same address. */
TREK_API trek_var *trek_embedding_with(trek_var *indices, trek_var *weight, const trek_lookup_opts *opts);

/* Options of trek_embedding_bag. */
typedef struct trek_bag_opts {
    /* For indices [m]: the index at which each bag begins, [bags] of i64 or i32; the first is 0, and they never decrease. NULL
     * for indices [bags, m], whose rows are the bags. */
    trek_var *offsets;
    /* Factors of the rows, for sums only, with the shape of the indices and the dtype of the weight. May be NULL. */
    trek_var *per_sample_weights;
    trek_reduction mode; /* how the rows of a bag are combined: MEAN (default), SUM or MAX */
    /* Offsets are [bags + 1] and the last one is the end of the last bag; indices from there on are in no bag. */
    bool include_last_offset;
    int64_t padding_idx;     /* a row that is left out of bags and of the count of a mean, as in trek_lookup_opts */
    double max_norm;         /* as in trek_lookup_opts */
    double norm_type;        /* as in trek_lookup_opts; default 2 */
    bool scale_grad_by_freq; /* as in trek_lookup_opts; not for maxima */
} trek_bag_opts;

/* Computes the mean, sum or maximum of the rows of each bag without storing the rows in between
 * (torch.nn.functional.embedding_bag). opts may be NULL. An empty bag gives 0. If maxima are equal, the first one gets the
 * gradient. A NaN is a maximum only if it is the first of its bag, as in PyTorch. per_sample_weights get a gradient.
 * Shapes: weight [n, d], indices -> [bags, d].
 * Dtypes: indices of any integer dtype. 16-bit rows are summed in f32 and rounded once.
 * Errors: ARGUMENT if an index is outside of the weight, if offsets do not increase from 0 to at most m or the indices are not
 * 1-D, if weights are given for means or maxima, or scale_grad_by_freq for maxima. With max_norm also those of
 * trek_embedding_with. */
TREK_API trek_var *trek_embedding_bag(trek_var *indices, trek_var *weight, const trek_bag_opts *opts);

/* --- positions ---------------------------------------------------------------------------------------- */

/* Options of trek_rotary. */
typedef struct trek_rotary_opts {
    /* Numbers of any dtype except bool that broadcast to the dimensions of x without the last. Default NULL: offset, offset + 1
     * and so on along T. */
    trek_var *positions;
    int64_t offset; /* the first position; default 0 */
    int64_t dim;    /* number R of elements that are rotated, even and at most D; default D */
    double base;    /* base of the angles; default 10000 */
    /* Pairs are (0, 1), (2, 3) and so on (GPT-J, RoFormer); default (0, R / 2), (1, R / 2 + 1) and so on (Llama, NeoX). */
    bool interleaved;
    /* [..., R] from trek_rotary_table for the positions; of the other options only `interleaved` is then used. */
    trek_var *table;
} trek_rotary_opts;

/* Rotates pairs of elements of queries or keys by their positions (Su and others 2021): pair i is rotated by the angle position
 * base^(-2 i / R). Elements after R stay as they are. opts may be NULL. No gradient goes to positions or table.
 * Shapes: x [..., T, D] -> the same.
 * Dtypes: floating; 16-bit x is computed in f32. x may have any strides.
 * Errors: SHAPE if D or R is odd, or positions do not broadcast. ARGUMENT if dim is larger than D or base is not positive. */
TREK_API trek_var *trek_rotary(trek_var *x, const trek_rotary_opts *opts);

/* Computes cosines and sines of the angles of trek_rotary, for all layers of a model. The angles are computed in f64.
 * Shapes: positions [...] -> [..., dim].
 * Dtypes: dtype is f32, which 16-bit x needs as well, or f64.
 * Errors: DTYPE for other dtypes. ARGUMENT if dim is odd or below 2, or base is not positive. */
TREK_API trek_var *trek_rotary_table(trek_var *positions, int64_t dim, double base, trek_dtype dtype);

/* Computes sinusoidal positions (Vaswani and others 2017): element 2 i is sin(position base^(-2 i / dim)) and element 2 i + 1 is
 * its cosine. The base of the paper is 10000. The result is a constant.
 * Shapes: positions [...] -> [..., dim].
 * Dtypes: positions of any dtype except bool; dtype is floating.
 * Errors: ARGUMENT if dim is below 1 or base is not positive. */
TREK_API trek_var *trek_sinusoidal_positions(trek_var *positions, int64_t dim, double base, trek_dtype dtype);

/* Computes a bias of attention scores that falls with the distance, -slope |distance|, where each head has its own slope (ALiBi;
 * Press and others 2022). The last query is at the position of the last key. The slopes are 2^(-8 h / heads) for h from 1 on. If
 * heads is not a power of two, they are the slopes of the next lower power of two, followed by every second slope of twice that
 * number. The result is a constant. Shapes: [heads, queries, keys]. Errors: ARGUMENT if a number is below 1. DTYPE if dtype is
 * not floating. */
TREK_API trek_var *trek_alibi(int64_t heads, int64_t queries, int64_t keys, trek_dtype dtype, trek_device device);

/* Computes T5's buckets of relative positions, which are the rows of a table of biases (Raffel and others 2020). relative is the
 * position of the key minus that of the query. Half of the buckets, or with `bidirectional` a quarter for each side, stand for
 * one distance each; the others are wider and wider up to max_distance. Without bidirectional all keys after the query are in
 * bucket 0.
 * Shapes: relative [...] -> i64 [...] in [0, buckets).
 * Dtypes: relative has any integer dtype.
 * Errors: ARGUMENT if there are too few buckets to halve, or if max_distance is within the exact buckets. */
TREK_API trek_var *trek_relative_position_bucket(trek_var *relative, bool bidirectional, int64_t buckets, int64_t max_distance);

TREK_END

#endif

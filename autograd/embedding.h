/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table, sums of them by bags, and positions: as angles, as waves, as biases of scores. Part of autograd/ops.h, whose
 * rules hold. */
#ifndef TREK_AUTOGRAD_EMBEDDING_H
#define TREK_AUTOGRAD_EMBEDDING_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* --- rows of tables -------------------------------------------------------------------------------- */

typedef struct trek_lookup_opts {
    int64_t padding_idx;      /* a row that gets no gradient; default (and TREK_OFF): none; TREK_ZERO: row 0; below TREK_OFF: from
                               * the end */
    double max_norm;          /* rows that are looked up and whose norm is larger are scaled to it, in the weight itself,
                               * before and without a gradient; default: none; TREK_ZERO for 0 */
    double norm_type;         /* p of that norm; default 2; TREK_ZERO for 0 */
    bool scale_grad_by_freq;  /* what a row gets is divided by how often it is among the indices; second derivatives are, too
                               * (PyTorch leaves that out) */
} trek_lookup_opts;

/* trek_embedding with options, as torch.nn.functional.embedding; opts may be NULL. With max_norm the weight is written to, which
 * ranks share: UNSUPPORTED where there are several; ARGUMENT, where several of its elements lie in one place. */
TREK_API trek_var *trek_embedding_with(trek_var *weight, trek_var *indices, const trek_lookup_opts *opts);

typedef struct trek_bag_opts {
    trek_var *offsets;        /* of indices [m]: where bags begin, [bags] of i64 or i32, from 0 on, never falling; of indices
                               * [bags, m], whose lines are the bags, none */
    trek_var *per_sample_weights; /* of the indices' shape and the weight's dtype: what rows are multiplied by; of sums only */
    trek_bag_mode mode;       /* default mean */
    bool include_last_offset; /* offsets are [bags + 1], the last one the end of the last bag: indices from there on are in
                               * none */
    int64_t padding_idx;      /* a row that is passed over, and does not count in a mean; as above */
    double max_norm;          /* as above */
    double norm_type;         /* default 2 */
    bool scale_grad_by_freq;  /* not of maxima */
} trek_bag_opts;

/* The mean, sum or maximum of the rows of each bag, as torch.nn.functional.embedding_bag, without the rows in between: weight
 * [n, d], indices of any integer dtype -> [bags, d]; 0 for an empty bag. 16-bit rows are summed in f32 and rounded once. Of equal
 * maxima the first gets the gradient; a NaN is one only as the first of its bag (as in PyTorch). per_sample_weights have a
 * gradient. ARGUMENT: an index outside the weight, offsets that do not rise from 0 to m at most, offsets without 1-D indices,
 * weights beside means and maxima, frequencies beside maxima; max_norm as above. */
TREK_API trek_var *trek_embedding_bag(trek_var *weight, trek_var *indices, const trek_bag_opts *opts);

/* --- positions ---------------------------------------------------------------------------------------- */

typedef struct trek_rotary_opts {
    trek_var *positions;      /* numbers of any dtype but bool that broadcast to x's dimensions but the last; default: offset,
                               * offset + 1, .. along T */
    int64_t offset;           /* of the first position; default 0 */
    int64_t dim;              /* how many elements are turned, even and at most D: R; default D */
    double base;              /* default 10000 */
    bool interleaved;         /* pairs are (0, 1), (2, 3), .. (GPT-J, RoFormer); default (0, R / 2), (1, R / 2 + 1), .. (Llama,
                               * NeoX) */
    trek_var *table;          /* [..., R], trek_rotary_table's of the positions: then only `interleaved` is looked at besides */
} trek_rotary_opts;

/* Rotary positions (Su and others 2021): x [..., T, D], q or k, of a floating dtype and any strides; pair i of a position is
 * turned by position base^(-2 i / R); elements behind R stay as they are. Computed in f32 for 16 bits. opts may be NULL.
 * SHAPE: a D, or R, that is odd, positions that do not broadcast; ARGUMENT: a dim beyond D, a base that is not positive. No
 * gradient goes to positions or table. */
TREK_API trek_var *trek_rotary(trek_var *x, const trek_rotary_opts *opts);
/* Cosines and sines of the angles for all layers of a model: positions [...] -> [..., dim], of `dtype`, f32 (which 16-bit x want,
 * too) or f64; angles are computed in f64. DTYPE, and ARGUMENT: an odd dim, one below 2, a base that is not positive. */
TREK_API trek_var *trek_rotary_table(trek_var *positions, int64_t dim, double base, trek_dtype dtype);

/* Sinusoidal positions (Vaswani and others 2017): positions [...], numbers of any dtype but bool -> [..., dim] of a floating
 * dtype: sin(position base^(-2 i / dim)) at 2 i, its cosine at 2 i + 1; base there 10000. A constant. ARGUMENT: a dim below 1,
 * a base that is not positive. */
TREK_API trek_var *trek_sinusoidal_positions(trek_var *positions, int64_t dim, double base, trek_dtype dtype);

/* A bias of attention's scores that grows with the distance (ALiBi; Press and others 2022): [heads, queries, keys], - slope of
 * the head |distance|, the last query standing at the last key. Slopes 2^(-8 h / heads), h from 1 on; of heads that are no
 * power of two those of the power below, then every second one of twice that. A constant. ARGUMENT: a number below 1; DTYPE:
 * not floating. */
TREK_API trek_var *trek_alibi(int64_t heads, int64_t queries, int64_t keys, trek_dtype dtype, trek_device device);

/* T5's buckets of relative positions (Raffel and others 2020), key minus query, of any shape and integer dtype: i64 in
 * [0, buckets), rows of a table of biases. Half of them (with bidirectional: a quarter for each side) are of one distance each,
 * the others wider and wider up to max_distance. Without bidirectional keys behind the query all are in bucket 0. ARGUMENT: too
 * few buckets to halve, a max_distance within the exact ones. */
TREK_API trek_var *trek_relative_position_bucket(trek_var *relative, bool bidirectional, int64_t buckets, int64_t max_distance);

TREK_END

#endif

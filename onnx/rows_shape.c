/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that view elements differently, move them or select them. */
#include <math.h>

#include "onnx/onnx_internal.h"
#include "tensor/op_opts.h"

static int in_ndim(const trek_onnx *x) { return trek_onnx_in_seen(x, 0)->ndim; }

/* --- views -------------------------------------------------------------------------------------- */

static void reshape(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_reshaped(x, trek_onnx_in(x, 0), trek_onnx_input_value(x, 0), trek_onnx_at(x, 0)->outputs[0]);
}

/* A size of 1 keeps the input's size, so that an open one need not be given. */
static void expand(trek_onnx *x, const char **outs)
{
    int64_t sizes[TREK_MAX_DIMS][TREK_ONNX_RUNS];
    int out = trek_onnx_at(x, 0)->outputs[0], ndim = trek_onnx_out_seen(x, 0)->ndim, added = ndim - in_ndim(x);
    for (int d = 0; d < ndim; d++) {
        bool stays = d >= added;
        for (int r = 0; r < x->n_runs; r++) {
            sizes[d][r] = trek_onnx_seen(x, r, out)->sizes[d];
            stays = stays && trek_onnx_seen(x, r, trek_onnx_input_value(x, 0))->sizes[d - added] == sizes[d][r];
        }
        for (int r = 0; stays && r < x->n_runs; r++)
            sizes[d][r] = 1;
    }
    outs[0] = trek_onnx_2(x, "Expand", trek_onnx_in(x, 0), trek_onnx_shape(x, ndim, sizes));
}

static void permute(trek_onnx *x, const char **outs)
{
    int64_t order[TREK_MAX_DIMS];
    int ndim = in_ndim(x);
    for (int d = 0; d < ndim; d++)
        order[d] = trek_onnx_i(x, 1 + d);
    outs[0] = trek_onnx_1(x, "Transpose", trek_onnx_in(x, 0));
    trek_onnx_attr_ints(x, "perm", ndim, order);
}

static void transpose(trek_onnx *x, const char **outs)
{
    int64_t order[TREK_MAX_DIMS];
    int ndim = in_ndim(x);
    for (int d = 0; d < ndim; d++)
        order[d] = d;
    if (ndim > 0) {
        int64_t a = trek_onnx_i(x, 0), b = trek_onnx_i(x, 1);
        order[a] = b;
        order[b] = a;
    }
    outs[0] = trek_onnx_1(x, "Transpose", trek_onnx_in(x, 0));
    trek_onnx_attr_ints(x, "perm", ndim, order);
}

static void squeeze(trek_onnx *x, const char **outs)
{
    bool same = trek_onnx_out_seen(x, 0)->ndim == in_ndim(x), adds = trek_onnx_is(x, "Unsqueeze");
    int64_t dim = trek_onnx_i(x, 0);
    dim = dim < 0 ? dim + in_ndim(x) + adds : dim;
    outs[0] = same ? trek_onnx_1(x, "Identity", trek_onnx_in(x, 0))
                   : trek_onnx_2(x, x->type, trek_onnx_in(x, 0), trek_onnx_int(x, dim));
}

/* Returns a position along the dimension that has `sizes`: a fixed one, one from the end, or one that follows from
 * open sizes. */
static const char *place(trek_onnx *x, const int64_t *at, const int64_t *sizes, bool end)
{
    int64_t from_end[TREK_ONNX_RUNS];
    for (int r = 0; r < x->n_runs; r++)
        from_end[r] = at[r] - sizes[r];
    if (end && from_end[0] == 0 && trek_onnx_same(x, from_end))
        return trek_onnx_int(x, INT64_MAX);
    if (!trek_onnx_same(x, at) && from_end[0] < 0 && trek_onnx_same(x, from_end))
        return trek_onnx_int(x, from_end[0]);
    return trek_onnx_need_size(x, at, "its place");
}

static void narrow(trek_onnx *x, const char **outs)
{
    int64_t dim = trek_onnx_i(x, 0), from[TREK_ONNX_RUNS], to[TREK_ONNX_RUNS], sizes[TREK_ONNX_RUNS];
    trek_onnx_sizes(x, 0, (int)dim, sizes);
    for (int r = 0; r < x->n_runs; r++) {
        from[r] = trek_onnx_at(x, r)->attrs.i[1];
        to[r] = from[r] + trek_onnx_at(x, r)->attrs.i[2];
    }
    const char *first = place(x, from, sizes, false), *last = place(x, to, sizes, true);
    outs[0] = trek_onnx_node(x, "Slice", 4, (const char *[]){ trek_onnx_in(x, 0), first, last, trek_onnx_int(x, dim) });
}

static void select_row(trek_onnx *x, const char **outs)
{
    int64_t dim = trek_onnx_i(x, 0), at[TREK_ONNX_RUNS], sizes[TREK_ONNX_RUNS];
    trek_onnx_sizes(x, 0, (int)dim, sizes);
    for (int r = 0; r < x->n_runs; r++)
        at[r] = trek_onnx_at(x, r)->attrs.i[1];
    const char *index = place(x, at, sizes, false);
    outs[0] = trek_onnx_2(x, "Gather", trek_onnx_in(x, 0), index);
    trek_onnx_attr_int(x, "axis", dim);
    outs[0] = trek_onnx_2(x, "Squeeze", outs[0], trek_onnx_int(x, dim));
}

/* Moves the two dimensions to the end and merges them, then selects elements. */
static void diagonal(trek_onnx *x, const char **outs)
{
    int64_t offset = trek_onnx_i(x, 0), first = trek_onnx_i(x, 1), second = trek_onnx_i(x, 2), order[TREK_MAX_DIMS],
            shape[TREK_MAX_DIMS];
    int ndim = in_ndim(x), n = 0;
    for (int d = 0; d < ndim; d++)
        if (d != first && d != second)
            order[n++] = d;
    order[n++] = first;
    order[n] = second;
    for (int d = 0; d < ndim - 2; d++)
        shape[d] = 0;
    shape[ndim - 2] = -1;
    trek_onnx_fixed(x, 0, (int)first);
    int64_t columns = trek_onnx_fixed(x, 0, (int)second), length = trek_onnx_out_seen(x, 0)->sizes[ndim - 2];
    int64_t *at = trek_onnx_alloc(x, (size_t)(length + 1) * sizeof *at);
    for (int64_t k = 0; at && k < length; k++)
        at[k] = (k + (offset < 0 ? -offset : 0)) * columns + k + (offset > 0 ? offset : 0);
    const char *a = trek_onnx_1(x, "Transpose", trek_onnx_in(x, 0));
    trek_onnx_attr_ints(x, "perm", ndim, order);
    a = trek_onnx_2(x, "Reshape", a, trek_onnx_ints(x, ndim - 1, shape));
    outs[0] = at ? trek_onnx_2(x, "Gather", a, trek_onnx_ints(x, (int)length, at)) : "";
    trek_onnx_attr_int(x, "axis", ndim - 2);
}

/* --- copies ------------------------------------------------------------------------------------------ */

static void convert(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_cast(x, trek_onnx_in(x, 0), trek_onnx_in_seen(x, 0)->dtype, trek_onnx_out_seen(x, 0)->dtype);
}

/* Its dimensions are a mask after its shape rule. */
static void flip(trek_onnx *x, const char **outs)
{
    int64_t mask = trek_onnx_i(x, 0);
    outs[0] = trek_onnx_in(x, 0);
    for (int d = 0; d < in_ndim(x); d++)
        if (mask >> d & 1)
            outs[0] = trek_onnx_sliced(x, outs[0], -1, INT64_MIN + 1, d, -1);
    outs[0] = mask == 0 ? trek_onnx_1(x, "Identity", outs[0]) : outs[0];
}

static void cat(trek_onnx *x, const char **outs)
{
    int n = trek_onnx_at(x, 0)->n_inputs;
    const char **in = trek_onnx_alloc(x, (size_t)n * sizeof *in);
    for (int k = 0; in && k < n; k++)
        in[k] = trek_onnx_in(x, k);
    outs[0] = in ? trek_onnx_node(x, "Concat", n, in) : "";
    trek_onnx_attr_int(x, "axis", trek_onnx_i(x, 0));
}

/* Uses integers, because a runtime may lack the op for bools. */
static void triangle(trek_onnx *x, const char **outs)
{
    trek_dtype dtype = trek_onnx_in_seen(x, 0)->dtype, as = trek_dtype_is_float(dtype) ? dtype : TREK_I64;
    const char *a = trek_onnx_cast(x, trek_onnx_in(x, 0), dtype, as);
    outs[0] = trek_onnx_2(x, "Trilu", a, trek_onnx_scalar(x, TREK_I64, (double)trek_onnx_i(x, 0)));
    trek_onnx_attr_int(x, "upper", trek_onnx_is(x, "upper"));
    outs[0] = trek_onnx_cast(x, outs[0], as, dtype);
}

/* --- by indices ----------------------------------------------------------------------------------------- */

static const char *index_of(trek_onnx *x, int k)
{
    trek_dtype dtype = trek_onnx_in_seen(x, k)->dtype;
    return trek_onnx_cast(x, trek_onnx_in(x, k), dtype, dtype == TREK_I32 ? TREK_I32 : TREK_I64);
}

static void index_select(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Gather", trek_onnx_in(x, 0), index_of(x, 1));
    trek_onnx_attr_int(x, "axis", trek_onnx_i(x, 0));
}

static void embedding(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "Gather", trek_onnx_in(x, 0), index_of(x, 1));
    trek_onnx_attr_int(x, "axis", 0);
}

/* ONNX's elements follow the index's sizes from the beginning, as trek's do. */
static void gather(trek_onnx *x, const char **outs)
{
    if (in_ndim(x) == 0) {
        trek_onnx_refuse(x, "of a scalar");
        return;
    }
    outs[0] = trek_onnx_2(x, "GatherElements", trek_onnx_in(x, 0), index_of(x, 1));
    trek_onnx_attr_int(x, "axis", trek_onnx_i(x, 0));
}

static void scattered(trek_onnx *x, const char *reduction, const char **outs)
{
    if (in_ndim(x) == 0) {
        trek_onnx_refuse(x, "of a scalar");
        return;
    }
    const char *source = trek_onnx_in(x, 2), *index = index_of(x, 1);
    for (int d = 0; d < in_ndim(x); d++) { /* a source may be larger than the index, but not in ONNX */
        int64_t have[TREK_ONNX_RUNS], need[TREK_ONNX_RUNS];
        trek_onnx_sizes(x, 2, d, have);
        trek_onnx_sizes(x, 1, d, need);
        bool same = true;
        for (int r = 0; r < x->n_runs; r++)
            same &= have[r] == need[r];
        if (!same)
            source = trek_onnx_node(x, "Slice", 4, (const char *[]){ source, trek_onnx_int(x, 0), trek_onnx_dim_of(x, index, d),
                                                                     trek_onnx_int(x, d) });
    }
    outs[0] = trek_onnx_3(x, "ScatterElements", trek_onnx_in(x, 0), index, source);
    trek_onnx_attr_int(x, "axis", trek_onnx_i(x, 0));
    if (reduction)
        trek_onnx_attr_string(x, "reduction", reduction);
}

static void scatter(trek_onnx *x, const char **outs) { scattered(x, NULL, outs); }
static void scatter_add(trek_onnx *x, const char **outs) { scattered(x, "add", outs); }

static void scatter_reduce(trek_onnx *x, const char **outs)
{
    int64_t kind = trek_onnx_i(x, 1);
    if (kind == TREK_SCATTER_PROD)
        scattered(x, "mul", outs);
    else if (kind != TREK_SCATTER_AMAX && kind != TREK_SCATTER_AMIN)
        trek_onnx_refuse(x, "its kind %lld has no counterpart", (long long)kind);
    else if (x->opset < 18)
        trek_onnx_refuse(x, "extremes exist from opset 18 on");
    else
        scattered(x, kind == TREK_SCATTER_AMAX ? "max" : "min", outs);
}

/* The index, which has one number for each slice, becomes one for each element. */
static void index_add(trek_onnx *x, const char **outs)
{
    int64_t dim = trek_onnx_i(x, 0), shape[TREK_MAX_DIMS];
    int ndim = in_ndim(x);
    for (int d = 0; d < ndim; d++)
        shape[d] = d == dim ? -1 : 1;
    const char *index = trek_onnx_2(x, "Reshape", index_of(x, 1), trek_onnx_ints(x, ndim, shape));
    index = trek_onnx_2(x, "Expand", index, trek_onnx_1(x, "Shape", trek_onnx_in(x, 2)));
    outs[0] = trek_onnx_3(x, "ScatterElements", trek_onnx_in(x, 0), index, trek_onnx_in(x, 2));
    trek_onnx_attr_int(x, "axis", dim);
    trek_onnx_attr_string(x, "reduction", "add");
}

static void one_hot(trek_onnx *x, const char **outs)
{
    int64_t classes = trek_onnx_out_seen(x, 0)->sizes[trek_onnx_out_seen(x, 0)->ndim - 1];
    if (trek_onnx_i(x, 0) < 0)
        trek_onnx_refuse(x, "as many classes as the values have");
    outs[0] = trek_onnx_3(x, "OneHot", trek_onnx_cast(x, trek_onnx_in(x, 0), trek_onnx_in_seen(x, 0)->dtype, TREK_I64),
                          trek_onnx_int(x, classes), trek_onnx_ints(x, 2, (const int64_t[]){ 0, 1 }));
    trek_onnx_attr_int(x, "axis", -1);
}

/* The number of results must not look like a fixed size, because later nodes would be written for that size. */
static void nonzero(trek_onnx *x, const char **outs)
{
    int64_t counts[TREK_ONNX_RUNS];
    for (int r = 0; r < x->n_runs; r++)
        counts[r] = trek_onnx_seen(x, r, trek_onnx_at(x, 0)->outputs[0])->sizes[0];
    if (x->follows[trek_onnx_input_value(x, 0)] && trek_onnx_same(x, counts))
        trek_onnx_refuse(x,
                         "%lld places with all values that were tried: whether this holds for others is unknown; give an example "
                         "of which some are zero",
                         (long long)counts[0]);
    outs[0] = trek_onnx_1(x, "Transpose", trek_onnx_1(x, "NonZero", trek_onnx_in(x, 0)));
}

/* Returns the bag of each position: the number of bags that have ended there. Positions behind the last bag go to an
 * additional one, which is left out. */
static const char *bag_of_places(trek_onnx *x)
{
    const char *n = trek_onnx_2(x, "Squeeze", trek_onnx_dim_of(x, trek_onnx_in(x, 1), 0), trek_onnx_int(x, 0));
    const char *line = trek_onnx_3(x, "Range", trek_onnx_scalar(x, TREK_I64, 0), n, trek_onnx_scalar(x, TREK_I64, 1));
    const char *ends = trek_onnx_sliced(x, trek_onnx_in(x, 2), 1, INT64_MAX, 0, 1);
    const char *ended = trek_onnx_2(x, "GreaterOrEqual", trek_onnx_2(x, "Unsqueeze", line, trek_onnx_int(x, 1)), ends);
    return trek_onnx_reduced(x, "ReduceSum", trek_onnx_cast(x, ended, TREK_BOOL, TREK_I64), 2, true);
}

/* Combines rows by bags, into rows of `start`, of which there is one more than there are bags. */
static const char *by_bag(trek_onnx *x, const char *bags, const char *rows, double start, const char *reduction)
{
    const char *shape = trek_onnx_node(x, "Concat", 2, (const char *[]){ trek_onnx_dim_of(x, trek_onnx_in(x, 2), 0),
                                                                         trek_onnx_dim_of(x, rows, 1) });
    trek_onnx_attr_int(x, "axis", 0);
    const char *into = trek_onnx_2(x, "Expand", trek_onnx_scalar(x, trek_onnx_in_seen(x, 0)->dtype, start), shape);
    const char *index = trek_onnx_2(x, "Expand", bags, trek_onnx_1(x, "Shape", rows));
    const char *y = trek_onnx_3(x, "ScatterElements", into, index, rows);
    trek_onnx_attr_int(x, "axis", 0);
    trek_onnx_attr_string(x, "reduction", reduction);
    return trek_onnx_sliced(x, y, 0, -1, 0, 1);
}

static void embedding_bag(trek_onnx *x, const char **outs)
{
    trek_dtype dtype = trek_onnx_in_seen(x, 0)->dtype, places = trek_onnx_in_seen(x, 1)->dtype;
    int64_t padding = trek_onnx_i(x, 0), mode = trek_onnx_i(x, 1);
    const char *rows = trek_onnx_2(x, "Gather", trek_onnx_in(x, 0), index_of(x, 1)), *bags = bag_of_places(x);
    const char *column = trek_onnx_int(x, 1), *zero = trek_onnx_scalar(x, dtype, 0);
    const char *padded = trek_onnx_2(x, "Equal", trek_onnx_2(x, "Unsqueeze", trek_onnx_in(x, 1), column),
                                     trek_onnx_scalar(x, places, padding < 0 ? 0 : (double)padding));
    if (padding < 0)
        padded = trek_onnx_2(x, "And", padded, trek_onnx_scalar(x, TREK_BOOL, 0));
    const char *counts = by_bag(x, bags, trek_onnx_cast(x, trek_onnx_1(x, "Not", padded), TREK_BOOL, dtype), 0, "add");
    if (trek_onnx_has(x, 3))
        rows = trek_onnx_2(x, "Mul", rows, trek_onnx_2(x, "Unsqueeze", trek_onnx_cast(x, trek_onnx_in(x, 3),
                                                       trek_onnx_in_seen(x, 3)->dtype, dtype), column));
    bool most = mode == TREK_REDUCTION_MAX;
    if (!most && mode != TREK_REDUCTION_SUM && mode != TREK_REDUCTION_MEAN)
        trek_onnx_refuse(x, "its mode %lld has no counterpart", (long long)mode);
    rows = trek_onnx_3(x, "Where", padded, most ? trek_onnx_scalar(x, dtype, -INFINITY) : zero, rows);
    const char *y = by_bag(x, bags, rows, most ? -INFINITY : 0, most ? "max" : "add");
    if (most && x->opset < 18)
        trek_onnx_refuse(x, "maxima exist from opset 18 on");
    if (most)
        y = trek_onnx_3(x, "Where", trek_onnx_2(x, "Equal", counts, zero), zero, y);
    outs[0] = mode == TREK_REDUCTION_MEAN ? trek_onnx_2(x, "Div", y, trek_onnx_2(x, "Max", counts, trek_onnx_scalar(x, dtype, 1)))
        : y;
}

/* --- from nothing ------------------------------------------------------------------------------------------ */

/* Returns the fill value, which may be an open size: a mean's divisor. */
static const char *filling(trek_onnx *x, trek_dtype dtype)
{
    int64_t sizes[TREK_ONNX_RUNS];
    bool whole = true;
    for (int r = 0; r < x->n_runs; r++) {
        double value = trek_onnx_at(x, r)->attrs.f[0];
        whole = whole && fabs(value) < 1e15 && value == rint(value);
        sizes[r] = whole ? (int64_t)value : 0;
    }
    if (!whole || trek_onnx_same(x, sizes))
        return trek_onnx_scalar(x, dtype, trek_onnx_f(x, 0));
    const char *size = trek_onnx_2(x, "Squeeze", trek_onnx_need_size(x, sizes, "its number"), trek_onnx_int(x, 0));
    return trek_onnx_cast(x, size, TREK_I64, dtype);
}

static void fill(trek_onnx *x, const char **outs)
{
    const trek_onnx_value *out = trek_onnx_out_seen(x, 0);
    const char *value = filling(x, out->dtype);
    int64_t sizes[TREK_MAX_DIMS][TREK_ONNX_RUNS];
    for (int d = 0; d < out->ndim; d++)
        for (int r = 0; r < x->n_runs; r++)
            sizes[d][r] = trek_onnx_seen(x, r, trek_onnx_at(x, 0)->outputs[0])->sizes[d];
    outs[0] = out->ndim == 0 ? trek_onnx_1(x, "Identity", value)
                             : trek_onnx_2(x, "Expand", value, trek_onnx_shape(x, out->ndim, sizes));
}

const trek_onnx_row trek_onnx_rows_shape[] = {
    { TREK_OP_reshape, reshape, NULL }, { TREK_OP_expand, expand, NULL }, { TREK_OP_permute, permute, NULL },
    { TREK_OP_transpose, transpose, NULL }, { TREK_OP_squeeze, squeeze, "Squeeze" },
    { TREK_OP_unsqueeze, squeeze, "Unsqueeze" }, { TREK_OP_narrow, narrow, NULL }, { TREK_OP_select, select_row, NULL },
    { TREK_OP_diagonal, diagonal, NULL }, { TREK_OP_convert, convert, NULL }, { TREK_OP_flip, flip, NULL },
    { TREK_OP_cat, cat, NULL }, { TREK_OP_tril, triangle, "lower" }, { TREK_OP_triu, triangle, "upper" },
    { TREK_OP_index_select, index_select, NULL }, { TREK_OP_embedding, embedding, NULL },
    { TREK_OP_embedding_bag, embedding_bag, NULL }, { TREK_OP_gather, gather, NULL }, { TREK_OP_scatter, scatter, NULL },
    { TREK_OP_scatter_add, scatter_add, NULL }, { TREK_OP_scatter_reduce, scatter_reduce, NULL },
    { TREK_OP_index_add, index_add, NULL }, { TREK_OP_one_hot, one_hot, NULL }, { TREK_OP_nonzero, nonzero, NULL },
    { TREK_OP_fill, fill, NULL },
    { 0, NULL, NULL },
};

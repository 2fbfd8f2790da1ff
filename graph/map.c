/* SPDX-License-Identifier: Apache-2.0 */
/* A module that runs on each element or slice of a value. */
#include <stdio.h>

#include "autograd/ops.h"
#include "graph/verbs.h"
#include "nn/module_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/row_map.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

typedef struct map_module {
    trek_module base;
    trek_module *body;
    int dim;
    int64_t slices;           /* 0: elements of dim */
    bool batched;
} map_module;

/* --- in one call ----------------------------------------------------------------------- */

/* Folds dimension `dim` of [N, ...] into the rows, runs the body, and unfolds the result. */
static trek_var *run_folded(const map_module *m, trek_var *const *inputs, int n, trek_var *x, int dim)
{
    trek_var *list[TREK_VERB_MOST_INPUTS];
    trek_var *moved = trek_movedim(x, trek_dims(dim), trek_dims(1));
    if (!moved)
        return NULL;
    int64_t rows = trek_var_size(moved, 0), count = trek_var_size(moved, 1);
    list[0] = trek_flatten(moved, 0, 1);
    for (int k = 1; k < n; k++)
        list[k] = inputs[k];
    trek_var *y = list[0] ? trek_verb_run(m->body, list, n) : NULL;
    if (!y)
        return NULL;
    trek_shape shape = trek_var_shape(y), apart = { .ndim = shape.ndim + 1, .sizes = { rows, count } };
    if (shape.ndim < 1 || shape.sizes[0] != rows * count || shape.ndim >= TREK_MAX_DIMS) {
        char text[TREK_SHAPE_TEXT];
        return trek_fail_null(TREK_ERR_SHAPE, "map: body: result of shape %s for %lld rows; the number of rows must not change",
                              trek_shape_format(shape, text, sizeof text), (long long)(rows * count));
    }
    for (int d = 1; d < shape.ndim; d++)
        apart.sizes[d + 1] = shape.sizes[d];
    return trek_movedim(trek_reshape(y, apart), trek_dims(1), trek_dims(dim < apart.ndim ? dim : apart.ndim - 1));
}

/* Does so with [..., n w] as [..., n, w]. */
static trek_var *run_folded_slices(const map_module *m, trek_var *const *inputs, int n)
{
    char text[TREK_SHAPE_TEXT];
    trek_shape shape = trek_var_shape(inputs[0]);
    if (shape.ndim < 2 || shape.ndim >= TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_SHAPE, "map: input: %s; slices in one call need rows and a dimension to slice",
                              trek_shape_format(shape, text, sizeof text));
    shape.sizes[shape.ndim] = shape.sizes[shape.ndim - 1] / m->slices;
    shape.sizes[shape.ndim - 1] = m->slices;
    shape.ndim++;
    trek_var *x = trek_reshape(inputs[0], shape), *y = x ? run_folded(m, inputs, n, x, shape.ndim - 2) : NULL;
    if (!y)
        return NULL;
    if (trek_var_ndim(y) != shape.ndim)
        return trek_fail_null(TREK_ERR_SHAPE,
                              "map: body: result of %d dimensions for a slice of %d; the number of dimensions must not change",
                              trek_var_ndim(y), shape.ndim);
    return trek_flatten(y, -2, -1);
}

/* --- one by one ------------------------------------------------------------------------- */

/* Runs on one row of each input. Its index is the key of what is drawn. */
static trek_var *run_row(const map_module *m, trek_var *const *inputs, int n, int64_t rows, int64_t k)
{
    trek_var *list[TREK_VERB_MOST_INPUTS];
    char text[TREK_SHAPE_TEXT];
    for (int j = 0; j < n; j++) {
        if (inputs[j] && (trek_var_ndim(inputs[j]) < 1 || trek_var_size(inputs[j], 0) != rows))
            return trek_fail_null(TREK_ERR_SHAPE, "map: input %d: %s; must have %lld rows", j,
                                  trek_shape_format(trek_var_shape(inputs[j]), text, sizeof text), (long long)rows);
        list[j] = inputs[j] ? trek_narrow(inputs[j], 0, k, 1) : NULL;
        if (inputs[j] && !list[j])
            return NULL;
    }
    trek_rank_context *here = &trek_rank_here;
    int64_t first = here->first_sample, count = here->rows;
    const trek_row_map *map = here->row_map;
    here->first_sample = trek_row_place(rows, k);
    here->rows = 1;
    here->row_map = NULL;
    trek_var *y = trek_verb_run(m->body, list, n);
    here->first_sample = first;
    here->rows = count;
    here->row_map = map;
    return y;
}

static trek_var *run_part(const map_module *m, trek_var *const *inputs, int n, int dim, int64_t k, int64_t count)
{
    trek_var *list[TREK_VERB_MOST_INPUTS];
    if (m->slices == 0 && dim == 0)
        return run_row(m, inputs, n, count, k);
    for (int j = 1; j < n; j++)
        list[j] = inputs[j];
    int64_t width = m->slices ? trek_var_size(inputs[0], dim) / count : 1;
    list[0] = m->slices ? trek_narrow(inputs[0], dim, k * width, width) : trek_select(inputs[0], dim, k);
    return list[0] ? trek_verb_run(m->body, list, n) : NULL;
}

/* Makes the same number of runs on every rank, except over rows: then each run draws the numbers of its row. */
static trek_var *run_each(const map_module *m, trek_var *const *inputs, int n, int dim, int64_t count)
{
    trek_var **parts = trek_calloc((size_t)count, sizeof *parts);
    if (!parts)
        return NULL;
    bool rows = m->slices == 0 && dim == 0, fine = true;
    trek_rng_part part = trek_rng_part_begin();
    for (int64_t k = 0; k < count && fine; k++) {
        if (rows)
            trek_rng_part_run(&part, 0);
        parts[k] = run_part(m, inputs, n, dim, k, count);
        fine = parts[k] != NULL;
    }
    if (rows)
        trek_rng_part_end(&part);
    trek_var *y = !fine ? NULL : rows ? trek_cat(parts, (int)count, 0)
        : m->slices ? trek_cat(parts, (int)count, -1) : trek_stack(parts, (int)count, dim);
    trek_free(parts);
    return y;
}

/* --- the module ---------------------------------------------------------------------------- */

static trek_var *map_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    const map_module *m = (const map_module *)self;
    char text[TREK_SHAPE_TEXT];
    if (n > TREK_VERB_MOST_INPUTS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "map: inputs: %d; must be at most %d", n, TREK_VERB_MOST_INPUTS);
    trek_shape shape = trek_var_shape(inputs[0]);
    int dim = m->slices ? shape.ndim - 1 : m->dim < 0 ? m->dim + shape.ndim : m->dim;
    if (dim < 0 || dim >= shape.ndim)
        return trek_fail_null(TREK_ERR_SHAPE, "map: input: %s has no dimension %d", trek_shape_format(shape, text, sizeof text),
                              m->slices ? -1 : m->dim);
    if (m->slices && shape.sizes[dim] % m->slices != 0)
        return trek_fail_null(TREK_ERR_SHAPE, "map: .slices: the last dimension of %s is not a multiple of %lld",
                              trek_shape_format(shape, text, sizeof text), (long long)m->slices);
    int64_t count = m->slices ? m->slices : shape.sizes[dim];
    if (count > INT32_MAX)
        return trek_fail_null(TREK_ERR_SHAPE, "map: input: %lld parts; there must be fewer than 2^31", (long long)count);
    if (!m->slices && dim == 0 && (m->batched || count == 0)) /* of no elements: only the shape is needed */
        return trek_verb_run(m->body, inputs, n);
    if (m->slices && m->batched)
        return run_folded_slices(m, inputs, n);
    if (m->batched || count == 0)
        return run_folded(m, inputs, n, inputs[0], dim);
    return run_each(m, inputs, n, dim, count);
}

static trek_var *map_forward(trek_module *self, trek_var *x) { return map_forward_many(self, &x, 1); }

static void map_describe(const trek_module *self, char *text, size_t size)
{
    const map_module *m = (const map_module *)self;
    const char *batched = m->batched ? ", batched" : "";
    if (m->slices)
        snprintf(text, size, "%lld slices%s", (long long)m->slices, batched);
    else
        snprintf(text, size, "dim %d%s", m->dim, batched);
}

static const trek_module_class map_class = { .name = "map", .size = sizeof(map_module), .forward = map_forward,
                                             .forward_many = map_forward_many, .describe = map_describe,
                                             .hands_inputs_on = true };

trek_module *trek_map_new(trek_module *body, const trek_map_opts *opts)
{
    trek_map_opts given = opts ? *opts : (trek_map_opts){ 0 };
    if (given.slices < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "map: .slices: %lld; must be at least 1", (long long)given.slices);
    if (given.slices && given.dim)
        return trek_fail_null(TREK_ERR_ARGUMENT, "map: .dim: %d, together with .slices; slices are those of the last dimension",
                              given.dim);
    bool by_row = given.slices == 0 && !given.batched; /* a negative dim may turn out to be that of the rows */
    if (by_row && given.dim <= 0 && trek_verb_refuse_meeting("map", body) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&map_class);
    if (!base)
        return NULL;
    map_module *m = (map_module *)base;
    m->dim = given.dim;
    m->slices = given.slices;
    m->batched = given.batched;
    trek_module_add(base, "body", offsetof(map_module, body), body);
    return trek_module_check(base);
}

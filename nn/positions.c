/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that encode positions: by rotating q and k, or by sinusoids added to x. */
#include <inttypes.h>
#include <stdio.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/kv_cache_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"

typedef struct positions_layer {
    trek_module base;
    trek_var *table;     /* [length, dim] */
    int64_t dim, length;
    double number, p;    /* number: the base; p: the dropout probability */
    bool interleaved;
} positions_layer;

/* Returns the table's rows for x [..., T, D]; in a cached forward, those of the new positions. Returns NULL on
 * failure. */
static trek_var *rows_of(positions_layer *m, trek_var *x)
{
    char text[TREK_SHAPE_TEXT];
    int ndim = trek_var_ndim(x);
    int64_t offset = 0, steps = ndim < 2 ? 0 : trek_var_size(x, -2);
    bool caching = trek_caching(), even = trek_cached_offset(&offset);
    if (ndim < (caching ? 3 : 2) || (even && offset + steps > m->length))
        return trek_fail_null(TREK_ERR_SHAPE, "%s: input: %s; must be [%s..., T, D] with T up to %" PRId64,
                              m->base.own->klass->name,
                              trek_shape_format(trek_var_shape(x), text, sizeof text), caching ? "B, " : "", m->length - offset);
    trek_var *positions = caching ? trek_cached_positions(trek_var_size(x, 0), steps, trek_var_device(m->table)) : NULL;
    if (caching && !positions)
        return NULL;
    if (even)
        return trek_narrow(m->table, 0, offset, steps);
    trek_var *rows = trek_embedding(positions, m->table, -1); /* [B, T, dim]; x may have heads in between */
    for (int k = 3; k < ndim; k++)
        rows = trek_unsqueeze(rows, 1);
    return rows;
}

/* The inputs are x and positions. */
static trek_var *rotary_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    positions_layer *m = (positions_layer *)self;
    if (n > 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "rotary: inputs: %d; it takes x and positions", n);
    trek_var *table = n > 1 && inputs[1] ? trek_embedding(inputs[1], m->table, -1) : rows_of(m, inputs[0]);
    return table ? trek_rotary(inputs[0], &(trek_rotary_opts){ .table = table, .interleaved = m->interleaved }) : NULL;
}

static trek_var *sinusoidal_forward(trek_module *self, trek_var *x)
{
    positions_layer *m = (positions_layer *)self;
    char text[TREK_SHAPE_TEXT];
    trek_var *rows = rows_of(m, x);
    if (!rows)
        return NULL;
    if (trek_var_size(x, -1) != m->dim)
        return trek_fail_null(TREK_ERR_SHAPE, "sinusoidal_positions: input: %s; must be [..., T, %" PRId64 "]",
                              trek_shape_format(trek_var_shape(x), text, sizeof text), m->dim);
    return trek_dropout(trek_add(x, rows), m->p, self->own->training);
}

static void positions_describe(const trek_module *self, char *text, size_t size)
{
    const positions_layer *m = (const positions_layer *)self;
    char number[32];
    snprintf(text, size, "%" PRId64 ", %" PRId64 " positions, base %s%s", m->dim, m->length, trek_layer_number(m->number, number),
             m->interleaved ? ", interleaved" : "");
}

static const char *const rotary_inputs[] = { "positions", NULL };
static const trek_module_class rotary_class = {
    .name = "rotary",
    .size = sizeof(positions_layer),
    .forward_many = rotary_forward_many,
    .describe = positions_describe,
    .input_names = rotary_inputs,
    .optional_inputs = true,
};

static const trek_module_class sinusoidal_class = {
    .name = "sinusoidal_positions",
    .size = sizeof(positions_layer),
    .forward = sinusoidal_forward,
    .describe = positions_describe,
};

typedef trek_var *(*table_maker)(trek_var *positions, int64_t dim, double base, trek_dtype dtype);

/* Returns a new tensor [length, dim] that belongs to no scope. */
static trek_tensor *make_table(table_maker make, const positions_layer *m, trek_dtype dtype, trek_device device)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_tensor *all = trek_tensor_arange(0, (double)m->length, 1, TREK_I64, device);
    trek_var *table = all ? make(trek_var_from(all), m->dim, m->number, dtype) : NULL;
    trek_tensor *made = table ? trek_tensor_retain(trek_var_data(table)) : NULL;
    trek_no_grad_end();
    trek_scope_end(scope);
    return made;
}

static trek_module *positions_new(const trek_module_class *klass, const char *buffer, table_maker make, const positions_layer *as,
                                  trek_dtype dtype, trek_device device)
{
    const int64_t most = (int64_t)1 << 40; /* no memory holds more */
    if (trek_layer_positive(klass->name, "dim", as->dim) != TREK_OK ||
        trek_layer_positive(klass->name, "length", as->length) != TREK_OK)
        return NULL;
    if (as->length > most)
        return trek_fail_null(TREK_ERR_MEMORY, "%s: length: %" PRId64 " positions; too many for the memory", klass->name,
                              as->length);
    if (!(as->p >= 0 && as->p <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: .dropout: %g; must be inside [0, 1]", klass->name, as->p);
    trek_module *base = trek_module_new(klass);
    if (!base)
        return NULL;
    positions_layer *m = (positions_layer *)base;
    m->dim = as->dim;
    m->length = as->length;
    m->number = as->number;
    m->p = as->p;
    m->interleaved = as->interleaved;
    trek_module_buffer(base, buffer, offsetof(positions_layer, table), make_table(make, as, dtype, device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_rotary_with(const trek_rotary_layer_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "rotary: options: NULL; they must be given");
    positions_layer as = { .dim = opts->dim, .length = opts->length ? opts->length : 4096,
                           .number = opts->base ? opts->base : 10000, .interleaved = opts->interleaved };
    return positions_new(&rotary_class, "table", trek_rotary_table, &as, opts->dtype, opts->device);
}

trek_module *trek_nn_rotary(int64_t dim, int64_t length, trek_device device)
{
    return trek_nn_rotary_with(&(trek_rotary_layer_opts){ .dim = dim, .length = length, .device = device });
}

trek_module *trek_nn_sinusoidal_positions_with(const trek_sinusoidal_positions_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "sinusoidal_positions: options: NULL; they must be given");
    positions_layer as = { .dim = opts->dim, .length = opts->length ? opts->length : 5000,
                           .number = opts->base ? opts->base : 10000, .p = trek_option(opts->dropout, 0) };
    return positions_new(&sinusoidal_class, "pe", trek_sinusoidal_positions, &as, opts->dtype, opts->device);
}

trek_module *trek_nn_sinusoidal_positions(int64_t dim, int64_t length, trek_device device)
{
    return trek_nn_sinusoidal_positions_with(&(trek_sinusoidal_positions_opts){ .dim = dim, .length = length, .device = device });
}

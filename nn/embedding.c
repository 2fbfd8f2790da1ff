/* SPDX-License-Identifier: Apache-2.0 */
/* The embedding table. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/ops.h"
#include "nn/init_internal.h"
#include "nn/layers_internal.h"

typedef struct embedding_layer {
    trek_module base;
    trek_var *weight;
    int64_t num, dim, padding_idx; /* padding_idx -1: none */
} embedding_layer;

static trek_var *embedding_forward(trek_module *self, trek_var *x)
{
    embedding_layer *m = (embedding_layer *)self;
    return trek_embedding(m->weight, x, m->padding_idx);
}

static trek_status embedding_reset(trek_module *self)
{
    embedding_layer *m = (embedding_layer *)self;
    trek_tensor *values = trek_init_normal_values(m->weight, 0, 1);
    if (values && m->padding_idx >= 0) {
        size_t row = (size_t)m->dim * trek_dtype_size(trek_tensor_dtype(values));
        memset((char *)trek_tensor_data(values) + (size_t)m->padding_idx * row, 0, row);
    }
    return trek_init_write(m->weight, values);
}

static void embedding_describe(const trek_module *self, char *text, size_t size)
{
    const embedding_layer *m = (const embedding_layer *)self;
    int length = snprintf(text, size, "%" PRId64 ", %" PRId64, m->num, m->dim);
    if (m->padding_idx >= 0 && length > 0 && (size_t)length < size)
        snprintf(text + length, size - (size_t)length, ", padding row %" PRId64, m->padding_idx);
}

static const trek_module_class embedding_class = {
    .name = "embedding",
    .size = sizeof(embedding_layer),
    .forward = embedding_forward,
    .reset = embedding_reset,
    .describe = embedding_describe,
};

/* -1: none. */
static trek_status padding_row(const trek_embedding_opts *opts, int64_t *row)
{
    *row = opts->padding_idx;
    if (*row == 0 || *row == TREK_OFF)
        *row = -1;
    else if (*row == TREK_ZERO)
        *row = 0;
    else if (*row < -opts->num || *row >= opts->num)
        return trek_fail(TREK_ERR_ARGUMENT, "embedding: padding_idx %" PRId64 " is outside %" PRId64 " rows", *row, opts->num);
    else if (*row < 0)
        *row += opts->num;
    return TREK_OK;
}

trek_module *trek_nn_embedding_with(const trek_embedding_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "embedding: needs options");
    int64_t row;
    if (trek_layer_positive("embedding", "num", opts->num) != TREK_OK ||
        trek_layer_positive("embedding", "dim", opts->dim) != TREK_OK ||
        padding_row(opts, &row) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&embedding_class);
    if (!base)
        return NULL;
    embedding_layer *m = (embedding_layer *)base;
    m->num = opts->num;
    m->dim = opts->dim;
    m->padding_idx = row;
    trek_module_param(base, "weight", offsetof(embedding_layer, weight),
                      trek_tensor_empty(trek_dims(opts->num, opts->dim), opts->dtype, opts->device));
    return trek_layer_finish(base);
}

trek_module *trek_nn_embedding(int64_t num, int64_t dim, trek_device device)
{
    return trek_nn_embedding_with(&(trek_embedding_opts){ .num = num, .dim = dim, .device = device });
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The embedding table and embedding bags. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/embedding_internal.h"
#include "autograd/ops.h"
#include "nn/init_internal.h"
#include "nn/layers_internal.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"

typedef struct embedding_layer {
    trek_module base;
    trek_var *weight;
    int64_t num, dim, padding_idx; /* padding_idx is -1 for none */
    trek_lookup_opts lookup;
    trek_reduction mode;            /* only for bags, like the next field */
    bool include_last_offset;
} embedding_layer;

static trek_var *embedding_forward(trek_module *self, trek_var *x)
{
    embedding_layer *m = (embedding_layer *)self;
    return trek_embedding_with(x, m->weight, &m->lookup);
}

/* The inputs are indices, offsets and per_sample_weights. */
static trek_var *bag_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    embedding_layer *m = (embedding_layer *)self;
    const trek_lookup_opts *l = &m->lookup;
    trek_bag_opts opts = { .offsets = n > 1 ? inputs[1] : NULL, .per_sample_weights = n > 2 ? inputs[2] : NULL, .mode = m->mode,
                           .include_last_offset = m->include_last_offset, .padding_idx = l->padding_idx, .max_norm = l->max_norm,
                           .norm_type = l->norm_type, .scale_grad_by_freq = l->scale_grad_by_freq };
    if (n > 3)
        return trek_fail_null(TREK_ERR_ARGUMENT, "embedding_bag: inputs: %d; it takes indices, offsets and per_sample_weights",
                              n);
    return trek_embedding_bag(inputs[0], m->weight, &opts);
}

static trek_status embedding_reset(trek_module *self)
{
    embedding_layer *m = (embedding_layer *)self;
    if (trek_init_skips())
        return TREK_OK;
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

static void bag_describe(const trek_module *self, char *text, size_t size)
{
    static const char *const modes[] = { ", mean", ", sum", ", max" };
    embedding_describe(self, text, size);
    size_t length = strlen(text);
    if (length < size)
        snprintf(text + length, size - length, "%s", modes[((const embedding_layer *)self)->mode]);
}

/* The second class scales gradients by frequencies, which are those of the rank's own part of the batch. The third one rescales
 * rows of the table in its forward. */
#define EMBEDDING_CLASS(couples, treats_rows_alike) \
    { .name = "embedding", .size = sizeof(embedding_layer), .forward = embedding_forward, .reset = embedding_reset, \
      .describe = embedding_describe, .couples_samples = couples, .rowwise = treats_rows_alike }
static const trek_module_class embedding_classes[3] = { EMBEDDING_CLASS(false, true), EMBEDDING_CLASS(true, false),
                                                        EMBEDDING_CLASS(false, false) };
static const char *const bag_inputs[] = { "offsets", "per_sample_weights", NULL };
#define BAG_CLASS(couples) \
    { .name = "embedding_bag", .size = sizeof(embedding_layer), .forward_many = bag_forward_many, .reset = embedding_reset, \
      .describe = bag_describe, .input_names = bag_inputs, .optional_inputs = true, .couples_samples = couples }
static const trek_module_class bag_classes[2] = { BAG_CLASS(false), BAG_CLASS(true) };

static trek_module *embedding_new(const trek_module_class *klass, const trek_embedding_opts *opts)
{
    int64_t row;
    if (trek_layer_positive(klass->name, "num", opts->num) != TREK_OK ||
        trek_layer_positive(klass->name, "dim", opts->dim) != TREK_OK ||
        trek_padding_row(klass->name, opts->padding_idx, opts->num, &row) != TREK_OK ||
        trek_check_max_norm(klass->name, opts->max_norm, opts->norm_type) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(klass);
    if (!base)
        return NULL;
    embedding_layer *m = (embedding_layer *)base;
    m->num = opts->num;
    m->dim = opts->dim;
    m->padding_idx = row;
    m->lookup = (trek_lookup_opts){ .padding_idx = opts->padding_idx, .max_norm = opts->max_norm, .norm_type = opts->norm_type,
                                    .scale_grad_by_freq = opts->scale_grad_by_freq };
    trek_module_param(base, "weight", offsetof(embedding_layer, weight),
                      trek_tensor_empty(trek_dims(opts->num, opts->dim), opts->dtype, opts->device));
    return base;
}

trek_module *trek_nn_embedding_with(const trek_embedding_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "embedding: options: NULL; they must be given");
    int kind = opts->scale_grad_by_freq ? 1 : opts->max_norm > 0 ? 2 : 0;
    trek_module *base = embedding_new(&embedding_classes[kind], opts);
    return base ? trek_layer_finish(base) : NULL;
}

trek_module *trek_nn_embedding(int64_t num, int64_t dim, trek_device device)
{
    return trek_nn_embedding_with(&(trek_embedding_opts){ .num = num, .dim = dim, .device = device });
}

trek_module *trek_nn_embedding_bag_with(const trek_embedding_bag_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "embedding_bag: options: NULL; they must be given");
    if (opts->mode < TREK_REDUCTION_MEAN || opts->mode > TREK_REDUCTION_MAX)
        return trek_fail_null(TREK_ERR_ARGUMENT, "embedding_bag: .mode: %d; must be TREK_REDUCTION_MEAN, _SUM or _MAX",
                              (int)opts->mode);
    if (opts->mode == TREK_REDUCTION_MAX && opts->scale_grad_by_freq)
        return trek_fail_null(
            TREK_ERR_ARGUMENT,
            "embedding_bag: .scale_grad_by_freq: set together with TREK_REDUCTION_MAX, whose gradients are not scaled");
    trek_embedding_opts table = { .num = opts->num, .dim = opts->dim, .padding_idx = opts->padding_idx, .dtype = opts->dtype,
                                  .device = opts->device, .max_norm = opts->max_norm, .norm_type = opts->norm_type,
                                  .scale_grad_by_freq = opts->scale_grad_by_freq };
    trek_module *base = embedding_new(&bag_classes[table.scale_grad_by_freq], &table);
    if (!base)
        return NULL;
    ((embedding_layer *)base)->mode = opts->mode;
    ((embedding_layer *)base)->include_last_offset = opts->include_last_offset;
    return trek_layer_finish(base);
}

trek_module *trek_nn_embedding_bag(int64_t num, int64_t dim, trek_device device)
{
    return trek_nn_embedding_bag_with(&(trek_embedding_bag_opts){ .num = num, .dim = dim, .device = device });
}

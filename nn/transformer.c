/* SPDX-License-Identifier: Apache-2.0 */
/* Encoder and decoder layers, and stacks of them. */
#include "nn/module_internal.h"
#include "nn/transformer.h"

#include <inttypes.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"

/* --- a layer ------------------------------------------------------------------------------------- */

enum { MOST_NORMS = 3 };

/* memory_attn and the third norm belong to decoders only */
typedef struct transformer_layer {
    trek_module base;
    trek_module *self_attn, *memory_attn, *linear1, *linear2, *norms[MOST_NORMS];
    double dropout;
    trek_activation activation;
    bool norm_first;
} transformer_layer;

static const trek_module_class decoder_layer_class;

static bool is_decoder(const transformer_layer *m) { return m->base.own->klass == &decoder_layer_class; }

static trek_var *dropped(const transformer_layer *m, trek_var *x)
{
    return m->base.own->training && m->dropout > 0 ? trek_dropout(x, m->dropout, true) : x;
}

/* A NULL memory means self-attention. */
static trek_var *attend(transformer_layer *m, trek_var *x, trek_var *memory, trek_var *mask)
{
    trek_module *attention = memory ? m->memory_attn : m->self_attn;
    return dropped(m, trek_forward_many(attention, (trek_var *[]){ x, memory, NULL, mask }, 4));
}

static trek_var *feed_forward(transformer_layer *m, trek_var *x)
{
    trek_var *y = trek_layer_run_fused(m->linear1, x, m->activation);
    return dropped(m, trek_forward(m->linear2, dropped(m, y)));
}

/* Computes part k of the layer for x after its norm; -1 is the feed-forward part. */
static trek_var *part(transformer_layer *m, int k, trek_var *x, trek_var *const *inputs, int n)
{
    bool decodes = is_decoder(m);
    if (k == 0)
        return attend(m, x, NULL, n > (decodes ? 2 : 1) ? inputs[decodes ? 2 : 1] : NULL);
    return k == 1 && decodes ? attend(m, x, inputs[1], n > 3 ? inputs[3] : NULL) : feed_forward(m, x);
}

static trek_var *layer_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    transformer_layer *m = (transformer_layer *)self;
    const char *name = self->own->klass->name;
    int most = is_decoder(m) ? 4 : 2, parts = is_decoder(m) ? 3 : 2;
    if (n > most)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: inputs: %d; must be at most %d", name, n, most);
    if (is_decoder(m) && (n < 2 || !inputs[1]))
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: memory: missing; it must be given besides the input", name);
    trek_var *x = inputs[0];
    for (int k = 0; k < parts && x; k++) {
        trek_var *y = part(m, k, m->norm_first ? trek_forward(m->norms[k], x) : x, inputs, n);
        x = trek_add(x, y);
        if (!m->norm_first)
            x = trek_forward(m->norms[k], x);
    }
    return x;
}

static void layer_describe(const trek_module *self, char *text, size_t size)
{
    const transformer_layer *m = (const transformer_layer *)self;
    const trek_linear_layer *wide = (const trek_linear_layer *)m->linear1;
    char number[32], dropout[48] = "";
    if (m->dropout > 0)
        snprintf(dropout, sizeof dropout, ", dropout %s", trek_layer_number(m->dropout, number));
    snprintf(text, size, "%" PRId64 ", feed forward %" PRId64 "%s%s%s", wide->in, wide->out,
             m->activation == TREK_ACTIVATION_GELU ? ", GELU" : "", m->norm_first ? ", norm first" : "", dropout);
}

static const char *const encoder_inputs[] = { "mask", NULL }, *const decoder_inputs[] = { "memory", "mask", "memory_mask", NULL };
static const trek_module_class encoder_layer_class = {
    .name = "transformer_encoder_layer", .size = sizeof(transformer_layer), .forward_many = layer_forward_many,
    .describe = layer_describe, .input_names = encoder_inputs, .optional_inputs = true, .rowwise = true,
};
static const trek_module_class decoder_layer_class = {
    .name = "transformer_decoder_layer", .size = sizeof(transformer_layer), .forward_many = layer_forward_many,
    .describe = layer_describe, .input_names = decoder_inputs, .optional_inputs = true,
};

/* --- constructors ---------------------------------------------------------------------------------- */

static trek_status check_options(const char *name, const trek_transformer_opts *o)
{
    char number[32];
    if (!o)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: options: NULL; they must be given", name);
    if (trek_layer_positive(name, "d_model", o->d_model) != TREK_OK || trek_layer_positive(name, "heads", o->heads) != TREK_OK ||
        trek_layer_positive(name, "dim_feedforward", o->dim_feedforward ? o->dim_feedforward : 1) != TREK_OK ||
        trek_layer_positive(name, "layers", o->layers ? o->layers : 1) != TREK_OK)
        return trek_error_status();
    double dropout = trek_option(o->dropout, 0.1);
    if (!(dropout >= 0 && dropout <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .dropout: %s; must be inside [0, 1]", name, trek_layer_number(dropout, number));
    if (o->activation < TREK_ACTIVATION_NONE || o->activation > TREK_ACTIVATION_GELU)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .activation: %d; must be a value of trek_activation", name, (int)o->activation);
    return TREK_OK;
}

static trek_module *norm_of(const trek_transformer_opts *o)
{
    return trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(o->d_model), .eps = o->eps, .no_bias = o->no_bias,
                                                            .dtype = o->dtype, .device = o->device });
}

static trek_module *attention_of(const trek_transformer_opts *o, bool causal)
{
    return trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){
        .embed_dim = o->d_model, .heads = o->heads, .no_bias = o->no_bias, .causal = causal,
        .dropout = trek_option(o->dropout, 0.1), .dtype = o->dtype, .device = o->device });
}

static trek_module *layer_new(const trek_module_class *klass, const trek_transformer_opts *o)
{
    static const char *const names[MOST_NORMS] = { "norm1", "norm2", "norm3" };
    trek_module *base = check_options(klass->name, o) == TREK_OK ? trek_module_new(klass) : NULL;
    if (!base)
        return NULL;
    transformer_layer *m = (transformer_layer *)base;
    int64_t wide = o->dim_feedforward ? o->dim_feedforward : 2048;
    m->dropout = trek_option(o->dropout, 0.1);
    m->activation = o->activation == TREK_ACTIVATION_NONE ? TREK_ACTIVATION_RELU : o->activation;
    m->norm_first = o->norm_first;
    trek_linear_opts up = { .in = o->d_model, .out = wide, .no_bias = o->no_bias, .dtype = o->dtype, .device = o->device },
        down = up;
    down.in = wide, down.out = o->d_model;
    trek_module_add(base, "self_attn", offsetof(transformer_layer, self_attn), attention_of(o, o->causal));
    if (is_decoder(m))
        trek_module_add(base, "multihead_attn", offsetof(transformer_layer, memory_attn), attention_of(o, false));
    trek_module_add(base, "linear1", offsetof(transformer_layer, linear1), trek_nn_linear_with(&up));
    trek_module_add(base, "linear2", offsetof(transformer_layer, linear2), trek_nn_linear_with(&down));
    for (int k = 0; k < (is_decoder(m) ? 3 : 2); k++)
        trek_module_add(base, names[k], offsetof(transformer_layer, norms) + (size_t)k * sizeof(trek_module *), norm_of(o));
    return trek_module_check(base);
}

trek_module *trek_nn_transformer_encoder_layer_with(const trek_transformer_opts *opts)
{
    return layer_new(&encoder_layer_class, opts);
}
trek_module *trek_nn_transformer_decoder_layer_with(const trek_transformer_opts *opts)
{
    return layer_new(&decoder_layer_class, opts);
}

trek_module *trek_nn_transformer_encoder_layer(int64_t d_model, int64_t heads, trek_device device)
{
    return trek_nn_transformer_encoder_layer_with(&(trek_transformer_opts){ .d_model = d_model, .heads = heads,
                                                                            .device = device });
}

trek_module *trek_nn_transformer_decoder_layer(int64_t d_model, int64_t heads, trek_device device)
{
    return trek_nn_transformer_decoder_layer_with(&(trek_transformer_opts){ .d_model = d_model, .heads = heads,
                                                                            .device = device });
}

/* --- stacks ------------------------------------------------------------------------------------------ */

typedef struct stack {
    trek_module base;
    trek_module *layers, *norm; /* layers: a Sequential, run layer by layer; norm may be NULL */
} stack;

static trek_var *stack_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    stack *m = (stack *)self;
    trek_var *own[4] = { NULL };
    if (n > 4)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: inputs: %d; must be at most 4", self->own->klass->name, n);
    for (int k = 0; k < n; k++)
        own[k] = inputs[k];
    for (int k = 0; k < m->layers->own->n_children && own[0]; k++)
        own[0] = trek_forward_many(m->layers->own->children[k].module, own, n);
    return m->norm && own[0] ? trek_forward(m->norm, own[0]) : own[0];
}

static const trek_module_class encoder_class = {
    .name = "transformer_encoder", .size = sizeof(stack), .forward_many = stack_forward_many, .input_names = encoder_inputs,
    .optional_inputs = true, .rowwise = true,
};
static const trek_module_class decoder_class = {
    .name = "transformer_decoder", .size = sizeof(stack), .forward_many = stack_forward_many, .input_names = decoder_inputs,
    .optional_inputs = true,
};

static trek_module *stack_new(const trek_module_class *klass, const trek_module_class *layer, const trek_transformer_opts *o)
{
    trek_module *base = check_options(klass->name, o) == TREK_OK ? trek_module_new(klass) : NULL;
    if (!base)
        return NULL;
    trek_module *layers = trek_nn_sequential(NULL, 0);
    bool made = layers != NULL;
    for (int64_t k = 0; made && k < (o->layers ? o->layers : 6); k++)
        made = trek_nn_sequential_add(layers, layer_new(layer, o)) == TREK_OK;
    trek_module_add(base, "layers", offsetof(stack, layers), layers);
    if (o->final_norm)
        trek_module_add(base, "norm", offsetof(stack, norm), norm_of(o));
    if (!made)
        trek_module_free(&base);
    return trek_module_check(base);
}

trek_module *trek_nn_transformer_encoder_with(const trek_transformer_opts *opts)
{
    return stack_new(&encoder_class, &encoder_layer_class, opts);
}

trek_module *trek_nn_transformer_decoder_with(const trek_transformer_opts *opts)
{
    return stack_new(&decoder_class, &decoder_layer_class, opts);
}

/* Keeps the number of layers as given, so that 0 is refused. */
static trek_transformer_opts stack_opts(int64_t d_model, int64_t heads, int64_t layers, trek_device device)
{
    return (trek_transformer_opts){ .d_model = d_model, .heads = heads, .layers = layers ? layers : -1, .device = device };
}

trek_module *trek_nn_transformer_encoder(int64_t d_model, int64_t heads, int64_t layers, trek_device device)
{
    trek_transformer_opts opts = stack_opts(d_model, heads, layers, device);
    return trek_nn_transformer_encoder_with(&opts);
}

trek_module *trek_nn_transformer_decoder(int64_t d_model, int64_t heads, int64_t layers, trek_device device)
{
    trek_transformer_opts opts = stack_opts(d_model, heads, layers, device);
    return trek_nn_transformer_decoder_with(&opts);
}

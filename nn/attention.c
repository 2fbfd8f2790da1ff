/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head attention (Vaswani and others 2017): projections around trek_attention. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/kv_cache_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "tensor/creation.h"
#include "tensor/debug.h"
#include "tensor/option_internal.h"
#include "tensor/shapes.h"

typedef struct attention_layer {
    trek_module base;
    trek_var *in_proj_weight, *in_proj_bias; /* query, key and value, stacked along the first dimension; bias may be NULL */
    trek_var *bias_k, *bias_v;               /* [1, 1, dim]: a key and a value appended to the others, or NULL */
    trek_module *out_proj;
    int64_t dim, heads;
    double dropout;
    bool causal, zero_attn;
} attention_layer;

static int added_keys(const attention_layer *m) { return (m->bias_k != NULL) + m->zero_attn; }

static bool fits(const attention_layer *m, const trek_var *x, const char *what)
{
    char text[TREK_SHAPE_TEXT];
    if (trek_var_ndim(x) == 3 && trek_var_size(x, 2) == m->dim)
        return true;
    trek_fail(TREK_ERR_SHAPE, "multihead_attention: %s: %s; must be [N, T, %" PRId64 "]", what,
              trek_shape_format(trek_var_shape(x), text, sizeof text), m->dim);
    return false;
}

/* Projects x onto the parts [first, first + n) of query, key and value. The result is [N, T, n dim]. */
static trek_var *project(attention_layer *m, trek_var *x, int first, int n)
{
    trek_var *weight = m->in_proj_weight, *bias = m->in_proj_bias;
    if (n < 3) {
        weight = trek_narrow(weight, 0, first * m->dim, n * m->dim);
        bias = bias ? trek_narrow(bias, 0, first * m->dim, n * m->dim) : NULL;
    }
    return weight ? trek_module_linear(&m->base, x, weight, bias) : NULL;
}

/* Splits a packed projection into n parts, each [N, heads, T, dim / heads]: views of one tensor. */
static bool heads_of(const attention_layer *m, trek_var *packed, trek_var **parts, int n)
{
    if (!packed)
        return false;
    trek_shape split = trek_dims(trek_var_size(packed, 0), trek_var_size(packed, 1), n, m->heads, m->dim / m->heads);
    trek_var *each = trek_reshape(packed, split);
    for (int k = 0; k < n; k++)
        parts[k] = trek_permute(trek_select(each, 2, k), trek_dims(0, 2, 1, 3));
    return parts[n - 1] != NULL;
}

/* --- keys that are added ------------------------------------------------------------------------ */

/* Returns keys or values [N, heads, S, dim / heads] with the learned and zero ones appended. */
static trek_var *lengthened(const attention_layer *m, trek_var *part, trek_var *learned)
{
    trek_var *parts[3] = { part };
    trek_shape one = trek_var_shape(part);
    int n = 1;
    one.sizes[2] = 1;
    if (learned)
        parts[n++] = trek_expand(trek_reshape(trek_cast(learned, trek_var_dtype(part)), trek_dims(1, m->heads, 1, one.sizes[3])),
                                 one);
    if (m->zero_attn) {
        trek_tensor *zeros = trek_tensor_zeros(one, trek_var_dtype(part), trek_var_device(part));
        parts[n++] = zeros ? trek_var_from(zeros) : NULL;
    }
    return trek_cat(parts, n, 2);
}

/* Returns what the causal order hides, as a mask [T, S], or NULL on failure. */
static trek_var *causal_mask(const trek_var *query, const trek_var *key)
{
    trek_tensor *ones = trek_tensor_ones(trek_dims(trek_var_size(query, 2), trek_var_size(key, 2)), TREK_BOOL,
                                         trek_var_device(query));
    return ones ? trek_tril(trek_var_from(ones), 0) : NULL;
}

/* Returns the mask [.., T, S] with columns for `more` keys that every query sees. */
static trek_var *lengthened_mask(trek_var *mask, int64_t keys, int64_t more)
{
    trek_shape shape = trek_var_shape(mask);
    int last = shape.ndim - 1;
    if (shape.ndim == 0) {
        shape = trek_dims(keys);
        last = 0;
    }
    shape.sizes[last] = shape.sizes[last] == 1 ? keys : shape.sizes[last];
    trek_var *whole = trek_expand(mask, shape);
    shape.sizes[last] = more;
    trek_dtype dtype = trek_var_dtype(mask);
    trek_tensor *seen = trek_tensor_full(shape, dtype == TREK_BOOL, dtype, trek_var_device(mask));
    return seen ? trek_cat((trek_var *[]){ whole, trek_var_from(seen) }, 2, last) : NULL;
}

/* Returns scores to be added: the mask, with -infinity where `seen` is false. */
static trek_var *hidden_unless(trek_var *seen, trek_var *mask)
{
    trek_tensor *never = trek_tensor_full(trek_dims_none(), -INFINITY, trek_var_dtype(mask), trek_var_device(mask));
    return never ? trek_where(seen, mask, trek_var_from(never)) : NULL;
}

/* Appends the additional keys and values and extends the mask. The causal order would hide the additional keys, so it
 * becomes an explicit mask. */
static bool add_keys(const attention_layer *m, trek_var **parts, trek_attention_opts *opts)
{
    int more = added_keys(m);
    int64_t keys = trek_var_size(parts[1], 2);
    trek_var *past = opts->causal ? causal_mask(parts[0], parts[1]) : NULL, *mask = opts->mask;
    if (opts->causal && !past)
        return false;
    if (past && mask && trek_var_dtype(mask) == TREK_BOOL)
        mask = trek_logical_and(mask, past);
    else if (past && mask)
        mask = hidden_unless(past, mask);
    else if (past)
        mask = past;
    if ((past || opts->mask) && !mask)
        return false;
    opts->causal = false;
    opts->mask = mask ? lengthened_mask(mask, keys, more) : NULL;
    parts[1] = lengthened(m, parts[1], m->bias_k);
    parts[2] = lengthened(m, parts[2], m->bias_v);
    return (!mask || opts->mask) && parts[1] && parts[2];
}

/* --- forward ----------------------------------------------------------------------------------------- */

/* `to_itself` says that key and value are the query; a cached forward then adds the earlier positions. `weights` may
 * be NULL; otherwise it receives the attention weights. */
static trek_var *attend(attention_layer *m, trek_var *parts[3], trek_var *mask, bool to_itself, trek_var **weights)
{
    trek_attention_opts opts = { .causal = m->causal, .mask = mask, .dropout = m->base.own->training ? m->dropout : 0 };
    bool cached = to_itself && trek_caching();
    trek_var *y;
    if (cached && (weights || added_keys(m) > 0))
        return trek_fail_null(TREK_ERR_UNSUPPORTED,
                              "multihead_attention: %s together with a cached forward, which does not have them",
                              weights ? "weights" : "bias_kv or zero_attn");
    if (added_keys(m) > 0 && !add_keys(m, parts, &opts))
        return NULL;
    if (weights) {
        *weights = trek_attention_weights(parts[0], parts[1], &opts);
        y = *weights ? trek_matmul(*weights, parts[2]) : NULL;
    } else {
        y = cached ? trek_attention_cached(parts[0], parts[1], parts[2], &opts)
                   : trek_attention(parts[0], parts[1], parts[2], &opts);
    }
    if (!y)
        return NULL;
    trek_shape joined = trek_dims(trek_var_size(y, 0), trek_var_size(y, 2), m->dim);
    return trek_forward(m->out_proj, trek_reshape(trek_permute(y, trek_dims(0, 2, 1, 3)), joined));
}

static trek_var *attention_forward(trek_module *self, trek_var *x)
{
    attention_layer *m = (attention_layer *)self;
    trek_var *parts[3];
    return fits(m, x, "input") && heads_of(m, project(m, x, 0, 3), parts, 3) ? attend(m, parts, NULL, true, NULL) : NULL;
}

/* The inputs are query, key, value and mask. A NULL key stands for the query, a NULL value for the key, a NULL mask
 * for none. */
static trek_var *attend_to(attention_layer *m, trek_var *const *inputs, int n, trek_var **weights)
{
    if (n > 4)
        return trek_fail_null(TREK_ERR_ARGUMENT, "multihead_attention: inputs: %d; it takes query, key, value and mask", n);
    trek_var *query = inputs[0], *key = n > 1 && inputs[1] ? inputs[1] : query, *value = n > 2 && inputs[2] ? inputs[2] : key;
    trek_var *mask = n > 3 ? inputs[3] : NULL;
    if (!fits(m, query, "query") || !fits(m, key, "key") || !fits(m, value, "value"))
        return NULL;
    trek_var *parts[3];
    bool fine, to_itself = key == query && value == query;
    if (to_itself)
        fine = heads_of(m, project(m, query, 0, 3), parts, 3);
    else if (key == value)
        fine = heads_of(m, project(m, query, 0, 1), parts, 1) && heads_of(m, project(m, key, 1, 2), parts + 1, 2);
    else
        fine = heads_of(m, project(m, query, 0, 1), parts, 1) && heads_of(m, project(m, key, 1, 1), parts + 1, 1) &&
            heads_of(m, project(m, value, 2, 1), parts + 2, 1);
    return fine ? attend(m, parts, mask, to_itself, weights) : NULL;
}

static trek_var *attention_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    return attend_to((attention_layer *)self, inputs, n, NULL);
}

static trek_status attention_results(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count)
{
    results[0] = attend_to((attention_layer *)self, inputs, n, count > 1 ? &results[1] : NULL);
    return results[0] ? TREK_OK : trek_error_status();
}

trek_var *trek_nn_multihead_attention_forward(trek_module *attention, trek_var *query, trek_var *key, trek_var *value,
                                              trek_var *mask, trek_var **weights)
{
    trek_var *results[2] = { NULL }, *inputs[4] = { query, key, value, mask };
    if (weights)
        *weights = NULL;
    if (attention && !trek_gone(attention, "multihead_attention", "the module") &&
        attention->own->klass != &trek_multihead_attention_class)
        return trek_fail_null(TREK_ERR_ARGUMENT, "multihead_attention: module: it is a %s; must be a multihead_attention",
                              attention->own->klass->name);
    if (trek_forward_results(attention, inputs, 4, results, weights ? 2 : 1) != TREK_OK)
        return NULL;
    if (weights)
        *weights = results[1];
    return results[0];
}

/* Initialises as PyTorch does: Xavier for the input projections, zero for the biases, and out_proj.weight like a
 * linear layer's. */
static trek_status attention_reset(trek_module *self)
{
    attention_layer *m = (attention_layer *)self;
    trek_linear_layer *out = (trek_linear_layer *)m->out_proj;
    trek_status status = trek_init_xavier_uniform(m->in_proj_weight, 1);
    if (status == TREK_OK && m->in_proj_bias)
        status = trek_init_zeros(m->in_proj_bias);
    if (status == TREK_OK && m->bias_k)
        status = trek_init_xavier_normal(m->bias_k, 1);
    if (status == TREK_OK && m->bias_v)
        status = trek_init_xavier_normal(m->bias_v, 1);
    return status == TREK_OK && out->bias ? trek_init_zeros(out->bias) : status;
}

static void attention_describe(const trek_module *self, char *text, size_t size)
{
    const attention_layer *m = (const attention_layer *)self;
    char dropout[64] = "", number[32];
    if (m->dropout > 0)
        snprintf(dropout, sizeof dropout, ", dropout %s", trek_layer_number(m->dropout, number));
    snprintf(text, size, "%" PRId64 ", heads %" PRId64 "%s%s%s%s%s", m->dim, m->heads, m->causal ? ", causal" : "",
             m->in_proj_bias ? "" : ", no bias", m->bias_k ? ", bias_kv" : "", m->zero_attn ? ", zero_attn" : "", dropout);
}

static const char *const attention_inputs[] = { "key", "value", "mask", NULL };
static const char *const attention_result_names[] = { "output", "weights", NULL };

const trek_module_class trek_multihead_attention_class = {
    .name = "multihead_attention",
    .size = sizeof(attention_layer),
    .forward = attention_forward,
    .forward_many = attention_forward_many,
    .forward_results = attention_results,
    .result_names = attention_result_names,
    .reset = attention_reset,
    .describe = attention_describe,
    .input_names = attention_inputs,
    .optional_inputs = true,
    .rowwise = true,
};

static trek_status check_options(const trek_multihead_attention_opts *opts)
{
    if (trek_layer_positive("multihead_attention", "embed_dim", opts->embed_dim) != TREK_OK ||
        trek_layer_positive("multihead_attention", "heads", opts->heads) != TREK_OK)
        return trek_error_status();
    if (opts->embed_dim % opts->heads != 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "multihead_attention: .embed_dim: %" PRId64 "; must be a multiple of %" PRId64 ", the number of heads",
                         opts->embed_dim, opts->heads);
    double dropout = trek_option(opts->dropout, 0);
    if (!(dropout >= 0 && dropout <= 1)) {
        char number[32];
        return trek_fail(TREK_ERR_ARGUMENT, "multihead_attention: .dropout: %s; must be inside [0, 1]",
                         trek_layer_number(dropout, number));
    }
    return TREK_OK;
}

trek_module *trek_nn_multihead_attention_with(const trek_multihead_attention_opts *opts)
{
    if (!opts)
        return trek_fail_null(TREK_ERR_ARGUMENT, "multihead_attention: options: NULL; they must be given");
    if (check_options(opts) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&trek_multihead_attention_class);
    if (!base)
        return NULL;
    attention_layer *m = (attention_layer *)base;
    int64_t dim = m->dim = opts->embed_dim;
    m->heads = opts->heads;
    m->dropout = trek_option(opts->dropout, 0);
    m->causal = opts->causal;
    m->zero_attn = opts->add_zero_attn;
    trek_module_param(base, "in_proj_weight", offsetof(attention_layer, in_proj_weight),
                      trek_tensor_empty(trek_dims(3 * dim, dim), opts->dtype, opts->device));
    if (!opts->no_bias)
        trek_module_param(base, "in_proj_bias", offsetof(attention_layer, in_proj_bias),
                          trek_tensor_empty(trek_dims(3 * dim), opts->dtype, opts->device));
    if (opts->add_bias_kv) {
        trek_module_param(base, "bias_k", offsetof(attention_layer, bias_k),
                          trek_tensor_empty(trek_dims(1, 1, dim), opts->dtype, opts->device));
        trek_module_param(base, "bias_v", offsetof(attention_layer, bias_v),
                          trek_tensor_empty(trek_dims(1, 1, dim), opts->dtype, opts->device));
    }
    trek_module_add(base, "out_proj", offsetof(attention_layer, out_proj),
                    trek_nn_linear_with(&(trek_linear_opts){ .in = dim, .out = dim, .no_bias = opts->no_bias,
                                                             .dtype = opts->dtype,
                                                             .device = opts->device }));
    return trek_layer_finish(base);
}

trek_module *trek_nn_multihead_attention(int64_t embed_dim, int64_t heads, trek_device device)
{
    return trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){ .embed_dim = embed_dim, .heads = heads,
                                                                              .device = device });
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Models for training benchmarks, as models.py has them in PyTorch: those of a
 * published suite of ten whose layers exist. */
#include "bench.h"

#include <string.h>

#define LAYERS(...)                                                                                                              \
    trek_nn_sequential((trek_module *[]){ __VA_ARGS__ }, (int)(sizeof((trek_module *[]){ __VA_ARGS__ }) / sizeof(trek_module *)))

static trek_module *linear(int64_t in, int64_t out) { return trek_nn_linear(gpu_size(in, 8), gpu_size(out, 8), gpu_device); }
static trek_module *norm(int64_t size) { return trek_nn_layer_norm(gpu_size(size, 8), gpu_device); }

/* --- blocks ---------------------------------------------------------------------- */

/* x + main(x), `times` times with the same weights. */
typedef struct residual_module {
    trek_module base;
    trek_module *main;
    int times;
} residual_module;

static trek_var *residual_forward(trek_module *self, trek_var *x)
{
    residual_module *m = (residual_module *)self;
    for (int k = 0; k < m->times; k++)
        x = trek_add(x, trek_forward(m->main, x));
    return x;
}

static const trek_module_class residual_class = { .name = "residual", .size = sizeof(residual_module),
                                                  .forward = residual_forward };

static trek_module *residual(trek_module *main, int times)
{
    trek_module *m = trek_module_new(&residual_class);
    trek_module_add(m, "main", offsetof(residual_module, main), main);
    if (m)
        ((residual_module *)m)->times = times;
    return trek_module_check(m);
}

/* Sum over experts of gate(x)_k expert_k(x). */
enum { EXPERTS = 8 };
typedef struct routing_module {
    trek_module base;
    trek_module *gate, *experts[EXPERTS];
} routing_module;

static trek_var *routing_forward(trek_module *self, trek_var *x)
{
    routing_module *m = (routing_module *)self;
    trek_var *weights = trek_softmax(trek_forward(m->gate, x), -1), *sum = NULL;
    for (int k = 0; k < EXPERTS; k++) {
        trek_var *part = trek_mul(trek_forward(m->experts[k], x), trek_narrow(weights, 1, k, 1));
        sum = k ? trek_add(sum, part) : part;
    }
    return sum;
}

static const trek_module_class routing_class = { .name = "routing", .size = sizeof(routing_module), .forward = routing_forward };

static trek_module *routing(int64_t width)
{
    static const char *const names[EXPERTS] = { "e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7" };
    trek_module *m = trek_module_new(&routing_class);
    trek_module_add(m, "gate", offsetof(routing_module, gate), trek_nn_linear(gpu_size(width, 8), EXPERTS, gpu_device));
    for (size_t k = 0; k < EXPERTS; k++)
        trek_module_add(m, names[k], offsetof(routing_module, experts) + k * sizeof(trek_module *),
                        LAYERS(linear(width, width), trek_nn_gelu(), norm(width)));
    return trek_module_check(m);
}

/* A transformer layer, normalised after each residual sum. */
enum { HEADS = 8 };
typedef struct encoder_module {
    trek_module base;
    trek_module *packed, *out, *first, *second, *feed;
} encoder_module;

static trek_var *encoder_forward(trek_module *self, trek_var *x)
{
    encoder_module *m = (encoder_module *)self;
    int64_t batch = trek_var_size(x, 0), length = trek_var_size(x, 1), width = trek_var_size(x, 2);
    trek_var *packed = trek_reshape(trek_forward(m->packed, x), trek_dims(batch, length, 3, HEADS, width / HEADS)), *part[3];
    for (int k = 0; k < 3; k++)
        part[k] = trek_permute(trek_select(packed, 2, k), trek_dims(0, 2, 1, 3));
    trek_var *heads = trek_permute(trek_attention(part[0], part[1], part[2], NULL), trek_dims(0, 2, 1, 3));
    x = trek_forward(m->first, trek_add(x, trek_forward(m->out, trek_reshape(heads, trek_dims(batch, length, width)))));
    return trek_forward(m->second, trek_add(x, trek_forward(m->feed, x)));
}

static const trek_module_class encoder_class = { .name = "encoder", .size = sizeof(encoder_module), .forward = encoder_forward };

static trek_module *encoder(int64_t width)
{
    int64_t real = gpu_size(width, 8);
    trek_module *m = trek_module_new(&encoder_class);
    trek_module_add(m, "packed", offsetof(encoder_module, packed), trek_nn_linear(real, 3 * real, gpu_device));
    trek_module_add(m, "out", offsetof(encoder_module, out), linear(width, width));
    trek_module_add(m, "first", offsetof(encoder_module, first), norm(width));
    trek_module_add(m, "second", offsetof(encoder_module, second), norm(width));
    trek_module_add(m, "feed", offsetof(encoder_module, feed),
                    LAYERS(linear(width, 4 * width), trek_nn_relu(), linear(4 * width, width)));
    return trek_module_check(m);
}

/* Adds fixed positions [1, T, C]. */
typedef struct position_module {
    trek_module base;
    trek_var *table;
} position_module;

static trek_var *position_forward(trek_module *self, trek_var *x) { return trek_add(x, ((position_module *)self)->table); }
static const trek_module_class position_class = { .name = "position", .size = sizeof(position_module),
                                                  .forward = position_forward };

static trek_module *position(int64_t length, int64_t width)
{
    trek_module *m = trek_module_new(&position_class);
    trek_module_buffer(m, "table", offsetof(position_module, table),
                       trek_tensor_randn(trek_dims(1, length, gpu_size(width, 8)), TREK_F32, gpu_device));
    return trek_module_check(m);
}

/* --- the models --------------------------------------------------------------------- */

static trek_module *mlp(void)
{
    trek_module *m = LAYERS(linear(1024, 2048), trek_nn_gelu(), norm(2048));
    for (int k = 0; k < 3; k++) {
        trek_nn_sequential_add(m, linear(2048, 2048));
        trek_nn_sequential_add(m, trek_nn_gelu());
        trek_nn_sequential_add(m, norm(2048));
    }
    trek_nn_sequential_add(m, linear(2048, 1024));
    return trek_module_check(m);
}

static trek_module *convnet(bool last)
{
    static const int64_t channels[] = { 3, 64, 128, 256, 512, 512 };
    trek_module *m = LAYERS(last ? trek_nn_channels_last() : trek_nn_identity());
    for (int k = 0; k < 5; k++) {
        trek_conv2d_opts conv = { .in = channels[k], .out = channels[k + 1], .kernel = { 3 }, .padding = { 1, 1 },
                                  .device = gpu_device };
        trek_nn_sequential_add(m, trek_nn_conv2d_with(&conv));
        trek_nn_sequential_add(m, trek_nn_batch_norm2d(channels[k + 1], gpu_device));
        trek_nn_sequential_add(m, trek_nn_relu());
        if (k < 4)
            trek_nn_sequential_add(m, trek_nn_max_pool2d(2));
    }
    trek_nn_sequential_add(m, trek_nn_adaptive_avg_pool2d(1, 1));
    trek_nn_sequential_add(m, trek_nn_flatten());
    trek_nn_sequential_add(m, trek_nn_linear(512, 100, gpu_device));
    return trek_module_check(m);
}

static trek_module *transformer(void)
{
    trek_embedding_opts table = { .num = gpu_size(8192, 64), .dim = gpu_size(512, 8), .device = gpu_device };
    trek_module *m = LAYERS(trek_nn_embedding_with(&table), position(gpu_size(128, 8), 512));
    for (int k = 0; k < 4; k++)
        trek_nn_sequential_add(m, encoder(512));
    trek_nn_sequential_add(m, trek_nn_linear(gpu_size(512, 8), gpu_size(8192, 64), gpu_device));
    return trek_module_check(m);
}

static trek_module *residual_tower(void)
{
    trek_module *m = LAYERS(linear(1024, 1024));
    for (int k = 0; k < 12; k++)
        trek_nn_sequential_add(m, residual(LAYERS(linear(1024, 1024), trek_nn_gelu(), norm(1024)), 1));
    trek_nn_sequential_add(m, linear(1024, 1024));
    return trek_module_check(m);
}

static trek_module *refine(int64_t width, int times)
{
    return LAYERS(linear(width, width), trek_nn_gelu(), norm(width),
                  residual(LAYERS(linear(width, width), trek_nn_gelu(), norm(width)), times), linear(width, width));
}

trek_module *gpu_model_new(const char *name)
{
    if (!strcmp(name, "mlp"))
        return mlp();
    if (!strcmp(name, "convnet") || !strcmp(name, "convnet_last"))
        return convnet(strcmp(name, "convnet") != 0);
    if (!strcmp(name, "transformer"))
        return transformer();
    if (!strcmp(name, "residual_tower"))
        return residual_tower();
    if (!strcmp(name, "gated_routing"))
        return LAYERS(linear(512, 512), trek_nn_gelu(), routing(512), linear(512, 512));
    if (!strcmp(name, "iterative_refine"))
        return refine(1024, 8);
    if (!strcmp(name, "feedback_fixed"))
        return refine(512, 10);
    trek_fail(TREK_ERR_ARGUMENT, "there is no model \"%s\"", name);
    return NULL;
}

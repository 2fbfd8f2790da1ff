/* SPDX-License-Identifier: Apache-2.0 */
/* ResNet-18 (He and others 2016) for small images: a stem of one convolution and
 * no pooling, four stages of two blocks. */
#include "bench.h"

#define LAYERS(...)                                                                                                              \
    trek_nn_sequential((trek_module *[]){ __VA_ARGS__ }, (int)(sizeof((trek_module *[]){ __VA_ARGS__ }) / sizeof(trek_module *)))

/* relu(main(x) + skip(x)) */
typedef struct block {
    trek_module base;
    trek_module *main, *skip;
} block;

static trek_var *block_forward(trek_module *self, trek_var *x)
{
    block *m = (block *)self;
    return trek_relu(trek_add(trek_forward(m->main, x), trek_forward(m->skip, x)));
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block), .forward = block_forward };

static trek_module *conv(int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel }, .stride = { stride },
                                                    .padding = { kernel / 2, kernel / 2 }, .no_bias = true,
                                                    .device = trek_cpu(0) });
}

static trek_module *norm(int64_t channels) { return trek_nn_batch_norm2d(channels, trek_cpu(0)); }

static trek_module *block_new(int64_t in, int64_t out, int64_t stride)
{
    trek_module *m = trek_module_new(&block_class);
    trek_module_add(m, "main", offsetof(block, main),
                    LAYERS(conv(in, out, 3, stride), norm(out), trek_nn_relu(), conv(out, out, 3, 1), norm(out)));
    trek_module_add(m, "skip", offsetof(block, skip),
                    in == out ? trek_nn_identity() : LAYERS(conv(in, out, 1, stride), norm(out)));
    return trek_module_check(m);
}

trek_module *bench_resnet18(int64_t width, int64_t classes)
{
    trek_module *m = LAYERS(conv(3, width, 3, 1), norm(width), trek_nn_relu());
    int64_t in = width;
    for (int64_t stage = 0, out = width; stage < 4; stage++, out *= 2) {
        trek_nn_sequential_add(m, block_new(in, out, stage ? 2 : 1));
        trek_nn_sequential_add(m, block_new(out, out, 1));
        in = out;
    }
    trek_nn_sequential_add(m, trek_nn_adaptive_avg_pool2d(1, 1));
    trek_nn_sequential_add(m, trek_nn_flatten());
    trek_nn_sequential_add(m, trek_nn_linear(in, classes, trek_cpu(0)));
    return trek_module_check(m);
}

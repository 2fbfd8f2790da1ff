/* SPDX-License-Identifier: Apache-2.0 */
/* ResNet-50 (He and others 2016), whose blocks halve the image in their 3 x 3 convolution, as it is trained everywhere: in bf16
 * by autocast with f32 parameters, channels last. Images and classes are drawn by chance. */
#include "bench.h"

#define LAYERS(...)                                                                                                              \
    trek_nn_sequential((trek_module *[]){ __VA_ARGS__ }, (int)(sizeof((trek_module *[]){ __VA_ARGS__ }) / sizeof(trek_module *)))

enum { CLASSES = 1000, EXPANSION = 4 };

/* relu(main(x) + skip(x)) */
typedef struct block_module {
    trek_module base;
    trek_module *main, *skip;
} block_module;

static trek_var *block_forward(trek_module *self, trek_var *x)
{
    block_module *m = (block_module *)self;
    return trek_relu(trek_add(trek_forward(m->main, x), trek_forward(m->skip, x)));
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block_module), .forward = block_forward };

static trek_module *conv(int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel }, .stride = { stride },
                                                    .padding = { kernel / 2, kernel / 2 }, .no_bias = true,
                                                    .device = gpu_device });
}

static trek_module *norm(int64_t channels) { return trek_nn_batch_norm2d(channels, gpu_device); }

static trek_module *block_new(int64_t in, int64_t width, int64_t stride)
{
    int64_t out = EXPANSION * width;
    trek_module *m = trek_module_new(&block_class);
    trek_module_add(m, "main", offsetof(block_module, main),
                    LAYERS(conv(in, width, 1, 1), norm(width), trek_nn_relu(), conv(width, width, 3, stride), norm(width),
                           trek_nn_relu(), conv(width, out, 1, 1), norm(out)));
    trek_module_add(m, "skip", offsetof(block_module, skip),
                    in == out && stride == 1 ? trek_nn_identity() : LAYERS(conv(in, out, 1, stride), norm(out)));
    return trek_module_check(m);
}

static trek_module *resnet50(void)
{
    static const int64_t blocks[] = { 3, 4, 6, 3 };
    int64_t width = gpu_size(64, 8), in = width;
    trek_pool_opts pool = { .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 } };
    trek_module *m = LAYERS(trek_nn_channels_last(), conv(3, width, 7, 2), norm(width), trek_nn_relu(),
                            trek_nn_max_pool2d_with(&pool));
    for (int stage = 0; stage < 4; stage++, width *= 2)
        for (int64_t k = 0; k < gpu_size(blocks[stage], 1); k++) {
            trek_nn_sequential_add(m, block_new(in, width, stage && !k ? 2 : 1));
            in = EXPANSION * width;
        }
    trek_nn_sequential_add(m, trek_nn_adaptive_avg_pool2d(1, 1));
    trek_nn_sequential_add(m, trek_nn_flatten());
    trek_nn_sequential_add(m, trek_nn_linear(in, CLASSES, gpu_device));
    return trek_module_check(m);
}

gpu_train gpu_resnet_train(int64_t batch, int64_t side)
{
    gpu_train s = { .graph = gpu_graph_of(resnet50(),
                                          trek_sgd(&(trek_sgd_opts){ .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4 })),
                    .classes = true };
    trek_graph_set_amp(s.graph, &(trek_amp_opts){ .dtype = TREK_BF16 });
    s.x = gpu_randn(trek_dims(batch, 3, side, side), TREK_F32, 1, false);
    s.y = gpu_randint(trek_dims(batch), CLASSES);
    return s;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The models. Initial values are the layers' own (PyTorch's). */
#include <string.h>

#include "workload.h"

#define LAYERS(...)                                                                                                              \
    trek_nn_sequential((trek_module *[]){ __VA_ARGS__ }, (int)(sizeof((trek_module *[]){ __VA_ARGS__ }) / sizeof(trek_module *)))

/* A graph of one module. */
static trek_graph *graph_of(trek_module *module) { return trek_flow_build(trek_flow_from(module)); }

/* --- digits ------------------------------------------------------------------------------- */

static trek_graph *build_logistic(trek_device device, void *arg)
{
    (void)arg;
    return graph_of(LAYERS(trek_nn_flatten(), trek_nn_linear(784, CLASSES, device)));
}

static trek_graph *build_mlp(trek_device device, void *arg)
{
    (void)arg;
    return graph_of(LAYERS(trek_nn_flatten(), trek_nn_linear(784, 256, device), trek_nn_relu(),
                                         trek_nn_linear(256, CLASSES, device)));
}

static trek_graph *build_lenet(trek_device device, void *arg)
{
    (void)arg;
    return graph_of(LAYERS(
        trek_nn_conv2d(1, 6, 5, device), trek_nn_batch_norm2d(6, device), trek_nn_relu(), trek_nn_max_pool2d(2),   /* 12 x 12 */
        trek_nn_conv2d(6, 16, 5, device), trek_nn_batch_norm2d(16, device), trek_nn_relu(), trek_nn_max_pool2d(2), /* 4 x 4 */
        trek_nn_flatten(), trek_nn_linear(256, 120, device), trek_nn_relu(), trek_nn_linear(120, 84, device), trek_nn_relu(),
        trek_nn_linear(84, CLASSES, device)));
}

static trek_module *halve(int64_t in, int64_t out, trek_device device)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 },
                                                    .device = device });
}

static trek_module *twofold(int64_t in, int64_t out, trek_device device)
{
    return trek_nn_conv_transpose2d_with(&(trek_conv_transpose2d_opts){
        .in = in, .out = out, .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 }, .output_padding = { 1, 1 },
            .device = device });
}

static trek_graph *build_conv_ae(trek_device device, void *arg)
{
    (void)arg;
    return graph_of(LAYERS(halve(1, 16, device), trek_nn_relu(), halve(16, 32, device), trek_nn_relu(),
                                         twofold(32, 16, device), trek_nn_relu(), twofold(16, 1, device), trek_nn_sigmoid()));
}

/* --- ResNet-20 (He and others 2016, 4.2), shortcuts by 1 x 1 convolutions --------------------- */

/* Pixels as the network wants them: normalised by the set's mean and deviation; in training shifted by up to four pixels and
 * mirrored, each sample for itself. */
enum { SHIFT = 4, SIDE = 32 };

typedef struct cifar_input {
    trek_module base;
    trek_var *mean, *deviation;
} cifar_input;

/* x [N, C, 32, 32] with `index` [N, 32] of rows or columns put where they stand, along dimension `dim`. */
static trek_var *moved(trek_var *x, trek_var *index, int dim)
{
    trek_shape shape = trek_var_shape(x);
    shape.sizes[dim] = SIDE;
    index = trek_reshape(index, dim == 2 ? trek_dims(-1, 1, SIDE, 1) : trek_dims(-1, 1, 1, SIDE));
    return trek_gather(x, dim, trek_expand(index, shape));
}

static trek_var *shifted(trek_var *x)
{
    trek_device device = trek_var_device(x);
    int64_t n = trek_var_size(x, 0), c = trek_var_size(x, 1), wide = SIDE + 2 * SHIFT;
    trek_var *edge = trek_var_from(trek_tensor_zeros(trek_dims(n, c, SHIFT, SIDE), TREK_F32, device));
    trek_var *side = trek_var_from(trek_tensor_zeros(trek_dims(n, c, wide, SHIFT), TREK_F32, device));
    x = trek_cat((trek_var *[]){ edge, x, edge }, 3, 2);
    x = trek_cat((trek_var *[]){ side, x, side }, 3, 3);
    trek_var *places = trek_var_from(trek_tensor_arange(0, SIDE, 1, TREK_I64, device));
    trek_var *down = trek_var_from(trek_tensor_randint(0, 2 * SHIFT + 1, trek_dims(n, 1), TREK_I64, device));
    trek_var *along = trek_var_from(trek_tensor_randint(0, 2 * SHIFT + 1, trek_dims(n, 1), TREK_I64, device));
    trek_var *mirrored = trek_var_from(trek_tensor_randint(0, 2, trek_dims(n, 1), TREK_BOOL, device));
    trek_var *columns = trek_where(mirrored, trek_flip(places, trek_dims(0)), places);
    return moved(moved(x, trek_add(down, places), 2), trek_add(along, columns), 3);
}

static trek_var *cifar_input_forward(trek_module *self, trek_var *x)
{
    cifar_input *m = (cifar_input *)self;
    x = trek_div(trek_sub(x, m->mean), m->deviation);
    return self->training && trek_var_size(x, 0) > 0 ? shifted(x) : x;
}

static const trek_module_class cifar_input_class = { .name = "cifar_input", .size = sizeof(cifar_input),
                                                     .forward = cifar_input_forward };

static trek_module *cifar_input_new(trek_device device)
{
    static const float mean[] = { 0.4914f, 0.4822f, 0.4465f }, deviation[] = { 0.2023f, 0.1994f, 0.2010f };
    trek_module *m = trek_module_new(&cifar_input_class);
    trek_module_buffer(m, "mean", offsetof(cifar_input, mean),
                       trek_tensor_from_data(mean, trek_dims(3, 1, 1), TREK_F32, device));
    trek_module_buffer(m, "deviation", offsetof(cifar_input, deviation),
                       trek_tensor_from_data(deviation, trek_dims(3, 1, 1), TREK_F32, device));
    return trek_module_check(m);
}

static trek_module *conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, trek_device device)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel }, .stride = { stride },
                                                    .padding = { kernel / 2, kernel / 2 }, .no_bias = true, .device = device });
}

/* The two convolutions of a block, and what stands next to them. */
static trek_module *block_main(int64_t in, int64_t out, int64_t stride, trek_device device)
{
    return LAYERS(conv(in, out, 3, stride, device), trek_nn_batch_norm2d(out, device), trek_nn_relu(),
                  conv(out, out, 3, 1, device), trek_nn_batch_norm2d(out, device));
}

static trek_module *block_skip(int64_t in, int64_t out, int64_t stride, trek_device device)
{
    if (in == out)
        return trek_nn_identity();
    return LAYERS(conv(in, out, 1, stride, device), trek_nn_batch_norm2d(out, device));
}

typedef struct block {
    trek_module base;
    trek_module *main, *skip;
} block;

static trek_var *block_forward(trek_module *self, trek_var *x)
{
    block *m = (block *)self;
    return trek_relu(trek_add(trek_forward(m->skip, x), trek_forward(m->main, x)));
}

static const trek_module_class block_class = { .name = "block", .size = sizeof(block), .forward = block_forward };

static trek_module *block_new(int64_t in, int64_t out, int64_t stride, trek_device device)
{
    trek_module *m = trek_module_new(&block_class);
    trek_module_add(m, "main", offsetof(block, main), block_main(in, out, stride, device));
    trek_module_add(m, "skip", offsetof(block, skip), block_skip(in, out, stride, device));
    return trek_module_check(m);
}

enum { STAGES = 3, BLOCKS = 3, STEM = 16 };

/* Channels and stride of block b of stage s. */
static int64_t block_in(int s, int b) { return STEM << (b == 0 && s > 0 ? s - 1 : s); }
static int64_t block_stride(int s, int b) { return b == 0 && s > 0 ? 2 : 1; }

static trek_graph *build_resnet(trek_device device, void *arg)
{
    (void)arg;
    trek_module *m = LAYERS(cifar_input_new(device), conv(3, STEM, 3, 1, device), trek_nn_batch_norm2d(STEM, device),
                            trek_nn_relu());
    for (int s = 0; s < STAGES; s++)
        for (int b = 0; b < BLOCKS; b++)
            trek_nn_sequential_add(m, block_new(block_in(s, b), STEM << s, block_stride(s, b), device));
    trek_nn_sequential_add(m, trek_nn_adaptive_avg_pool2d(1, 1));
    trek_nn_sequential_add(m, trek_nn_flatten());
    trek_nn_sequential_add(m, trek_nn_linear(STEM << (STAGES - 1), CLASSES, device));
    return graph_of(m);
}

static trek_graph *build_resnet_graph(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(cifar_input_new(device));
    trek_flow_through(flow, conv(3, STEM, 3, 1, device));
    trek_flow_through(flow, trek_nn_batch_norm2d(STEM, device));
    trek_flow_through(flow, trek_nn_relu());
    for (int s = 0; s < STAGES; s++)
        for (int b = 0; b < BLOCKS; b++) {
            int64_t in = block_in(s, b), out = STEM << s, stride = block_stride(s, b);
            trek_flow_also_with(flow, block_skip(in, out, stride, device), block_main(in, out, stride, device));
            trek_flow_through(flow, trek_nn_relu());
        }
    trek_flow_through(flow, trek_nn_adaptive_avg_pool2d(1, 1));
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(STEM << (STAGES - 1), CLASSES, device));
    return trek_flow_build(flow);
}

/* --- a recurrent network of characters --------------------------------------------------------- */

enum { LETTER = 128, STATE = 256 };

static trek_graph *build_char_rnn(trek_device device, void *arg)
{
    (void)arg;
    return graph_of(LAYERS(
        trek_nn_embedding(CHARACTERS, LETTER, device), /* [n, CONTEXT] -> [n, CONTEXT, LETTER] */
        trek_nn_lstm_with(&(trek_lstm_opts){ .in = LETTER, .hidden = STATE, .layers = 2, .batch_first = true, .device = device }),
        trek_nn_dropout(0.2), trek_nn_linear(STATE, CHARACTERS, device)));
}

/* --- a small GPT ------------------------------------------------------------------------- */

enum { WIDTH = 128, HEADS = 4, DEPTH = 4 };

typedef struct embedder {
    trek_module base;
    trek_module *characters, *positions;
} embedder;

static trek_var *embedder_forward(trek_module *self, trek_var *x)
{
    embedder *m = (embedder *)self;
    trek_var *places = trek_var_from(trek_tensor_arange(0, (double)trek_var_size(x, 1), 1, TREK_I64, trek_var_device(x)));
    return trek_add(trek_forward(m->characters, x), trek_forward(m->positions, places));
}

static const trek_module_class embedder_class = { .name = "embedder", .size = sizeof(embedder), .forward = embedder_forward };

static trek_module *embedder_new(trek_device device)
{
    trek_module *m = trek_module_new(&embedder_class);
    trek_module_add(m, "characters", offsetof(embedder, characters), trek_nn_embedding(CHARACTERS, WIDTH, device));
    trek_module_add(m, "positions", offsetof(embedder, positions), trek_nn_embedding(CONTEXT, WIDTH, device));
    return trek_module_check(m);
}

static trek_graph *build_gpt_nano(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(embedder_new(device));
    trek_flow_through(flow, trek_nn_dropout(0.1));
    for (int k = 0; k < DEPTH; k++) {
        trek_flow_also(flow, LAYERS(trek_nn_layer_norm(WIDTH, device),
                                    trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){
                                        .embed_dim = WIDTH, .heads = HEADS, .causal = true, .device = device })));
        trek_flow_also(flow, LAYERS(trek_nn_layer_norm(WIDTH, device), trek_nn_linear(WIDTH, 4 * WIDTH, device), trek_nn_gelu(),
                                    trek_nn_linear(4 * WIDTH, WIDTH, device)));
    }
    trek_flow_through(flow, trek_nn_layer_norm(WIDTH, device));
    trek_flow_through(flow, trek_nn_linear(WIDTH, CHARACTERS, device));
    return trek_flow_build(flow);
}

/* --- losses and measures --------------------------------------------------------------------- */

static trek_var *label_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

static trek_var *image_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_mse_loss(output, trek_batch_get(batch, "image"));
}

static trek_var *character_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(trek_flatten(output, 0, 1), trek_flatten(trek_batch_get(batch, "target"), 0, 1));
}

/* --- optimizers and schedules ------------------------------------------------------------------ */

static trek_optimizer_spec adam(double lr) { return trek_adam(&(trek_adam_opts){ .lr = lr }); }

static trek_optimizer_spec rmsprop(double lr) { return trek_rmsprop(&(trek_rmsprop_opts){ .lr = lr }); }

static trek_optimizer_spec momentum(double lr)
{
    return trek_sgd(&(trek_sgd_opts){ .lr = lr, .momentum = 0.9, .weight_decay = 1e-4 });
}

static trek_schedule falling(double lr, int64_t steps)
{
    return trek_multistep_lr(lr, (int64_t[]){ steps / 2, steps * 3 / 4 }, 2, 0.1);
}

static trek_schedule warm_cosine(double lr, int64_t steps)
{
    return trek_warmup_lr(steps / 5, trek_cosine_lr(lr, steps, lr < 1e-5 ? lr : 1e-5));
}

/* --- the table ------------------------------------------------------------------------------ */

const workload workloads[] = {
    { "logistic", "linear 784-10", DATA_MNIST, "image", build_logistic, label_loss, true, 5, 64, 1e-3, adam, NULL, 0.92, 5 },
    { "mlp", "784-256-10", DATA_MNIST, "image", build_mlp, label_loss, true, 5, 64, 1e-3, adam, NULL, 0.975, 5 },
    { "lenet", "LeNet with batch norm", DATA_MNIST, "image", build_lenet, label_loss, true, 5, 64, 1e-3, adam, NULL, 0.99, 5 },
    { "conv_ae", "convolutional autoencoder, mean squared error", DATA_MNIST, "image", build_conv_ae, image_loss, false, 5, 64,
      1e-3, adam, NULL, 0.0007, 5 },
    { "char_rnn", "two layers of LSTM, cross entropy", DATA_TEXT, "input", build_char_rnn, character_loss, false, 50, 64, 2e-3,
      rmsprop, NULL, 1.571, 5 },
    { "gpt_nano", "GPT of 4 layers, cross entropy", DATA_TEXT, "input", build_gpt_nano, character_loss, false, 50, 64, 3e-4, adam,
      warm_cosine, 2.474, 5 },
    { "resnet", "ResNet-20 of modules", DATA_CIFAR, "image", build_resnet, label_loss, true, 200, 64, 0.1, momentum, falling,
      0.9125, 200 },
    { "resnet_graph", "ResNet-20 by the flow builder", DATA_CIFAR, "image", build_resnet_graph, label_loss, true, 200, 64, 0.1,
      momentum, falling, 0.9166, 200 },
};
const int n_workloads = (int)(sizeof workloads / sizeof *workloads);

const workload *workload_find(const char *name)
{
    for (int k = 0; k < n_workloads; k++)
        if (strcmp(workloads[k].name, name) == 0)
            return &workloads[k];
    return NULL;
}

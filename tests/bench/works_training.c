/* SPDX-License-Identifier: Apache-2.0 */
/* Whole training steps: forward, loss, backward, optimizer, as a user writes
 * them. Weights and samples come from the hash, so that peer.py starts from the
 * same ones; ten steps are checked at a usual learning rate, the timed ones take
 * a tiny one, so that a model does not learn its samples by heart and its
 * gradients become denormal numbers. */
#include "bench.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOL = 8, CHECKED_STEPS = 10, CLASSES = 10, MAX_LAYERS = 8, LAST = 1 };

typedef enum model_kind { MLP, MLP_NORM, LENET, RESNET, GPT } model_kind;

typedef struct training_case {
    model_kind kind;
    int64_t batch;                 /* of all ranks together */
    int64_t sizes[MAX_LAYERS];     /* MLPs: widths; LENET: channels of its two convolutions; RESNET: width, LAST where channels
                                    * last; GPT: gpt_size */
    int ranks;                     /* 0: no trainer, one device */
    bool decoupled;                /* AdamW */
    bool half;                     /* forward under bf16 autocast */
} training_case;

typedef enum gpt_size { LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY } gpt_size;

typedef struct training_state {
    trek_graph *model;
    trek_var *inputs[POOL], *targets[POOL];
    bool regression, half;
    int64_t steps;
    trek_monitor *monitor;         /* NULL: nobody watches */
    char folder[32];               /* that it writes to */
} training_state;

/* -- models -- */

static void mlp(trek_flow **flow, const training_case *c, trek_device device)
{
    for (int k = 0; k + 1 < MAX_LAYERS && c->sizes[k + 1]; k++) {
        trek_module *linear = trek_nn_linear(c->sizes[k], c->sizes[k + 1], device);
        *flow = k == 0 ? trek_flow_from(linear) : trek_flow_through(*flow, linear);
        if (k + 2 == MAX_LAYERS || !c->sizes[k + 2])
            return;
        if (c->kind == MLP_NORM)
            *flow = trek_flow_through(trek_flow_through(*flow, trek_nn_layer_norm(c->sizes[k + 1], device)), trek_nn_gelu());
        else
            *flow = trek_flow_through(*flow, trek_nn_relu());
    }
}

static void lenet(trek_flow **flow, const training_case *c, trek_device device)
{
    *flow = trek_flow_from(trek_nn_conv2d(1, c->sizes[0], 5, device));
    trek_flow_through(*flow, trek_nn_relu());
    trek_flow_through(*flow, trek_nn_max_pool2d(2));
    trek_flow_through(*flow, trek_nn_conv2d(c->sizes[0], c->sizes[1], 5, device));
    trek_flow_through(*flow, trek_nn_relu());
    trek_flow_through(*flow, trek_nn_max_pool2d(2));
    trek_flow_through(*flow, trek_nn_flatten());
    trek_flow_through(*flow, trek_nn_linear(16 * c->sizes[1], 120, device));
    trek_flow_through(*flow, trek_nn_relu());
    trek_flow_through(*flow, trek_nn_linear(120, 84, device));
    trek_flow_through(*flow, trek_nn_relu());
    trek_flow_through(*flow, trek_nn_linear(84, CLASSES, device));
}

static trek_graph *build(trek_device device, void *arg)
{
    const training_case *c = arg;
    trek_flow *flow = NULL;
    if (c->kind == GPT)
        flow = trek_flow_from(bench_gpt_new((int)c->sizes[LAYERS], c->sizes[WIDTH], c->sizes[HEADS], c->sizes[CONTEXT],
                                            c->sizes[VOCABULARY], device));
    else if (c->kind == LENET)
        lenet(&flow, c, device);
    else if (c->kind == RESNET && c->sizes[1] != LAST)
        flow = trek_flow_from(bench_resnet18(c->sizes[0], CLASSES));
    else if (c->kind == RESNET)
        trek_flow_through(flow = trek_flow_from(trek_nn_channels_last()), bench_resnet18(c->sizes[0], CLASSES));
    else
        mlp(&flow, c, device);
    return trek_flow_build(flow);
}

/* Matrices and kernels as PyTorch scales them, norms' weights about 1, biases small. */
static trek_status fill_param(const char *name, trek_var *param, void *arg)
{
    uint32_t *seed = arg;
    int64_t count = trek_var_numel(param);
    bool is_weight = strlen(name) >= 6 && strcmp(name + strlen(name) - 6, "weight") == 0;
    float *values = trek_tensor_data(trek_var_data(param));
    if (trek_var_ndim(param) > 1)
        bench_fill(values, count, *seed, 0, (float)(1 / sqrt((double)(count / trek_var_size(param, 0)))));
    else
        bench_fill(values, count, *seed, is_weight ? 1 : 0, 0.1f);
    ++*seed;
    return TREK_OK;
}

/* -- samples -- */

static trek_var *take(trek_tensor *tensor)
{
    trek_var *var = tensor ? trek_var_new(tensor, false) : NULL;
    trek_tensor_release(tensor);
    return var;
}

static trek_var *uniform(trek_shape shape, uint32_t seed)
{
    trek_tensor *tensor = trek_tensor_empty(shape, TREK_F32, trek_cpu(0));
    if (tensor)
        bench_fill(trek_tensor_data(tensor), trek_shape_numel(shape), seed, 0, 1);
    return take(tensor);
}

static trek_var *labels(trek_shape shape, uint32_t seed, int64_t classes)
{
    trek_tensor *tensor = trek_tensor_empty(shape, TREK_I64, trek_cpu(0));
    int64_t *values = tensor ? trek_tensor_data(tensor) : NULL;
    for (int64_t i = 0; values && i < trek_shape_numel(shape); i++)
        values[i] = bench_hash(seed, (uint32_t)i) % classes;
    return take(tensor);
}

static void make_samples(training_state *s, const training_case *c)
{
    int last = 0;
    while (last + 1 < MAX_LAYERS && c->sizes[last + 1])
        last++;
    for (uint32_t k = 0; k < POOL && c->kind == GPT; k++) {
        s->inputs[k] = labels(trek_dims(c->batch, c->sizes[CONTEXT]), 1000 + k, c->sizes[VOCABULARY]);
        s->targets[k] = labels(trek_dims(c->batch * c->sizes[CONTEXT]), 2000 + k, c->sizes[VOCABULARY]);
    }
    for (uint32_t k = 0; k < POOL && c->kind != GPT; k++) {
        trek_shape shape = trek_dims(c->batch, c->sizes[0]);
        if (c->kind == LENET)
            shape = trek_dims(c->batch, 1, 28, 28);
        else if (c->kind == RESNET)
            shape = trek_dims(c->batch, 3, 32, 32);
        s->inputs[k] = uniform(shape, 1000 + k);
        s->targets[k] = s->regression ? uniform(trek_dims(c->batch, c->sizes[last]), 2000 + k) 
            : labels(trek_dims(c->batch), 2000 + k, CLASSES);
    }
}

/* -- the work -- */

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about, (void)kind, (void)place;
    return remove(path);
}

static void training_close(void *state)
{
    training_state *s = state;
    for (int k = 0; k < POOL; k++) {
        trek_var_release(s->inputs[k]);
        trek_var_release(s->targets[k]);
    }
    trek_graph_free(&s->model);
    trek_monitor_free(&s->monitor);
    if (s->folder[0] && nftw(s->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        fprintf(stderr, "%s is left behind\n", s->folder);
    free(s);
}

static double training_step(training_state *s, bool read)
{
    int k = (int)(s->steps++ % POOL);
    trek_scope scope = trek_scope_begin();
    if (s->half)
        trek_autocast_begin(TREK_BF16);
    trek_var *output = trek_graph_forward(s->model, s->inputs[k]);
    if (output && trek_var_ndim(output) == 3) /* a class for every place */
        output = trek_reshape(output, trek_dims(-1, trek_var_size(output, 2)));
    trek_var *loss = s->regression ? trek_mse_loss(output, s->targets[k]) : trek_cross_entropy(output, s->targets[k]);
    if (s->half)
        trek_autocast_end();
    trek_graph_backward(s->model, loss);
    trek_graph_step(s->model);
    double value = read ? trek_var_item(loss) : 0;
    trek_scope_end(scope);
    return value;
}

static void training_run(void *state, int64_t times)
{
    for (int64_t t = 0; t < times; t++)
        training_step(state, false);
    bench_note("peak_resident", bench_peak_resident());
}

static void set_up(training_state *s, const training_case *c)
{
    uint32_t seed = 1;
    /* Adam's first steps have the size of lr whatever the gradient's, so a batch norm's noise grows a hundredfold a step. */
    trek_adam_opts opts = { .lr = c->kind == RESNET ? 1e-6 : 1e-3 };
    trek_optimizer_spec spec = c->decoupled ? trek_adamw(&opts) : trek_adam(&opts);
    s->model = build(trek_cpu(0), (void *)(uintptr_t)c);
    if (!s->model)
        return;
    trek_module_each_param(trek_graph_module(s->model), fill_param, &seed);
    if (c->ranks)
        trek_trainer_setup(s->model, &(trek_trainer_opts){
            .build_replica = build, .arg = (void *)(uintptr_t)c, .ranks = c->ranks, .optimizer = spec });
    else
        trek_graph_set_optimizer(s->model, spec);
    bench_note("parameters", (double)trek_module_param_count(trek_graph_module(s->model)));
    bench_note("samples", (double)c->batch);
    bench_note("ranks", trek_graph_world_size(s->model));
}

static void *training_open(const bench_work *work)
{
    const training_case *c = work->arg;
    training_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->regression = c->kind == MLP_NORM;
    s->half = c->half;
    set_up(s, c);
    make_samples(s, c);
    for (int k = 0; k < CHECKED_STEPS && trek_error_status() == TREK_OK; k++)
        bench_check(training_step(s, true));
    if (trek_error_status() == TREK_OK)
        trek_graph_set_lr(s->model, 1e-7);
    if (trek_error_status() == TREK_OK)
        return s;
    training_close(s);
    return NULL;
}

/* The same under a monitor: what watching costs. */
static void *watched_open(const bench_work *work)
{
    training_state *s = training_open(work);
    if (!s)
        return NULL;
    strcpy(s->folder, "/tmp/trek-bench-XXXXXX");
    if (!mkdtemp(s->folder))
        s->folder[0] = '\0';
    s->monitor = s->folder[0] ? trek_monitor_new(&(trek_monitor_opts){ .folder = s->folder, .name = "bench" }) : NULL;
    if (s->monitor && trek_monitor_attach(s->monitor, s->model) == TREK_OK)
        return s;
    training_close(s);
    return NULL;
}

#define WORK(work_name, work_what, ...)                                                                  \
    { .name = work_name, .what = work_what, .open = training_open, .run = training_run, .close = training_close, \
      .arg = &(const training_case){ __VA_ARGS__ } }

const bench_work bench_works_training[] = {
    WORK("mlp-tiny", "step of an MLP 16-16-16-10, batch 1, AdamW", MLP, 1, { 16, 16, 16, CLASSES }, 0, true, false),
    { .name = "mlp-tiny-watched", .what = "the same, watched", .open = watched_open, .run = training_run, .close = training_close,
      .arg = &(const training_case){ MLP, 1, { 16, 16, 16, CLASSES }, 0, true, false } },
    WORK("mlp", "step of an MLP 784-256-10, batch 64, Adam", MLP, 64, { 784, 256, CLASSES }, 0, false, false),
    WORK("mlp-near", "step of an MLP 771-250-10, batch 61, Adam", MLP, 61, { 771, 250, CLASSES }, 0, false, false),
    WORK("lenet", "step of LeNet 1-6-16, batch 64, Adam", LENET, 64, { 6, 16 }, 0, false, false),
    WORK("lenet-near", "step of LeNet 1-5-13, batch 61, Adam", LENET, 61, { 5, 13 }, 0, false, false),
    WORK("lenet-near2", "step of LeNet 1-7-11, batch 61, Adam", LENET, 61, { 7, 11 }, 0, false, false),
    WORK("lenet-few", "step of LeNet 1-6-16, batch 4, Adam", LENET, 4, { 6, 16 }, 0, false, false),
    WORK("resnet18", "step of ResNet-18 of width 32 on 32 x 32 images, batch 32, Adam", RESNET, 32, { 32 }, 0, false, false),
    WORK("mlp-deep", "step of an MLP 1024-2048x4-1024 with LayerNorm and GELU, batch 256, Adam", MLP_NORM, 256,
         { 1024, 2048, 2048, 2048, 2048, 1024 }, 0, false, false),
    WORK("char-gpt", "step of a GPT, 4 layers of width 128, 16 x 128 characters, AdamW", GPT, 16, { 4, 128, 4, 128, 65 }, 0,
         true, false),
    WORK("char-gpt-near", "step of a GPT, 3 layers of width 120, 15 x 125 characters, AdamW", GPT, 15, { 3, 120, 5, 125, 67 }, 0,
         true, false),
    WORK("char-gpt-few", "step of a GPT, 4 layers of width 128, 1 x 128 characters, AdamW", GPT, 1, { 4, 128, 4, 128, 65 }, 0,
         true, false),
    WORK("gpt2", "step of GPT-2 124 M, 4 x 64 tokens, AdamW", GPT, 4, { 12, 768, 12, 64, 50257 }, 0, true, false),
    WORK("resnet18-last", "resnet18, channels last", RESNET, 32, { 32, LAST }, 0, false, false),
    WORK("resnet18-bf16", "resnet18 under bf16 autocast", RESNET, 32, { 32 }, 0, false, true),
    WORK("mlp-deep-bf16", "mlp-deep under bf16 autocast", MLP_NORM, 256, { 1024, 2048, 2048, 2048, 2048, 1024 }, 0, false, true),
    WORK("char-gpt-bf16", "char-gpt under bf16 autocast", GPT, 16, { 4, 128, 4, 128, 65 }, 0, true, true),
    WORK("gpt2-bf16", "gpt2 under bf16 autocast", GPT, 4, { 12, 768, 12, 64, 50257 }, 0, true, true),
    WORK("solo-lenet", "one rank: step of LeNet, 128 samples", LENET, 128, { 6, 16 }, 0, false, false),
    WORK("ranks-lenet", "two ranks: step of LeNet, 128 samples each", LENET, 256, { 6, 16 }, 2, false, false),
    WORK("solo-mlp", "one rank: step of an MLP of 30 M parameters, 128 samples", MLP, 128, { 1024, 4096, 4096, 2176, CLASSES }, 0,
         false, false),
    WORK("ranks-mlp", "two ranks: step of an MLP of 30 M parameters, 128 samples each", MLP, 256,
         { 1024, 4096, 4096, 2176, CLASSES }, 2, false, false),
    { 0 },
};

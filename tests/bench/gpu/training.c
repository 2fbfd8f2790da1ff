/* SPDX-License-Identifier: Apache-2.0 */
/* Training steps: replay against eager, the optimizer alone, the models, GPT-2. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 50 };

static void epoch_of(void *state, gpu_fn step)
{
    for (int k = 0; k < BATCHES; k++)
        step(state);
}

static void eager_epoch(void *state) { epoch_of(state, gpu_eager_step); }
static void captured_epoch(void *state) { epoch_of(state, gpu_captured_step); }

/* A mode's line; a captured step must have been replayed. */
static void report(const char *name, const char *mode, gpu_train *s, gpu_result result, double per, double flop)
{
    char text[96];
    snprintf(text, sizeof text, "%s %s", name, mode);
    if (trek_error_status() == TREK_OK && strncmp(mode, "captured", strlen("captured")) == 0 && trek_graph_replays(s->graph) < 1)
        trek_fail(TREK_ERR_STATE, "nothing was replayed: %s", trek_graph_capture_problem(s->graph));
    result.tokens = s->count;
    gpu_report(text, result, per, 0, flop);
}

/* Measures steps (or epochs) eagerly and captured, and closes the state. */
static void both(const char *name, gpu_train *s, bool epochs, double per, double flop)
{
    if (trek_error_status() != TREK_OK) {
        gpu_report_failure(name);
    } else {
        report(name, "eager", s, gpu_time(epochs ? eager_epoch : gpu_eager_step, s), per, flop);
        trek_memory_release_cached(gpu_device);
        gpu_train_capture(s);
        report(name, "captured", s, gpu_time(epochs ? captured_epoch : gpu_captured_step, s), per, flop);
    }
    gpu_train_close(s);
}

/* --- replay: a step so small that only its host cost counts ------------------------------ */

static void replay(void)
{
    trek_module *layers[] = { trek_nn_linear(64, 64, gpu_device), trek_nn_relu(), trek_nn_linear(64, 64, gpu_device),
                              trek_nn_relu(),
                              trek_nn_linear(64, 10, gpu_device) };
    gpu_train s = { .graph = gpu_graph_of(trek_nn_sequential(layers, 5), trek_adamw(&(trek_adam_opts){ .lr = 1e-3 })),
                      .classes = true };
    s.x = gpu_randn(trek_dims(32, 64), TREK_F32, 1, false);
    s.y = gpu_randint(trek_dims(32), 10);
    if (trek_error_status() == TREK_OK) {
        gpu_train_capture(&s);
        gpu_report("small step, host eager", gpu_time_host(gpu_eager_step, NULL, &s), 1, 0, 0);
        gpu_result result = gpu_time_host(gpu_captured_step, NULL, &s);
        if (trek_error_status() == TREK_OK && trek_graph_replays(s.graph) < 1)
            trek_fail(TREK_ERR_STATE, "nothing was replayed: %s", trek_graph_capture_problem(s.graph));
        gpu_report("small step, host captured", result, 1, 0, 0);
    }
    both("small step", &s, false, 1, 0);
}

/* --- the optimizer over GPT-2's parameters --------------------------------------------------- */

typedef struct weights_module {
    trek_module base;
    trek_var *table, *rest;
} weights_module;

/* Its gradients cost next to nothing to make, and are there again after each step. */
static trek_var *weights_forward(trek_module *self, trek_var *x)
{
    weights_module *m = (weights_module *)self;
    return trek_mul(x, trek_add(trek_sum(m->table, trek_dims_all(), false), trek_sum(m->rest, trek_dims_all(), false)));
}

static const trek_module_class weights_class = { .name = "weights", .size = sizeof(weights_module), .forward = weights_forward };

enum { GPT2_PARAMETERS = 124475904, GPT2_TABLE = 50304 * 768 };

static int64_t weights_count(void) { return gpu_size(GPT2_TABLE, 4096) + gpu_size(GPT2_PARAMETERS - GPT2_TABLE, 4096); }

static trek_module *weights_new(trek_dtype dtype)
{
    trek_module *m = trek_module_new(&weights_class);
    int64_t table = gpu_size(GPT2_TABLE, 4096), rest = gpu_size(GPT2_PARAMETERS - GPT2_TABLE, 4096);
    trek_module_param(m, "table", offsetof(weights_module, table), trek_tensor_zeros(trek_dims(table), dtype, gpu_device));
    trek_module_param(m, "rest", offsetof(weights_module, rest), trek_tensor_zeros(trek_dims(rest), dtype, gpu_device));
    return trek_module_check(m);
}

static void update_step(void *state) { trek_optimizer_step(state); }

/* Gradients stay from step to step. bytes of a parameter: gradient read, m, v and the f32 weight read and written, and a
 * 16-bit weight written. */
static void update_alone(const char *name, trek_dtype dtype, double bytes)
{
    char text[64];
    trek_module *model = weights_new(dtype);
    trek_params *params = model ? trek_module_params(model) : NULL;
    trek_optimizer *optimizer = params ? trek_optimizer_new(trek_adamw(&(trek_adam_opts){ .lr = 1e-4, .weight_decay = 0.1 }),
                                                            params) : NULL;
    for (int k = 0; optimizer && k < 2; k++) {
        trek_var *var = trek_params_var(params, k), *grad = gpu_randn(trek_var_shape(var), dtype, 1e-3, false);
        trek_var_set_grad(var, grad);
        trek_var_release(grad);
    }
    snprintf(text, sizeof text, "%s update", name);
    gpu_report(text, gpu_time(update_step, optimizer), 1, bytes * (double)weights_count(), 0);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_module_free(&model);
}

static void gradients_made(void *state)
{
    gpu_train *s = state;
    trek_scope scope = trek_scope_begin();
    trek_graph_backward(s->graph, trek_graph_forward(s->graph, s->x));
    trek_scope_end(scope);
}

static void gradients_zeroed(void *state)
{
    gradients_made(state);
    trek_graph_zero_grad(((gpu_train *)state)->graph);
}

static void gradients_used(void *state)
{
    gradients_made(state);
    trek_graph_step(((gpu_train *)state)->graph);
}

/* A graph's step, which clips and zeroes gradients, as training does it. What making and zeroing gradients takes by
 * themselves is subtracted; the norm is one more read of the gradients. */
static void update_clipped(const char *name, trek_dtype dtype, double bytes)
{
    char text[64];
    gpu_train s = { .graph = gpu_graph_of(weights_new(dtype), trek_adamw(&(trek_adam_opts){ .lr = 1e-4, .weight_decay = 0.1 })) };
    s.x = gpu_randn(trek_dims(1), dtype, 1, false);
    trek_graph_set_clip(s.graph, 1.0, 0);
    gpu_result with = gpu_time(gradients_used, &s), without = gpu_time(gradients_zeroed, &s);
    gpu_result host = gpu_time_host(gradients_used, NULL, &s);
    snprintf(text, sizeof text, "%s gradients + clip + update", name);
    gpu_report(text, with, 1, 0, 0);
    with.us -= without.us;
    with.host_us -= without.host_us;
    snprintf(text, sizeof text, "%s clip + update", name);
    if (with.us <= 0 && trek_error_status() == TREK_OK)
        trek_fail(TREK_ERR_STATE, "lost in the noise");
    gpu_report(text, with, 1, (bytes + 4) * (double)weights_count(), 0);
    snprintf(text, sizeof text, "%s gradients + clip + update, host", name);
        /* far below the line before: the host waits for nothing */
    gpu_report(text, host, 1, 0, 0);
    gpu_train_close(&s);
}

static void adamw(void)
{
    update_alone("f32", TREK_F32, 28);
    update_clipped("f32", TREK_F32, 28);
    update_alone("bf16", TREK_BF16, 30); /* gradients of 16-bit parameters are f32 in the arena */
    update_clipped("bf16", TREK_BF16, 30);
}

/* --- models ------------------------------------------------------------------------------------- */

/* The one that the present work is named for, as model_NAME. */
static void model(void)
{
    int64_t large = gpu_size(1024, 8), small = gpu_size(512, 8), many = gpu_size(256, 2), few = gpu_size(128, 2);
    const char *name = gpu_work_name() + strlen("model_");
    trek_shape in = trek_dims(many, large), out = in;
    bool tokens = !strcmp(name, "transformer");
    if (tokens)
        in = out = trek_dims(gpu_size(32, 2), gpu_size(128, 8));
    else if (!strncmp(name, "convnet", 7))
        in = trek_dims(few, 3, 64, 64), out = trek_dims(few, 100);
    else if (!strcmp(name, "gated_routing"))
        in = out = trek_dims(many, small);
    else if (!strcmp(name, "feedback_fixed"))
        in = out = trek_dims(few, small);
    gpu_train s = { .graph = gpu_graph_of(gpu_model_new(name), trek_adam(&(trek_adam_opts){ .lr = tokens ? 1e-4 : 1e-3 })),
                      .read = true };
    s.classes = tokens;
    s.x = tokens ? gpu_randint(in, gpu_size(8192, 64)) : gpu_randn(in, TREK_F32, 1, false);
    s.y = tokens ? gpu_randint(out, gpu_size(8192, 64)) : gpu_randn(out, TREK_F32, 1, false);
    both(name, &s, true, 1, 0);
}

/* --- GPT-2 124M ------------------------------------------------------------------------------------ */

/* In bf16 with f32 master weights, for a batch of so many; returns the work of a step. */
static double gpt2_state(int64_t full, char *name, size_t size, gpu_train *s)
{
    int64_t heads = gpu_size(12, 1), vocabulary = gpu_size(50304, 128);
    int64_t batch = gpu_size(full, 1), length = gpu_size(full == 1 ? 256 : 1024, 16);
    snprintf(name, size, "%lld x %d", (long long)full, full == 1 ? 256 : 1024);
    *s = gpu_gpt2_train((int)gpu_size(12, 2), heads, batch, length, gpu_size(1024, 16), vocabulary);
    double parameters = s->graph ? (double)trek_module_param_count(trek_graph_module(s->graph)) : 0;
    return 6 * parameters * s->count;
}

/* gpt2_BATCH in one mode, from the first parameters: the loss after some steps, then the time of further ones. Recording begins
 * again between them, since a recorded step's memory counts only while it is recorded. */
static void gpt2_in(const char *mode, gpu_fn step, bool kept)
{
    char name[64];
    gpu_train s;
    trek_memory_release_cached(gpu_device);
    trek_seed(1);
    double flop = gpt2_state(atoll(gpu_work_name() + strlen("gpt2_")), name, sizeof name, &s);
    s.kept = kept;
    gpu_train_capture(&s);
    s.read = true;
    for (int k = 0; k < GPU_LOSS_STEPS && trek_error_status() == TREK_OK; k++)
        step(&s);
    s.read = false;
    double loss = s.last;
    gpu_train_capture(&s);
    trek_memory_release_cached(gpu_device); /* the first recording's memory, too */
    gpu_result result = gpu_time(step, &s);
    result.loss = loss;
    report(name, mode, &s, result, 1, flop);
    gpu_train_close(&s);
}

static void gpt2(void)
{
    gpt2_in("eager", gpu_eager_step, false);
    gpt2_in("captured", gpu_captured_step, false);
    gpt2_in("captured-kept", gpu_captured_step, true);
}

/* Time and peak memory of steps that keep what backward needs on the device, and of steps that keep it on the host. */
static void gpt2_offload(void)
{
    char name[64], text[96];
    gpu_train s;
    double flop = gpt2_state(16, name, sizeof name, &s);
    for (int way = 0; way < 2; way++) {
        s.offload = way;
        snprintf(text, sizeof text, "%s %s", name, way ? "offloaded" : "eager");
        if (trek_error_status() != TREK_OK) {
            gpu_report_failure(text);
            break;
        }
        trek_memory_release_cached(gpu_device);
        gpu_result result = gpu_time(gpu_eager_step, &s);
        result.tokens = s.count;
        gpu_report(text, result, 1, 0, flop);
    }
    gpu_train_close(&s);
}

static void resnet(void)
{
    int64_t batch = gpu_size(256, 2);
    gpu_train s = gpu_resnet_train(batch, gpu_size(224, 32));
    both("ResNet-50, 256 x 224", &s, false, 1, 3 * 2 * 4.089e9 * (double)batch); /* multiplications and additions of an image */
}

/* --- products of 8 bits, beside those of bf16 -------------------------------------------------------- */

/* Steps of two linear layers, most of which are products; plain SGD, which takes little beside them. */
static void fp8(void)
{
    static const struct { const char *name; trek_amp_opts amp; } ways[] = {
        { "bf16", { .dtype = TREK_BF16 } },
        { "fp8", { .products = TREK_AMP_PRODUCTS_FP8 } },
        { "fp8, own magnitudes", { .products = TREK_AMP_PRODUCTS_FP8, .fp8 = { .history = TREK_OFF } } },
    };
    int64_t width = 16 * gpu_size(256, 2), hidden = 16 * gpu_size(1024, 4), rows = gpu_size(8192, 16);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        char name[64];
        trek_module *layers[] = { trek_nn_linear(width, hidden, gpu_device), trek_nn_relu(),
                                  trek_nn_linear(hidden, width, gpu_device) };
        gpu_train s = { .graph = gpu_graph_of(trek_nn_sequential(layers, 3), trek_sgd(&(trek_sgd_opts){ .lr = 1e-3 })) };
        trek_graph_set_amp(s.graph, &ways[k].amp);
        s.x = gpu_randn(trek_dims(rows, width), TREK_F32, 1, false);
        s.y = gpu_randn(trek_dims(rows, width), TREK_F32, 1, false);
        snprintf(name, sizeof name, "4096-16384-4096 %s", ways[k].name);
        both(name, &s, false, 1, 10.0 * (double)(rows * width * hidden)); /* the input needs no gradient */
    }
}

const gpu_work gpu_works_training[] = { { "replay", replay },
                                        { "adamw", adamw },
                                        { "gpt2_64", gpt2 },
                                        { "gpt2_4", gpt2 },
                                        { "gpt2_1", gpt2 },
                                        { "offload_gpt2", gpt2_offload },
                                        { "resnet", resnet },
                                        { "fp8", fp8 },
                                        { "model_mlp", model },
                                        { "model_convnet", model },
                                        { "model_convnet_last", model },
                                        { "model_transformer", model },
                                        { "model_residual_tower", model },
                                        { "model_gated_routing", model },
                                        { "model_iterative_refine", model },
                                        { "model_feedback_fixed", model },
                                        { NULL, NULL } };

/* SPDX-License-Identifier: Apache-2.0 */
/* Training steps: replay against eager, the optimizer alone, the models, GPT-2. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

enum { BATCHES = 50 };

typedef struct train_state {
    trek_graph *graph;
    trek_var *x, *y;
    bool classes, tokens, read; /* cross entropy; gpt2's loss; the loss is read after each step */
    double last;
} train_state;

static trek_var *loss_of(train_state *s, trek_var *x, trek_var *y)
{
    if (s->tokens)
        return gpu_gpt2_loss(s->graph, x, y);
    trek_var *out = trek_graph_forward(s->graph, x);
    if (!s->classes)
        return trek_mse_loss(out, y);
    return out ? trek_cross_entropy(trek_reshape(out, trek_dims(-1, trek_var_size(out, -1))), trek_reshape(y, trek_dims(-1))) : NULL;
}

static void eager_step(void *state)
{
    train_state *s = state;
    trek_scope scope = trek_scope_begin();
    trek_var *loss = loss_of(s, s->x, s->y);
    trek_graph_backward(s->graph, loss);
    trek_graph_step(s->graph);
    if (s->read && loss)
        s->last = trek_var_item(loss);
    trek_scope_end(scope);
}

static trek_status captured(trek_graph *graph, void *arg)
{
    trek_var *loss = loss_of(arg, trek_graph_captured_input(graph, 0), trek_graph_captured_input(graph, 1));
    trek_graph_capture_output(graph, 0, loss);
    trek_graph_backward(graph, loss);
    return trek_graph_step(graph);
}

static void captured_step(void *state)
{
    train_state *s = state;
    if (trek_graph_capture(s->graph, captured, s) == TREK_OK && s->read)
        s->last = trek_var_item(trek_graph_captured_output(s->graph, 0));
}

static void epoch_of(void *state, gpu_fn step)
{
    for (int k = 0; k < BATCHES; k++)
        step(state);
}

static void eager_epoch(void *state) { epoch_of(state, eager_step); }
static void captured_epoch(void *state) { epoch_of(state, captured_step); }

static void close_state(train_state *s)
{
    trek_graph_free(&s->graph);
    trek_var_release(s->x);
    trek_var_release(s->y);
    memset(s, 0, sizeof *s);
}

/* Measures steps (or epochs) eagerly and captured, and closes the state. */
static void both(const char *name, train_state *s, bool epochs, double per, double flop)
{
    char text[96];
    if (trek_status_get() != TREK_OK) {
        gpu_report_failure(name);
        close_state(s);
        return;
    }
    snprintf(text, sizeof text, "%s eager", name);
    gpu_report(text, gpu_time(epochs ? eager_epoch : eager_step, s), per, 0, flop);
    trek_graph_capture_input(s->graph, 0, s->x);
    trek_graph_capture_input(s->graph, 1, s->y);
    snprintf(text, sizeof text, "%s captured", name);
    gpu_result result = gpu_time(epochs ? captured_epoch : captured_step, s);
    if (trek_status_get() == TREK_OK && trek_graph_replays(s->graph) < 1)
        trek_fail(TREK_ERR_STATE, "nothing was replayed: %s", trek_graph_capture_problem(s->graph));
    gpu_report(text, result, per, 0, flop);
    close_state(s);
}

static trek_graph *graph_of(trek_module *model, trek_optimizer_spec optimizer)
{
    trek_graph *graph = model ? trek_flow_build(trek_flow_from(model)) : NULL;
    if (graph)
        trek_graph_set_optimizer(graph, optimizer);
    return graph;
}

/* --- replay: a step so small that only its host cost counts ------------------------------ */

static void replay(void)
{
    trek_module *layers[] = { trek_nn_linear(64, 64, gpu_device), trek_nn_relu(), trek_nn_linear(64, 64, gpu_device), trek_nn_relu(),
                              trek_nn_linear(64, 10, gpu_device) };
    train_state s = { .graph = graph_of(trek_nn_sequential(5, layers), trek_adamw((trek_adam_opts){ .lr = 1e-3 })), .classes = true };
    s.x = gpu_randn(trek_dims(32, 64), TREK_F32, 1, false);
    s.y = gpu_randint(trek_dims(32), 10);
    both("small step", &s, false, 1, 0);
}

/* --- the optimizer over GPT-2's parameters --------------------------------------------------- */

typedef struct weights_module {
    trek_module base;
    trek_var *table, *rest;
} weights_module;

static const trek_module_class weights_class = { .name = "weights", .size = sizeof(weights_module) };

typedef struct update_state {
    trek_module *model;
    trek_params *params;
    trek_optimizer *optimizer;
} update_state;

static void update_step(void *state) { trek_optimizer_step(((update_state *)state)->optimizer); }

static void clip_and_update(void *state)
{
    trek_clip_grad_norm(((update_state *)state)->params, 1e9);
    update_step(state);
}

/* bytes of a parameter: gradient read, m, v and the f32 weight read and written, and a 16-bit weight written. */
static void update_in(const char *name, trek_dtype dtype, double bytes)
{
    char text[64];
    int64_t table = gpu_size(50304 * 768, 4096), rest = gpu_size(124475904 - 50304 * 768, 4096);
    update_state s = { .model = trek_module_new(&weights_class) };
    trek_module_param(s.model, "table", offsetof(weights_module, table), trek_tensor_zeros(trek_dims(table), dtype, gpu_device));
    trek_module_param(s.model, "rest", offsetof(weights_module, rest), trek_tensor_zeros(trek_dims(rest), dtype, gpu_device));
    s.model = trek_module_check(s.model);
    s.params = s.model ? trek_module_params(s.model) : NULL;
    s.optimizer = s.params ? trek_optimizer_new(trek_adamw((trek_adam_opts){ .lr = 1e-4, .weight_decay = 0.1 }), s.params) : NULL;
    for (int k = 0; s.optimizer && k < 2; k++) {
        trek_var *var = trek_params_var(s.params, k), *grad = gpu_randn(trek_var_shape(var), dtype, 1e-3, false);
        trek_var_set_grad(var, grad);
        trek_var_release(grad);
    }
    double count = (double)(table + rest);
    snprintf(text, sizeof text, "%s update", name);
    gpu_report(text, gpu_time(update_step, &s), 1, bytes * count, 0);
    snprintf(text, sizeof text, "%s clip + update", name);
    gpu_report(text, gpu_time(clip_and_update, &s), 1, (bytes + (double)trek_dtype_size(dtype)) * count, 0);
    trek_optimizer_free(&s.optimizer);
    trek_params_free(&s.params);
    trek_module_free(&s.model);
}

static void adamw(void)
{
    update_in("f32", TREK_F32, 28);
    update_in("bf16", TREK_BF16, 30); /* gradients of 16-bit parameters are f32 in the arena */
}

/* --- models ------------------------------------------------------------------------------------- */

static void models(void)
{
    int64_t large = gpu_size(1024, 8), small = gpu_size(512, 8), many = gpu_size(256, 2), few = gpu_size(128, 2);
    const struct {
        const char *name;
        trek_shape in, out;
        double lr;
    } list[] = { { "mlp", trek_dims(many, large), trek_dims(many, large), 1e-3 },
                 { "convnet", trek_dims(few, 3, 64, 64), trek_dims(few, 100), 1e-3 },
                 { "transformer", trek_dims(gpu_size(32, 2), gpu_size(128, 8)), trek_dims(gpu_size(32, 2), gpu_size(128, 8)), 1e-4 },
                 { "residual_tower", trek_dims(many, large), trek_dims(many, large), 1e-3 },
                 { "gated_routing", trek_dims(many, small), trek_dims(many, small), 1e-3 },
                 { "iterative_refine", trek_dims(many, large), trek_dims(many, large), 1e-3 },
                 { "feedback_fixed", trek_dims(few, small), trek_dims(few, small), 1e-3 } };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        bool tokens = !strcmp(list[k].name, "transformer");
        train_state s = { .graph = graph_of(gpu_model_new(list[k].name), trek_adam((trek_adam_opts){ .lr = list[k].lr })), .read = true };
        s.classes = tokens;
        s.x = tokens ? gpu_randint(list[k].in, gpu_size(8192, 64)) : gpu_randn(list[k].in, TREK_F32, 1, false);
        s.y = tokens ? gpu_randint(list[k].out, gpu_size(8192, 64)) : gpu_randn(list[k].out, TREK_F32, 1, false);
        both(list[k].name, &s, true, 1, 0);
    }
}

/* --- GPT-2 124M ------------------------------------------------------------------------------------ */

static void gpt2(void)
{
    static const struct {
        const char *name;
        int64_t batch, length;
    } sizes[] = { { "1 x 256", 1, 256 }, { "4 x 1024", 4, 1024 }, { "64 x 1024", 64, 1024 } };
    int64_t width = 64 * gpu_size(12, 1), vocabulary = gpu_size(50304, 128);
    for (int k = 0; k < 3; k++) {
        int64_t batch = gpu_size(sizes[k].batch, 1), length = gpu_size(sizes[k].length, 16);
        trek_module *model = gpu_gpt2_new((int)gpu_size(12, 2), width, width / 64, gpu_size(1024, 16), vocabulary, TREK_BF16);
        double parameters = model ? (double)trek_module_param_count(model) : 0;
        train_state s = { .graph = graph_of(model, trek_adamw((trek_adam_opts){ .lr = 1e-4, .weight_decay = 0.1 })), .tokens = true };
        s.x = gpu_randint(trek_dims(batch, length), vocabulary);
        s.y = gpu_randint(trek_dims(batch, length), vocabulary);
        both(sizes[k].name, &s, false, 1, 6 * parameters * (double)(batch * length));
    }
}

const gpu_work gpu_works_training[] = { { "replay", replay }, { "adamw", adamw }, { "models", models }, { "gpt2", gpt2 }, { NULL, NULL } };

/* SPDX-License-Identifier: Apache-2.0 */
/* What the works on a GPU train, and a step of it: eagerly, or captured. */
#include "bench.h"

#include <string.h>

trek_var *gpu_randn(trek_shape shape, trek_dtype dtype, double size, bool requires_grad)
{
    trek_scope scope = trek_scope_begin();
    trek_tensor *wide = trek_tensor_randn(shape, TREK_F32, gpu_device);
    trek_var *scaled = trek_cast(trek_mul_scalar(trek_var_constant(wide), size), dtype);
    trek_var *var = scaled ? trek_var_new(trek_var_data(scaled), requires_grad) : NULL;
    trek_tensor_release(wide);
    trek_scope_end(scope);
    return var;
}

trek_var *gpu_randint(trek_shape shape, int64_t limit)
{
    trek_tensor *t = trek_tensor_randint(0, limit, shape, TREK_I64, gpu_device);
    trek_var *var = t ? trek_var_new(t, false) : NULL;
    trek_tensor_release(t);
    return var;
}

static trek_var *loss_of(gpu_train *s, trek_var *x, trek_var *y)
{
    if (s->tokens)
        return gpu_gpt2_loss(s->graph, x, y, s->kept);
    trek_var *out = trek_graph_forward(s->graph, x);
    if (!s->classes)
        return trek_mse_loss(out, y);
    return out ? trek_cross_entropy(trek_reshape(out, trek_dims(-1, trek_var_size(out, -1))), trek_reshape(y, trek_dims(-1)))
        : NULL;
}

void gpu_eager_step(void *state)
{
    gpu_train *s = state;
    trek_scope scope = trek_scope_begin();
    if (s->offload)
        trek_offload_begin(NULL);
    trek_var *loss = loss_of(s, s->x, s->y);
    if (s->offload)
        trek_offload_end();
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

void gpu_captured_step(void *state)
{
    gpu_train *s = state;
    if (trek_graph_capture(s->graph, captured, s) == TREK_OK && s->read)
        s->last = trek_var_item(trek_graph_captured_output(s->graph, 0));
}

void gpu_train_capture(gpu_train *s)
{
    trek_graph_capture_reset(s->graph);
    trek_graph_capture_input(s->graph, 0, s->x);
    trek_graph_capture_input(s->graph, 1, s->y);
}

void gpu_train_close(gpu_train *s)
{
    trek_graph_free(&s->graph);
    trek_var_release(s->x);
    trek_var_release(s->y);
    memset(s, 0, sizeof *s);
}

trek_graph *gpu_graph_of(trek_module *model, trek_optimizer_spec optimizer)
{
    trek_graph *graph = model ? trek_flow_build(trek_flow_from(model)) : NULL;
    if (graph)
        trek_graph_set_optimizer(graph, optimizer);
    return graph;
}

gpu_train gpu_gpt2_train(int layers, int64_t heads, int64_t batch, int64_t length, int64_t context, int64_t vocabulary)
{
    trek_module *model = gpu_gpt2_new(layers, 64 * heads, heads, context, vocabulary, TREK_BF16);
    gpu_train s = { .graph = gpu_graph_of(model, trek_adamw(&(trek_adam_opts){ .lr = 1e-4, .weight_decay = 0.1 })),
                    .tokens = true };
    s.count = (double)(batch * length);
    s.x = gpu_randint(trek_dims(batch, length), vocabulary);
    s.y = gpu_randint(trek_dims(batch, length), vocabulary);
    return s;
}

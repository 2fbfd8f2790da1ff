/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads a state file of known numbers, and writes the checkpoint of a job, for check_safetensors.py.
 *   state_tool write FILE     state_tool read FILE     state_tool checkpoint FILE */
#include <stdio.h>
#include <string.h>

#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/params.h"
#include "nn/state.h"
#include "tensor/copies.h"
#include "tests/support/support.h"

static trek_module *make_model(void)
{
    trek_module *layers[] = { trek_nn_conv2d(2, 3, 3, trek_cpu(0)), trek_nn_batch_norm2d(3, trek_cpu(0)), trek_nn_flatten(),
                              trek_nn_linear(12, 4, trek_cpu(0)) };
    return trek_nn_sequential(layers, 4);
}

/* Parameter k holds stream 100 + k. */
static int each_param(trek_module *model, bool check)
{
    trek_params *params = trek_module_params(model);
    int wrong = params ? 0 : 1;
    for (int k = 0; params && k < trek_params_count(params); k++) {
        trek_var *p = trek_params_var(params, k);
        trek_tensor *want = test_tensor((uint32_t)(100 + k), trek_var_shape(p), 1);
        if (check)
            wrong += memcmp(trek_tensor_data(want), trek_tensor_data(trek_var_data(p)),
                            sizeof(float) * (size_t)trek_var_numel(p)) != 0;
        else
            wrong += trek_tensor_copy_from(trek_var_data(p), want) != TREK_OK;
        trek_tensor_release(want);
    }
    trek_params_free(&params);
    return wrong;
}

static trek_graph *build(trek_device device, void *arg)
{
    (void)arg;
    trek_module *layers[] = { trek_nn_linear(40, 64, device), trek_nn_gelu(), trek_nn_linear(64, 3, device) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, 3)));
}

/* Makes one step with the optimizer's state divided, and saves a checkpoint. Every process of a job comes here. */
static trek_status save_checkpoint(const char *path)
{
    trek_seed(5);
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = 1, .shard = TREK_SHARD_STATE,
                                                    .bucket_bytes = 4096,
                                                    .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.01 }) });
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(7, trek_dims(6, 40), 1));
    trek_graph_backward(graph, trek_mean(trek_square(trek_graph_forward(graph, x)), trek_dims_all(), false));
    trek_graph_step(graph);
    trek_scope_end(scope);
    trek_checkpoint_save(graph, NULL, path);
    trek_graph_free(&graph);
    return trek_error_status();
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (!strcmp(argv[1], "checkpoint")) {
        if (save_checkpoint(argv[2]) != TREK_OK)
            fprintf(stderr, "%s\n", trek_error());
        return trek_error_status() != TREK_OK;
    }
    trek_module *model = make_model();
    int wrong = model ? 0 : 1;
    if (model && !strcmp(argv[1], "write")) {
        wrong += each_param(model, false);
        wrong += trek_state_save(model, argv[2]) != TREK_OK;
    } else if (model) {
        wrong += trek_state_load(model, argv[2], NULL) != TREK_OK;
        wrong += each_param(model, true);
    }
    if (wrong)
        fprintf(stderr, "%d tensors are wrong: %s\n", wrong, trek_error());
    trek_module_free(&model);
    return wrong != 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Training steps of GPT-2 as tests/bench/gpu has it, on the test device, for step_table.py: step STEPS LAYERS LENGTH VOCABULARY,
 * one sequence of GPT-2's width in bf16. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/gpu/bench.h"

enum { WIDTH = 768, HEADS = 12 };
trek_device gpu_device;

int main(int argc, char **argv)
{
    const char *name = getenv("TREK_TEST_DEVICE");
    if (argc != 5 || !name || trek_device_parse(name, &gpu_device) != TREK_OK) {
        fprintf(stderr, "usage: TREK_TEST_DEVICE=cuda:0 step STEPS LAYERS LENGTH VOCABULARY\n");
        return 2;
    }
    int64_t length = atoll(argv[3]), vocabulary = atoll(argv[4]);
    trek_shape shape = trek_dims(1, length);
    trek_graph *graph = trek_flow_build(trek_flow_from(gpu_gpt2_new(atoi(argv[2]), WIDTH, HEADS, length, vocabulary, TREK_BF16)));
    trek_graph_set_optimizer(graph, trek_adamw((trek_adam_opts){ .lr = 1e-4, .weight_decay = 0.1 }));
    for (int k = 0; k < atoi(argv[1]) && trek_error_status() == TREK_OK; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_constant(trek_tensor_randint(0, vocabulary, shape, TREK_I64, gpu_device));
        trek_var *y = trek_var_constant(trek_tensor_randint(0, vocabulary, shape, TREK_I64, gpu_device));
        trek_var *loss = gpu_gpt2_loss(graph, x, y, false);
        trek_graph_backward(graph, loss);
        trek_graph_step(graph);
        printf("loss %g\n", trek_var_item(loss));
        trek_scope_end(scope);
    }
    trek_graph_free(&graph);
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    return trek_error_status() != TREK_OK;
}

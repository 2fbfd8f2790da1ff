/* SPDX-License-Identifier: Apache-2.0 */
/* What step_table.py counts, of GPT-2 as tests/bench/gpu has it, on the test device:
 *   step model LAYERS SEQUENCES VOCABULARY   forward and backward at GPT-2's width, in bf16, of sequences of 64 tokens
 *   step norm ROWS                           one norm of a residual sum and its gradients, at GPT-2's width
 *   step update PARAMETERS                   the update of so many parameters of 16 bits
 *   step attention LENGTH HEADS              attention and its gradients, of one causal sequence, packed as the model has it
 * Each is done twice, and what TREK_TEST_PTX_COUNTS gets is the second time alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/bench.h"
#include "tests/support/support.h"

enum { HEADS = 12, LENGTH = 64, DEPTH = 64 };
trek_device gpu_device;

static void count_from_here(void)
{
    void *address = test_fake("trek_fake_forget_counts");
    void (*forget)(void);
    memcpy(&forget, &address, sizeof forget);
    trek_device_sync(gpu_device);
    if (forget)
        forget();
}

static void both_ways(gpu_train *s)
{
    trek_scope scope = trek_scope_begin();
    trek_var *loss = gpu_gpt2_loss(s->graph, s->x, s->y, s->kept);
    trek_graph_backward(s->graph, loss);
    printf("loss %g\n", trek_var_item(loss));
    trek_scope_end(scope);
}

static void model(int layers, int64_t sequences, int64_t vocabulary)
{
    gpu_train s = gpu_gpt2_train(layers, HEADS, sequences, LENGTH, LENGTH, vocabulary);
    both_ways(&s);
    trek_graph_zero_grad(s.graph);
    count_from_here();
    both_ways(&s);
    gpu_train_close(&s);
}

static void norm_once(trek_var *const in[4], trek_var *seed)
{
    trek_scope scope = trek_scope_begin();
    trek_var *sum, *y = trek_add_layer_norm(in[0], in[1], 1, in[2], in[3], 1e-5, &sum);
    trek_backward_with(trek_add(y, sum), seed, NULL); /* the stream goes on, so its gradient comes in as well */
    trek_scope_end(scope);
    for (int k = 0; k < 4; k++)
        trek_var_zero_grad(in[k]);
}

static void norm(int64_t rows)
{
    trek_shape all = trek_dims(rows, HEADS * DEPTH), one = trek_dims(HEADS * DEPTH);
    trek_var *in[4], *seed = gpu_randn(all, TREK_BF16, 1, false);
    for (int k = 0; k < 4; k++)
        in[k] = gpu_randn(k < 2 ? all : one, TREK_BF16, 1, true);
    norm_once(in, seed);
    count_from_here();
    norm_once(in, seed);
    trek_device_sync(gpu_device);
    for (int k = 0; k < 4; k++)
        trek_var_release(in[k]);
    trek_var_release(seed);
}

static void update(int64_t parameters)
{
    trek_linear_opts opts = { .in = parameters, .out = 1, .no_bias = true, .dtype = TREK_BF16, .device = gpu_device };
    gpu_train s = { .graph = gpu_graph_of(trek_nn_linear_with(&opts),
                                          trek_adamw(&(trek_adam_opts){ .lr = 1e-4, .weight_decay = 0.1 })) };
    s.x = gpu_randn(trek_dims(1, parameters), TREK_BF16, 1, false);
    for (int k = 0; k < 2; k++) {
        trek_scope scope = trek_scope_begin();
        trek_graph_backward(s.graph, trek_sum(trek_graph_forward(s.graph, s.x), trek_dims_all(), false));
        count_from_here();
        trek_graph_step(s.graph);
        trek_scope_end(scope);
    }
    trek_device_sync(gpu_device);
    gpu_train_close(&s);
}

static void attend(trek_var *packed, trek_var *seed)
{
    trek_scope scope = trek_scope_begin();
    trek_var *part[3];
    for (int k = 0; k < 3; k++)
        part[k] = trek_permute(trek_select(packed, 2, k), trek_dims(0, 2, 1, 3));
    trek_backward_with(trek_attention(part[0], part[1], part[2], &(trek_attention_opts){ .causal = true }), seed, NULL);
    trek_scope_end(scope);
    trek_var_zero_grad(packed);
}

static void attention(int64_t length, int64_t heads)
{
    trek_var *packed = gpu_randn(trek_dims(1, length, 3, heads, DEPTH), TREK_BF16, 1, true);
    trek_var *rows = gpu_randn(trek_dims(1, length, heads, DEPTH), TREK_BF16, 1, false);
    trek_var *seed = trek_permute(rows, trek_dims(0, 2, 1, 3)); /* as the result lies */
    attend(packed, seed);
    count_from_here();
    attend(packed, seed);
    trek_device_sync(gpu_device);
    trek_var_release(packed);
    trek_var_release(rows);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    trek_scope scope = trek_scope_begin();
    gpu_device = test_device();
    if (argc == 5 && strcmp(what, "model") == 0) {
        model(atoi(argv[2]), atoll(argv[3]), atoll(argv[4]));
    } else if (argc == 3 && strcmp(what, "norm") == 0) {
        norm(atoll(argv[2]));
    } else if (argc == 3 && strcmp(what, "update") == 0) {
        update(atoll(argv[2]));
    } else if (argc == 4 && strcmp(what, "attention") == 0) {
        attention(atoll(argv[2]), atoll(argv[3]));
    } else {
        fprintf(stderr,
                "usage: step model LAYERS SEQUENCES VOCABULARY | norm ROWS | update PARAMETERS | attention LENGTH HEADS\n");
        return 2;
    }
    trek_scope_end(scope);
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    return trek_error_status() != TREK_OK;
}

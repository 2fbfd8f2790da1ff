/* SPDX-License-Identifier: Apache-2.0 */
/* Files that trek writes, small, for make_corpus.py.    fuzz_seeds FOLDER */
#include <stdio.h>
#include <string.h>

#include "autograd/ops.h"
#include "data/loader.h"
#include "distributed/checkpoint.h"
#include "distributed/balance/plan.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/state.h"
#include "tests/fuzz/small_run.h"
#include "nn/state_tensors.h"
#include "nn/state_modules.h"

static const char *in(const char *folder, const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static trek_status write_states(const char *folder)
{
    trek_module *layers[3] = { trek_nn_linear(2, 2, trek_cpu(0)), trek_nn_batch_norm1d(2, trek_cpu(0)),
                               trek_nn_linear(2, 1, trek_cpu(0)) };
    trek_module *model = trek_nn_sequential(layers, 3);
    trek_state_save(model, in(folder, "safetensors-model"));
    trek_module_free(&model);
    trek_state *state = trek_state_new();
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        trek_tensor *tensor = trek_tensor_ones(trek_dims(2, d % 3), (trek_dtype)d, trek_cpu(0));
        trek_state_add(state, (char[]){ (char)('a' + d), 0 }, tensor);
        trek_tensor_release(tensor);
    }
    trek_state_add_alias(state, "alias \"1\"", "a");
    trek_state_set_metadata(state, "note", "caf\xc3\xa9\n");
    trek_status status = trek_state_write(state, in(folder, "safetensors-dtypes"));
    trek_state_free(&state);
    return status;
}

static trek_status write_checkpoints(const char *folder)
{
    trek_graph *graph = small_graph();
    trek_loader *loader = small_loader();
    trek_loader_start(loader, 0);
    trek_checkpoint_save(graph, loader, in(folder, "checkpoint-new"));
    for (trek_batch *batch; (batch = trek_loader_next(loader));) {
        trek_var *y = trek_graph_forward(graph, trek_batch_get(batch, "x"));
        trek_graph_backward(graph, trek_cross_entropy(y, trek_batch_get(batch, "label")));
        trek_graph_step(graph);
        trek_checkpoint_save(graph, loader, in(folder, "checkpoint-later"));
    }
    trek_loader_free(&loader);
    trek_graph_free(&graph);
    return trek_error_status();
}

static trek_status write_plans(const char *folder)
{
    trek_plan *plan = trek_plan_new(2);
    trek_plan_add_shares(plan, 0, (double[]){ 0.5, 0.5 });
    trek_plan_add_shares(plan, 10, (double[]){ 0.7, 1 - 0.7 });
    trek_plan_add_counts(plan, 60, (int64_t[]){ 23, 10 }, 10);
    trek_status status = trek_plan_save(plan, in(folder, "plan-mixed"));
    trek_plan_free(&plan);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    trek_seed(1);
    write_states(argv[1]);
    write_checkpoints(argv[1]);
    write_plans(argv[1]);
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    return trek_error_status() != TREK_OK;
}

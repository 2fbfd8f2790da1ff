/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints into a small graph: one that is refused changes neither parameters nor rates nor counts. */
#include <string.h>

#include "autograd/ops.h"
#include "data/loader.h"
#include "data/loader_position.h"
#include "distributed/checkpoint.h"
#include "graph/flow.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_run.h"

typedef struct look {
    float values[8];
    double lr;
    int64_t steps, epoch, batch;
} look;

static trek_status note(const char *name, trek_var *var, void *arg)
{
    (void)name;
    float **to = arg;
    memcpy(*to, trek_tensor_data(trek_var_data(var)), (size_t)trek_var_numel(var) * sizeof(float));
    *to += trek_var_numel(var);
    return TREK_OK;
}

static look look_at(trek_graph *graph, const trek_loader *loader)
{
    look seen;
    memset(&seen, 0, sizeof seen);
    float *to = seen.values;
    trek_module_each_param(trek_graph_module(graph), note, &to);
    seen.lr = trek_graph_lr(graph);
    seen.steps = trek_graph_steps(graph);
    trek_loader_position(loader, &seen.epoch, &seen.batch);
    return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trek_graph *graph = small_graph();
    trek_loader *loader = small_loader();
    fuzz_expect(graph && loader, "a graph and a loader");
    look before = look_at(graph, loader);
    trek_status status = trek_checkpoint_load(graph, loader, fuzz_file(data, size));
    fuzz_settle(status == TREK_OK);
    look after = look_at(graph, loader);
    fuzz_expect(status == TREK_OK || memcmp(&before, &after, sizeof before) == 0, "a refused checkpoint changes nothing");
    trek_loader_free(&loader);
    trek_graph_free(&graph);
    return 0;
}

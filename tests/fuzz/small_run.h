/* SPDX-License-Identifier: Apache-2.0 */
/* The run whose checkpoints are fed and whose first ones are seeds: a linear layer, Adam, five samples. */
#ifndef TREK_TESTS_FUZZ_SMALL_RUN_H
#define TREK_TESTS_FUZZ_SMALL_RUN_H

#include "data/loader.h"
#include "graph/flow.h"
#include "graph/settings.h"
#include "nn/basic_layers.h"
#include "optim/optimizer.h"

static inline trek_graph *small_graph(void)
{
    trek_graph *graph = trek_flow_build(trek_flow_from(trek_nn_linear(2, 2, trek_cpu(0))));
    if (graph)
        trek_graph_set_optimizer(graph, trek_adam(&(trek_adam_opts){ .lr = 0.01 }));
    return graph;
}

static inline trek_loader *small_loader(void)
{
    static const char *const names[2] = { "x", "label" };
    trek_tensor *tensors[2] = { trek_tensor_ones(trek_dims(5, 2), TREK_F32, trek_cpu(0)),
                                trek_tensor_zeros(trek_dims(5), TREK_I64, trek_cpu(0)) };
    trek_loader *loader = trek_loader_new(trek_dataset_tensors(names, tensors, 2),
                                          &(trek_loader_opts){ .batch_size = 2, .prefetch = TREK_ZERO });
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    return loader;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Every workload learns: a few steps on one batch, alone and on two ranks, lower its loss. */
#include <math.h>
#include <stdio.h>

#include "workload.h"

enum { SAMPLES = 16, STEPS = 6 };
static const double MOST_LR = 0.01; /* ResNet's own is too large for so few samples */

/* What each model has to have; those of the published networks. */
static const struct { const char *name; int64_t parameters; } sizes[] = {
    { "logistic", 7850 }, { "lenet", 44426 + 44 }, { "char_rnn", 946625 }, { "resnet", 272474 }, { "resnet_graph", 272474 },
};

static bool sized(const workload *w, trek_graph *graph)
{
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (workload_find(sizes[k].name) == w && trek_module_param_count(trek_graph_module(graph)) != sizes[k].parameters)
            return printf("%s has %lld parameters, not %lld\n", w->name,
                          (long long)trek_module_param_count(trek_graph_module(graph)), (long long)sizes[k].parameters), false;
    return true;
}

/* Losses before the first and after the last step. */
static bool learn(const workload *w, int ranks, double loss[2])
{
    trek_seed(1);
    workload_data data = workload_open(w->data, NULL, SAMPLES);
    trek_dataset_free(&data.test);
    trek_loader *loader = trek_loader_new(data.train, &(trek_loader_opts){ .batch_size = SAMPLES });
    trek_graph *graph = w->build(trek_cpu(0), NULL);
    bool fine = graph && loader && sized(w, graph);
    trek_graph_set_loader(graph, loader, w->field);
    trek_graph_set_loss(graph, w->loss, NULL);
    trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = w->build, .ranks = ranks, .optimizer = w->optimizer(fmin(w->lr, MOST_LR)) });
    for (int step = 0; fine && step <= STEPS; step++) {
        trek_graph_start(graph, step);
        trek_batch *batch = trek_graph_next(graph);
        trek_var *mean = batch ? trek_graph_train_batch(graph, batch) : NULL;
        if (mean && (step == 0 || step == STEPS))
            loss[step > 0] = trek_var_item(mean);
        trek_graph_step(graph);
    }
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    return fine && trek_error_status() == TREK_OK;
}

int main(void)
{
    int failed = 0;
    double resnet = 0;
    for (int k = 0; k < n_workloads; k++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            double loss[2] = { NAN, NAN };
            bool fine = learn(&workloads[k], ranks, loss) && loss[1] < loss[0];
            printf("%s on %d: %.4f -> %.4f %s\n", workloads[k].name, ranks, loss[0], loss[1], fine ? "" : trek_error());
            failed += !fine;
            trek_error_clear();
            if (ranks == 1 && workloads[k].data == DATA_CIFAR && resnet == 0)
                resnet = loss[1];
            else if (ranks == 1 && workloads[k].data == DATA_CIFAR && !(fabs(loss[1] - resnet) < 1e-3))
                failed++, printf("both versions of ResNet-20 should learn the same\n");
        }
    return failed > 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The quick start: trains a multi-layer perceptron on MNIST.
 *
 *   quickstart [FOLDER]     FOLDER contains MNIST's IDX files (default data/mnist);
 *                           if they are missing, the program generates digits
 *
 * This program runs on one CPU, on TREK_DEVICES=cpu:0,cpu:1, and on a GPU. */
#include <stdio.h>
#include <string.h>

#include "core.h"

/* Called once for each further device, so that every rank holds the same model. */
static trek_graph *build_model(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(784, 256, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(256, 10, device));
    trek_flow_tag(flow, "logits");
    return trek_flow_build(flow); /* NULL if any call above failed */
}

static trek_dataset *training_data(const char *folder)
{
    trek_dataset *mnist = trek_dataset_mnist(folder, TREK_DATA_SPLIT_TRAIN);
    if (mnist)
        return mnist;
    fprintf(stderr, "%s\nTraining on generated digits instead.\n", trek_error());
    trek_error_clear();
    return trek_dataset_digits(4000, 1);
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc > 1 && argv[1][0] == '-')) {
        printf("usage: %s [FOLDER]   FOLDER holds MNIST's files (default data/mnist; without them digits are generated)\n",
               argv[0]);
        return strcmp(argv[1], "--help") != 0 ? 2 : 0;
    }
    trek_graph *model = build_model(trek_device_default(), NULL);
    trek_loader *train = trek_loader_new(training_data(argc > 1 ? argv[1] : "data/mnist"),
                                         &(trek_loader_opts){ .batch_size = 64, .shuffle = true });

    trek_trainer_setup(model, &(trek_trainer_opts){
        .build_replica = build_model,
        .optimizer     = trek_adam(&(trek_adam_opts){ .lr = 1e-3 }),
    });

    for (int epoch = 0; epoch < 5 && trek_error_status() == TREK_OK; epoch++) {
        double loss_of_last = 0;
        trek_loader_start(train, epoch);
        for (trek_batch *batch; (batch = trek_loader_next(train)); ) {
            trek_var *logits = trek_graph_forward(model, trek_batch_get(batch, "image"));
            trek_var *loss = trek_cross_entropy(logits, trek_batch_get(batch, "label"));
            trek_graph_backward(model, loss);
            trek_graph_step(model);
            loss_of_last = trek_var_item(loss);
        }
        if (trek_error_status() == TREK_OK) /* on an error the loop ends here, and the code below prints it */
            printf("epoch %d  loss %.4f\n", epoch + 1, loss_of_last);
    }

    trek_status status = trek_error_status();
    if (status != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    trek_loader_free(&train);
    trek_graph_free(&model);
    return status != TREK_OK;
}

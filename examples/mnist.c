/* SPDX-License-Identifier: Apache-2.0 */
/* Trains LeNet on MNIST on one rank or several, with the exact gradients of one rank: a loop of your own over a graph.
 *
 *   mnist --help                 its options
 *   trek-run -n 2 ./mnist ...    the same on two processes; torchrun, srun and mpirun work as well
 *
 * --data: a folder of MNIST's IDX files, packed by gzip or not. If only the test files exist, images 0..7999 are for training and
 * 8000..9999 for testing. Without --data the program generates digits. Ctrl-C stops it after its current step; with --checkpoint
 * the same command continues from there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"
#include "training.h"

typedef struct options {
    training common;
    const char *trace;
} options;

/* Called once for each further device, so that every rank holds the same model. */
static trek_graph *build_model(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_conv2d(1, 6, 5, device)); /* [n, 1, 28, 28] -> [n, 6, 24, 24] */
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));
    trek_flow_through(flow, trek_nn_conv2d(6, 16, 5, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));                    /* [n, 16, 4, 4] */
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(256, 120, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(120, 84, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(84, 10, device));
    trek_flow_tag(flow, "logits");
    return trek_flow_build(flow);
}

/* Share of the set that the model gets right; exact on any number of ranks and processes. */
static double evaluate(trek_graph *model, trek_loader *test, trek_comm *job)
{
    double right = 0;
    trek_graph_train(model, false);
    trek_no_grad_begin();
    trek_loader_start(test, 0);
    for (trek_batch *batch; (batch = trek_loader_next(test)); ) {
        if (trek_batch_size(batch) == 0) /* this process has no part of it */
            continue;
        trek_var *logits = trek_graph_forward(model, trek_batch_get(batch, "image"));
        right += trek_var_item(trek_accuracy(logits, trek_batch_get(batch, "label"))) * (double)trek_batch_size(batch);
    }
    trek_no_grad_end();
    trek_graph_train(model, true);
    trek_comm_all_reduce_scalar(job, &right, TREK_REDUCTION_SUM);
    return right / (double)trek_loader_samples(test);
}

/* Trains until the epoch ends, or a stop is asked for; true: it has ended. */
static bool train_epoch(trek_graph *model, trek_loader *train, int64_t epoch, trek_progress *progress)
{
    int64_t done = 0;
    for (trek_batch *batch; !trek_stop_requested() && (batch = trek_loader_next(train)); ) {
        trek_var *logits = trek_graph_forward(model, trek_batch_get(batch, "image"));
        trek_var *loss = trek_cross_entropy(logits, trek_batch_get(batch, "label"));
        trek_graph_backward(model, loss);
        trek_graph_step(model);
        trek_loader_position(train, NULL, &done);
        trek_progress_update(progress, epoch, done, trek_var_item(loss));
    }
    return !trek_stop_requested() && trek_error_status() == TREK_OK;
}

/* One image: its digit, and what the model takes it for. */
static void predict_one(trek_graph *model, trek_dataset *test)
{
    trek_scope scope = trek_scope_begin();
    trek_graph_train(model, false);
    trek_no_grad_begin();
    trek_var *logits = trek_graph_forward(model, trek_dataset_sample(test, 0, "image", trek_device_default()));
    trek_var *digit = trek_argmax(logits, trek_dims(1), false);
    trek_var *label = trek_dataset_sample(test, 0, "label", trek_device_default());
    if (digit && label)
        printf("the first test image shows digit %g; the model says %g\n", trek_var_item(label), trek_var_item(digit));
    trek_no_grad_end();
    trek_scope_end(scope);
}

/* Saves the model, loads the file into a new one, and evaluates that. */
static double save_and_reload(trek_graph *model, const char *path, trek_loader *test, trek_comm *job)
{
    trek_graph *loaded = build_model(trek_device_default(), NULL);
    if (trek_comm_rank(job) == 0)
        trek_state_save(trek_graph_module(model), path);
    trek_comm_barrier(job);
    trek_state_load(trek_graph_module(loaded), path, NULL);
    double accuracy = evaluate(loaded, test, job);
    trek_graph_free(&loaded);
    return accuracy;
}

/* All epochs, or what is left of them; the accuracy of the last one, NaN if it was stopped. */
static double train(trek_graph *model, trek_loader *train_set, trek_loader *test, trek_comm *job, const training *t)
{
    bool resumed, first = trek_comm_rank(job) == 0;
    int64_t epoch = training_resume(t, model, train_set, &resumed);
    trek_progress *progress = first && !t->quiet ? trek_progress_new(t->epochs, trek_loader_batches(train_set)) : NULL;
    double accuracy = epoch < t->epochs ? NAN : evaluate(model, test, job);
    for (; epoch < t->epochs && trek_error_status() == TREK_OK && !trek_stop_requested(); epoch++, resumed = false) {
        if (!resumed)
            trek_loader_start(train_set, epoch);
        bool whole = train_epoch(model, train_set, epoch, progress);
        if (t->checkpoint && trek_error_status() == TREK_OK)
            trek_checkpoint_save(model, train_set, t->checkpoint);
        accuracy = whole ? evaluate(model, test, job) : NAN;
        if (whole)
            trek_progress_epoch(progress, epoch, "accuracy", accuracy);
    }
    trek_progress_free(&progress);
    return accuracy;
}

static void run(const options *o)
{
    const training *t = &o->common;
    trek_seed(t->seed);
    trek_comm *job = trek_comm_init(NULL); /* of the processes of the job; alone a world of one */
    bool first = trek_comm_rank(job) == 0;
    digits data = digits_open(t->data, 8000, 2000);
    trek_loader *train_set = trek_loader_new(data.train, &(trek_loader_opts){ .batch_size = t->batch_size, .shuffle = true,
                                                                              .seed = t->seed });
    trek_loader *test = trek_loader_new(data.test, &(trek_loader_opts){ .batch_size = 500 });
    trek_graph *model = build_model(trek_device_default(), NULL);
    trek_timeline *timeline = o->trace ? trek_timeline_new(NULL) : NULL;
    if (timeline)
        trek_timeline_attach(timeline);
    trek_trainer_setup(model, &(trek_trainer_opts){
        .build_replica = build_model,
        .ranks         = t->ranks,
        .optimizer     = trek_adam(&(trek_adam_opts){ .lr = t->lr }),
    });

    double accuracy = trek_error_status() == TREK_OK ? train(model, train_set, test, job, t) : NAN;
    if (trek_error_status() == TREK_OK && !trek_stop_requested()) {
        if (first)
            predict_one(model, trek_loader_dataset(test));
        double again = t->save ? save_and_reload(model, t->save, test, job) : accuracy;
        if (trek_error_status() == TREK_OK && again != accuracy)
            trek_fail(TREK_ERR_STATE, "the reloaded model's accuracy is %.4f, not %.4f", again, accuracy);
    }
    if (timeline && first && trek_timeline_save(timeline, o->trace) == TREK_OK)
        printf("trace written to %s\n", o->trace);
    if (trek_error_status() == TREK_OK && first && !trek_stop_requested())
        printf("test accuracy %.4f\n", accuracy);
    trek_loader_free(&test);
    trek_loader_free(&train_set);
    trek_graph_free(&model);
    trek_timeline_free(&timeline);
    trek_comm_free(&job);
}

int main(int argc, char **argv)
{
    options o = { .common = { .epochs = 10, .batch_size = 64, .lr = 1e-3, .seed = 1, .save = "mnist.safetensors" } };
    const argument own[] = {
        { "--trace", "FILE", "writes a timeline to this file, for chrome://tracing", .text = &o.trace },
    };
    training_read(argc, argv, "LeNet learns MNIST.", &o.common, own, 1);
    if (o.trace && !argument_can_be_written(o.trace))
        return 1;
    training_stop_by_signals();
    run(&o);
    return training_end();
}

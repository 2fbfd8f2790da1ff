/* SPDX-License-Identifier: Apache-2.0 */
/* A residual network (He and others, 2016) learns CIFAR-10 from images that are cropped, mirrored and normalised again in each
 * epoch: a graph with its own loader and loss, which its ranks run by themselves.
 *
 *   cifar10 --help                 its options
 *   trek-run -n 2 ./cifar10 ...      the same on two processes
 *
 * --data: a folder with CIFAR-10's binary version (data_batch_1.bin ..., test_batch.bin); default: cifar10 in TREK_DATA, where
 * that is, else images of ten patterns are made. --depth 6 n + 2: 20 is the paper's smallest, 91 to 92 % after
 * --epochs 200 --lr 0.1. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "training.h"

enum { CLASSES = 10, SIDE = 32, PIXELS = SIDE * SIDE };

typedef struct options {
    training common;
    int depth, width, samples, workers;
} options;

/* --- images -------------------------------------------------------------------------------- */

/* Whether the pattern has a mark at a place: stripes, squares, rings, which a mirror does not change into each other. */
static bool marked(int64_t pattern, int y, int x, int shift)
{
    int across = x + shift, down = y + shift, far = (x - 16) * (x - 16) + (y - 16) * (y - 16);
    switch (pattern) {
    case 0: return across / 4 % 2;
    case 1: return down / 4 % 2;
    case 2: return (across / 4 + down / 4) % 2;
    case 3: return far < 64 + 8 * shift;
    default: return far > 49 && far < 144 + 8 * shift;
    }
}

/* Images for machines without data: five patterns in two colours, and noise. Sample i follows from (seed, i) alone. */
static trek_dataset *made_images(int64_t n, uint64_t seed)
{
    trek_tensor *image = trek_tensor_empty(trek_dims(n, 3, SIDE, SIDE), TREK_F32, trek_cpu(0));
    trek_tensor *label = trek_tensor_empty(trek_dims(n), TREK_I64, trek_cpu(0));
    float *to = image ? trek_tensor_data(image) : NULL;
    int64_t *classes = label ? trek_tensor_data(label) : NULL;
    for (int64_t i = 0; to && classes && i < n; i++) {
        uint64_t random = (seed * 1000003 + (uint64_t)i) * 0x9e3779b97f4a7c15u + 1;
        classes[i] = i % CLASSES;
        for (int k = 0; k < 3 * PIXELS; k++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            bool warm = classes[i] < CLASSES / 2, mark = marked(classes[i] % 5, k % PIXELS / SIDE, k % SIDE,
                                                                (int)(i / CLASSES % 8));
            double bright = mark ? (warm == (k < PIXELS) ? 0.8 : 0.5) : 0.3;
            to[i * 3 * PIXELS + k] = (float)(bright + 0.4 * ((double)(random >> 40) * 0x1p-24 - 0.5));
        }
    }
    trek_dataset *set = trek_dataset_tensors((const char *const[]){ "image", "label" }, (trek_tensor *[]){ image, label }, 2);
    trek_tensor_release(image);
    trek_tensor_release(label);
    return set;
}

/* What is done to an image; those of training are moved by up to four pixels and mirrored. */
static trek_dataset *prepared(trek_dataset *images, bool training)
{
    const trek_image_pad_opts four = { .left = 4, .top = 4, .right = 4, .bottom = 4 };
    trek_transform *last = trek_transform_normalize((double[]){ 0.4914, 0.4822, 0.4465 }, (double[]){ 0.2470, 0.2435, 0.2616 },
                                                    3);
    trek_transform *chain = !training ? last : trek_transform_chain((trek_transform *[]){
        trek_transform_random_crop(SIDE, SIDE, &four), trek_transform_random_horizontal_flip(0.5), last }, 3);
    return trek_dataset_transform(images, "image", chain, 0);
}

/* --- the network ------------------------------------------------------------------------------ */

static trek_module *conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, trek_device device)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel }, .stride = { stride },
                                                    .padding = { kernel / 2, kernel / 2 }, .no_bias = true, .device = device });
}

/* relu(main(x) + skip(x)), with two convolutions in main. */
static void add_block(trek_flow *flow, int64_t in, int64_t out, int64_t stride, trek_device device)
{
    trek_module *main = trek_nn_sequential((trek_module *[]){ conv(in, out, 3, stride, device),
        trek_nn_batch_norm2d(out, device), trek_nn_relu(), conv(out, out, 3, 1, device), trek_nn_batch_norm2d(out, device) }, 5);
    if (in == out)
        trek_flow_also(flow, main);
    else
        trek_flow_also_with(flow, trek_nn_sequential((trek_module *[]){ conv(in, out, 1, stride, device),
                                                                        trek_nn_batch_norm2d(out, device) }, 2), main);
    trek_flow_through(flow, trek_nn_relu());
}

/* Called for each rank. */
static trek_graph *build_model(trek_device device, void *arg)
{
    const options *o = arg;
    int64_t in = o->width;
    trek_flow *flow = trek_flow_from(conv(3, in, 3, 1, device)); /* [n, 3, 32, 32] -> [n, width, 32, 32] */
    trek_flow_through(flow, trek_nn_batch_norm2d(in, device));
    trek_flow_through(flow, trek_nn_relu());
    for (int stage = 0; stage < 3; stage++)                      /* ... -> [n, 4 width, 8, 8] */
        for (int b = 0; b < (o->depth - 2) / 6; b++) {
            int64_t out = (int64_t)o->width << stage;
            add_block(flow, in, out, in == out ? 1 : 2, device);
            in = out;
        }
    trek_flow_through(flow, trek_nn_adaptive_avg_pool2d(1, 1));
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(in, CLASSES, device));
    return trek_flow_build(flow);
}

/* --- training ------------------------------------------------------------------------------------ */

/* The mean loss of a batch, on whatever rank has it. */
static trek_var *loss_of(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(logits, trek_batch_get(batch, "label"));
}

/* Share of the set that is right, over all ranks and processes. */
static double evaluate(trek_graph *model, trek_loader *test)
{
    trek_metric *accuracy = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_ACCURACY, .classes = CLASSES });
    trek_graph_train(model, false);
    trek_no_grad_begin();
    trek_loader_start(test, 0);
    for (trek_batch *batch; (batch = trek_loader_next(test)); )
        if (trek_batch_size(batch) > 0) /* else this process has no part of it */
            trek_metric_update(accuracy, trek_graph_forward(model, trek_batch_get(batch, "image")),
                               trek_batch_get(batch, "label"));
    trek_no_grad_end();
    trek_graph_train(model, true);
    double value = trek_metric_compute(accuracy, model);
    trek_metric_free(&accuracy);
    return value;
}

/* All epochs, or what is left of them; the accuracy in the end. */
static double train(trek_graph *model, trek_loader *set, trek_loader *test, const training *t, bool first)
{
    bool resumed;
    int64_t epoch = training_resume(t, model, set, &resumed), done = 0;
    double accuracy = epoch < t->epochs ? NAN : evaluate(model, test);
    trek_progress *progress = first && !t->quiet ? trek_progress_new(t->epochs, trek_loader_batches(set)) : NULL;
    for (; epoch < t->epochs && trek_error_status() == TREK_OK && !trek_stop_requested(); epoch++, resumed = false) {
        if (!resumed)
            trek_graph_start(model, epoch);
        for (trek_batch *batch; !trek_stop_requested() && (batch = trek_graph_next(model)); ) {
            double loss = trek_var_item(trek_graph_train_batch(model, batch)); /* forward, loss, backward on each rank */
            trek_graph_step(model);
            trek_loader_position(set, NULL, &done);
            trek_progress_update(progress, epoch, done, loss);
        }
        if (t->checkpoint && trek_error_status() == TREK_OK)
            trek_checkpoint_save(model, set, t->checkpoint);
        if (trek_stop_requested() || trek_error_status() != TREK_OK)
            break;
        accuracy = evaluate(model, test);
        trek_progress_epoch(progress, epoch, "accuracy", accuracy);
    }
    trek_progress_free(&progress);
    return accuracy;
}

static void run(options *o, trek_comm *job)
{
    const training *t = &o->common;
    const char *folder = training_data(t, "cifar10", "test_batch.bin");
    trek_dataset *images = folder ? trek_dataset_cifar10(folder, TREK_DATA_SPLIT_TRAIN) : made_images(o->samples, 1);
    trek_dataset *tests = folder ? trek_dataset_cifar10(folder, TREK_DATA_SPLIT_TEST) : made_images(o->samples / 4, 2);
    trek_loader *set = trek_loader_new(prepared(images, true), &(trek_loader_opts){ .batch_size = t->batch_size, .shuffle = true,
        .drop_last = true, .seed = t->seed, .workers = o->workers });
    trek_loader *test = trek_loader_new(prepared(tests, false), &(trek_loader_opts){ .batch_size = 250 });
    trek_seed(t->seed);
    trek_graph *model = build_model(trek_device_default(), o);
    trek_schedule rates = set ? trek_onecycle_lr(t->lr, t->epochs * trek_loader_batches(set), NULL) : trek_constant_lr(t->lr);
    trek_trainer_setup(model, &(trek_trainer_opts){
        .build_replica = build_model,
        .arg           = o,
        .ranks         = t->ranks,
        .optimizer     = trek_sgd(&(trek_sgd_opts){ .lr = t->lr, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true }),
        .schedule      = rates,
    });
    trek_graph_set_loader(model, set, "image");
    trek_graph_set_loss(model, loss_of, NULL);
    bool first = trek_comm_rank(job) == 0;
    double accuracy = trek_error_status() == TREK_OK ? train(model, set, test, t, first) : NAN;
    if (trek_error_status() == TREK_OK && first && !trek_stop_requested()) {
        printf("test accuracy %.4f\n", accuracy);
        if (t->save)
            trek_state_save(trek_graph_module(model), t->save);
    }
    trek_graph_free(&model);
    trek_loader_free(&set);
    trek_loader_free(&test);
}

int main(int argc, char **argv)
{
    options o = { .common = { .shared = "cifar10", .epochs = 5, .batch_size = 100, .lr = 0.05, .seed = 1 }, .depth = 8,
                  .width = 8, .samples = 2000,
                  .workers = 1 };
    const argument own[] = {
        { "--depth", "N", "layers, 6 n + 2", .whole = &o.depth, .least = 8, .most = 1202 },
        { "--width", "N", "channels of the first stage; the paper has 16", .whole = &o.width, .least = 1, .most = 4096 },
        { "--samples", "N", "images that are made where there is no --data", .whole = &o.samples, .least = 100, .most = 1e6 },
        { "--workers", "N", "threads that prepare images", .whole = &o.workers, .least = 1, .most = 64 },
    };
    training_read(argc, argv, "A residual network learns CIFAR-10.", &o.common, own, 4);
    if (o.depth % 6 != 2)
        return fprintf(stderr, "--depth takes 8, 14, 20, ..., not %d\n", o.depth), 2;
    training_stop_by_signals();
    trek_comm *job = trek_comm_init(NULL); /* the processes, where there are several; else a world of one */
    if (job)
        run(&o, job);
    trek_comm_free(&job);
    return training_end();
}

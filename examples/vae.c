/* SPDX-License-Identifier: Apache-2.0 */
/* A variational autoencoder (Kingma and Welling, 2013) learns digits and draws new ones, on one rank or several.
 *
 *   vae [--epochs N] [--batch-size N] [--lr X] [--ranks N] [--latent N] [--samples N] [--images FOLDER] ...
 *   trek-run -n 2 ./vae ...        the same on two processes
 *
 * The images' folder gets reconstructed.png (pairs of rows: what went in, what came out) and drawn.png (from noise). A run that
 * is watched (--runs FOLDER, docs/watching.md) gets what was drawn after each epoch, too. */
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "digits.h"
#include "grid.h"
#include "training.h"

enum { HIDDEN = 256, PIXELS = 28 * 28, COLUMNS = 8, SHOWN = 32 };

typedef struct options {
    training common;
    int latent, samples;
    const char *images, *runs;
} options;

/* --- the model ------------------------------------------------------------------------ */

/* z = mean + e^(log_variance / 2) noise in training, else the mean. A module of one's own without parameters. */
static trek_var *sample_forward(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *log_variance = inputs[0], *mean = inputs[1];
    (void)n;
    if (!self->training)
        return mean;
    trek_var *deviation = trek_exp(trek_mul_scalar(log_variance, 0.5));
    return trek_add(mean, trek_mul(deviation, trek_randn_like(deviation)));
}

static const char *const sample_inputs[] = { "mean", NULL };
static const trek_module_class sample_class = { .name = "sample", .size = sizeof(trek_module), .forward_many = sample_forward,
                                                .input_names = sample_inputs };

static trek_graph *build_model(trek_device device, void *arg)
{
    const options *o = arg;
    trek_flow *flow = trek_flow_from(trek_nn_sequential((trek_module *[]){
        trek_nn_flatten(), trek_nn_linear(PIXELS, HIDDEN, device), trek_nn_relu() }, 3));
    trek_flow_label(flow, "encoder");
    trek_flow_fork(flow, trek_nn_linear(HIDDEN, o->latent, device));     /* next to the stream */
    trek_flow_label(flow, "mean_head");
    trek_flow_tag(flow, "mean");
    trek_flow_through(flow, trek_nn_linear(HIDDEN, o->latent, device));
    trek_flow_label(flow, "variance_head");
    trek_flow_tag(flow, "log_variance");
    trek_flow_through(flow, trek_module_new(&sample_class));
    trek_flow_using(flow, "mean");
    trek_flow_through(flow, trek_nn_sequential((trek_module *[]){
        trek_nn_linear(o->latent, HIDDEN, device), trek_nn_relu(),
        trek_nn_linear(HIDDEN, PIXELS, device), trek_nn_unflatten(1, trek_dims(1, 28, 28)) }, 4));
    trek_flow_label(flow, "decoder");                                    /* its result: logits of the pixels */
    return trek_flow_build(flow);
}

/* The negative evidence lower bound of an image, in nats: what the pixels cost, and what z costs beyond the prior. */
static trek_var *bound(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)arg;
    trek_var *mean = trek_graph_tagged(graph, "mean"), *log_variance = trek_graph_tagged(graph, "log_variance");
    trek_var *pixels = trek_bce_with_logits_with(logits, trek_batch_get(batch, "image"),
                                                 &(trek_bce_opts){ .reduction = TREK_REDUCTION_SUM });
    trek_var *terms = trek_sub(trek_add(trek_exp(log_variance), trek_square(mean)), trek_add_scalar(log_variance, 1));
    trek_var *divergence = trek_mul_scalar(trek_sum(terms, trek_dims_all(), false), 0.5);
    return trek_div_scalar(trek_add(pixels, divergence), (double)trek_batch_size(batch));
}

/* --- training -------------------------------------------------------------------------- */

/* Mean over a set, with z at its mean. */
static double evaluate(trek_graph *model, trek_loader *test)
{
    double sum = 0, seen = 0;
    trek_graph_train(model, false);
    trek_no_grad_begin();
    trek_loader_start(test, 0);
    for (trek_batch *batch; (batch = trek_loader_next(test)); ) {
        trek_var *logits = trek_graph_forward(model, trek_batch_get(batch, "image"));
        sum += trek_var_item(bound(model, logits, batch, NULL)) * (double)trek_batch_size(batch);
        seen += (double)trek_batch_size(batch);
    }
    trek_no_grad_end();
    trek_graph_train(model, true);
    return sum / seen;
}

/* What the decoder makes of codes, [n, 1, 28, 28] in [0, 1]: of a model in eval mode. */
static trek_var *decoded(trek_graph *model, trek_tensor *codes)
{
    return trek_sigmoid(trek_forward(trek_graph_at(model, "decoder"), trek_var_from(codes)));
}

/* Codes on a square: two of their numbers go from -2 to 2. Without chance, so that training stays what it is. */
static trek_tensor *square_of_codes(const options *o)
{
    enum { SIDE = 8, N = SIDE * SIDE };
    float *z = calloc((size_t)N * (size_t)o->latent, sizeof *z);
    for (int k = 0; z && k < N; k++) {
        z[k * o->latent + o->latent - 1] = -2 + 4 * (float)(k / SIDE) / (SIDE - 1);
        z[k * o->latent] = -2 + 4 * (float)(k % SIDE) / (SIDE - 1);
    }
    trek_tensor *codes = z ? trek_tensor_from_data(z, trek_dims(N, o->latent), TREK_F32, trek_device_default()) : NULL;
    free(z);
    return codes;
}

static void show(const options *o, trek_graph *model, trek_monitor *monitor)
{
    trek_scope scope = trek_scope_begin();
    trek_graph_train(model, false);
    trek_no_grad_begin();
    trek_var *drawn = decoded(model, square_of_codes(o));
    if (drawn)
        trek_monitor_image(monitor, "drawn", -1, trek_var_data(drawn));
    trek_no_grad_end();
    trek_graph_train(model, true);
    trek_scope_end(scope);
}

static double train(const options *o, trek_graph *model, trek_loader *loader, trek_loader *test, trek_progress *progress,
                    trek_monitor *monitor)
{
    bool resumed;
    double loss = NAN;
    int64_t epoch = training_resume(&o->common, model, loader, &resumed);
    for (; epoch < o->common.epochs; epoch++, resumed = false) {
        int64_t done = 0;
        if (resumed)
            trek_loader_position(loader, NULL, &done);
        else
            trek_graph_start(model, epoch);
        for (trek_batch *batch; !trek_stop_requested() && (batch = trek_graph_next(model)); trek_graph_step(model)) {
            trek_var *mean = trek_graph_train_batch(model, batch);
            trek_progress_update(progress, epoch, ++done, mean ? trek_var_item(mean) : NAN);
        }
        if (o->common.checkpoint)
            trek_checkpoint_save(model, loader, o->common.checkpoint);
        if (trek_stop_requested() || trek_error_status() != TREK_OK)
            break;
        loss = evaluate(model, test);
        if (monitor)
            show(o, model, monitor);
        trek_progress_epoch(progress, epoch, "test bound", loss);
    }
    return loss;
}

/* --- what it draws ---------------------------------------------------------------------- */

static void draw(const options *o, trek_graph *model, trek_dataset *test)
{
    char path[4096];
    int64_t first[SHOWN];
    trek_tensor *fields[2] = { NULL };
    for (int64_t k = 0; k < SHOWN; k++)
        first[k] = k;
    trek_scope scope = trek_scope_begin();
    trek_graph_train(model, false);
    trek_no_grad_begin();
    if (trek_dataset_get(test, first, SHOWN, fields) == TREK_OK) { /* "image" is field 0 */
        trek_var *images = trek_var_from(fields[trek_dataset_field(test, "image")]);
        trek_tensor_release(fields[trek_dataset_field(test, "label")]);
        trek_var *out = trek_sigmoid(trek_graph_infer(model, &images, 1, NULL, NULL, 0));
        trek_var *rows[] = { trek_unflatten(images, 0, trek_dims(-1, COLUMNS)), trek_unflatten(out, 0, trek_dims(-1, COLUMNS)) };
        snprintf(path, sizeof path, "%s/reconstructed.png", o->images);
        grid_write(path, trek_flatten(trek_stack(rows, 2, 1), 0, 2), COLUMNS, 0, 1); /* a row of each, in turn */
    }
    snprintf(path, sizeof path, "%s/drawn.png", o->images);
    trek_tensor *noise = trek_tensor_randn(trek_dims(o->samples, o->latent), TREK_F32, trek_device_default());
    grid_write(path, decoded(model, noise), COLUMNS, 0, 1);
    trek_no_grad_end();
    trek_scope_end(scope);
}

static void run(const options *o)
{
    trek_seed(o->common.seed);
    trek_comm *job = trek_comm_init(NULL); /* the processes, where there are several; else a world of one */
    bool first = trek_comm_rank(job) == 0;
    digits data = digits_open(o->common.data, 4000, 1000);
    trek_loader *loader = trek_loader_new(data.train, &(trek_loader_opts){ .batch_size = o->common.batch_size, .shuffle = true,
                                                                           .seed = o->common.seed });
    trek_loader *test = trek_loader_new(data.test, &(trek_loader_opts){ .batch_size = 500, .whole = true });
    trek_graph *model = build_model(trek_device_default(), (void *)o);
    trek_trainer_setup(model, &(trek_trainer_opts){
        .build_replica = build_model, .arg = (void *)o, .ranks = o->common.ranks,
        .optimizer = trek_adam(&(trek_adam_opts){ .lr = o->common.lr }) });
    trek_graph_set_loader(model, loader, "image");
    trek_graph_set_loss(model, bound, NULL);
    trek_progress *progress = first && !o->common.quiet ? trek_progress_new(o->common.epochs, trek_loader_batches(loader)) : NULL;
    trek_monitor *monitor = first && o->runs ? trek_monitor_new(&(trek_monitor_opts){ .folder = o->runs,
                                                                                     .epochs = o->common.epochs }) : NULL;
    if (monitor)
        trek_monitor_attach(monitor, model);
    double loss = train(o, model, loader, test, progress, monitor);
    trek_monitor_free(&monitor);
    trek_progress_free(&progress);
    if (trek_error_status() == TREK_OK && first && !trek_stop_requested()) {
        if (o->common.save)
            trek_state_save(trek_graph_module(model), o->common.save);
        if (o->images)
            draw(o, model, data.test);
        if (isfinite(loss)) /* else nothing was left to train */
            printf("test bound %.2f nats an image\n", loss);
    }
    trek_loader_free(&test);
    trek_loader_free(&loader);
    trek_graph_free(&model);
    trek_comm_free(&job);
}

int main(int argc, char **argv)
{
    options o = { .common = { .epochs = 20, .batch_size = 64, .lr = 1e-3, .seed = 1 }, .latent = 16, .samples = 64 };
    const argument own[] = {
        { "--latent", "N", "numbers that an image becomes", .whole = &o.latent, .least = 1, .most = 4096 },
        { "--samples", "N", "digits to draw, in rows of 8", .whole = &o.samples, .least = COLUMNS, .most = 1024 },
        { "--images", "FOLDER", "where reconstructed.png and drawn.png go", .text = &o.images },
        { "--runs", "FOLDER", "where the run is written that trek-top and the live page show", .text = &o.runs },
    };
    training_read(argc, argv, "A variational autoencoder learns digits and draws new ones.", &o.common, own, 4);
    o.samples -= o.samples % COLUMNS;
    if (o.images)
        mkdir(o.images, 0777); /* if it cannot be made the write says so */
    training_stop_by_signals();
    run(&o);
    return training_end();
}

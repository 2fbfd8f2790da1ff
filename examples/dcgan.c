/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a convolutional GAN (Radford, Metz and Chintala, 2015) that draws digits: two graphs, two optimizers, alternating steps,
 * on one rank or several.
 *
 *   dcgan [--epochs N] [--batch-size N] [--lr X] [--ranks N] [--images FOLDER] [--checkpoint FILE] [--expect X] ...
 *   trek-run -n 2 ./dcgan ...        the same on two processes
 *
 * After each epoch the program writes drawn-EPOCH.png to FOLDER, always of the same noise. It saves the run in FILE (the
 * discriminator) and FILE.generator. --expect: fails if the score of the generated digits at the end, about the number of
 * distinct digits among them, is lower. */
#include <math.h>
#include <sys/stat.h>

#include "digits.h"
#include "grid.h"
#include "score.h"
#include "training.h"

enum { NOISE = 32, WIDTH = 24, SHOWN = 64, COLUMNS = 8, SCORED = 1000 };

typedef struct options {
    training common;
    const char *images;
    int digits;
    double expect;
} options;

/* --- the two models ------------------------------------------------------------------------ */

static trek_module *up(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, trek_device device)
{
    return trek_nn_conv_transpose2d_with(&(trek_conv_transpose2d_opts){
        .in = in, .out = out, .kernel = { kernel, kernel }, .stride = { stride, stride }, .padding = { padding, padding },
        .no_bias = out > 1, .device = device });
}

static trek_module *down(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, trek_device device)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel, kernel },
                                                    .stride = { stride, stride }, .padding = { padding, padding },
                                                    .device = device });
}

/* Noise [n, NOISE, 1, 1] -> images [n, 1, 28, 28] in [-1, 1]. The norms are over the batch of all ranks. */
static trek_graph *build_generator(trek_device device, void *arg)
{
    (void)arg;
    return trek_flow_build(trek_flow_from(trek_nn_sequential((trek_module *[]){
        up(NOISE, 2 * WIDTH, 7, 1, 0, device), trek_nn_sync_batch_norm(2 * WIDTH, device), trek_nn_relu(), /* 7 x 7 */
        up(2 * WIDTH, WIDTH, 4, 2, 1, device), trek_nn_sync_batch_norm(WIDTH, device), trek_nn_relu(),     /* 14 x 14 */
        up(WIDTH, 1, 4, 2, 1, device), trek_nn_tanh() }, 8)));
}

/* Images -> one logit each, of being real. A norm here, too, keeps it from winning: the generator then learns all classes. */
static trek_graph *build_discriminator(trek_device device, void *arg)
{
    (void)arg;
    return trek_flow_build(trek_flow_from(trek_nn_sequential((trek_module *[]){
        down(1, WIDTH, 4, 2, 1, device), trek_nn_leaky_relu(0.2),
        down(WIDTH, 2 * WIDTH, 4, 2, 1, device), trek_nn_sync_batch_norm(2 * WIDTH, device), trek_nn_leaky_relu(0.2),
        trek_nn_flatten(), trek_nn_linear(2 * WIDTH * 49, 1, device) }, 7)));
}

/* --- training -------------------------------------------------------------------------------- */

typedef struct gan {
    trek_graph *generator, *discriminator;
    trek_tensor *shown;        /* the noise that is drawn from each time */
    trek_module *reader;       /* what counts the classes that are drawn */
} gan;

static trek_var *noise(int64_t n)
{
    return trek_var_from(trek_tensor_randn(trek_dims(n, NOISE, 1, 1), TREK_F32, trek_device_default()));
}

/* Mean of what it costs to call each of these images real (1) or drawn (0). */
static trek_var *judge(gan *g, trek_var *images, double real)
{
    trek_var *logits = trek_graph_forward(g->discriminator, images);
    trek_tensor *wanted = logits ? trek_tensor_full(trek_var_shape(logits), real, TREK_F32, trek_var_device(logits)) : NULL;
    return trek_bce_with_logits(logits, trek_var_from(wanted));
}

/* One step of each; the discriminator's loss. Each backward reaches the parameters of its own graph alone. */
static double train_step(gan *g, trek_var *real)
{
    int64_t n = trek_var_size(real, 0);
    trek_no_grad_begin();
    trek_var *fake = trek_graph_forward(g->generator, noise(n));
    trek_no_grad_end();
    trek_var *loss = judge(g, real, 0.9); /* not 1: a discriminator that is never sure has more to teach */
    trek_graph_backward(g->discriminator, loss); /* passes add up until the step */
    trek_graph_backward(g->discriminator, judge(g, fake, 0));
    trek_graph_step(g->discriminator);
    trek_graph_backward(g->generator, judge(g, trek_graph_forward(g->generator, noise(n)), 1));
    trek_graph_step(g->generator);
    return loss ? trek_var_item(loss) : NAN;
}

static void train_epoch(gan *g, trek_loader *loader, int64_t epoch, bool resumed, trek_progress *progress)
{
    int64_t done = 0;
    if (resumed)
        trek_loader_position(loader, NULL, &done);
    else
        trek_loader_start(loader, epoch);
    for (trek_batch *batch; !trek_stop_requested() && (batch = trek_loader_next(loader)); ) {
        double loss = train_step(g, score_pixels(trek_batch_get(batch, "image")));
        trek_progress_update(progress, epoch, ++done, loss);
    }
}

/* --- what it draws ------------------------------------------------------------------------------ */

static trek_var *draw(gan *g, trek_var *z)
{
    trek_graph_train(g->generator, false);
    trek_var *images = trek_graph_infer(g->generator, &z, 1, NULL, NULL, 0);
    trek_graph_train(g->generator, true);
    return images;
}

static double score(gan *g)
{
    trek_scope scope = trek_scope_begin();
    double value = score_of(g->reader, draw(g, noise(SCORED)));
    trek_scope_end(scope);
    return value;
}

static void show(const options *o, gan *g, int64_t epoch)
{
    char path[4096];
    trek_scope scope = trek_scope_begin();
    snprintf(path, sizeof path, "%s/drawn-%d.png", o->images, (int)epoch + 1);
    grid_write(path, draw(g, trek_var_constant(g->shown)), COLUMNS, -1, 1);
    trek_scope_end(scope);
}

/* --- the program ---------------------------------------------------------------------------------- */

static int64_t go_on(const options *o, gan *g, trek_loader *loader, bool *resumed)
{
    char path[4096];
    int64_t epoch = training_resume(&o->common, g->discriminator, loader, resumed);
    snprintf(path, sizeof path, "%s.generator", o->common.checkpoint ? o->common.checkpoint : "");
    if (file_is_there(o->common.checkpoint) && trek_checkpoint_load(g->generator, NULL, path) == TREK_OK &&
        trek_graph_steps(g->generator) != trek_graph_steps(g->discriminator))
        trek_fail(TREK_ERR_FORMAT, "%s and %s were not saved at the same time", o->common.checkpoint, path);
    return epoch;
}

static void keep(const options *o, gan *g, trek_loader *loader)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.generator", o->common.checkpoint);
    trek_checkpoint_save(g->generator, NULL, path);
    trek_checkpoint_save(g->discriminator, loader, o->common.checkpoint);
}

static double train(const options *o, gan *g, trek_loader *loader, trek_comm *job)
{
    bool first = trek_comm_rank(job) == 0, resumed;
    double reached = NAN;
    trek_progress *progress = first && !o->common.quiet ? trek_progress_new(o->common.epochs, trek_loader_batches(loader)) : NULL;
    for (int64_t epoch = go_on(o, g, loader, &resumed); epoch < o->common.epochs; epoch++, resumed = false) {
        train_epoch(g, loader, epoch, resumed, progress);
        if (!trek_stop_requested()) {
            reached = score(g);
            trek_progress_epoch(progress, epoch, "score", reached);
            if (first && o->images)
                show(o, g, epoch);
        }
        if (o->common.checkpoint)
            keep(o, g, loader);
        if (trek_stop_requested() || trek_error_status() != TREK_OK)
            break;
    }
    trek_progress_free(&progress);
    return reached;
}

static void run(const options *o)
{
    trek_seed(o->common.seed);
    trek_comm *job = trek_comm_init(NULL); /* of the processes of the job; alone a world of one */
    digits data = digits_open(o->common.data, o->digits, 1000);
    trek_loader *loader = trek_loader_new(data.train, &(trek_loader_opts){
        .batch_size = o->common.batch_size, .shuffle = true, .seed = o->common.seed, .drop_last = true });
    gan g = { .generator = build_generator(trek_device_default(), NULL),
              .discriminator = build_discriminator(trek_device_default(), NULL),
              .shown = trek_tensor_randn(trek_dims(SHOWN, NOISE, 1, 1), TREK_F32, trek_device_default()),
              .reader = score_reader(data.test) };
    trek_trainer_opts opts = { .ranks = o->common.ranks, .build_replica = build_generator,
                               .optimizer = trek_adam(&(trek_adam_opts){ .lr = o->common.lr, .beta1 = 0.5 }) };
    trek_trainer_setup(g.generator, &opts);
    opts.build_replica = build_discriminator;
    trek_trainer_setup(g.discriminator, &opts);
    double reached = train(o, &g, loader, job);
    if (trek_error_status() == TREK_OK && trek_comm_rank(job) == 0 && isfinite(reached) && !trek_stop_requested()) {
        if (o->common.save)
            trek_state_save(trek_graph_module(g.generator), o->common.save);
        printf("generated digits score %.2f of 10\n", reached);
        if (reached < o->expect)
            trek_fail(TREK_ERR_STATE, "that is less than %.2f", o->expect);
    }
    trek_module_free(&g.reader);
    trek_tensor_release(g.shown);
    trek_dataset_free(&data.test);
    trek_loader_free(&loader);
    trek_graph_free(&g.discriminator);
    trek_graph_free(&g.generator);
    trek_comm_free(&job);
}

int main(int argc, char **argv)
{
    options o = { .common = { .epochs = 10, .batch_size = 32, .lr = 1e-3, .seed = 1 }, .digits = 4000 };
    const argument own[] = {
        { "--images", "FOLDER", "folder for drawn-EPOCH.png", .text = &o.images },
        { "--digits", "N", "number of generated digits for training, without --data", .whole = &o.digits, .least = 64 },
        { "--expect", "X", "fails if the score of the generated digits, about the number of distinct digits, is lower",
          .number = &o.expect,
          .least = 0, .most = 10 },
    };
    training_read(argc, argv, "Trains a convolutional GAN that draws digits.", &o.common, own, 3);
    if (o.images)
        mkdir(o.images, 0777); /* if it cannot be made the write says so */
    training_stop_by_signals();
    run(&o);
    return training_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A GAN: a generator learns to draw points from eight clusters on a circle, from a
 * discriminator that learns to tell them from real ones. Two models, two optimizers,
 * alternating steps, any number of ranks, with trek_ddp.
 *
 *   gan [--ranks N] [--steps N] [--batch-size N] [--seed N] [--expect MODES]
 *
 * --ranks: rank threads of this process. Under a launcher (trek-run -n 2 gan) every
 * process is a rank instead. A point depends on its place in the global batch, not on the
 * rank that makes it, so that all numbers of ranks learn the same, to rounding.
 * --expect: fails unless so many clusters are covered in the end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/arguments.h"
#include "trek.h"

enum { MODES = 8, NOISE = 4, WIDTH = 64, SAMPLES = 1000 };
static const double spread = 0.05; /* of a cluster; the circle has radius 1 */

typedef struct options {
    int ranks, steps, batch_size, expect;
    uint64_t seed;
} options;

/* What all rank threads share. */
typedef struct job {
    options o;
    trek_ranks *ranks; /* NULL: each process is a rank */
    int covered;       /* rank 0's, in the end */
} job;

/* --- points -------------------------------------------------------------------------- */

/* Number k of a stream, uniform in (0, 1). */
static double uniform(uint32_t stream, uint32_t k)
{
    uint32_t h = stream * 0x9e3779b9u ^ (k + 0x7f4a7c15u) * 0x85ebca6bu;
    h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
    return ((double)(h >> 8) + 0.5) * 0x1p-24;
}

static double normal(uint32_t stream, uint32_t k)
{
    return sqrt(-2 * log(uniform(stream, 2 * k))) * cos(2 * acos(-1.0) * uniform(stream, 2 * k + 1));
}

/* Rows [first, first + count) of a batch of real points, and of the generator's inputs. */
static trek_var *real_points(uint32_t stream, int64_t first, int64_t count)
{
    float *points = malloc((size_t)(2 * count + 1) * sizeof *points);
    for (int64_t i = 0; points && i < count; i++) {
        uint32_t k = (uint32_t)(first + i);
        double angle = 2 * acos(-1.0) * floor(MODES * uniform(stream, k)) / MODES;
        points[2 * i] = (float)(cos(angle) + spread * normal(stream + 1, 2 * k));
        points[2 * i + 1] = (float)(sin(angle) + spread * normal(stream + 1, 2 * k + 1));
    }
    trek_var *x = points ? trek_var_from(trek_tensor_from_data(points, trek_dims(count, 2), TREK_F32, trek_cpu(0))) : NULL;
    free(points);
    return x;
}

static trek_var *noise(uint32_t stream, int64_t first, int64_t count)
{
    float *values = malloc((size_t)(NOISE * count + 1) * sizeof *values);
    for (int64_t i = 0; values && i < NOISE * count; i++)
        values[i] = (float)normal(stream, (uint32_t)(NOISE * first + i));
    trek_var *z = values ? trek_var_from(trek_tensor_from_data(values, trek_dims(count, NOISE), TREK_F32, trek_cpu(0))) : NULL;
    free(values);
    return z;
}

/* --- the two models ---------------------------------------------------------------------- */

static trek_module *network(int64_t in, int64_t out)
{
    trek_device device = trek_cpu(0);
    return trek_nn_sequential(5, (trek_module *[]){
        trek_nn_linear(in, WIDTH, device), trek_nn_leaky_relu(0.2),
        trek_nn_linear(WIDTH, WIDTH, device), trek_nn_leaky_relu(0.2),
        trek_nn_linear(WIDTH, out, device) });
}

/* A model as this rank has it: its replica, joined with the other ranks', and an optimizer. */
typedef struct player {
    trek_module *model;
    trek_ddp *ddp;
    trek_optimizer *optimizer;
} player;

static player player_new(int64_t in, int64_t out, double lr, trek_comm *comm)
{
    player p = { .model = network(in, out) };
    p.ddp = trek_ddp_wrap_process(p.model, comm, NULL); /* the model is its own; all take rank 0's values */
    trek_params *params = trek_module_params(trek_ddp_module(p.ddp));
    p.optimizer = trek_optimizer_new(trek_adam((trek_adam_opts){ .lr = lr, .beta1 = 0.5 }), params);
    trek_params_free(&params);
    return p;
}

static void player_free(player *p)
{
    trek_optimizer_free(&p->optimizer);
    trek_ddp_free(&p->ddp);
}

/* This rank's loss is a mean over `count` rows: gradients of all ranks come together by these. */
static void learn(player *p, trek_var *loss, int64_t count)
{
    trek_ddp_backward_weighted(p->ddp, loss, (double)count); /* p's parameters alone get gradients */
    trek_optimizer_step(p->optimizer);
    trek_optimizer_zero_grad(p->optimizer);
}

/* Mean of the loss where all rows should be called real (1), or generated (0). */
static trek_var *judge(trek_module *discriminator, trek_var *points, double real)
{
    trek_var *logits = trek_forward(discriminator, points);
    trek_shape shape = trek_var_shape(logits);
    return trek_bce_with_logits(logits, trek_var_from(trek_tensor_full(real, shape, TREK_F32, trek_cpu(0))));
}

static void train_step(player *generator, player *discriminator, uint32_t stream, int64_t first, int64_t count)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *fake = trek_forward(generator->model, noise(stream, first, count));
    trek_no_grad_end();
    trek_var *real = real_points(stream + 1, first, count);
    learn(discriminator, trek_add(judge(discriminator->model, real, 1), judge(discriminator->model, fake, 0)), count);
    fake = trek_forward(generator->model, noise(stream + 3, first, count));
    learn(generator, judge(discriminator->model, fake, 1), count);
    trek_scope_end(scope);
}

/* --- what it has come to --------------------------------------------------------------------- */

/* How many clusters have at least a quarter of their share of generated points within four
 * standard deviations, and the share of all points that lie in one. */
static int measure(trek_module *generator, double *inside)
{
    float points[2 * SAMPLES];
    int count[MODES] = { 0 }, covered = 0, all = 0;
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *y = trek_forward(generator, noise(1, 0, SAMPLES));
    trek_no_grad_end();
    if (y && trek_tensor_to_host(trek_var_data(y), TREK_F32, points, sizeof points) == TREK_OK)
        for (int i = 0; i < SAMPLES; i++)
            for (int m = 0; m < MODES; m++) {
                double angle = 2 * acos(-1.0) * m / MODES;
                if (hypot(points[2 * i] - cos(angle), points[2 * i + 1] - sin(angle)) < 4 * spread)
                    count[m]++, all++;
            }
    trek_scope_end(scope);
    for (int m = 0; m < MODES; m++)
        covered += count[m] >= SAMPLES / MODES / 4;
    *inside = (double)all / SAMPLES;
    return covered;
}

/* What every rank runs, as a thread or as a process. */
static trek_status train(job *j, trek_comm *comm)
{
    const options *o = &j->o;
    player generator = player_new(NOISE, 2, 1e-3, comm), discriminator = player_new(2, 1, 1e-3, comm);
    int64_t first, count;
    trek_comm_samples(comm, o->batch_size, &first, &count);
    /* An error, this rank's or another's, is there on all ranks after the same step. */
    for (int step = 0; step < o->steps && trek_error_status() == TREK_OK; step++) {
        train_step(&generator, &discriminator, (uint32_t)o->seed + 8 * (uint32_t)step, first, count);
        if (trek_comm_rank(comm) == 0 && ((step + 1) % 500 == 0 || step + 1 == o->steps)) {
            double inside;
            j->covered = measure(generator.model, &inside);
            printf("step %5d  clusters covered %d of %d  points in a cluster %.2f\n", step + 1, j->covered, MODES, inside);
        }
    }
    player_free(&generator);
    player_free(&discriminator);
    return trek_error_status();
}

static trek_status rank_thread(int rank, void *arg)
{
    job *j = arg;
    return train(j, trek_ranks_comm(j->ranks, rank));
}

/* --- the program -------------------------------------------------------------------------------- */

static bool parse(options *o, int argc, char **argv)
{
    const argument list[] = {
        { "--ranks", "N", .whole = &o->ranks, .least = 1, .most = 1024 },
        { "--steps", "N", .whole = &o->steps, .least = 1 },
        { "--batch-size", "N", .whole = &o->batch_size, .least = 1 },
        { "--seed", "N", .seed = &o->seed },
        { "--expect", "MODES", .whole = &o->expect, .least = 0, .most = MODES },
    };
    return arguments_read(argc, argv, list, sizeof list / sizeof *list);
}

int main(int argc, char **argv)
{
    job j = { .o = { .ranks = 2, .steps = 3000, .batch_size = 256, .seed = 100 } };
    if (!parse(&j.o, argc, argv))
        return 2;
    trek_seed(j.o.seed);
    bool first = true;
    if (trek_comm_world_described(NULL) > 1) {
        trek_comm *comm = trek_comm_init(NULL);
        if (comm)
            train(&j, comm);
        first = trek_comm_rank(comm) == 0;
        trek_comm_free(&comm);
    } else if ((j.ranks = trek_ranks_new(NULL, j.o.ranks))) {
        trek_ranks_run(j.ranks, rank_thread, &j);
        trek_ranks_free(&j.ranks);
    }
    trek_status status = trek_error_status();
    if (status != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    if (status == TREK_OK && first && j.covered < j.o.expect)
        fprintf(stderr, "%d clusters are covered, not %d\n", j.covered, j.o.expect);
    return status != TREK_OK || (first && j.covered < j.o.expect);
}

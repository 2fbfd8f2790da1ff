/* SPDX-License-Identifier: Apache-2.0 */
/* What grains cost: the same model trained with whole batches and in grains, in turns, in one process. Printed are the medians of
 * a step of both, and their ratio.
 *
 *   trek-bench-grains [--ranks N] [--batch N] [--grains N] [--turns N] [--ms N] [--cpu 1] [--gpu 1] MODEL...
 *
 * --batch: samples of a step; default: the model's. --grains: how many of it (16). A turn is as many steps as fit into --ms.
 * --cpu 1: the processor time of the whole process, which other programs disturb less; threads must not spin, so TREK_THREADS=1
 * belongs to it. --gpu 1: on the first GPU, where grains are also captured (trek_graph_capture): a third time, and its ratio to
 * that of whole batches. */
#include "bench.h"
#include "tests/support/lenet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CLASSES = 10, MOST_TURNS = 400, WARM = 3 };

/* --- models --- */

typedef struct model {
    const char *name, *what;
    int64_t batch, features, tokens, outputs; /* tokens: of a sample; 0: it is a row of numbers */
    bool one;                /* a sample of tokens has one label */
    trek_graph *(*build)(trek_device device, void *arg);
} model;

static trek_graph *build_lenet(trek_device device, void *arg)
{
    (void)arg;
    return trek_flow_build(lenet(trek_flow_from(trek_nn_unflatten(1, trek_dims(1, 28, 28))), device));
}

static trek_graph *build_mlp(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_linear(784, 256, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(256, CLASSES, device));
    return trek_flow_build(flow);
}

static trek_graph *build_deep(trek_device device, void *arg)
{
    static const int64_t widths[] = { 1024, 2048, 2048, 2048, 2048, 1024 };
    (void)arg;
    trek_flow *flow = NULL;
    for (int k = 0; k < 5; k++) {
        trek_module *linear = trek_nn_linear(widths[k], widths[k + 1], device);
        flow = k == 0 ? trek_flow_from(linear) : trek_flow_through(flow, linear);
        if (k < 4)
            trek_flow_through(trek_flow_through(flow, trek_nn_layer_norm(widths[k + 1], device)), trek_nn_gelu());
    }
    return trek_flow_build(flow);
}

enum { CONTEXT = 128, WORDS = 65 };

static trek_graph *build_gpt(trek_device device, void *arg)
{
    (void)arg;
    return trek_flow_build(trek_flow_from(bench_gpt_new(4, 128, 4, CONTEXT, WORDS, device)));
}

/* Rows of the table of words are small beside the rest, as in models of text. */
static trek_graph *build_words(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_embedding(1000, 64, device));
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(trek_flow_through(flow, trek_nn_linear(32 * 64, 512, device)), trek_nn_relu());
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear(512, 1000, device)));
}

static const model models[] = {
    { "lenet", "LeNet 1-6-16", 64, 784, 0, CLASSES, true, build_lenet },
    { "mlp", "an MLP 784-256-10", 64, 784, 0, CLASSES, true, build_mlp },
    { "mlp-deep", "an MLP 1024-2048x4-1024 with LayerNorm and GELU", 256, 1024, 0, 1024, true, build_deep },
    { "char-gpt", "a GPT, 4 layers of width 128, 128 characters a sample", 16, 0, CONTEXT, WORDS, false, build_gpt },
    { "words", "an embedding of 32 of 1,000 words, and an MLP 2048-512-1000", 128, 0, 32, 1000, true, build_words },
};

/* --- training --- */

typedef struct side {
    trek_graph *graph;
    trek_device device;
    bool captured;
    trek_loader *loader;
    int64_t epoch;
    double us[MOST_TURNS];   /* of a step, in each turn */
} side;

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, trek_error_status() != TREK_OK ? trek_error() : "failed");
    exit(1);
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    if (trek_var_ndim(output) == 3)
        output = trek_reshape(output, trek_dims(-1, WORDS));
    return trek_cross_entropy(output, trek_reshape(trek_batch_get(batch, "label"), trek_dims(-1)));
}

static trek_tensor *draw_classes(trek_shape shape, uint32_t seed, int64_t classes)
{
    trek_tensor *t = trek_tensor_empty(shape, TREK_I64, trek_cpu(0));
    for (int64_t i = 0; t && i < trek_tensor_numel(t); i++)
        ((int64_t *)trek_tensor_data(t))[i] = bench_hash(seed, (uint32_t)i) % classes;
    return t;
}

static trek_dataset *draw_samples(const model *m, int64_t n)
{
    static const char *const names[] = { "input", "label" };
    trek_tensor *tensors[2];
    if (m->tokens > 0) {
        tensors[0] = draw_classes(trek_dims(n, m->tokens), 1, m->outputs);
        tensors[1] = draw_classes(m->one ? trek_dims(n) : trek_dims(n, m->tokens), 2, m->outputs);
    } else {
        tensors[0] = trek_tensor_empty(trek_dims(n, m->features), TREK_F32, trek_cpu(0));
        tensors[1] = draw_classes(trek_dims(n), 2, m->outputs);
        if (tensors[0])
            bench_fill(trek_tensor_data(tensors[0]), n * m->features, 1, 0, 1);
    }
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    return dataset;
}

static trek_status train(trek_graph *graph, void *batch)
{
    trek_graph_train_batch(graph, batch);
    return trek_graph_step(graph);
}

static void step(side *s)
{
    trek_batch *batch = trek_graph_next(s->graph);
    if (!batch && trek_graph_start(s->graph, s->epoch++) == TREK_OK)
        batch = trek_graph_next(s->graph);
    if (!batch || (s->captured ? trek_graph_capture(s->graph, train, batch) : train(s->graph, batch)) != TREK_OK)
        die("step");
}

static void open_side(side *s, const model *m, int64_t batch, int64_t grain, int ranks, bool gpu, bool captured)
{
    trek_device device = gpu ? trek_cuda(0) : trek_cpu(0);
    *s = (side){ .graph = m->build(device, NULL), .device = device, .captured = captured };
    s->loader = trek_loader_new(draw_samples(m, 8 * batch), &(trek_loader_opts){ .batch_size = batch });
    if (!s->graph || !s->loader)
        die(m->name);
    trek_graph_set_loader(s->graph, s->loader, "input");
    trek_graph_set_loss(s->graph, loss_of, NULL);
    trek_trainer_setup(s->graph, &(trek_trainer_opts){
        .grain = grain, .ranks = ranks, .devices = gpu ? &device : NULL, .build_replica = m->build,
            .optimizer = trek_adam(&(trek_adam_opts){ .lr = 1e-6 }) });
    if (trek_graph_start(s->graph, s->epoch++) != TREK_OK)
        die(m->name);
    for (int k = 0; k < WARM; k++)
        step(s);
}

static void close_side(side *s)
{
    trek_graph_free(&s->graph);
    trek_loader_free(&s->loader);
}

static int64_t clock_ns(bool cpu)
{
    struct timespec t;
    if (!cpu)
        return bench_now_ns();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double turn(side *s, double ms, bool cpu)
{
    int64_t start = clock_ns(cpu), now = start, n = 0;
    for (; (double)(now - start) < ms * 1e6; now = clock_ns(cpu), n++)
        step(s);
    if (trek_device_sync(s->device) != TREK_OK)
        die("sync");
    now = clock_ns(cpu);
    return (double)(now - start) / 1e3 / (double)n;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_size);
    return values[n / 2];
}

typedef struct options {
    int64_t batch, grains, ranks, turns, ms, cpu, gpu;
} options;

/* Whole batches, grains, and on GPUs captured grains, in turns. */
enum { WHOLE, GRAINS, CAPTURED, SIDES };

static void measure(const model *m, const options *o)
{
    int64_t batch = o->batch > 0 ? o->batch : m->batch, grain = (batch + o->grains - 1) / o->grains;
    int n = o->gpu > 0 ? SIDES : CAPTURED;
    static side sides[SIDES];
    static double ratios[SIDES][MOST_TURNS];
    for (int i = 0; i < n; i++)
        open_side(&sides[i], m, batch, i == WHOLE ? 0 : grain, (int)o->ranks, o->gpu > 0, i == CAPTURED);
    for (int k = 0; k < o->turns; k++)
        for (int i = 0; i < n; i++) {
            sides[i].us[k] = turn(&sides[i], (double)o->ms, o->cpu > 0);
            ratios[i][k] = sides[i].us[k] / sides[WHOLE].us[k];
        }
    double whole = median(sides[WHOLE].us, (int)o->turns), in_grains = median(sides[GRAINS].us, (int)o->turns);
    printf("%-10s %2lld ranks, batch %4lld, grains of %3lld: %9.1f us whole, %9.1f us in grains (best %9.1f, %9.1f), %.3f",
           m->name, (long long)o->ranks, (long long)batch, (long long)grain, whole, in_grains, sides[WHOLE].us[0],
           sides[GRAINS].us[0], median(ratios[GRAINS], (int)o->turns));
    if (n == SIDES)
        printf("; %9.1f us captured, %.3f%s%s", median(sides[CAPTURED].us, (int)o->turns),
               median(ratios[CAPTURED], (int)o->turns),
               trek_graph_replays(sides[CAPTURED].graph) > 0 ? "" : ", not replayed: ",
               trek_graph_capture_problem(sides[CAPTURED].graph));
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < n; i++)
        close_side(&sides[i]);
}

/* --- arguments --- */

static void refuse(const char *program)
{
    fprintf(stderr, "usage: %s [--ranks N] [--batch N] [--grains N] [--turns N] [--ms N] [--cpu 1] [--gpu 1] MODEL...\n",
            program);
    for (size_t k = 0; k < sizeof models / sizeof *models; k++)
        fprintf(stderr, "  %-10s %s\n", models[k].name, models[k].what);
    exit(2);
}

static int64_t *option(options *o, const char *name)
{
    return strcmp(name, "--ranks") == 0 ? &o->ranks : strcmp(name, "--batch") == 0 ? &o->batch
        : strcmp(name, "--grains") == 0 ? &o->grains : strcmp(name, "--turns") == 0 ? &o->turns
        : strcmp(name, "--ms") == 0 ? &o->ms : strcmp(name, "--cpu") == 0 ? &o->cpu
        : strcmp(name, "--gpu") == 0 ? &o->gpu : NULL;
}

int main(int argc, char **argv)
{
    options o = { .grains = 16, .ranks = 1, .turns = 21, .ms = 100 };
    int k = 1;
    for (int64_t *value; k + 1 < argc && (value = option(&o, argv[k])); k += 2)
        if ((*value = atoll(argv[k + 1])) < 1)
            refuse(argv[0]);
    if (k >= argc || o.turns > MOST_TURNS)
        refuse(argv[0]);
    for (; k < argc; k++) {
        const model *m = NULL;
        for (size_t i = 0; i < sizeof models / sizeof *models; i++)
            if (strcmp(models[i].name, argv[k]) == 0)
                m = &models[i];
        if (!m)
            refuse(argv[0]);
        measure(m, &o);
    }
    return trek_error_status() == TREK_OK ? 0 : 1;
}

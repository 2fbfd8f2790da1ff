/* SPDX-License-Identifier: Apache-2.0 */
/* What dividing costs and saves: the time of a step and the memory of each rank, by what is divided.
 *   trek-bench-shard LEVEL RANKS [STEPS]             threads; LEVEL: 0 nothing, 1 the state, 2 gradients, 3 parameters, too
 *   trek-run -n 2 trek-bench-shard LEVEL 1 [STEPS [ENGINE [OVERLAP [DTYPE]]]]
 *                                                    processes, over "shared" or "gloo"; OVERLAP: 0 as trek chooses, 1 always, -1
 *                                                    never; DTYPE: f32, or bf16 for gradients that travel as bf16
 * A link is made slow by a bucket of tokens on the loopback of a network of one's own:
 *   unshare -n sh -c "ip link set lo mtu 1500 up; tc qdisc add dev lo root tbf rate 1gbit burst 256kbit latency 1s; ..." */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <trek/trek.h>

enum { FEATURES = 256, WIDTH = 1024, LAYERS = 12, CLASSES = 16, SAMPLES = 512, BATCH = 128, MOST = 100, RANKS = 64 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static trek_graph *build(trek_device device, void *arg)
{
    trek_module *layers[2 * LAYERS];
    (void)arg;
    for (int k = 0; k < LAYERS; k++) {
        layers[2 * k] = trek_nn_linear(k ? WIDTH : FEATURES, k + 1 < LAYERS ? WIDTH : CLASSES, device);
        layers[2 * k + 1] = trek_nn_gelu();
    }
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, 2 * LAYERS - 1)));
}

static trek_var *loss(trek_graph *graph, trek_var *y, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(y, trek_batch_get(batch, "label"));
}

static trek_loader *make_loader(void)
{
    static float x[SAMPLES * FEATURES];
    static int64_t label[SAMPLES];
    for (int i = 0; i < SAMPLES * FEATURES; i++)
        x[i] = (float)(i * 2654435761u % 1000) / 1000;
    for (int i = 0; i < SAMPLES; i++)
        label[i] = i % CLASSES;
    const char *names[] = { "x", "label" };
    trek_tensor *fields[] = { trek_tensor_from_data(x, trek_dims(SAMPLES, FEATURES), TREK_F32, trek_cpu(0)),
                              trek_tensor_from_data(label, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)) };
    trek_loader *loader = trek_loader_new(trek_dataset_tensors(names, fields, 2), &(trek_loader_opts){ .batch_size = BATCH });
    trek_tensor_release(fields[0]);
    trek_tensor_release(fields[1]);
    return loader;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the milliseconds of a step, after two. */
static double train(trek_graph *graph, int steps)
{
    double ms[MOST];
    int n = 0;
    for (int64_t epoch = 0; n < steps && trek_error_status() == TREK_OK; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; n < steps && (batch = trek_graph_next(graph)); n++) {
            double begin = now_ms();
            trek_graph_train_batch(graph, batch);
            trek_graph_step(graph);
            ms[n] = now_ms() - begin;
        }
    }
    qsort(ms + 2, (size_t)(n - 2), sizeof *ms, by_value);
    return ms[2 + (n - 2) / 2];
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return fprintf(stderr, "usage: trek-bench-shard LEVEL RANKS [STEPS [ENGINE [OVERLAP [DTYPE]]]]\n"), 2;
    int level = atoi(argv[1]), ranks = atoi(argv[2]), steps = argc > 3 ? atoi(argv[3]) : 20;
    int64_t budgets[RANKS];
    steps = steps < 3 ? 3 : steps > MOST ? MOST : steps;
    for (int r = 0; r < ranks && r < RANKS; r++)
        budgets[r] = (int64_t)1 << 40;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = argc > 4 ? argv[4] : NULL });
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_loader *loader = make_loader();
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, loss, NULL);
    trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = ranks, .share_params = TREK_OFF,
                                                    .shard = (trek_shard)level, .comm = comm, .max_anchor = TREK_OFF,
                                                    .balance = TREK_OFF, .bucket_bytes = 1 << 20, .memory_budget = budgets,
                                                    .n_memory_budget = ranks, .overlap = argc > 5 ? atoi(argv[5]) : 0,
                                                    .reduce_dtype = argc > 6 && strcmp(argv[6], "bf16") == 0 ? TREK_BF16
                                                                                                             : TREK_F32,
                                                    .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 1e-4 }) });
    double ms = trek_error_status() == TREK_OK ? train(graph, steps) : 0;
    char *plan = trek_error_status() == TREK_OK ? trek_trainer_plan_text(graph) : NULL;
    if (plan && trek_comm_rank(comm) == 0)
        printf("level %d: %.1f ms a step\n%s", level, ms, plan);
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    trek_string_free(&plan);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&comm);
    return trek_error_status() != TREK_OK;
}

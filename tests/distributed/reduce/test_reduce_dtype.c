/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that travel as bf16: the bits of rounded numbers that are added in f32 and in rank order and rounded once more, the
 * same in all processes, over threads, shared memory and Gloo; trainings whose steps are near those of f32, with the state and
 * the gradients divided and not; what is refused. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/losses.h"
#include "autograd/ops.h"
#include "distributed/comm/comm.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/team/low_sums.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tensor/half_internal.h"
#include "tests/support/labelled.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 5000, RANKS = 4, IN = 24, HIDDEN = 40, CLASSES = 5, SAMPLES = 48, BATCH = 24 };

/* --- sums ----------------------------------------------------------------------------------------------------- */

static float number(int rank, int64_t i) { return test_number((uint32_t)(60 + rank), (uint32_t)i) * (float)(1 << i % 7); }

static float rounded(float x)
{
    uint16_t low;
    trek_bf16_from_f32_row(&low, &x, 1);
    trek_f32_from_bf16_row(&x, &low, 1);
    return x;
}

static float expected(int world, int64_t i)
{
    float sum = rounded(number(0, i));
    for (int r = 1; r < world; r++)
        sum += rounded(number(r, i));
    return rounded(sum);
}

/* Returns the number of the check that failed; 0: none. */
static int check_sums(trek_comm *comm)
{
    static const int64_t counts[] = { 1, 2, 3, 7, 64, 1000, 1023, MOST };
    int world = trek_comm_world_size(comm), rank = trek_comm_rank(comm), failed = 0;
    trek_low_sums *sums = trek_low_sums_new(comm, MOST);
    float *data = malloc(sizeof(float) * MOST), *part = malloc(sizeof(float) * MOST);
    for (int k = 0; k < 8 && !failed; k++) {
        int64_t each = counts[k] / world;
        for (int64_t i = 0; i < counts[k]; i++)
            data[i] = number(rank, i);
        if (trek_low_sums_reduce_scatter(sums, data, part, each) != TREK_OK)
            failed = 1;
        for (int64_t i = 0; i < each && !failed; i++)
            failed = part[i] == expected(world, each * rank + i) ? 0 : 2;
        if (!failed && trek_low_sums_all_reduce(sums, data, counts[k]) != TREK_OK)
            failed = 3;
        for (int64_t i = 0; i < counts[k] && !failed; i++)
            failed = data[i] == expected(world, i) ? 0 : 4;
    }
    free(data);
    free(part);
    trek_low_sums_free(&sums);
    return failed;
}

typedef struct thread_part {
    pthread_t thread;
    trek_comm *comm;
    int failed;
} thread_part;

static void *sum_in_thread(void *arg)
{
    thread_part *p = arg;
    p->failed = check_sums(p->comm);
    return NULL;
}

static void sums_between_threads(void **state)
{
    for (int n = 1; n <= RANKS; n++) {
        trek_comm *comms[RANKS];
        thread_part parts[RANKS];
        assert_int_equal(trek_comm_local(NULL, n, comms), TREK_OK);
        for (int r = 0; r < n; r++) {
            parts[r] = (thread_part){ .comm = comms[r] };
            assert_int_equal(pthread_create(&parts[r].thread, NULL, sum_in_thread, &parts[r]), 0);
        }
        for (int r = 0; r < n; r++)
            pthread_join(parts[r].thread, NULL);
        for (int r = 0; r < n; r++) {
            trek_comm_free(&comms[r]);
            if (parts[r].failed)
                fail_msg("%d threads, rank %d: check %d", n, r, parts[r].failed);
        }
    }
}

/* --- trainings -------------------------------------------------------------------------------------------------- */

static trek_graph *build(trek_device device, void *arg)
{
    trek_seed(3);
    trek_module *layers[] = { trek_nn_linear(IN, HIDDEN, device), trek_nn_gelu(), trek_nn_linear(HIDDEN, HIDDEN, device),
                              trek_nn_tanh(), trek_nn_linear(HIDDEN, CLASSES, device) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, 5)));
}

/* What a process is told: dtype, shard, ranks of each process, passes of a step. */
typedef struct way {
    int low, shard, ranks, accumulate, weights;
} way;

/* Trains for an epoch of plain SGD, whose changes are the gradients. */
static trek_status train(trek_comm *comm, const way *w, elements *to)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_loader *loader = trek_loader_new(labelled_rows(1, SAMPLES, IN, CLASSES), &(trek_loader_opts){ .batch_size = BATCH });
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, labelled_loss, NULL);
    const int64_t budget = (int64_t)(1 << 26) * (1 + 3 * trek_comm_rank(comm));
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .ranks = w->ranks, .comm = comm, .shard = (trek_shard)w->shard, .bucket_bytes = 4096,
        .memory_budget = w->weights ? &budget : NULL, .n_memory_budget = w->weights ? 1 : 0,
        .reduce_dtype = w->low ? TREK_BF16 : TREK_F32, .max_anchor = TREK_OFF, .balance = TREK_OFF, .accumulate = w->accumulate,
        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 1 }) });
    if (status == TREK_OK)
        status = labelled_epoch(graph, 0, w->accumulate);
    if (status == TREK_OK)
        elements_of_params(graph, to);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    return status;
}

/* All processes have the same bits. */
static bool agree(trek_comm *comm, const elements *own)
{
    bool same = true;
    for (int i = 0; i < own->n; i += 7) {
        double least = own->values[i], most = least;
        same &= trek_comm_all_reduce_scalar(comm, &least, TREK_REDUCTION_MIN) == TREK_OK &&
            trek_comm_all_reduce_scalar(comm, &most, TREK_REDUCTION_MAX) == TREK_OK && least == most;
    }
    return same;
}

/* One epoch of two steps: what it has changed is the sum of two gradients, each rounded as the header says, and the second has
 * seen other parameters. */
static bool is_near(const elements *low, const elements *full)
{
    double most = 0, off = 0;
    bool differ = false;
    static elements first;
    trek_graph *graph = build(trek_cpu(0), NULL);
    elements_of_params(graph, &first);
    trek_graph_free(&graph);
    for (int i = 0; i < full->n; i++) {
        double change = fabs(full->values[i] - first.values[i]), by = fabs(full->values[i] - low->values[i]);
        most = change > most ? change : most;
        off = by > off ? by : off;
        differ |= by > 0;
    }
    return differ && off < most / 32;
}

static int child_trains(const part *me, trek_comm *comm)
{
    static elements low, again, full;
    way w;
    if (sscanf(me->detail, "%*[a-z],%d,%d,%d,%d", &w.shard, &w.ranks, &w.accumulate, &w.weights) != 4)
        return 2;
    w.low = 0;
    if (train(comm, &w, &full) != TREK_OK)
        return fprintf(stderr, "%s\n", trek_error()), 3;
    w.low = 1;
    if (train(comm, &w, &low) != TREK_OK)
        return fprintf(stderr, "%s\n", trek_error()), 4;
    if (!agree(comm, &low))
        return 5;
    if (!is_near(&low, &full))
        return 6;
    w.shard = TREK_SHARD_NONE; /* whoever makes a sum, it is the same */
    w.weights = 0;
    if (train(comm, &w, &again) != TREK_OK)
        return fprintf(stderr, "%s\n", trek_error()), 7;
    return w.accumulate > 1 || memcmp(low.values, again.values, sizeof(double) * (size_t)low.n) == 0 ? 0 : 8;
}

static int child_refused(trek_comm *comm)
{
    static elements none;
    way w = { .low = 1, .ranks = 1 };
    return train(comm, &w, &none) == TREK_ERR_UNSUPPORTED && strstr(trek_error(), ".reduce_dtype: bf16") ? 0 : 9;
}

static int child(const part *me)
{
    char engine[8] = { 0 };
    sscanf(me->detail, "%7[a-z]", engine);
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = engine, .rank = me->process, .world_size = me->processes,
                                                        .address = me->address, .port = me->port, .token = "sesame",
                                                        .deadline_s = 60 });
    if (!comm)
        return fprintf(stderr, "%s\n", trek_error()), 1;
    int failed = strcmp(engine, "mpi") == 0 ? child_refused(comm) : strcmp(me->role, "sums") == 0 ? 20 * check_sums(comm)
                                                                                               : child_trains(me, comm);
    trek_comm_free(&comm);
    return failed;
}

static void start(int n, const char *role, const char *detail)
{
    static world w;
    char why[512];
    if (strncmp(detail, "gloo", 4) == 0 && !trek_comm_gloo_there(why, sizeof why))
        return;
    processes_init(&w, n);
    processes_start_all(&w, n, role, detail, -1, NULL);
    processes_finish(&w, -1);
    for (int p = 0; p < n; p++)
        if (w.code[p] != 0) {
            processes_print(&w);
            fail_msg("%d processes, %s %s: process %d ends with %d", n, role, detail, p, w.code[p]);
        }
}

static void sums_between_processes(void **state)
{
    for (int n = 2; n <= 3; n++) {
        start(n, "sums", "shared,");
        start(n, "sums", "gloo,");
    }
}

static void trainings(void **state)
{
    static const char *const details[] = { "shared,0,1,0,0", "gloo,1,1,0,0", "shared,2,1,0,0", "gloo,2,1,0,1", "gloo,0,2,2,0",
                                           "shared,1,1,2,1", "gloo,0,1,0,0", "shared,2,1,2,0", "gloo,2,1,0,0" };
    for (int k = 0; k < (test_short() ? 5 : 9); k++)
        start(2 + k % 2, "train", details[k]);
}

static void expect_refused(trek_trainer_opts opts, trek_status status, const char *text)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    opts.build_replica = build;
    FAILS(trek_trainer_setup(graph, &opts), status, text);
    trek_graph_free(&graph);
}

static void refused(void **state)
{
    expect_refused((trek_trainer_opts){ .reduce_dtype = TREK_F16 }, TREK_ERR_ARGUMENT, ".reduce_dtype: f16; must be f32 or bf16");
    expect_refused((trek_trainer_opts){ .reduce_dtype = TREK_BF16, .grain = 4 }, TREK_ERR_UNSUPPORTED,
                   ".reduce_dtype: bf16, together with .grain, whose sums are exact");
    expect_refused((trek_trainer_opts){ .reduce_dtype = TREK_BF16, .average = TREK_AVERAGE_PARAMETERS }, TREK_ERR_UNSUPPORTED,
                   ".reduce_dtype: bf16, together with .average");
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return child(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(sums_between_threads, clear_error), cmocka_unit_test_setup(sums_between_processes, clear_error),
        cmocka_unit_test_setup(trainings, clear_error), cmocka_unit_test_setup(refused, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

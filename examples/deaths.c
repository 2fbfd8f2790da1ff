/* SPDX-License-Identifier: Apache-2.0 */
/* Training that is killed at random, and ends with the bits of training that nobody disturbed.
 *
 *   deaths                                          one process; prints a hash of the trained parameters
 *   trek-run -n 4 -m 1 --restarts 20 ./deaths --kill 3     four, which kill themselves after some 3 seconds: the same hash
 *
 * All processes but the last one kill themselves (SIGKILL) at random times. The others complete the step in which one dies, and
 * trek-run starts it again: it joins at the next step. Batches are cut into grains, so that the bits do not depend on who has
 * computed what. --width: of the two hidden layers. --data: MNIST's IDX files; default: the folder mnist/ of TREK_DATA if it
 * exists, otherwise generated digits. At the end the program says how long a step took, and how long the longest one, which is
 * that of a death. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include "digits.h"
#include "training.h"

typedef struct options {
    training common;
    int width, grain, least, samples;
    double kill;               /* the mean of the seconds after which this process kills itself; 0: it does not */
} options;

/* How long steps take, as the program sees them. */
typedef struct pace {
    int64_t steps;             /* that were made when the program last looked */
    double since, first, longest; /* when the last and the first one were seen; the longest time between two of them */
    int64_t begun;
} pace;

static trek_graph *build_model(trek_device device, void *arg)
{
    const options *o = arg;
    trek_flow *flow = trek_flow_from(trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(784, o->width, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(o->width, o->width, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_dropout(0.2));
    trek_flow_through(flow, trek_nn_linear(o->width, 10, device));
    return trek_flow_build(flow);
}

static trek_var *mean_loss(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(logits, trek_batch_get(batch, "label"));
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns when this process is to kill itself: an exponential time from now, so that every moment is as likely. */
static double draw_end(const options *o)
{
    const char *rank = getenv("TREK_RANK");
    int last = trek_comm_world_described(NULL) - 1;
    if (o->kill <= 0 || last < 1 || !rank || atoi(rank) == last) /* the last one sees it through */
        return INFINITY;
    srand((unsigned)time(NULL) ^ ((unsigned)getpid() << 8));
    return seconds() - o->kill * log(((double)rand() + 1) / ((double)RAND_MAX + 1));
}

static void note_pace(pace *p, int64_t steps)
{
    double now = seconds();
    if (steps == p->steps)
        return;
    if (p->steps == 0) {
        p->first = now;
        p->begun = steps;
    } else {
        p->longest = now - p->since > p->longest ? now - p->since : p->longest;
    }
    p->steps = steps;
    p->since = now;
}

/* Trains. The result is NULL, with an error, if it failed. */
static trek_state *train(options *o, trek_dataset *dataset, pace *p)
{
    const training *k = &o->common;
    double end = draw_end(o);
    trek_run *run = trek_trainer_run(&(trek_run_opts){
        .build_model   = build_model,
        .train_step    = mean_loss,
        .arg           = o,
        .dataset       = dataset,
        .input         = "image",
        .optimizer     = trek_adam(&(trek_adam_opts){ .lr = k->lr }),
        .batch_size    = k->batch_size,
        .shuffle       = true,
        .epochs        = k->epochs,
        .seed          = k->seed,
        .min_processes = trek_comm_world_described(NULL) > 1 ? o->least : 0,
        .trainer       = { .ranks = k->ranks, .grain = o->grain },
    });
    trek_run_progress at = { .running = run != NULL };
    while (at.running && trek_run_look(run, &at) == TREK_OK) {
        note_pace(p, at.steps);
        if (seconds() > end)
            raise(SIGKILL);
        thrd_sleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
    }
    return run ? trek_run_join(run) : NULL;
}

/* Prints a hash of all bytes of the state. */
static void print_hash(const trek_state *state)
{
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
    for (int k = 0; k < trek_state_count(state); k++) {
        const trek_tensor *tensor = trek_state_tensor(state, k);
        const unsigned char *bytes = trek_tensor_data(tensor);
        size_t n = (size_t)trek_tensor_numel(tensor) * trek_dtype_size(trek_tensor_dtype(tensor));
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    }
    printf("hash %016" PRIx64 "\n", hash);
}

int main(int argc, char **argv)
{
    options o = { .common = { .shared = "mnist", .epochs = 5, .batch_size = 128, .lr = 1e-3, .seed = 1,
                              .without = "--checkpoint --save --quiet" },
                  .width = 128, .grain = 16, .least = 1, .samples = 4096 };
    const argument own[] = {
        { "--width", "N", "width of the two hidden layers", .whole = &o.width, .least = 1, .most = 65536 },
        { "--grain", "N", "number of samples of a grain", .whole = &o.grain, .least = 1, .most = 65536 },
        { "--least", "N", "how many processes must be left", .whole = &o.least, .least = 1, .most = 1024 },
        { "--samples", "N", "how many digits are generated", .whole = &o.samples, .least = 16, .most = 1e6 },
        { "--kill", "SECONDS", "mean time after which a process kills itself; 0: it does not", .number = &o.kill, .least = 0,
          .most = 1e6 },
    };
    training_read(argc, argv, "Training that is killed at random ends with the bits of training that nobody disturbed.",
                  &o.common,
                  own, sizeof own / sizeof *own);
    training_stop_by_signals();
    digits data = digits_open(training_data(&o.common, "mnist", NULL), o.samples, 16);
    pace p = { 0 };
    trek_state *trained = data.train && data.test ? train(&o, data.train, &p) : NULL;
    if (trained && !trek_stop_requested()) {
        if (p.steps > p.begun)
            printf("a step took %.3f s, the longest one %.3f s\n", (p.since - p.first) / (double)(p.steps - p.begun), p.longest);
        print_hash(trained);
    }
    trek_state_free(&trained);
    trek_dataset_free(&data.train);
    trek_dataset_free(&data.test);
    return training_end();
}

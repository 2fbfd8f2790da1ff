/* SPDX-License-Identifier: Apache-2.0 */
/* A run that is stopped and goes on, a record of what it has come to, and a folder for its checkpoints. */
#ifndef TREK_TESTS_DISTRIBUTED_STOPPED_RUN_H
#define TREK_TESTS_DISTRIBUTED_STOPPED_RUN_H

#include "data/loader.h"
#include "distributed/balance/plan.h"
#include "distributed/checkpoint.h"
#include "distributed/trainer.h"

enum { IN = 5, HIDDEN = 8, CLASSES = 3, SAMPLES = 23, BATCH = 6, BATCHES = 4, STEPS = 20, MOST = 2048 };
extern char folder[256]; /* made and removed by make_folder, remove_folder */
extern int prefetch; /* of loaders made from here on */
const char *path_of(const char *name);

typedef struct run_opts {
    trek_dtype dtype;
    int ranks;
    bool separate, scaled, norm;
    bool made;                /* weights made of others, and an adapter */
    bool sharded;             /* each rank keeps a part of the optimizer's state (separate) */
    trek_dtype state_dtype;   /* of the optimizer's state */
    enum { ADAMW, SGD, RMSPROP, TAMED, LAMB, ADAFACTOR } optimizer;
    const trek_plan *plan;
} run_opts;

trek_graph *build(trek_device device, void *arg);

/* A program that begins: everything but the state. */
trek_graph *begin(const run_opts *o);

trek_loader *loader_new(uint64_t seed);

/* Steps until `end` of them are done; the loader stands where it stands. saves: a checkpoint after each. */
void train(trek_graph *graph, const run_opts *o, trek_loader *loader, int64_t end, bool resumed, bool saves);

typedef struct record {
    int n;
    double values[MOST];
    double lr, norm, scale;
    int64_t steps, epoch, batch;
} record;

/* What a run has come to: parameters, states, buffers, and where its loader stands. */
void look(trek_graph *graph, const trek_loader *loader, record *to);
void expect_close(const record *got, const record *expected, double tolerance, const char *what);

/* Another process would begin with numbers of its own. */
trek_graph *begin_elsewhere(const run_opts *o, trek_loader **loader);

void end_run(trek_graph **graph, trek_loader **loader);
/* Loading fails so, and changes nothing. */
void expect_refusal(trek_graph *graph, trek_loader *loader, const char *path, trek_status status, const char *text);
/* All of a file, from malloc. */
char *read_file(const char *path, size_t *size);
void write_file(const char *path, const char *data, size_t size);
int make_folder(void **state);
int remove_folder(void **state);
int begin_test(void **state);

#endif

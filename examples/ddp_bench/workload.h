/* SPDX-License-Identifier: Apache-2.0 */
/* What ddp_bench trains: models of a published comparison of ways to train on unequal
 * devices, each with its data, loss, measure, optimizer and what was published of it. */
#ifndef TREK_EXAMPLES_DDP_BENCH_WORKLOAD_H
#define TREK_EXAMPLES_DDP_BENCH_WORKLOAD_H

#include "trek.h"

typedef enum data_kind { DATA_MNIST, DATA_CIFAR, DATA_TEXT } data_kind;

typedef struct workload_data {
    trek_dataset *train, *test; /* the caller's; NULL and an error on failure */
    const char *source;         /* "MNIST", "drawn digits" ... */
} workload_data;

typedef struct workload {
    const char *name, *about;
    data_kind data;
    const char *field;          /* of the loader, that feeds the graph */
    trek_build_fn build;        /* arg: not used */
    trek_loss_fn loss;          /* mean over a batch; arg: not used */
    bool accuracy;              /* the accuracy is measured, too, and was published; otherwise the loss was */
    int epochs, batch_size;
    double lr;
    trek_optimizer_spec (*optimizer)(double lr);
    trek_schedule (*schedule)(double lr, int64_t steps); /* NULL: constant */
    double published;           /* the accuracy, or the loss, of one device on the full data; 0: none */
    int published_epochs;
} workload;

extern const workload workloads[];
extern const int n_workloads;

/* NULL if no workload has this name. */
const workload *workload_find(const char *name);

/* Opens real data from `folder` if it exists (mnist/, cifar-10/ or cifar-10-batches-bin/, tinyshakespeare/; NULL: none),
 * otherwise generated data. At most `limit` training samples, and a quarter of that to test with; 0: no limit, some thousands of
 * what is made. */
workload_data workload_open(data_kind kind, const char *folder, int64_t limit);

enum { CLASSES = 10, CHARACTERS = 65, CONTEXT = 128 };

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What ddp_bench is made of: what is asked (ddp_bench.c), the ways to train and one training (train.c), the report (report.c). */
#ifndef TREK_EXAMPLES_DDP_BENCH_BENCH_H
#define TREK_EXAMPLES_DDP_BENCH_BENCH_H

#include <stdio.h>

#include "workload.h"

enum { MOST_RANKS = 64 };

typedef struct bench {
    const char *models, *modes, *slow, *data, *report; /* models, modes: lists "a,b", or NULL: all */
    int ranks, windows, epochs, samples, batch_size, seeds; /* ranks: of each process */
    int processes;                   /* of the job */
    int grain;                       /* samples of a grain; 0: a sixteenth of the batch */
    double lr, lr_scale;
    double factors[MOST_RANKS];      /* of the ranks: factors by which a batch takes longer */
    double most[MOST_RANKS];         /* above the factor: it is another one between both in each second */
} bench;

/* A way to train. */
typedef struct mode {
    const char *name, *about;
    bool one_rank;
    bool grains;                     /* batches are cut into grains */
    bool by_hand;                    /* the program has the loop, over trek_trainer_setup; otherwise trek_trainer_run has it */
    trek_run_opts opts;              /* what makes it this way; the rest is alike in all */
} mode;

extern const mode modes[];
extern const int n_modes;

/* One training. */
typedef struct outcome {
    double loss;                     /* mean of the last epoch */
    double test_loss, accuracy;      /* after the last epoch; NaN: the workload has no accuracy */
    double seconds, samples;         /* of training, without evaluation; samples seen in all */
    double own_rate;                 /* sum of the ranks' samples per second of their own computing; 0: not known, as waiting */
    double waiting;                  /* share of the time in which ranks did not compute, their mean */
    int64_t steps, averages, bytes_sent; /* by this process, for averages on TREK_TRANSPORT_HOST */
    uint64_t bits;                   /* a checksum of the final parameters and buffers */
} outcome;

int bench_epochs(const bench *b, const workload *w);
int bench_batch(const bench *b, const workload *w);
int bench_grain(const bench *b, const workload *w);

/* False and an error on failure. source: where the data are from. */
bool bench_train(const bench *b, const workload *w, const mode *m, int seed, outcome *result, const char **source);

void report_head(FILE *to, const bench *b);
void report_workload(FILE *to, const bench *b, const workload *w, const char *source);
/* The mean of b->seeds runs. solo_rate: samples per second of one rank alone; 0: not known. */
void report_row(FILE *to, const bench *b, const mode *m, const outcome *runs, double solo_rate);
double report_rate(const bench *b, const outcome *runs);

#endif

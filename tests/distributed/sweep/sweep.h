/* SPDX-License-Identifier: Apache-2.0 */
/* A training that is drawn at random: its model, its data, and every option of a trainer and of a run. It is trained on as many
 * ranks as it says, and once more on one, and both must come to the same numbers. */
#ifndef TREK_TESTS_SWEEP_H
#define TREK_TESTS_SWEEP_H

#include "distributed/run.h"

enum { SWEEP_MOST_RANKS = 7, SWEEP_MOST_OPTIONS = 128, SWEEP_WIDTH = 20, SWEEP_CLASSES = 4 };

/* By whom the loop is run: trek_trainer_run; a loop over trek_graph_train_batch; one of forward and backward. */
typedef enum sweep_way { SWEEP_RUN, SWEEP_BATCHES, SWEEP_GATHERED, SWEEP_WAYS } sweep_way;
typedef enum sweep_norm { SWEEP_NO_NORM, SWEEP_LAYER_NORM, SWEEP_SYNC_BATCH_NORM, SWEEP_NORMS } sweep_norm;
typedef enum sweep_loss { SWEEP_CROSS_ENTROPY, SWEEP_SMOOTHED, SWEEP_MSE, SWEEP_HUBER, SWEEP_WEIGHED, SWEEP_SUM,
                          SWEEP_LOSSES } sweep_loss;
typedef enum sweep_ignored { SWEEP_NONE, SWEEP_SOME, SWEEP_BLOCK, SWEEP_LAST, SWEEP_ALL, SWEEP_IGNORED } sweep_ignored;

typedef struct sweep {
    uint64_t seed;
    bool off[SWEEP_MOST_OPTIONS];    /* left out */
    bool one;                        /* this training is the one rank's */
    trek_run_opts run;               /* with .trainer */
    double shares[SWEEP_MOST_RANKS];
    int64_t budgets[SWEEP_MOST_RANKS]; /* of memory */
    trek_device devices[SWEEP_MOST_RANKS];
    sweep_way way;
    int processes, windows;          /* windows: batches of each */
    int slow;                        /* the rank of each process that is slower, counted from 1; 0: none */
    int shares_in_plan;
    bool evaluates, resumes, freezes, timed, own_forward;
    bool tells;                      /* losses of passes, which are of one process */
    int resumed_ranks;               /* of each process, after it went on */
    int64_t resumed_at;              /* epochs that had been before */
    int adds;                        /* passes of a step that add up, of a loop of one's own */
    double ema;                      /* of a loop of one's own; 0: none */
    sweep_norm norm;
    sweep_loss loss;
    sweep_ignored ignored;
    bool conv, embedding, tied, sometimes, frozen, recompute;
    int64_t samples;
    trek_optimizer_spec optimizer;
} sweep;

/* --- options.c: what is drawn */
int sweep_options(void);
const char *sweep_option_name(int k);
bool sweep_option_is_drawn(int k);
/* Draws everything from the seed except the options that are left out, then settles options that exclude each other. */
void sweep_draw(sweep *s);
/* Prints the training, one option a line. */
void sweep_tell(const sweep *s);
/* Returns the same training on one rank, without the options that only divide work. */
sweep sweep_on_one(const sweep *s);
/* Returns number k of one of the random streams of this training. */
uint64_t sweep_number(const sweep *s, uint64_t stream, uint64_t k);

/* --- model.c: what is trained */
trek_graph *sweep_build(trek_device device, void *s);
trek_status sweep_freeze(trek_graph *graph, bool freezes); /* freezes a part of the model, or thaws it */
trek_dataset *sweep_data(const sweep *s, bool evaluation);
trek_var *sweep_loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *s);

/* --- train.c: a training, whose numbers are left in a file (of process 0); an error otherwise */
trek_status sweep_train(sweep *s, const char *path);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Runs whose processes die, come again, or are new: what they train and do; what is expected of all of them together. */
#ifndef TREK_TESTS_DISTRIBUTED_ELASTIC_H
#define TREK_TESTS_DISTRIBUTED_ELASTIC_H

#include "nn/state.h"
#include "tests/support/processes.h"
#include "tests/support/training.h"

enum { EPOCHS = 5, BATCH = 16, STEPS = (SAMPLES + BATCH - 1) / BATCH };

/* --- a process -------------------------------------------------------------------------------------------------------- */

extern bool mixed; /* every second process of the job is on the CPU, beside others on GPUs */
extern bool plain; /* without batch norm, whose ranks see their own parts: those of two processes of two are not those of four */

/* The model and its loss, which the process that trains alone also has, and a number that stands for the parameters. */
trek_graph *build(trek_device device, void *arg);
trek_var *train_step(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg);
double number_of_state(trek_state *state);

/* Returns the devices of ranks from the first-th of the job on: each has a GPU of its own, as far as there are any, and with
 * `mixed` every second one. NULL: they are on the CPU. The list lives until the next call. */
const trek_device *elastic_devices(int first, int ranks);
/* At the beginning of main: returns false in a process of the job, which has played its part, and if the engine under test is not
 * available, which it says. Then main returns *status. */
bool elastic_begins(int *status);
/* Returns whether all tests are to be run: of an engine of the network only some are, except at night. */
bool elastic_has_all(void);

/* --- what is expected ------------------------------------------------------------------------------------------------- */

/* How the ranks of a job went: `ranks[s]` made step s, and its samples. */
typedef struct history {
    int ranks[EPOCHS * STEPS];
    int seen[EPOCHS * STEPS][SAMPLES];
    int built[EPOCHS * STEPS]; /* by which of its models a process tried it last */
} history;

history read_history(const world *w);

extern int arrivals_from; /* from this one on processes are joiners, which lack some epochs, or were not let in */

bool has_died(const world *w, int p);
/* What a process ended with, NaN: not well. */
double result_of(const world *w, int p);
/* Returns whether `left` are left, every sample was seen once, and all have the bits of one process that trained on as many ranks
 * at each step. If not, says what is wrong. averages: of parameters. */
bool is_good(const world *w, int left, bool averages);
void assert_good(const world *w, int left);

#endif

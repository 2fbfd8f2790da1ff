/* SPDX-License-Identifier: Apache-2.0 */
/* The work of the ranks of a trainer: its division, speeds and plan. */
#ifndef TREK_DISTRIBUTED_TRAINER_RANKS_H
#define TREK_DISTRIBUTED_TRAINER_RANKS_H

#include "distributed/balance/plan.h"
#include "distributed/trainer.h"

TREK_BEGIN

/* The current work of the ranks: trek_trainer_describe. */
typedef struct trek_trainer_workload {
    int ranks;        /* number of ranks of the job */
    int rank;         /* the first rank of this process */
    int local_ranks;  /* number of ranks of this process */
    bool windows;     /* true if ranks run whole batches at their own pace */
    int64_t anchor;   /* for windows: batches of the slowest rank */
    int64_t window;   /* for windows: batches of all ranks */
    double predicted; /* predicted speed-up over the fastest rank alone; 0 if not known yet */
    double achieved;  /* measured speed-up over the fastest rank alone; 0 if not known yet */
    int costly;       /* a rank that costs more time than it saves, or -1 */
} trek_trainer_workload;

/* Writes the current work of the ranks to *workload. */
TREK_API trek_status trek_trainer_describe(trek_graph *graph, trek_trainer_workload *workload);
/* Writes each rank's number of batches in the next window to `counts`, at most `capacity` of them, and returns the number of
 * ranks, or 0 without windows. In a run whose sites are processes (run.h) the counts are those of the processes, and their
 * number is returned. */
TREK_API int trek_trainer_counts(trek_graph *graph, int64_t *counts, int capacity);
/* Writes how many samples a second each rank trains to samples_per_s, at most `capacity` numbers: the measured and smoothed
 * rates by which the balancer divides batches and El Che windows. 0 stands for a rank that has not been measured yet. Computing
 * counts, waiting for other ranks does not. Returns the number of ranks of the job (in a run whose sites are processes: the
 * number of processes), or 0 without an error if nothing is measured: with one rank, or with .balance TREK_OFF without windows.
 * Threads: call it on the thread that trains. */
TREK_API int trek_trainer_throughput(trek_graph *graph, double *samples_per_s, int capacity);
/* Returns a table of what the ranks keep in memory and what they may, in lines of text. The caller frees it with
 * trek_string_free (tensor/print.h). A row is for a rank, or for the ranks of a process that share their parameters:
 * - parameters, gradients (in grains with their sums), and state (the optimizer's, with the f32 copies of 16-bit parameters), as
 *   they are now.
 * - other: what the threads of CPU ranks have in use besides, such as packed weights and workspaces.
 * - activations: the most that forward and backward needed in addition, as set-up has measured once ("?" if it has not).
 * - total: the sum of these.
 * - budget: .memory_budget, or the memory that was free at set-up.
 * - peak: for CPU ranks the most that the allocator has counted since set-up.
 *
 * Set-up logs the table if it has made a plan: with .memory_budget, or if GPUs of different sizes divide the optimizer's state.
 * Then it has the ranks of all processes, otherwise those of this one. Nothing is exchanged between processes.
 * Errors: STATE if the graph has no optimizer and trains on its own device. MEMORY. NULL is returned. */
TREK_API char *trek_trainer_plan_text(trek_graph *graph);
/* Returns a copy of the decisions so far, which can be saved and used as .plan. The caller frees it with trek_plan_free.
 * Returns NULL without an error for one rank. */
TREK_API trek_plan *trek_trainer_plan(trek_graph *graph);

TREK_END

#endif

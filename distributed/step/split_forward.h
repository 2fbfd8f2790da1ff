/* SPDX-License-Identifier: Apache-2.0 */
/* A forward whose rows are on the ranks of this process: each runs its replica on its
 * part, side by side, and their outputs are joined. On the caller's tape that is one
 * node, whose backward runs the ranks' own segments side by side. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_SPLIT_FORWARD_H
#define TREK_DISTRIBUTED_STEP_SPLIT_FORWARD_H

#include "distributed/balance/stopwatch.h"
#include "distributed/ranks_internal.h"
#include "distributed/replica/replica.h"

enum { TREK_SPLIT_MOST_OUTPUTS = 320 };

/* A rank's part. Ranks that do not run have none; rows counts for the mean of scalars. */
typedef struct trek_split_part {
    bool runs;
    int64_t rows;
} trek_split_part;

/* What is run. All is borrowed for the length of the call. */
typedef struct trek_split_call {
    trek_ranks *ranks;
    trek_replica *(*replica)(int rank, void *arg);
    /* On the rank's thread, in a scope of its own: outputs (n_outputs, owned by the scope) from its inputs. */
    trek_status (*run)(int rank, trek_var *const *inputs, trek_var **outputs, void *arg);
    /* On every rank, first, also where nothing runs; NULL. */
    void (*begin)(int rank, void *arg);
    /* What output k is called in messages ("the output", "tag \"x\""); writes at most size bytes. */
    void (*describe)(int k, char *text, size_t size, void *arg);
    void *arg;
    int n_inputs, n_outputs;  /* of a replica; at most TREK_SPLIT_MOST_OUTPUTS */
    int n_loose;              /* the last ones of them, which `run` may leave NULL; given as NULL where they cannot be joined */
    trek_var *const *inputs;  /* [n_inputs]: of all rows, or whole; where each rank has its own: [ranks][n_inputs] */
    bool own_inputs;
    const bool *split;        /* [n_inputs] divided along dimension 0, by the parts; not with own_inputs */
    const trek_split_part *parts; /* [ranks] */
    bool keeps_rows; /* each row of input gives as many rows of output: else an error; not: outputs have what rows they have */
    double scale;             /* backward gives each replica so many times its share */
    trek_var *tape_leaf;      /* a leaf, by which a trek_split_watch knows its forwards; NULL: nobody watches */
    trek_comm *comm;          /* other processes whose layers take part in sums; NULL */
    trek_stopwatches *watches;/* NULL: nobody measures */
    bool counts;              /* its samples count as the ranks' work */
    int64_t first, global;    /* place of the process's rows in the batch of all processes, and that batch's rows */
} trek_split_call;

/* Who wants to know when the ranks' parameters are complete: for the backward of one loss, through any number of forwards
 * with this tape leaf. */
typedef struct trek_split_watch {
    const trek_var *tape_leaf;
    bool (*begins)(void *arg); /* on the caller's thread, before the last of them goes back: whether it is to be told */
    void *(*arg_of_rank)(int rank, void *arg);
    void (*complete)(int k, void *rank_arg); /* on the rank: of its parameters, and of more leaves behind them */
    void (*end)(int rank, void *arg); /* on every rank, last, whatever became of its part */
    void *arg;
} trek_split_watch;

/* outputs: [n_outputs], owned by the present scope. Inside a run of the ranks: STATE. */
trek_status trek_split_forward(const trek_split_call *call, trek_var **outputs);

#endif

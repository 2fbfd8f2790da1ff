/* SPDX-License-Identifier: Apache-2.0 */
/* A forward whose rows are on the ranks of this process. Each rank runs its replica on its part, in parallel, and
 * their outputs are joined. On the caller's tape that is one node, whose backward runs the ranks' own segments in
 * parallel. */
#ifndef TREK_DISTRIBUTED_PASS_SPLIT_FORWARD_H
#define TREK_DISTRIBUTED_PASS_SPLIT_FORWARD_H

#include "distributed/balance/stopwatch.h"
#include "distributed/ranks_internal.h"
#include "distributed/team/replica.h"

enum { TREK_SPLIT_MOST_OUTPUTS = 320 };

/* A rank's part. Ranks that do not run have none. `rows` weighs the mean of scalars. */
typedef struct trek_split_part {
    bool runs;
    int64_t rows;
} trek_split_part;

/* What is run. All pointers are borrowed during the call. */
typedef struct trek_split_call {
    trek_ranks *ranks;
    trek_replica *(*replica)(int rank, void *arg);
    /* Called on the rank's thread in its own scope. Computes outputs (n_outputs, owned by the scope) from the rank's
     * inputs. */
    trek_status (*run)(int rank, trek_var *const *inputs, trek_var **outputs, void *arg);
    /* Called first on every rank, even if it does not run. May be NULL. */
    void (*begin)(int rank, void *arg);
    /* Writes the name of output k for messages ("the output", "tag \"x\""), at most size bytes. */
    void (*describe)(int k, char *text, size_t size, void *arg);
    void *arg;
    int n_inputs, n_outputs;  /* of a replica; at most TREK_SPLIT_MOST_OUTPUTS */
    int n_loose;              /* the last n_loose outputs, which `run` may leave NULL; an output that cannot be joined becomes
                               * NULL */
    trek_var *const *inputs;  /* [n_inputs] of all rows, or not divided; if each rank has its own: [ranks][n_inputs] */
    bool own_inputs;
    const bool *split;        /* [n_inputs] divided along dimension 0 into the parts; not with own_inputs */
    const trek_split_part *parts; /* [ranks] */
    bool keeps_rows; /* each row of input must give the same number of rows of output; if false, outputs may have any rows */
    double scale;             /* backward gives each replica its share multiplied by this */
    trek_var *tape_leaf;      /* a leaf by which a trek_split_watch recognises its forwards; NULL: nobody watches */
    trek_comm *comm;          /* other processes whose layers take part in sums, or NULL */
    trek_stopwatches *watches;/* NULL: nobody measures */
    bool counts;              /* its samples count as the ranks' work */
    int64_t first, global;    /* position of the process's rows in the batch of all processes, and the rows of that batch */
} trek_split_call;

/* Reports when the ranks' parameters are complete, in the backward of one loss through any number of forwards with
 * this tape leaf. */
typedef struct trek_split_watch {
    const trek_var *tape_leaf;
    bool (*begins)(void *arg); /* called on the caller's thread before the last of them runs backward; returns whether to
                                * report */
    void *(*arg_of_rank)(int rank, void *arg);
    void (*complete)(int k, void *rank_arg); /* called on the rank, with the index of one of its parameters, or of a further
                                              * leaf after them */
    void (*end)(int rank, void *arg); /* called last on every rank, whatever its result */
    void *arg;
} trek_split_watch;

/* Runs the call. outputs: [n_outputs], owned by the current scope. Fails with STATE within a run of the ranks. */
trek_status trek_split_forward(const trek_split_call *call, trek_var **outputs);

#endif

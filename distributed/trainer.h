/* SPDX-License-Identifier: Apache-2.0 */
/* Setting a graph up for training on whatever there is, behind the calls of graph.h. */
#ifndef TREK_DISTRIBUTED_TRAINER_H
#define TREK_DISTRIBUTED_TRAINER_H

#include "graph/graph.h"
#include "graph/timeline.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

TREK_BEGIN

/* Makes the same graph on another device. Called once for each further rank, on
 * the rank's own thread, never twice at a time. NULL on failure. */
typedef trek_graph *(*trek_build_fn)(trek_device device, void *arg);

typedef struct trek_trainer_opts {
    trek_build_fn build_replica;     /* needed with more than one rank */
    void *arg;                       /* passed to it */
    const trek_device *devices;      /* one for each rank, `ranks` of them; the first is the graph's own.
                                        Default: for a graph on a CPU cpu:0 ... cpu:ranks-1 if ranks is given, else the
                                        environment's TREK_DEVICES ("cpu:0,cpu:1"), else its own device alone; for a graph
                                        on a GPU as many GPUs as there are ranks, else TREK_DEVICES, else all usable GPUs
                                        (without build_replica: its own). The same GPU may be listed twice */
    int ranks;                       /* 1 to 1024 */
    trek_optimizer_spec optimizer;   /* default: none, or the one that the graph has */
    trek_schedule schedule;          /* default: none */
    int accumulate;                  /* backward passes to each step that the program makes; default 1. Any number is
                                        right: ranks of one process send nothing before step() */
    double max_grad_norm;            /* default 0: no clipping */
    double max_grad_value;           /* default 0: no clipping */
    trek_amp_opts amp;               /* mixed precision, see trek_graph_set_amp; default: what the graph has */
    int share;                       /* TREK_OFF: every rank has parameters and optimizer state of its own, and gradients
                                        are sent in buckets, as GPU ranks always do. Default: CPU ranks share one copy */
    int64_t bucket_bytes;            /* of buckets after the first, which has at most 1 MiB; default 25 MiB */
    double deadline_s;               /* how long a rank waits for another in a collective; default 600, TREK_OFF: for ever */
    trek_timeline *timeline;         /* attached; stays the caller's */
} trek_trainer_opts;

/* Makes the replicas, gives them rank 0's parameters and buffers, sets optimizer,
 * schedule, clipping and training mode; from there on the calls of graph.h reach
 * all ranks. Says in one line of the log (info) what it found and what is not
 * exact. With one rank there are no threads, no copies. opts may be NULL. May be
 * called again with other ranks. Errors: ARGUMENT (also: a replica that differs
 * from the graph), DEVICE, UNSUPPORTED, MEMORY, STATE, and what build_replica
 * reports; the graph then trains on its own device, without an optimizer if
 * replicas had been made.
 *
 * Exact: gradients are those of one device, to rounding, for layers that treat
 * samples independently. Plain batch norm uses each rank's own statistics in
 * training; its running ones are merged by count at each step. */
TREK_API trek_status trek_trainer_setup(trek_graph *graph, const trek_trainer_opts *opts);

TREK_END

#endif

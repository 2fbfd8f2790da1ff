/* SPDX-License-Identifier: Apache-2.0 */
/* Where a process is that has come to a job which was at work. */
#ifndef TREK_DISTRIBUTED_ARRIVALS_H
#define TREK_DISTRIBUTED_ARRIVALS_H

#include "data/loader.h"
#include "graph/graph.h"

TREK_BEGIN

/* Returns true in a process that was started again (trek-run --restarts), or that is new (trek-run --join), and has joined a job
 * that trains (TREK_JOIN) in trek_trainer_setup:
 * the graph has the parameters, buffers, optimizer's state, loss scaler and trek_graph_steps of the others. Then the loader
 * (NULL: the graph's own) is moved to the batch on which the job trains next, as trek_checkpoint_load does, and the program's
 * loop begins there:
 *
 *     bool resumed = trek_trainer_joined(graph, train) || (exists(path) && trek_checkpoint_load(graph, train, path) == TREK_OK);
 *     if (resumed)
 *         trek_loader_position(train, &epoch, NULL);
 *     for (; epoch < epochs && trek_error_status() == TREK_OK; epoch++, resumed = false) {
 *         if (!resumed)
 *             trek_graph_start(graph, epoch);
 *         for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph))
 *             trek_graph_train_batch(graph, batch);
 *     }
 *
 * The others wait for the first pass of this process. Until then it must call no function that all processes call together
 * (evaluations, trek_checkpoint_load), and it must set what the others have changed since their set-up, such as learning rates
 * and frozen parameters. If its first batch or its settings are others, it leaves the job, trek_graph_train_batch fails with
 * STATE, and the others continue.
 *
 * Returns false in all other processes, after the first pass, and on an error.
 * Errors: ARGUMENT if the loader has no such batch. STATE if there is no loader.
 * Its counterpart in Horovod is the synchronisation of an elastic state; torchrun starts all processes again instead. */
TREK_API bool trek_trainer_joined(trek_graph *graph, trek_loader *loader);

TREK_END

#endif

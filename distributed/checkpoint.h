/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a run in one file: what a program needs to go on as if it had not stopped.
 *
 *     trek_checkpoint_save(graph, loader, "run.safetensors");   // between steps, also inside an epoch
 *
 *     ... the same program again: graph, trek_trainer_setup (or optimizer), schedule, clipping, loader ...
 *     trek_checkpoint_load(graph, loader, "run.safetensors");
 *     trek_loader_position(loader, &epoch, NULL);
 *     for (bool resumed = true; epoch < epochs; epoch++, resumed = false) {
 *         if (!resumed)
 *             trek_loader_start(loader, epoch);
 *         for (trek_batch *batch; (batch = trek_loader_next(loader)); ) ...
 *     }
 *
 * A safetensors file. Parameters and buffers have the names that trek_state_save gives them, so that others
 * read them too; "trek:optimizer.NAME.exp_avg" and so on are the optimizer's state of parameter NAME, "trek:lr" its
 * learning rates (f64, of each group), "trek:run" (i64) steps done and the generator's seed, step and draw, "trek:loader" (i64)
 * epoch, batches given, samples and batch size, "trek:scaler" (f64) the loss scaler's numbers; the recorded plan of
 * shares is the text "trek.plan". Nothing depends on the number of ranks: a run goes on with the same bits on as many
 * ranks of equal, fixed or replayed shares, to rounding on others (the plan then begins anew). To replay, the program
 * sets the plan as before (.plan of trek_trainer_opts); else the balancer goes on from the recorded one.
 *
 * Not in the file: options (optimizer, schedule, clipping, frozen and training flags), which the program
 * sets as before; gradients that no step has used; what `using` carries between forwards, which begins anew.
 *
 * The file carries checksums (nn/safetensors.h): damage is refused with the name of what it struck. A checkpoint of version
 * 1 (the text "trek.checkpoint") has none and is loaded with a warning in the log; a program that changes a
 * checkpoint drops the text "trek.checksum" and makes it one of version 1.
 *
 * In a job of many processes all call, at the same place: process 0 writes, all read, and all return when all are done,
 * the others with PEER if one failed. */
#ifndef TREK_DISTRIBUTED_CHECKPOINT_H
#define TREK_DISTRIBUTED_CHECKPOINT_H

#include "data/loader.h"
#include "graph/graph.h"

TREK_BEGIN

/* loader NULL: the graph's own (trek_graph_set_loader), or none. Written beside `path`, synced and renamed: a save that
 * fails or is interrupted leaves the file that was there. Errors: IO, MEMORY, ARGUMENT (a parameter's name begins
 * "trek:"), PEER. */
TREK_API trek_status trek_checkpoint_save(trek_graph *graph, trek_loader *loader, const char *path);
/* Everything is checked first: after an error graph and loader are as they were. The loader stands where it was: what it
 * gives next is what the interrupted run would have got. Errors: IO; FORMAT for anything but a whole checkpoint; ARGUMENT if it
 * does not fit the graph, its optimizer or the loader (which name, and how); STATE if the graph has no optimizer and
 * the checkpoint one; MEMORY, PEER. */
TREK_API trek_status trek_checkpoint_load(trek_graph *graph, trek_loader *loader, const char *path);

/* Saves that training does not wait for: a call copies the state, and a thread writes the copy as trek_checkpoint_save would, so
 * that a process which is killed meanwhile leaves the file that was there. One at a time: a call waits first until the one
 * before is on disk, and fails with the error of that, if it has failed, saving nothing; the call after it begins anew. In a job
 * of many processes all call (process 0 copies and writes), and learn of that process's failures at the next one. Memory: a copy
 * of the state on the CPU, while it is written. */
typedef struct trek_checkpoint_writer trek_checkpoint_writer;
TREK_API trek_checkpoint_writer *trek_checkpoint_writer_new(void);
/* Errors: those of trek_checkpoint_save, of the save before; STATE: there can be no thread. */
TREK_API trek_status trek_checkpoint_writer_save(trek_checkpoint_writer *writer, trek_graph *graph, trek_loader *loader,
                                                 const char *path);
/* Until what this process was to write is on disk; the error if it failed. No collective: each process for itself. */
TREK_API trek_status trek_checkpoint_writer_wait(trek_checkpoint_writer *writer);
TREK_API void trek_checkpoint_writer_free(trek_checkpoint_writer **writer); /* waits, too; NULL is fine */

TREK_END

#endif

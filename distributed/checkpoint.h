/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: the state of a training run in one file, or one for each process, from which a program can continue as if it had
 * not stopped.
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
 * The file is a safetensors file. Parameters and buffers have the names of trek_state_save, so that other programs can read
 * them. The other entries are:
 * - "trek:optimizer.NAME.exp_avg" and so on: the optimizer's state of parameter NAME
 * - "trek:lr" (f64): the learning rate of each group
 * - "trek:run" (i64): finished steps, and seed, step and draw of the generator
 * - "trek:loader" (i64): epoch, given batches, samples and batch size
 * - "trek:scaler" (f64): the numbers of the loss scaler
 * - the text "trek.plan": the recorded plan of shares
 *
 * Nothing depends on the number of ranks. A run continues with the same bits on the same number of ranks with equal, fixed or
 * replayed shares, and up to rounding on another number, with a new plan. To replay a plan, the program sets it as before
 * (.plan of trek_trainer_opts). Otherwise the balancer continues from the recorded plan.
 *
 * The file does not contain options (optimizer, schedule, clipping, frozen and training flags), which the program sets as
 * before. Nor does it contain gradients that no step has used, and the states of trek_flow_using, which start again.
 *
 * A path that ends in ".index.json" stands for a set of files, which the processes of a job write at the same time:
 *
 *     trek_checkpoint_save(graph, loader, "run.safetensors.index.json");
 *
 * Each process writes about the same number of bytes, as whole tensors, to a file of its own: "run.3-00001-of-00004.safetensors"
 * and so on, where 3 is the number of the save. Then process 0 writes the index, which tells which file has which tensor, as
 * Hugging Face's programs do, and removes the files of earlier saves. All processes must see the same folder. A save that fails
 * or is interrupted leaves the earlier set. One process writes a set as well. A set has the same tensors as a single file, and
 * can be loaded on any number of processes and ranks.
 *
 * If the optimizer's state is divided (.shard), its tensors are put together one at a time. A process needs memory for one
 * tensor, and 4 MiB more if parts come from other processes.
 *
 * The files have checksums (nn/safetensors.h). A damaged file is refused, and the error names the damaged entry. A program
 * that changes a checkpoint removes the text "trek.checksum". The checkpoint is then loaded with a warning in the log.
 *
 * In a job of several processes all must call the functions at the same point. Process 0 writes (of a set, all do), all read,
 * and all return when all have finished. If a process fails, the others fail with PEER. */
#ifndef TREK_DISTRIBUTED_CHECKPOINT_H
#define TREK_DISTRIBUTED_CHECKPOINT_H

#include "data/loader.h"
#include "graph/graph.h"

TREK_BEGIN

/* Saves the state of the graph and the loader to a file, or to a set of files if `path` ends in ".index.json". If `loader` is
 * NULL, it is the graph's own loader (trek_graph_set_loader), if it has one. The file is written next to `path`, synced and
 * renamed, so a save that fails or is interrupted leaves the earlier file; so is the index of a set, after the files of the set.
 * Errors: IO, MEMORY, PEER. ARGUMENT if a parameter's name begins with "trek:", or if the processes' states do not fit
 * together. */
TREK_API trek_status trek_checkpoint_save(trek_graph *graph, trek_loader *loader, const char *path);
/* Loads the state of the graph and the loader from a file. The loader continues at the saved position: it gives next what the
 * interrupted run would have got. Everything is checked first, so an error changes neither graph nor loader.
 * Errors: IO, MEMORY, PEER. FORMAT if the file is not a whole checkpoint. ARGUMENT, which names the entry and the reason, if
 * it does not fit the graph, its optimizer or the loader. STATE if the checkpoint has an optimizer and the graph has not. */
TREK_API trek_status trek_checkpoint_load(trek_graph *graph, trek_loader *loader, const char *path);

/* Saves checkpoints while training continues. A call copies the state, and a thread writes the copy as trek_checkpoint_save
 * does, so a process that is killed leaves the earlier file. Only one checkpoint is written at a time. In a job of several
 * processes all call it, process 0 copies and writes, and the others get an error of process 0 at the next call. It needs
 * memory for a copy of the state on the CPU while the copy is written. */
typedef struct trek_checkpoint_writer trek_checkpoint_writer;
/* Returns a new writer, which the caller frees with trek_checkpoint_writer_free. */
TREK_API trek_checkpoint_writer *trek_checkpoint_writer_new(void);
/* Copies the state of the graph and the loader and returns; a thread writes it to `path`. It first waits until the previous
 * checkpoint is on disk.
 * Errors: If the previous checkpoint failed, the error of trek_checkpoint_save; nothing is saved then, and the next call saves
 * again. STATE if a thread cannot be started. UNSUPPORTED if `path` is that of a set. */
TREK_API trek_status trek_checkpoint_writer_save(trek_checkpoint_writer *writer, trek_graph *graph, trek_loader *loader,
                                                 const char *path);
/* Waits until the checkpoint of this process is on disk and returns the error if that failed. It is not a collective. */
TREK_API trek_status trek_checkpoint_writer_wait(trek_checkpoint_writer *writer);
/* Waits until the checkpoint of this process is on disk, frees the writer and sets *writer to NULL. NULL is allowed. */
TREK_API void trek_checkpoint_writer_free(trek_checkpoint_writer **writer);

TREK_END

#endif

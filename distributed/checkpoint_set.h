/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint in several files with an index, as Hugging Face's programs have them: each process of a job writes a file of its
 * own, and the first one writes the index at last.
 *
 * The files of "run.safetensors.index.json" are "run.NUMBER-00001-of-00002.safetensors" and so on. NUMBER is that of the save, so
 * that its files never replace those of the set before, which stays readable until the index is replaced. */
#ifndef TREK_DISTRIBUTED_CHECKPOINT_SET_H
#define TREK_DISTRIBUTED_CHECKPOINT_SET_H

#include "nn/state_internal.h"

/* Returns whether a path is that of a set: whether it ends in ".index.json". */
bool trek_checkpoint_is_set(const char *path);

/* What the processes divide. bytes: of each tensor; kept: [tensors][processes] how much of it each process has, which is all of
 * it for a tensor that is everywhere, or -1 if it cannot write it. */
typedef struct trek_checkpoint_shares {
    int n, processes;
    const int64_t *bytes, *kept;
} trek_checkpoint_shares;
/* Decides which process writes each tensor, [tensors]. All write about as many bytes, tensors that are divided preferably the
 * process that has most of them. Fails with MEMORY. */
trek_status trek_checkpoint_divide(const trek_checkpoint_shares *shares, int *writer);

/* Returns a number for the next save: one more than that of any file that a save has left. */
int64_t trek_checkpoint_set_next(const char *path);
/* Returns the name of the file of a process, without its folder, as a new string, or NULL with MEMORY. writer: [n] as decided. */
char *trek_checkpoint_set_file(const char *path, int64_t number, const int *writer, int n, int process);
/* Writes the file of a process: those entries of a state that it is the writer of, with their aliases, and the texts in that of
 * process 0. A process that writes no tensor has no file. Fails with IO or MEMORY; then there is none. */
trek_status trek_checkpoint_set_write(const trek_state *state, const char *path, int64_t number, const int *writer, int process);
/* Removes that file after a failure. */
void trek_checkpoint_set_remove(const char *path, int64_t number, const int *writer, int n, int process);
/* Writes the index when all files are there. Fails with IO or MEMORY; then the index is still the earlier one, or the files must
 * stay (*replaced). */
trek_status trek_checkpoint_set_finish(const trek_state *state, const char *path, int64_t number, const int *writer,
                                       bool *replaced);
/* Removes the files of all other saves. Failures do not matter. */
void trek_checkpoint_set_tidy(const char *path, int64_t number);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that writes one thing after the other, and never more than it is given: one is being written, one waits. Internal. */
#ifndef TREK_DISTRIBUTED_RUN_WRITER_H
#define TREK_DISTRIBUTED_RUN_WRITER_H

#include "nn/state.h"

/* A snapshot and the files that it becomes. */
typedef struct run_snapshot {
    trek_state *state;       /* gone once it is written */
    char *step, *best;       /* paths; NULL: not that one */
    int64_t epoch, steps;
    struct run_snapshot *next;
} run_snapshot;

run_snapshot *trek_run_snapshot_new(int64_t epoch);
void trek_run_snapshot_free(run_snapshot *snapshot);

typedef struct run_writer run_writer;
/* On the writer's thread; what fails is its error. */
typedef trek_status (*run_write_fn)(const run_snapshot *snapshot, void *arg);
typedef void (*run_tidy_fn)(int64_t step, void *arg);

/* STATE: the thread cannot be started; MEMORY. */
run_writer *trek_run_writer_new(run_write_fn write, run_tidy_fn tidy, void *arg);
/* There is place for one more, once a wait has ended. The one that waits is dropped instead if it is no best one and
 * drops_waiting says so. */
void trek_run_writer_make_room(run_writer *writer, bool drops_waiting);
/* After make_room. Takes the snapshot over. */
void trek_run_writer_give(run_writer *writer, run_snapshot *snapshot);
/* What has been written since the last time, in order, to be freed one by one. */
run_snapshot *trek_run_writer_take(run_writer *writer);
/* Has the thread call tidy, once it is free. */
void trek_run_writer_tidy(run_writer *writer, int64_t step);
/* Why a write failed, as this thread's error; after that one none is begun. */
trek_status trek_run_writer_status(run_writer *writer);
/* Waits until all is written and tidy, or a write has failed. */
void trek_run_writer_finish(run_writer *writer);
/* Finishes first. */
void trek_run_writer_free(run_writer **writer);

#endif

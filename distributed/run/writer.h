/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that writes one snapshot after the other. At most one is being written and one waits. */
#ifndef TREK_DISTRIBUTED_RUN_WRITER_H
#define TREK_DISTRIBUTED_RUN_WRITER_H

#include "nn/state.h"

/* A snapshot and the files that are made from it. */
typedef struct run_snapshot {
    trek_state *state;       /* freed when it has been written */
    char *step, *best;       /* paths; NULL: no such file */
    int64_t epoch, steps;
    struct run_snapshot *next;
} run_snapshot;

run_snapshot *trek_run_snapshot_new(int64_t epoch);
void trek_run_snapshot_free(run_snapshot *snapshot);

typedef struct run_writer run_writer;
/* Called on the writer's thread; a failure is reported as its error. */
typedef trek_status (*run_write_fn)(const run_snapshot *snapshot, void *arg);
typedef void (*run_tidy_fn)(int64_t step, void *arg);

/* Returns NULL on failure (STATE if the thread cannot be started; MEMORY). */
run_writer *trek_run_writer_new(run_write_fn write, run_tidy_fn tidy, void *arg);
/* Waits until one more snapshot can be given. If drops_waiting is true, a waiting snapshot that is not a best one is
 * dropped instead. */
void trek_run_writer_make_room(run_writer *writer, bool drops_waiting);
/* Gives a snapshot, after make_room. The writer owns it from here on. */
void trek_run_writer_give(run_writer *writer, run_snapshot *snapshot);
/* Returns what has been written since the last call, in order. The caller frees the snapshots one by one. */
run_snapshot *trek_run_writer_take(run_writer *writer);
/* Lets the thread call tidy when it is free. */
void trek_run_writer_tidy(run_writer *writer, int64_t step);
/* Returns why a write failed, as this thread's error. After a failure no further write begins. */
trek_status trek_run_writer_status(run_writer *writer);
/* Waits until everything is written and tidied, or a write has failed. */
void trek_run_writer_finish(run_writer *writer);
/* Finishes, then frees. */
void trek_run_writer_free(run_writer **writer);

#endif

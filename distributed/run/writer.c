/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that writes a run's checkpoints. Snapshots move from `waiting` to `writing` to `written`, always under
 * the lock; the lock is not held during a write. */
#include "distributed/run/writer.h"

#include <string.h>

#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/scope_internal.h"
#include "tensor/status_internal.h"

struct run_writer {
    run_write_fn write;
    run_tidy_fn tidy;
    void *arg;
    trek_thread thread;
    trek_lock lock;          /* guards everything below */
    trek_condition changed;
    run_snapshot *waiting, *writing;
    run_snapshot *written, **end; /* a list, and where its next element goes */
    int64_t tidy_step;       /* the argument for tidy; -1: nothing to do */
    bool tidying;
    trek_status status;
    char message[TREK_ERROR_SIZE];
    bool quit;
};

run_snapshot *trek_run_snapshot_new(int64_t epoch)
{
    run_snapshot *snapshot = trek_calloc(1, sizeof *snapshot);
    if (snapshot)
        snapshot->epoch = epoch;
    return snapshot;
}

void trek_run_snapshot_free(run_snapshot *snapshot)
{
    if (!snapshot)
        return;
    trek_state_free(&snapshot->state);
    trek_free(snapshot->step);
    trek_free(snapshot->best);
    trek_free(snapshot);
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Called with the lock held, which is released during the write. */
static void write_next(run_writer *w)
{
    run_snapshot *snapshot = w->writing = w->waiting;
    w->waiting = NULL;
    trek_condition_wake_all(&w->changed);
    trek_lock_release(&w->lock);
    trek_status status = w->write(snapshot, w->arg);
    char message[TREK_ERROR_SIZE] = "";
    if (status != TREK_OK) {
        trek_fail_after(status, "trainer_run: a checkpoint could not be written");
        trek_error_take(&status, message);
    }
    trek_error_clear();
    trek_state_free(&snapshot->state);
    trek_lock_acquire(&w->lock);
    w->writing = NULL;
    if (status == TREK_OK) {
        *w->end = snapshot;
        w->end = &snapshot->next;
    } else {
        w->status = status;
        memcpy(w->message, message, sizeof message);
        trek_run_snapshot_free(snapshot);
    }
    trek_condition_wake_all(&w->changed);
}

/* Called with the lock held, which is released meanwhile. */
static void tidy(run_writer *w)
{
    int64_t step = w->tidy_step;
    w->tidy_step = -1;
    w->tidying = true;
    trek_lock_release(&w->lock);
    w->tidy(step, w->arg);
    trek_error_clear(); /* files that are left are removed the next time */
    trek_lock_acquire(&w->lock);
    w->tidying = false;
    trek_condition_wake_all(&w->changed);
}

static void *run(void *arg)
{
    run_writer *w = arg;
    trek_lock_acquire(&w->lock);
    while (!w->quit)
        if (w->tidy_step >= 0) /* first, because it makes room */
            tidy(w);
        else if (w->waiting && w->status == TREK_OK)
            write_next(w);
        else
            trek_condition_wait(&w->changed, &w->lock);
    trek_lock_release(&w->lock);
    trek_scope_thread_end();
    return NULL;
}

run_writer *trek_run_writer_new(run_write_fn write, run_tidy_fn tidies, void *arg)
{
    run_writer *w = trek_calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->write = write;
    w->tidy = tidies;
    w->tidy_step = -1;
    w->arg = arg;
    w->end = &w->written;
    trek_lock_init(&w->lock);
    trek_condition_init(&w->changed);
    int failed = trek_thread_begin(&w->thread, run, w);
    if (!failed)
        return w;
    trek_fail(TREK_ERR_STATE, "trainer_run: the thread that writes checkpoints cannot be started: %s", strerror(failed));
    trek_condition_destroy(&w->changed);
    trek_lock_destroy(&w->lock);
    trek_free(w);
    return NULL;
}

void trek_run_writer_free(run_writer **writer)
{
    run_writer *w = *writer;
    *writer = NULL;
    if (!w || trek_forked) /* in a child of fork() the thread is the parent's */
        return;
    trek_run_writer_finish(w);
    trek_lock_acquire(&w->lock);
    w->quit = true;
    trek_condition_wake_all(&w->changed);
    trek_lock_release(&w->lock);
    trek_thread_join(w->thread);
    trek_run_snapshot_free(w->waiting);
    for (run_snapshot *next, *s = w->written; s; s = next) {
        next = s->next;
        trek_run_snapshot_free(s);
    }
    trek_condition_destroy(&w->changed);
    trek_lock_destroy(&w->lock);
    trek_free(w);
}

/* --- the run's thread -------------------------------------------------------------------------- */

void trek_run_writer_make_room(run_writer *w, bool drops_waiting)
{
    trek_lock_acquire(&w->lock);
    if (w->waiting && w->writing && drops_waiting && !w->waiting->best) {
        trek_run_snapshot_free(w->waiting);
        w->waiting = NULL;
    }
    while (w->waiting && w->status == TREK_OK)
        trek_condition_wait(&w->changed, &w->lock);
    trek_lock_release(&w->lock);
}

void trek_run_writer_give(run_writer *w, run_snapshot *snapshot)
{
    trek_lock_acquire(&w->lock);
    run_snapshot *refused = w->status == TREK_OK ? NULL : snapshot;
    if (!refused)
        w->waiting = snapshot;
    trek_condition_wake_all(&w->changed);
    trek_lock_release(&w->lock);
    trek_run_snapshot_free(refused);
}

run_snapshot *trek_run_writer_take(run_writer *w)
{
    trek_lock_acquire(&w->lock);
    run_snapshot *list = w->written;
    w->written = NULL;
    w->end = &w->written;
    trek_lock_release(&w->lock);
    return list;
}

void trek_run_writer_tidy(run_writer *w, int64_t step)
{
    trek_lock_acquire(&w->lock);
    w->tidy_step = step;
    trek_condition_wake_all(&w->changed);
    trek_lock_release(&w->lock);
}

trek_status trek_run_writer_status(run_writer *w)
{
    trek_lock_acquire(&w->lock);
    trek_status status = w->status;
    if (status != TREK_OK)
        trek_fail(status, "%s", w->message);
    trek_lock_release(&w->lock);
    return status;
}

void trek_run_writer_finish(run_writer *w)
{
    trek_lock_acquire(&w->lock);
    while (w->writing || w->tidying || w->tidy_step >= 0 || (w->waiting && w->status == TREK_OK))
        trek_condition_wait(&w->changed, &w->lock);
    trek_lock_release(&w->lock);
}

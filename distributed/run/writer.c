/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that writes a run's checkpoints. Snapshots go from `waiting` to `writing` to `written`, and whoever holds the
 * lock may only move them: a write itself holds nothing. */
#include "distributed/run/writer.h"

#include <pthread.h>
#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/scope_internal.h"
#include "tensor/status_internal.h"
#include "tensor/thread_start.h"

struct run_writer {
    run_write_fn write;
    run_tidy_fn tidy;
    void *arg;
    pthread_t thread;
    pthread_mutex_t lock;    /* guards all that follows */
    pthread_cond_t changed;
    run_snapshot *waiting, *writing;
    run_snapshot *written, **end; /* a list, and where its next one goes */
    int64_t tidy_step;       /* what tidy is to be called with; -1: nothing */
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

/* The lock is held, but for the time of the write. */
static void write_next(run_writer *w)
{
    run_snapshot *snapshot = w->writing = w->waiting;
    w->waiting = NULL;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    trek_status status = w->write(snapshot, w->arg);
    char message[TREK_ERROR_SIZE] = "";
    if (status != TREK_OK) {
        trek_fail_after(status, "a checkpoint could not be written");
        trek_error_take(&status, message);
    }
    trek_error_clear();
    trek_state_free(&snapshot->state);
    pthread_mutex_lock(&w->lock);
    w->writing = NULL;
    if (status == TREK_OK) {
        *w->end = snapshot;
        w->end = &snapshot->next;
    } else {
        w->status = status;
        memcpy(w->message, message, sizeof message);
        trek_run_snapshot_free(snapshot);
    }
    pthread_cond_broadcast(&w->changed);
}

/* The same. */
static void tidy(run_writer *w)
{
    int64_t step = w->tidy_step;
    w->tidy_step = -1;
    w->tidying = true;
    pthread_mutex_unlock(&w->lock);
    w->tidy(step, w->arg);
    trek_error_clear(); /* what stays is removed the next time */
    pthread_mutex_lock(&w->lock);
    w->tidying = false;
    pthread_cond_broadcast(&w->changed);
}

static void *run(void *arg)
{
    run_writer *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->quit)
        if (w->tidy_step >= 0) /* first: it makes room */
            tidy(w);
        else if (w->waiting && w->status == TREK_OK)
            write_next(w);
        else
            pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
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
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    int failed = trek_thread_start(&w->thread, run, w);
    if (!failed)
        return w;
    trek_fail(TREK_ERR_STATE, "trek_trainer_run: the thread that writes checkpoints cannot be started: %s", strerror(failed));
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    trek_free(w);
    return NULL;
}

void trek_run_writer_free(run_writer **writer)
{
    run_writer *w = *writer;
    *writer = NULL;
    if (!w)
        return;
    trek_run_writer_finish(w);
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    trek_run_snapshot_free(w->waiting);
    for (run_snapshot *next, *s = w->written; s; s = next) {
        next = s->next;
        trek_run_snapshot_free(s);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    trek_free(w);
}

/* --- the run's thread -------------------------------------------------------------------------- */

void trek_run_writer_make_room(run_writer *w, bool drops_waiting)
{
    pthread_mutex_lock(&w->lock);
    if (w->waiting && w->writing && drops_waiting && !w->waiting->best) {
        trek_run_snapshot_free(w->waiting);
        w->waiting = NULL;
    }
    while (w->waiting && w->status == TREK_OK)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

void trek_run_writer_give(run_writer *w, run_snapshot *snapshot)
{
    pthread_mutex_lock(&w->lock);
    run_snapshot *refused = w->status == TREK_OK ? NULL : snapshot;
    if (!refused)
        w->waiting = snapshot;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    trek_run_snapshot_free(refused);
}

run_snapshot *trek_run_writer_take(run_writer *w)
{
    pthread_mutex_lock(&w->lock);
    run_snapshot *list = w->written;
    w->written = NULL;
    w->end = &w->written;
    pthread_mutex_unlock(&w->lock);
    return list;
}

void trek_run_writer_tidy(run_writer *w, int64_t step)
{
    pthread_mutex_lock(&w->lock);
    w->tidy_step = step;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

trek_status trek_run_writer_status(run_writer *w)
{
    pthread_mutex_lock(&w->lock);
    trek_status status = w->status;
    if (status != TREK_OK)
        trek_fail(status, "%s", w->message);
    pthread_mutex_unlock(&w->lock);
    return status;
}

void trek_run_writer_finish(run_writer *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->writing || w->tidying || w->tidy_step >= 0 || (w->waiting && w->status == TREK_OK))
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

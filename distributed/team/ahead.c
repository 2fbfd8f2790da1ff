/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/ahead.h"

#include "tensor/memory_internal.h"

/* Buckets in the order in which they were needed. */
typedef struct needed {
    int n;
    int *list;               /* [room] */
} needed;

struct trek_ahead {
    trek_ahead_work work;
    trek_thread thread;
    trek_condition changed;
    bool stops;
    int bucket;              /* what the thread copies; -1: it is idle */
    int room, at;            /* at: what follows in `before` */
    needed before, now;      /* in the last step, and in this one */
};

/* A bucket may be needed in each of several passes of a step, forward and backward. */
enum { PASSES = 16 };

static void *run(void *arg)
{
    trek_ahead *ahead = arg;
    trek_thread_name(trek_thread_self(), "trek-ahead");
    trek_lock_acquire(ahead->work.lock);
    while (!ahead->stops) {
        int bucket = ahead->bucket;
        if (bucket < 0) {
            trek_condition_wait(&ahead->changed, ahead->work.lock);
            continue;
        }
        trek_lock_release(ahead->work.lock);
        trek_status status = ahead->work.copy(ahead->work.arg, bucket);
        trek_error_clear(); /* whoever needs it tries again, and reports it */
        trek_lock_acquire(ahead->work.lock);
        ahead->work.ended(ahead->work.arg, bucket, status);
        ahead->bucket = -1;
        trek_condition_wake_all(&ahead->changed);
    }
    trek_lock_release(ahead->work.lock);
    return NULL;
}

static void drop(trek_ahead *ahead)
{
    trek_free(ahead->before.list);
    trek_free(ahead->now.list);
    trek_free(ahead);
}

trek_ahead *trek_ahead_new(const trek_ahead_work *work, int n)
{
    trek_ahead *ahead = trek_calloc(1, sizeof *ahead);
    if (!ahead)
        return NULL;
    *ahead = (trek_ahead){ .work = *work, .bucket = -1, .room = n * PASSES };
    ahead->before.list = trek_calloc((size_t)ahead->room, sizeof *ahead->before.list);
    ahead->now.list = trek_calloc((size_t)ahead->room, sizeof *ahead->now.list);
    bool made = ahead->before.list && ahead->now.list && trek_condition_init(&ahead->changed);
    if (made && !work->copy)
        return ahead;
    if (made && trek_thread_begin(&ahead->thread, run, ahead) == 0)
        return ahead;
    if (made)
        trek_condition_destroy(&ahead->changed);
    drop(ahead);
    trek_fail(TREK_ERR_MEMORY, "trainer_setup: .overlap: the system has no further thread");
    return NULL;
}

void trek_ahead_free(trek_ahead **address)
{
    trek_ahead *ahead = *address;
    *address = NULL;
    if (!ahead)
        return;
    trek_lock_acquire(ahead->work.lock);
    ahead->stops = true;
    trek_condition_wake_all(&ahead->changed);
    trek_lock_release(ahead->work.lock);
    if (ahead->work.copy)
        trek_thread_join(ahead->thread);
    trek_condition_destroy(&ahead->changed);
    drop(ahead);
}

/* Finds a bucket in what was needed before, from a place on. Returns the place behind it, or -1. */
static int find(const needed *before, int from, int bucket)
{
    for (int k = from; k < before->n; k++)
        if (before->list[k] == bucket)
            return k + 1;
    return -1;
}

void trek_ahead_note(trek_ahead *ahead, int bucket)
{
    if (ahead->now.n < ahead->room)
        ahead->now.list[ahead->now.n++] = bucket;
    int next = find(&ahead->before, ahead->at, bucket);
    ahead->at = next >= 0 ? next : find(&ahead->before, 0, bucket);
    ahead->at = ahead->at >= 0 ? ahead->at : 0;
}

int trek_ahead_next(const trek_ahead *ahead) { return ahead->at < ahead->before.n ? ahead->before.list[ahead->at] : -1; }

void trek_ahead_begin(trek_ahead *ahead, bool forget)
{
    needed swapped = ahead->before;
    if (forget || ahead->now.n > 0) {
        ahead->before = ahead->now;
        ahead->now = swapped;
    }
    ahead->now.n = 0;
    ahead->before.n = forget ? 0 : ahead->before.n;
    ahead->at = 0;
}

void trek_ahead_wait(trek_ahead *ahead)
{
    while (ahead->bucket >= 0)
        trek_condition_wait(&ahead->changed, ahead->work.lock);
}

void trek_ahead_start(trek_ahead *ahead, int bucket)
{
    ahead->bucket = bucket;
    trek_condition_wake_all(&ahead->changed);
}

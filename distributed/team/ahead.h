/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that gathers a bucket of divided parameters while its rank computes with another one (divided.h), and a guess which
 * one that is: what followed in the step before. A wrong guess costs a copy, and changes nothing else. */
#ifndef TREK_DISTRIBUTED_TEAM_AHEAD_H
#define TREK_DISTRIBUTED_TEAM_AHEAD_H

#include "distributed/system/system.h"
#include "tensor/status.h"

typedef struct trek_ahead trek_ahead;

/* copy is called by the thread, without the lock; ended with it, after that. copy NULL: there is no thread, only the guess, and
 * trek_ahead_start is not called. */
typedef struct trek_ahead_work {
    trek_status (*copy)(void *arg, int bucket);
    void (*ended)(void *arg, int bucket, trek_status status);
    void *arg;
    trek_lock *lock;         /* held by whoever calls the functions below, except new and free */
} trek_ahead_work;

/* Starts the thread. n: the number of buckets. Returns NULL with MEMORY. */
trek_ahead *trek_ahead_new(const trek_ahead_work *work, int n);
void trek_ahead_free(trek_ahead **ahead);

/* Notes that a bucket was needed. */
void trek_ahead_note(trek_ahead *ahead, int bucket);
/* Returns the bucket that will be needed next, or -1 if nothing is known. */
int trek_ahead_next(const trek_ahead *ahead);
/* Begins a step: what follows in it was noted in the one before. forget: buckets have other numbers. */
void trek_ahead_begin(trek_ahead *ahead, bool forget);
/* Waits until the thread is idle. */
void trek_ahead_wait(trek_ahead *ahead);
/* Lets the idle thread copy a bucket. */
void trek_ahead_start(trek_ahead *ahead, int bucket);

#endif

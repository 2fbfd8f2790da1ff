/* SPDX-License-Identifier: Apache-2.0 */
/* Loaders ask for their process's part of a batch through trek_job_here (tensor/rank_context.h), on any thread. */
#include "distributed/pass/division.h"

#include <stdatomic.h>

#include "distributed/balance/apportion.h"
#include "distributed/job/survival.h"
#include "distributed/system/system.h"
#include "distributed/team/step.h"
#include "tensor/rank_context.h"

typedef struct division_state {
    trek_lock lock;
    trek_step *steppers; /* of graphs that train over processes; the one set up last is the first, and its shares are used */
    int processes, process;
    int64_t unit;            /* batches are divided into parts of whole units of this many samples */
    double shares[TREK_MAX_RANKS];
} division_state;

TREK_PER_PROCESS(division_state, division, { .lock = TREK_LOCK_INIT });

bool trek_division_is_alone(const trek_step *s)
{
    trek_lock_acquire(&division()->lock);
    bool alone = division()->steppers == s && !s->next_divider;
    trek_lock_release(&division()->lock);
    return alone;
}

/* Divides into whole units by the shares of so many processes. */
static void divide_by(const double *shares, int processes, int64_t unit, int64_t total, int64_t *first)
{
    int64_t counts[TREK_MAX_RANKS], at = 0;
    trek_apportion((total + unit - 1) / unit, shares, processes, counts);
    for (int p = 0; p <= processes; p++) {
        first[p] = at * unit < total ? at * unit : total;
        at += p < processes ? counts[p] : 0;
    }
}

/* Called with the lock held. */
static void divide(int64_t total, int64_t *first)
{
    divide_by(division()->shares, division()->processes, division()->unit, total, first);
}

void trek_division_of(int64_t total, int64_t *first)
{
    trek_lock_acquire(&division()->lock);
    divide(total, first);
    trek_lock_release(&division()->lock);
}

static void cut(int64_t total, int64_t *first, int64_t *rows)
{
    int64_t all[TREK_MAX_RANKS + 1];
    trek_lock_acquire(&division()->lock);
    divide(total, all);
    *first = all[division()->process];
    *rows = all[division()->process + 1] - *first;
    trek_lock_release(&division()->lock);
}

/* A process that has come has no part yet. */
static void cut_nothing(int64_t total, int64_t *first, int64_t *rows)
{
    *first = total;
    *rows = 0;
}

static int64_t unit_of(const trek_step *s) { return s->grain > 0 ? s->grain : 1; }

/* Adds up the shares of the ranks of each process. */
static void add_shares(const trek_step *s, double *of_processes)
{
    const double *shares = trek_ranks_shares(s);
    for (int p = 0, at = 0; p < s->job.processes; p++) {
        of_processes[p] = 0;
        for (int r = 0; r < s->job.process_ranks[p]; r++)
            of_processes[p] += shares[at++];
    }
}

void trek_division_of_job(const trek_step *s, int64_t total, int64_t *first)
{
    double shares[TREK_MAX_RANKS];
    add_shares(s, shares);
    divide_by(shares, s->job.processes, unit_of(s), total, first);
}

/* Called with the lock held. */
static void take_shares(const trek_step *s)
{
    division()->processes = s->job.processes;
    division()->process = s->job.process;
    division()->unit = unit_of(s);
    add_shares(s, division()->shares);
    trek_job_here.process = s->job.process;
    trek_job_here.processes = s->job.processes;
    atomic_store(&trek_job_here.cut, cut);
}

static void publish(trek_step *s, trek_job_cut divides)
{
    trek_lock_acquire(&division()->lock);
    if (!s->divides) {
        s->divides = true;
        s->next_divider = division()->steppers;
        division()->steppers = s;
    }
    const trek_step *first = division()->steppers; /* it may have waited for the same step */
    if (first == s || (s->job.survival && first->job.survival == s->job.survival)) {
        take_shares(first);
        atomic_store(&trek_job_here.cut, divides);
    }
    trek_lock_release(&division()->lock);
    trek_job_here.version++;
}

void trek_division_publish(trek_step *s)
{
    if (trek_job_has_others(&s->job) && !(s->job.survival && s->job.survival->held))
        publish(s, cut);
}

void trek_division_publish_nothing(trek_step *s) { publish(s, cut_nothing); }

void trek_division_withdraw(trek_step *s)
{
    if (!s->divides)
        return;
    trek_lock_acquire(&division()->lock);
    trek_step **link = &division()->steppers;
    while (*link != s)
        link = &(*link)->next_divider;
    *link = s->next_divider;
    if (division()->steppers) {
        take_shares(division()->steppers);
    } else {
        trek_job_here.process = 0;
        trek_job_here.processes = 1;
        atomic_store(&trek_job_here.cut, NULL);
    }
    trek_lock_release(&division()->lock);
    trek_job_here.version++;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/grains/counter.h"

#include <string.h>

#include "distributed/balance/handout.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* Part of its own range that a process has without asking. */
#define AHEAD 0.25
/* The number of a question: the pass, and how many the process has asked before in it. */
#define QUESTION_BITS 20

struct trek_grain_counter {
    trek_control *control;
    int subject, process, processes;
    trek_lock lock;          /* of all that follows */
    uint64_t serial, asked;  /* the pass; questions that were asked in it */
    int ranks;
    int64_t first, end;      /* grains that the process has and no rank has taken */
    int64_t next, next_end;  /* those of an answer that has come early */
    bool waits, over;        /* an answer is to come; there are no more */
    int64_t *question;       /* [3 + 2 * processes] */
    trek_grain_ledger ledger; /* process 0 */
};

/* --- what process 0 keeps --------------------------------------------------------------------------- */

/* How many grains of a range its process has without asking. */
static int64_t ahead_of(int64_t n)
{
    int64_t ahead = (int64_t)(AHEAD * (double)n);
    return n > 0 && ahead < 1 ? 1 : ahead;
}

/* Begins a pass. The numbers come from the network. */
static bool begin_ledger(trek_grain_ledger *l, uint64_t serial, const int64_t *first, int64_t count)
{
    if (count != 2 * l->processes + 1)
        return false;
    for (int p = 0; p < l->processes; p++)
        if (first[p] < 0 || first[p] > first[p + 1] || first[p + 1] > INT32_MAX)
            return false;
    for (int p = 0; p < l->processes; p++) {
        l->first[p] = first[p] + ahead_of(first[p + 1] - first[p]);
        l->end[p] = first[p + 1];
        memcpy(&l->speed[p], &first[l->processes + 1 + p], sizeof l->speed[p]);
        if (!(l->speed[p] > 0 && l->speed[p] < 1e300))
            l->speed[p] = 1e-9;
        l->given[p] = l->first[p] - first[p];
        l->pace[p] = 0;
    }
    l->start_ns = trek_now_ns();
    l->serial = serial;
    return true;
}

static int64_t left_in(const trek_grain_ledger *l)
{
    int64_t left = 0;
    for (int p = 0; p < l->processes; p++)
        left += l->end[p] - l->first[p];
    return left;
}

/* Returns the process whose range would last longest. */
static int richest(const trek_grain_ledger *l)
{
    int found = 0;
    for (int p = 1; p < l->processes; p++)
        if ((double)(l->end[p] - l->first[p]) / l->speed[p] > (double)(l->end[found] - l->first[found]) / l->speed[found])
            found = p;
    return found;
}

/* Returns how fast a process is now. `known`: the pace of those that have asked, for a unit of speed. One that has not asked has
 * not done yet what it has from the beginning. */
static double rate_of(const trek_grain_ledger *l, int process, double known, double elapsed)
{
    if (l->pace[process] != 0)
        return l->pace[process] > 0 ? l->pace[process] : 0;
    double expected = l->speed[process] * (known > 0 ? known : 1), most = ((double)l->given[process] + 0.5) / elapsed;
    return known > 0 && expected > most ? most : expected;
}

/* Finds a process's part of the speed of all, and that of the fastest one. */
static double part_of(const trek_grain_ledger *l, int process, double elapsed, double *fastest)
{
    double pace = 0, speed = 0, sum = 0, most = 0;
    for (int p = 0; p < l->processes; p++) {
        pace += l->pace[p] > 0 ? l->pace[p] : 0;
        speed += l->pace[p] > 0 ? l->speed[p] : 0;
    }
    double known = speed > 0 ? pace / speed : 0;
    for (int p = 0; p < l->processes; p++) {
        double rate = rate_of(l, p, known, elapsed);
        sum += rate;
        most = rate > most ? rate : most;
    }
    *fastest = most / sum;
    return rate_of(l, process, known, elapsed) / sum;
}

/* Gives a process grains from the front of its own range, or from the back of another one. */
static void give(trek_grain_ledger *l, int process, int64_t ranks, int64_t *answer)
{
    double elapsed = (double)(trek_now_ns() - l->start_ns) + 1, fastest;
    int64_t done = l->given[process] - ranks;
    l->pace[process] = done > 0 ? (double)done / elapsed : 0;
    double part = part_of(l, process, elapsed, &fastest);
    int64_t n = trek_handout_next(left_in(l), part, fastest, 1);
    int from = l->first[process] < l->end[process] ? process : richest(l);
    int64_t has = l->end[from] - l->first[from];
    n = n < has ? n : has;
    answer[0] = from == process ? l->first[from] : l->end[from] - n;
    answer[1] = n;
    l->given[process] += n;
    if (n == 0) /* it does not come again, so the others must take what is left */
        l->pace[process] = -1;
    if (from == process)
        l->first[from] += n;
    else
        l->end[from] -= n;
}

void trek_grain_ledger_answer(void *arg, int process, uint64_t number, const int64_t *question, int64_t count, int64_t *answer)
{
    trek_grain_ledger *l = arg;
    uint64_t serial = number >> QUESTION_BITS;
    if (count < 2 || process < 0 || process >= l->processes)
        return;
    if (serial > l->serial && !begin_ledger(l, serial, question + 2, count - 2))
        return;
    if (serial != l->serial) /* of a pass that is over */
        return;
    if (question[1] > 0)
        give(l, process, question[1], answer);
    else
        answer[0] = left_in(l);
}

/* --- beginning and end ------------------------------------------------------------------------------- */

static void free_memory(trek_grain_counter *c)
{
    trek_free(c->question);
    trek_free(c->ledger.first);
    trek_free(c->ledger.end);
    trek_free(c->ledger.speed);
    trek_free(c->ledger.given);
    trek_free(c->ledger.pace);
    trek_free(c);
}

static bool make_memory(trek_grain_counter *c)
{
    size_t n = (size_t)c->processes;
    c->question = trek_calloc(3 + 2 * n, sizeof *c->question);
    if (c->process > 0)
        return c->question;
    c->ledger = (trek_grain_ledger){ .processes = c->processes, .first = trek_calloc(n, sizeof *c->ledger.first),
                                     .end = trek_calloc(n, sizeof *c->ledger.end),
                                     .speed = trek_calloc(n, sizeof *c->ledger.speed),
                                     .given = trek_calloc(n, sizeof *c->ledger.given),
                                     .pace = trek_calloc(n, sizeof *c->ledger.pace) };
    const trek_grain_ledger *l = &c->ledger;
    return c->question && l->first && l->end && l->speed && l->given && l->pace;
}

/* Returns NULL if there is no memory, or no subject left. */
static trek_grain_counter *new_counter(const trek_comm *comm)
{
    trek_grain_counter *c = trek_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->control = comm->control;
    c->process = comm->rank;
    c->processes = comm->world;
    bool made = make_memory(c) && trek_lock_init(&c->lock);
    c->subject = made ? trek_control_subject(c->control, trek_grain_ledger_answer, &c->ledger) : -1;
    if (c->subject >= 0)
        return c;
    if (made)
        trek_lock_destroy(&c->lock);
    free_memory(c);
    return NULL;
}

void trek_grain_counter_free(trek_grain_counter **counter)
{
    trek_grain_counter *c = *counter;
    *counter = NULL;
    if (!c)
        return;
    trek_control_drop_subject(c->control, c->subject);
    trek_lock_destroy(&c->lock);
    free_memory(c);
}

trek_status trek_grain_counter_make(trek_comm *comm, trek_grain_counter **counter)
{
    *counter = NULL;
    if (!comm->control)
        return TREK_OK;
    trek_grain_counter *c = new_counter(comm);
    if (!c)
        trek_error_clear();
    /* A process whose set-up has failed before may number its subjects otherwise. */
    double least = c ? c->subject : -1, most = -least;
    trek_status status = trek_comm_all_reduce_scalar(comm, &least, TREK_REDUCTION_MIN);
    if (status == TREK_OK)
        status = trek_comm_all_reduce_scalar(comm, &most, TREK_REDUCTION_MIN);
    if (status == TREK_OK && c && least >= 0 && least == -most)
        *counter = c;
    else
        trek_grain_counter_free(&c);
    return status;
}

/* --- a pass ------------------------------------------------------------------------------------------ */

void trek_grain_counter_begin(trek_grain_counter *c, const trek_grain_division *division, int ranks)
{
    trek_lock_acquire(&c->lock);
    c->serial = division->serial;
    c->asked = 0;
    c->ranks = ranks;
    c->first = division->first[c->process];
    c->end = c->first + ahead_of(division->first[c->process + 1] - c->first);
    c->next = c->next_end = 0;
    c->waits = c->over = false;
    memcpy(c->question + 2, division->first, (size_t)(c->processes + 1) * sizeof *division->first);
    memcpy(c->question + 3 + c->processes, division->speed, (size_t)c->processes * sizeof *division->speed);
    trek_lock_release(&c->lock);
}

static void ask(trek_grain_counter *c, bool wants)
{
    c->question[1] = wants ? c->ranks : 0;
    trek_control_ask(c->control, c->subject, c->serial << QUESTION_BITS | c->asked, c->question,
                     c->asked == 0 ? 3 + 2 * c->processes : 2);
    c->asked++;
    c->waits = true;
}

/* Takes the answer to a question for grains. */
static trek_status hear(trek_grain_counter *c, bool wait)
{
    int64_t answer[TREK_CONTROL_ANSWERS];
    bool has;
    trek_status status = trek_control_answer(c->control, c->subject, wait, answer, &has);
    if (status != TREK_OK || !has)
        return status;
    c->waits = false;
    c->over = answer[1] <= 0;
    c->next = answer[0];
    c->next_end = answer[0] + answer[1];
    return TREK_OK;
}

trek_status trek_grain_counter_take(trek_grain_counter *c, int64_t *number)
{
    trek_status status = TREK_OK;
    *number = -1;
    trek_lock_acquire(&c->lock);
    while (status == TREK_OK && c->first >= c->end && !(c->over && c->next >= c->next_end)) {
        if (c->next < c->next_end) {
            c->first = c->next;
            c->end = c->next_end;
            c->next = c->next_end = 0;
        } else {
            if (!c->waits)
                ask(c, true);
            status = hear(c, true);
        }
    }
    if (status == TREK_OK && c->first < c->end)
        *number = c->first++;
    if (c->waits)
        status = status == TREK_OK ? hear(c, false) : status;
    else if (status == TREK_OK && !c->over && c->next >= c->next_end && c->end - c->first < c->ranks)
        ask(c, true);
    trek_lock_release(&c->lock);
    return status;
}

/* Before the rank comes again, each other one of its process takes a grain. */
int64_t trek_grain_counter_expect(trek_grain_counter *c)
{
    trek_lock_acquire(&c->lock);
    int64_t after = c->ranks - 1, left = c->end - c->first, number = -1;
    if (after < left)
        number = c->first + after;
    else if (after - left < c->next_end - c->next)
        number = c->next + after - left;
    trek_lock_release(&c->lock);
    return number;
}

int64_t trek_grain_counter_left(trek_grain_counter *c)
{
    int64_t answer[TREK_CONTROL_ANSWERS] = { -1 };
    bool has;
    trek_lock_acquire(&c->lock);
    trek_status status = c->waits ? hear(c, true) : TREK_OK;
    if (status == TREK_OK) {
        ask(c, false);
        status = trek_control_answer(c->control, c->subject, true, answer, &has);
        c->waits = false;
    }
    trek_lock_release(&c->lock);
    return status == TREK_OK ? answer[0] : -1;
}

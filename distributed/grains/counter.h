/* SPDX-License-Identifier: Apache-2.0 */
/* The grains of a pass that nobody has yet, for processes that share no memory: process 0 keeps what is left of each process's
 * range, and hands it out over the control channel.
 *
 * A process has the first grains of its range from the beginning. Then it asks for more, and process 0 gives it some of what is
 * left of its range, or, when that is empty, of the range that would last longest: about half of its part of all that is left, so
 * that the pieces become smaller towards the end (balance/handout.h). Its part is that of its pace in this pass, as far as
 * process 0 knows it from the questions; otherwise that of its measured speed. It asks when its ranks begin the last grains that
 * they have, so the answer has come when they need it. The thread of the control channel answers, so nobody waits for what
 * process 0 itself does. */
#ifndef TREK_DISTRIBUTED_GRAINS_COUNTER_H
#define TREK_DISTRIBUTED_GRAINS_COUNTER_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"

typedef struct trek_grain_counter trek_grain_counter;

/* Makes what all passes of a graph need, as a collective. *counter is NULL in all processes if there is no control channel, if a
 * process has no memory for it, or if they do not give it the same number. Fails with errors of the engine. */
trek_status trek_grain_counter_make(trek_comm *comm, trek_grain_counter **counter);
void trek_grain_counter_free(trek_grain_counter **counter);

/* How the grains of a pass are divided before it begins, equal in all processes. */
typedef struct trek_grain_division {
    uint64_t serial;         /* of the pass: later than those of the passes before */
    const int64_t *first;    /* [processes + 1] where the range of each process begins */
    const double *speed;     /* [processes] */
} trek_grain_division;

/* Begins a pass on this process, whose grains `ranks` ranks take. */
void trek_grain_counter_begin(trek_grain_counter *counter, const trek_grain_division *division, int ranks);
/* Takes a grain, and waits for process 0 if that is necessary. *number: -1 if none is left for this process. Ranks may call it at
 * the same time. Fails if the group ends. */
trek_status trek_grain_counter_take(trek_grain_counter *counter, int64_t *number);
/* Returns the number of the grain that a rank will probably take after the next grain that it runs; -1: it is not known. */
int64_t trek_grain_counter_expect(trek_grain_counter *counter);
/* Returns how many grains of the pass process 0 still has; -1 if the group ends. A rank may ask while no other one takes. */
int64_t trek_grain_counter_left(trek_grain_counter *counter);

/* What process 0 keeps. */
typedef struct trek_grain_ledger {
    int processes;
    uint64_t serial;         /* of the pass; 0: none yet */
    int64_t *first, *end;    /* [processes] what is left of each range */
    double *speed;           /* [processes] */
    int64_t *given;          /* [processes] how many grains each has received, including those that it had from the beginning */
    double *pace;            /* [processes] how many grains each had computed in a nanosecond when it last asked. 0: it has not
                              * asked yet. -1: it asked and received none */
    int64_t start_ns;        /* when the pass began here */
} trek_grain_ledger;
/* Answers a question, as trek_control_answer_fn; arg: a trek_grain_ledger. question[1]: 0 if no grains are wanted;
 * otherwise the number of ranks that want them, which begin the last ones that they have; question[2] on: the division, if it is
 * the process's first question in the pass. answer: the first grain, and how many; or how many are left, if none are wanted. */
void trek_grain_ledger_answer(void *arg, int process, uint64_t number, const int64_t *question, int64_t count, int64_t *answer);

#endif

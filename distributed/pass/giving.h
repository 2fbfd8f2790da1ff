/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a job on its way to processes that have come (pass/arrivals.h).
 *
 * Parameters and the optimizer's state do not change between two steps, and all processes have the same. So each of them supplies
 * its own (control/supply.h) while it runs the grains of the next pass, and a process that has come fetches pieces from all of
 * them at the same time. The rest (buffers, which grains change for a while, and numbers) is little. Process 0 tells it before
 * the pass.
 *
 * Before the pass ends, the processes that supply wait until all that have come have ended their connections. */
#ifndef TREK_DISTRIBUTED_PASS_GIVING_H
#define TREK_DISTRIBUTED_PASS_GIVING_H

#include "distributed/job/job_file.h"
#include "distributed/job/survival.h"

typedef struct trek_step trek_step;
typedef struct trek_giving trek_giving;

/* What a process says of what it gives. */
typedef struct trek_giving_card {
    int64_t bytes;           /* of the state as a file; -1: it cannot give it */
    int64_t head, told;      /* bytes of the file's head, and of what process 0 tells */
    uint64_t layout;         /* a hash of the head: those that have the same supply the same bytes */
    int32_t port;            /* at which it supplies; 0: it does not */
    int32_t taker;           /* the number, in the job, of a process that has come; -1: it has not just come */
} trek_giving_card;

/* --- in a process that has the state --- */

/* Begins to supply, if that has not begun. If it cannot, the card says so, and the log why. */
trek_giving_card trek_giving_begin(trek_step *s);
/* Notes who has come. all: the cards of all processes. */
void trek_giving_note(trek_step *s, const trek_giving_card *all);
/* Waits until those that have come, and live, have everything. Does nothing if nobody has. */
void trek_giving_await(trek_step *s);
void trek_giving_end(trek_step *s);

/* --- in both --- */

/* Tells those that have come what process 0 tells, as a collective of the job. taking NULL: this process has it. */
typedef struct trek_taking trek_taking;
trek_status trek_giving_tell(trek_step *s, const trek_giving_card *all, trek_taking *taking);

/* --- in a process that has come --- */

struct trek_taking {
    trek_job_file file;      /* fd -1: none yet */
    int64_t head;            /* bytes of its head */
    trek_supply_range *missing; /* what it must fetch */
    int n_missing;
    int n_suppliers;         /* where it can: they stay where they are if another group meets */
    trek_supplier suppliers[TREK_MAX_RANKS];
};

/* Makes the memory for the file, as far as this process knows what it will need, before others wait for it. */
void trek_taking_reserve(const trek_step *s, trek_taking *taking);
/* Fetches what is missing in the file. Fails as trek_supply_fetch does. */
trek_status trek_taking_fetch(trek_step *s, trek_taking *taking);
void trek_taking_clear(trek_taking *taking);

#endif

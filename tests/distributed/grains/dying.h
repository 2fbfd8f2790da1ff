/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that kill themselves at a moment which their part names: "at=grain:3", where this span begins for the third time,
 * counted from 0, with "_" for a space in its name; "before=7" and "after=7", at that call of the first group's communicator,
 * counted from the first grain on. With "late=7" that call fails when another process has died, although it has ended for the
 * others; with "late=7,of-process=2" when process 2 is dead. With "stops=grain:3:200" it stands still at this moment for 200 ms
 * (SIGSTOP). "threads=2": of each rank. */
#ifndef TREK_TESTS_DYING_H
#define TREK_TESTS_DYING_H

#include "distributed/comm/comm_internal.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/processes.h"

/* A part of a world: what a process is told besides the detail of all, and how it ends. */
typedef struct role {
    const char *text;        /* with "as=": it comes later, in the place of that process; NULL: there are no further ones */
    bool dies, may_live;     /* may_live: the moment at which it dies need not come */
    bool may_lose;           /* a part of the divided state may be lost with the two that keep it; then it says so */
    const char *fails;       /* a pattern of what it says then; NULL: it does not fail */
} role;
#define LIVES(what) { .text = (what) }
#define DIES(when) { .text = (when), .dies = true }
#define REPORTS(what, words) { .text = (what), .fails = "*" words "*" }

/* --- in a process --- */

/* Returns what stands behind a name with which a word of a text begins, as "grain=" in "at=sync:1,grain=3"; NULL if none does. */
const char *dying_word(const char *text, const char *name);
/* Returns the number behind a name, or `unset`. */
int dying_number(const char *text, const char *name, int unset);
/* Returns the number behind "divided=", or 0 on GPUs, whose grains divide the state only. */
int dying_level(const char *text);
/* Returns the communicator of so many processes. On failure it returns NULL, and the process has said why. */
trek_comm *dying_join(const part *me, int processes);
/* A moment at which the process may have to die: "at=NAME:2", when it comes for the third time. Spans of training are such
 * moments. */
void dying_enter(const char *name);
/* Begins: the part and the communicator stay the caller's. The latter may be NULL: then no call is counted. */
void dying_begin(const part *me, trek_comm *comm);
void dying_end(void);
/* With "in=FOLDER" in a part's text, processes can wait for each other by files of that folder. One that kills itself gives the
 * sign "dead" with its number, and one that was to come in the place of another one ("as=") the sign "come" with its "turn=". */
void dying_give_sign(const char *what, int number);
bool dying_has_sign(const char *what, int number);
/* Ends the process if the sign does not come. */
void dying_await_sign(const char *what, int number);
/* Counts calls from here on, in a program that trains no grains. */
void dying_count_calls(void);
/* Returns how many calls have been made. */
int dying_calls(void);
/* Sets the number of threads, before the first one begins. */
void dying_set_threads(const part *me);
/* Returns the training that a text describes. */
grain_run dying_run(const char *text);
/* Says what has come of it, or the error if result is NULL, and frees the communicator. Returns how the process ends. */
int dying_report(const grain_result *result, trek_comm *comm);

/* --- in the test --- */

/* Appends to a detail of all what changes no bits, or changes them for all alike, as it is drawn: bf16, grains that take random
 * times, threads, Gloo. */
void dying_draw_ways(uint64_t *seed, char *detail, size_t size);
/* Appends to a process's text a moment at which it stands still, or nothing, as it is drawn. */
void dying_draw_stop(uint64_t *seed, char *text, size_t size);
/* Returns the digest of one process that trains alone. last_only: see grain_run. */
uint64_t dying_digest(const char *detail, bool last_only);
/* Returns the roles of n processes. deaths[p]: when process p dies; NULL: it does not. They live until the next call. */
const role *dying_roles(int n, const char *const *deaths);
/* Runs these processes to their ends. What each is told itself counts more than the detail of all. */
void dying_play(world *w, const char *detail, const role *roles);
/* The same, and all that live must come to that digest, and know that `left` ranks are left; -1: any number. Returns how many
 * calls process 0 has made in the first group. */
int dying_expect(const char *detail, const role *roles, uint64_t digest, int left);
/* Runs three processes, all of which are required (.min_processes is 3), and of which process 1 dies. The other two must end with
 * an error that names it. */
void dying_leave_too_few(void);

#endif

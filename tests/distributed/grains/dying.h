/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that kill themselves at a moment which their part names: "at=grain:3", where this span begins for the third time,
 * counted from 0, with "_" for a space in its name; "before=7" and "after=7", at that call of the first group's communicator,
 * counted from the first grain on. */
#ifndef TREK_TESTS_DYING_H
#define TREK_TESTS_DYING_H

#include "distributed/comm/comm_internal.h"
#include "tests/support/processes.h"

/* Begins: the part and the communicator stay the caller's. The latter may be NULL: then no call is counted. */
void dying_begin(const part *me, trek_comm *comm);
void dying_end(void);
/* With "in=FOLDER" in a part's text, processes can wait for each other by files of that folder. One that kills itself gives the
 * sign "dead" with its number, and one that was to come in the place of another one ("as=") the sign "come" with its "turn=". */
void dying_give_sign(const char *what, int number);
bool dying_has_sign(const char *what, int number);
void dying_await_sign(const char *what, int number);
/* Returns how many calls have been made. */
int dying_calls(void);
/* Returns the number behind a name in a part's text, or `unset`. */
int dying_number(const char *text, const char *name, int unset);
/* Runs three processes, all of which are required (.min_processes is 3), and of which process 1 dies. The other two must end with
 * an error that names it. */
void dying_leave_too_few(world *w);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that train in grains, and those that come to them ("as="): in the place of process 1
 * ("as=1"), or as newcomers that were not in the job before ("as=new"). Others are told more: "of=3", the number of processes
 * with which the job begins; "after=2", that it comes when process 2 has died; "apart", that it runs on another machine. */
#ifndef TREK_TESTS_ARRIVING_H
#define TREK_TESTS_ARRIVING_H

#include "tests/distributed/grains/dying.h"

/* Begins a process's part: *comm is that of the processes with which the job begins, and NULL in one that comes, which returns
 * when it is its turn. Returns false if it cannot begin, and has said why. */
bool arriving_begin(const part *me, trek_comm **comm);
void arriving_end(void);
/* "waits=3": with three complete steps nobody goes on before a process has arrived; "again=5": with five, before two have. */
void arriving_wait(trek_graph *graph);
/* Is a process's part, with a loop of its own. Returns how it ends. */
int arriving_play(const part *me);
/* All that live must have the bits of one that trains alone, and know that `left` ranks are there. */
void arriving_expect(const char *detail, const role *roles, int left);
/* Returns whether processes can be made that seem to be on another machine. */
bool arriving_machines(void);

#endif

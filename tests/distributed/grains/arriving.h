/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that train in grains, in a loop of their own, and those that come to them ("as="): in the place of process 1
 * ("as=1"), or as newcomers that were not in the job before ("as=new"). Others are told more: "of=3", the number of processes
 * with which the job begins; "after=2", that it comes when process 2 has died; "apart", that it runs on another machine. */
#ifndef TREK_TESTS_ARRIVING_H
#define TREK_TESTS_ARRIVING_H

#include "tests/distributed/grains/dying.h"

/* Is a process's part. Returns how it ends. */
int arriving_play(const part *me);
/* All that live must have the bits of one that trains alone, and know that `left` ranks are there. */
void arriving_expect(const char *detail, const role *roles, int left);
/* Returns whether processes can be made that seem to be on another machine. */
bool arriving_machines(void);

#endif

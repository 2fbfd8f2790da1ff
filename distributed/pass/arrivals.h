/* SPDX-License-Identifier: Apache-2.0 */
/* How a process comes to a job that goes on when processes die (job/survival.h), in a loop of the program's own or in a run.
 *
 * It makes its step in a job of its own, and then waits until the others let it in (trek_arrivals_join). They do that where the
 * first pass of a step begins. At this place a process has no gradients, and the one that comes will be here, too, when its own
 * loop has begun at the same batch. The processes form a group with it, and process 0 tells it where they are. Then all meet in a
 * commit. If processes die meanwhile, those that are left begin again. After the commit the others run their pass, and the one
 * that has come fetches the state from them (giving.h). It has it when it comes to the end of this pass, where they wait for it.
 *
 * In grains the others have divided the batch before, so the one that has come has no part of it. It has one from the next step
 * on. Without grains the new group divides the batch anew (redo.h). */
#ifndef TREK_DISTRIBUTED_PASS_ARRIVALS_H
#define TREK_DISTRIBUTED_PASS_ARRIVALS_H

#include "distributed/pass/survivors.h"

struct trek_batch;

/* Called where the first pass of a step begins, with its batch. Lets processes in that wait. In a process that has come it checks
 * that the loop is where the others are; if not, this process leaves the job, and the function fails with STATE. */
trek_status trek_arrivals_look(trek_step *s, const struct trek_batch *batch);
/* Joins a job that is at work. The step has been made in a job of one, as the others have made theirs. When it returns, this
 * process has the state of the others, and job.survival->place says where they are. */
trek_status trek_arrivals_join(trek_step *s, const trek_survivors_opts *opts);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction between processes while backward goes on. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_OVERLAP_H
#define TREK_DISTRIBUTED_STEP_OVERLAP_H

#include "distributed/step/stepper_ranks.h"

/* Where the job's engine can do it; else s->overlap stays NULL. */
trek_status trek_overlap_plan(ranks_stepper *s);
void trek_overlap_free(ranks_stepper *s);

/* Around a backward that all processes make, whose gradients are the step's. */
void trek_overlap_begin(ranks_stepper *s, bool sends);
void trek_overlap_complete(int k, void *arg); /* trek_backward_watch's; arg: the stepper */
/* What is left is started, also after a failure: the others wait for it. */
trek_status trek_overlap_end(ranks_stepper *s);
/* Before gradients are added to what was reduced already. */
trek_status trek_overlap_keep(ranks_stepper *s);

#endif

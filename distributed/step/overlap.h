/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction between processes while backward goes on. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_OVERLAP_H
#define TREK_DISTRIBUTED_STEP_OVERLAP_H

#include "distributed/step/stepper_ranks.h"

/* Whether the job's engine can do it: s->overlaps. */
void trek_overlap_plan(ranks_stepper *s);

/* Whether the next pass is the step's last, and may send; layers that meet take the engine's time. */
bool trek_overlap_wants(const ranks_stepper *s);
/* Around a backward that all processes make, whose gradients are the step's; it tells the reducer which are complete. */
void trek_overlap_begin(ranks_stepper *s, bool sends);
/* What is left is started, also after a failure: the others wait for it. */
trek_status trek_overlap_end(ranks_stepper *s);
/* Before gradients are added to what was reduced already. */
trek_status trek_overlap_keep(ranks_stepper *s);

#endif

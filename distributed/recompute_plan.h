/* SPDX-License-Identifier: Apache-2.0 */
/* Which segments of the forwards of this process's ranks are recomputed, or moved to host memory (.activations = TREK_AUTO). */
#ifndef TREK_DISTRIBUTED_RECOMPUTE_PLAN_H
#define TREK_DISTRIBUTED_RECOMPUTE_PLAN_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Writes to each row of this process the least that its activations may be made (`least`, estimated). Rows whose activations are
 * not known keep them. Nothing is exchanged. Fails as a pass does. */
trek_status trek_recompute_estimate(trek_step *s);
/* Chooses, for each rank of a row of this process that exceeds its budget, the segments to recompute or to move, with which the
 * row fits in the least time, measures passes with them, and writes activations and what was chosen to the rows. What does not
 * fit even so is left to trek_memory_check. Nothing is exchanged. Fails as a pass does. */
trek_status trek_recompute_choose(trek_step *s);

#endif

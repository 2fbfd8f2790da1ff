/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a job are on, as all its processes know it: whether they are unequal is decided once, from the same list, as
 * shares and windows follow from it. Internal. */
#ifndef TREK_DISTRIBUTED_STEP_RANK_DEVICES_H
#define TREK_DISTRIBUTED_STEP_RANK_DEVICES_H

#include "distributed/step/stepper_ranks.h"
#include "nn/text.h"

/* Once the processes have met; a collective. */
trek_status trek_ranks_list_devices(ranks_stepper *s);
/* Whether those of ranks [first, first + n) differ: in kind, model, or what there is of it (a part of a GPU). */
bool trek_ranks_devices_differ(const ranks_stepper *s, int first, int n);
/* "ranks 0 and 1 on NVIDIA A100 (40.0 GiB), rank 2 on ..." */
void trek_ranks_describe_devices(const ranks_stepper *s, trek_text *text);

#endif

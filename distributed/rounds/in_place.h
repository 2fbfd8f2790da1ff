/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds in which all ranks meet, and average where their values lie. */
#ifndef TREK_DISTRIBUTED_ROUNDS_IN_PLACE_H
#define TREK_DISTRIBUTED_ROUNDS_IN_PLACE_H

#include "distributed/rounds/round.h"

/* Its argument is the step, whose processes have met. It also averages what trek_average_buffers does. A failure in the middle,
 * after which replicas may differ, fails all ranks and ends the group of processes. */
extern const trek_round_kind trek_round_in_place;
/* Averages the buffers of all ranks, and gives optimizers the largest numbers of updates: what is left when rounds have averaged
 * the values. */
trek_status trek_average_buffers(trek_step *s);

#endif

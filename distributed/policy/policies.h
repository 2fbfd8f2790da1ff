/* SPDX-License-Identifier: Apache-2.0 */
/* The policies that there are: rows of team/step_policy.h. make_step.c takes the first that is wanted. */
#ifndef TREK_DISTRIBUTED_POLICY_POLICIES_H
#define TREK_DISTRIBUTED_POLICY_POLICIES_H

#include "distributed/team/step_policy.h"

/* One exact step of all ranks: that of one device (exact.c). */
extern const trek_step_policy trek_exact_policy;
/* The same, in grains, whose bits do not depend on the ranks (grains.c). */
extern const trek_step_policy trek_grains_policy;
/* Each rank makes its own steps, and parameters are averaged (rounds/average_policy.c). */
extern const trek_step_policy trek_average_policy;

#endif

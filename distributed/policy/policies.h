/* SPDX-License-Identifier: Apache-2.0 */
/* The policies that there are: rows of team/step_policy.h. */
#ifndef TREK_DISTRIBUTED_POLICY_POLICIES_H
#define TREK_DISTRIBUTED_POLICY_POLICIES_H

#include "distributed/team/step_policy.h"

/* In the order in which they are asked whether they are wanted (make_step.c); the last one always is.
 *
 *     average   each rank makes its own steps, and parameters are averaged (rounds/average_policy.c)
 *     grains    one exact step of all ranks, in grains, whose bits do not depend on the ranks (grains.c)
 *     exact     one exact step of all ranks: that of one device (exact.c) */
#define TREK_STEP_POLICIES(X) X(average) X(grains) X(exact)

#define TREK_STEP_POLICY_DECLARE(name) extern const trek_step_policy trek_##name##_policy;
TREK_STEP_POLICIES(TREK_STEP_POLICY_DECLARE)
#undef TREK_STEP_POLICY_DECLARE

#endif

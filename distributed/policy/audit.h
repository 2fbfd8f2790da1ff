/* SPDX-License-Identifier: Apache-2.0 */
/* Auditing: some grains of a step are computed again, on other ranks, and their gradients are compared. */
#ifndef TREK_DISTRIBUTED_POLICY_AUDIT_H
#define TREK_DISTRIBUTED_POLICY_AUDIT_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Audits the passes of the step, before their gradients are reduced. `own` is what the step has come to in this process; the
 * others learn a failure. What differs is logged and counted; it does not fail. It is a collective. */
trek_status trek_grains_audit(trek_step *s, trek_status own);

#endif

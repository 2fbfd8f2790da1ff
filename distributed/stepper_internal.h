/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over the ranks of a process as those see it who make its steps. */
#ifndef TREK_DISTRIBUTED_STEPPER_INTERNAL_H
#define TREK_DISTRIBUTED_STEPPER_INTERNAL_H

#include "distributed/stepper.h"
#include "distributed/team/step.h"
#include "distributed/team/step_policy.h"

typedef struct ranks_stepper {
    trek_stepper base;
    trek_team team;
    trek_step step;
    struct ranks_recording *recording; /* recording.c: a step that is being recorded; NULL: none */
    struct ranks_before *before;       /* the host's state before the last one; NULL: none */
    int64_t recorded;        /* how many steps all have recorded */
} ranks_stepper;

#endif

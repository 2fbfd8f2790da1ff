/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of memory, which set-up makes in two steps: before the optimizer exists, what it does not need is measured, and its
 * state is divided by what is left; afterwards everything is compared with the budgets. */
#ifndef TREK_DISTRIBUTED_MEMORY_PLAN_H
#define TREK_DISTRIBUTED_MEMORY_PLAN_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Returns whether set-up plans memory: some process of the job has set budgets, or the optimizer's state is divided among GPUs of
 * different sizes. All processes get the same answer. */
bool trek_memory_is_planned(const trek_step *s);
/* Measures what the ranks need besides the optimizer's state, and divides that in proportion to what is left of their budgets.
 * grain: the largest that may be chosen later; 0: that of the step. spec: of the optimizer that is made afterwards; without a
 * class it is not known. A collective; own is the caller's status. */
trek_status trek_memory_divide(trek_step *s, trek_status own, int64_t grain, const trek_optimizer_spec *spec);
/* Compares what is kept now, and what a pass needs, with the budgets, and logs the table. CPU ranks cannot exceed their budgets
 * from here on. A collective; own is the caller's status. Fails with MEMORY, on all processes, if a budget is too small. */
trek_status trek_memory_settle(trek_step *s, trek_status own);
/* Makes the plan again when processes have died or come, and the parts have been divided among the present ones: measures what
 * each rank keeps, and gathers the rows of all processes. Without a plan it does nothing. A collective. Fails with MEMORY, or
 * with errors of the engine. */
trek_status trek_memory_renew(trek_step *s);

#endif

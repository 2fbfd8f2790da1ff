/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the schedules in schedule_compose.c. */
#ifndef TREK_OPTIM_SCHEDULE_INTERNAL_H
#define TREK_OPTIM_SCHEDULE_INTERNAL_H

#include "optim/schedule.h"

/* Returns the value of a schedule that is made of others, whose values come from `value`. */
typedef double (*trek_schedule_value)(const trek_schedule *s, int64_t step);
double trek_schedule_composed(const trek_schedule *s, int64_t step, trek_schedule_value value);

#endif

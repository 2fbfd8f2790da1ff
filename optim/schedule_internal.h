/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the schedules in schedule_compose.c. */
#ifndef TREK_OPTIM_SCHEDULE_INTERNAL_H
#define TREK_OPTIM_SCHEDULE_INTERNAL_H

#include "optim/schedule.h"

double trek_schedule_composed(const trek_schedule *s, int64_t step);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to stop, for those who have the processes agree on them. Internal. */
#ifndef TREK_DISTRIBUTED_STOP_INTERNAL_H
#define TREK_DISTRIBUTED_STOP_INTERNAL_H

#include "distributed/stop.h"

/* Whether this process was asked; what the processes tell each other in a step. */
bool trek_stop_wanted(void);
/* All know that one of them was asked. */
void trek_stop_agree(void);

#endif

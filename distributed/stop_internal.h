/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to stop, for code that lets the processes agree on them. */
#ifndef TREK_DISTRIBUTED_STOP_INTERNAL_H
#define TREK_DISTRIBUTED_STOP_INTERNAL_H

#include "distributed/stop.h"

/* Returns whether this process was asked to stop. The processes exchange this in a step. */
bool trek_stop_wanted(void);
/* Notes that all know that one of them was asked. */
void trek_stop_agree(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Whether all processes of a job say the same, and if not, what differs and in whom. Internal. */
#ifndef TREK_DISTRIBUTED_REPLICA_AGREEMENT_H
#define TREK_DISTRIBUTED_REPLICA_AGREEMENT_H

#include "distributed/comm/comm_internal.h"
#include "nn/text.h"

/* A collective in which a process that has failed on the way (own) takes part all the same. text: lines of "name<TAB>value"
 * in one order, alike in all processes; NULL: this one has no say. One gather where they are alike; else further ones find
 * the first line that differs. Errors, on all processes: own; PEER, naming a process that has failed; ARGUMENT:
 * "SUBJECT: lr is 0.05 in process 2, 0.1 in all others"; what the engine reports. */
trek_status trek_agree(trek_comm *comm, trek_status own, const char *subject, const trek_text *text);

#endif

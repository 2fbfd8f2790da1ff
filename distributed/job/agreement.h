/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether all processes of a job say the same, and if not, what differs and in which processes. */
#ifndef TREK_DISTRIBUTED_JOB_AGREEMENT_H
#define TREK_DISTRIBUTED_JOB_AGREEMENT_H

#include "distributed/comm/comm_internal.h"
#include "nn/text.h"

/* Compares texts, as a collective in which a process that has failed before (own) takes part, too. text has lines
 * "name<TAB>value" in one order, the same in all processes; NULL: this process has no say. If all are the same, it is
 * one gather; otherwise further gathers find the first line that differs. Fails on all processes: with own; with
 * PEER, which names a process that has failed; with ARGUMENT, e.g. "SUBJECT: lr is 0.05 in process 2, 0.1 in all
 * others"; or with errors of the engine. */
trek_status trek_agree(trek_comm *comm, trek_status own, const char *subject, const trek_text *text);

#endif

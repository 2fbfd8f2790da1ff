/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators for those who are left when a process has died: of a group that has ended a new, smaller one. Internal. */
#ifndef TREK_DISTRIBUTED_COMM_REGROUP_H
#define TREK_DISTRIBUTED_COMM_REGROUP_H

#include "distributed/comm/comm_internal.h"

/* A process's part in it: its door (control/door.h). */
typedef struct trek_regroup trek_regroup;

/* Before anything can fail, among all processes of comm, a collective: from here on they can find each other, and one that is
 * started again can join them at the job's address, if it runs the same `program`. NULL and
 * UNSUPPORTED (MPI, which ends with the first process that dies; NCCL between processes), what a door reports,
 * PEER: a process that dies within this call ends it for those who have not heard of all doors. Who has returned from it may die:
 * then all others have heard of them. comm NULL, or of threads: ARGUMENT. */
trek_regroup *trek_regroup_new(trek_comm *comm, uint64_t program);
void trek_regroup_free(trek_regroup **regroup);

/* Whether the group has ended by the death of a process, or because one was not heard of: by nothing that a program did. */
bool trek_regroup_may(const trek_comm *comm);
/* comm, the last one, has ended so, or trek_regroup_invite found newcomers: the communicator among those who are left, in the
 * old order, which may be one alone, and of newcomers after them. All
 * who live come here, each as soon as it knows; those who are alive are waited for as long as in a call. Who dies meanwhile
 * is left out, too. NULL and PEER (fewer than `least` are left; the others have gone on without this process), TIMEOUT, COMM,
 * MEMORY. comm stays the caller's. */
trek_comm *trek_regroup_meet(trek_regroup *regroup, const trek_comm *comm, int least);
/* The numbers in the job of those who were lost last, "1" or "0, 3"; "": of none. And of those who have come. */
const char *trek_regroup_lost(const trek_regroup *regroup);
const char *trek_regroup_come(const trek_regroup *regroup);

/* A collective of the present group: *n newcomers wait. If there are some, all leave comm behind and meet. If one of the
 * processes says `closed`, newcomers go on waiting, and *n is 0. */
trek_status trek_regroup_invite(trek_regroup *regroup, trek_comm *comm, bool closed, int *n);
/* The newcomer (TREK_JOIN): waits until the others invite it, and is in a group with them: *comm, the caller's. NULL and what
 * trek_door_join reports, STATE (it is of no job, or in a group already), ARGUMENT. */
trek_regroup *trek_regroup_join(uint64_t program, trek_comm **comm);

#endif

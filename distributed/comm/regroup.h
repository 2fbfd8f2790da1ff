/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a new communicator of the processes that are left after a process has died and ended the group, and of those that come.
 */
#ifndef TREK_DISTRIBUTED_COMM_REGROUP_H
#define TREK_DISTRIBUTED_COMM_REGROUP_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/supply.h"

/* The part of one process in it: its rendezvous (control/rendezvous.h). */
typedef struct trek_regroup trek_regroup;

/* Prepares the processes of comm to find each other later, before anything can fail; all of them must call it. From
 * here on a process that is started again, or a newcomer, can join them at the job's address, if it runs the same `program`.
 * Returns NULL with UNSUPPORTED (MPI, which ends with the first process that dies), with the errors of
 * trek_rendezvous_open, with PEER (a process died during this call, before this one knew all rendezvous points), or with ARGUMENT
 * (comm is NULL or of threads). When a process has returned from this call, all others know its rendezvous, so that it may die.
 */
trek_regroup *trek_regroup_new(trek_comm *comm, uint64_t program);
/* Sets the program, if it was 0, not known yet, so that joiners had to wait. */
void trek_regroup_set_program(trek_regroup *regroup, uint64_t program);
void trek_regroup_free(trek_regroup **regroup);
/* Tell the other processes, before this one frees its rendezvous, that it leaves in order, and how many operations of all
 * processes it has completed (trek_rendezvous_leave); and return the largest number that another one has told this process. A
 * process in operation number k, from 1 on, then knows that all had come to it. */
void trek_regroup_leave(trek_regroup *regroup, int64_t done);
int64_t trek_regroup_left(const trek_regroup *regroup);

/* Returns whether the group has ended because a process died or was not heard of, and not because of anything that a
 * program did. */
bool trek_regroup_may(const trek_comm *comm);
/* Returns a communicator of the processes that are left, in the old order, followed by joiners; it may have one
 * process only. It is called after comm, the last group, has ended in this way, or after trek_regroup_invite found
 * joiners. All living processes come here, each as soon as it knows. They are waited for as long as in a call; a
 * process that dies meanwhile is left out, too. Returns NULL with PEER (fewer than `least` are left, or the others
 * have gone on without this process), TIMEOUT, COMM or MEMORY. comm stays the caller's. */
trek_comm *trek_regroup_meet(trek_regroup *regroup, const trek_comm *comm, int least);
/* Return the numbers, in the job, of the processes that were lost last and of those that have come: "1" or "0, 3"; ""
 * if there were none. */
const char *trek_regroup_lost(const trek_regroup *regroup);
const char *trek_regroup_come(const trek_regroup *regroup);
/* Returns the number, in the job, of a process of the group, which never changes. */
int trek_regroup_number(const trek_regroup *regroup, int process);

/* Supplies parts of memory to processes of the job (control/supply.h), at the address at which the others find this process.
 * Fails as trek_supply_new does. */
trek_supply *trek_regroup_supply(const trek_regroup *regroup, const struct iovec *parts, int n);
/* Returns where a process of the present group is found, which supplies at that port. It remains true in later groups. */
trek_supplier trek_regroup_supplier(const trek_regroup *regroup, int process, int port);
/* Fetches what suppliers have. The token and this process's number are filled in. Fails as trek_supply_fetch does. */
trek_status trek_regroup_fetch(const trek_regroup *regroup, const trek_supply_fetching *fetching);

/* Returns how many joiners wait in this process. If no process of the group admits any, or if the group (comm; NULL: the process
 * is alone) has ended, perhaps by the death of the one that did, it tries to, from time to time. */
int trek_regroup_joiners(trek_regroup *regroup, const trek_comm *comm);
typedef struct trek_regroup_door {
    bool closed;             /* joiners go on waiting, if one process says so */
    int ranks;               /* of the job, in all processes the same */
} trek_regroup_door;
/* Asks, as a collective of the current group, whether joiners wait that can be let in; *n gets their number. If there are some,
 * all must leave comm behind and meet. Those for which the job has no room, or no engine, are told so. */
trek_status trek_regroup_invite(trek_regroup *regroup, trek_comm *comm, const trek_regroup_door *door, int *n);
/* Joins a job that runs (TREK_JOIN) with that many ranks: waits until the others invite it, and then is in a group with them.
 * *comm belongs to the caller. Returns NULL with the errors of trek_rendezvous_join, with STATE (there is no job, or the process
 * has been in a group already), or with ARGUMENT. */
trek_regroup *trek_regroup_join(uint64_t program, int ranks, trek_comm **comm);

#endif

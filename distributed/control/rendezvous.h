/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous of a process: a second socket by which the processes of a job find each other again when a group has ended
 * because one of them died. Its own thread serves it for as long as the process may be looked for. The thread says
 * that the process is alive, whatever the process computes, and holds the visitors until the process comes itself.
 * The group that has ended is not changed; what is found here is the place of a new group.
 *
 * The host of the new group is the living member with the lowest number. Each process tries the rendezvous points of the members
 * below it in turn. A process that closes a connection, refuses one, or is silent for 5 s, is considered dead. The
 * host waits for all who answer; when members are missing, it asks their rendezvous points. A process without which the others
 * have gone on is told so. If the network is split in two, each part may go on; only a required number of more than
 * half of the processes prevents that.
 *
 * One process of the group, if any can, also listens at the job's address and port. A process that was started again, or a
 * newcomer that was not in the job before, asks there to be let in (rejoin.c) and waits (join_queue.c) until the group invites
 * it. Then it comes to the next meeting, after all who were there before it. Members are ordered by when they came to the job, so
 * the host is the one that has been in it longest.
 *
 * A newcomer gets a number that no process has had, since one that seems dead may come back under its own number. All members
 * know the first such number. */
#ifndef TREK_DISTRIBUTED_CONTROL_RENDEZVOUS_H
#define TREK_DISTRIBUTED_CONTROL_RENDEZVOUS_H

#include "distributed/control/control.h"

typedef struct trek_rendezvous trek_rendezvous;

/* What others know of a process. */
typedef struct trek_member {
    int32_t number;          /* the number of the process in the job, which never changes */
    int32_t port;
    char address[64];        /* a numeric address */
} trek_member;

/* A process that waits to be let in. */
typedef struct trek_joiner {
    trek_member member;
    int32_t ranks;           /* with which it comes */
    uint32_t engines;        /* that it can use, as comm/engines.h counts them */
    uint64_t machine;        /* a hash of its machine's name */
} trek_joiner;

/* Opens a rendezvous at that address of this machine. token is the job's. Returns NULL on failure (COMM, MEMORY, STATE if
 * no thread could be started). */
trek_rendezvous *trek_rendezvous_open(const char *address, const char *token, int number);
void trek_rendezvous_free(trek_rendezvous **rendezvous);
trek_member trek_rendezvous_member(const trek_rendezvous *rendezvous);
/* Notes that this process is now in a group of these n members, in rank order, itself among them. The list is copied.
 * Fails with MEMORY. */
trek_status trek_rendezvous_enter(trek_rendezvous *rendezvous, int64_t generation, const trek_member *members, int n);
int trek_rendezvous_members(const trek_rendezvous *rendezvous);
/* Return, and raise to at least this, the first number that no process of the job has had, as far as this one knows. */
int trek_rendezvous_first_unused(trek_rendezvous *rendezvous);
void trek_rendezvous_note_unused(trek_rendezvous *rendezvous, int number);

/* Where the next group comes together, for trek_control_join. */
typedef struct trek_rendezvous_place {
    int process, processes;
    int64_t generation;
    char address[64];
    int port;
    int listening;           /* process 0: the socket that listens there, plus 1; other processes: 0. The caller owns it */
} trek_rendezvous_place;
/* Finds the processes that are left after the group has ended. least: how many are needed. settle_ns: how long living
 * processes are waited for; 0: without limit. Fails with PEER if too few are left, or if the others have gone on
 * without this process or may have: all who are left have stood still (stopped, suspended) and may have been
 * considered dead. Fails also with TIMEOUT, COMM or MEMORY. Until trek_rendezvous_settled, processes that are about to come
 * can learn whether the others are still waiting. */
trek_status trek_rendezvous_meet(trek_rendezvous *rendezvous, int least, int64_t settle_ns, trek_rendezvous_place *place);
/* Returns whether a process that was to come has died. For `died` of trek_control_opts; its arg is the rendezvous. */
bool trek_rendezvous_died(void *rendezvous, char *text, size_t size);
/* Says that the processes have come or will not come. */
void trek_rendezvous_settled(trek_rendezvous *rendezvous);

/* Tells the other members that this process leaves in an orderly way, after `done` collective operations. When it returns, every
 * living member has been told, except those that did not answer within 5 s. */
void trek_rendezvous_leave(trek_rendezvous *rendezvous, int64_t done);
/* Returns the largest `done` of all members that have left in this way; 0 if none has. It tells a member that is looking for the
 * others that they have finished rather than died, and which operations were complete. */
int64_t trek_rendezvous_left(trek_rendezvous *rendezvous);

/* -- joining an existing group -- */

/* Listens for joiners at the job's address as well. `listening` is a socket that does, plus 1, which the rendezvous then
 * owns, or 0. program identifies what joiners must run. world is the number of processes with which the job began.
 * Fails with COMM if it cannot listen. */
trek_status trek_rendezvous_admit(trek_rendezvous *rendezvous, const char *address, int port, int listening, uint64_t program,
                                  int world);
bool trek_rendezvous_admits(trek_rendezvous *rendezvous);
/* Sets the program of the job. While it is 0, joiners are told to come later. */
void trek_rendezvous_set_program(trek_rendezvous *rendezvous, uint64_t program);
/* Returns the number of processes with which the job began, as trek_rendezvous_admit or the others have said. */
int trek_rendezvous_world(const trek_rendezvous *rendezvous);
/* Returns how many waiting processes the group should look at: those that do not belong to it, and those that have waited for
 * 5 s under the number of a member. */
int trek_rendezvous_joiners(trek_rendezvous *rendezvous);
/* Gets the processes that wait and are not in the group, at most `most`, ordered by number. */
int trek_rendezvous_waiting(trek_rendezvous *rendezvous, trek_joiner *joiners, int most);
/* Invites these n to the next group; all members have met and know them. A process that has waited through two such
 * meetings under the number of a living member is told that this member is alive. Fails with MEMORY. */
trek_status trek_rendezvous_invite(trek_rendezvous *rendezvous, const trek_joiner *joiners, int n);
/* Why the group does not invite a process that waits. */
typedef enum trek_rendezvous_no {
    TREK_RENDEZVOUS_NO_ROOM,  /* the job would have too many ranks */
    TREK_RENDEZVOUS_NO_ENGINE /* no engine joins its machine and the others */
} trek_rendezvous_no;
/* Tells this joiner so, if it waits here. */
void trek_rendezvous_turn_away(trek_rendezvous *rendezvous, const trek_joiner *joiner, trek_rendezvous_no why);
/* What a joiner says, and to whom. Strings belong to the caller. */
typedef struct trek_rendezvous_call {
    const char *address, *token; /* of the job */
    int port, number, world; /* number -1: it has none, and gets one; then world does not count */
    int ranks;
    uint32_t engines;
    uint64_t program, machine;
    int64_t until_ns;        /* a process must be reached before this time */
    bool (*over)(void *arg); /* returns whether no process is left; NULL: that is not known */
    void *arg;
} trek_rendezvous_call;

typedef enum trek_rendezvous_came {
    TREK_RENDEZVOUS_CAME,
    TREK_RENDEZVOUS_LEFT_ALONE, /* the process that let it wait, or was to host, has gone or is not ready yet: it may try again */
    TREK_RENDEZVOUS_IGNORED /* the listener closed the connection without a word: another program, or a job that has just ended */
} trek_rendezvous_came;

/* Joins a job that runs: asks at the job's address, waits there until it is invited or the job ends, and then meets the
 * others. Returns the rendezvous that it opened for that. Returns NULL without an error if *came says why. Returns NULL
 * with STATE (the job has ended or has no room, or its process of this number is alive), ARGUMENT (it runs another program, or
 * the job has another number of processes), UNSUPPORTED (no engine joins its machine and the others), TIMEOUT (nobody listens
 * there), COMM or MEMORY. */
trek_rendezvous *trek_rendezvous_join(const trek_rendezvous_call *call, trek_rendezvous_place *place, trek_rendezvous_came *came);

#endif
